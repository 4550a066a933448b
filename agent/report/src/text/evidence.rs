//! One piece of a verdict's evidence as a sentence.

use super::exit;
use crate::{Disposition, EvidenceKind, ProcProcess, Process, SignalResult, Target, signal};
use std::fmt::{self, Write};

/// `si_code` of a signal that the kernel sends (include/uapi/asm-generic/siginfo.h).
const SI_KERNEL: i32 = 0x80;

/// The evidence as a sentence; `None`: its milestone says the same.
pub(super) fn sentence(kind: &EvidenceKind) -> Option<String> {
    let mut text = String::new();
    let _ = write_sentence(&mut text, kind); // writing to a String cannot fail
    (!text.is_empty()).then_some(text)
}

fn write_sentence(f: &mut String, kind: &EvidenceKind) -> fmt::Result {
    use EvidenceKind as K;
    match kind {
        K::SignalGenerate { signal, code, result, sender, target } => {
            let Process { comm, pid, .. } = sender;
            // The kernel's own signal has as its sender the process that happened to run: of an OOM kill, often the victim.
            match *code {
                SI_KERNEL => f.write_str("the kernel sent ")?,
                _ => write!(f, "{comm} (pid {pid}) sent ")?,
            }
            write!(f, "{}", signal::name(*signal))?;
            f.write_str(match result {
                SignalResult::Delivered => "",
                SignalResult::Ignored => ": the kernel discarded it",
                SignalResult::AlreadyPending => ": one was pending already",
                SignalResult::Overflow => ": the queue was full",
                SignalResult::Unknown => ": with an unknown result",
            })?;
            target.iter().try_for_each(|target| state(f, target))
        }
        K::SignalDeliver { signal } => {
            write!(f, "its handler of {} started", signal::name(*signal))
        }
        K::SchedProcessExit { status } => write!(f, "the main process ended: {}", exit(*status)),
        K::MarkVictim { pid } => write!(f, "the OOM killer chose pid {pid}"),
        K::CgroupEmpty | K::PreStopExec { .. } | K::PreStopSpec { .. } => Ok(()),
        K::PreStopExit { status } => write!(f, "the preStop hook ended: {}", exit(*status)),
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

fn state(f: &mut String, target: &Target) -> fmt::Result {
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
    let pending: Vec<_> = target.pending.iter().map(|one| signal::name(*one)).collect();
    if pending.is_empty() { Ok(()) } else { write!(f, ", pending: {}", pending.join(", ")) }
}
