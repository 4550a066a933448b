//! What is worth an Event, and its words. Pure: the same observation gives the same note.
//!
//! Told is what a person who looks at the pod would want to act on. What needs no action (a graceful
//! end, a job that completed, a crash that the status shows with its exit code) is not told, and of
//! what is not proven (`unknown`) nothing is said. An OOM kill is told: the kubelet makes no Event of
//! it but for the node as a whole (`SystemOOM`, pkg/kubelet/oom/oom_watcher_linux.go), and the
//! container's status remembers only its last end.

use crate::outputs::report;
use coroner_core::{
    ids::PodRef,
    input::{ContainerKind, Workload},
    labels,
    leak::{Leak, LeakClass, LeakKey},
    output::{Report, UnkillableContainer},
    report::{ContainerDeath, Finding, PodTermination},
    types::{FindingKind, Verdict},
};

/// The most that the apiserver takes, bytes (`NoteLengthLimit`, pkg/apis/core/validation/events.go).
const MAX_MESSAGE: usize = 1024;

labels! {
    /// Why there is an Event. A closed set: docs/events.md lists it.
    pub enum Reason {
        StopSignalIgnored = "StopSignalIgnored",
        StopSignalBlocked = "StopSignalBlocked",
        GraceExceeded = "GraceExceeded",
        PreStopExhaustedGrace = "PreStopExhaustedGrace",
        OomKilled = "OomKilled",
        ConnectionsCut = "ConnectionsCut",
        Unkillable = "Unkillable",
        StuckTerminating = "StuckTerminating",
        SandboxLeaked = "SandboxLeaked",
        ShimOrphaned = "ShimOrphaned",
        NetnsOrphaned = "NetnsOrphaned",
        PodCgroupOrphaned = "PodCgroupOrphaned",
    }
}

impl Reason {
    /// What was being done: an Event's `action`, which the apiserver demands.
    pub fn action(self) -> &'static str {
        match self {
            Self::OomKilled => "Running",
            Self::StopSignalIgnored
            | Self::StopSignalBlocked
            | Self::GraceExceeded
            | Self::PreStopExhaustedGrace
            | Self::ConnectionsCut
            | Self::Unkillable => "Stopping",
            Self::StuckTerminating => "Deleting",
            Self::SandboxLeaked
            | Self::ShimOrphaned
            | Self::NetnsOrphaned
            | Self::PodCgroupOrphaned => "CleaningUp",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Regarding {
    Pod {
        /// Which. Of a static pod the UID is the runtime's, which its mirror carries as the annotation
        /// `kubernetes.io/config.mirror`: it is by that one that the kubelet makes Events of it, and
        /// that `kubectl describe` looks for them.
        pod: PodRef,
        /// Of its containers, as the kubelet writes it: `spec.containers{app}`.
        field: Option<String>,
    },
    Node {
        /// The pod that it has to do with.
        related: Option<PodRef>,
        /// What of the node: without it, two that have no pod would be counted as one Event.
        field: Option<String>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventDraft {
    pub about: Regarding,
    pub reason: Reason,
    /// The fact with its figures and what to do about it, at most 1024 bytes.
    pub message: String,
}

impl EventDraft {
    fn new(about: Regarding, reason: Reason, message: &str) -> Self {
        Self { about, reason, message: short(message) }
    }
}

pub fn note(report: &Report) -> Option<EventDraft> {
    match report {
        Report::CountDeath(death) => of_death(death),
        Report::CountTermination(end) => of_traffic(end),
        Report::Unkillable(holdout) => of_holdout(holdout),
        Report::LeakOpened(leak) => of_leak(leak),
        _ => None,
    }
}

fn of_traffic(end: &PodTermination) -> Option<EventDraft> {
    let is_loss = |finding: &&Finding| {
        matches!(finding.kind, FindingKind::ConnectionsCut | FindingKind::ConnectionsRefused)
    };
    let details: Vec<_> =
        end.findings.iter().filter(is_loss).map(|finding| finding.detail.as_str()).collect();
    let about = Regarding::Pod { pod: end.pod.clone(), field: None };
    let message = format!(
        "{} `coroner explain {}` on this node shows when, and what is advised.{}",
        details.join(" "),
        end.pod.name,
        whose(end.workload.as_ref()),
    );
    (!details.is_empty()).then(|| EventDraft::new(about, Reason::ConnectionsCut, &message))
}

fn of_death(death: &ContainerDeath) -> Option<EventDraft> {
    let late = death.findings.iter().find(|f| f.kind == FindingKind::DeadlineMissed);
    let reason = match (death.verdict, late) {
        (Verdict::StopSignalIgnored, _) => Reason::StopSignalIgnored,
        (Verdict::StopSignalBlocked, _) => Reason::StopSignalBlocked,
        (Verdict::GraceExceeded, _) => Reason::GraceExceeded,
        (Verdict::PrestopExhaustedGrace, _) => Reason::PreStopExhaustedGrace,
        (Verdict::OomKilled, _) => Reason::OomKilled,
        // It left by itself after all: nobody has proof of a SIGKILL.
        (
            Verdict::Graceful | Verdict::TerminatedByDefault | Verdict::Completed | Verdict::Failed,
            Some(_),
        ) => Reason::GraceExceeded,
        _ => return None,
    };
    let mut message = death.proof.message.clone();
    if let Some(late) = late.filter(|_| reason == Reason::GraceExceeded) {
        message += &format!(" {}", late.detail);
    }
    let fix = report::advice::of_death(death, None);
    fix.iter().for_each(|fix| message += &format!(" {fix}"));
    message += &whose(death.workload.as_ref());
    let about = of_container(death.pod.as_ref()?, death.kind, &death.name);
    Some(EventDraft::new(about, reason, &message))
}

fn whose(workload: Option<&Workload>) -> String {
    workload.map_or_else(String::new, |workload| format!(" Workload: {workload}."))
}

fn of_holdout(holdout: &UnkillableContainer) -> Option<EventDraft> {
    if holdout.over {
        return None; // the container's status tells of its end
    }
    let about = of_container(holdout.pod.as_ref()?, holdout.kind, &holdout.name);
    let message = format!("{} {}", holdout.detail, report::advice::UNKILLABLE);
    Some(EventDraft::new(about, Reason::Unkillable, &message))
}

fn of_leak(leak: &Leak) -> Option<EventDraft> {
    let reason = match leak.class {
        LeakClass::StuckTerminating => Reason::StuckTerminating,
        LeakClass::OrphanShim => Reason::ShimOrphaned,
        LeakClass::OrphanNetns => Reason::NetnsOrphaned,
        LeakClass::OrphanPodCgroup => Reason::PodCgroupOrphaned,
        LeakClass::NotreadyNoPod
        | LeakClass::ReadyNoPod
        | LeakClass::NotreadyWithContainers
        | LeakClass::NotreadySuperseded
        | LeakClass::DuplicateReady
        | LeakClass::NetnsOpen => Reason::SandboxLeaked,
    };
    // Of a cgroup only its pod's UID is known.
    let named = leak.pod.as_ref().filter(|pod| !pod.name.is_empty() && !pod.namespace.is_empty());
    let (about, what) = if leak.class == LeakClass::StuckTerminating {
        let past =
            report::span(report::seconds_between(leak.first_observed.time, leak.confirmed.time));
        let about = Regarding::Pod { pod: named?.clone(), field: None };
        (about, format!("Stuck in Terminating for {past}"))
    } else {
        let of = named.map(|pod| format!(" of {}/{}", pod.namespace, pod.name)).unwrap_or_default();
        let what = match &leak.key {
            LeakKey::Sandbox { .. } => "Sandbox ",
            LeakKey::Shim { .. } => "Shim ",
            LeakKey::Netns { .. } => "Network namespace ",
            LeakKey::PodCgroup { .. } | LeakKey::Pod { .. } => "The ",
        };
        let thing = report::thing(&leak.key);
        let age = report::age(leak, leak.confirmed.time);
        let field = Some(format!("{}{{{thing}}}", leak.class));
        let about = Regarding::Node { related: named.cloned(), field };
        (about, format!("{what}{thing}{of} leaked ({}), {age} old", leak.class))
    };
    let mut message = format!("{what}: {}.", leak.cause.message.trim_end_matches('.'));
    let held = report::holds(&leak.resources);
    if !held.is_empty() {
        message.push_str(&format!(" Holds {held}."));
    }
    let steps = &leak.remediation;
    if !steps.is_empty() {
        message.push_str(&format!(" To do: {}", in_one_line(steps)));
    }
    Some(EventDraft::new(about, reason, &message))
}

fn in_one_line(steps: &[String]) -> String {
    let mut text = String::new();
    for step in steps {
        let command = step.strip_prefix("$ ");
        match text.chars().last() {
            None => {}
            Some('`') if command.is_some() => text.push_str("; "),
            Some('`') => text.push_str(". "),
            Some(_) => text.push(' '),
        }
        match command {
            Some(command) => text.push_str(&format!("`{command}`")),
            None => text.push_str(step),
        }
    }
    text
}

/// As the kubelet names it (pkg/kubelet/container/ref.go, `fieldPath`).
fn of_container(pod: &PodRef, kind: ContainerKind, name: &str) -> Regarding {
    let list = match kind {
        ContainerKind::Main => "containers",
        ContainerKind::Init | ContainerKind::Sidecar => "initContainers",
        ContainerKind::Ephemeral => "ephemeralContainers",
    };
    let field = (!name.is_empty()).then(|| format!("spec.{list}{{{name}}}"));
    Regarding::Pod { pod: pod.clone(), field }
}

fn short(text: &str) -> String {
    let mut text = report::printable(text);
    if text.len() > MAX_MESSAGE {
        const MORE: &str = "…";
        text.truncate(text.floor_char_boundary(MAX_MESSAGE - MORE.len()));
        text.push_str(MORE);
    }
    text
}

#[cfg(test)]
mod tests;
