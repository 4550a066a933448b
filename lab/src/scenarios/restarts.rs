//! The group `restarts`: a container that is stopped while its pod lives on. Who states why decides the cause.

use super::{
    Action, Scenario, When,
    draft::{Draft, SOON, code, runs_on},
    pod::Part,
};
use crate::image;
use coroner_core::types::{Cause, PhaseKind::Shutdown, Verdict};

pub(super) fn scenarios() -> Vec<Scenario> {
    let restarted = |name, image, event| -> Draft {
        runs_on(name, 5)
            .after(SOON, Action::Restart { container: "app", image, event })
            .when(When::Again("app"), Action::Wait)
            .after(SOON, Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 0.5)
    };
    let handles = || Part::new("app", "handle --for 500ms");
    let all = [
        restarted(
            "liveness-restart",
            None,
            Some("Container app failed liveness probe, will be restarted"),
        )
        .shows("The kubelet's Event states that the liveness probe failed: the container is stopped and started again.")
        .runs(handles().liveness_http())
        .died_before(Cause::Liveness),
        restarted(
            "image-changed",
            Some(image::NEXT),
            Some("Container app definition changed, will be restarted"),
        )
        .shows("The image is changed: the container is stopped and started again, then deleted.")
        .runs(handles())
        .died_before(Cause::DefinitionChanged),
        restarted("restarted-without-a-reason", None, None)
            .shows("The container is stopped and started again, and no source states why.")
            .runs(handles())
            .died_before(Cause::Restart),
    ];
    all.into_iter().map(|draft| draft.finish("restarts")).collect()
}
