//! What keeps a container from ending: processes that survive SIGKILL, and the cgroup freezer.
//!
//! The evidence is in the kernel's records (SIGKILL, exit, empty cgroup, freezes on cgroup v2) and in the
//! looks into /proc that the engine requests for a container that is late. The findings are built with each
//! report.

use super::{
    process::{ContainerProcesses, Freeze},
    signal,
};
use crate::{input::*, report::*};
use std::{fmt::Write, time::Duration};

/// A process that is alive this long after SIGKILL is reported. Less is normal: the memory of a big process
/// takes time to free.
pub const AFTER: Duration = Duration::from_secs(2);
/// Functions of a stack that the message shows.
const SHOWN_STACK: usize = 3;

/// A process that is alive after SIGKILL.
#[derive(Clone, Copy, Debug)]
pub struct UnkilledProcess<'a> {
    /// What /proc showed last.
    pub process: &'a ProcProcess,
    /// The SIGKILL that should have ended the process, or its init's exit.
    pub killed: BootTime,
    /// When /proc was last read.
    pub looked: BootTime,
    /// Number of other processes left in the container.
    others: usize,
}

/// The first process of the latest look that should have ended a while ago. It started before its SIGKILL: a
/// later process with the same PID is another one.
pub fn survivor(processes: &ContainerProcesses) -> Option<UnkilledProcess<'_>> {
    let report = processes.inspections.alive.as_ref()?;
    let mut survivors = report.processes.iter().filter_map(|process| {
        let killed = killed(processes, process)?;
        let is_it = process.state != TaskState::Zombie && process.started <= killed.0;
        (is_it && report.looked >= killed + AFTER).then_some((process, killed))
    });
    let (process, killed) = survivors.next()?;
    let alive = report.alive.map_or(0, |alive| alive as usize);
    let others = survivors.count() + alive.saturating_sub(report.processes.len());
    Some(UnkilledProcess { process, killed, looked: report.looked, others })
}

fn killed(processes: &ContainerProcesses, process: &ProcProcess) -> Option<BootTime> {
    let known = processes.started(process.tgid);
    if known.is_some_and(|known| !same_start(known, process.started)) {
        return None;
    }
    processes.killed(process.tgid)
}

/// Compares a start time of the kernel with one of /proc, which is rounded down to clock ticks of 10 ms
/// (USER_HZ is 100 on every architecture that runs containers).
pub fn same_start(kernel: u64, proc: u64) -> bool {
    const TICK: u64 = 10_000_000;
    kernel / TICK == proc / TICK
}

/// The container was alive after SIGKILL: according to /proc or, without a look, to the kernel's records of
/// the signal and the end.
pub fn unkillable(processes: &ContainerProcesses) -> Option<Finding> {
    let found = |detail| Some(Finding::new(FindingKind::Unkillable, detail));
    let ended = processes.ended();
    if let Some(survivor) = survivor(processes) {
        let detail = match ended.filter(|at| *at >= survivor.looked) {
            Some(at) => format!(
                "Alive until {} after SIGKILL: {survivor}, seen last after {}.",
                secs(at.since(survivor.killed)),
                secs(survivor.looked.since(survivor.killed)),
            ),
            None => survivor.still_alive(),
        };
        return found(detail);
    }
    let main = processes.main()?;
    let exit = processes.exit().map(|(at, _)| at);
    let by_signal = processes.killed(main).zip(exit);
    let by_init = processes.namespace_ended().zip(ended);
    let (killed, until) = [by_signal, by_init]
        .into_iter()
        .flatten()
        .find(|(killed, until)| *until >= *killed + AFTER)
        // With records missing, another process may have been taken for the main one.
        .filter(|(killed, _)| processes.gaps.is_complete_since(*killed))?;
    found(format!(
        "Alive until {} after SIGKILL; where it hung is not known: /proc could not be read in time.",
        secs(until.since(killed))
    ))
}

/// The cgroup was frozen when the container was stopped or before it ended. `stop`: when, and by which
/// signal.
pub fn frozen(processes: &ContainerProcesses, stop: Option<(BootTime, u8)>) -> Option<Finding> {
    let (stopped, signal) = stop?;
    let signal = signal::name(signal);
    let until = processes.ended();
    // The end of the freeze may have been lost since the freeze began, its beginning at any time.
    let certain = |f: &Freeze| processes.gaps.is_complete_since(f.from.unwrap_or_default());
    let freeze = processes.inspections.freeze(stopped, until, certain)?;
    let mut detail = match freeze.from {
        None => format!("Its cgroup was frozen when {signal} came, since before the agent looked"),
        Some(from) if from <= stopped => {
            format!("Its cgroup was frozen {} before {signal} came", secs(stopped.since(from)))
        }
        Some(from) => {
            let was = if processes.inspections.has_no_records() { "was found" } else { "was" };
            format!("Its cgroup {was} frozen {} after {signal}", secs(from.since(stopped)))
        }
    };
    let end = match (freeze.to, until) {
        (Some(to), Some(until)) if to >= until => ", until it exited".into(),
        (Some(to), _) => format!(", and thawed {} after it", secs(to.since(stopped))),
        (None, Some(_)) => ", until it exited".into(),
        (None, None) => ", and it still is".into(),
    };
    // Writing to a String cannot fail.
    let _ = write!(
        detail,
        "{end}: a frozen process runs no handler, so a signal waits until it is thawed."
    );
    Some(Finding::new(FindingKind::Frozen, detail))
}

/// The latest look as evidence.
pub fn evidence(processes: &ContainerProcesses) -> Option<Evidence> {
    let UnkilledProcess { process, looked, .. } = survivor(processes)?;
    Some(Evidence {
        at: looked.into(),
        source: Source::Proc,
        kind: EvidenceKind::Process(process.clone()),
    })
}

impl UnkilledProcess<'_> {
    /// The survivor as one sentence.
    pub fn still_alive(&self) -> String {
        format!("Still alive {} after SIGKILL: {self}.", secs(self.looked.since(self.killed)))
    }
}

impl std::fmt::Display for UnkilledProcess<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ProcProcess { tgid, comm, state, thread, wchan, stack, .. } = self.process;
        match thread {
            Some(tid) => write!(f, "thread {tid} of {comm} (pid {tgid}, its leader is a zombie)")?,
            None => write!(f, "{comm} (pid {tgid})")?,
        }
        write!(f, " in state {}", state.letter())?;
        if *state == TaskState::Uninterruptible {
            f.write_str(" (uninterruptible)")?;
        }
        // /proc/PID/wchan and stack need different capabilities: use whichever could be read.
        if let Some(function) = wchan.as_ref().or(stack.first()) {
            write!(f, " in {function}")?;
            let above: Vec<&str> = stack
                .iter()
                .map(String::as_str)
                .skip_while(|frame| frame == function)
                .take(SHOWN_STACK)
                .collect();
            if !above.is_empty() {
                write!(f, ", called by {}", above.join(" < "))?;
            }
        }
        if self.others > 0 {
            write!(f, "; {} more with it", self.others)?;
        }
        Ok(())
    }
}
