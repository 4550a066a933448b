//! Sandboxes with a network namespace of their own: what is there, what a failing plugin leaves, and
//! what outlives the daemon.

use crate::stage::{client, run, sandbox, start, workload};
use coroner_cri_api::v1::{
    NamespaceMode, PodSandboxState, PodSandboxStatusRequest, PodSandboxStatusResponse,
    StopPodSandboxRequest, runtime_service_client::RuntimeServiceClient,
};
use coroner_lab::{
    containerd::{Containerd, Options},
    image,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};
use tonic::transport::Channel;

async fn status(cri: &mut RuntimeServiceClient<Channel>, id: &str) -> PodSandboxStatusResponse {
    let request = PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
    cri.pod_sandbox_status(request).await.unwrap().into_inner()
}

fn info(status: &PodSandboxStatusResponse) -> Value {
    serde_json::from_str(&status.info["info"]).unwrap()
}

/// The path of the sandbox's network namespace, as the runtime knows it.
fn namespace(info: &Value) -> PathBuf {
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().unwrap();
    let network = namespaces.iter().find(|one| one["type"] == "network").unwrap();
    network["path"].as_str().unwrap().into()
}

/// What is mounted at that path below a root.
fn inode(root: &Path, path: &Path) -> u64 {
    fs::metadata(root.join(path.strip_prefix("/").unwrap())).unwrap().ino()
}

fn taken(containerd: &Containerd) -> Vec<(String, String)> {
    let addresses = fs::read_dir(containerd.cni_dir().join("addresses")).unwrap();
    addresses
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap()))
        .map(|(name, sandbox)| (name.into_string().unwrap(), sandbox))
        .filter(|(name, _)| name != "fail-del")
        .collect()
}

/// For whoever looks from outside: the namespace is seen below [`Containerd::host_root`], also while
/// no daemon runs, and not below the work directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_s_network_outlives_the_daemon_and_a_failing_plugin() {
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    let work = parent.path().join("w");
    let mut containerd = start(Options::new(&work, workload())).await;
    let mut cri = client(&containerd).await;
    let config = sandbox(&containerd.cgroup_parent(), NamespaceMode::Pod);
    let (id, _) = run(&mut cri, &config, &[image::PROGRAM, "ignore"]).await;

    let ready = status(&mut cri, &id).await;
    let ip = ready.status.as_ref().unwrap().network.as_ref().unwrap().ip.clone();
    assert_eq!(taken(&containerd), [(ip.clone(), id.clone())]);
    assert!(ip.starts_with("10.244."), "{ip}");
    let path = namespace(&info(&ready));
    assert!(path.starts_with("/run/netns") || path.starts_with("/var/run/netns"), "{path:?}");
    let file = Path::new("/run/netns").join(path.file_name().unwrap());
    let pause = info(&ready)["pid"].as_u64().unwrap();
    let of_pause = fs::metadata(format!("/proc/{pause}/ns/net")).unwrap();
    let root = containerd.host_root();
    assert_eq!(inode(&root, &file), of_pause.ino());
    let outside = fs::metadata(work.join("run/netns").join(file.file_name().unwrap())).unwrap();
    assert_ne!(outside.ino(), of_pause.ino(), "from outside it is an empty file");
    let routes = fs::read_to_string(format!("/proc/{pause}/net/fib_trie")).unwrap();
    assert!(routes.contains("127.0.0.1"), "lo is up: {routes}");

    containerd.kill().await.unwrap();
    assert_eq!(inode(&root, &file), of_pause.ino(), "no daemon, the same namespace");
    containerd.restart().await.unwrap();
    assert_eq!(containerd.host_root(), root);
    assert_eq!(inode(&root, &file), of_pause.ino());
    let mut cri = client(&containerd).await;

    containerd.fail_cni_delete(true).unwrap();
    let stop = StopPodSandboxRequest { pod_sandbox_id: id.clone() };
    let refused = cri.stop_pod_sandbox(stop.clone()).await.unwrap_err();
    assert!(refused.message().contains("told to fail"), "{refused}");
    let left = status(&mut cri, &id).await;
    assert_eq!(left.status.as_ref().unwrap().state(), PodSandboxState::SandboxNotready);
    assert_eq!(info(&left)["netNamespaceClosed"], false);
    assert_eq!(taken(&containerd), [(ip, id.clone())]);
    assert_eq!(inode(&root, &file), of_pause.ino(), "nobody is in it, and it is still there");

    containerd.fail_cni_delete(false).unwrap();
    cri.stop_pod_sandbox(stop).await.unwrap();
    assert_eq!(taken(&containerd), []);
    assert_eq!(info(&status(&mut cri, &id).await)["netNamespaceClosed"], true);
    assert!(!root.join(file.strip_prefix("/").unwrap()).exists());
    containerd.stop().await.unwrap();
    assert!(!work.exists(), "{} is still there", work.display());
}
