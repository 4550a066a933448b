//! The verdicts: one table over how the container ended and how its main process responded to the stop
//! signal. Each row has the event that must not have happened, which a gap may hide; `message.rs` has its sentence. The rows are in the
//! order of precedence of [`Verdict`].

use super::{DeathFacts, KUBELET_SLACK, SELF_INFLICTED, longest_grace};
use crate::process::{SI_KERNEL, SIGKILL, SentSignal, TakenSignal, discarded, queued_for_sigwait};
use crate::{ids::*, input::*, time::*, types::*};
use std::time::Duration;

/// How a container ended.
pub(super) enum ContainerEnd<'a> {
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
    /// Another signal, and who had sent it from outside.
    OtherSignal { signal: u8, sent: Option<&'a SentSignal> },
    /// It exited with a code.
    Code(u8),
}

/// How its main process responded to the stop signal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Response {
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
    /// The process takes the signal without a handler (sigwait or signalfd).
    Waited,
    /// No record shows a response.
    Unseen,
}

impl<'a> DeathFacts<'a> {
    /// The first row that fits: the verdict, and the event that must not have happened for it to hold.
    pub(super) fn row(&self, end: &ContainerEnd<'_>, response: Response) -> (Verdict, Absence) {
        use {Absence as A, ContainerEnd as E, Response as R, Verdict as V};
        // Without a recorded delivery, a lost record may hold one.
        let unless_handled = if response == R::NotSent { A::Stop } else { A::Delivery };
        let (verdict, requires) = match (end, response) {
            (E::NeverStarted(_), _) => (V::Failed, unless_handled),
            (E::Unseen, _) => (V::Unknown, A::Nothing),
            (E::OomKilled(_), _) => (V::OomKilled, A::Nothing),
            (E::OwnSignal { .. }, _) => (V::Crashed, A::Signal),
            (_, R::HookUsedGrace { .. }) => (V::PrestopExhaustedGrace, A::Nothing),

            (E::Killed(_), R::NotSent) => (V::ForceKilled, A::Stop),
            (E::Killed(_), R::Discarded) => (V::StopSignalIgnored, A::Nothing),
            (E::Killed(_), R::Pending) => (V::StopSignalBlocked, A::Nothing),
            (E::Killed(_), R::Handled) => (V::GraceExceeded, A::Nothing),
            (E::Killed(_), R::Waited) => (V::GraceExceeded, A::Delivery),
            (E::Killed(_), R::Unseen) | (E::KilledUnseen, _) => (V::Unknown, A::Nothing),
            (E::KilledInside(_), _) => (V::Failed, unless_handled),

            (E::StopSignal, R::Handled) => (V::Graceful, A::Nothing),
            (E::StopSignal, _) if self.is_default_action() => (V::TerminatedByDefault, A::Nothing),
            (E::StopSignal, _) => (V::TerminatedByDefault, A::Delivery),
            (E::OtherSignal { sent: Some(_), .. }, R::NotSent) => {
                (V::TerminatedByDefault, A::Nothing)
            }
            (E::OtherSignal { .. }, _) => (V::Failed, unless_handled),

            (E::Code(_), R::Handled | R::Waited) => (V::Graceful, A::Nothing),
            (E::Code(0), _) => (V::Completed, unless_handled),
            (E::Code(_), _) => (V::Failed, unless_handled),
        };
        let by_stop =
            !matches!(verdict, V::OomKilled | V::PrestopExhaustedGrace | V::Unknown | V::Crashed);
        (verdict, if by_stop && self.hook_may_have_exhausted() { A::Hook } else { requires })
    }

    /// The stop signal's own record shows that its default action ended the process.
    fn is_default_action(&self) -> bool {
        let state = self.stop.and_then(|stop| stop.signal.state);
        state.is_some_and(|s| s.group_exit && s.disposition == Disposition::Default)
    }

    pub(super) fn end(&self) -> ContainerEnd<'a> {
        let Some((exit_at, exit)) = self.exit else {
            let never = self.case.processes.never_started();
            return never
                .map_or(ContainerEnd::Unseen, |(_, status)| ContainerEnd::NeverStarted(status));
        };
        if let Some(main) = self.oom_victim() {
            return ContainerEnd::OomKilled(main);
        }
        match exit {
            ExitStatus::Signal { signal, core }
                if SELF_INFLICTED.contains(&signal)
                    && self.sent_from_outside(signal).next().is_none() =>
            {
                ContainerEnd::OwnSignal { signal, core }
            }
            ExitStatus::Signal { signal: SIGKILL, .. } => {
                let outside = self.kill.or(self.kernel_kill).map(ContainerEnd::Killed);
                let inside = || self.inner_kill().map(ContainerEnd::KilledInside);
                outside.or_else(inside).unwrap_or(ContainerEnd::KilledUnseen)
            }
            ExitStatus::Signal { signal, .. }
                if self.stop.is_some() && signal == self.stop_signal() =>
            {
                ContainerEnd::StopSignal
            }
            ExitStatus::Signal { signal, .. } => {
                let sent = self.sent_from_outside(signal).find(|sent| sent.at <= exit_at);
                ContainerEnd::OtherSignal { signal, sent }
            }
            ExitStatus::Code(code) => ContainerEnd::Code(code),
        }
    }

    pub(super) fn response(&self) -> Response {
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
        // The leading thread blocked it, and another thread took it off the queue without a handler (`get_signal`,
        // kernel/signal.c).
        let late = |taken: TakenSignal| taken.signal == stop.signal.signal && taken.at >= stop.at;
        if killed && self.case.processes.taken().any(late) {
            return Response::Discarded;
        }
        let kept = |sent: &&SentSignal| sent.from_outside() && !discarded(&sent.signal);
        let Some(stop) = self.stops().rfind(kept) else {
            return Response::Discarded;
        };
        if !killed {
            let waited = queued_for_sigwait(&stop.signal);
            return if waited { Response::Waited } else { Response::Unseen };
        }
        let bit = 1_u64 << (u32::from(self.stop_signal().clamp(1, 64)) - 1);
        let at_kill = self.kill.or(self.kernel_kill).and_then(|kill| kill.signal.state);
        match at_kill {
            Some(state) if state.pending & bit != 0 => Response::Pending,
            Some(_) => Response::Waited,
            None => Response::Unseen,
        }
    }

    /// SIGKILL by a process of the container: possible only without a PID namespace of its own (hostPID,
    /// shareProcessNamespace).
    pub(super) fn inner_kill(&self) -> Option<&'a SentSignal> {
        let delivered = |s: &&SentSignal| {
            let SignalGenerated { signal, code, result, .. } = s.signal;
            (signal, result) == (SIGKILL, SignalResult::Delivered)
                && code != SI_KERNEL
                && !s.from_outside()
                && self.exit.is_none_or(|(at, _)| s.at <= at)
        };
        self.case.processes.sent().find(delivered)
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
}

/// An event that must not have happened unseen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// None: the verdict rests on records.
    Nothing,
    /// The fatal signal, from outside.
    Signal,
    /// The stop signal.
    Stop,
    /// The delivery of the stop signal.
    Delivery,
    /// A preStop hook that used up the grace.
    Hook,
}

impl<'a> DeathFacts<'a> {
    /// Why the agent started too late to exclude the event.
    pub(super) fn late(&self, absence: Absence) -> Option<String> {
        match absence {
            Absence::Stop => self.observed_too_briefly(self.exit?.0, "its end"),
            Absence::Hook => self.observed_too_briefly(self.stop?.at, "the stop signal"),
            Absence::Nothing | Absence::Signal | Absence::Delivery => None,
        }
    }

    /// Losses that may hide evidence of this end.
    pub(super) fn gaps(&self) -> impl Iterator<Item = LossKind> {
        self.case.processes.gaps.since(self.since).map(|gap| gap.reason)
    }

    /// Losses that may hide the event.
    pub(super) fn hidden_by_loss(&self, absence: Absence) -> Option<String> {
        let gaps = self.gaps();
        let hides = |loss: &LossKind| match absence {
            Absence::Nothing => false,
            Absence::Signal | Absence::Stop => !loss.is_detail_only(),
            Absence::Delivery | Absence::Hook => true,
        };
        let hiding: Vec<&str> = gaps.filter(hides).map(LossKind::as_str).collect();
        (!hiding.is_empty()).then(|| hiding.join(", "))
    }

    /// A stop may have been in progress when the agent found the container: too little time passed until
    /// `at`.
    pub(super) fn observed_too_briefly(&self, at: BootTime, what: &str) -> Option<String> {
        let found = self.case.processes.found?;
        if self.requested().is_some_and(|requested| requested < found) {
            return Some("it was already being deleted when the agent started".into());
        }
        let watched = at.since(found);
        (watched < longest_grace(&self.case) + KUBELET_SLACK)
            .then(|| format!("the agent began to watch it only {} before {what}", secs(watched)))
    }

    /// The spec has an exec hook, none was seen, and there was time for it to use up the grace.
    pub(super) fn hook_may_have_exhausted(&self) -> bool {
        let Some(stop) = self.stop.filter(|_| self.hook.is_none()) else { return false };
        let enough = |requested: BootTime| {
            let spent = stop.at.since(requested) + Duration::from_secs(2);
            self.case.grace_seconds.is_none_or(|grace| spent >= seconds(grace))
        };
        matches!(self.case.pre_stop, Some(Hook::Exec(_))) && self.requested().is_none_or(enough)
    }

    /// Why a stop may have happened although none was seen.
    pub(super) fn stop_may_be_missing(&self) -> Option<String> {
        match self.exit {
            _ if self.stop.is_some() => None,
            Some((at, _)) => self.observed_too_briefly(at, "its end").or_else(|| {
                Some(format!("evidence was lost ({})", self.hidden_by_loss(Absence::Stop)?))
            }),
            None if self.case.processes.never_started().is_some() => None,
            None => Some("the kernel's record of its exit is missing".into()),
        }
    }
}
