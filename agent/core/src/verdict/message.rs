//! The proof of a verdict as one sentence, for each row of the table.

use super::{
    CONVENTIONAL_STOP_SIGNALS, DeathFacts, ended_with, longest_grace,
    table::{Absence, ContainerEnd, Response},
};
use crate::process::{Origin, SI_KERNEL, SIGKILL, SentSignal, is_of_the_node};
use crate::{ids::*, input::*, signal, time::*};

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
    /// What the row of this end and this response states.
    pub(super) fn message(&self, end: &ContainerEnd<'_>, response: Response) -> String {
        use {ContainerEnd as E, Response as R};
        let (name, stop_name) = (self.init_name(), signal::name(self.stop_signal()));
        let stop = self.stop.filter(|_| response != R::NotSent);
        let by_stop = stop.map(by_whom).unwrap_or_default();
        let exit_at = self.exit.map(|(at, _)| at).unwrap_or_default();
        let (at, killer) = match end {
            E::Killed(kill) | E::KilledInside(kill) => (kill.at, Some(&kill.signal.sender)),
            _ => (exit_at, None),
        };
        // Time from the stop signal to SIGKILL or to the exit.
        let after = secs(at.since(stop.map_or(at, |stop| stop.at)));
        let (killer, pid) = killer.map_or(("", Tgid(0)), |killer| (&killer.comm, killer.tgid));
        match (end, response) {
            (E::NeverStarted(status), _) => format!(
                "The container's program did not start: the runtime's init process exited first ({}).",
                ended_with(*status)
            ),
            (E::Unseen, _) => self.without_exit(),
            (E::OomKilled(main), _) => {
                format!("The OOM killer chose {name} (pid {main}) and the kernel sent it SIGKILL.")
            }
            (E::OwnSignal { signal, core }, _) => format!(
                "{name} died of {}{}; no process outside the container sent it.",
                signal::name(*signal),
                if *core { ", with a core dump" } else { "" },
            ),
            (_, R::HookUsedGrace { left }) => self.hook_used_grace(left, &stop_name),

            (E::Killed(_), R::NotSent) => {
                let before = match self.case.stop_signal {
                    SIGKILL => "which is its stop signal".to_owned(),
                    signal => format!("with no {} before it", signal::name(signal)),
                };
                format!("{killer} (pid {pid}) sent SIGKILL to {name}, {before}.")
            }
            (E::Killed(_), R::Discarded) => {
                let state = stop.and_then(|stop| stop.signal.state);
                let ignores = state.is_some_and(|s| s.disposition == Disposition::Ignore);
                let why = if ignores { "had set it to SIG_IGN" } else { "had no handler for it" };
                format!(
                    "The kernel discarded {stop_name}: {name} {why}. {killer} sent SIGKILL {after} \
                     later."
                )
            }
            (E::Killed(_), R::Handled) => format!(
                "{name} handled {stop_name}{by_stop} but was still running {after} later, when \
                 {killer} sent SIGKILL."
            ),
            (E::Killed(_), R::Pending) => format!(
                "{stop_name} to {name} was still pending {after} later, neither handled nor \
                 ignored, when {killer} sent SIGKILL."
            ),
            (E::Killed(_), R::Waited) => format!(
                "{name} had taken {stop_name} (sigwait or signalfd: no longer pending) but was \
                 still running {after} later, when {killer} sent SIGKILL."
            ),
            (E::Killed(_), R::Unseen) => format!(
                "{stop_name} reached {name}, SIGKILL followed {after} later; whether the signal was \
                 taken in between was not recorded."
            ),
            (E::KilledInside(_), _) => format!(
                "{killer} (pid {pid}), a process of the container itself, sent SIGKILL to {name}{}.",
                stop.map(|_| format!(", {after} after {stop_name}")).unwrap_or_default()
            ),
            (E::KilledUnseen, _) => {
                format!("{name} died of SIGKILL; no record shows who sent it.")
            }

            (E::StopSignal, R::Handled) => {
                format!("{name} handled {stop_name} and ended itself with it {after} later.")
            }
            (E::StopSignal, _) => format!(
                "{name} has no handler for {stop_name}: its default action ended the process after \
                 {after}, without any cleanup."
            ),
            (E::OtherSignal { signal, sent: Some(sent) }, R::NotSent) => format!(
                "{name} died of {} by {}: its default action, without any cleanup.",
                signal::name(*signal),
                sent.signal.sender.comm
            ),
            (E::OtherSignal { signal, sent: None }, R::NotSent) => format!(
                "{name} died of {}; no process outside the container sent it.",
                signal::name(*signal)
            ),
            (E::OtherSignal { signal, .. }, _) => {
                format!("{name} died of {}, {after} after {stop_name}.", signal::name(*signal))
            }

            (E::Code(code), R::Handled) => format!(
                "{name} handled {stop_name}{by_stop} and exited {after} later with code {code}."
            ),
            (E::Code(code), R::Waited) => format!(
                "{name} blocks {stop_name}{by_stop} to take it itself (sigwait or signalfd: \
                 inferred) and exited {after} later with code {code}."
            ),
            (E::Code(code), R::NotSent) => {
                format!("{name} exited with code {code}; {}.", self.sent_before(exit_at))
            }
            (E::Code(code), R::Discarded) => format!(
                "{name} exited with code {code}, {after} after a {stop_name} that the kernel had \
                 discarded."
            ),
            (E::Code(code), _) => format!(
                "{name} exited with code {code}, {after} after a {stop_name} that was never taken."
            ),
        }
    }

    fn hook_used_grace(&self, left: i64, stop_name: &str) -> String {
        let stop_at = self.stop.map_or_else(BootTime::default, |stop| stop.at);
        let grace = self.case.grace_seconds.unwrap_or_default();
        let used = self.hook.as_ref().map(|h| stop_at.since(h.began)).unwrap_or_default();
        let state = if self.hook_was_cut_off() { "was still running" } else { "had ended" };
        format!(
            "The preStop hook {state} after {} of a grace period of {grace} s, so {stop_name} came with {} s \
             left, raised to the kubelet's minimum of {GRACE_FLOOR_SECONDS} s; {}.",
            secs(used),
            left.max(0),
            self.ended_how(stop_at),
        )
    }

    /// The last signal from outside before the exit, for the message.
    fn sent_before(&self, exit_at: BootTime) -> String {
        let window = exit_at - longest_grace(&self.case);
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

    fn without_exit(&self) -> String {
        let lost = self
            .hidden_by_loss(Absence::Delivery)
            .map(|lost| format!("evidence was lost ({lost})"));
        let why = lost.unwrap_or_else(|| "the agent never saw its processes".into());
        format!("How it ended is not known: the kernel's record of its exit is missing, {why}.")
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
