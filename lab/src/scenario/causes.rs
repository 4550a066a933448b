//! The group `causes`: every reason for which a container is stopped.

use super::{
    Act, Scenario, Span, When,
    draft::{Draft, SOON, code, runs_on, signal},
    pod::Part,
};
use crate::{controlplane::Disruption, image, kubelet::Ending};
use coroner_core::observation::{Cause, FindingKind::OutlivedObject, PhaseKind::Shutdown, Verdict};
use coroner_core::process::SIGKILL;
use std::time::Duration;

/// Into a container's next life: its end can no longer be taken for that of the life before, as the
/// agent allows the watch a second's lag.
const INTO_THE_NEXT_LIFE: Duration = Duration::from_millis(1300);

/// eviction_manager.go, `evictPod`: a hard threshold grants 1 s.
pub(super) const EVICTED: Ending = Ending {
    grace: 1,
    reason: "Evicted",
    message: "The node was low on resource: memory. ",
    removes_content: true,
};

/// nodeshutdown_manager.go, `processShutdownEvent`: what the pod's priority is granted.
const NODE_SHUTDOWN: Ending = Ending {
    grace: 4,
    reason: "Terminated",
    message: "Pod was terminated in response to imminent node shutdown.",
    removes_content: false,
};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = without_an_end();
    all.extend(by_the_control_plane());
    all.extend(by_the_kubelet());
    all.into_iter().map(|draft| draft.finish("causes")).collect()
}

/// Containers that are stopped, or end, in a pod that goes on.
fn without_an_end() -> Vec<Draft> {
    let then_deleted = |draft: Draft| {
        draft
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Act::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 0.5))
    };
    vec![
        then_deleted(
            runs_on("liveness-probe-fails", 5)
                .shows("Its liveness probe fails twice: stopped and started anew, then deleted.")
                .runs(Part::new("app", "handle --for 500ms").liveness("job --for 10ms --exit 1"))
                .when(When::Handled("app"), Act::IgnoreProbes)
                .died_before("app", Cause::Liveness, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("startup-probe-fails", 5)
                .shows("Its startup probe never succeeds: stopped and started anew, then deleted.")
                .runs(Part::new("app", "handle --for 500ms").startup("job --for 10ms --exit 1"))
                .when(When::Handled("app"), Act::IgnoreProbes)
                .died_before("app", Cause::Startup, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("image-changed", 5)
                .shows("Its image is changed: stopped and started anew, then deleted.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Act::ChangeImage { container: "app", image: image::NEXT })
                .died_before("app", Cause::Restart, Verdict::Graceful, code(0)),
        ),
        runs_on("leaves-and-is-restarted", 2)
            .shows("It gives up with 3 and is started anew, without a handler, then deleted.")
            .runs(Part::new("app", "job --for 10s --exit 3"))
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Act::Delete { grace: None })
            .died_before("app", Cause::Completed, Verdict::Failed, code(3))
            .dies("app", Verdict::Ignored, signal(SIGKILL))
            .spends(Span::about(Shutdown, 2.0)),
    ]
}

fn by_the_control_plane() -> Vec<Draft> {
    let disrupted = |name, disruption| {
        runs_on(name, 5)
            .runs(Part::new("app", "handle --for 1s"))
            .after(SOON, Act::Disrupt(disruption))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0))
    };
    vec![
        disrupted("drained", Disruption::Eviction)
            .shows("kubectl drain evicts it through the API.")
            .caused_by(Cause::ApiEviction),
        disrupted("preempted", Disruption::Preemption)
            .shows("The scheduler makes room for a pod of higher priority.")
            .caused_by(Cause::Preemption),
        disrupted("tainted", Disruption::Taint)
            .shows("The node got a taint that it does not tolerate.")
            .caused_by(Cause::TaintEviction),
        disrupted("garbage-collected", Disruption::PodGc)
            .shows("The control plane's collector takes its object away; its processes outlive it.")
            .caused_by(Cause::PodGc)
            .finds(OutlivedObject),
    ]
}

fn by_the_kubelet() -> Vec<Draft> {
    let from_manifest = |name| {
        runs_on(name, 5)
            .made_by_manifest()
            .runs(Part::new("app", "handle --for 1s"))
            .caused_by(Cause::StaticRemoved)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0))
    };
    vec![
        runs_on("node-pressure", 30)
            .shows("The node is short of memory: evicted with 1 s, which the floor makes 2.")
            .runs(Part::new("app", "overrun"))
            .after(SOON, Act::End(EVICTED))
            .caused_by(Cause::NodePressureEviction)
            .dies("app", Verdict::Overran, signal(SIGKILL))
            .spends(Span::about(Shutdown, 2.0)),
        runs_on("node-shutdown", 30)
            .shows("The node shuts down: it gets what its priority is granted, not its own grace.")
            .runs(Part::new("app", "overrun"))
            .after(SOON, Act::End(NODE_SHUTDOWN))
            .caused_by(Cause::NodeShutdown)
            .dies("app", Verdict::Overran, signal(SIGKILL))
            .spends(Span::about(Shutdown, 4.0)),
        from_manifest("manifest-removed")
            .shows("A static pod: deleting its mirror stops nothing, removing its manifest does.")
            .after(SOON, Act::Delete { grace: None })
            .after(SOON, Act::RemoveManifest),
        from_manifest("manifest-returns")
            .shows(
                "The manifest comes back while the pod ends: the same UID lives, and dies, twice.",
            )
            .after(SOON, Act::RemoveManifest)
            .when(When::Handled("app"), Act::ReturnManifest)
            .when(When::Anew("app", Duration::ZERO), Act::Wait)
            .when(When::Accounted(1), Act::RemoveManifest)
            .lives(2),
    ]
}
