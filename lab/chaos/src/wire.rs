//! The agent's way to its apiserver: whoever stands between them, and what he does. The kubelet
//! does not come this way.

use anyhow::Context as _;
use std::{net::Ipv4Addr, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// How much is passed on at once.
const PIECE: usize = 16 << 10;
/// No request's head is longer.
const MAX_HEAD: usize = 16 << 10;

/// What happens to what is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wire {
    /// All of it arrives.
    #[default]
    Open,
    /// Nobody listens, and what was open is reset.
    Refused,
    /// What was open stays so and carries nothing more; what is opened anew works.
    Stalled,
    /// Each piece of an answer takes this long.
    Slow(Duration),
    /// Each connection ends after so many bytes of answers.
    Cut(usize),
    /// What was open is cut, and requests are answered by somebody else.
    Refuses(Refusal),
}

/// What requests are answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// 410, watches only: lists are passed on.
    Gone,
    /// 429, with Retry-After.
    TooMany,
    Broken,
    /// 200, and no JSON.
    Garbage,
}

impl Refusal {
    fn answer(self) -> Vec<u8> {
        let status = |code: u16, reason: &str| {
            serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "chaos", "reason": reason, "code": code,
            })
            .to_string()
            .into_bytes()
        };
        let (line, more, body) = match self {
            Self::Gone => ("410 Gone", "", status(410, "Expired")),
            Self::TooMany => {
                ("429 Too Many Requests", "Retry-After: 1\r\n", status(429, "TooManyRequests"))
            }
            Self::Broken => ("500 Internal Server Error", "", status(500, "InternalError")),
            Self::Garbage => ("200 OK", "", b"{\"kind\":\x00\xff\xfe[[[\n".repeat(64)),
        };
        let mut answer = format!(
            "HTTP/1.1 {line}\r\n{more}Content-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        answer.extend(body);
        answer
    }

    /// Whether a request with this head is answered so.
    fn is_for(self, head: &[u8]) -> bool {
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let watches = String::from_utf8_lossy(line).contains("watch=true");
        self != Self::Gone || watches
    }
}

/// Whoever stands between.
#[derive(Debug)]
pub(super) struct Between {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
    task: JoinHandle<()>,
}

impl Between {
    /// Listens on a free port of loopback for what is meant for `apiserver`.
    pub(super) async fn start(apiserver: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free port")?;
        let address = listener.local_addr()?;
        let (wire, how) = watch::channel(Wire::Open);
        let task = tokio::spawn(serve(listener, address, apiserver, how));
        Ok(Self { address, wire, task })
    }

    /// Where the agent finds its apiserver.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on this happens.
    pub(super) fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    apiserver: SocketAddr,
    mut how: watch::Receiver<Wire>,
) {
    let mut connections = JoinSet::new();
    let mut listener = Some(listener);
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accepted => if let Ok((client, _)) = accepted {
                let (wire, how) = (*how.borrow(), how.clone());
                connections.spawn(connection(client, apiserver, wire, how));
            },
            Some(_) = connections.join_next() => {}
            changed = how.changed() => {
                if changed.is_err() {
                    return;
                }
                if *how.borrow() == Wire::Refused {
                    listener = None;
                } else if listener.is_none() {
                    // Somebody else may have the port for a moment.
                    while listener.is_none() {
                        listener = TcpListener::bind(address).await.ok();
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }
    }
}

/// One connection, made while `born` was so. It ends when that changes, except that one may stall.
async fn connection(
    mut client: TcpStream,
    apiserver: SocketAddr,
    born: Wire,
    mut how: watch::Receiver<Wire>,
) {
    let _ = client.set_nodelay(true);
    let passed = pass(&mut client, apiserver, born);
    tokio::select! {
        () = passed => return,
        changed = how.wait_for(|now| *now != born) => match changed.map(|now| *now) {
            // Silent, until that is over.
            Ok(Wire::Stalled) => {}
            _ => return reset(client),
        },
    }
    let _ = how.wait_for(|now| *now != Wire::Stalled).await;
    reset(client);
}

/// Ends it with a reset instead of an orderly end.
fn reset(client: TcpStream) {
    // Refused, it ends in an orderly way: less of a fault.
    let _ = client.set_zero_linger();
}

async fn pass(client: &mut TcpStream, apiserver: SocketAddr, wire: Wire) {
    let mut head = Vec::new();
    if let Wire::Refuses(refusal) = wire {
        head = match read_head(client).await {
            Some(head) => head,
            None => return,
        };
        if refusal.is_for(&head) {
            let _ = client.write_all(&refusal.answer()).await;
            let _ = client.shutdown().await;
            return;
        }
        head = last_of_its_connection(head);
    }
    let Ok(mut server) = TcpStream::connect(apiserver).await else { return };
    let _ = server.set_nodelay(true);
    if server.write_all(&head).await.is_err() {
        return;
    }
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.split(), server.split());
    let up = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let down = async {
        let mut left = if let Wire::Cut(after) = wire { after } else { usize::MAX };
        let mut piece = vec![0; PIECE];
        while left > 0 {
            let most = piece.len().min(left);
            let Ok(read @ 1..) = from_server.read(&mut piece[..most]).await else { return };
            if let Wire::Slow(pause) = wire {
                tokio::time::sleep(pause).await;
            }
            if to_client.write_all(&piece[..read]).await.is_err() {
                return;
            }
            left -= read;
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

async fn read_head(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// The same request, after which the server closes: so that the next one is looked at too.
fn last_of_its_connection(head: Vec<u8>) -> Vec<u8> {
    match head.windows(2).position(|end| end == b"\r\n") {
        Some(end) => [&head[..end], b"\r\nConnection: close", &head[end..]].concat(),
        None => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn server() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    while let Ok(1..) = client.read(&mut request).await {
                        let _ = client.write_all(b"all is well").await;
                    }
                });
            }
        });
        address
    }

    async fn ask(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
        client.write_all(b"GET /?watch=true HTTP/1.1\r\n\r\n").await?;
        let mut answer = vec![0; 1024];
        let read = client.read(&mut answer).await?;
        answer.truncate(read);
        Ok(answer)
    }

    #[tokio::test]
    async fn what_is_open_passes_and_a_refusal_is_answered() {
        let between = Between::start(server().await).await.unwrap();
        let mut open = TcpStream::connect(between.address).await.unwrap();
        assert_eq!(ask(&mut open).await.unwrap(), b"all is well");
        between.set(Wire::Refuses(Refusal::TooMany));
        let mut end = [0; 1];
        assert!(!matches!(open.read(&mut end).await, Ok(1..)), "it was cut");
        let mut new = TcpStream::connect(between.address).await.unwrap();
        let answer = ask(&mut new).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 429 "), "{}", String::from_utf8_lossy(&answer));
    }

    #[tokio::test]
    async fn nobody_listens_until_somebody_does_again() {
        let between = Between::start(server().await).await.unwrap();
        between.set(Wire::Refused);
        while TcpStream::connect(between.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        between.set(Wire::Cut(3));
        let mut new = loop {
            match TcpStream::connect(between.address).await {
                Ok(new) => break new,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert_eq!(ask(&mut new).await.unwrap(), b"all");
        assert!(!matches!(new.read(&mut [0; 1]).await, Ok(1..)), "that was all");
    }

    #[tokio::test]
    async fn what_stalls_stays_open_and_silent_while_others_pass() {
        let between = Between::start(server().await).await.unwrap();
        let mut old = TcpStream::connect(between.address).await.unwrap();
        assert_eq!(ask(&mut old).await.unwrap(), b"all is well");
        between.set(Wire::Stalled);
        let mut new = loop {
            // The change and the connection race.
            let mut new = TcpStream::connect(between.address).await.unwrap();
            if matches!(ask(&mut new).await, Ok(answer) if answer == b"all is well") {
                break new;
            }
        };
        old.write_all(b"hello?").await.unwrap();
        assert_eq!(ask(&mut new).await.unwrap(), b"all is well");
        let nothing = old.try_read(&mut [0; 8]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        between.set(Wire::Open);
        assert!(!matches!(old.read(&mut [0; 8]).await, Ok(1..)), "it ends with the fault");
    }

    #[test]
    fn only_watches_are_gone() {
        assert!(Refusal::Gone.is_for(b"GET /api/v1/pods?watch=true&x=1 HTTP/1.1\r\n\r\n"));
        assert!(!Refusal::Gone.is_for(b"GET /api/v1/pods?x=1 HTTP/1.1\r\nA: watch=true\r\n\r\n"));
        assert!(Refusal::Broken.is_for(b"GET / HTTP/1.1\r\n\r\n"));
        let head = last_of_its_connection(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
        assert_eq!(head, b"GET / HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n");
    }
}
