//! What `explain -v` adds: the request, and each step with its evidence.

use super::{Style, container_name, evidence, seconds, style::Paint, utc, wrap};
use crate::{
    BootTime, Cause, ContainerDeath, Evidence, EvidenceKind, Hook, Milestone, MilestoneKind,
    Moment, PodTermination, Source,
};
use std::{fmt::Write, time::Duration};

pub(super) fn write(text: &mut String, report: &PodTermination, style: &Style) {
    title(text, "Request", style);
    wrap(text, &request(report), 2, "", style);
    title(text, "Timeline", style);
    for (at, line) in timeline(report) {
        wrap(text, &line, 2, &format!("{:>11}  ", offset(at, report)), style);
    }
}

pub(super) fn title(text: &mut String, title: &str, style: &Style) {
    let _ = writeln!(text, "\n{}", style.paint(Paint::Strong, title));
}

fn request(report: &PodTermination) -> String {
    let began = utc(report.began.time.0, 3).unwrap_or_else(|| "an unknown time".into());
    let mut said = String::new();
    // What is missing for an unknown one stands at the top.
    if report.cause != Cause::Unknown && !report.cause_message.is_empty() {
        let _ = write!(said, "{} ", report.cause_message);
    }
    if report.milestone(MilestoneKind::DeleteRequested).is_none() {
        let _ = write!(said, "No deletion request was observed; the report begins at {began}.");
        return said;
    }
    let _ = write!(said, "The request reached this node at {began}.");
    if let Some(lag) = report.request_lag_seconds.filter(|lag| lag.abs() >= 0.001) {
        let when = if lag > 0.0 { "earlier" } else { "later" };
        let _ = write!(
            said,
            " By the apiserver's clock (whole seconds), the request was made {:.3} s {when}.",
            lag.abs()
        );
    }
    said
}

/// The milestones of the pod and its containers and the evidence, each once, in order of time.
fn timeline(report: &PodTermination) -> Vec<(Moment, String)> {
    let mut steps = Vec::new();
    let of_containers = report.containers.iter().flat_map(|death| &death.milestones);
    let mut told: Vec<_> = of_containers.map(|one| (one.kind, one.at)).collect();
    for death in &report.containers {
        let who = match report.containers.len() {
            1 => String::new(),
            _ => format!("{}: ", container_name(death)),
        };
        let milestones = death.milestones.iter().filter(|one| !is_evident(one.kind, death));
        steps.extend(milestones.map(|one| (one.at, who.clone() + &milestone(one, Some(death)))));
        let line = |one: &Evidence| {
            Some((one.at, format!("{who}{} ({})", evidence::sentence(&one.kind)?, one.source)))
        };
        steps.extend(death.proof.evidence.iter().filter_map(line));
    }
    for one in &report.milestones {
        if !told.contains(&(one.kind, one.at)) {
            told.push((one.kind, one.at));
            steps.push((one.at, milestone(one, None)));
        }
    }
    steps.sort_by_key(|(at, _)| *at);
    steps
}

/// The evidence of the container has the milestone, and more. The stop begins with the hook or the signal.
fn is_evident(kind: MilestoneKind, death: &ContainerDeath) -> bool {
    use {EvidenceKind as E, MilestoneKind as M};
    kind == M::StopBegan
        || death.proof.evidence.iter().any(|one| match one.kind {
            E::SignalGenerate { .. } => matches!(kind, M::TermSent | M::KillSent),
            E::SignalDeliver { .. } => kind == M::TermHandled,
            E::SchedProcessExit { .. } => kind == M::Exited,
            E::PreStopExit { .. } => kind == M::PreStopEnded,
            _ => false,
        })
}

fn milestone(one: &Milestone, of: Option<&ContainerDeath>) -> String {
    use MilestoneKind::*;
    let mut line: String = match one.kind {
        DeleteRequested => "the deletion request reached this node".into(),
        PostStartEnded => "the postStart hook ended (the kubelet stops nothing before that)".into(),
        PreStopBegan => match of.and_then(|death| death.pre_stop.as_ref()) {
            Some(Hook::Exec(binary)) => format!("the preStop hook began: exec {binary}"),
            Some(Hook::HttpGet) => "the preStop hook began: httpGet, by the kubelet".into(),
            Some(Hook::TcpSocket) => "the preStop hook began: tcpSocket, by the kubelet".into(),
            Some(Hook::Sleep(slept)) => {
                format!("the preStop hook began: sleep {slept} s, by the kubelet")
            }
            None => "the preStop hook began".into(),
        },
        PreStopEnded => "the preStop hook ended".into(),
        CgroupEmpty => "its last process exited".into(),
        ListenerClosed => "the last listener was closed".into(),
        LastNewConnection => "the last new connection of a client came".into(),
        ContainerExited => "the runtime noticed the exit".into(),
        SandboxStopped => "the sandbox was stopped".into(),
        GraceShortened => "a later request shortened the grace period".into(),
        FinalDelete => "the kubelet was done; finalizers kept the object".into(),
        StatusReported => "the kubelet reported that no container runs any more".into(),
        ObjectGone => "the apiserver removed the pod object".into(),
        SandboxRemoved => "the runtime removed the sandbox".into(),
        CgroupRemoved => "the pod's cgroup was removed".into(),
        StopBegan | TermSent | TermHandled | KillSent | Exited => one.kind.to_string(),
    };
    let _ = match one.source {
        Source::Inferred => write!(line, " (inferred, not observed"),
        source => write!(line, " ({source}"),
    };
    if !one.uncertainty.is_zero() {
        let _ = write!(line, ", up to {} earlier", seconds(one.uncertainty));
    }
    line + ")"
}

/// A time from the beginning.
pub fn offset(at: impl Into<BootTime>, report: &PodTermination) -> String {
    let offset = at.into().signed_since(report.began);
    let sign = if offset < 0 { '-' } else { '+' };
    format!("{sign}{}", seconds(Duration::from_nanos(offset.unsigned_abs())))
}
