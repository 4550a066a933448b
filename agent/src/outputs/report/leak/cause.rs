//! The likely cause of a leak in words.

use coroner_core::leak::{Leak, LeakCause, LeakClass, LeakKey, RuntimeAtEnd};

pub fn leak_cause(leak: &Leak) -> String {
    let is_pod = matches!(leak.key, LeakKey::Pod { .. });
    let name = leak.cause.name.as_deref();
    let kubelet = match &leak.cause.kubelet_version {
        Some(version) => format!("kubelet {version}"),
        None => "the kubelet (unknown version)".to_owned(),
    };
    match (leak.cause.kind, name) {
        (LeakCause::KubeletDown, _) if is_pod => {
            "the kubelet does not run, so no pod is terminated".into()
        }
        (LeakCause::KubeletDown, _) => "the kubelet does not run, so nothing cleans up".into(),
        (LeakCause::SandboxReplaced, _) => "the pod has a newer sandbox, and the kubelet lost \
             track of this one (as in kubernetes#113073)"
            .into(),
        (LeakCause::ProcessesRemain, Some(name)) if is_pod => {
            format!("a process of {name} does not end on SIGKILL")
        }
        (LeakCause::ProcessesRemain, Some(name)) => format!("processes of {name} survived SIGKILL"),
        (LeakCause::ProcessesRemain, None) if is_pod => {
            "processes in the pod's cgroup that belong \
             to no container keep it from being removed"
                .into()
        }
        (LeakCause::ProcessesRemain, None) => {
            "processes in it keep the kubelet from removing it".into()
        }
        (LeakCause::PodWorkerGaveUp, _) => format!(
            "kubelet pod worker stuck after a runtime error (kubernetes#113145): {kubelet} gave up \
             killing a pod whose object was gone"
        ),
        (LeakCause::PodWorkerStuck, _) => {
            let when = match leak.cause.runtime {
                Some(RuntimeAtEnd::Down) => ", runtime killed when the object was deleted",
                Some(RuntimeAtEnd::Failed) => ", runtime failing when the object was deleted",
                Some(RuntimeAtEnd::Answered) => "",
                None => "; the agent did not observe the cause",
            };
            format!("kubelet pod worker stuck in terminating (kubernetes#107730): {kubelet}{when}")
        }
        (LeakCause::CniDeleteFailing, _) => {
            let (whose, retries) = match is_pod {
                true => ("its", ", and the kubelet keeps retrying"),
                false => ("the", ""),
            };
            format!(
                "{whose} sandbox is stopped, but its network is not released: the network plugin's \
                 delete fails{retries}"
            )
        }
        (LeakCause::RuntimeFailing, Some(name)) if is_pod => {
            format!("the runtime failed while {name} was being stopped")
        }
        (LeakCause::RuntimeFailing, None) if is_pod => {
            "the runtime has not stopped its sandbox".into()
        }
        (LeakCause::RuntimeFailing, Some(name)) => {
            format!("the runtime cannot stop its container {name}")
        }
        (LeakCause::RuntimeFailing, None) => format!("the runtime failed {}", when(leak, &kubelet)),
        (LeakCause::RuntimeRestarted, _) => {
            format!("the runtime was down {}", when(leak, &kubelet))
        }
        (LeakCause::UntrackedByRuntime, _) => match leak.key {
            LeakKey::Shim { .. } => "the runtime no longer tracks what this shim runs, usually \
                 because the runtime was killed or gave up during a removal"
                .into(),
            _ => "the runtime no longer tracks the sandbox that this was made for; the network \
                 plugin may still have its address allocated"
                .into(),
        },
        (LeakCause::VolumeBusy, name) => {
            let name = name.unwrap_or_default();
            format!("the kubelet is waiting for volume {name} to be unmounted")
        }
        (LeakCause::Finalizer, name) => {
            let name = name.unwrap_or_default();
            format!("cleanup on this node is complete; the finalizer {name} keeps the object")
        }
        (LeakCause::Unknown, Some(name)) => format!("{name} is alive and was not sent SIGKILL"),
        (LeakCause::Unknown, None) => match leak.key {
            LeakKey::Pod { .. } => {
                "no evidence on this node shows the cause; see the kubelet's log".into()
            }
            LeakKey::PodCgroup { .. } => {
                "the cgroup is empty, but the kubelet has not removed it".into()
            }
            _ => "no source shows the cause; see the evidence".into(),
        },
    }
}

/// When the runtime failed, and what followed.
fn when(leak: &Leak, kubelet: &str) -> String {
    match leak.class {
        LeakClass::ReadyNoPod => "during the pod's teardown".into(),
        LeakClass::NetnsOpen => "before it released the network".into(),
        _ => format!("during the teardown, and {kubelet} did not retry it"),
    }
}
