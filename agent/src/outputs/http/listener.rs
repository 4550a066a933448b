//! Accepts the connections of one listener, plain or TLS. Permits and timeouts limit the connections, so that no client
//! can exhaust the agent's memory or file descriptors, or keep the kubelet's probes out.

use super::{lists::Unending, tls::Certificate};
use crate::outputs::metrics::DropReason as Dropped;
use axum::{Router, body::Body, http::Request, response::Response};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream, unix::UCred},
    sync::watch,
    task::AbortHandle,
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Concurrent connections from other machines and pods, such as several Prometheus servers.
const PERMITS: usize = 32;
/// Concurrent connections from the node itself: the kubelet's probes, and users.
const PERMITS_OF_NODE: usize = 16;
/// Concurrent connections from one address that is not the node's.
const PERMITS_PER_PEER: usize = 8;
/// Timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Timeout for the head of a request, including the pause before it.
const HEAD: Duration = Duration::from_secs(10);
/// Lifetime of a connection; clients reconnect.
const CONNECTION: Duration = Duration::from_secs(60);
/// How long after that the request in progress may take.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Maximum lifetime of a connection with a watch.
const WATCH: Duration = Duration::from_secs(3600);
/// How long a client may take nothing of an answer.
const STALL: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(10) };
/// Maximum size of the head of a request, bytes.
const MAX_HEAD: usize = 16 << 10;
/// Send buffer of a connection, bytes: bounds the memory of an unread response (the kernel doubles the value).
const SEND_BUFFER: usize = 32 << 10;
/// Pause after accept(2) fails, most likely because no file descriptor is free.
const PAUSE: Duration = Duration::from_secs(1);

/// A listening socket, plain or TLS.
pub struct Listener {
    socket: Socket,
    tls: Option<Arc<Certificate>>,
    node: Vec<IpAddr>,
}

enum Socket {
    Tcp(TcpListener),
    /// Accessible to this user and root only.
    Unix(UnixListener),
}

/// Called with the reason when a connection is closed early.
type OnDrop = Arc<dyn Fn(Dropped) + Send + Sync>;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Uses TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<Certificate>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the node's addresses, from which the kubelet probes.
    pub(crate) fn with_node(mut self, addresses: Vec<IpAddr>) -> Self {
        self.node = addresses;
        self
    }

    /// Serves until `stop` is done, then finishes the pending requests. `dropped` is called with the reason for each
    /// connection that is closed early.
    pub(crate) async fn serve(
        self,
        router: Router,
        dropped: impl Fn(Dropped) + Send + Sync + 'static,
        stop: impl Future<Output = ()>,
    ) {
        if let Socket::Tcp(listener) = &self.socket
            && let Err(error) =
                rustix::net::sockopt::set_socket_send_buffer_size(listener, SEND_BUFFER)
        {
            debug!(%error, "cannot set the send buffer of the listener");
        }
        let dropped: OnDrop = Arc::new(dropped);
        let permits = Permits::default();
        let close = watch::Sender::new(());
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
            let (permit, has_evicted) = permits.take(peer);
            if has_evicted {
                dropped(Dropped::MadeRoom);
            }
            let Some(permit) = permit else {
                dropped(Dropped::NoRoom);
                continue;
            };
            let watches = Arc::<AtomicBool>::default();
            let mut busy = Busy {
                inner: router.clone(),
                busy: Arc::clone(&permit.busy),
                watches: Arc::clone(&watches),
                lacks_certificate: false,
            };
            let on_drop = Arc::clone(&dropped);
            let (tls, closing) = (self.tls.clone(), close.subscribe());
            let answer = async move {
                match (stream, tls) {
                    (Stream::Unix(stream), _) => converse(stream, on_drop, busy, closing).await,
                    (Stream::Tcp(stream), None) => converse(stream, on_drop, busy, closing).await,
                    (Stream::Tcp(stream), Some(tls)) => {
                        let Some(stream) = handshake(&tls.acceptor(), stream).await else {
                            return Ok(());
                        };
                        busy.lacks_certificate = tls.verifies_clients()
                            && stream.get_ref().1.peer_certificates().is_none();
                        converse(stream, on_drop, busy, closing).await
                    }
                }
            };
            let number = permit.number;
            let dropped = Arc::clone(&dropped);
            let task = tokio::spawn(async move {
                let mut answer = pin!(answer);
                let mut ended = timeout(CONNECTION + LAST_ANSWER, &mut answer).await;
                if ended.is_err() && watches.load(Ordering::Relaxed) {
                    ended = timeout(WATCH - CONNECTION, answer).await;
                }
                match ended {
                    Ok(Ok(())) => {}
                    // Anyone who can reach the port can bring this about: nothing for the log.
                    Ok(Err(error)) => debug!(%error, "connection failed"),
                    Err(_) => {
                        dropped(Dropped::TooLong);
                        debug!("connection timed out");
                    }
                }
                drop(permit);
            });
            permits.is_served_by(number, task.abort_handle());
        }
        drop(self.socket);
        close.send_replace(());
        close.closed().await;
    }

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.socket {
            Socket::Unix(listener) => loop {
                let (stream, _) = listener.accept().await?;
                match stream.peer_cred() {
                    Ok(peer) if is_served(&peer) => return Ok((Stream::Unix(stream), Peer::Node)),
                    peer => debug!(?peer, "refused a connection of another user"),
                }
            },
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let peer = peer.ip().to_canonical();
                let own = stream.local_addr().is_ok_and(|own| own.ip().to_canonical() == peer);
                let is_node = own || peer.is_loopback() || self.node.contains(&peer);
                let peer = if is_node { Peer::Node } else { Peer::Other(peer) };
                Ok((Stream::Tcp(stream), peer))
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

/// Root and this user, whatever became of the socket's mode.
fn is_served(peer: &UCred) -> bool {
    peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw()
}

/// Marks the requests of a client that showed no certificate where clients need one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WithoutCertificate;

/// Where a connection comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// This node: its kubelet, or a person on it.
    Node,
    /// A pod or another machine.
    Other(IpAddr),
}

/// The connections that are open. When there is no permit, the oldest connection that has no complete request
/// makes room.
#[derive(Clone, Default)]
struct Permits(Arc<Mutex<OpenConnections>>);

#[derive(Default)]
struct OpenConnections {
    next: u64,
    /// In the order in which they came.
    connections: BTreeMap<u64, OpenConnection>,
}

struct OpenConnection {
    peer: Peer,
    busy: Arc<AtomicBool>,
    task: Option<AbortHandle>,
}

/// The permit of one connection, free again when it is dropped.
struct ConnectionPermit {
    permits: Permits,
    number: u64,
    /// A request is being answered.
    busy: Arc<AtomicBool>,
}

impl Permits {
    /// A permit for a connection, and whether another one was closed for it. `None`: all that are in its way have a
    /// request that is being answered.
    fn take(&self, peer: Peer) -> (Option<ConnectionPermit>, bool) {
        let mut open = self.0.lock();
        let before = open.connections.len();
        let has_room = match peer {
            Peer::Node => open.keep_below(PERMITS_OF_NODE, |other| other == Peer::Node),
            Peer::Other(_) => open
                .keep_below(PERMITS_PER_PEER, |other| other == peer)
                .and_then(|()| open.keep_below(PERMITS, |other| other != Peer::Node)),
        };
        let has_evicted = open.connections.len() < before;
        if has_room.is_none() {
            return (None, has_evicted);
        }
        let (number, busy) = (open.next, Arc::<AtomicBool>::default());
        open.next += 1;
        let connection = OpenConnection { peer, busy: Arc::clone(&busy), task: None };
        open.connections.insert(number, connection);
        (Some(ConnectionPermit { permits: self.clone(), number, busy }), has_evicted)
    }

    fn is_served_by(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.0.lock().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }
}

impl OpenConnections {
    /// Closes the oldest idle connection of a kind if there are `permits` of them. `None`: none is idle.
    fn keep_below(&mut self, permits: usize, of: impl Fn(Peer) -> bool) -> Option<()> {
        let open = self.connections.values().filter(|connection| of(connection.peer)).count();
        if open < permits {
            return Some(());
        }
        let is_idle = |connection: &OpenConnection| {
            of(connection.peer) && !connection.busy.load(Ordering::Relaxed)
        };
        let oldest = self.connections.iter().find(|(_, connection)| is_idle(connection));
        let number = *oldest?.0;
        if let Some(task) = self.connections.remove(&number)?.task {
            task.abort();
        }
        Some(())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.permits.0.lock().connections.remove(&self.number);
    }
}

/// The router, which notes for as long as it works on a request that the connection is busy.
#[derive(Clone)]
struct Busy {
    inner: Router,
    busy: Arc<AtomicBool>,
    /// Clients need a certificate, and this one showed none.
    lacks_certificate: bool,
    /// A watch was begun.
    watches: Arc<AtomicBool>,
}

impl tower::Service<Request<hyper::body::Incoming>> for Busy {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<hyper::body::Incoming>) -> Self::Future {
        if self.lacks_certificate {
            request.extensions_mut().insert(WithoutCertificate);
        }
        let (busy, watches) = (Arc::clone(&self.busy), Arc::clone(&self.watches));
        busy.store(true, Ordering::Relaxed);
        let answer = self.inner.call(request.map(Body::new));
        Box::pin(async move {
            let answer = answer.await;
            // What is left is to be read by the client, which may take its time in vain.
            busy.store(false, Ordering::Relaxed);
            if answer.as_ref().is_ok_and(|answer| answer.extensions().get::<Unending>().is_some()) {
                watches.store(true, Ordering::Relaxed);
            }
            answer
        })
    }
}

/// A connection that ends when its client reads nothing: else what it asked for, and a permit, would be held for it.
struct GuardedStream<S> {
    inner: S,
    /// Since the client stopped reading.
    stalled: Option<Pin<Box<Sleep>>>,
    on_drop: OnDrop,
}

impl<S> GuardedStream<S> {
    /// Passes on what a write came to, until the client has taken nothing for too long.
    fn progress<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL)));
        if stalled.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.stalled = None;
        (self.on_drop)(Dropped::NotReading);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        all: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, all);
        self.progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.progress(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.progress(cx, shut)
    }
}

async fn handshake(
    tls: &TlsAcceptor,
    socket: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match timeout(HANDSHAKE, tls.accept(socket)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => {
            debug!("TLS handshake timed out");
            None
        }
    }
}

/// Answers the requests of a connection, for its lifetime or until `closing`, and finishes the one in progress.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    on_drop: OnDrop,
    service: Busy,
    mut closing: watch::Receiver<()>,
) -> hyper::Result<()> {
    let stream = GuardedStream { inner: stream, stalled: None, on_drop };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
    );
    tokio::select! {
        ended = &mut connection => return ended,
        () = sleep(CONNECTION) => {}
        _ = closing.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn other(n: u8) -> Peer {
        Peer::Other([10, 0, 0, n].into())
    }

    #[test]
    fn the_oldest_connection_without_a_request_makes_room() {
        let permits = Permits::default();
        let first: Vec<_> =
            (0..PERMITS_PER_PEER).map(|_| permits.take(other(1)).0.unwrap()).collect();
        first[0].busy.store(true, Ordering::Relaxed);
        let (_more, has_evicted) = permits.take(other(1));
        assert!(has_evicted);
        let open =
            |permit: &ConnectionPermit| permits.0.lock().connections.contains_key(&permit.number);
        assert_eq!((open(&first[0]), open(&first[1]), open(&first[2])), (true, false, true));
        assert_eq!(permits.0.lock().connections.len(), PERMITS_PER_PEER);
    }

    #[test]
    fn nobody_takes_the_places_of_the_node() {
        let permits = Permits::default();
        let mut held = Vec::new();
        for n in 0..=255 {
            for permit in std::iter::from_fn(|| permits.take(other(n)).0).take(4) {
                permit.busy.store(true, Ordering::Relaxed);
                held.push(permit);
            }
        }
        assert_eq!(permits.0.lock().connections.len(), PERMITS);
        assert!(permits.take(other(7)).0.is_none(), "all of them are busy");
        assert!(permits.take(Peer::Node).0.is_some());
        held.pop();
        assert!(permits.take(other(7)).0.is_some(), "one is free again");
    }

    async fn ask(address: std::net::SocketAddr) -> String {
        let mut probe = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        probe.write_all(request).await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Half a request each, a whole one whose answer nobody reads, or nothing at all: a probe is answered at once.
    #[tokio::test]
    async fn a_crowd_that_asks_nothing_keeps_no_probe_waiting() {
        let big = || async { vec![b'x'; 4 << 20] };
        let router = Router::new().route("/healthz", get(async || "ok")).route("/big", get(big));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            tokio::spawn(Listener::from(listener).serve(router, |_| {}, std::future::pending()));
        let mut crowd = Vec::new();
        for (n, says) in ["", "GET /heal", "GET /big HTTP/1.1\r\nHost: a\r\n\r\n"]
            .iter()
            .cycle()
            .take(256)
            .enumerate()
        {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(says.as_bytes()).await.unwrap();
            crowd.push(stream);
            if n % 16 == 0 {
                assert!(ask(address).await.ends_with("ok"), "after {n}");
            }
        }
        assert!(ask(address).await.ends_with("ok"));
        server.abort();
    }

    /// A watch has no end: what it sends to a client that does not read is held by nobody, and its place is free again.
    #[tokio::test]
    async fn a_client_that_does_not_read_is_dropped_and_counted() {
        let held = Arc::new(());
        let (weak, held) = (Arc::downgrade(&held), Arc::new(Mutex::new(Some(held))));
        let endless = || async move {
            let held = held.lock().take();
            let parts = futures::stream::repeat_with(move || {
                let _ = &held;
                Ok::<_, Infallible>(vec![b'x'; 1 << 16])
            });
            let mut answer = Response::new(Body::from_stream(parts));
            answer.extensions_mut().insert(Unending);
            answer
        };
        let router = Router::new().route("/watch", get(endless));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tx, mut dropped) = tokio::sync::mpsc::unbounded_channel();
        let count = move |why| {
            let _ = tx.send(why); // the test is over
        };
        let server =
            tokio::spawn(Listener::from(listener).serve(router, count, std::future::pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /watch HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        // It reads a little, and then no more.
        client.read_exact(&mut [0; 4096]).await.unwrap();
        assert_eq!(dropped.recv().await, Some(Dropped::NotReading));
        while weak.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        server.abort();
    }
}
