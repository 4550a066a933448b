//! Ways into and out of a pod's own network. The lab's pods have nothing there but `lo` (see
//! [`crate::containerd`]): what a cluster does by routes and service addresses is done here by
//! sockets that were made inside.

use crate::kubelet::{Cri, main_pid};
use anyhow::{Context as _, Result};
use coroner_cri_api::v1::{
    ListPodSandboxRequest, PodSandboxFilter, PodSandboxState, PodSandboxStateValue,
    PodSandboxStatusRequest,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd as _,
    sync::Arc,
    thread,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A network namespace. It lives for as long as this.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    namespace: Arc<File>,
}

impl Network {
    /// That of a pod; `None`: it has no sandbox that is ready.
    pub(crate) async fn of_pod(mut cri: Cri, uid: &str) -> Result<Option<Self>> {
        let filter = PodSandboxFilter {
            state: Some(PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() }),
            label_selector: [("io.kubernetes.pod.uid".into(), uid.into())].into(),
            ..Default::default()
        };
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let listed = cri.list_pod_sandbox(request).await.context("ListPodSandbox")?.into_inner();
        let Some(sandbox) = listed.items.first() else { return Ok(None) };
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.clone(), verbose: true };
        let status = cri.pod_sandbox_status(request).await.context("PodSandboxStatus")?;
        let pid = main_pid(&status.into_inner().info);
        Self::of(pid.context("the runtime does not tell the sandbox's process")?).map(Some)
    }

    /// That of a process.
    fn of(pid: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        Ok(Self { namespace: Arc::new(namespace) })
    }

    /// Does it on a thread of its own, which is in the namespace: a socket stays in the one in which
    /// it was made.
    fn inside<T: Send>(&self, what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let enter = || {
            let namespace = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.namespace.as_fd(), namespace)?;
            what()
        };
        thread::scope(|scope| scope.spawn(enter).join())
            .unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace panicked")))
    }

    fn listen(&self, port: u16) -> io::Result<TcpListener> {
        let listener = self.inside(|| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)))?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let stream = self.inside(|| std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)))?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }
}

/// Connections that are handed on, until it is dropped.
#[derive(Debug)]
pub(crate) struct Forward {
    /// Where they are taken.
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Forward {
    /// From a free port of this machine to one of the pod: `kubectl port-forward`.
    pub(crate) async fn into_pod(network: Network, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Self::start(listener, move || {
            let network = network.clone();
            async move {
                // Connecting to loopback does not wait.
                network.connect(port)
            }
        })
    }

    /// From the same port of the pod's loopback to one of this machine's: where the pod finds what
    /// the cluster has at an address of its own.
    pub(crate) fn out_of_pod(network: &Network, to: SocketAddr) -> Result<Self> {
        let listener = network.listen(to.port()).context("no port in the pod's network")?;
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
