//! The remedy of a leak, according to its cause. Steps that begin with `$ ` are commands for the node's shell.

use crate::{
    ids::LeakKey,
    input::NodeTools,
    leak::{BlockedOn, Leak, LeakCause, LeakClass},
};

/// The steps, in order.
pub(super) fn steps(leak: &Leak, tools: &NodeTools) -> Vec<String> {
    let Leak { class, cause, resources, .. } = leak;
    let cause = cause.kind;
    let mut steps = Vec::new();
    let mut step = |text: String| steps.push(text);
    if cause == LeakCause::KubeletDown {
        match &tools.kubelet {
            Some(unit) => {
                step(format!("$ systemctl status {unit}"));
                step(format!("$ systemctl start {unit}"));
            }
            None => step("Start the kubelet; its unit is not known to the agent.".into()),
        }
        return steps;
    }
    match &leak.key {
        LeakKey::Sandbox { id } => {
            if matches!(cause, LeakCause::PodWorkerStuck | LeakCause::PodWorkerGaveUp) {
                match &tools.kubelet {
                    Some(unit) => {
                        step("Restarting the kubelet cleans up all of these at once:".into());
                        step(format!("$ systemctl restart {unit}"));
                    }
                    None => step("Restarting the kubelet cleans up all of these at once.".into()),
                }
                step("To fix the bug, upgrade the kubelet to 1.27 or later.".into());
                step("Or manually, only this one:".into());
            }
            let crictl = tools.crictl.as_deref().unwrap_or("crictl");
            let running = matches!(class, LeakClass::ReadyNoPod | LeakClass::DuplicateReady);
            if crictl.is_empty() {
                step(
                    "No crictl was found: install it (cri-tools), or drain and restart the node."
                        .into(),
                );
            } else if running || resources.netns.is_some() {
                step(format!("$ {crictl} stopp {id}"));
            }
            if cause == LeakCause::CniDeleteFailing {
                step("The network plugin's error is in the runtime's log:".into());
                runtime_log(tools).iter().for_each(|log| step(format!("$ {log} | grep {id}")));
            }
            if *class != LeakClass::NetnsOpen && !crictl.is_empty() {
                step(format!("$ {crictl} rmp {id}"));
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
        LeakKey::Pod { .. } => stuck_pod(leak, tools, &mut step),
    }
    steps.shrink_to_fit(); // there may be thousands of leaks
    steps
}

/// What prints the runtime's log; k3s and RKE2 write that of their containerd to a file.
fn runtime_log(tools: &NodeTools) -> Option<String> {
    const FILE: &str = "agent/containerd/containerd.log";
    Some(match tools.runtime.as_deref()? {
        "k3s" | "k3s-agent" => format!("cat /var/lib/rancher/k3s/{FILE}"),
        "rke2-server" | "rke2-agent" => format!("cat /var/lib/rancher/rke2/{FILE}"),
        unit => format!("journalctl -u {unit}"),
    })
}

fn stuck_pod(leak: &Leak, tools: &NodeTools, step: &mut impl FnMut(String)) {
    let pod = leak.pod.as_ref();
    let kubelet_log = |of: &str| {
        let unit = tools.kubelet.as_ref();
        unit.map(|unit| format!("$ journalctl -u {unit} | grep {of}"))
    };
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
                "Check what keeps the volume busy; the kubelet's log shows why it cannot unmount."
                    .into(),
            );
            kubelet_log("-i unmount").into_iter().for_each(step);
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
            runtime_log(tools).iter().for_each(|log| step(format!("$ {log} | tail -n 100")));
        }
        Some(BlockedOn::KubeletGone) | Some(BlockedOn::Unknown) | None => {
            step("The kubelet's log shows what it waits for.".into());
            kubelet_log(name).into_iter().for_each(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{leak::LikelyCause, report::Moment};

    /// No remedy names a unit or a tool that the node does not have.
    #[test]
    fn remedies_name_what_the_node_has() {
        for (kubelet, crictl, wanted) in [
            (Some("kubelet"), None, ["$ systemctl restart kubelet", "$ crictl rmp"]),
            (
                Some("k3s-agent"),
                Some("k3s crictl"),
                ["systemctl restart k3s-agent", "$ k3s crictl"],
            ),
            (None, Some(""), ["Restarting the kubelet", "No crictl was found"]),
        ] {
            let (kubelet, crictl) = (kubelet.map(str::to_owned), crictl.map(str::to_owned));
            let tools = NodeTools { kubelet, crictl, runtime: Some("k3s-agent".into()) };
            let mut leak = Leak {
                node: String::new(),
                class: LeakClass::NotreadyNoPod,
                key: LeakKey::Sandbox { id: "3984".into() },
                pod: None,
                workload: None,
                attempt: Some(0),
                created: None,
                first_observed: Moment::default(),
                preexisting: false,
                resolved: false,
                confirmed: Moment::default(),
                resources: Default::default(),
                cause: LikelyCause { kind: LeakCause::PodWorkerStuck, message: String::new() },
                blocked_on: None,
                evidence: Vec::new(),
                remediation: Vec::new(),
            };
            let text = steps(&leak, &tools).join("\n");
            assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{text}");
            assert!(tools.kubelet.is_some() || !text.contains("systemctl"), "{text}");
            leak.cause.kind = LeakCause::CniDeleteFailing;
            let text = steps(&leak, &tools).join("\n");
            assert!(text.contains("/k3s/agent/containerd/containerd.log | grep 3984"), "{text}");
        }
    }
}
