//! A private containerd with the lab's image, and a pod in it, as a kubelet would make it.

use coroner_cri_api::v1::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStatusRequest,
    CreateContainerRequest, ImageSpec, LinuxContainerConfig, LinuxContainerSecurityContext,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest, StartContainerRequest,
    runtime_service_client::RuntimeServiceClient,
};
use coroner_lab_cluster::{
    containerd, containerd::Containerd, containerd::ContainerdOptions, image, wait,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tonic::transport::Channel;

/// The static binary.
pub(crate) fn workload() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_coroner-lab")).with_file_name("workload");
    std::env::var_os("CORONER_LAB_WORKLOAD").map_or(built, PathBuf::from)
}

fn namespaces(network: NamespaceMode) -> NamespaceOption {
    NamespaceOption {
        network: network.into(),
        pid: NamespaceMode::Container.into(),
        ..Default::default()
    }
}

/// A pod on the host's network, or with one of its own.
pub(crate) fn sandbox(parent: &str, network: NamespaceMode) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".into(),
            namespace: "default".into(),
            uid: "0b1c".into(),
            attempt: 0,
        }),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("{parent}/kubepods/besteffort/pod0b1c"),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(network)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Runs the pod's sandbox and one container: their ids.
pub(crate) async fn run(
    cri: &mut RuntimeServiceClient<Channel>,
    config: &PodSandboxConfig,
    command: &[&str],
) -> (String, String) {
    let request = RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let sandbox = cri.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id;
    let container = run_container(cri, config, &sandbox, "main", command).await;
    (sandbox, container)
}

/// Runs another container in the pod's sandbox: its id.
pub(crate) async fn run_container(
    cri: &mut RuntimeServiceClient<Channel>,
    config: &PodSandboxConfig,
    sandbox: &str,
    name: &str,
    command: &[&str],
) -> String {
    let attempt = config.metadata.as_ref().unwrap().attempt;
    let of_sandbox = config.linux.as_ref().unwrap().security_context.as_ref().unwrap();
    let namespace_options = of_sandbox.namespace_options.clone();
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.into(),
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into(), attempt }),
            image: Some(ImageSpec { image: image::NAME.into(), ..Default::default() }),
            command: command.iter().map(|&word| word.into()).collect(),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    namespace_options,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        sandbox_config: Some(config.clone()),
    };
    let container = cri.create_container(request).await.unwrap().into_inner().container_id;
    let request = StartContainerRequest { container_id: container.clone() };
    cri.start_container(request).await.unwrap();
    container
}

/// Waits until the container's main process has its handler for SIGTERM in place: it counts as started
/// before.
pub(crate) async fn handles_sigterm(cri: &mut RuntimeServiceClient<Channel>, id: &str) {
    let request = ContainerStatusRequest { container_id: id.into(), verbose: true };
    let status = cri.container_status(request).await.unwrap().into_inner();
    let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
    let file = format!("/proc/{}/status", info["pid"]);
    let caught = || {
        let status = fs::read_to_string(&file).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        let has = |signal: i32| mask & 1 << (signal - 1) != 0;
        // Go's runtime catches them all: until runc has made way for it.
        has(libc::SIGTERM) && !has(libc::SIGHUP)
    };
    wait::until("it installs its handler", || Ok(caught().then_some(()))).await.unwrap();
}

/// Waits until the runtime lists the container as exited. Before that StopPodSandbox may fail ("ttrpc: closed"):
/// containerd closes its connection to the shim when it deletes the task, and a kubelet tries again.
pub(crate) async fn has_exited(cri: &RuntimeServiceClient<Channel>, id: &str) {
    let request = ContainerStatusRequest { container_id: id.into(), verbose: false };
    wait::asking("the runtime notices the exit", async || {
        let answer = cri.clone().container_status(request.clone()).await?.into_inner();
        let state = answer.status.map(|status| status.state());
        Ok((state == Some(ContainerState::ContainerExited)).then_some(()))
    })
    .await
    .unwrap();
}

/// As started, with the lab's image.
pub(crate) async fn start(options: ContainerdOptions) -> Containerd {
    let work = options.work.clone();
    let containerd = Containerd::start(options).await.unwrap();
    let archive = work.join("image.tar");
    image::build(&workload(), &archive).unwrap();
    containerd.import(&archive).await.unwrap();
    fs::remove_file(&archive).unwrap();
    containerd
}

/// A client of its CRI.
pub(crate) async fn client(containerd: &Containerd) -> RuntimeServiceClient<Channel> {
    RuntimeServiceClient::new(containerd::connect(&containerd.endpoint()).await.unwrap())
}
