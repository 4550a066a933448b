//! Every containerd that coroner is tested with starts on the lab's configuration, and makes and
//! removes a pod as a kubelet would.

use super::stage::{client, handles_sigterm, run, sandbox, start, workload};
use coroner_cri_api::v1::{
    ContainerState, ContainerStatusRequest, ListPodSandboxRequest, NamespaceMode,
    RemovePodSandboxRequest, StopContainerRequest, StopPodSandboxRequest, VersionRequest,
};
use coroner_lab_cluster::{containerd, containerd::ContainerdOptions, image};
use std::{fs, path::PathBuf, process::Command};

async fn a_pod_comes_and_goes(version: &str) {
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    let work = parent.path().join("w");
    let options = ContainerdOptions {
        containerd: containerd::find(version, &containerd::tools()).unwrap(),
        ..ContainerdOptions::new(&work, workload())
    };
    let containerd = start(options).await;
    let mut cri = client(&containerd).await;
    let asked = VersionRequest { version: "v1".into() };
    let said = cri.version(asked).await.unwrap().into_inner().runtime_version;
    assert!(said.trim_start_matches('v').starts_with(version), "it is {said}");

    let config = sandbox(&containerd.cgroup_parent(), NamespaceMode::Pod);
    let command = [image::PROGRAM, "handle", "--for", "100ms", "--exit", "7"];
    let (sandbox_id, container_id) = run(&mut cri, &config, &command).await;
    let shim = Command::new(shim_of(&sandbox_id)).arg("-v").output().unwrap();
    let shim = String::from_utf8_lossy(&shim.stdout).into_owned();
    assert!(shim.contains(&format!("Version:  {version}.")), "its shim is another's: {shim}");
    handles_sigterm(&mut cri, &container_id).await;
    let request = StopContainerRequest { container_id: container_id.clone(), timeout: 10 };
    cri.stop_container(request).await.unwrap();
    let request = ContainerStatusRequest { container_id, verbose: false };
    let status = cri.container_status(request).await.unwrap().into_inner().status.unwrap();
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 7));
    let pod_sandbox_id = sandbox_id;
    cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() })
        .await
        .unwrap();
    assert_eq!(fs::read_dir(containerd.cni_dir().join("addresses")).unwrap().count(), 0);
    cri.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await.unwrap();
    let listed = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await.unwrap();
    assert_eq!(listed.into_inner().items, []);
    containerd.stop().await.unwrap();
    assert!(!work.exists(), "{} is still there", work.display());
}

/// The program of the shim that keeps a sandbox.
fn shim_of(sandbox: &str) -> PathBuf {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let line = fs::read_to_string(path.join("cmdline")).ok()?;
        let words: Vec<&str> = line.split('\0').collect();
        words.windows(2).any(|pair| pair == ["-id", sandbox]).then_some(())?;
        fs::read_link(path.join("exe")).ok()
    });
    processes.last().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containerd_1_6() {
    a_pod_comes_and_goes("1.6").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containerd_1_7() {
    a_pod_comes_and_goes("1.7").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containerd_2() {
    a_pod_comes_and_goes("2").await;
}
