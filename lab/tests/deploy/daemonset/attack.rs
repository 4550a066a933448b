//! What neighbours may do to the agent, all at once: objects without a bound, connections that ask nothing or read
//! nothing, a flood of signals under a name that is no text, and a container that delegates cgroups to itself.

use super::node::{Agent, Node};
use anyhow::{Context as _, Result};
use coroner_lab::{containerd::Network, driver::PodId};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Value, json};
use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

/// Pods with this many finalizers, of which no apiserver limits the number.
const FINALIZERS: (usize, usize) = (20, 150_000);
/// Pods with managed fields of this many levels, more than JSON decoders follow.
const LEVELS: (usize, usize) = (10, 140);
/// Pods from which connections come: each address has eight places.
const CLIENTS: usize = 8;
/// Connections with half a request.
const HALF_OPEN: usize = 256;
/// Connections that ask again and again, and do not read.
const NOT_READING: usize = 32;
/// How long a connection is kept if the agent keeps it.
const KEPT: Duration = Duration::from_secs(20);

/// An attack that goes on until [`Attack::stop`].
pub(super) struct Attack<'a> {
    node: &'a Node,
    pods: Vec<PodId>,
    /// The cgroups of a container, to one of which all others belong.
    delegated: PathBuf,
    connections: JoinSet<()>,
}

impl<'a> Attack<'a> {
    /// Begins with all of it; `cgroups`: how many of them.
    pub(super) async fn begin(on: &Agent<'a>, cgroups: usize) -> Result<Self> {
        let node = on.node;
        let mut pods = Vec::new();
        for n in 0..FINALIZERS.0 {
            let finalizers = Some(vec!["a.b/c".to_owned(); FINALIZERS.1]);
            let mut pod = node.neighbour(&format!("finalizers-{n}"), &["pause"]);
            pod.metadata.finalizers = finalizers;
            pods.push(node.add(pod)?);
        }
        for n in 0..LEVELS.0 {
            let deep = (0..LEVELS.1).fold(json!({}), |inner: Value, _| json!({ "f:a": inner }));
            let mut pod = node.neighbour(&format!("levels-{n}"), &["pause"]);
            let entry =
                ManagedFieldsEntry { fields_v1: Some(FieldsV1(deep)), ..Default::default() };
            pod.metadata.managed_fields = Some(vec![entry]);
            pods.push(node.add(pod)?);
        }
        let flood = node.add(node.neighbour("flood", &["flood"]))?;
        pods.push(flood.clone());
        let mut connections = JoinSet::new();
        for n in 0..CLIENTS {
            let mut pod = node.neighbour(&format!("client-{n}"), &["pause"]);
            pod.spec.iter_mut().for_each(|spec| spec.host_network = None);
            let id = node.add(pod)?;
            let network = node.network(&id).await?;
            let to = on.address;
            for _ in 0..HALF_OPEN / CLIENTS {
                connections.spawn(again(network.clone(), to, "GET /heal".to_owned(), false));
            }
            let greedy = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(500);
            for _ in 0..NOT_READING / CLIENTS {
                connections.spawn(again(network.clone(), to, greedy.clone(), true));
            }
            pods.push(id);
        }
        let delegated = node.cgroup(&flood).await?.join("delegated");
        let made = delegated.clone();
        spawn_blocking(move || make(&made, cgroups)).await??;
        Ok(Self { node, pods, delegated, connections })
    }

    /// Ends it, and takes away what it made.
    pub(super) async fn stop(self) -> Result<()> {
        drop(self.connections);
        let delegated = self.delegated;
        spawn_blocking(move || remove(&delegated)).await??;
        self.node.remove(&self.pods, Some(0)).await
    }
}

/// Connects again and again, and says this; `greedy`: reads nothing of the answers.
async fn again(from: Network, to: SocketAddr, says: String, greedy: bool) {
    loop {
        if let Ok(mut stream) = from.connect(to).await {
            let _ = timeout(KEPT, hold(&mut stream, &says, greedy)).await;
        }
        sleep(Duration::from_millis(100)).await; // else the attackers would take the machine from all others
    }
}

async fn hold(stream: &mut TcpStream, says: &str, greedy: bool) -> std::io::Result<()> {
    stream.write_all(says.as_bytes()).await?;
    if greedy {
        sleep(KEPT).await;
    }
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}

/// Cgroups in two levels, as a program with a cgroup of its own may make them.
fn make(below: &std::path::Path, count: usize) -> Result<()> {
    fs::create_dir(below).with_context(|| format!("cannot make {}", below.display()))?;
    for n in 0..count.div_ceil(100) {
        let parent = below.join(n.to_string());
        fs::create_dir(&parent)?;
        (1..100.min(count)).try_for_each(|n| fs::create_dir(parent.join(n.to_string())))?;
    }
    Ok(())
}

fn remove(below: &std::path::Path) -> Result<()> {
    for parent in fs::read_dir(below)?.filter(is_directory) {
        let parent = parent?.path();
        for child in fs::read_dir(&parent)?.filter(is_directory) {
            fs::remove_dir(child?.path())?;
        }
        fs::remove_dir(parent)?;
    }
    Ok(fs::remove_dir(below)?)
}

fn is_directory(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}
