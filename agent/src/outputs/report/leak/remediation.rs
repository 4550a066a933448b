//! Remediation of a leak, according to its cause. Lines that begin with `$ ` are commands for the node's
//! shell.

use coroner_core::leak::{BlockedOn, Leak, LeakCause, LeakClass, LeakKey};

const RESTART_KUBELET: &str = "$ systemctl restart kubelet";

/// The steps, in order.
pub fn remediation(leak: &Leak) -> Vec<String> {
    let Leak { class, cause, resources, .. } = leak;
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
                step("Restarting the kubelet cleans up all of these at once:".into());
                step(RESTART_KUBELET.into());
                step("To fix the bug, upgrade the kubelet to 1.27 or later.".into());
                step("Or manually, only this one:".into());
            }
            let running = matches!(class, LeakClass::ReadyNoPod | LeakClass::DuplicateReady);
            if running || resources.netns.is_some() {
                step(format!("$ crictl stopp {id}"));
            }
            if cause == LeakCause::CniDeleteFailing {
                step("The network plugin's error is in the runtime's log:".into());
                step(format!("$ journalctl -u containerd -u crio | grep {id}"));
            }
            if *class != LeakClass::NetnsOpen {
                step(format!("$ crictl rmp {id}"));
            }
        }
        LeakKey::Shim { pid, id, .. } => {
            step("Check what it still runs, and kill it if it is not needed:".into());
            step(format!("$ ps --ppid {pid}"));
            step(format!("$ kill {pid}  # the shim of {id}"));
        }
        LeakKey::Netns { name, .. } => {
            step(
                "Check that no process is in it, then remove it; only the network plugin itself can \
                 release its address:"
                    .into(),
            );
            step(format!("$ ip netns pids {name}"));
            step(format!("$ ip netns delete {name}"));
        }
        LeakKey::PodCgroup { .. } => {
            let path = resources.cgroup.as_deref().unwrap_or_default();
            if resources.pids.is_empty() {
                step(format!("$ find /sys/fs/cgroup{path} -depth -type d -exec rmdir {{}} +"));
            } else {
                step("Check what runs there, and kill it:".into());
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
    match leak.blocked_on {
        Some(BlockedOn::Finalizer) => {
            step("Find out why the controller behind the finalizer does not remove it:".into());
            step(format!(
                "$ kubectl -n {namespace} get pod {name} -o jsonpath='{{.metadata.finalizers}}'"
            ));
        }
        Some(BlockedOn::VolumeMounted) => {
            step(
                "Check what keeps the volume busy; the kubelet's log shows why it cannot unmount:"
                    .into(),
            );
            step("$ journalctl -u kubelet | grep -i unmount".into());
        }
        Some(BlockedOn::Process) => {
            step(
                "A process in uninterruptible sleep ends when the operation that it waits for does \
                 (often on a dead NFS or block device); check where it hangs:"
                    .into(),
            );
            for pid in leak.resources.pids.iter().take(4) {
                step(format!("$ cat /proc/{pid}/stack"));
            }
        }
        Some(BlockedOn::CgroupBusy) => {
            for pid in leak.resources.pids.iter().take(4) {
                step(format!("$ ps -o pid,ppid,stat,wchan,args -p {pid}"));
            }
        }
        Some(BlockedOn::RuntimeFailing) => {
            step("The runtime's log shows what fails:".into());
            step("$ journalctl -u containerd -u crio --since -30min".into());
        }
        Some(BlockedOn::KubeletGone) | Some(BlockedOn::Unknown) | None => {
            step(format!("$ journalctl -u kubelet | grep {name}"));
        }
    }
}
