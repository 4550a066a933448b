//! The lab's network as its own programs use it: sockets that were made in the namespace of the node, of a pod
//! or of another node. What is made there is described in [`coroner_workload::network`].

use anyhow::{Context as _, Result};
use coroner_workload::{
    loopback,
    network::{self, Dual, ELSEWHERE, NETWORK},
};
use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
};

/// A network namespace. It lives for as long as this.
#[derive(Clone, Debug)]
pub struct Network {
    namespace: Arc<File>,
    /// Its addresses, where they are known.
    addresses: Option<Dual>,
}

impl Network {
    /// The node's, in which the bridge is.
    pub fn node(namespace: File, addresses: Dual) -> Self {
        Self { namespace: Arc::new(namespace), addresses: Some(addresses) }
    }

    pub fn of_process(pid: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        Ok(Self { namespace: Arc::new(namespace), addresses: None })
    }

    /// The `number`th other node (1 to 254) on this node's bridge: its addresses are not this node's own.
    pub fn other_node(&self, number: u8) -> Result<Self> {
        anyhow::ensure!((1..u8::MAX).contains(&number), "there is no other node {number}");
        let namespace = network::make().context("cannot make a network namespace")?;
        let [a, b] = NETWORK;
        let address = Ipv4Addr::new(a, b, ELSEWHERE, number);
        let port = format!("node{number}");
        let addresses = network::attach(&self.namespace, &namespace, &port, "eth0", address)
            .with_context(|| format!("cannot connect node {number} with the bridge"))?;
        Ok(Self { namespace: Arc::new(namespace), addresses: Some(addresses) })
    }

    /// Moves the calling thread there.
    pub fn enter(&self) -> io::Result<()> {
        loopback::enter(&self.namespace)
    }

    /// How many pods and other nodes are connected with the node's bridge. Only in the node's namespace.
    pub fn ports(&self) -> Result<usize> {
        Ok(network::ports(&self.namespace)?)
    }

    /// What has come for these listeners and their connections, and was not accepted or not read yet: where it is
    /// nothing, the server has seen all that clients have sent.
    pub fn unread(&self, port: u16) -> Result<u64> {
        Ok(network::unread(&self.namespace, port)?)
    }

    /// Its addresses in the pods' network, where it was made by the lab itself.
    pub fn addresses(&self) -> Option<Dual> {
        self.addresses
    }

    /// A socket for a connection from here to an address.
    pub fn socket(&self, to: SocketAddr) -> io::Result<TcpSocket> {
        network::inside(&self.namespace, || match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        })
    }

    /// A connection from here.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.socket(to)?.connect(to).await
    }

    fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let listener = network::inside(&self.namespace, || std::net::TcpListener::bind(at))?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }
}

/// Connections that are handed on, until it is dropped.
#[derive(Debug)]
pub struct Forward {
    /// Where they are taken.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Forward {
    /// From a free port of this machine to an address as the network sees it: its loopback is what
    /// `kubectl port-forward` reaches.
    pub async fn into_network(network: Network, to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Self::start(listener, move || {
            let network = network.clone();
            async move { network.connect(to).await }
        })
    }

    /// From the same port of an address in the network to one of this machine's: where pods find what the
    /// cluster has at an address of its own.
    pub fn out_of_network(network: &Network, to: SocketAddr) -> Result<Self> {
        let node = network.addresses().context("the network has no address")?.v4;
        let listener = network.listen((node, to.port()).into());
        let listener =
            listener.with_context(|| format!("cannot listen on {node}:{}", to.port()))?;
        Self::start(listener, move || TcpStream::connect(to))
    }

    fn start<F>(listener: TcpListener, dial: impl Fn() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = io::Result<TcpStream>> + Send + 'static,
    {
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            // Dropped with this task, and their connections with them.
            let mut pairs = tokio::task::JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let far = dial();
                pairs.spawn(async move {
                    // Nobody there, or a connection that broke: the near side sees its end.
                    if let Ok(mut far) = far.await {
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
                while pairs.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}
