//! What a runtime has: sandboxes, containers and their statuses that make sense.

use coroner_cri_api::read;
use prost::{Message, bytes::Bytes};
use std::collections::HashMap;

/// Labels or annotations.
pub(crate) fn entries(pairs: &[(&str, &str)]) -> Vec<Bytes> {
    let entry =
        |(key, value): &(&str, &str)| read::Entry { key: (*key).into(), value: (*value).into() };
    pairs.iter().map(|pair| entry(pair).encode_to_vec().into()).collect()
}

/// A sandbox that makes sense.
pub(crate) fn sandbox(id: &str) -> read::PodSandbox {
    read::PodSandbox {
        id: id.into(),
        metadata: Some(read::PodSandboxMetadata {
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
pub(crate) fn container(id: &str, sandbox: &str, state: read::ContainerState) -> read::Container {
    read::Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        metadata: Some(read::ContainerMetadata { name: format!("name-{id}"), attempt: 0 }),
        state: state.into(),
        created_at: 1,
        ..Default::default()
    }
}

/// A container's status.
pub(crate) fn status(
    id: &str,
    state: read::ContainerState,
    stop_signal: i32,
) -> read::ContainerStatusResponse {
    let exited = state == read::ContainerState::ContainerExited;
    read::ContainerStatusResponse {
        status: Some(read::ContainerStatus {
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
pub(crate) fn sandbox_status(info: &str) -> read::PodSandboxStatusResponse {
    let ip = |text: &str| read::PodIp { ip: text.into() };
    read::PodSandboxStatusResponse {
        status: Some(read::PodSandboxStatus {
            network: Some(read::PodSandboxNetworkStatus {
                ip: "10.88.0.2".into(),
                additional_ips: vec![ip("fd00::2")],
            }),
            linux: Some(read::LinuxPodSandboxStatus {
                namespaces: Some(read::Namespace {
                    options: Some(read::NamespaceOption::default()),
                }),
            }),
        }),
        info: HashMap::from([("info".into(), info.into())]),
    }
}
