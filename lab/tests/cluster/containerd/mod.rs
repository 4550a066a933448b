//! A real containerd and runc, started privately, used as a kubelet would, and gone afterwards.
//! Needs root, containerd, runc and the static workload (`cargo xtask test` builds it), and fails
//! without them.

mod network;
mod stage;
mod traffic;
mod versions;

use coroner_cri_api::v1::{
    ContainerState, ContainerStatusRequest, ListPodSandboxRequest, NamespaceMode, PodSandboxConfig,
    PodSandboxMetadata, StopContainerRequest, StopPodSandboxRequest,
};
use coroner_lab_cluster::{containerd, containerd::ContainerdOptions, image};
use stage::{client, handles_sigterm, run, sandbox, start, workload};
use std::fs;

/// Processes that live in the private namespace or in the lab's cgroup. A zombie, which has no
/// program any more, is for its parent to reap.
fn members(run: (u64, u64), cgroup: &str) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        fs::read_link(path.join("exe")).ok()?;
        let inside = fs::metadata(path.join("root/run"))
            .is_ok_and(|seen| (seen.dev(), seen.ino()) == run)
            || fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(cgroup));
        inside.then(|| fs::read_to_string(path.join("comm")).unwrap_or_default())
    });
    processes.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_lives_and_dies_and_nothing_remains() {
    use std::os::unix::fs::MetadataExt as _;
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    let work = parent.path().join("w");
    let mut containerd = start(ContainerdOptions::new(&work, workload())).await;
    let cgroup = containerd.cgroup_parent();
    let run_directory = fs::metadata(work.join("run")).unwrap();
    let run_directory = (run_directory.dev(), run_directory.ino());
    let mut cri = client(&containerd).await;

    let config = sandbox(&cgroup, NamespaceMode::Node);
    let command = [image::PROGRAM, "handle", "--for", "100ms", "--exit", "7"];
    let (sandbox_id, container_id) = run(&mut cri, &config, &command).await;
    let directory = containerd
        .cgroup_root()
        .join(format!("{}/kubepods/besteffort/pod0b1c/{container_id}", &cgroup[1..]));
    let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
    assert_eq!(pids.lines().count(), 1, "the container is where the kubelet would have put it");

    let before = containerd.pid();
    containerd.kill().await.unwrap();
    assert_eq!(
        fs::read_to_string(directory.join("cgroup.procs")).unwrap(),
        pids,
        "a container outlives the daemon"
    );
    containerd.restart().await.unwrap();
    assert_ne!(containerd.pid(), before);
    let mut cri = client(&containerd).await;

    handles_sigterm(&mut cri, &container_id).await;
    let request = StopContainerRequest { container_id: container_id.clone(), timeout: 10 };
    cri.stop_container(request).await.unwrap();
    let request = ContainerStatusRequest { container_id, verbose: false };
    let status = cri.container_status(request).await.unwrap().into_inner().status.unwrap();
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 7));
    cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: sandbox_id }).await.unwrap();
    let listed = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await.unwrap();
    assert_eq!(listed.into_inner().items.len(), 1, "a stopped sandbox stays until it is removed");

    // Something that would rather stay.
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata { attempt: 1, ..config.metadata.unwrap() }),
        ..config
    };
    run(&mut cri, &config, &[image::PROGRAM, "ignore"]).await;
    assert_ne!(members(run_directory, &cgroup), Vec::<String>::new());
    let root = containerd.cgroup_root().join(&cgroup[1..]);
    containerd.stop().await.unwrap();
    assert_eq!(members(run_directory, &cgroup), Vec::<String>::new());
    assert!(!root.exists(), "{} is still there", root.display());
    assert!(!work.exists(), "{} is still there", work.display());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_directory_belongs_to_one_lab_and_is_cleaned_by_the_next() {
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    let work = parent.path().join("w");
    let containerd = start(ContainerdOptions::new(&work, workload())).await;
    let said = containerd::clean_up(&work).unwrap_err().to_string();
    assert!(said.starts_with("another lab is running in"), "{said}");
    drop(containerd);
    assert!(!work.exists(), "dropping it cleans up as well");
    containerd::clean_up(&work).unwrap();
}
