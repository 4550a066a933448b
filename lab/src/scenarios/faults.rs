//! The group `faults`: something that the evidence comes from fails meanwhile.

use super::{
    Action, Scenario, When,
    draft::{Draft, SOON, code, deleted, runs_on, signal},
    pod::Part,
};
use coroner_core::{
    process::SIGKILL,
    types::{
        FindingKind::{Contradiction, Frozen, RuntimeRestarted},
        PhaseKind::Shutdown,
        Verdict,
    },
};
use std::time::Duration;

const OUTAGE: Duration = Duration::from_secs(3);

pub(super) fn scenarios() -> Vec<Scenario> {
    let handled = |name, fails, recovers| -> Draft {
        deleted(name, 12)
            .runs(Part::new("app", "handle --for 2s"))
            .when(When::Handled("app"), fails)
            .after(OUTAGE, recovers)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 2.0)
    };
    let all = [
        handled("runtime-killed", Action::KillRuntime, Action::StartRuntime)
            .shows("containerd is killed and restarts: the kernel recorded the handler and the exit.")
            .finds(RuntimeRestarted)
            // containerd may not know how the container exited.
            .allows(Contradiction),
        handled("runtime-hung", Action::HangRuntime, Action::ResumeRuntime)
            .shows("containerd answers no call while the pod terminates: the kernel recorded the handler and the exit."),
        handled("apiserver-away", Action::StopApiserver, Action::StartApiserver)
            .shows("The apiserver does not answer while the pod terminates: nothing is concluded from missing answers."),
        // Longer than the agent takes to start.
        runs_on("agent-restarted", 20)
            .runs(Part::new("app", "overrun"))
            .after(SOON, Action::Delete { grace: None })
            .when(When::Handled("app"), Action::RestartAgent(&[]))
            .shows("SIGTERM was sent before the agent restarted: the verdict is unknown.")
            .dies("app", Verdict::Unknown, signal(SIGKILL))
            .truncated(),
        runs_on("ring-full", 5)
            .shows("The agent gets no CPU time and its ring is full when the pod terminates: the verdict is unknown, and the report names the loss.")
            .runs(Part::new("app", "handle --for 1s"))
            .at_once(Action::RestartAgent(&["--ring-bytes=4KiB"]))
            .after(SOON, Action::PauseAgent)
            .at_once(Action::FillRings { container: "app" })
            .at_once(Action::Delete { grace: None })
            .when(When::Handled("app"), Action::Wait)
            .after(OUTAGE, Action::ResumeAgent)
            .dies_unseen()
            .allows(Frozen)
            .loses(),
    ];
    all.into_iter().map(|draft| draft.alone().finish("faults")).collect()
}
