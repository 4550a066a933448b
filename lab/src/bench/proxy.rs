//! A proxy that counts the bytes of a server's answers.

use anyhow::Context as _;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::JoinHandle,
};

/// Dropped, it accepts no more connections.
pub(crate) struct CountingProxy {
    bytes: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl CountingProxy {
    /// From a new port to this address.
    pub(crate) async fn tcp(to: String) -> anyhow::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&bytes);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&to).await else { continue };
                join(client.into_split(), server.into_split(), &counter);
            }
        });
        Ok((Self { bytes, accepting }, address))
    }

    /// From a new socket to this one.
    pub(crate) fn unix(to: PathBuf, at: &Path) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(at).with_context(|| at.display().to_string())?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&bytes);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = UnixStream::connect(&to).await else { continue };
                join(client.into_split(), server.into_split(), &counter);
            }
        });
        Ok(Self { bytes, accepting })
    }

    /// Of all answers until now.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn join<R, W>((mut client, mut to_client): (R, W), server: (R, W), counter: &Arc<AtomicU64>)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (mut from_server, mut to_server) = server;
    let counter = Arc::clone(counter);
    tokio::spawn(async move {
        let _ = copy(&mut client, &mut to_server).await;
        let _ = to_server.shutdown().await;
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            counter.fetch_add(read as u64, Relaxed);
            if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        let _ = to_client.shutdown().await;
    });
}
