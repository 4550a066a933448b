//! Sandboxes with a network namespace of their own: what is there, what a failing plugin leaves, and
//! what outlives the daemon.

use super::stage::{client, handles_sigterm, run, sandbox, start, workload};
use coroner_cri_api::v1::{
    NamespaceMode, PodSandboxState, PodSandboxStatusRequest, PodSandboxStatusResponse,
    StopPodSandboxRequest, runtime_service_client::RuntimeServiceClient,
};
use coroner_lab_cluster::{
    containerd::Containerd, containerd::ContainerdOptions, image, network::Network, wait,
};
use serde_json::Value;
use std::{
    fs,
    net::IpAddr,
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
        .filter(|(name, _)| name != "fail-del-web")
        .collect()
}

/// What there is on this machine: interfaces and addresses.
fn machine() -> [String; 3] {
    let interfaces = fs::read_to_string("/proc/self/net/dev").unwrap();
    let mut names: Vec<&str> =
        interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    names.sort_unstable();
    let read = |name| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    [names.concat(), read("fib_trie"), read("if_inet6")]
}

/// A pod can be reached from the node and from another node, over IPv4 and IPv6, and nothing of that is seen
/// on the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_reached_over_a_network_of_the_lab_s_own() {
    let before = machine();
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    let containerd = start(ContainerdOptions::new(parent.path().join("w"), workload())).await;
    let mut cri = client(&containerd).await;
    let config = sandbox(&containerd.cgroup_parent(), NamespaceMode::Pod);
    let command = "serve --at :: --port 8080 --for 0ms";
    let words: Vec<&str> =
        std::iter::once(image::PROGRAM).chain(command.split_whitespace()).collect();
    let (id, container) = run(&mut cri, &config, &words).await;
    handles_sigterm(&mut cri, &container).await;
    let network = status(&mut cri, &id).await.status.unwrap().network.unwrap();
    let mut ips: Vec<IpAddr> = vec![network.ip.parse().unwrap()];
    ips.extend(network.additional_ips.iter().map(|other| other.ip.parse::<IpAddr>().unwrap()));

    let node = containerd.network();
    let other = node.other_node(1).unwrap();
    assert_eq!(node.addresses().unwrap().v6.is_some(), ips.len() == 2);
    assert_eq!(node.ports().unwrap(), 2);
    for ip in ips {
        let of_family = |from: &Network| match (ip, from.addresses().unwrap()) {
            (IpAddr::V4(_), own) => IpAddr::V4(own.v4),
            (IpAddr::V6(_), own) => own.v6.unwrap().into(),
        };
        for from in [node, &other] {
            let to = (ip, 8080).into();
            let stream = wait::asking("it listens", async || Ok(from.connect(to).await.ok()));
            let stream = stream.await.unwrap();
            assert_eq!(stream.local_addr().unwrap().ip(), of_family(from));
        }
        let refused = node.connect((ip, 8081).into()).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(machine(), before, "nothing of it is the machine's");
    }
    drop(other);
    wait::until("the other node is gone", || Ok((node.ports()? == 1).then_some(()))).await.unwrap();
    containerd.stop().await.unwrap();
    assert_eq!(machine(), before);
}

/// For whoever looks from outside: the namespace is seen below [`Containerd::host_root`], also while
/// no daemon runs, and not below the work directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_s_network_outlives_the_daemon_and_a_failing_plugin() {
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    let work = parent.path().join("w");
    let mut containerd = start(ContainerdOptions::new(&work, workload())).await;
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
    assert!(routes.contains(&ip), "its interface has the address: {routes}");
    assert_eq!(containerd.network().ports().unwrap(), 1);

    containerd.kill().await.unwrap();
    assert_eq!(inode(&root, &file), of_pause.ino(), "no daemon, the same namespace");
    containerd.restart().await.unwrap();
    assert_eq!(containerd.host_root(), root);
    assert_eq!(inode(&root, &file), of_pause.ino());
    let mut cri = client(&containerd).await;

    containerd.fail_cni_delete("web", true).unwrap();
    let stop = StopPodSandboxRequest { pod_sandbox_id: id.clone() };
    let refused = cri.stop_pod_sandbox(stop.clone()).await.unwrap_err();
    assert!(refused.message().contains("told to fail"), "{refused}");
    let left = status(&mut cri, &id).await;
    assert_eq!(left.status.as_ref().unwrap().state(), PodSandboxState::SandboxNotready);
    assert_eq!(info(&left)["netNamespaceClosed"], false);
    assert_eq!(taken(&containerd), [(ip, id.clone())]);
    assert_eq!(containerd.network().ports().unwrap(), 1);
    assert_eq!(inode(&root, &file), of_pause.ino(), "nobody is in it, and it is still there");

    containerd.fail_cni_delete("web", false).unwrap();
    cri.stop_pod_sandbox(stop).await.unwrap();
    assert_eq!(taken(&containerd), []);
    assert_eq!(containerd.network().ports().unwrap(), 0);
    assert_eq!(info(&status(&mut cri, &id).await)["netNamespaceClosed"], true);
    assert!(!root.join(file.strip_prefix("/").unwrap()).exists());
    containerd.stop().await.unwrap();
    assert!(!work.exists(), "{} is still there", work.display());
}
