//! The evidence of a verdict as data: fields for programs, and a sentence for people.

use super::signal;
use crate::{ids::*, input::*, time::*, types::*};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One piece of evidence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// The time.
    pub at: BootTime,
    /// The source.
    pub source: Source,
    /// The content.
    #[serde(flatten)]
    pub kind: EvidenceKind,
}

/// The content of a piece of evidence; for the kernel's records, the tracepoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EvidenceKind {
    /// A signal was sent (`__send_signal_locked`, kernel/signal.c).
    SignalGenerate {
        /// The signal's number.
        signal: u8,
        /// `si_code`.
        code: i32,
        /// What the kernel did with it.
        result: SignalResult,
        /// The sender.
        sender: ProcessRef,
        /// The target's state at that moment, where it could be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<TargetState>,
    },
    /// A handler took a signal (`get_signal`, kernel/signal.c).
    SignalDeliver {
        /// The signal's number.
        signal: u8,
    },
    /// The main process's last thread exited (`do_exit`, kernel/exit.c).
    SchedProcessExit {
        /// The exit status.
        status: ExitStatus,
    },
    /// The OOM killer chose a process (`__oom_kill_process`, mm/oom_kill.c).
    MarkVictim {
        /// The victim's thread ID.
        pid: u32,
    },
    /// The last process left the cgroup (`cgroup_notify_populated`, kernel/cgroup/cgroup.c).
    CgroupEmpty,
    /// The preStop hook's process started.
    PreStopExec {
        /// The process.
        pid: Tgid,
        /// `comm`.
        comm: String,
    },
    /// The preStop hook's process exited.
    PreStopExit {
        /// The exit status.
        status: ExitStatus,
    },
    /// The pod's spec has a preStop hook without a process.
    PreStopSpec {
        /// The hook.
        hook: Hook,
    },
    /// /proc of a process that survives SIGKILL.
    Process(ProcProcess),
}

impl fmt::Display for EvidenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SignalGenerate { signal, result, sender, target, .. } => {
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
            Self::SignalDeliver { signal } => {
                write!(f, "its handler of {} began to run", signal::name(*signal))
            }
            Self::SchedProcessExit { status } => write!(f, "the main process {}", ended(*status)),
            Self::MarkVictim { pid } => write!(f, "the OOM killer chose pid {pid}"),
            Self::CgroupEmpty => f.write_str("the last process left the cgroup"),
            Self::PreStopExec { pid, comm } => {
                write!(f, "{comm} (pid {pid}) started in the container: its preStop hook")
            }
            Self::PreStopExit { status } => write!(f, "the preStop hook {}", ended(*status)),
            Self::PreStopSpec { hook } => {
                let hook = match hook {
                    Hook::Exec(_) => "command",
                    Hook::HttpGet => "httpGet",
                    Hook::TcpSocket => "tcpSocket",
                    Hook::Sleep(seconds) => return sleep(f, *seconds),
                };
                write!(f, "the spec has a preStop {hook}, which has no process")
            }
            Self::Process(process) => {
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
}

fn sleep(f: &mut fmt::Formatter<'_>, seconds: i64) -> fmt::Result {
    write!(f, "the spec has a preStop sleep of {seconds} s, which has no process")
}

/// The target's disposition and state.
fn state(f: &mut fmt::Formatter<'_>, target: &TargetState) -> fmt::Result {
    f.write_str(match target.disposition {
        Disposition::Default => "; its default action applies",
        Disposition::Ignore => "; it has set SIG_IGN",
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
            format!("was ended by {}", signal::name(signal))
        }
        ExitStatus::Signal { signal, core: true } => {
            format!("was ended by {}, with a core dump", signal::name(signal))
        }
    }
}
