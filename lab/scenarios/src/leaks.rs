//! The group `leaks`: what is left behind, and what only looks like it.
//!
//! Where no bug of the lab's kubelet leaves something behind, it is left by hand, as
//! [`Remnant`] says.

use super::{
    Action, AgentFlags, ExpectedLeak, Holding, Scenario, Span, When,
    causes::EVICTED,
    draft::{Draft, SOON, code, ends_by_itself, runs_on, signal},
    pod::Part,
};
use coroner_core::{
    leak::{BlockedOn, DetectionState, LeakCause, LeakClass},
    process::SIGKILL,
    types::{
        Cause,
        FindingKind::{
            Contradiction, DeadlineMissed, Frozen, OutlivedObject, RuntimeRestarted, Unkillable,
        },
        PhaseKind::Shutdown,
        Verdict,
    },
};
use coroner_lab_cluster::remnants::Remnant;
use std::time::Duration;

/// For longer than the agent's threshold.
const LONG: Duration = Duration::from_secs(11);
/// Long enough for who looks once a second.
const HELD: Duration = Duration::from_secs(4);

/// A kubelet whose housekeeping asks the runtime itself.
const MENDED_KUBELET: &str = "v1.27.16";

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = by_the_kubelet();
    all.extend(by_hand());
    all.extend(blocked_on());
    all.extend(innocent());
    all.extend(beyond_judgement());
    all.extend(over_restarts());
    all.into_iter().map(|draft| draft.watched().finish("leaks")).collect()
}

fn leak<const N: usize>(
    class: LeakClass,
    cause: LeakCause,
    resources: [Holding; N],
) -> ExpectedLeak {
    ExpectedLeak {
        class,
        cause,
        resources: resources.into(),
        blocked_on: None,
        names_pod: true,
        preexisting: false,
        remembered: false,
    }
}

/// Seed 002: the runtime is killed in the midst of the housekeeping after the pod's end.
fn by_the_kubelet() -> Vec<Draft> {
    let story = |name| {
        runs_on(name, 5)
            .on_own_network()
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::ReadRuntimeCache)
            .after(Duration::ZERO, Action::Delete { grace: None })
            .when(When::Housekeeping, Action::KillRuntime)
            .after(SOON, Action::StartRuntime)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 0.5))
            .allows(RuntimeRestarted)
    };
    vec![
        story("pod-worker-stuck")
            .shows("containerd is killed while the kubelet kills a deleted pod again: the pod worker hangs, and the sandbox leaks.")
            .alone()
            .leaks(leak(LeakClass::NotreadyNoPod, LeakCause::PodWorkerStuck, [])),
        story("pod-worker-mended")
            .shows("The same with a kubelet that queries the runtime itself: its garbage collection removes the sandbox.")
            .before(Action::RunKubelet(MENDED_KUBELET))
            .alone(),
    ]
}

/// A scenario without a pod.
pub(super) fn nobody(name: &'static str) -> Draft {
    runs_on(name, 30).never_ends()
}

/// Something that does not tell of whom it is.
fn orphan<const N: usize>(
    class: LeakClass,
    cause: LeakCause,
    resources: [Holding; N],
) -> ExpectedLeak {
    ExpectedLeak { names_pod: false, ..leak(class, cause, resources) }
}

fn by_hand() -> Vec<Draft> {
    vec![
        nobody("ready-orphan")
            .shows("A sandbox and its container run without a pod.")
            .after(Duration::ZERO, Action::Leave(Remnant::RunningSandbox))
            .leaks(running_sandbox()),
        nobody("duplicate-ready")
            .shows("A second sandbox of a running pod: the kubelet ignores the first one.")
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::Leave(Remnant::SecondSandbox))
            .leaks(leak(
                LeakClass::DuplicateReady,
                LeakCause::SandboxReplaced,
                [Holding::Cgroup, Holding::Pids, Holding::Containers],
            )),
        runs_on("containers-block-gc", 5)
            .shows("A container is not removed, so the garbage collection does not remove the sandbox.")
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::KeepContainers)
            .after(Duration::ZERO, Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
            .leaks(leak(
                LeakClass::NotreadyWithContainers,
                LeakCause::PodWorkerStuck,
                [Holding::Containers],
            )),
        ends_by_itself("netns-kept-open")
            .shows("The network plugin fails while a job's sandbox is stopped: the namespace and address remain.")
            .on_own_network()
            .runs(Part::new("app", "job --for 8s"))
            .after(Duration::ZERO, Action::BreakNetwork)
            .when(When::Leaked(LeakClass::NetnsOpen), Action::Wait)
            .after(HELD, Action::MendNetwork)
            .dies("app", Verdict::Completed, code(0))
            .leaks(leak(
                LeakClass::NetnsOpen,
                LeakCause::CniDeleteFailing,
                [Holding::Netns, Holding::Ips, Holding::Cgroup, Holding::Containers],
            )),
        nobody("orphan-pod-cgroup")
            .shows("The empty cgroup of a pod that does not exist.")
            .after(Duration::ZERO, Action::Leave(Remnant::PodCgroup { busy: false }))
            .leaks(orphan(LeakClass::OrphanPodCgroup, LeakCause::Unknown, [Holding::Cgroup])),
        nobody("orphan-pod-cgroup-with-process")
            .shows("The cgroup of a pod that does not exist, with a process in it.")
            .after(Duration::ZERO, Action::Leave(Remnant::PodCgroup { busy: true }))
            .leaks(orphan(LeakClass::OrphanPodCgroup, LeakCause::ProcessesRemain, [Holding::Cgroup, Holding::Pids])),
        nobody("orphan-shim")
            .shows("The runtime is killed and loses a sandbox's bundle: its shim and the shim's children keep running, untracked.")
            .after(Duration::ZERO, Action::Leave(Remnant::RunningSandbox))
            .after(Duration::ZERO, Action::KillRuntime)
            .after(Duration::ZERO, Action::LoseBundles)
            .after(Duration::ZERO, Action::StartRuntime)
            .after(Duration::ZERO, Action::RemoveSandboxes)
            .alone()
            .leaks(orphan(LeakClass::OrphanShim, LeakCause::UntrackedByRuntime, [Holding::Pids]))
            .leaks(orphan(LeakClass::OrphanPodCgroup, LeakCause::ProcessesRemain, [Holding::Cgroup, Holding::Pids])),
        nobody("orphan-netns")
            .shows("A network namespace that no sandbox claims, with no process in it.")
            .after(Duration::ZERO, Action::Leave(Remnant::Netns))
            .leaks(orphan(LeakClass::OrphanNetns, LeakCause::UntrackedByRuntime, [Holding::Netns])),
        nobody("cleaned-up-by-hand")
            .shows("An administrator removes a leaked sandbox: the leak is resolved.")
            .after(Duration::ZERO, Action::Leave(Remnant::RunningSandbox))
            .when(When::Leaked(LeakClass::ReadyNoPod), Action::RemoveSandboxes)
            .leaks(running_sandbox()),
    ]
}

/// What [`Remnant::RunningSandbox`] is told as: it looks like what a kubelet of this version leaves
/// when the runtime cannot kill (kubernetes#113145).
pub(super) fn running_sandbox() -> ExpectedLeak {
    leak(
        LeakClass::ReadyNoPod,
        LeakCause::PodWorkerGaveUp,
        [Holding::Cgroup, Holding::Pids, Holding::Containers],
    )
}

/// Pods whose object waits in vain.
fn blocked_on() -> Vec<Draft> {
    let blocked_on = |cause, reason, resources: &[Holding]| ExpectedLeak {
        blocked_on: Some(reason),
        resources: resources.iter().copied().collect(),
        ..leak(LeakClass::StuckTerminating, cause, [])
    };
    vec![
        runs_on("stuck-by-finalizer", 2)
            .shows("The cleanup on the node is complete, and a finalizer holds the object.")
            .runs(Part::new("app", "handle --for 500ms"))
            .held_by_finalizer("lab.example/hold")
            .after(SOON, Action::Delete { grace: None })
            .when(When::Leaked(LeakClass::StuckTerminating), Action::Wait)
            .after(HELD, Action::RemoveFinalizers)
            .dies("app", Verdict::Graceful, code(0))
            .leaks(blocked_on(LeakCause::Finalizer, BlockedOn::Finalizer, &[])),
        runs_on("stuck-by-process", 2)
            .shows("The v1 freezer holds a process, so that SIGKILL does not end it.")
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::FreezeForGood { container: "app" })
            .after(Duration::ZERO, Action::Delete { grace: None })
            .when(When::Leaked(LeakClass::StuckTerminating), Action::Thaw)
            .dies("app", Verdict::StopSignalBlocked, signal(SIGKILL))
            .finds(Frozen)
            .finds(Unkillable)
            .finds(DeadlineMissed)
            .leaks(blocked_on(
                LeakCause::ProcessesRemain,
                BlockedOn::Process,
                &[Holding::Cgroup, Holding::Pids, Holding::Containers],
            )),
    ]
}

/// What is not left behind.
fn innocent() -> Vec<Draft> {
    let from_manifest =
        |name| runs_on(name, 5).made_by_manifest().runs(Part::new("app", "handle --for 500ms"));
    vec![
        from_manifest("static-pod-removed")
            .shows("A manifest is removed: the pod terminates, and nothing leaks.")
            .after(SOON, Action::RemoveManifest)
            .caused_by(Cause::StaticRemoved)
            .dies("app", Verdict::Graceful, code(0)),
        from_manifest("mirror-pod-deleted")
            .shows("A mirror pod is deleted: no termination, and the static pod is not an orphan.")
            .after(SOON, Action::Delete { grace: None })
            .never_ends(),
        ends_by_itself("job-finished")
            .shows("The sandbox of a completed job stays as long as the job's object: not a leak.")
            .runs(Part::new("app", "job --for 1s"))
            .dies("app", Verdict::Completed, code(0)),
        runs_on("evicted", 5)
            .shows("The resources of an evicted pod are removed before its object.")
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::End(EVICTED))
            .caused_by(Cause::NodePressureEviction)
            .dies("app", Verdict::Graceful, code(0)),
    ]
}

/// While a source is away, nothing is judged.
fn beyond_judgement() -> Vec<Draft> {
    let elsewhere = |name, node, judgement| {
        nobody(name)
            .after(Duration::ZERO, Action::Leave(Remnant::RunningSandbox))
            .after(
                Duration::ZERO,
                Action::RestartAgent(AgentFlags { node: Some(node), ..AgentFlags::PLAIN }),
            )
            .when(When::Judged(judgement), Action::Wait)
            .alone()
    };
    vec![
        nobody("apiserver-away-for-long")
            .shows("The apiserver does not answer for longer than the threshold: leak detection is suspended.")
            .after(Duration::ZERO, Action::StopApiserver)
            .when(When::Judged(DetectionState::ApiOutOfSync), Action::Leave(Remnant::RunningSandbox))
            .after(LONG, Action::RemoveSandboxes)
            .after(Duration::ZERO, Action::StartApiserver)
            .when(When::Judged(DetectionState::Possible), Action::Wait)
            .alone(),
        runs_on("runtime-away-for-long", 5)
            .shows("A pod object is deleted while containerd is unavailable for longer than the threshold: that time does not count.")
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::KillRuntime)
            .after(Duration::ZERO, Action::Delete { grace: Some(0) })
            .when(When::Judged(DetectionState::CriUnreachable), Action::Wait)
            .after(LONG, Action::StartRuntime)
            .alone()
            .caused_by(Cause::ForceDelete)
            .dies("app", Verdict::Graceful, code(0))
            .finds(OutlivedObject)
            .allows(RuntimeRestarted)
            .allows(Contradiction)
            .allows(DeadlineMissed),
        elsewhere("mistyped-node", "lab-nods", DetectionState::NodeMissing)
            .shows("The agent gets the name of a node that does not exist: it reports this, and no leaks."),
        elsewhere("foreign-node", coroner_lab_cluster::OTHER_NODE, DetectionState::NodeForeign)
            .shows("The agent gets the name of another machine: it reports this, and no leaks."),
    ]
}

fn over_restarts() -> Vec<Draft> {
    let restarted = |name, flags: AgentFlags| {
        nobody(name)
            .after(Duration::ZERO, Action::RestartAgent(flags))
            .after(Duration::ZERO, Action::Leave(Remnant::RunningSandbox))
            .when(When::Leaked(LeakClass::ReadyNoPod), Action::RestartAgent(flags))
            .when(When::Leaked(LeakClass::ReadyNoPod), Action::Wait)
            .alone()
    };
    vec![
        restarted("agent-restarted", AgentFlags::PLAIN)
            .shows("The agent restarts and reports the leak again: with the same creation time, observed since the restart.")
            .leaks(ExpectedLeak { preexisting: true, ..running_sandbox() }),
        restarted(
            "agent-remembers",
            AgentFlags { keeps_state: true, ..AgentFlags::PLAIN },
        )
        .shows("The agent restarts with its state, and keeps the time since which the leak was observed.")
        .leaks(ExpectedLeak { remembered: true, ..running_sandbox() }),
    ]
}
