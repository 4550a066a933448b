//! The group `faults`: something that the sources of evidence stand on fails meanwhile.

use super::{
    Action, Scenario, Span, When,
    draft::{Draft, SOON, code, deleted, runs_on, signal},
    pod::Part,
};
use coroner_core::process::SIGKILL;
use coroner_core::types::{
    FindingKind::{Contradiction, Frozen, RuntimeRestarted},
    PhaseKind::Shutdown,
    Verdict,
};
use std::time::Duration;

pub(super) fn scenarios() -> Vec<Scenario> {
    let second = Duration::from_secs(1);
    vec![
        // Longer than the agent takes to start.
        runs_on("agent-comes-late", 20)
            .shows("SIGTERM was sent before the agent started: the verdict is unknown.")
            .runs(Part::new("app", "overrun"))
            .after(SOON, Action::Delete { grace: None })
            .when(When::Handled("app"), Action::StartAgent)
            .dies("app", Verdict::Unknown, signal(SIGKILL))
            .truncated(),
        runs_on("frozen", 4)
            .shows("The cgroup is frozen: SIGTERM waits for a handler that cannot run.")
            .runs(Part::new("app", "handle --for 1s"))
            .after(SOON, Action::Freeze { container: "app" })
            .after(Duration::ZERO, Action::Delete { grace: None })
            .dies("app", Verdict::StopSignalBlocked, signal(SIGKILL))
            .finds(Frozen)
            .spends(Span::about(Shutdown, 4.0)),
        deleted("runtime-killed", 12)
            .shows("containerd is killed and restarts: the kernel recorded the handler and the exit.")
            .runs(Part::new("app", "handle --for 2s"))
            .when(When::Handled("app"), Action::KillRuntime)
            .after(3 * second, Action::StartRuntime)
            .alone()
            .dies("app", Verdict::Graceful, code(0))
            .finds(RuntimeRestarted)
            // containerd may not have heard how it ended: then the kernel alone knows.
            .allows(Contradiction)
            .spends(Span::about(Shutdown, 2.0)),
        deleted("apiserver-away", 8)
            .shows("The apiserver does not answer while the pod terminates: nothing is concluded from missing answers.")
            .runs(Part::new("app", "handle --for 1s"))
            .when(When::Handled("app"), Action::StopApiserver)
            .after(3 * second, Action::StartApiserver)
            .alone()
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0)),
    ]
    .into_iter()
    .map(|draft: Draft| draft.finish("faults"))
    .collect()
}
