//! The remedy of a leak, by its cause and by what leaked. Steps that begin with `$ ` are commands for the node's shell.

use crate::{
    ids::LeakKey,
    input::NodeTools,
    leak::{Leak, LeakCause, LeakClass},
};

/// Processes that a command names.
const MAX_PIDS: usize = 4;

/// The steps, in order. No command names a unit or a tool that the node does not have.
pub(super) fn steps(leak: &Leak, tools: &NodeTools) -> Vec<String> {
    let mut steps = of_cause(leak, tools);
    if leak.cause.kind == LeakCause::PodWorkerStuck {
        steps.push("To fix the bug, upgrade the kubelet to 1.27 or later.".into());
        steps.push("Or manually, only this one:".into());
    }
    if !matches!(leak.cause.kind, LeakCause::KubeletDown | LeakCause::CollectionPending) {
        of_thing(leak, tools, &mut steps);
    }
    steps.shrink_to_fit(); // there may be thousands of leaks
    steps
}

fn of_cause(leak: &Leak, tools: &NodeTools) -> Vec<String> {
    let pod = leak.pod.as_ref();
    let (namespace, name) = pod.map(|pod| (&*pod.namespace, &*pod.name)).unwrap_or_default();
    let id = if let LeakKey::Sandbox { id } = &leak.key { id.as_str() } else { "network" };
    let kubelet = |command: &str| {
        let unit = tools.kubelet.as_ref();
        unit.map(|unit| format!("$ {}", command.replace("UNIT", unit)))
    };
    let kubelet_log = |of: &str| kubelet(&format!("journalctl -u UNIT | grep {of}"));
    let runtime_log = |with: String| runtime_log(tools).map(|log| format!("$ {log} | {with}"));
    let pids: Vec<_> = leak.resources.pids.iter().take(MAX_PIDS).map(u32::to_string).collect();
    let (text, commands): (&str, Vec<Option<String>>) = match leak.cause.kind {
        LeakCause::KubeletDown => (
            "Start the kubelet",
            [kubelet("systemctl status UNIT"), kubelet("systemctl start UNIT")].into(),
        ),
        LeakCause::CollectionPending => ("Wait for two minutes", vec![]),
        LeakCause::PodWorkerStuck => (
            "Restarting the kubelet cleans up all of these at once",
            vec![kubelet("systemctl restart UNIT")],
        ),
        LeakCause::CniDeleteFailing => (
            "The network plugin's error is in the runtime's log",
            vec![runtime_log(format!("grep {id}"))],
        ),
        LeakCause::RuntimeFailing => {
            ("The runtime's log shows what fails", vec![runtime_log("tail -n 100".to_owned())])
        }
        LeakCause::ProcessesRemain => (
            "Check what runs there, and kill it. A process in uninterruptible sleep (D) ends when the \
             operation that it waits for does, often on a dead NFS or block device; \
             /proc/PID/stack shows where it hangs",
            vec![
                (!pids.is_empty())
                    .then(|| format!("$ ps -o pid,ppid,stat,wchan,args -p {}", pids.join(","))),
            ],
        ),
        LeakCause::VolumeBusy => (
            "Check what keeps the volume busy; the kubelet's log shows why it cannot unmount",
            vec![kubelet_log("-i unmount")],
        ),
        LeakCause::Finalizer => (
            "Find out why the controller behind the finalizer does not remove it",
            vec![Some(format!(
                "$ kubectl -n {namespace} get pod {name} -o jsonpath='{{.metadata.finalizers}}'"
            ))],
        ),
        LeakCause::Unknown if leak.class == LeakClass::StuckTerminating => {
            ("The kubelet's log shows what it waits for", vec![kubelet_log(name)])
        }
        LeakCause::SandboxReplaced | LeakCause::UntrackedByRuntime | LeakCause::Unknown => {
            return Vec::new();
        }
    };
    let commands: Vec<_> = commands.into_iter().flatten().collect();
    let end = if commands.is_empty() { "." } else { ":" };
    std::iter::once(format!("{text}{end}")).chain(commands).collect()
}

fn of_thing(leak: &Leak, tools: &NodeTools, steps: &mut Vec<String>) {
    let Leak { class, resources, .. } = leak;
    match &leak.key {
        LeakKey::Sandbox { id } => match tools.crictl.as_deref().unwrap_or("crictl") {
            "" => steps.push(
                "No crictl was found: install it (cri-tools), or drain and restart the node."
                    .into(),
            ),
            crictl => {
                let running = matches!(class, LeakClass::ReadyNoPod | LeakClass::DuplicateReady);
                if running || resources.netns.is_some() {
                    steps.push(format!("$ {crictl} stopp {id}"));
                }
                if *class != LeakClass::NetnsOpen {
                    steps.push(format!("$ {crictl} rmp {id}"));
                }
            }
        },
        LeakKey::Shim { pid, id, .. } => steps.extend([
            "Check what it still runs, and kill it if it is not needed:".to_owned(),
            format!("$ ps --ppid {pid}"),
            format!("$ kill {pid}  # the shim of {id}"),
        ]),
        LeakKey::Netns { name, .. } => steps.extend([
            "Check that no process is in it, then remove it; only the network plugin itself can \
             release its address:"
                .to_owned(),
            format!("$ ip netns pids {name}"),
            format!("$ ip netns delete {name}"),
        ]),
        LeakKey::PodCgroup { .. } if resources.pids.is_empty() => {
            let path = resources.cgroup.as_deref().unwrap_or_default();
            steps.push(format!("$ find /sys/fs/cgroup{path} -depth -type d -exec rmdir {{}} +"));
        }
        LeakKey::PodCgroup { .. } | LeakKey::Pod { .. } => {}
    }
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
