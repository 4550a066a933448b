//! The rules, in the order of precedence, each with its sentence.

use super::{
    CONVENTIONAL, Facts, GRACE_FLOOR_SECONDS, OWN_MAKING, ended_with, longest_grace, secs,
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
    pub(super) fn decide(&self) -> (Verdict, String) {
        let name = self.init_name();
        let stop_name = signal::name(self.stop_signal());
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
            ExitStatus::Signal { signal, .. } if signal == self.stop_signal() => {
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
        // A runtime that is back sends it again, and the handler may be there by then.
        if thrown_away(&stop.signal) && self.taken.is_none() {
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
                    "{name} handled {stop_name}{} but was still running {after} later, when {by} \
                     sent SIGKILL.",
                    by_whom(stop)
                ),
            );
        }
        let bit = 1_u64 << (u32::from(self.stop_signal().clamp(1, 64)) - 1);
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
        let by = by_whom(stop);
        if self.taken.is_some() {
            return (
                Verdict::Graceful,
                format!(
                    "{name} handled {stop_name}{by} and left by itself {after} later with code \
                     {code}."
                ),
            );
        }
        if kept(&stop.signal) {
            return (
                Verdict::Graceful,
                format!(
                    "{name} blocks {stop_name}{by} to take it itself (sigwait or signalfd: \
                     inferred) and left {after} later with code {code}."
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
                        "SIGKILL to {name} by {} (pid {}), {}.",
                        kill.signal.sender.comm,
                        kill.signal.sender.tgid,
                        match self.case.stop_signal {
                            SIGKILL => "which is its stop signal".to_owned(),
                            signal => format!("with no {} before it", signal::name(signal)),
                        }
                    ),
                ),
                None => self.killed_by_nobody_outside(&name, |_| String::new()),
            },
            ExitStatus::Signal { signal, .. } => {
                let sender = self
                    .case
                    .processes
                    .sent()
                    .find(|s| s.from_outside() && s.signal.signal == signal && s.at <= exit_at);
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
            ExitStatus::Code(code) => {
                let verdict = if code == 0 { Verdict::Completed } else { Verdict::Failed };
                let before = self.sent_before(exit_at);
                (verdict, format!("{name} left by itself with code {code}; {before}."))
            }
        }
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
