//! The group `leaks`: what is left on the node, and what only looks like it.

use super::{
    Action, ExpectedLeak, Holding, Scenario, When,
    draft::{Draft, SOON, code, ends_by_itself, nobody, runs_on, signal},
    pod::Part,
};
use crate::leftovers::LeftOver;
use coroner_core::{
    leak::{LeakCause, LeakClass},
    process::SIGKILL,
    types::{
        Cause,
        FindingKind::{DeadlineMissed, Frozen, Unkillable},
        PhaseKind::Shutdown,
        Verdict,
    },
};
use std::time::Duration;

/// Long enough for a client that polls once a second.
const HELD: Duration = Duration::from_secs(4);

/// A start of the runtime in the 10 s before a pod's termination would be a possible cause, too.
const LONG_AFTER_THE_START: Duration = Duration::from_secs(12);

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = sandboxes();
    all.extend(orphans());
    all.extend(stuck());
    all.extend(innocent());
    all.into_iter().map(|draft| draft.watched().finish("leaks")).collect()
}

fn leak(class: LeakClass, cause: LeakCause, resources: &[Holding]) -> ExpectedLeak {
    let resources = resources.iter().copied().collect();
    ExpectedLeak { class, cause, resources, names_pod: true }
}

/// A thing that does not name its pod.
fn orphan(class: LeakClass, cause: LeakCause, resources: &[Holding]) -> ExpectedLeak {
    ExpectedLeak { names_pod: false, ..leak(class, cause, resources) }
}

fn handles() -> Part {
    Part::new("app", "handle --for 500ms")
}

fn sandboxes() -> Vec<Draft> {
    use Holding::{Cgroup, Containers, Ips, Netns, Pids};
    let all_of_a_running_one = [Cgroup, Pids, Containers];
    vec![
        runs_on("pod-worker-stuck", 5)
            .shows("As with the bug of kubelet 1.22 to 1.26 (kubernetes#107730): the pod is gone, and its sandbox is never removed.")
            .on_own_network()
            .runs(handles())
            .leaves("sandbox")
            .after(SOON, Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 0.5)
            .leaks(leak(LeakClass::NotreadyNoPod, LeakCause::PodWorkerStuck, &[])),
        runs_on("containers-block-gc", 5)
            .shows("A container is not removed, so the garbage collection does not remove the sandbox.")
            .runs(handles())
            .leaves("containers")
            .after(SOON, Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
            .leaks(leak(LeakClass::NotreadyWithContainers, LeakCause::PodWorkerStuck, &[Containers])),
        runs_on("sandbox-never-started", 5)
            .shows("The runtime cannot start a sandbox, and the network plugin cannot delete its network: namespace and addresses remain.")
            .never_starts()
            .runs(handles())
            .leaves("sandbox")
            .after(LONG_AFTER_THE_START, Action::Delete { grace: None })
            .never_terminates()
            .leaks(leak(
                LeakClass::NotreadyNoPod,
                LeakCause::CniDeleteFailing,
                &[Netns, Ips],
            )),
        nobody("ready-orphan")
            .shows("A sandbox and its container run without a pod, and an administrator removes them.")
            .at_once(Action::Leave(LeftOver::RunningSandbox))
            .when(When::Leaked(LeakClass::ReadyNoPod), Action::Wait)
            .after(HELD, Action::RemoveSandboxes)
            .leaks(leak(LeakClass::ReadyNoPod, LeakCause::PodWorkerStuck, &all_of_a_running_one)),
        runs_on("duplicate-ready", 5)
            .shows("A running pod has a second sandbox: the kubelet ignores the first one.")
            .runs(handles())
            .after(SOON, Action::Leave(LeftOver::SecondSandbox))
            .never_terminates()
            .leaks(leak(LeakClass::DuplicateReady, LeakCause::SandboxReplaced, &all_of_a_running_one)),
        ends_by_itself("netns-kept-open")
            .shows("The network plugin fails while a job's sandbox is stopped: the namespace and the address remain.")
            .on_own_network()
            .runs(Part::new("app", "job --for 8s"))
            .at_once(Action::BreakNetwork)
            .when(When::Leaked(LeakClass::NetnsOpen), Action::Wait)
            .after(HELD, Action::MendNetwork)
            .dies("app", Verdict::Completed, code(0))
            .leaks(leak(LeakClass::NetnsOpen, LeakCause::CniDeleteFailing, &[Netns, Ips, Cgroup, Containers])),
    ]
}

fn orphans() -> Vec<Draft> {
    use Holding::{Cgroup, Netns, Pids};
    let busy_cgroup =
        || orphan(LeakClass::OrphanPodCgroup, LeakCause::ProcessesRemain, &[Cgroup, Pids]);
    vec![
        nobody("orphan-netns")
            .shows("A network namespace that no sandbox claims, with no process in it.")
            .at_once(Action::Leave(LeftOver::Netns))
            .leaks(orphan(LeakClass::OrphanNetns, LeakCause::UntrackedByRuntime, &[Netns])),
        nobody("orphan-pod-cgroup")
            .shows("The cgroup of a pod that does not exist, with a process in it.")
            .at_once(Action::Leave(LeftOver::PodCgroup))
            .leaks(busy_cgroup()),
        nobody("orphan-shim")
            .shows("The runtime is killed and loses a sandbox's bundle: its shim and the shim's children keep running, untracked.")
            .at_once(Action::Leave(LeftOver::RunningSandbox))
            .at_once(Action::KillRuntime)
            .at_once(Action::LoseBundles)
            .at_once(Action::StartRuntime)
            .at_once(Action::RemoveSandboxes)
            .alone()
            .leaks(orphan(LeakClass::OrphanShim, LeakCause::UntrackedByRuntime, &[Pids]))
            .leaks(busy_cgroup()),
    ]
}

/// Pods whose object waits in vain.
fn stuck() -> Vec<Draft> {
    use Holding::{Cgroup, Containers, Pids};
    let stuck = |cause, resources: &[Holding]| leak(LeakClass::StuckTerminating, cause, resources);
    vec![
        runs_on("stuck-by-finalizer", 2)
            .shows("The cleanup on the node is complete, and a finalizer holds the object.")
            .runs(handles())
            .held_by_finalizer("lab.example/hold")
            .after(SOON, Action::Delete { grace: None })
            .when(When::Leaked(LeakClass::StuckTerminating), Action::Wait)
            .after(HELD, Action::RemoveFinalizers)
            .dies("app", Verdict::Graceful, code(0))
            .leaks(stuck(LeakCause::Finalizer, &[])),
        runs_on("stuck-by-process", 2)
            .shows("The v1 freezer holds a process, so that SIGKILL does not end it.")
            .runs(handles())
            .after(SOON, Action::Freeze { container: "app" })
            .at_once(Action::Delete { grace: None })
            .when(When::Leaked(LeakClass::StuckTerminating), Action::Thaw)
            .dies("app", Verdict::StopSignalBlocked, signal(SIGKILL))
            .finds(Frozen)
            .finds(Unkillable)
            .finds(DeadlineMissed)
            .leaks(stuck(LeakCause::ProcessesRemain, &[Cgroup, Pids, Containers])),
    ]
}

/// What does not leak.
fn innocent() -> Vec<Draft> {
    let from_manifest = |name| runs_on(name, 5).made_by_manifest().runs(handles());
    vec![
        from_manifest("manifest-removed")
            .shows(
                "The manifest of a static pod is removed: the pod terminates, and nothing leaks.",
            )
            .after(SOON, Action::RemoveManifest)
            .caused_by(Cause::StaticRemoved)
            .dies("app", Verdict::Graceful, code(0)),
        from_manifest("mirror-pod-deleted")
            .shows("A mirror pod is deleted: no termination, and the static pod is not an orphan.")
            .after(SOON, Action::Delete { grace: None })
            .never_terminates(),
        ends_by_itself("job-finished")
            .shows("The sandbox of a completed job stays as long as the job's object: not a leak.")
            .runs(Part::new("app", "job --for 1s"))
            .dies("app", Verdict::Completed, code(0)),
    ]
}
