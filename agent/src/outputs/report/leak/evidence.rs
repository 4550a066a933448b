//! The evidence of a leak in words.

use coroner_core::{
    input::{ContainerState, Daemon, EventReason},
    leak::{Leak, LeakEvidenceKind as Kind, LeakKey},
    types::Source,
};

pub(super) fn source(kind: &Kind) -> Source {
    match kind {
        Kind::PodQueried { .. }
        | Kind::ObjectUnknown
        | Kind::DeletionRequested { .. }
        | Kind::ObjectDeleted { .. }
        | Kind::Finalizers { .. }
        | Kind::KubeletVersion { .. } => Source::Api,
        Kind::SandboxReady
        | Kind::SandboxStopped { .. }
        | Kind::HostNetwork
        | Kind::NetworkNamespace { .. }
        | Kind::StatusRefused { .. }
        | Kind::ContainerListed { .. }
        | Kind::RuntimeFailed { .. }
        | Kind::NotListed => Source::Cri,
        Kind::ContainerAlive { .. } => Source::Kernel,
        Kind::DaemonStarted { .. }
        | Kind::DaemonEnded { .. }
        | Kind::KubeletDown { .. }
        | Kind::KubeletRunning { .. }
        | Kind::ShimRunning { .. }
        | Kind::Tasks { .. }
        | Kind::VolumesMounted { .. } => Source::Proc,
        Kind::EventPosted { .. } => Source::Kubelet,
    }
}

/// One sentence. `leak`: the leak whose evidence it is.
pub(super) fn sentence(leak: &Leak, kind: &Kind) -> String {
    match kind {
        Kind::PodQueried { exists: true } => {
            "the apiserver, queried directly, still has the pod".into()
        }
        Kind::PodQueried { exists: false } => {
            "the apiserver, queried directly, has no pod of this UID".into()
        }
        Kind::ObjectUnknown => {
            "no record of this pod's object; its deletion was not observed, or too long ago".into()
        }
        Kind::DeletionRequested { grace_seconds: 0 } => "force deleted (grace period 0)".into(),
        Kind::DeletionRequested { grace_seconds } => {
            format!("its deletion was requested with a grace period of {grace_seconds} s")
        }
        Kind::ObjectDeleted { within_seconds: None } => "its object was deleted".into(),
        Kind::ObjectDeleted { within_seconds: Some(within) } => format!(
            "its object was missing from a new list; it was deleted within the last {within} s \
             before that"
        ),
        Kind::Finalizers { names } => format!("finalizers: {}", names.join(", ")),
        Kind::SandboxReady => "its sandbox is still ready".into(),
        Kind::SandboxStopped { seen_ready: true } => "its sandbox was no longer ready".into(),
        Kind::SandboxStopped { seen_ready: false } => {
            "its sandbox was not ready when it was first listed".into()
        }
        Kind::HostNetwork => "it used the host network".into(),
        Kind::NetworkNamespace { open: false, .. } => "its network namespace is closed".into(),
        Kind::NetworkNamespace { open: true, path } => {
            let path = path.as_ref().map(|path| format!(" ({path})")).unwrap_or_default();
            format!("its network namespace is still open{path}")
        }
        Kind::StatusRefused { code } => {
            format!("the runtime refused the status of its sandbox: {code}")
        }
        Kind::ContainerAlive { name, state, signal, unkillable } => {
            let sent = match signal {
                Some(signal) => format!("was sent signal {signal} and is still alive"),
                None => "is alive and was not sent a signal".to_owned(),
            };
            let detail = unkillable.as_ref().map(|detail| format!(": {detail}"));
            format!("{name} ({}) {sent}{}", words(*state), detail.unwrap_or_default())
        }
        Kind::ContainerListed { name, state } => {
            format!("the runtime still lists {name}, {}", words(*state))
        }
        Kind::RuntimeFailed { error, code, outage_ms, restarted } => {
            let back = match outage_ms {
                None => "and has not answered since".to_owned(),
                Some(ms) => {
                    let seconds = std::time::Duration::from_millis(*ms).as_secs_f64();
                    let process = match restarted {
                        Some(true) => ", another process",
                        Some(false) => ", the same process",
                        None => "",
                    };
                    format!("and answered again after {seconds:.1} s{process}")
                }
            };
            let code = code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
            format!("the runtime failed{code}: {error} {back}")
        }
        Kind::DaemonStarted { daemon, pid } => format!("{} started (pid {pid})", named(*daemon)),
        Kind::DaemonEnded { daemon, pid } => format!("{} exited (pid {pid})", named(*daemon)),
        Kind::KubeletDown { version } => format!("the kubelet{} does not run", after(version)),
        Kind::KubeletRunning { version, pid, restarted } => {
            let what = if *restarted { "started" } else { "has not been restarted since" };
            format!("the kubelet{} (pid {pid}) {what}", after(version))
        }
        Kind::KubeletVersion { version } => format!("the kubelet is {version}"),
        Kind::NotListed => match &leak.key {
            LeakKey::Shim { id, .. } => format!("the runtime lists nothing with the id {id}"),
            LeakKey::Netns { .. } => "no sandbox that the runtime lists uses it".into(),
            _ => "the runtime has no sandbox of this pod".into(),
        },
        Kind::ShimRunning { comm, children } => format!("{comm} runs with {children} children"),
        Kind::Tasks { count } => match &leak.key {
            LeakKey::Netns { inode, .. } => format!("no process is in it (inode {inode})"),
            LeakKey::PodCgroup { .. } => format!("{count} tasks in it and below"),
            _ => {
                let path = leak.resources.cgroup.as_deref().unwrap_or("the pod's cgroup");
                format!("{count} tasks in {path}")
            }
        },
        Kind::VolumesMounted { volumes } => {
            let (first, more) = match &volumes[..] {
                [] => ("", String::new()),
                [first] => (first.as_str(), String::new()),
                [first, others @ ..] => (first.as_str(), format!(" and {} more", others.len())),
            };
            format!("still mounted below the pod's directory: {first}{more}")
        }
        Kind::EventPosted { event, count, container } => {
            let what = match event {
                EventReason::ExceededGrace => "a container did not end in its grace period",
                _ => "the kubelet failed to stop the pod",
            };
            let of = container.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let often = if *count > 1 { format!(", {count} times") } else { String::new() };
            format!("by the kubelet's Event, {what}{of}{often}")
        }
    }
}

fn after(version: &Option<String>) -> String {
    version.as_ref().map(|version| format!(" {version}")).unwrap_or_default()
}

fn named(daemon: Daemon) -> &'static str {
    match daemon {
        Daemon::Runtime => "the runtime",
        Daemon::Kubelet => "the kubelet",
    }
}

pub(super) fn words(state: ContainerState) -> &'static str {
    match state {
        ContainerState::Created => "created",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Unknown => "in an unknown state",
    }
}
