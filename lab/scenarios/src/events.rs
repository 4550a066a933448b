//! The group `events`: what an owner of pods is told where he looks. An agent of its own for each: the
//! rate is a node's, and others would take its share.

use super::{
    Action, AgentFlags, Scenario, When,
    draft::{SOON, runs_on, signal},
    leaks::{nobody, running_sandbox},
    pod::Part,
};
use coroner::outputs::events::Reason;
use coroner_core::{
    process::SIGKILL,
    types::{Cause, Verdict},
};
use coroner_lab_cluster::image;
use coroner_lab_cluster::remnants::Remnant;
use std::time::Duration;

const WITH_EVENTS: Action =
    Action::RestartAgent(AgentFlags { makes_events: true, ..AgentFlags::PLAIN });

pub(super) fn scenarios() -> Vec<Scenario> {
    let all = [
        runs_on("sigterm-ignored-in-restart", 2)
            .shows("The container ignores SIGTERM when its image is changed: the pod keeps running, and gets an Event.")
            .runs(Part::new("app", "ignore"))
            .after(Duration::ZERO, WITH_EVENTS)
            .after(SOON, Action::ChangeImage { container: "app", image: image::NEXT })
            .when(When::Told(Reason::StopSignalIgnored), Action::Delete { grace: None })
            .alone()
            .died_before("app", Cause::DefinitionChanged, Verdict::StopSignalIgnored, signal(SIGKILL))
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL)),
        nobody("leak-told-on-node")
            .shows("A sandbox runs without a pod: the Node gets an Event.")
            .after(Duration::ZERO, WITH_EVENTS)
            .after(Duration::ZERO, Action::Leave(Remnant::RunningSandbox))
            .when(When::Told(Reason::SandboxLeaked), Action::Wait)
            .alone()
            .watched()
            .leaks(running_sandbox()),
    ];
    all.into_iter().map(|draft| draft.finish("events")).collect()
}
