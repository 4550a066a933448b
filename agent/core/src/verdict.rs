//! Turns the evidence of one container's end into a verdict with its proof. The verdicts are one table
//! (`table.rs`).

mod evidence;
mod message;
mod pre_stop;
mod table;

use self::pre_stop::HookRun;
use super::{
    api::{DEFAULT_GRACE_SECONDS, DeletionRequest},
    process::{
        ContainerProcesses, ExecProcess, Init, Origin, SI_KERNEL, SIGKILL, SIGTERM, SentSignal,
        TakenSignal, is_runtime, queued_for_sigwait,
    },
    signal,
};
use crate::{ids::*, input::*, report::*};
use std::time::Duration;

/// What the kubelet and the runtime add to a grace period: the kubelet's floor of 2 s
/// (`minimumGracePeriodInSeconds`, kuberuntime_container.go), the rounds of its pod workers, and the
/// runtime's calls. At most 6 s were measured on real nodes.
pub const KUBELET_SLACK: Duration = Duration::from_secs(10);

/// The time between a hook and the kubelet's actions around it: from the ExecSync call to the hook's exec,
/// and from the hook's end to the stop signal. Measured: 10 to 30 ms on an idle node, 1.5 s on an overloaded
/// one.
pub const HOOK_GAP: Duration = Duration::from_secs(2);

/// The time from a deletion request to the kubelet's first action: 0.1 to 0.9 s on an idle node. The watch
/// may bring the request to the agent later than to the kubelet by as much.
const KUBELET_REACTION: Duration = Duration::from_secs(1);

/// How long a program that is not killed may take to exit after the stop signal.
const LONGEST_VOLUNTARY_EXIT: Duration = Duration::from_secs(600);

/// How soon a program exits that a signal other than its stop signal ends.
const LONGEST_DEFAULT_EXIT: Duration = Duration::from_secs(2);

/// SIGINT, SIGQUIT and SIGTERM.
pub(crate) const CONVENTIONAL_STOP_SIGNALS: [u8; 3] = [2, 3, SIGTERM];

/// Signals that a program causes itself.
const SELF_INFLICTED: [u8; 9] = [4, 5, 6, 7, 8, 11, 24, 25, 31];

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct VerdictInputs<'a> {
    pub processes: &'a ContainerProcesses,
    pub stop_signal: u8,
    pub kind: ContainerKind,
    /// The grace in force, seconds.
    pub grace_seconds: Option<i64>,
    /// The longest grace that any source reported, seconds: a stop may take this long.
    pub longest_grace_seconds: Option<i64>,
    /// The preStop hook in the spec.
    pub pre_stop: Option<&'a Hook>,
    pub request: Option<DeletionRequest>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Assessment {
    pub verdict: Verdict,
    pub proof: Proof,
    /// How the main process exited.
    pub exit: Option<ExitStatus>,
    /// Who sent the SIGKILL that ended it.
    pub killer: Option<ProcessRef>,
    /// The preStop hook was still running when the stop signal came.
    pub pre_stop_cut_off: bool,
    pub stop: Option<SentSignal>,
    /// The process of the preStop hook, where the kernel saw it.
    pub hook: Option<Tgid>,
    /// The agent started too late for a verdict.
    pub truncated: bool,
    /// The missing evidence that may hide a stop, where none was seen.
    pub unproven: Option<String>,
    /// Milestones from the kernel's records, in order of time.
    pub milestones: Vec<Milestone>,
    /// Losses that may hide evidence of this end.
    pub gaps: Vec<LossKind>,
    /// How the container is isolated from the host's kernel.
    pub isolated: Option<String>,
}

impl Assessment {
    pub fn stop_began(&self) -> Option<BootTime> {
        self.milestones.iter().find(|m| m.kind == MilestoneKind::StopBegan).map(|m| m.at.boot)
    }

    /// The verdict of a container that the host's kernel does not see into: signals and exits are the
    /// sandbox's machinery. Only the empty cgroup still shows when the container was over.
    #[must_use]
    pub fn unseen(self, how: String) -> Self {
        let Self { mut milestones, truncated, .. } = self;
        milestones.retain(|m| m.kind == MilestoneKind::CgroupEmpty);
        let why = lower_first(&how);
        let message = format!("How it ended is not known: {why}.");
        let proof = Proof { message, evidence: Vec::new() };
        let (unproven, isolated) = (Some(why), Some(how));
        Self { proof, milestones, truncated, unproven, isolated, ..Self::default() }
    }
}

/// The signals and exits that the rules evaluate.
struct DeathFacts<'a> {
    case: VerdictInputs<'a>,
    /// The earliest moment at which this end may have begun.
    since: BootTime,
    exit: Option<(BootTime, ExitStatus)>,
    stop: Option<&'a SentSignal>,
    taken: Option<TakenSignal>,
    kill: Option<&'a SentSignal>,
    kernel_kill: Option<&'a SentSignal>,
    hook: Option<HookRun>,
}

pub fn assess(case: VerdictInputs<'_>) -> Assessment {
    let facts = DeathFacts::new(case);
    let (end, response) = (facts.end(), facts.response());
    let (mut verdict, requires) = facts.row(&end, response);
    let mut message = facts.message(&end, response);
    let late = facts.late(requires);
    let truncated = late.is_some();
    if let Some(missing) = late.or_else(|| facts.hidden_by_loss(requires)) {
        message = format!(
            "Evidence that may contradict this is missing ({missing}); without it, the verdict would be \
             {verdict}: {message}"
        );
        verdict = Verdict::Unknown;
    }
    let mut evidence = facts.evidence();
    evidence.sort_by_key(|e| e.at);
    Assessment {
        verdict,
        proof: Proof { message, evidence },
        exit: facts.exit.map(|(_, status)| status),
        killer: facts.fatal_kill().map(|kill| kill.signal.sender.clone()),
        pre_stop_cut_off: facts.hook_was_cut_off(),
        stop: facts.stop.cloned(),
        hook: facts.hook.as_ref().and_then(|hook| hook.tgid),
        truncated,
        unproven: facts.stop_may_be_missing(),
        milestones: facts.milestones(),
        gaps: facts.gaps().collect(),
        isolated: None,
    }
}

impl<'a> DeathFacts<'a> {
    fn new(case: VerdictInputs<'a>) -> Self {
        let processes = case.processes;
        let exit = processes.exit();
        let before_exit = |s: &&SentSignal| exit.is_none_or(|(at, _)| s.at <= at);
        let killed_at = processes
            .sent()
            .filter(before_exit)
            .find(|s| s.from_outside() && s.signal.signal == SIGKILL)
            .map(|s| s.at);
        let longest = longest_grace(&case) + KUBELET_SLACK;
        let since = match (killed_at, exit) {
            (Some(killed), _) => killed - longest,
            (None, Some((left, _))) => left - longest.max(LONGEST_VOLUNTARY_EXIT),
            (None, None) => BootTime(0),
        };
        // The last run of stop signals: earlier ones do not belong to this stop. The runtime's own signal may
        // precede SIGKILL by any time, because the grace may be longer than known. The time of the deletion
        // request does not matter: the watch may be late, or the stop may have begun before.
        let mut next: Option<&SentSignal> = None;
        let stops = processes.sent().filter(before_exit).filter(|s| {
            s.from_outside() && s.signal.signal == case.stop_signal && s.signal.signal != SIGKILL
        });
        for sent in stops.rev() {
            let belongs = match next {
                Some(next) => next.at.since(sent.at) <= longest,
                None => {
                    sent.at >= since || killed_at.is_some() && is_runtime(&sent.signal.sender.comm)
                }
            };
            if !belongs {
                break;
            }
            next = Some(sent);
        }
        let stop = next.or_else(|| another_stop(case, exit?, longest));
        let since = stop.map_or(since, |stop| since.min(stop.at));
        let taken = stop.and_then(|stop| handled(processes, stop));
        let kills = |by_kernel: bool| {
            processes.sent().filter(before_exit).find(move |s| {
                s.signal.signal == SIGKILL
                    && (s.signal.code == SI_KERNEL) == by_kernel
                    && (by_kernel || s.from_outside())
            })
        };
        let mut facts = Self {
            case,
            since,
            exit,
            stop,
            taken,
            kill: kills(false),
            kernel_kill: kills(true),
            hook: None,
        };
        facts.hook = facts.find_hook();
        facts
    }

    /// When the pod's deletion was requested.
    fn requested(&self) -> Option<BootTime> {
        self.case.request.map(|request| request.date)
    }

    /// The stop signal, as often as it was sent until the container ended: the kubelet retries, a restarted runtime
    /// repeats.
    fn stops(&self) -> impl DoubleEndedIterator<Item = &'a SentSignal> {
        let (first, until) = (self.stop, self.exit.map(|(at, _)| at));
        self.case.processes.sent().filter(move |sent| {
            first.is_some_and(|stop| sent.signal.signal == stop.signal.signal && sent.at >= stop.at)
                && until.is_none_or(|until| sent.at <= until)
        })
    }

    /// The stop signal sent by the node, not by a process that had entered the container, such as the hook.
    fn stop_by_node(&self) -> Option<&'a SentSignal> {
        self.stops().find(|sent| sent.origin == Origin::Outside)
    }

    /// The signal that was to stop the container.
    fn stop_signal(&self) -> u8 {
        self.stop.map_or(self.case.stop_signal, |stop| stop.signal.signal)
    }

    fn killed(&self) -> bool {
        matches!(self.exit, Some((_, ExitStatus::Signal { signal: SIGKILL, .. })))
    }

    /// The SIGKILL that ended the container.
    fn fatal_kill(&self) -> Option<&'a SentSignal> {
        self.kill.or(self.kernel_kill).or(self.inner_kill()).filter(|_| self.killed())
    }

    fn hook_was_cut_off(&self) -> bool {
        let Some((hook, stop)) = self.hook.as_ref().zip(self.stop_by_node()) else { return false };
        // The record of the hook's exit may be lost.
        hook.ended.map_or_else(|| self.gaps().next().is_none(), |at| at > stop.at)
    }

    /// Seconds of the grace that preStop left for the stop signal. The kubelet subtracts preStop's time in
    /// whole seconds.
    fn left_by_hook(&self) -> Option<i64> {
        let (hook, stop) = (self.hook.as_ref()?, self.stop_by_node()?);
        let grace = self.case.grace_seconds?;
        let end = hook.ended.map_or(stop.at, |at| at.min(stop.at));
        let ran = end.since(hook.began);
        let budget = Duration::from_secs(u64::try_from(grace).ok()?);
        if self.hook_was_cut_off() && ran + HOOK_GAP >= budget {
            return Some(0);
        }
        let used = i64::try_from(ran.as_secs()).ok()?;
        (used > 0).then_some(grace - used)
    }

    fn sent_from_outside(&self, signal: u8) -> impl Iterator<Item = &'a SentSignal> {
        self.case.processes.sent().filter(move |s| s.from_outside() && s.signal.signal == signal)
    }

    fn init_name(&self) -> String {
        let processes = self.case.processes;
        let target = || processes.sent().next().map(|sent| &sent.signal.target.comm);
        match &processes.init {
            Some(Init { comm, is_pid_one: true, .. }) => format!("PID 1 ({comm})"),
            Some(Init { comm, .. }) => format!("the main process ({comm})"),
            None => {
                target().map_or("the main process".into(), |c| format!("the main process ({c})"))
            }
        }
    }
}

/// The delivery of this signal to a handler of the main process.
fn handled(processes: &ContainerProcesses, sent: &SentSignal) -> Option<TakenSignal> {
    let by_handler = |t: &TakenSignal| {
        t.signal == sent.signal.signal && t.disposition == Disposition::Handler && t.at >= sent.at
    };
    processes.taken().find(by_handler)
}

/// A signal other than the container's stop signal that ended the container: conventionally a stop signal,
/// delivered just before the exit, or sent by the preStop hook (SIGQUIT for nginx). SIGHUP is for reloads;
/// SIGQUIT to a JVM only dumps threads.
fn another_stop<'a>(
    case: VerdictInputs<'a>,
    (left, status): (BootTime, ExitStatus),
    longest: Duration,
) -> Option<&'a SentSignal> {
    let ExitStatus::Code(_) = status else { return None };
    let processes = case.processes;
    let taken =
        |sent: &SentSignal| handled(processes, sent).is_some() || queued_for_sigwait(&sent.signal);
    let by_hook = |sent: &SentSignal| {
        let root = processes.root(sent.signal.sender.tgid, sent.at);
        let is_handler = |i: ExecProcess| match case.pre_stop {
            Some(Hook::Exec(binary)) => Some(i.tgid) == root && i.is_named(binary),
            _ => false,
        };
        root.is_some() && processes.exec_processes().any(is_handler)
    };
    let ends = |sent: &&SentSignal| {
        let window = if by_hook(sent) { longest } else { LONGEST_DEFAULT_EXIT };
        sent.from_outside()
            && CONVENTIONAL_STOP_SIGNALS.contains(&sent.signal.signal)
            && sent.signal.signal != case.stop_signal
            && (left - window..=left).contains(&sent.at)
            && taken(sent)
    };
    let last = processes.sent().rev().find(ends)?;
    // The container took the same signal earlier and kept running.
    let ended_nothing = |sent: &SentSignal| {
        sent.signal.signal == last.signal.signal && left.since(sent.at) > longest && taken(sent)
    };
    (by_hook(last) || !processes.sent().any(ended_nothing)).then_some(last)
}

/// The longest time from stop to SIGKILL.
fn longest_grace(case: &VerdictInputs<'_>) -> Duration {
    seconds(case.longest_grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).max(GRACE_FLOOR_SECONDS))
}

fn ended_with(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("code {code}"),
        ExitStatus::Signal { signal, .. } => signal::name(signal),
    }
}

fn lower_first(message: &str) -> String {
    let mut chars = message.chars();
    chars.next().into_iter().flat_map(char::to_lowercase).chain(chars).collect()
}
