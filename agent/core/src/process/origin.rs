//! Where a signal came from, and what the kernel did with it.

use crate::input::{Disposition, ProcessRef, SignalGenerated, SignalResult};
use crate::report::CgroupId;

/// The kernel discarded the signal because the target ignores it or has no handler, not because the target
/// was exiting.
pub fn discarded(signal: &SignalGenerated) -> bool {
    signal.result == SignalResult::Ignored && !signal.state.is_some_and(|s| s.group_exit)
}

/// The signal waits for a target that takes it itself. Either the target blocks it; or the target is in
/// sigwait, which removes it from `blocked` and keeps it in `real_blocked`: then a signal with the default
/// action is queued, neither fatal nor discarded (`sig_ignored` and `complete_signal`, kernel/signal.c).
pub fn queued_for_sigwait(signal: &SignalGenerated) -> bool {
    let queued = signal.result == SignalResult::Delivered;
    !discarded(signal)
        && signal.state.is_some_and(|s| {
            s.blocked || (queued && s.disposition == Disposition::Default && !s.group_exit)
        })
}

/// A process of the runtime inside the container's cgroup, before the container's program starts.
pub fn is_runtime(comm: &str) -> bool {
    matches!(comm, "runc" | "crun")
        || ["runc:[", "crun:[", "memfd:runc", "memfd:crun"].iter().any(|p| comm.starts_with(p))
}

/// The command line tool that a runtime calls on the node.
pub(super) fn is_runtime_tool(comm: &str) -> bool {
    ["runc", "crun"].iter().any(|part| comm.contains(part))
}

/// A process of runc that is not to become a container's program, under the name that it gives itself.
pub(super) fn is_helper(comm: &str) -> bool {
    matches!(comm, "runc:[0:PARENT]" | "runc:[1:CHILD]")
}

/// The kubelet or a runtime: the kubelet ends what is left in a pod's cgroup itself
/// (pod_container_manager_linux.go).
pub fn is_of_the_node(comm: &str) -> bool {
    // Also sysbox-runc and nvidia-container-runtime; k3s and microk8s run the kubelet inside another process.
    const NAMES: [&str; 7] =
        ["youki", "crio", "conmon", "conmonrs", "dockerd", "kubelet", "kubelite"];
    is_runtime_tool(comm)
        || NAMES.contains(&comm)
        || ["containerd", "nvidia-contain", "k3s", "rke2"].iter().any(|p| comm.starts_with(p))
}

pub(super) fn outside(process: &ProcessRef, inside: &impl Fn(CgroupId) -> bool) -> bool {
    match (process.cgroup, process.in_container) {
        (Some(cgroup), _) => !inside(cgroup),
        (None, Some(known)) => !known,
        (None, None) => true,
    }
}
