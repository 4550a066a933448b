//! One piece of a verdict's evidence as a sentence.

use coroner_core::{
    evidence::EvidenceKind,
    input::{Disposition, ExitStatus, Hook, ProcProcess, ProcessRef, SignalResult, TargetState},
    signal,
};
use std::fmt::{self, Write};

/// The evidence as a sentence.
pub(super) fn sentence(kind: &EvidenceKind) -> String {
    let mut text = String::new();
    let _ = write_sentence(&mut text, kind); // writing to a String cannot fail
    text
}

fn write_sentence(f: &mut String, kind: &EvidenceKind) -> fmt::Result {
    use EvidenceKind as K;
    match kind {
        K::SignalGenerate { signal, result, sender, target, .. } => {
            let ProcessRef { comm, tgid, .. } = sender;
            let result = match result {
                SignalResult::Delivered => "the kernel accepted it",
                SignalResult::Ignored => "the kernel discarded it",
                SignalResult::AlreadyPending => "one was pending already",
                SignalResult::Overflow => "the queue was full",
                SignalResult::Unknown => "with an unknown result",
            };
            let name = signal::name(*signal);
            write!(f, "{comm} (pid {tgid}) sent {name}: {result}")?;
            target.iter().try_for_each(|target| state(f, target))
        }
        K::SignalDeliver { signal } => {
            write!(f, "its handler of {} started", signal::name(*signal))
        }
        K::SchedProcessExit { status } => write!(f, "the main process {}", ended(*status)),
        K::MarkVictim { pid } => write!(f, "the OOM killer chose pid {pid}"),
        K::CgroupEmpty => f.write_str("the cgroup's last process exited"),
        K::PreStopExec { pid, comm } => {
            write!(f, "{comm} (pid {pid}) started in the container: its preStop hook")
        }
        K::PreStopExit { status } => write!(f, "the preStop hook {}", ended(*status)),
        K::PreStopSpec { hook } => {
            let hook = match hook {
                Hook::Exec(_) => "command",
                Hook::HttpGet => "httpGet",
                Hook::TcpSocket => "tcpSocket",
                Hook::Sleep(seconds) => return sleep(f, *seconds),
            };
            write!(f, "the spec has a preStop {hook}, which has no process")
        }
        K::Process(process) => {
            let ProcProcess { tgid, comm, state, wchan, stack, .. } = process;
            write!(f, "{comm} (pid {tgid}) is in state {}", state.letter())?;
            if let Some(wchan) = wchan {
                write!(f, " in {wchan}")?;
            }
            if !stack.is_empty() {
                write!(f, ", stack {}", stack.join(" < "))?;
            }
            Ok(())
        }
    }
}

fn sleep(f: &mut String, seconds: i64) -> fmt::Result {
    write!(f, "the spec has a preStop sleep of {seconds} s, which has no process")
}

/// The target's disposition and state.
fn state(f: &mut String, target: &TargetState) -> fmt::Result {
    f.write_str(match target.disposition {
        Disposition::Default => "; its default action applies",
        Disposition::Ignore => "; it ignores the signal (SIG_IGN)",
        Disposition::Handler => "; it has a handler",
    })?;
    let marks = [
        (target.unkillable, "it is PID 1 of its namespace"),
        (target.blocked, "it blocks the signal"),
        (target.group_exit, "it is exiting"),
    ];
    for (_, mark) in marks.iter().filter(|(is_set, _)| *is_set) {
        write!(f, ", {mark}")?;
    }
    let pending = (1..=64).filter(|number| target.pending & (1 << (number - 1)) != 0);
    let pending: Vec<_> = pending.map(signal::name).collect();
    if pending.is_empty() { Ok(()) } else { write!(f, ", pending: {}", pending.join(", ")) }
}

fn ended(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Signal { signal, core: false } => {
            format!("was killed by {}", signal::name(signal))
        }
        ExitStatus::Signal { signal, core: true } => {
            format!("was killed by {}, with a core dump", signal::name(signal))
        }
    }
}
