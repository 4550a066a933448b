//! Evidence of one container's life → verdict, with what proves it. The order of the rules is the
//! order of precedence of [`Verdict`].

use super::{
    ids::Tgid,
    input::{
        ContainerKind, Disposition, ExitStatus, Hook, LossKind, Sender, SignalGenerated,
        SignalResult,
    },
    observation::{Evidence, Milestone, MilestoneKind, Proof, Source, Verdict},
    pre_stop::{HookRun, Search},
    process::{Processes, SI_KERNEL, SIGKILL, Sent, Taken, kept, thrown_away},
    signal,
    time::BootTime,
};
use std::time::Duration;

/// The kubelet never gives a container less than this before SIGKILL
/// (`minimumGracePeriodInSeconds`, kuberuntime_manager.go).
pub const GRACE_FLOOR_SECONDS: i64 = 2;

/// Where nobody says otherwise (`DefaultTerminationGracePeriodSeconds`, core/v1).
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// A program that nobody kills may take this long to leave after the stop signal.
const UNHURRIED: Duration = Duration::from_secs(600);

/// The kubelet's clock runs from its ExecSync call, ours from the hook's exec.
const EXEC_START: Duration = Duration::from_millis(500);

/// What kubelet and runtime add to the grace before SIGKILL.
const LONGEST_STOP_CALL: Duration = Duration::from_secs(4);

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
    /// Of a container that the host's kernel does not see into, for the reason given: all that was
    /// concluded from signals and exits is of the sandbox' machinery. That its cgroup emptied
    /// still says when it was over.
    #[must_use]
    pub fn unseen(self, why: &str) -> Self {
        let mut milestones = self.milestones.clone();
        milestones.retain(|m| m.kind == MilestoneKind::Empty);
        let sentence = format!("How it ended is not known: {}.", lower_first(why));
        let proof = Proof { sentence, evidence: Vec::new() };
        Self {
            unproven: Some(lower_first(why)),
            verdict: Verdict::Unknown,
            proof,
            exit: None,
            killer: None,
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
    let (mut verdict, mut sentence) = facts.decide();
    let absence = facts.rests_on(verdict);
    let late = match absence {
        Absence::Stop => facts.exit.and_then(|(at, _)| facts.came_late(at, "its end")),
        Absence::Hook => facts.stop.and_then(|stop| facts.came_late(stop.at, "the stop signal")),
        _ => None,
    };
    let truncated = late.is_some();
    if let Some(missing) = late.or_else(|| facts.lost(absence)) {
        sentence = format!(
            "Evidence that may say otherwise is missing ({missing}); without it, it looks \
             {verdict}: {sentence}"
        );
        verdict = Verdict::Unknown;
    }
    let mut evidence = facts.evidence();
    evidence.sort_by_key(|e| e.at);
    Judgement {
        verdict,
        proof: Proof { sentence, evidence },
        exit: facts.exit.map(|(_, status)| status),
        killer: facts
            .kill
            .or(facts.kernel_kill)
            .or(facts.inner_kill())
            .filter(|_| facts.killed())
            .map(|kill| kill.signal.sender.clone()),
        pre_stop_cut_off: facts.hook_was_cut_off(),
        truncated,
        unproven: facts.stop_may_be_missing(),
        milestones: facts.milestones(),
        losses: facts.losses().collect(),
    }
}

/// What must not have been missed for a verdict to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// It rests on what was seen.
    Nothing,
    /// Nobody had sent it that signal.
    Signal,
    /// Nobody had told it to stop.
    Stop,
    /// It did not take the stop signal.
    Delivery,
    /// No preStop hook had used up the grace.
    Hook,
}

impl<'a> Facts<'a> {
    fn of(case: Case<'a>) -> Self {
        let processes = case.processes;
        let exit = processes.exit();
        let before_exit = |s: &&Sent| exit.is_none_or(|(at, _)| s.at <= at);
        let killed_at = processes
            .sent()
            .filter(before_exit)
            .find(|s| s.from_outside && s.signal.signal == SIGKILL)
            .map(|s| s.at);
        // What somebody sent long before has nothing to do with this stop.
        let since = case.earliest_request.unwrap_or_else(|| {
            let longest = Duration::from_secs(longest_grace(&case)) + LONGEST_STOP_CALL;
            match (killed_at, exit) {
                (Some(killed), _) => killed - longest,
                (None, Some((left, _))) => left - longest.max(UNHURRIED),
                (None, None) => BootTime(0),
            }
        });
        let stop = processes.sent().filter(before_exit).find(|s| {
            s.from_outside
                && s.at >= since
                && s.signal.signal == case.stop_signal
                && s.signal.signal != SIGKILL
        });
        let taken = stop.and_then(|stop| {
            processes.taken().find(|t| {
                t.signal == case.stop_signal
                    && t.disposition == Disposition::Handler
                    && t.at >= stop.at
            })
        });
        let kills = |by_kernel: bool| {
            processes.sent().filter(before_exit).find(move |s| {
                s.signal.signal == SIGKILL
                    && (s.signal.code == SI_KERNEL) == by_kernel
                    && (by_kernel || s.from_outside)
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
            stop: self.stop.map(|s| s.at),
            exit: self.exit.map(|(at, _)| at),
        };
        search.run()
    }

    fn rests_on(&self, verdict: Verdict) -> Absence {
        let stop = self.stop.map(|s| &s.signal);
        let by_default = |s: &SignalGenerated| {
            s.state.is_some_and(|s| s.group_exit && s.disposition == Disposition::Default)
        };
        match verdict {
            Verdict::OomKilled | Verdict::PrestopExhaustedGrace | Verdict::Unknown => {
                Absence::Nothing
            }
            Verdict::Crashed => Absence::Signal,
            _ if self.hook_may_have_exhausted() => Absence::Hook,
            Verdict::Ignored | Verdict::Overran | Verdict::Graceful => Absence::Nothing,
            Verdict::ForceKilled => Absence::Stop,
            Verdict::Blocked if self.kill.is_some_and(|k| k.signal.state.is_some()) => {
                Absence::Nothing
            }
            Verdict::Blocked => Absence::Delivery,
            Verdict::TerminatedByDefault if stop.is_none_or(by_default) => Absence::Nothing,
            Verdict::TerminatedByDefault => Absence::Delivery,
            Verdict::Completed | Verdict::Failed if stop.is_some() => Absence::Delivery,
            Verdict::Completed | Verdict::Failed => Absence::Stop,
        }
    }

    /// The losses that may hide something of this end.
    fn losses(&self) -> impl Iterator<Item = LossKind> {
        self.case.processes.losses.since(self.since)
    }

    /// The losses that may hide it.
    fn lost(&self, absence: Absence) -> Option<String> {
        let losses = self.losses();
        let hiding: Vec<&str> = match absence {
            Absence::Nothing => return None,
            Absence::Signal | Absence::Stop => {
                losses.filter(|l| !l.spares_what_decides()).map(LossKind::as_str).collect()
            }
            Absence::Delivery | Absence::Hook => losses.map(LossKind::as_str).collect(),
        };
        (!hiding.is_empty()).then(|| hiding.join(", "))
    }

    /// It happened so soon after the agent found the container that a stop may have been under
    /// way by then.
    fn came_late(&self, at: BootTime, what: &str) -> Option<String> {
        let found = self.case.processes.found?;
        let longest = longest_grace(&self.case);
        if self.case.requested.is_some_and(|requested| requested < found) {
            return Some("it was being deleted when the agent came".into());
        }
        let watched = at.since(found);
        (watched < Duration::from_secs(longest) + LONGEST_STOP_CALL)
            .then(|| format!("the agent began to watch it only {} before {what}", secs(watched)))
    }

    /// The spec has a hook with a process, none was seen, and the time until the stop signal
    /// would have been enough for it to use up the grace.
    fn hook_may_have_exhausted(&self) -> bool {
        let Some(stop) = self.stop.filter(|_| self.hook.is_none()) else { return false };
        let grace = self.case.grace_seconds.and_then(|s| u64::try_from(s).ok());
        let enough = |requested: BootTime| {
            let spent = stop.at.since(requested) + Duration::from_secs(2);
            grace.is_none_or(|grace| spent >= Duration::from_secs(grace))
        };
        matches!(self.case.pre_stop, Some(Hook::Exec(_))) && self.case.requested.is_none_or(enough)
    }

    /// Why there may have been a stop although none was seen.
    fn stop_may_be_missing(&self) -> Option<String> {
        match self.exit {
            _ if self.stop.is_some() => None,
            Some((at, _)) => self
                .came_late(at, "its end")
                .or_else(|| Some(format!("evidence was lost ({})", self.lost(Absence::Stop)?))),
            None if self.case.processes.never_started().is_some() => None,
            None => Some("the kernel's record of its exit is missing".into()),
        }
    }

    fn killed(&self) -> bool {
        matches!(self.exit, Some((_, ExitStatus::Signal { signal: SIGKILL, .. })))
    }

    fn hook_was_cut_off(&self) -> bool {
        match (&self.hook, self.stop) {
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
        let (hook, stop) = (self.hook.as_ref()?, self.stop?);
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

    fn decide(&self) -> (Verdict, String) {
        let name = self.init_name();
        let stop_name = signal::name(self.case.stop_signal);
        let Some((exit_at, exit)) = self.exit else {
            if let Some((_, status)) = self.case.processes.never_started() {
                let sentence = format!(
                    "The container's program could not be started: the runtime's own init left \
                     first ({}).",
                    ended_with(status)
                );
                return (Verdict::Failed, sentence);
            }
            return (Verdict::Unknown, self.without_exit());
        };

        if let Some(sentence) = self.oom() {
            return (Verdict::OomKilled, sentence);
        }
        if let ExitStatus::Signal { signal, core } = exit
            && OWN_MAKING.contains(&signal)
            && !self.sent_from_outside(signal)
        {
            let core = if core { ", with a core dump" } else { "" };
            let sentence = format!(
                "{name} died of {}{core}, which nobody outside the container had sent.",
                signal::name(signal)
            );
            return (Verdict::Crashed, sentence);
        }
        let Some(stop) = self.stop else { return self.without_stop(exit, exit_at) };
        if self.killed() && self.kill.is_some_and(|kill| kill.at < stop.at) {
            return self.without_stop(exit, exit_at);
        }

        if let Some(left) = self.left_by_hook().filter(|left| *left < GRACE_FLOOR_SECONDS) {
            let grace = self.case.grace_seconds.unwrap_or_default();
            let used = self.hook.as_ref().map(|h| stop.at.since(h.began)).unwrap_or_default();
            let state = if self.hook_was_cut_off() { "was still running" } else { "had ended" };
            let sentence = format!(
                "preStop {state} after {} of a grace of {grace} s, so {stop_name} came with {} s \
                 left, raised to the kubelet's floor of {GRACE_FLOOR_SECONDS} s; {}.",
                secs(used),
                left.max(0),
                self.ended_how(stop.at),
            );
            return (Verdict::PrestopExhaustedGrace, sentence);
        }
        let kill = self.kill.or(self.kernel_kill);
        if self.killed() {
            let Some(kill) = kill else {
                let after =
                    |kill: &Sent| format!(", {} after {stop_name}", secs(kill.at.since(stop.at)));
                return self.killed_by_nobody_outside(&name, after);
            };
            return self.killed_after_stop(stop, kill, &name, &stop_name);
        }
        match exit {
            ExitStatus::Signal { signal, .. } if signal == self.case.stop_signal => {
                let after = secs(exit_at.since(stop.at));
                if self.taken.is_some() {
                    let sentence = format!(
                        "{name} handled {stop_name} and ended itself with it {after} later."
                    );
                    return (Verdict::Graceful, sentence);
                }
                let sentence = format!(
                    "{name} has no handler for {stop_name}: its default action ended the process \
                     after {after}, nothing was cleaned up."
                );
                (Verdict::TerminatedByDefault, sentence)
            }
            ExitStatus::Signal { signal, .. } => (
                Verdict::Failed,
                format!(
                    "{name} died of {}, {} after {stop_name}.",
                    signal::name(signal),
                    secs(exit_at.since(stop.at))
                ),
            ),
            ExitStatus::Code(code) => self.left_after_stop(stop, code, exit_at, &name, &stop_name),
        }
    }

    fn killed_after_stop(
        &self,
        stop: &Sent,
        kill: &Sent,
        name: &str,
        stop_name: &str,
    ) -> (Verdict, String) {
        let after = secs(kill.at.since(stop.at));
        let by = &kill.signal.sender.comm;
        if thrown_away(&stop.signal) {
            let why = match stop.signal.state.map(|s| s.disposition) {
                Some(Disposition::Ignore) => "it had set SIG_IGN",
                Some(Disposition::Default) => "PID 1 of a PID namespace, without a handler",
                _ => "no handler was installed",
            };
            return (
                Verdict::Ignored,
                format!(
                    "{stop_name} to {name} was thrown away by the kernel ({why}); SIGKILL by {by} \
                     {after} later."
                ),
            );
        }
        if self.taken.is_some() {
            return (
                Verdict::Overran,
                format!(
                    "{name} handled {stop_name} but was still running {after} later, when {by} \
                     sent SIGKILL."
                ),
            );
        }
        let bit = 1_u64 << (u32::from(self.case.stop_signal.clamp(1, 64)) - 1);
        match (kill.signal.state, stop.signal.state) {
            (Some(state), _) if state.pending & bit != 0 => (
                Verdict::Blocked,
                format!(
                    "{stop_name} to {name} was still pending {after} later, neither handled nor \
                     ignored, when {by} sent SIGKILL."
                ),
            ),
            (Some(_), _) => (
                Verdict::Overran,
                format!(
                    "{name} had taken {stop_name} (sigwait or signalfd: no longer pending) but \
                     was still running {after} later, when {by} sent SIGKILL."
                ),
            ),
            (None, Some(state)) if state.blocked => (
                Verdict::Blocked,
                format!(
                    "{name} blocks {stop_name} and was never seen to take it; SIGKILL by {by} \
                     {after} later."
                ),
            ),
            _ => (
                Verdict::Unknown,
                format!(
                    "{stop_name} reached {name}, SIGKILL followed {after} later; whether the \
                     signal was taken in between was not recorded."
                ),
            ),
        }
    }

    fn left_after_stop(
        &self,
        stop: &Sent,
        code: u8,
        exit_at: BootTime,
        name: &str,
        stop_name: &str,
    ) -> (Verdict, String) {
        let after = secs(exit_at.since(stop.at));
        if self.taken.is_some() {
            return (
                Verdict::Graceful,
                format!(
                    "{name} handled {stop_name} and left by itself {after} later with code {code}."
                ),
            );
        }
        if kept(&stop.signal) {
            return (
                Verdict::Graceful,
                format!(
                    "{name} blocks {stop_name} to take it itself (sigwait or signalfd: inferred) \
                     and left {after} later with code {code}."
                ),
            );
        }
        let verdict = if code == 0 { Verdict::Completed } else { Verdict::Failed };
        let never = if thrown_away(&stop.signal) {
            "was thrown away by the kernel"
        } else {
            "was never taken"
        };
        (
            verdict,
            format!(
                "{name} left by itself with code {code}, {after} after a {stop_name} that {never}."
            ),
        )
    }

    fn without_stop(&self, exit: ExitStatus, exit_at: BootTime) -> (Verdict, String) {
        let name = self.init_name();
        match exit {
            ExitStatus::Signal { signal: SIGKILL, .. } => match self.kill.or(self.kernel_kill) {
                Some(kill) => (
                    Verdict::ForceKilled,
                    format!(
                        "SIGKILL to {name} by {} (pid {}), with no {} before it.",
                        kill.signal.sender.comm,
                        kill.signal.sender.tgid,
                        signal::name(self.case.stop_signal)
                    ),
                ),
                None => self.killed_by_nobody_outside(&name, |_| String::new()),
            },
            ExitStatus::Signal { signal, .. } => {
                let sender = self
                    .case
                    .processes
                    .sent()
                    .find(|s| s.from_outside && s.signal.signal == signal && s.at <= exit_at);
                match sender {
                    Some(sent) => (
                        Verdict::TerminatedByDefault,
                        format!(
                            "{name} died of {} by {}: its default action, nothing was cleaned up.",
                            signal::name(signal),
                            sent.signal.sender.comm
                        ),
                    ),
                    None => (
                        Verdict::Failed,
                        format!(
                            "{name} died of {}, which nobody outside the container had sent.",
                            signal::name(signal)
                        ),
                    ),
                }
            }
            ExitStatus::Code(0) => (
                Verdict::Completed,
                format!("{name} left by itself with code 0; nothing had been sent to it."),
            ),
            ExitStatus::Code(code) => (
                Verdict::Failed,
                format!("{name} left by itself with code {code}; nothing had been sent to it."),
            ),
        }
    }

    fn killed_by_nobody_outside(
        &self,
        name: &str,
        after: impl FnOnce(&Sent) -> String,
    ) -> (Verdict, String) {
        let Some(kill) = self.inner_kill() else {
            let sentence = format!("{name} died of SIGKILL, but who sent it was not seen.");
            return (Verdict::Unknown, sentence);
        };
        let (by, after) = (&kill.signal.sender, after(kill));
        let sentence = format!(
            "{name} died of SIGKILL by {} (pid {}), a process of the container itself{after}.",
            by.comm, by.tgid
        );
        (Verdict::Failed, sentence)
    }

    /// SIGKILL by a process of the container: only one without a PID namespace of its own (hostPID,
    /// shareProcessNamespace) can do that to its main process.
    fn inner_kill(&self) -> Option<&'a Sent> {
        let processes = self.case.processes;
        let delivered = |s: &&Sent| {
            let signal = &s.signal;
            signal.signal == SIGKILL
                && signal.code != SI_KERNEL
                && !s.from_outside
                && signal.result == SignalResult::Delivered
        };
        let in_time = |s: &&Sent| self.exit.is_none_or(|(at, _)| s.at <= at);
        processes.sent().filter(in_time).find(delivered)
    }

    fn without_exit(&self) -> String {
        let lost: Vec<&str> = self.losses().map(LossKind::as_str).collect();
        let why = if lost.is_empty() {
            "the agent never saw its processes".to_owned()
        } else {
            format!("evidence was lost ({})", lost.join(", "))
        };
        format!("How it ended is not known: the kernel's record of its exit is missing, {why}.")
    }

    fn oom(&self) -> Option<String> {
        if !self.killed() {
            return None;
        }
        let main = self.case.processes.main()?;
        let marked = self
            .case
            .processes
            .oom
            .iter()
            .any(|(_, pid)| Tgid(*pid) == main || self.is_thread_of_main(*pid));
        marked.then(|| {
            format!(
                "The OOM killer chose {} (pid {main}) and the kernel sent it SIGKILL.",
                self.init_name()
            )
        })
    }

    /// mark_victim may name a thread; the kernel's SIGKILL just before it names the same one.
    fn is_thread_of_main(&self, pid: u32) -> bool {
        self.kernel_kill.is_some_and(|kill| kill.signal.target.tid == pid)
    }

    fn sent_from_outside(&self, signal: u8) -> bool {
        self.case.processes.sent().any(|s| s.from_outside && s.signal.signal == signal)
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

    fn ended_how(&self, stop_at: BootTime) -> String {
        match self.exit {
            Some((at, ExitStatus::Code(code))) => {
                format!("it left {} later with code {code}", secs(at.since(stop_at)))
            }
            Some((at, ExitStatus::Signal { signal, .. })) => {
                format!("it died of {} {} later", signal::name(signal), secs(at.since(stop_at)))
            }
            None => "its end was not seen".into(),
        }
    }

    fn evidence(&self) -> Vec<Evidence> {
        let kernel = |at, what| Evidence { at, source: Source::Kernel, what };
        let mut list = Vec::new();
        let inner_kill = self.inner_kill();
        for sent in [self.stop, self.kill, self.kernel_kill, inner_kill].into_iter().flatten() {
            let s = &sent.signal;
            let mut what = format!(
                "signal_generate sig={} code={} result={:?} sender={}({})",
                signal::name(s.signal),
                s.code,
                s.result,
                s.sender.comm,
                s.sender.tgid
            );
            if let Some(state) = s.state {
                what.push_str(&format!(
                    " disposition={:?} unkillable={} group_exit={} blocked={} pending={:#x}",
                    state.disposition,
                    state.unkillable,
                    state.group_exit,
                    state.blocked,
                    state.pending
                ));
            }
            list.push(kernel(sent.at, what));
        }
        if let Some(taken) = self.taken {
            let what = format!("signal_deliver sig={} to a handler", signal::name(taken.signal));
            list.push(kernel(taken.at, what));
        }
        if let Some(hook) = &self.hook {
            let HookRun { began: at, source, .. } = *hook;
            list.push(Evidence { at, source, what: hook.what.clone() });
            if let Some((at, status)) = hook.ended.zip(hook.status) {
                list.push(kernel(at, format!("exit of the preStop hook: {status:?}")));
            }
        }
        for (at, pid) in &self.case.processes.oom {
            list.push(kernel(*at, format!("mark_victim pid={pid}")));
        }
        if let Some((at, status)) = self.exit {
            list.push(kernel(at, format!("sched_process_exit {status:?}")));
        }
        if let Some(at) = self.case.processes.empty {
            list.push(kernel(at, "cgroup_notify_populated 0".into()));
        }
        list
    }

    fn milestones(&self) -> Vec<Milestone> {
        use MilestoneKind::{
            Empty, Exited, KillSent, PreStopBegan, PreStopEnded, StopBegan, TermHandled, TermSent,
        };
        let mut list: Vec<Milestone> = Vec::new();
        let mut mark = |kind, at: Option<BootTime>, source| {
            let uncertainty = Duration::ZERO;
            list.extend(at.map(|at| Milestone { kind, at, uncertainty, source }));
        };
        let (stop, seen) = (self.stop.map(|s| s.at), Source::Kernel);
        let kill = self.kill.or(self.kernel_kill).or(self.inner_kill()).filter(|_| self.killed());
        let acts = [stop, self.kill.map(|s| s.at)].into_iter().flatten().min();
        match &self.hook {
            Some(hook) if acts.is_none_or(|act| hook.began < act) => {
                mark(StopBegan, Some(hook.began), hook.source);
            }
            _ => mark(StopBegan, acts, seen),
        }
        if let Some(hook) = &self.hook {
            mark(PreStopBegan, Some(hook.began), hook.source);
            mark(PreStopEnded, hook.ended, hook.source);
        }
        mark(TermSent, stop, seen);
        mark(TermHandled, self.taken.map(|t| t.at), seen);
        mark(KillSent, kill.map(|s| s.at), seen);
        mark(Exited, self.exit.map(|(at, _)| at), seen);
        mark(Empty, self.case.processes.ended(), seen);
        list.sort_by_key(|m| (m.at, m.kind));
        list
    }
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
