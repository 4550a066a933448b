//! What a verdict or a phase asks for: one table for `explain` and the Events.

use super::{container_name, printable, seconds, total};
use crate::{
    Cause, ContainerDeath, Disposition, EvidenceKind, FindingKind, GRACE_FLOOR_SECONDS,
    MilestoneKind, PhaseKind, PodTermination, Target, Verdict, audit, signal,
};
use std::time::Duration;

/// A kubelet, a runtime and an apiserver need less than this for a phase of theirs.
const LONG: Duration = Duration::from_secs(10);

/// Of a container that SIGKILL does not end.
pub const UNKILLABLE: &str = "Further signals have no effect. A process that stays like this waits for the \
     kernel (often for a dead NFS server or block device); it exits when the operation completes or the node reboots.";

const SIGKILL: u8 = 9;
const KUBELET_LOG: &str = "The kubelet's log shows what it waited for; \
     `coroner explain POD --kubelet-log FILE` reads it.";
const RUNTIME_LOG: &str = "The container runtime's log shows what it waited for; for \
     the sandbox, it was most often the network plugin.";
const FORCED: &str = "Delete the pod without `--grace-period=0 --force`.";
const POST_START: &str =
    "Shorten the postStart hook (lifecycle.postStart): the kubelet stops nothing before it ends.";

/// What to do about the end of a container; `None`: nothing. `report`: of its pod, where it is known.
pub fn of_death(death: &ContainerDeath, report: Option<&PodTermination>) -> Option<String> {
    use Verdict as V;
    let stop = signal::name(death.stop_signal);
    let found = |kind| death.findings.iter().any(|finding| finding.kind == kind);
    let is_late = found(FindingKind::DeadlineMissed);
    let fix = match death.verdict {
        V::StopSignalBlocked | V::GraceExceeded if found(FindingKind::Frozen) => {
            "Its cgroup was frozen, and nothing frozen reacts to a signal: find what froze it (a \
             pause of the container, a checkpoint), and thaw it before the pod is stopped."
        }
        V::OomKilled => {
            "If the container reached its own limit, raise resources.limits.memory or reduce its \
             memory use. If the node was out of memory, set resources.requests.memory to what the \
             container needs."
        }
        V::Crashed => "The signal is the program's own: see the container's log and core dump.",
        V::ForceKilled => force_killed(death),
        V::PrestopExhaustedGrace => {
            "Shorten the preStop hook (lifecycle.preStop), or raise terminationGracePeriodSeconds \
             to more than the hook and the shutdown take together."
        }
        V::StopSignalIgnored => return Some(ignored(death, &stop)),
        V::StopSignalBlocked if target(death).is_some_and(|target| !target.blocked) => {
            return Some(format!(
                "The process did not block {stop}, it did not run: find what had stopped it \
                 (SIGSTOP, a debugger), or what it was waiting for in the kernel."
            ));
        }
        V::StopSignalBlocked => return Some(audit::of_blocked(&stop)),
        V::GraceExceeded => return Some(more_time(death)),
        V::Graceful | V::TerminatedByDefault | V::Completed | V::Failed if is_late => {
            late(death, report)?
        }
        V::TerminatedByDefault => return Some(audit::of_default(&stop)),
        V::Failed => "See the container's log: it ended on its own.",
        V::Unknown if found(FindingKind::UnsupportedRuntime) => return None,
        V::Unknown => "`coroner doctor` on the node shows which evidence the agent lacks.",
        V::Graceful | V::Completed => return None,
    };
    Some(fix.to_owned())
}

/// The state of the main process when the stop signal came.
fn target(death: &ContainerDeath) -> Option<&Target> {
    death.proof.evidence.iter().find_map(|one| match &one.kind {
        EvidenceKind::SignalGenerate { signal, target, .. } if *signal == death.stop_signal => {
            target.as_ref()
        }
        _ => None,
    })
}

fn ignored(death: &ContainerDeath, stop: &str) -> String {
    let sets_ign = target(death).is_some_and(|target| target.disposition == Disposition::Ignore);
    // By the name of PID 1 in the proof; a script has its own.
    let is_shell = ["(sh)", "(bash)", "(dash)", "(ash)", ".sh)"];
    let is_shell = is_shell.iter().any(|shell| death.proof.message.contains(shell));
    audit::of_ignored(stop, sets_ign, is_shell)
}

fn force_killed(death: &ContainerDeath) -> &'static str {
    match death.cause {
        _ if death.stop_signal == SIGKILL => {
            "Give the container a stop signal that it can handle: STOPSIGNAL in the image, or \
             lifecycle.stopSignal."
        }
        Cause::ForceDelete => FORCED,
        Cause::NodePressureEviction => {
            "Set the pod's resources.requests to what it needs, so that other pods are evicted \
             before it."
        }
        _ => "It had no time to shut down: find out why SIGKILL was sent.",
    }
}

/// Whose the grace was decides what helps.
fn more_time(death: &ContainerDeath) -> String {
    let grace = match death.grace_seconds {
        Some(..GRACE_FLOOR_SECONDS) => format!("the kubelet's minimum of {GRACE_FLOOR_SECONDS} s"),
        Some(seconds) => format!("the grace period of {seconds} s"),
        None => "the grace period".to_owned(),
    };
    let what = match death.pre_stop {
        Some(_) => "the preStop hook and the shutdown together",
        None => "the shutdown",
    };
    let granted = death.grace_seconds.and_then(|grace| u64::try_from(grace).ok());
    let in_full = used(death) >= granted.map(Duration::from_secs);
    match death.cause {
        _ if shortened(death).is_some() && !in_full => {
            "A later request shortened the grace period: delete the pod without a shorter \
             --grace-period, or shorten the shutdown."
                .into()
        }
        Cause::ForceDelete => FORCED.into(),
        cause @ (Cause::NodePressureEviction | Cause::NodeShutdown) => format!(
            "The pod's own grace period was overridden ({cause}): shorten {what} to less than \
             {grace}."
        ),
        _ => {
            format!("Shorten {what} to less than {grace}, or raise terminationGracePeriodSeconds.")
        }
    }
}

/// From the beginning of the stop to the end.
fn used(death: &ContainerDeath) -> Option<Duration> {
    let at = |kind| death.milestone(kind).map(|one| one.at);
    let ended = at(MilestoneKind::CgroupEmpty).max(at(MilestoneKind::Exited))?;
    Some(ended.since(at(MilestoneKind::StopBegan)?))
}

/// What was left of the grace when the stop began, if a later request shortened it.
pub(super) fn shortened(death: &ContainerDeath) -> Option<Duration> {
    let left = used(death)?.as_secs_f64() / death.grace_ratio?;
    let granted = Duration::from_secs(u64::try_from(death.grace_seconds?).ok()?);
    let left = Duration::try_from_secs_f64(left).ok()?;
    (left + Duration::from_secs(1) < granted).then_some(left)
}

/// It exited long after its deadline. The phases of a report show a stop that began late.
fn late(death: &ContainerDeath, report: Option<&PodTermination>) -> Option<&'static str> {
    let in_time = death.grace_ratio.is_some_and(|ratio| ratio <= 1.0);
    Some(match report {
        Some(report) if !report.phase(PhaseKind::PostStart).is_zero() => POST_START,
        Some(_) if in_time => return None,
        None if in_time => {
            "The stop itself began late: a postStart hook still ran (the kubelet stops nothing \
             before it ends), or the kubelet was busy or down."
        }
        _ => "No SIGKILL came in time: see the logs of the kubelet and the container runtime.",
    })
}

/// How long the termination took, which phase took most of it and why, and what to do.
pub(super) struct Headline<'a> {
    pub(super) text: String,
    /// The container whose proof it has.
    pub(super) of: Option<&'a ContainerDeath>,
    pub(super) fix: Option<String>,
}

impl<'a> Headline<'a> {
    /// `connections`: the advice about them.
    pub(super) fn of(report: &'a PodTermination, connections: Option<&str>) -> Self {
        let fix_of = |death: &ContainerDeath| of_death(death, Some(report));
        let critical = report.critical.as_ref();
        let critical = report.containers.iter().find(|death| Some(&death.id) == critical);
        // What surely passed in a phase: the end of one may not have been observed.
        let surely = |kind: &PhaseKind| -> Duration {
            let own = report.phases.iter().filter(|phase| phase.kind == *kind);
            own.map(|phase| phase.took.saturating_sub(phase.uncertainty)).sum()
        };
        let longest = PhaseKind::ALL.iter().copied().max_by_key(surely);
        let longest = longest.filter(|kind| !surely(kind).is_zero());
        let pod = printable(&format!("{}/{}", report.pod.namespace, report.pod.name));
        let mut text = format!("{pod} took {}", total(report));
        if let Some(kind) = longest {
            let time = report.phase(kind);
            text += &format!(": {}", seconds(time));
            if report.is_exact() {
                let share = 100.0 * time.as_secs_f64() / report.took.as_secs_f64();
                text += &format!(" ({share:.0} %)");
            }
            text += &format!(" {}", phase(kind, critical, report).0);
        }
        let explains = |death: &&ContainerDeath| match (death.verdict, longest) {
            (Verdict::PrestopExhaustedGrace, kind) => kind == Some(PhaseKind::PreStop),
            (
                Verdict::StopSignalIgnored | Verdict::StopSignalBlocked | Verdict::GraceExceeded,
                kind,
            ) => matches!(kind, Some(PhaseKind::Shutdown | PhaseKind::Kill)),
            _ => false,
        };
        if let Some(death) = critical.filter(explains) {
            // The hook's container is named already.
            let of_hook = longest == Some(PhaseKind::PreStop);
            let who = if of_hook { String::new() } else { format!("in {} ", of(death)) };
            text += &format!(", because {who}{}", proof(death));
            return Self { text, of: Some(death), fix: fix_of(death) };
        }
        text.push('.');
        let long = longest.filter(|kind| surely(kind) >= LONG);
        if let Some(fix) = long.and_then(|kind| phase(kind, critical, report).1) {
            return Self { text, of: None, fix: Some(fix.into()) };
        }
        // The verdicts are in the order of precedence.
        let to_fix = report.containers.iter().filter(|death| fix_of(death).is_some());
        let order = |death: &&ContainerDeath| {
            (death.verdict == Verdict::TerminatedByDefault, death.verdict)
        };
        if let Some(death) = to_fix.min_by_key(order) {
            text += &format!(" In {} {}", of(death), proof(death));
            return Self { text, of: Some(death), fix: fix_of(death) };
        }
        let is_plain = |death: &ContainerDeath| death.findings.is_empty();
        let is_plain = report.containers.iter().all(is_plain) && report.findings.is_empty();
        let fix = connections.or(match long {
            Some(PhaseKind::PreStop) => Some("None needed; to end sooner, shorten the hook."),
            Some(PhaseKind::Shutdown) => Some("None needed; to end sooner, shorten the shutdown."),
            _ => (is_plain && critical.is_some()).then_some("None needed."),
        });
        Self { text, of: None, fix: fix.map(str::to_owned) }
    }
}

fn of(death: &ContainerDeath) -> String {
    format!("container {}", container_name(death))
}

/// The proof as the rest of a sentence.
fn proof(death: &ContainerDeath) -> String {
    let message = &death.proof.message;
    let begins = ["The ", "How ", "Evidence "].iter().any(|word| message.starts_with(word));
    let (first, rest) = message.split_at(usize::from(begins));
    format!("{}{rest}", first.to_lowercase())
}

/// What took a phase, and what to do if that was long. `death`: the container that exited last.
fn phase(
    kind: PhaseKind,
    death: Option<&ContainerDeath>,
    report: &PodTermination,
) -> (String, Option<&'static str>) {
    use PhaseKind as P;
    let who = death.map_or_else(|| "the container".to_owned(), of);
    let stop = death.map_or_else(|| "stop signal".to_owned(), |one| signal::name(one.stop_signal));
    let killed = death.is_some_and(|one| one.milestone(MilestoneKind::KillSent).is_some());
    let restarted = report.findings.iter().any(|one| one.kind == FindingKind::KubeletRestarted);
    let (spent, fix) = match kind {
        P::PostStart => ("waiting for a postStart hook", POST_START),
        P::KubeletReaction if restarted => (
            "until the kubelet's first action",
            "The kubelet's log shows why it ended or was restarted.",
        ),
        P::KubeletReaction => ("until the kubelet's first action", KUBELET_LOG),
        P::PreStop => return (format!("in the preStop hook of {who}"), None),
        P::StopCall => (&*format!("from the end of the preStop hook to {stop}"), KUBELET_LOG),
        P::SidecarWait => {
            return (format!("while {who}, a sidecar, waited for the others to exit"), None);
        }
        P::Shutdown if killed => return ("waiting for SIGKILL".into(), None),
        P::Shutdown => return (format!("from {stop} until {who} exited"), None),
        P::Kill => (&*format!("from SIGKILL until {who} exited"), UNKILLABLE),
        P::Reap => (
            &*format!("until the last process of {who} exited"),
            "Processes of the container outlived its main process: stop them before it exits.",
        ),
        P::RuntimeNotice => ("until the runtime noticed the exit", RUNTIME_LOG),
        P::SandboxStop => ("until runtime and network plugin had stopped the sandbox", RUNTIME_LOG),
        P::Cleanup => (
            "in the cleanup by kubelet and apiserver (status, volumes, cgroup, object)",
            KUBELET_LOG,
        ),
        P::Finalizers => (
            "waiting for finalizers",
            "Find out why the controllers behind metadata.finalizers did not remove them sooner.",
        ),
        P::Unattributed => {
            return ("not attributed, because a milestone was not observed".into(), None);
        }
    };
    (spent.to_owned(), Some(fix))
}
