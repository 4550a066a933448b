//! The verdicts: one table of how the container ended and how its main process responded to the stop
//! signal. Each row holds what it requires to be absent and the statement that proves it. The order of the
//! rows is the order of precedence of [`Verdict`].

use super::{
    CONVENTIONAL, Facts, GRACE_FLOOR_SECONDS, OWN_MAKING, absence::Absence, ended_with,
    longest_grace, secs,
};
use crate::{
    ids::Tgid,
    input::{Disposition, ExitStatus, LossKind, Sender, SignalResult},
    observation::Verdict,
    process::{Origin, SI_KERNEL, SIGKILL, Sent, is_of_the_node, kept, thrown_away},
    signal,
    time::BootTime,
};
use std::time::Duration;

/// How a container ended.
enum End<'a> {
    /// The runtime's own init left before the program began.
    NeverStarted(ExitStatus),
    /// The kernel's record is missing.
    Unseen,
    /// The OOM killer chose its main process.
    OomKilled(Tgid),
    /// A fatal signal that nobody outside had sent.
    OwnSignal { signal: u8, core: bool },
    /// SIGKILL from outside, or by the kernel.
    Killed(&'a Sent),
    /// SIGKILL by a process of its own.
    KilledInside(&'a Sent),
    /// SIGKILL by nobody who was seen.
    KilledUnseen,
    /// Its stop signal, which had been sent to it.
    StopSignal,
    /// Another signal.
    OtherSignal(u8),
    /// It exited.
    Code(u8),
}

/// How its main process responded to the stop signal.
#[derive(Clone, Copy)]
enum Response<'a> {
    /// None had been sent before what ended it.
    NotSent,
    /// Its preStop hook had left less of the grace than the kubelet's floor, seconds.
    HookUsedGrace { stop: &'a Sent, left: i64 },
    /// A handler ran.
    Handled(&'a Sent),
    /// The kernel discarded the signal.
    Discarded(&'a Sent),
    /// It was still pending at SIGKILL.
    Pending(&'a Sent),
    /// It blocks the signal, and nothing shows that it was taken.
    Blocked(&'a Sent),
    /// The main process takes the signal without a handler: sigwait or signalfd.
    Waited(&'a Sent),
    /// Nothing of this was seen.
    Unseen(&'a Sent),
}

/// A row of the table.
pub(super) struct Row {
    pub(super) verdict: Verdict,
    /// What must not have been missed for the verdict to hold.
    pub(super) requires: Absence,
    pub(super) message: String,
}

/// Who sent it, where that is not the runtime's tool at the kubelet's request.
fn by_whom(sent: &Sent) -> String {
    let Sender { comm, tgid, .. } = &sent.signal.sender;
    match sent.origin {
        Origin::Entered => format!(" by {comm} (pid {tgid}, which had entered the container)"),
        _ if is_of_the_node(comm) => String::new(),
        _ => format!(" by {comm} (pid {tgid})"),
    }
}

impl<'a> Facts<'a> {
    /// The first row that fits.
    pub(super) fn row(&self) -> Row {
        use {End as E, Response as R, Verdict as V};
        let name = self.init_name();
        let stop_name = signal::name(self.stop_signal());
        let response = self.response();
        let stop = response.stop();
        let after = |at: BootTime| secs(at.since(stop.map_or(at, |stop| stop.at)));
        let by_stop = stop.map(by_whom).unwrap_or_default();
        let exit_at = self.exit.map(|(at, _)| at).unwrap_or_default();
        // Without a handler seen to run, a lost record may hold that one ran.
        let unless_handled = if stop.is_some() { Absence::Delivery } else { Absence::Stop };
        let (verdict, requires, message) = match (self.end(), response) {
            (E::NeverStarted(status), _) => {
                let how = ended_with(status);
                let message = format!(
                    "The container's program could not be started: the runtime's own init left \
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
                let message = format!(
                    "{name} died of {}{core}, which nobody outside the container had sent.",
                    signal::name(signal)
                );
                (V::Crashed, Absence::Signal, message)
            }
            (_, R::HookUsedGrace { stop, left }) => {
                let message = self.hook_used_grace(stop, left, &stop_name);
                (V::PrestopExhaustedGrace, Absence::Nothing, message)
            }

            (E::Killed(kill), R::NotSent) => {
                let Sender { comm, tgid, .. } = &kill.signal.sender;
                let before = match self.case.stop_signal {
                    SIGKILL => "which is its stop signal".to_owned(),
                    signal => format!("with no {} before it", signal::name(signal)),
                };
                let message = format!("SIGKILL to {name} by {comm} (pid {tgid}), {before}.");
                (V::ForceKilled, Absence::Stop, message)
            }
            (E::Killed(kill), R::Discarded(stop)) => {
                let why = match stop.signal.state.map(|s| s.disposition) {
                    Some(Disposition::Ignore) => "it had set SIG_IGN",
                    Some(Disposition::Default) => "PID 1 of a PID namespace, without a handler",
                    _ => "no handler was installed",
                };
                let message = format!(
                    "{stop_name} to {name} was thrown away by the kernel ({why}); SIGKILL by {} {} \
                     later.",
                    kill.signal.sender.comm,
                    after(kill.at)
                );
                (V::StopSignalIgnored, Absence::Nothing, message)
            }
            (E::Killed(kill), R::Handled(_)) => {
                let message = format!(
                    "{name} handled {stop_name}{by_stop} but was still running {} later, when {} \
                     sent SIGKILL.",
                    after(kill.at),
                    kill.signal.sender.comm
                );
                (V::GraceExceeded, Absence::Nothing, message)
            }
            (E::Killed(kill), R::Pending(_)) => {
                let message = format!(
                    "{stop_name} to {name} was still pending {} later, neither handled nor \
                     ignored, when {} sent SIGKILL.",
                    after(kill.at),
                    kill.signal.sender.comm
                );
                (V::StopSignalBlocked, Absence::Nothing, message)
            }
            (E::Killed(kill), R::Waited(_)) => {
                let message = format!(
                    "{name} had taken {stop_name} (sigwait or signalfd: no longer pending) but \
                     was still running {} later, when {} sent SIGKILL.",
                    after(kill.at),
                    kill.signal.sender.comm
                );
                (V::GraceExceeded, Absence::Nothing, message)
            }
            (E::Killed(kill), R::Blocked(_)) => {
                let message = format!(
                    "{name} blocks {stop_name} and was never seen to take it; SIGKILL by {} {} \
                     later.",
                    kill.signal.sender.comm,
                    after(kill.at)
                );
                (V::StopSignalBlocked, Absence::Delivery, message)
            }
            (E::Killed(kill), R::Unseen(_)) => {
                let message = format!(
                    "{stop_name} reached {name}, SIGKILL followed {} later; whether the signal \
                     was taken in between was not recorded.",
                    after(kill.at)
                );
                (V::Unknown, Absence::Nothing, message)
            }
            (E::KilledInside(kill), _) => {
                let Sender { comm, tgid, .. } = &kill.signal.sender;
                let after = match stop {
                    Some(_) => format!(", {} after {stop_name}", after(kill.at)),
                    None => String::new(),
                };
                let message = format!(
                    "{name} died of SIGKILL by {comm} (pid {tgid}), a process of the container \
                     itself{after}."
                );
                (V::Failed, unless_handled, message)
            }
            (E::KilledUnseen, _) => {
                let message = format!("{name} died of SIGKILL, but who sent it was not seen.");
                (V::Unknown, Absence::Nothing, message)
            }

            (E::StopSignal, R::Handled(_)) => {
                let after = after(exit_at);
                let message =
                    format!("{name} handled {stop_name} and ended itself with it {after} later.");
                (V::Graceful, Absence::Nothing, message)
            }
            (E::StopSignal, _) => {
                let message = format!(
                    "{name} has no handler for {stop_name}: its default action ended the process \
                     after {}, nothing was cleaned up.",
                    after(exit_at)
                );
                let is_fatal = |stop: &Sent| {
                    let state = stop.signal.state;
                    state.is_some_and(|s| s.group_exit && s.disposition == Disposition::Default)
                };
                let is_proven = stop.is_some_and(is_fatal);
                let requires = if is_proven { Absence::Nothing } else { Absence::Delivery };
                (V::TerminatedByDefault, requires, message)
            }
            (E::OtherSignal(signal), R::NotSent) => match self.sender_of(signal, exit_at) {
                Some(sent) => {
                    let message = format!(
                        "{name} died of {} by {}: its default action, nothing was cleaned up.",
                        signal::name(signal),
                        sent.signal.sender.comm
                    );
                    (V::TerminatedByDefault, Absence::Nothing, message)
                }
                None => {
                    let message = format!(
                        "{name} died of {}, which nobody outside the container had sent.",
                        signal::name(signal)
                    );
                    (V::Failed, Absence::Stop, message)
                }
            },
            (E::OtherSignal(signal), _) => {
                let message = format!(
                    "{name} died of {}, {} after {stop_name}.",
                    signal::name(signal),
                    after(exit_at)
                );
                (V::Failed, Absence::Delivery, message)
            }

            (E::Code(code), R::Handled(_)) => {
                let message = format!(
                    "{name} handled {stop_name}{by_stop} and left by itself {} later with code \
                     {code}.",
                    after(exit_at)
                );
                (V::Graceful, Absence::Nothing, message)
            }
            (E::Code(code), R::Waited(_)) => {
                let message = format!(
                    "{name} blocks {stop_name}{by_stop} to take it itself (sigwait or signalfd: \
                     inferred) and left {} later with code {code}.",
                    after(exit_at)
                );
                (V::Graceful, Absence::Nothing, message)
            }
            (E::Code(code), R::NotSent) => {
                let before = self.sent_before(exit_at);
                let message = format!("{name} left by itself with code {code}; {before}.");
                (exited(code), Absence::Stop, message)
            }
            (E::Code(code), response) => {
                let discarded = matches!(response, R::Discarded(_));
                let never =
                    if discarded { "was thrown away by the kernel" } else { "was never taken" };
                let message = format!(
                    "{name} left by itself with code {code}, {} after a {stop_name} that {never}.",
                    after(exit_at)
                );
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
                if OWN_MAKING.contains(&signal) && !self.sent_from_outside(signal) =>
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

    fn response(&self) -> Response<'a> {
        let Some(stop) = self.stop else { return Response::NotSent };
        let killed = self.killed();
        if killed && self.kill.is_some_and(|kill| kill.at < stop.at) {
            return Response::NotSent;
        }
        if let Some(left) = self.left_by_hook().filter(|left| *left < GRACE_FLOOR_SECONDS) {
            return Response::HookUsedGrace { stop, left };
        }
        // A runtime that is back sends it again, and the handler may be there by then.
        if self.taken.is_some() {
            return Response::Handled(stop);
        }
        if thrown_away(&stop.signal) {
            return Response::Discarded(stop);
        }
        if !killed {
            return if kept(&stop.signal) {
                Response::Waited(stop)
            } else {
                Response::Unseen(stop)
            };
        }
        let bit = 1_u64 << (u32::from(self.stop_signal().clamp(1, 64)) - 1);
        let at_kill = self.kill.or(self.kernel_kill).and_then(|kill| kill.signal.state);
        match (at_kill, stop.signal.state) {
            (Some(state), _) if state.pending & bit != 0 => Response::Pending(stop),
            (Some(_), _) => Response::Waited(stop),
            (None, Some(state)) if state.blocked => Response::Blocked(stop),
            _ => Response::Unseen(stop),
        }
    }

    fn hook_used_grace(&self, stop: &Sent, left: i64, stop_name: &str) -> String {
        let grace = self.case.grace_seconds.unwrap_or_default();
        let used = self.hook.as_ref().map(|h| stop.at.since(h.began)).unwrap_or_default();
        let state = if self.hook_was_cut_off() { "was still running" } else { "had ended" };
        format!(
            "preStop {state} after {} of a grace of {grace} s, so {stop_name} came with {} s left, \
             raised to the kubelet's floor of {GRACE_FLOOR_SECONDS} s; {}.",
            secs(used),
            left.max(0),
            self.ended_how(stop.at),
        )
    }

    /// Who outside the container sent it the signal that ended it.
    fn sender_of(&self, signal: u8, exit_at: BootTime) -> Option<&'a Sent> {
        let sent = |s: &&Sent| s.from_outside() && s.signal.signal == signal && s.at <= exit_at;
        self.case.processes.sent().find(sent)
    }

    /// What had been sent to it from outside before it left by itself.
    fn sent_before(&self, exit_at: BootTime) -> String {
        let window = exit_at - Duration::from_secs(longest_grace(&self.case));
        // A process that only forked is not seen to have entered the container.
        let main = self.case.processes.main();
        let by_another = |s: &Sent| {
            CONVENTIONAL.contains(&s.signal.signal)
                && s.signal.code != SI_KERNEL
                && Some(s.signal.sender.tgid) != main
        };
        let recent =
            |s: &&Sent| (s.from_outside() || by_another(s)) && (window..=exit_at).contains(&s.at);
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
            None => "nothing had been sent to it".into(),
        }
    }

    /// SIGKILL by a process of the container: only one without a PID namespace of its own (hostPID,
    /// shareProcessNamespace) can do that to its main process.
    pub(super) fn inner_kill(&self) -> Option<&'a Sent> {
        let processes = self.case.processes;
        let delivered = |s: &&Sent| {
            let signal = &s.signal;
            signal.signal == SIGKILL
                && signal.code != SI_KERNEL
                && !s.from_outside()
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

    fn oom_victim(&self) -> Option<Tgid> {
        let main = self.case.processes.main().filter(|_| self.killed())?;
        let mut victims = self.case.processes.oom.iter().map(|(_, pid)| *pid);
        victims.any(|pid| Tgid(pid) == main || self.is_thread_of_main(pid)).then_some(main)
    }

    /// mark_victim may name a thread; the kernel's SIGKILL just before it names the same one.
    fn is_thread_of_main(&self, pid: u32) -> bool {
        self.kernel_kill.is_some_and(|kill| kill.signal.target.tid == pid)
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
}

impl<'a> Response<'a> {
    /// The stop signal, if one had been sent before what ended it.
    fn stop(self) -> Option<&'a Sent> {
        match self {
            Self::NotSent => None,
            Self::HookUsedGrace { stop, .. }
            | Self::Handled(stop)
            | Self::Discarded(stop)
            | Self::Pending(stop)
            | Self::Blocked(stop)
            | Self::Waited(stop)
            | Self::Unseen(stop) => Some(stop),
        }
    }
}

fn exited(code: u8) -> Verdict {
    if code == 0 { Verdict::Completed } else { Verdict::Failed }
}
