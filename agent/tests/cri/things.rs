//! What a runtime has: sandboxes, containers and their statuses that make sense.

use coroner_cri_api::v1;
use std::collections::HashMap;

/// ContainerStatusResponse with the field that `cri-api/` does not have yet.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<StatusPart>,
    #[prost(map = "string, string", tag = "2")]
    pub(crate) info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatusPart {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(enumeration = "v1::ContainerState", tag = "3")]
    pub(crate) state: i32,
    #[prost(int64, tag = "5")]
    pub(crate) started_at: i64,
    #[prost(int64, tag = "6")]
    pub(crate) finished_at: i64,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
    #[prost(string, tag = "10")]
    pub(crate) reason: String,
    #[prost(int32, tag = "19")]
    pub(crate) stop_signal: i32,
}

/// What is sent to stream all sandboxes or containers: a request without a filter.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListAll {}

/// KEP-5825; `cri-api/` does not have it yet.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamPodSandboxesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pod_sandboxes: Vec<v1::PodSandbox>,
}

/// KEP-5825.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<v1::Container>,
}

/// A sandbox that makes sense.
pub(crate) fn sandbox(id: &str) -> v1::PodSandbox {
    v1::PodSandbox {
        id: id.into(),
        metadata: Some(v1::PodSandboxMetadata {
            name: format!("pod-{id}"),
            uid: format!("uid-{id}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        created_at: 1,
        ..Default::default()
    }
}

/// A container that makes sense.
pub(crate) fn container(id: &str, sandbox: &str, state: v1::ContainerState) -> v1::Container {
    v1::Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        metadata: Some(v1::ContainerMetadata { name: format!("name-{id}"), attempt: 0 }),
        state: state.into(),
        created_at: 1,
        ..Default::default()
    }
}

/// A container's status.
pub(crate) fn status(id: &str, state: v1::ContainerState, stop_signal: i32) -> StatusAnswer {
    let exited = state == v1::ContainerState::ContainerExited;
    StatusAnswer {
        status: Some(StatusPart {
            id: id.into(),
            state: state.into(),
            started_at: 5,
            finished_at: if exited { 9 } else { 0 },
            exit_code: if exited { 143 } else { 0 },
            reason: if exited { "Error".into() } else { String::new() },
            stop_signal,
        }),
        info: HashMap::new(),
    }
}

/// A verbose sandbox status as containerd answers: one in a network of its own.
pub(crate) fn sandbox_status(id: &str, info: &str) -> v1::PodSandboxStatusResponse {
    let ip = |text: &str| v1::PodIp { ip: text.into() };
    v1::PodSandboxStatusResponse {
        status: Some(v1::PodSandboxStatus {
            id: id.into(),
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.88.0.2".into(),
                additional_ips: vec![ip("fd00::2")],
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: Some(v1::NamespaceOption::default()) }),
            }),
            annotations: HashMap::from([("secret".into(), "never kept".into())]),
            ..Default::default()
        }),
        info: HashMap::from([("info".into(), info.into())]),
        ..Default::default()
    }
}

/// A sandbox that was left behind, with what a real one carries: 1.2 KB (KEP-5825).
pub(crate) fn leaked_sandbox(n: usize) -> v1::PodSandbox {
    let mut one = sandbox(&format!("{n:064x}"));
    let metadata = one.metadata.as_mut().expect("it has one");
    metadata.uid = format!("00000000-0000-4000-8000-{n:012x}");
    metadata.name = format!("checkout-6c9f7d9b8c-{n:05}");
    one.state = v1::PodSandboxState::SandboxNotready.into();
    one.created_at = 1_700_000_000_000_000_000 + n as i64;
    let labels = [
        ("app.kubernetes.io/name", "checkout"),
        ("app.kubernetes.io/part-of", "shop"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.name", &*metadata.name),
        ("io.kubernetes.pod.uid", &*metadata.uid),
        ("pod-template-hash", "6c9f7d9b8c"),
    ];
    one.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    one.annotations = HashMap::from([
        ("kubernetes.io/config.seen".into(), "2026-11-21T10:04:56.000000000Z".into()),
        ("kubernetes.io/config.source".into(), "api".into()),
        ("prometheus.io/scrape".into(), "true".into()),
        ("checksum/config".into(), "c0ffee".repeat(70)),
    ]);
    one
}

/// The container of that sandbox, exited.
pub(crate) fn leaked_container(n: usize) -> v1::Container {
    let (id, pod) = (format!("c{n:063x}"), format!("{n:064x}"));
    let mut one = container(&id, &pod, v1::ContainerState::ContainerExited);
    one.image_ref = format!("registry.example/checkout@sha256:{n:064x}");
    one.labels = HashMap::from([
        ("io.kubernetes.container.name".into(), "checkout".into()),
        ("io.kubernetes.pod.uid".into(), format!("00000000-0000-4000-8000-{n:012x}")),
    ]);
    one.annotations = HashMap::from([
        ("io.kubernetes.container.hash".into(), "deadbeef".into()),
        ("io.kubernetes.container.restartCount".into(), "0".into()),
        ("io.kubernetes.pod.terminationGracePeriod".into(), "30".into()),
        (
            "io.kubernetes.container.preStopHandler".into(),
            r#"{"exec":{"command":["/bin/drain","--wait"]}}"#.into(),
        ),
    ]);
    one
}
