use crate::checks::{binary, pieces, recorded};
use coroner::sources::{cri::convert, cut::Cuts};
use coroner_core::{
    input::{CriContainer, CriEvent, Hook, Input, SandboxNetwork},
    time::BootTime,
};
use coroner_cri_api::read;
use prost::Message;
use std::net::IpAddr;

/// Four answers.
struct Answers<'a> {
    sandboxes: &'a [u8],
    containers: &'a [u8],
    container_status: &'a [u8],
    sandbox_status: &'a [u8],
}

impl<'a> Answers<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let mut answers = pieces::<2>(bytes);
        let mut next = || answers.next().unwrap_or_default();
        Self {
            sandboxes: next(),
            containers: next(),
            container_status: next(),
            sandbox_status: next(),
        }
    }
}

/// Answers of the container runtime: any protobuf, and the JSON within → inputs.
pub fn cri(bytes: &[u8]) {
    let (answers, asked) = (Answers::of(bytes), BootTime(1));
    let mut sandbox = "s".into();
    let cuts = Cuts::default();
    if let Ok(list) = read::ListPodSandboxResponse::decode(answers.sandboxes) {
        let sandboxes = convert::sandboxes(list, &cuts).valid;
        for one in &sandboxes {
            assert!(!one.id.as_str().is_empty() && !one.pod.as_str().is_empty());
            assert!(!one.name.is_empty() && !one.namespace.is_empty());
            sandbox = one.id.clone();
        }
        recorded(Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes }));
    }
    let mut container = "c".into();
    if let Ok(list) = read::ListContainersResponse::decode(answers.containers) {
        let containers = convert::containers(list, &cuts).valid;
        containers.iter().for_each(sound);
        if let Some(one) = containers.first() {
            container = one.id.clone();
        }
        recorded(Input::Cri(CriEvent::Containers { asked, only: None, containers }));
    }
    if let Ok(answer) = read::ContainerStatusResponse::decode(answers.container_status) {
        let info = answer.info.get("info").map(String::as_str).unwrap_or_default();
        let info = convert::ContainerInfo::parse(info);
        assert_ne!(info.pid(), Some(0));
        let status = answer.status.unwrap_or_default();
        if let Some(signal) = convert::stop_signal(status.stop_signal) {
            assert!((1..=64).contains(&signal), "{signal}");
            let container = container.clone();
            recorded(Input::Cri(CriEvent::StopSignal { container, signal }));
        }
        if let Some(runtime) = info.runtime() {
            let container = container.clone();
            recorded(Input::Cri(CriEvent::RuntimeType { container, runtime }));
        }
        if let Some(exit) = convert::exit(container, &status) {
            recorded(Input::Cri(CriEvent::ContainerExited(exit)));
        }
    }
    let answer = read::PodSandboxStatusResponse::decode(answers.sandbox_status);
    if let Ok(answer) = answer
        && let Some((status, _)) = convert::sandbox_status(sandbox, asked, answer)
    {
        assert!(status.ips.iter().all(|ip| ip.parse::<IpAddr>().is_ok()));
        assert_ne!(status.pid, Some(0));
        if let SandboxNetwork::Own { path: Some(path), .. } = &status.network {
            assert!(!path.is_empty() && path.len() <= 4096);
        }
        recorded(Input::Cri(CriEvent::SandboxStatus(status)));
    }
    if let Some(first) = answers.container_status.first_chunk() {
        convert::stop_signal(i32::from_le_bytes(*first));
    }
}

fn sound(container: &CriContainer) {
    assert!(!container.id.as_str().is_empty() && !container.sandbox.as_str().is_empty());
    assert!(!container.name.is_empty());
    assert!(container.grace_seconds.is_none_or(|seconds| seconds >= 0));
    if let Some(Hook::Exec(name)) = &container.pre_stop {
        binary(name);
    }
}
