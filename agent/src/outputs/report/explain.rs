//! One pod's end told in full: the waterfall, then what was asked, each step, each container with
//! its evidence, where the time went, and how sure all that is.

use super::{
    Style, cause_of, container, container_name, evidence, findings, header, killer, not_final,
    printable, seconds, style::Paint, traffic::traffic, utc, warnings, waterfall, words, wrap,
};
use coroner_core::{
    input::{ExitStatus, Hook},
    report::{ContainerDeath, Milestone, PodTermination},
    signal,
    time::BootTime,
    types::{Cause, MilestoneKind, PhaseKind, Source, Verdict},
};
use std::{fmt::Write, time::Duration};

/// Shorter stretches are told together: they are not where the time went.
const WORTH_A_LINE: Duration = Duration::from_millis(10);

/// The whole account of one pod's end. Pure: the same account and style give the same text.
///
/// `same`: other terminations of the same workload, for the advice about its connections.
pub fn explain(account: &PodTermination, same: &[&PodTermination], style: &Style) -> String {
    let mut text = header(account, style);
    waterfall(&mut text, account, style);
    title(&mut text, "Request", style);
    wrap(&mut text, &request(account), 2, "", style);
    title(&mut text, "Timeline", style);
    for step in steps(account) {
        wrap(&mut text, &step.line(account), 2, &step.offset(account), style);
    }
    title(&mut text, "Container exits", style);
    for death in &account.containers {
        container(&mut text, death, account, style);
        proof(&mut text, death, account, style);
    }
    if account.containers.is_empty() {
        wrap(&mut text, "No container of this pod was observed.", 2, "", style);
    }
    findings(&mut text, &account.findings, 2, style);
    if let Some(counted) = &account.traffic {
        title(&mut text, "Connections", style);
        traffic(&mut text, account, counted, same, style);
    }
    if account.ended > account.began {
        title(&mut text, "Time per phase", style);
        time_spent(&mut text, account, style);
    }
    title(&mut text, "Certainty", style);
    certainty(&mut text, account, style);
    text
}

fn title(text: &mut String, title: &str, style: &Style) {
    let _ = writeln!(text, "\n{}", style.paint(Paint::Strong, title));
}

fn request(account: &PodTermination) -> String {
    let began = utc(account.began_wall_ns, 3).unwrap_or_else(|| "an unknown time".into());
    let mut said = format!("Cause: {}.", cause_of(account));
    // What is missing for an unknown one stands at the top.
    if account.cause != Cause::Unknown && !account.cause_message.is_empty() {
        let _ = write!(said, " {}", account.cause_message);
    }
    if account.milestone(MilestoneKind::DeleteRequested).is_some() {
        let _ = write!(said, " The request reached this node at {began}.");
        if let Some(lag) = account.request_lag_seconds.filter(|lag| lag.abs() >= 0.001) {
            let when = if lag > 0.0 { "earlier" } else { "later" };
            let _ = write!(
                said,
                " By the apiserver's clock (whole seconds), the request was made {:.3} s {when}.",
                lag.abs()
            );
        }
    } else {
        let _ = write!(said, " No deletion request was observed; the report begins at {began}.");
    }
    if let Some(grace) = account.grace_seconds {
        let _ = write!(said, " The grace period was {grace} s");
        if let Some(shorter) = account.shortened_to_seconds {
            let _ = write!(said, "; a later request shortened it to {shorter} s from that time");
        }
        said.push('.');
    }
    said
}

/// A milestone, and whose it is.
struct Step<'a> {
    milestone: &'a Milestone,
    of: Option<&'a ContainerDeath>,
}

/// The milestones of the pod and of all its containers, each once, in order of time.
fn steps(account: &PodTermination) -> Vec<Step<'_>> {
    let critical = account.containers.iter().find(|one| account.critical.as_ref() == Some(&one.id));
    let of_containers = account.containers.iter().flat_map(|death| {
        death.milestones.iter().map(move |milestone| Step { milestone, of: Some(death) })
    });
    let mut steps: Vec<Step> = of_containers.collect();
    for milestone in &account.milestones {
        let is_listed = |step: &Step| {
            step.milestone.kind == milestone.kind && step.milestone.at == milestone.at
        };
        if !steps.iter().any(is_listed) {
            let of = if is_of_a_container(milestone.kind) { critical } else { None };
            steps.push(Step { milestone, of });
        }
    }
    let began_with: Vec<(BootTime, Option<_>)> = steps
        .iter()
        .filter(|step| {
            matches!(step.milestone.kind, MilestoneKind::PreStopBegan | MilestoneKind::TermSent)
        })
        .map(|step| (step.milestone.at, step.of.map(|death| death.id.clone())))
        .collect();
    // What it began with is a step of its own.
    steps.retain(|step| {
        let key = (step.milestone.at, step.of.map(|death| death.id.clone()));
        step.milestone.kind != MilestoneKind::StopBegan || !began_with.contains(&key)
    });
    steps.sort_by_key(|step| (step.milestone.at, step.milestone.kind));
    steps
}

fn is_of_a_container(kind: MilestoneKind) -> bool {
    use MilestoneKind::*;
    match kind {
        StopBegan | PreStopBegan | PreStopEnded | TermSent | TermHandled | KillSent | Exited
        | CgroupEmpty | ContainerExited => true,
        DeleteRequested | ListenerClosed | LastNewConnection | PostStartEnded | SandboxStopped
        | StatusReported | GraceShortened | FinalDelete | ObjectGone | SandboxRemoved
        | CgroupRemoved => false,
    }
}

impl Step<'_> {
    /// The column of times.
    fn offset(&self, account: &PodTermination) -> String {
        format!("{:>11}  ", offset(self.milestone.at, account))
    }

    fn line(&self, account: &PodTermination) -> String {
        let mut line = String::new();
        if let Some(death) = self.of.filter(|_| account.containers.len() > 1) {
            let _ = write!(line, "{}: ", container_name(death));
        }
        line.push_str(&self.what());
        let _ = write!(line, " ({}", source(self.milestone.source));
        if !self.milestone.uncertainty.is_zero() {
            let _ = write!(line, ", up to {} earlier", seconds(self.milestone.uncertainty));
        }
        line.push(')');
        line
    }

    fn what(&self) -> String {
        use MilestoneKind::*;
        let signal =
            self.of.map_or_else(|| "stop signal".into(), |of| signal::name(of.stop_signal));
        match self.milestone.kind {
            DeleteRequested => "the deletion request reached this node".into(),
            PostStartEnded => {
                "the postStart hook ended (the kubelet stops nothing before that)".into()
            }
            StopBegan => "the stop began".into(),
            PreStopBegan => match self.of.and_then(|death| death.pre_stop.as_ref()) {
                Some(given) => format!("the preStop hook began: {}", hook(given)),
                None => "the preStop hook began".into(),
            },
            PreStopEnded => "the preStop hook ended".into(),
            TermSent => format!("{signal} was sent to it"),
            TermHandled => format!("its handler of {signal} ran"),
            ListenerClosed => "its last listener was closed".into(),
            LastNewConnection => "the last new connection of a client came".into(),
            KillSent => match self.of.and_then(killer) {
                Some(killer) => format!("SIGKILL was sent to it by {killer}"),
                None => "SIGKILL was sent to it".into(),
            },
            Exited => match self.of.and_then(|death| death.exit) {
                Some(ExitStatus::Code(code)) => {
                    format!("its main process exited with code {code}")
                }
                Some(ExitStatus::Signal { signal: number, .. }) => {
                    format!("its main process was killed by {}", signal::name(number))
                }
                None => "its main process ended".into(),
            },
            CgroupEmpty => "its last process exited".into(),
            ContainerExited => "the runtime noticed the exit".into(),
            SandboxStopped => "the sandbox was stopped".into(),
            GraceShortened => "a later request shortened the grace period".into(),
            FinalDelete => "the kubelet was done; finalizers kept the object".into(),
            StatusReported => "the kubelet reported that no container runs any more".into(),
            ObjectGone => "the apiserver removed the pod object".into(),
            SandboxRemoved => "the runtime removed the sandbox".into(),
            CgroupRemoved => "the pod's cgroup was removed".into(),
        }
    }
}

fn hook(hook: &Hook) -> String {
    match hook {
        Hook::Exec(binary) => format!("exec {binary}"),
        Hook::HttpGet => "httpGet, by the kubelet".into(),
        Hook::TcpSocket => "tcpSocket, by the kubelet".into(),
        Hook::Sleep(seconds) => format!("sleep {seconds} s, by the kubelet"),
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Kernel => "kernel",
        Source::Cri => "runtime",
        Source::Api => "apiserver",
        Source::Proc => "/proc",
        Source::Kubelet => "kubelet",
        Source::Inferred => "inferred",
    }
}

fn offset(at: BootTime, account: &PodTermination) -> String {
    let offset = at.signed_since(account.began);
    let sign = if offset < 0 { '-' } else { '+' };
    format!("{sign}{}", seconds(Duration::from_nanos(offset.unsigned_abs())))
}

fn proof(text: &mut String, death: &ContainerDeath, account: &PodTermination, style: &Style) {
    if !death.proof.evidence.is_empty() {
        let _ = writeln!(text, "    {}", style.paint(Paint::Faint, "evidence:"));
    }
    for one in &death.proof.evidence {
        let line = format!("{}  {}", source(one.source), evidence::sentence(&one.kind));
        wrap(text, &line, 4, &format!("{:>11}  ", offset(one.at, account)), style);
    }
}

fn time_spent(text: &mut String, account: &PodTermination, style: &Style) {
    let total = account.total();
    let mut spent: Vec<(PhaseKind, Duration)> = PhaseKind::ALL
        .iter()
        .map(|kind| (*kind, account.phase(*kind)))
        .filter(|(_, time)| !time.is_zero())
        .collect();
    spent.sort_by_key(|(kind, time)| (std::cmp::Reverse(*time), *kind));
    let (shown, rest): (Vec<_>, Vec<_>) =
        spent.into_iter().partition(|(_, time)| *time >= WORTH_A_LINE);
    for (kind, time) in &shown {
        let name = words(kind.as_str());
        wrap(text, &format!("{name}: {}", spender(*kind)), 2, &share(*time, total), style);
    }
    if !rest.is_empty() {
        let names: Vec<_> = rest.iter().map(|(kind, _)| words(kind.as_str())).collect();
        let sum = rest.iter().map(|(_, time)| *time).sum();
        wrap(text, &names.join(", "), 2, &share(sum, total), style);
    }
    let own = account.phase(PhaseKind::PreStop) + account.phase(PhaseKind::Shutdown);
    if !own.is_zero() {
        let line = format!(
            "The workload itself (preStop and shutdown) took {} of {} ({} %).",
            seconds(own),
            seconds(total),
            percent(own, total)
        );
        wrap(text, &line, 2, "", style);
    }
}

fn share(time: Duration, total: Duration) -> String {
    format!("{:>10}  {:>3} %  ", seconds(time), percent(time, total))
}

fn percent(part: Duration, whole: Duration) -> u128 {
    let whole = whole.as_nanos().max(1);
    (part.as_nanos() * 100 + whole / 2) / whole
}

fn spender(kind: PhaseKind) -> &'static str {
    match kind {
        PhaseKind::PostStart => "the postStart hook, still running",
        PhaseKind::KubeletReaction => "the kubelet, until its first action",
        PhaseKind::PreStop => "the preStop hook",
        PhaseKind::StopCall => "kubelet and runtime, from the end of the hook to the stop signal",
        PhaseKind::SidecarWait => "the sidecar, waiting for the other containers to exit first",
        PhaseKind::Shutdown => "the workload, from the stop signal until it exited or was killed",
        PhaseKind::Kill => "the kernel, from SIGKILL to the exit",
        PhaseKind::Reap => "the kernel, until the container's last process exited",
        PhaseKind::RuntimeNotice => "the runtime, until it noticed the exit",
        PhaseKind::SandboxStop => "runtime and network plugin, stopping the sandbox",
        PhaseKind::Cleanup => "kubelet and apiserver: status, volumes, cgroup, deletion",
        PhaseKind::Finalizers => "the controllers that must remove the finalizers",
        PhaseKind::Unattributed => "unattributed: a milestone between two others is missing",
    }
}

fn certainty(text: &mut String, account: &PodTermination, style: &Style) {
    let steps = steps(account);
    let list = |kept: &dyn Fn(&Milestone) -> bool| -> Vec<String> {
        steps.iter().filter(|step| kept(step.milestone)).map(|step| step.name(account)).collect()
    };
    let before = text.len();
    let inferred = list(&|one| one.source == Source::Inferred);
    if !inferred.is_empty() {
        let line = format!("inferred from other evidence, not observed: {}", inferred.join(", "));
        wrap(text, &line, 2, "• ", style);
    }
    let between = list(&|one| one.source != Source::Inferred && !one.uncertainty.is_zero());
    if !between.is_empty() {
        let line = format!(
            "observed only by polling, so the time shown is the latest possible: {}",
            between.join(", ")
        );
        wrap(text, &line, 2, "• ", style);
    }
    for death in account.containers.iter().filter(|one| one.verdict == Verdict::Unknown) {
        let line =
            format!("no verdict on {}; see there for the missing evidence", container_name(death));
        wrap(text, &line, 2, "• ", style);
    }
    for phase in account.phases.iter().filter(|phase| !phase.is_exact()) {
        let line = format!(
            "{} took {} to {}; its end was not observed",
            words(phase.kind.as_str()),
            seconds(phase.took().saturating_sub(phase.uncertainty)),
            seconds(phase.took()),
        );
        wrap(text, &line, 2, "• ", style);
    }
    let missing = account.phase(PhaseKind::Unattributed);
    if !missing.is_zero() {
        let line = format!(
            "{} ({} %) cannot be attributed to any component",
            seconds(missing),
            percent(missing, account.total())
        );
        wrap(text, &line, 2, "• ", style);
    }
    not_final(text, account, style);
    warnings(text, account.truncated, &account.incomplete, 2, style);
    if text.len() == before {
        wrap(text, "Every step was observed as it happened; no evidence was lost.", 2, "", style);
    } else {
        let line = "All other times are when the event happened (kernel) or was reported \
                    (apiserver), measured by one clock.";
        wrap(text, line, 2, "", style);
    }
}

impl Step<'_> {
    /// For a list: whose, and which.
    fn name(&self, account: &PodTermination) -> String {
        let kind = words(self.milestone.kind.as_str()).replace("pre stop", "preStop");
        match self.of.filter(|_| account.containers.len() > 1) {
            Some(death) => printable(&format!("{}'s {kind}", container_name(death))),
            None => kind,
        }
    }
}
