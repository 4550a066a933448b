//! Evidence of one container's end → verdict, with what proves it. The verdicts themselves are one table
//! (`table.rs`).

mod absence;
mod evidence;
mod table;

use self::table::Row;
use super::{
    ids::Tgid,
    input::{ContainerKind, Disposition, ExitStatus, Hook, LossKind, Sender},
    object::DEFAULT_GRACE_SECONDS,
    observation::{Milestone, MilestoneKind, Proof, Verdict},
    pre_stop::{HookRun, Search},
    process::{
        Injected, Origin, Processes, SI_KERNEL, SIGKILL, SIGTERM, Sent, Taken, is_runtime, kept,
    },
    signal,
    time::BootTime,
};
use std::time::Duration;

/// The kubelet never gives a container less than this before SIGKILL
/// (`minimumGracePeriodInSeconds`, kuberuntime_manager.go).
pub const GRACE_FLOOR_SECONDS: i64 = 2;

/// A program that nobody kills may take this long to leave after the stop signal.
const UNHURRIED: Duration = Duration::from_secs(600);

/// The kubelet's clock runs from its ExecSync call, ours from the hook's exec: 1.5 s were seen on a node under
/// load. (It sends the stop signal while the hook runs only if the hook has used up the grace,
/// `executePreStopHook`, kuberuntime_container.go.)
const EXEC_START: Duration = Duration::from_secs(2);

/// What kubelet and runtime add to the grace before SIGKILL.
const LONGEST_STOP_CALL: Duration = Duration::from_secs(4);

/// A program that is ended by a signal that is not its stop signal leaves as soon as this.
const JUST_BEFORE: Duration = Duration::from_secs(2);

/// SIGINT, SIGQUIT and SIGTERM.
pub(crate) const CONVENTIONAL: [u8; 3] = [2, 3, SIGTERM];

/// Signals that a program brings upon itself.
const OWN_MAKING: [u8; 9] = [4, 5, 6, 7, 8, 11, 24, 25, 31];

/// All that the verdict rests on.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What the kernel told.
    pub processes: &'a Processes,
    /// The signal that is to stop it.
    pub stop_signal: u8,
    /// Its kind.
    pub kind: ContainerKind,
    /// The grace in force, seconds.
    pub grace_seconds: Option<i64>,
    /// The longest grace that anybody ever told, seconds: a stop may take so long.
    pub longest_grace_seconds: Option<i64>,
    /// preStop by the spec.
    pub pre_stop: Option<&'a Hook>,
    /// When the pod's deletion was requested.
    pub requested: Option<BootTime>,
    /// The earliest moment at which the kubelet may have heard of that.
    pub earliest_request: Option<BootTime>,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Judgement {
    /// How it died.
    pub verdict: Verdict,
    /// What proves it.
    pub proof: Proof,
    /// How its main process ended.
    pub exit: Option<ExitStatus>,
    /// Who sent the SIGKILL that ended it.
    pub killer: Option<Sender>,
    /// The preStop hook was still running when the stop signal came.
    pub pre_stop_cut_off: bool,
    /// The signal that was to stop it, where one was sent.
    pub stop: Option<Sent>,
    /// The process of its preStop hook, where the kernel saw it.
    pub hook: Option<Tgid>,
    /// The agent came too late to tell.
    pub truncated: bool,
    /// What is missing that may hold a stop, where none was seen.
    pub unproven: Option<String>,
    /// What the kernel knows of its milestones, in order of time.
    pub milestones: Vec<Milestone>,
    /// Losses that may hide something of its end.
    pub losses: Vec<LossKind>,
}

impl Judgement {
    /// When a stop of it began, if one did.
    pub fn stop_began(&self) -> Option<BootTime> {
        self.milestones.iter().find(|m| m.kind == MilestoneKind::StopBegan).map(|m| m.at)
    }

    /// Of a container that the host's kernel does not see into, for the reason given: all that was
    /// concluded from signals and exits is of the sandbox' machinery. That its cgroup emptied
    /// still says when it was over.
    #[must_use]
    pub fn unseen(self, why: &str) -> Self {
        let mut milestones = self.milestones.clone();
        milestones.retain(|m| m.kind == MilestoneKind::CgroupEmpty);
        let sentence = format!("How it ended is not known: {}.", lower_first(why));
        let proof = Proof { sentence, evidence: Vec::new() };
        Self {
            unproven: Some(lower_first(why)),
            verdict: Verdict::Unknown,
            proof,
            exit: None,
            killer: None,
            stop: None,
            hook: None,
            pre_stop_cut_off: false,
            milestones,
            losses: Vec::new(),
            ..self
        }
    }
}

/// The signals and ends that the rules look at.
struct Facts<'a> {
    case: Case<'a>,
    /// The earliest moment at which this end may have begun.
    since: BootTime,
    exit: Option<(BootTime, ExitStatus)>,
    stop: Option<&'a Sent>,
    taken: Option<Taken>,
    kill: Option<&'a Sent>,
    kernel_kill: Option<&'a Sent>,
    hook: Option<HookRun>,
}

/// Judges one container's end.
pub fn judge(case: Case<'_>) -> Judgement {
    let facts = Facts::of(case);
    let Row { mut verdict, requires, mut message } = facts.row();
    let late = facts.late(requires);
    let truncated = late.is_some();
    if let Some(missing) = late.or_else(|| facts.lost(requires)) {
        message = format!(
            "Evidence that may say otherwise is missing ({missing}); without it, it looks \
             {verdict}: {message}"
        );
        verdict = Verdict::Unknown;
    }
    let mut evidence = facts.evidence();
    evidence.sort_by_key(|e| e.at);
    Judgement {
        verdict,
        proof: Proof { sentence: message, evidence },
        exit: facts.exit.map(|(_, status)| status),
        killer: facts.fatal_kill().map(|kill| kill.signal.sender.clone()),
        pre_stop_cut_off: facts.hook_was_cut_off(),
        stop: facts.stop.cloned(),
        hook: facts.hook.as_ref().and_then(|hook| hook.tgid),
        truncated,
        unproven: facts.stop_may_be_missing(),
        milestones: facts.milestones(),
        losses: facts.losses().collect(),
    }
}

impl<'a> Facts<'a> {
    fn of(case: Case<'a>) -> Self {
        let processes = case.processes;
        let exit = processes.exit();
        let before_exit = |s: &&Sent| exit.is_none_or(|(at, _)| s.at <= at);
        let killed_at = processes
            .sent()
            .filter(before_exit)
            .find(|s| s.from_outside() && s.signal.signal == SIGKILL)
            .map(|s| s.at);
        let longest = Duration::from_secs(longest_grace(&case)) + LONGEST_STOP_CALL;
        let since = match (killed_at, exit) {
            (Some(killed), _) => killed - longest,
            (None, Some((left, _))) => left - longest.max(UNHURRIED),
            (None, None) => BootTime(0),
        };
        // The last run of them: what somebody sent long before has nothing to do with this stop. Only the
        // runtime's tool may have sent it any time before a SIGKILL: the grace may be longer than is known.
        // When the pod's deletion was requested decides nothing, for the watch may be late and a stop may
        // have begun before it.
        let mut next: Option<&Sent> = None;
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

    fn find_hook(&self) -> Option<HookRun> {
        let case = &self.case;
        let search = Search {
            spec: case.pre_stop?,
            processes: case.processes,
            kind: case.kind,
            requested: case.requested,
            earliest_request: case.earliest_request,
            grace_seconds: case.grace_seconds,
            stop: self.stop_by_node().map(|s| s.at),
            exit: self.exit.map(|(at, _)| at),
        };
        search.run()
    }

    /// The stop signal as the node sent it, and not a process that had entered the container, such as the hook.
    fn stop_by_node(&self) -> Option<&'a Sent> {
        let stop = self.stop?;
        let until = self.exit.map(|(at, _)| at);
        let same = |s: &&Sent| s.signal.signal == stop.signal.signal && s.at >= stop.at;
        let sent = self.case.processes.sent().filter(same);
        let mut in_time = sent.filter(|s| until.is_none_or(|until| s.at <= until));
        in_time.find(|s| s.origin == Origin::Outside)
    }

    /// The signal that was to stop it.
    fn stop_signal(&self) -> u8 {
        self.stop.map_or(self.case.stop_signal, |stop| stop.signal.signal)
    }

    fn killed(&self) -> bool {
        matches!(self.exit, Some((_, ExitStatus::Signal { signal: SIGKILL, .. })))
    }

    /// The SIGKILL that ended it.
    fn fatal_kill(&self) -> Option<&'a Sent> {
        self.kill.or(self.kernel_kill).or(self.inner_kill()).filter(|_| self.killed())
    }

    fn hook_was_cut_off(&self) -> bool {
        match (&self.hook, self.stop_by_node()) {
            // An end that was not seen may have been lost.
            (Some(hook), Some(stop)) => match hook.ended {
                Some(at) => at > stop.at,
                None => self.losses().next().is_none(),
            },
            _ => false,
        }
    }

    /// Seconds of the grace that were left for the stop signal, after the kubelet's own
    /// arithmetic: preStop's time is subtracted in whole seconds.
    fn left_by_hook(&self) -> Option<i64> {
        let (hook, stop) = (self.hook.as_ref()?, self.stop_by_node()?);
        let grace = self.case.grace_seconds?;
        let end = hook.ended.map_or(stop.at, |at| at.min(stop.at));
        let ran = end.since(hook.began);
        let budget = Duration::from_secs(u64::try_from(grace).ok()?);
        if self.hook_was_cut_off() && ran + EXEC_START >= budget {
            return Some(0);
        }
        let used = i64::try_from(ran.as_secs()).ok()?;
        (used > 0).then_some(grace - used)
    }

    fn sent_from_outside(&self, signal: u8) -> bool {
        self.case.processes.sent().any(|s| s.from_outside() && s.signal.signal == signal)
    }

    fn init_name(&self) -> String {
        let processes = self.case.processes;
        let comm = processes
            .init
            .as_ref()
            .map(|init| init.comm.as_str())
            .or_else(|| processes.sent().next().map(|sent| sent.signal.target.comm.as_str()));
        let pid_one = processes.init.as_ref().is_some_and(|init| init.is_pid_one);
        match (comm, pid_one) {
            (Some(comm), true) => format!("PID 1 ({comm})"),
            (Some(comm), false) => format!("the main process ({comm})"),
            (None, _) => "the main process".into(),
        }
    }
}

/// When a handler of the main process took this signal.
fn handled(processes: &Processes, sent: &Sent) -> Option<Taken> {
    let by_handler = |t: &Taken| {
        t.signal == sent.signal.signal && t.disposition == Disposition::Handler && t.at >= sent.at
    };
    processes.taken().find(by_handler)
}

/// A signal that ends a program by convention, is not this container's stop signal, and was taken, just before it
/// ended by itself, or by its preStop hook, which may end nginx by SIGQUIT. (SIGHUP is for reloads; SIGQUIT to a
/// JVM is for thread dumps, and ends nothing.)
fn another_stop<'a>(
    case: Case<'a>,
    (left, status): (BootTime, ExitStatus),
    longest: Duration,
) -> Option<&'a Sent> {
    let ExitStatus::Code(_) = status else { return None };
    let processes = case.processes;
    let taken = |sent: &Sent| handled(processes, sent).is_some() || kept(&sent.signal);
    let by_hook = |sent: &Sent| {
        let root = processes.root(sent.signal.sender.tgid, sent.at);
        let is_handler = |i: Injected| match case.pre_stop {
            Some(Hook::Exec(binary)) => Some(i.tgid) == root && i.is_named(binary),
            _ => false,
        };
        root.is_some() && processes.injected().any(is_handler)
    };
    let ends = |sent: &&Sent| {
        let window = if by_hook(sent) { longest } else { JUST_BEFORE };
        sent.from_outside()
            && CONVENTIONAL.contains(&sent.signal.signal)
            && sent.signal.signal != case.stop_signal
            && (left - window..=left).contains(&sent.at)
            && taken(sent)
    };
    let last = processes.sent().rev().find(ends)?;
    // It took the same before and went on.
    let ended_nothing = |sent: &Sent| {
        sent.signal.signal == last.signal.signal && left.since(sent.at) > longest && taken(sent)
    };
    (by_hook(last) || !processes.sent().any(ended_nothing)).then_some(last)
}

/// The longest that a stop of it may take until SIGKILL, seconds.
fn longest_grace(case: &Case<'_>) -> u64 {
    let grace = case.longest_grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    u64::try_from(grace.max(GRACE_FLOOR_SECONDS)).unwrap_or_default()
}

fn ended_with(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("code {code}"),
        ExitStatus::Signal { signal, .. } => signal::name(signal),
    }
}

fn lower_first(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().into_iter().flat_map(char::to_lowercase).chain(chars).collect()
}

/// Seconds as a person reads them: tenths above one, milliseconds below.
pub fn secs(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s >= 1.0 { format!("{s:.1} s") } else { format!("{:.0} ms", s * 1000.0) }
}
