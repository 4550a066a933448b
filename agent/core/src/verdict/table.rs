//! The verdicts: one table over how the container ended and how its main process responded to the stop
//! signal. Each row has the event that must not have happened and the message. The rows are in the order of
//! precedence of [`Verdict`].

use super::{
    CONVENTIONAL_STOP_SIGNALS, DeathFacts, GRACE_FLOOR_SECONDS, SELF_INFLICTED, absence::Absence,
    ended_with, longest_grace,
};
use crate::{ids::*, input::*, time::*, types::*};
use crate::{
    process::{
        Origin, SI_KERNEL, SIGKILL, SentSignal, discarded, is_of_the_node, queued_for_sigwait,
    },
    signal,
};
use std::time::Duration;

/// How a container ended.
enum End<'a> {
    /// The runtime's init exited before the program began.
    NeverStarted(ExitStatus),
    /// The kernel's record of the exit is missing.
    Unseen,
    /// The OOM killer chose its main process.
    OomKilled(Tgid),
    /// A fatal signal that no process outside had sent.
    OwnSignal { signal: u8, core: bool },
    /// SIGKILL from outside or by the kernel.
    Killed(&'a SentSignal),
    /// SIGKILL by a process of the container.
    KilledInside(&'a SentSignal),
    /// SIGKILL without a record of its sender.
    KilledUnseen,
    /// The stop signal, which had been sent.
    StopSignal,
    /// Another signal.
    OtherSignal(u8),
    /// It exited with a code.
    Code(u8),
}

/// How its main process responded to the stop signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Response {
    /// No stop signal was sent before what ended it.
    NotSent,
    /// The preStop hook left less of the grace than the kubelet's floor, seconds.
    HookUsedGrace { left: i64 },
    /// A handler ran.
    Handled,
    /// The kernel discarded the signal.
    Discarded,
    /// The signal was still pending at SIGKILL.
    Pending,
    /// The process blocks the signal, and no record shows that it took it.
    Blocked,
    /// The process takes the signal without a handler (sigwait or signalfd).
    Waited,
    /// No record shows a response.
    Unseen,
}

/// A row of the table.
pub(super) struct Row {
    pub(super) verdict: Verdict,
    /// The event that must not have happened for the verdict to hold.
    pub(super) requires: Absence,
    pub(super) message: String,
}

/// The sender, unless it is a node component.
fn by_whom(sent: &SentSignal) -> String {
    let ProcessRef { comm, tgid, .. } = &sent.signal.sender;
    match sent.origin {
        Origin::Entered => format!(" by {comm} (pid {tgid}, which had entered the container)"),
        _ if is_of_the_node(comm) => String::new(),
        _ => format!(" by {comm} (pid {tgid})"),
    }
}

impl<'a> DeathFacts<'a> {
    /// The first row that fits.
    pub(super) fn row(&self) -> Row {
        use {End as E, Response as R, Verdict as V};
        let (name, stop_name) = (self.init_name(), signal::name(self.stop_signal()));
        let (end, response) = (self.end(), self.response());
        let stop = self.stop.filter(|_| response != R::NotSent);
        let by_stop = stop.map(by_whom).unwrap_or_default();
        // Without a recorded delivery, a lost record may hold one.
        let unless_handled = if stop.is_some() { Absence::Delivery } else { Absence::Stop };
        let exit_at = self.exit.map(|(at, _)| at).unwrap_or_default();
        let (at, killer) = match &end {
            E::Killed(kill) | E::KilledInside(kill) => (kill.at, Some(&kill.signal.sender)),
            _ => (exit_at, None),
        };
        // Time from the stop signal to SIGKILL or to the exit.
        let after = secs(at.since(stop.map_or(at, |stop| stop.at)));
        let (killer, pid) = killer.map_or(("", Tgid(0)), |killer| (&killer.comm, killer.tgid));
        let (verdict, requires, message) = match (end, response) {
            (E::NeverStarted(status), _) => {
                let how = ended_with(status);
                let message = format!(
                    "The container's program did not start: the runtime's init process exited \
                     first ({how})."
                );
                (V::Failed, unless_handled, message)
            }
            (E::Unseen, _) => (V::Unknown, Absence::Nothing, self.without_exit()),
            (E::OomKilled(main), _) => {
                let message = format!(
                    "The OOM killer chose {name} (pid {main}) and the kernel sent it SIGKILL."
                );
                (V::OomKilled, Absence::Nothing, message)
            }
            (E::OwnSignal { signal, core }, _) => {
                let core = if core { ", with a core dump" } else { "" };
                let signal = signal::name(signal);
                let message = format!(
                    "{name} died of {signal}{core}; no process outside the container sent it."
                );
                (V::Crashed, Absence::Signal, message)
            }
            (_, R::HookUsedGrace { left }) => {
                (V::PrestopExhaustedGrace, Absence::Nothing, self.hook_used_grace(left, &stop_name))
            }

            (E::Killed(_), R::NotSent) => {
                let before = match self.case.stop_signal {
                    SIGKILL => "which is its stop signal".to_owned(),
                    signal => format!("with no {} before it", signal::name(signal)),
                };
                let message = format!("{killer} (pid {pid}) sent SIGKILL to {name}, {before}.");
                (V::ForceKilled, Absence::Stop, message)
            }
            (E::Killed(_), R::Discarded) => {
                let state = stop.and_then(|stop| stop.signal.state);
                let ignores = state.is_some_and(|s| s.disposition == Disposition::Ignore);
                let why = if ignores { "had set it to SIG_IGN" } else { "had no handler for it" };
                let message = format!(
                    "The kernel discarded {stop_name}: {name} {why}. {killer} sent SIGKILL {after} \
                     later."
                );
                (V::StopSignalIgnored, Absence::Nothing, message)
            }
            (E::Killed(_), R::Handled) => {
                let message = format!(
                    "{name} handled {stop_name}{by_stop} but was still running {after} later, when \
                     {killer} sent SIGKILL."
                );
                (V::GraceExceeded, Absence::Nothing, message)
            }
            (E::Killed(_), R::Pending) => {
                let message = format!(
                    "{stop_name} to {name} was still pending {after} later, neither handled nor \
                     ignored, when {killer} sent SIGKILL."
                );
                (V::StopSignalBlocked, Absence::Nothing, message)
            }
            (E::Killed(_), R::Waited) => {
                let message = format!(
                    "{name} had taken {stop_name} (sigwait or signalfd: no longer pending) but \
                     was still running {after} later, when {killer} sent SIGKILL."
                );
                (V::GraceExceeded, Absence::Nothing, message)
            }
            (E::Killed(_), R::Blocked) => {
                let message = format!(
                    "{name} blocks {stop_name} and was never seen to take it; {killer} sent SIGKILL \
                     {after} later."
                );
                (V::StopSignalBlocked, Absence::Delivery, message)
            }
            (E::Killed(_), R::Unseen) => {
                let message = format!(
                    "{stop_name} reached {name}, SIGKILL followed {after} later; whether the signal \
                     was taken in between was not recorded."
                );
                (V::Unknown, Absence::Nothing, message)
            }
            (E::KilledInside(_), _) => {
                let after =
                    stop.map(|_| format!(", {after} after {stop_name}")).unwrap_or_default();
                let message = format!(
                    "{killer} (pid {pid}), a process of the container itself, sent SIGKILL to \
                     {name}{after}."
                );
                (V::Failed, unless_handled, message)
            }
            (E::KilledUnseen, _) => {
                let message = format!("{name} died of SIGKILL; no record shows who sent it.");
                (V::Unknown, Absence::Nothing, message)
            }

            (E::StopSignal, R::Handled) => {
                let message =
                    format!("{name} handled {stop_name} and ended itself with it {after} later.");
                (V::Graceful, Absence::Nothing, message)
            }
            (E::StopSignal, _) => {
                let message = format!(
                    "{name} has no handler for {stop_name}: its default action ended the process \
                     after {after}, without any cleanup."
                );
                let state = stop.and_then(|stop| stop.signal.state);
                let is_proven =
                    state.is_some_and(|s| s.group_exit && s.disposition == Disposition::Default);
                let requires = if is_proven { Absence::Nothing } else { Absence::Delivery };
                (V::TerminatedByDefault, requires, message)
            }
            (E::OtherSignal(signal), R::NotSent) => {
                let sent = self.sender_of(signal, exit_at).map(|sent| &sent.signal.sender.comm);
                let signal = signal::name(signal);
                match sent {
                    Some(comm) => {
                        let message = format!(
                            "{name} died of {signal} by {comm}: its default action, without any \
                             cleanup."
                        );
                        (V::TerminatedByDefault, Absence::Nothing, message)
                    }
                    None => {
                        let message = format!(
                            "{name} died of {signal}; no process outside the container sent it."
                        );
                        (V::Failed, Absence::Stop, message)
                    }
                }
            }
            (E::OtherSignal(signal), _) => {
                let signal = signal::name(signal);
                let message = format!("{name} died of {signal}, {after} after {stop_name}.");
                (V::Failed, Absence::Delivery, message)
            }

            (E::Code(code), R::Handled) => {
                let message = format!(
                    "{name} handled {stop_name}{by_stop} and exited {after} later with code {code}."
                );
                (V::Graceful, Absence::Nothing, message)
            }
            (E::Code(code), R::Waited) => {
                let message = format!(
                    "{name} blocks {stop_name}{by_stop} to take it itself (sigwait or signalfd: \
                     inferred) and exited {after} later with code {code}."
                );
                (V::Graceful, Absence::Nothing, message)
            }
            (E::Code(code), R::NotSent) => {
                let before = self.sent_before(exit_at);
                let message = format!("{name} exited with code {code}; {before}.");
                (exited(code), Absence::Stop, message)
            }
            (E::Code(code), response) => {
                let how = match response {
                    R::Discarded => "that the kernel had discarded",
                    _ => "that was never taken",
                };
                let message =
                    format!("{name} exited with code {code}, {after} after a {stop_name} {how}.");
                (exited(code), Absence::Delivery, message)
            }
        };
        let by_stop =
            !matches!(verdict, V::OomKilled | V::PrestopExhaustedGrace | V::Unknown | V::Crashed);
        let requires =
            if by_stop && self.hook_may_have_exhausted() { Absence::Hook } else { requires };
        Row { verdict, requires, message }
    }

    fn end(&self) -> End<'a> {
        let Some((_, exit)) = self.exit else {
            let never = self.case.processes.never_started();
            return never.map_or(End::Unseen, |(_, status)| End::NeverStarted(status));
        };
        if let Some(main) = self.oom_victim() {
            return End::OomKilled(main);
        }
        match exit {
            ExitStatus::Signal { signal, core }
                if SELF_INFLICTED.contains(&signal) && !self.sent_from_outside(signal) =>
            {
                End::OwnSignal { signal, core }
            }
            ExitStatus::Signal { signal: SIGKILL, .. } => {
                let outside = self.kill.or(self.kernel_kill).map(End::Killed);
                let inside = || self.inner_kill().map(End::KilledInside);
                outside.or_else(inside).unwrap_or(End::KilledUnseen)
            }
            ExitStatus::Signal { signal, .. }
                if self.stop.is_some() && signal == self.stop_signal() =>
            {
                End::StopSignal
            }
            ExitStatus::Signal { signal, .. } => End::OtherSignal(signal),
            ExitStatus::Code(code) => End::Code(code),
        }
    }

    fn response(&self) -> Response {
        let Some(stop) = self.stop else { return Response::NotSent };
        let killed = self.killed();
        if killed && self.kill.is_some_and(|kill| kill.at < stop.at) {
            return Response::NotSent;
        }
        if let Some(left) = self.left_by_hook().filter(|left| *left < GRACE_FLOOR_SECONDS) {
            return Response::HookUsedGrace { left };
        }
        // A restarted runtime sends the signal again, and by then a handler may be installed.
        if self.taken.is_some() {
            return Response::Handled;
        }
        if discarded(&stop.signal) {
            return Response::Discarded;
        }
        if !killed {
            let waited = queued_for_sigwait(&stop.signal);
            return if waited { Response::Waited } else { Response::Unseen };
        }
        let bit = 1_u64 << (u32::from(self.stop_signal().clamp(1, 64)) - 1);
        let at_kill = self.kill.or(self.kernel_kill).and_then(|kill| kill.signal.state);
        match (at_kill, stop.signal.state) {
            (Some(state), _) if state.pending & bit != 0 => Response::Pending,
            (Some(_), _) => Response::Waited,
            (None, Some(state)) if state.blocked => Response::Blocked,
            _ => Response::Unseen,
        }
    }

    fn hook_used_grace(&self, left: i64, stop_name: &str) -> String {
        let stop_at = self.stop.map_or_else(BootTime::default, |stop| stop.at);
        let grace = self.case.grace_seconds.unwrap_or_default();
        let used = self.hook.as_ref().map(|h| stop_at.since(h.began)).unwrap_or_default();
        let state = if self.hook_was_cut_off() { "was still running" } else { "had ended" };
        format!(
            "preStop {state} after {} of a grace of {grace} s, so {stop_name} came with {} s left, \
             raised to the kubelet's floor of {GRACE_FLOOR_SECONDS} s; {}.",
            secs(used),
            left.max(0),
            self.ended_how(stop_at),
        )
    }

    /// The process outside the container that sent the fatal signal.
    fn sender_of(&self, signal: u8, exit_at: BootTime) -> Option<&'a SentSignal> {
        let sent =
            |s: &&SentSignal| s.from_outside() && s.signal.signal == signal && s.at <= exit_at;
        self.case.processes.sent().find(sent)
    }

    /// The last signal from outside before the exit, for the message.
    fn sent_before(&self, exit_at: BootTime) -> String {
        let window = exit_at - Duration::from_secs(longest_grace(&self.case));
        // A process that entered the container and only forked is not recorded.
        let main = self.case.processes.main();
        let by_another = |s: &SentSignal| {
            CONVENTIONAL_STOP_SIGNALS.contains(&s.signal.signal)
                && s.signal.code != SI_KERNEL
                && Some(s.signal.sender.tgid) != main
        };
        let recent = |s: &&SentSignal| {
            (s.from_outside() || by_another(s)) && (window..=exit_at).contains(&s.at)
        };
        match self.case.processes.sent().rev().find(recent) {
            Some(sent) => format!(
                "{}{} had been sent to it {} before{}",
                signal::name(sent.signal.signal),
                by_whom(sent),
                secs(exit_at.since(sent.at)),
                match (sent.signal.signal == self.case.stop_signal, sent.from_outside()) {
                    (false, _) => ", which is not its stop signal",
                    (true, true) => "",
                    (true, false) => ", from within the container",
                }
            ),
            None => "no signal had been sent to it".into(),
        }
    }

    /// SIGKILL by a process of the container: possible only without a PID namespace of its own (hostPID,
    /// shareProcessNamespace).
    pub(super) fn inner_kill(&self) -> Option<&'a SentSignal> {
        let processes = self.case.processes;
        let delivered = |s: &&SentSignal| {
            let signal = &s.signal;
            signal.signal == SIGKILL
                && signal.code != SI_KERNEL
                && !s.from_outside()
                && signal.result == SignalResult::Delivered
        };
        let in_time = |s: &&SentSignal| self.exit.is_none_or(|(at, _)| s.at <= at);
        processes.sent().filter(in_time).find(delivered)
    }

    fn without_exit(&self) -> String {
        let lost: Vec<&str> = self.gaps().map(LossKind::as_str).collect();
        let why = if lost.is_empty() {
            "the agent never saw its processes".to_owned()
        } else {
            format!("evidence was lost ({})", lost.join(", "))
        };
        format!("How it ended is not known: the kernel's record of its exit is missing, {why}.")
    }

    fn oom_victim(&self) -> Option<Tgid> {
        let main = self.case.processes.main().filter(|_| self.killed())?;
        let mut victims = self.case.processes.oom.iter().map(|(_, pid)| *pid);
        victims.any(|pid| Tgid(pid) == main || self.is_thread_of_main(pid)).then_some(main)
    }

    /// mark_victim may name a thread; the kernel's SIGKILL just before names the same one.
    fn is_thread_of_main(&self, pid: u32) -> bool {
        self.kernel_kill.is_some_and(|kill| kill.signal.target.tid == pid)
    }

    fn ended_how(&self, stop_at: BootTime) -> String {
        match self.exit {
            Some((at, ExitStatus::Code(code))) => {
                format!("it exited {} later with code {code}", secs(at.since(stop_at)))
            }
            Some((at, ExitStatus::Signal { signal, .. })) => {
                format!("it died of {} {} later", signal::name(signal), secs(at.since(stop_at)))
            }
            None => "its exit was not recorded".into(),
        }
    }
}

fn exited(code: u8) -> Verdict {
    if code == 0 { Verdict::Completed } else { Verdict::Failed }
}
