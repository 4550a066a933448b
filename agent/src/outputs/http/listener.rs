//! Accepts the connections of one listener, plain or TLS. Their number, their time and the size of a request's head are limited,
//! so that no client can exhaust the agent's memory or file descriptors, or keep the kubelet's probes out.

use super::tls::Certificate;
use crate::outputs::metrics::DropReason as Dropped;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::{
    future::Future,
    io,
    net::IpAddr,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

/// Concurrent connections from other machines and pods, such as several Prometheus servers.
const PERMITS: usize = 32;
/// Of these, from one address.
const PERMITS_PER_PEER: usize = 8;
/// Concurrent connections from the node itself: the kubelet's probes, and users.
const PERMITS_OF_NODE: usize = 16;
/// Timeout of a TLS handshake, and of the head of a request with the pause before it.
const HEAD: Duration = Duration::from_secs(10);
/// Lifetime of a connection, whatever it does; clients reconnect.
const CONNECTION: Duration = Duration::from_secs(60);
/// In this last part of it, only a request in progress is answered.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Maximum size of the head of a request, bytes.
const MAX_HEAD: usize = 16 << 10;
/// Send buffer of a connection, bytes: bounds the memory of an unread response (the kernel doubles the value).
const SEND_BUFFER: usize = 32 << 10;
/// Pause after accept(2) fails, most likely because no file descriptor is free.
const PAUSE: Duration = Duration::from_secs(1);

/// A listening socket, plain or TLS.
pub struct Listener {
    socket: Socket,
    pub tls: Option<Arc<Certificate>>,
    /// The node's addresses, from which the kubelet probes.
    pub node: Vec<IpAddr>,
}

enum Socket {
    Tcp(TcpListener),
    /// Accessible to this user and root only.
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Listener {
    /// Serves until `stop` is done, then finishes the pending requests. `dropped` is called with the reason for each
    /// connection that the agent closed.
    pub(crate) async fn serve(
        self,
        router: Router,
        dropped: impl Fn(Dropped) + Clone + Send + 'static,
        stop: impl Future<Output = ()>,
    ) {
        if let Socket::Tcp(listener) = &self.socket
            && let Err(error) = set_socket_send_buffer_size(listener, SEND_BUFFER)
        {
            warn!(%error, "cannot bound the memory of unread responses");
        }
        let (mut open, close) = (OpenConnections::default(), watch::Sender::new(()));
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = self.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(permit) = open.permit(peer) else {
                dropped(Dropped::NoRoom);
                continue;
            };
            let answer = answer(stream, self.tls.clone(), router.clone(), close.subscribe());
            let dropped = dropped.clone();
            tokio::spawn(async move {
                match timeout(CONNECTION, answer).await {
                    Ok(Ok(())) => {}
                    // Anyone who can reach the port can bring this about: nothing for the log.
                    Ok(Err(error)) => debug!(error, "connection failed"),
                    Err(_) => dropped(Dropped::TooLong),
                }
                drop(permit);
            });
        }
        drop(self.socket);
        close.send_replace(());
        close.closed().await;
    }

    /// A connection, and the peer's address unless the connection is the node's own.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match &self.socket {
            Socket::Unix(listener) => loop {
                let (stream, _) = listener.accept().await?;
                // Root and this user, whatever became of the socket's mode.
                let users = [0, rustix::process::geteuid().as_raw()];
                match stream.peer_cred() {
                    Ok(peer) if users.contains(&peer.uid()) => return Ok((Box::new(stream), None)),
                    peer => debug!(?peer, "refused a connection of another user"),
                }
            },
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let peer = peer.ip().to_canonical();
                let own = stream.local_addr().is_ok_and(|own| own.ip().to_canonical() == peer);
                let is_node = own || peer.is_loopback() || self.node.contains(&peer);
                Ok((Box::new(stream), (!is_node).then_some(peer)))
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self { socket: Socket::Tcp(listener), tls: None, node: Vec::new() }
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self { socket: Socket::Unix(listener), tls: None, node: Vec::new() }
    }
}

/// Who holds the permits: a peer's address, or none for the node.
#[derive(Default)]
struct OpenConnections(Vec<(Option<IpAddr>, Weak<()>)>);

impl OpenConnections {
    /// The right to one more connection, for as long as it is held.
    fn permit(&mut self, peer: Option<IpAddr>) -> Option<Arc<()>> {
        self.0.retain(|(_, permit)| permit.strong_count() > 0);
        let same = self.0.iter().filter(|(other, _)| *other == peer).count();
        let others = self.0.iter().filter(|(other, _)| other.is_some()).count();
        let has_room = match peer {
            None => same < PERMITS_OF_NODE,
            Some(_) => same < PERMITS_PER_PEER && others < PERMITS,
        };
        let permit = has_room.then(Arc::default)?;
        self.0.push((peer, Arc::downgrade(&permit)));
        Some(permit)
    }
}

/// Answers the requests of a connection until its last part or `closing`, and finishes the one in progress.
async fn answer(
    stream: Box<dyn Stream>,
    tls: Option<Arc<Certificate>>,
    router: Router,
    mut closing: watch::Receiver<()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let lasts = sleep(CONNECTION - LAST_ANSWER);
    let stream = match tls {
        None => stream,
        Some(tls) => Box::new(timeout(HEAD, tls.acceptor().accept(stream)).await??),
    };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    tokio::select! {
        ended = &mut connection => return Ok(ended?),
        () = lasts => {}
        _ = closing.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    Ok(connection.await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    #[test]
    fn nobody_takes_the_permits_of_the_node_or_more_than_a_share() {
        let mut open = OpenConnections::default();
        let other = |n: u8| Some(IpAddr::from([10, 0, 0, n]));
        let mut held: Vec<_> = (0..20).filter_map(|_| open.permit(other(1))).collect();
        assert_eq!(held.len(), PERMITS_PER_PEER);
        held.extend((2..=255).filter_map(|n| open.permit(other(n))));
        assert_eq!(held.len(), PERMITS);
        let of_node: Vec<_> = (0..20).filter_map(|_| open.permit(None)).collect();
        assert_eq!(of_node.len(), PERMITS_OF_NODE);
        held.pop();
        assert!(open.permit(other(7)).is_some(), "one is free again");
    }

    /// Half a request, a whole one whose answer has no end and is not read, or nothing at all: each is closed in time, and
    /// nothing is held for it.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_ask_or_read_is_closed() {
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        let endless = async move || {
            let held = Arc::clone(&held);
            let parts = futures::stream::repeat_with(move || {
                let _ = &held;
                Ok::<_, io::Error>(vec![b'x'; 1 << 16])
            });
            axum::body::Body::from_stream(parts)
        };
        let router = Router::new().route("/endless", get(endless));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tx, mut dropped) = tokio::sync::mpsc::unbounded_channel();
        let count = move |why| {
            let _ = tx.send(why); // the test is over
        };
        let server =
            tokio::spawn(Listener::from(listener).serve(router, count, std::future::pending()));
        for says in ["", "GET /end"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(says.as_bytes()).await.unwrap();
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "closed");
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        client.read_exact(&mut [0; 4096]).await.unwrap();
        assert_eq!(dropped.recv().await, Some(Dropped::TooLong));
        server.abort();
        let _ = server.await; // aborted; with it the router
        assert_eq!(weak.strong_count(), 0);
    }
}
