//! Accepts the HTTP server's connections, plain or behind TLS, and so few at a time and for so long
//! that nobody who reaches the port can take the agent's memory or file descriptors.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{future::Future, pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Connections at one time: a kubelet, some Prometheus and people. More wait to be accepted.
const CONNECTIONS: usize = 32;
/// A TLS handshake takes no longer.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Nor does the head of a request, nor the pause before it.
const HEAD: Duration = Duration::from_secs(10);
/// Nor does a connection in all: whoever still needs one makes another.
const CONNECTION: Duration = Duration::from_secs(300);
/// After a failure to accept a connection, which is most likely one for want of file descriptors.
const BREATH: Duration = Duration::from_secs(1);

/// A listening socket, and whether TLS is spoken behind it.
pub struct Listener {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// TLS is spoken behind it.
    pub(crate) fn with_tls(listener: TcpListener, tls: TlsAcceptor) -> Self {
        Self { listener, tls: Some(tls) }
    }

    /// Serves until `stop` is done, then ends what is under way.
    pub(crate) async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let graceful = GracefulShutdown::new();
        let mut stop = pin!(stop);
        loop {
            let next = async {
                // Never closed: an error cannot be.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = &mut stop => break,
                next = next => next,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    warn!(%error, "a connection cannot be accepted");
                    sleep(BREATH).await;
                    continue;
                }
            };
            let (router, tls, watcher) = (router.clone(), self.tls.clone(), graceful.watcher());
            let answer = async move {
                let service = TowerToHyperService::new(router);
                match tls {
                    None => watcher.watch(connection(socket, service)).await,
                    Some(tls) => {
                        let Some(stream) = handshake(&tls, socket).await else { return Ok(()) };
                        watcher.watch(connection(stream, service)).await
                    }
                }
            };
            tokio::spawn(async move {
                match timeout(CONNECTION, answer).await {
                    Ok(Ok(())) => {}
                    // Whoever can reach the port can bring this about: nothing for the log.
                    Ok(Err(error)) => debug!(%error, "a connection broke off"),
                    Err(_) => debug!("a connection took too long"),
                }
                drop(place);
            });
        }
        drop(self.listener);
        graceful.shutdown().await;
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self { listener, tls: None }
    }
}

async fn handshake(
    tls: &TlsAcceptor,
    socket: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match timeout(HANDSHAKE, tls.accept(socket)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            debug!("a TLS handshake took too long");
            None
        }
    }
}

type Service = TowerToHyperService<Router>;

fn connection<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    service: Service,
) -> http1::Connection<TokioIo<S>, Service> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
}
