//! Stands between the agent and one of its sources, and delivers each answer later. The order is kept: a
//! busy apiserver or runtime looks like that.

use anyhow::Context as _;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::Instant,
};

/// How much is passed on at once.
const PIECE: usize = 16 << 10;
/// How many pieces may be under way on a connection.
const PIECES: usize = 4096;

/// How late the sources answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delays {
    pub apiserver: Duration,
    /// The container runtime.
    pub runtime: Duration,
}

impl Delays {
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// A way to a source that takes its time. Dropped, it is closed.
#[derive(Debug)]
pub struct Detour(JoinHandle<()>);

impl Drop for Detour {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Detour {
    /// To a TCP port, and where it begins.
    pub async fn tcp(to: SocketAddr, by: Duration) -> anyhow::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free port")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(server) = TcpStream::connect(to).await {
                        // What is delayed on purpose shall not be delayed by Nagle as well.
                        let _ = (client.set_nodelay(true), server.set_nodelay(true));
                        pass(client, server, by).await;
                    }
                });
            }
        });
        Ok((Self(task), address))
    }

    /// To a Unix socket, from another one.
    pub fn unix(to: PathBuf, from: &Path, by: Duration) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(from);
        let listener = UnixListener::bind(from)
            .with_context(|| format!("cannot listen on {}", from.display()))?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let to = to.clone();
                connections.spawn(async move {
                    if let Ok(server) = UnixStream::connect(to).await {
                        pass(client, server, by).await;
                    }
                });
            }
        });
        Ok(Self(task))
    }
}

/// Requests at once, answers later; until either side ends.
async fn pass(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    by: Duration,
) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let up = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let down = async {
        let mut piece = vec![0; PIECE];
        while let Ok(read @ 1..) = from_server.read(&mut piece).await {
            if queue.send((Instant::now() + by, piece[..read].to_vec())).await.is_err() {
                return;
            }
        }
        // What is under way still arrives.
        drop(queue);
        std::future::pending().await
    };
    let deliver = async {
        while let Some((at, piece)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            if to_client.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        () = deliver => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_come_later_whole_and_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let (own, detour) = (directory.path().join("own"), directory.path().join("detour"));
        let listener = UnixListener::bind(&own).unwrap();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut asked = [0; 3];
            client.read_exact(&mut asked).await.unwrap();
            for part in ["one ", "two ", "three"] {
                client.write_all(part.as_bytes()).await.unwrap();
            }
        });
        let by = Duration::from_millis(50);
        let _detour = Detour::unix(own, &detour, by).unwrap();
        let began = Instant::now();
        let mut client = UnixStream::connect(&detour).await.unwrap();
        client.write_all(b"ask").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "one two three");
        assert!(began.elapsed() >= by);
    }
}
