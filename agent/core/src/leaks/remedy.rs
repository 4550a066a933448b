//! What to do about a leak. Only what is right for its cause; lines that begin with `$ ` are
//! commands for the node's shell.

use crate::leak::{Leak, LeakCause, LeakClass, LeakKey, StuckReason};

const RESTART_KUBELET: &str = "$ systemctl restart kubelet";

/// What to do, in order.
pub(super) fn of(leak: &Leak) -> Vec<String> {
    let Leak { class, cause, holds, .. } = leak;
    let cause = cause.kind;
    let mut steps = Vec::new();
    let mut step = |text: String| steps.push(text);
    if cause == LeakCause::KubeletDown {
        step("$ systemctl status kubelet".into());
        step("$ systemctl start kubelet".into());
        return steps;
    }
    match &leak.key {
        LeakKey::Sandbox { id } => {
            if matches!(cause, LeakCause::PodWorkerStuck | LeakCause::PodWorkerGaveUp) {
                step("A kubelet that starts anew cleans up all of these at once:".into());
                step(RESTART_KUBELET.into());
                step("To be rid of the bug, upgrade the kubelet to 1.27 or later.".into());
                step("Or by hand, this one only:".into());
            }
            let running = matches!(class, LeakClass::ReadyNoPod | LeakClass::DuplicateReady);
            if running || holds.netns.is_some() {
                step(format!("$ crictl stopp {id}"));
            }
            if cause == LeakCause::CniDeleteFailing {
                step("What the network plugin says is in the runtime's log:".into());
                step(format!("$ journalctl -u containerd -u crio | grep {id}"));
            }
            if *class != LeakClass::NetnsOpen {
                step(format!("$ crictl rmp {id}"));
            }
        }
        LeakKey::Shim { pid, id, .. } => {
            step("See what it still runs, and end it if that is nothing of worth:".into());
            step(format!("$ ps --ppid {pid}"));
            step(format!("$ kill {pid}  # the shim of {id}"));
        }
        LeakKey::Netns { name, .. } => {
            step(
                "See that nothing is in it, then remove it; its address goes back to the \
                  network plugin only by that plugin's own means:"
                    .into(),
            );
            step(format!("$ ip netns pids {name}"));
            step(format!("$ ip netns delete {name}"));
        }
        LeakKey::PodCgroup { .. } => {
            let path = holds.cgroup.as_deref().unwrap_or_default();
            if holds.pids.is_empty() {
                step(format!("$ find /sys/fs/cgroup{path} -depth -type d -exec rmdir {{}} +"));
            } else {
                step("See what runs there, and end it:".into());
                step(format!("$ systemd-cgls /sys/fs/cgroup{path}"));
            }
        }
        LeakKey::Pod { .. } => stuck_pod(leak, &mut step),
    }
    steps
}

fn stuck_pod(leak: &Leak, step: &mut impl FnMut(String)) {
    let pod = leak.pod.as_ref();
    let (namespace, name) = pod.map(|pod| (&*pod.namespace, &*pod.name)).unwrap_or_default();
    match leak.stuck {
        Some(StuckReason::Finalizer) => {
            step("Find out why the controller behind the finalizer does not remove it:".into());
            step(format!(
                "$ kubectl -n {namespace} get pod {name} -o jsonpath='{{.metadata.finalizers}}'"
            ));
        }
        Some(StuckReason::VolumeMounted) => {
            step(
                "See what keeps the volume busy; the kubelet's log says why it cannot unmount:"
                    .into(),
            );
            step("$ journalctl -u kubelet | grep -i unmount".into());
        }
        Some(StuckReason::Process) => {
            step(
                "A process in uninterruptible sleep ends when what it waits for does (often a \
                  dead NFS or block device); see where it hangs:"
                    .into(),
            );
            for pid in leak.holds.pids.iter().take(4) {
                step(format!("$ cat /proc/{pid}/stack"));
            }
        }
        Some(StuckReason::CgroupBusy) => {
            for pid in leak.holds.pids.iter().take(4) {
                step(format!("$ ps -o pid,ppid,stat,wchan,args -p {pid}"));
            }
        }
        Some(StuckReason::RuntimeFailing) => {
            step("The runtime's log says what it cannot do:".into());
            step("$ journalctl -u containerd -u crio --since -30min".into());
        }
        Some(StuckReason::KubeletGone) | Some(StuckReason::Unknown) | None => {
            step(format!("$ journalctl -u kubelet | grep {name}"));
        }
    }
}
