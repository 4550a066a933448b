//! Stands between the agent and the apiserver, and delivers each answer later. The order is kept: a busy apiserver
//! looks like that.

use anyhow::{Context as _, Result};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

/// How much is passed on at once, and how many such pieces may be under way on a connection.
const PIECE: usize = 16 << 10;
const PIECES: usize = 4096;

/// Dropped, it is closed.
#[derive(Debug)]
pub struct Detour {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Detour {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Detour {
    pub async fn start(to: SocketAddr, by: Duration) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free port")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(server) = TcpStream::connect(to).await {
                        // Nagle's algorithm would add to the delay.
                        let _ = (client.set_nodelay(true), server.set_nodelay(true));
                        pass(client, server, by).await;
                    }
                });
            }
        });
        Ok(Self { address, task })
    }
}

/// Requests at once, answers later; until either side ends.
async fn pass(mut client: TcpStream, mut server: TcpStream, by: Duration) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let up = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let read = async move {
        let mut piece = vec![0; PIECE];
        while let Ok(length) = from_server.read(&mut piece).await {
            if length == 0
                || queue.send((Instant::now() + by, piece[..length].to_vec())).await.is_err()
            {
                break;
            }
        }
    };
    let write = async move {
        while let Some((at, piece)) = due.recv().await {
            sleep_until(at).await;
            if to_client.write_all(&piece).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = async { tokio::join!(read, write) } => {}
    }
}
