//! What keeps a container from ending: SIGKILL that does not take, and the cgroup freezer.
//!
//! Three sources speak of it: the kernel's records (SIGKILL, exit, empty, frozen on cgroup v2), and
//! the looks into /proc that the engine asks for while a container is late. Facts only; the
//! findings are built from them whenever an account is.

use super::{
    evidence::{Evidence, EvidenceKind},
    input::{ProcProcess, ProcReport, TaskState},
    observation::{Finding, FindingKind, Source},
    process::Processes,
    signal,
    time::BootTime,
    verdict::secs,
};
use std::{collections::VecDeque, fmt::Write, time::Duration};

/// Alive for longer than this after SIGKILL is worth telling: to tear down the memory of a big
/// process takes time as well.
pub const AFTER: Duration = Duration::from_secs(2);
/// A runtime that signals all processes of a container freezes it meanwhile, for milliseconds
/// (runc, `signalAllProcesses`): that explains nothing.
const FROZEN_AT_LEAST: Duration = Duration::from_millis(100);
/// Times of being frozen that are remembered: the latest.
const MAX_FREEZES: usize = 16;
/// Processes of one report that are kept, and functions of a stack.
const MAX_PROCESSES: usize = 8;
const MAX_STACK: usize = 16;
/// Functions of a stack that a person is shown.
const SHOWN_STACK: usize = 3;

/// What keeps one container from ending.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lingering {
    /// By the kernel's records, in order.
    freezes: VecDeque<Freeze>,
    /// By looking: v1 has no record of it, and a container may be older than the agent.
    polled: Option<Polled>,
    /// The latest look that found a process alive.
    alive: Option<ProcReport>,
    /// The latest look that found none.
    nobody: Option<BootTime>,
}

/// A time of being frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Freeze {
    /// `None`: since before the agent.
    from: Option<BootTime>,
    /// `None`: it was not thawed.
    to: Option<BootTime>,
}

/// Found frozen from the first to the last look; found thawed afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Polled {
    first: BootTime,
    last: BootTime,
    thawed: Option<BootTime>,
}

/// A process that SIGKILL has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Survivor<'a> {
    /// What /proc showed last.
    pub process: &'a ProcProcess,
    /// The SIGKILL that should have ended it, or its init's end.
    pub killed: BootTime,
    /// When it was last looked at.
    pub looked: BootTime,
    /// How many others are left with it.
    others: u32,
}

impl Lingering {
    /// The kernel says that the container's own cgroup was frozen, or thawed.
    pub fn learn_frozen(&mut self, at: BootTime, frozen: bool) {
        let open = self.freezes.back_mut().filter(|freeze| freeze.to.is_none());
        match (frozen, open) {
            (true, Some(_)) => return,
            (true, None) => self.freezes.push_back(Freeze { from: Some(at), to: None }),
            (false, Some(open)) => open.to = Some(at),
            (false, None) => self.freezes.push_back(Freeze { from: None, to: Some(at) }),
        }
        if self.freezes.len() > MAX_FREEZES {
            self.freezes.pop_front();
        }
    }

    /// Somebody looked.
    pub fn learn(&mut self, mut report: ProcReport) {
        let at = report.looked;
        match (report.frozen, &mut self.polled) {
            (Some(true), Some(polled)) => {
                polled.first = polled.first.min(at);
                polled.last = polled.last.max(at);
            }
            (Some(true), none) => *none = Some(Polled { first: at, last: at, thawed: None }),
            (Some(false), Some(polled)) if at > polled.last => {
                polled.thawed = Some(polled.thawed.map_or(at, |known| known.min(at)));
            }
            _ => {}
        }
        if report.alive == Some(0) {
            self.nobody = self.nobody.max(Some(at));
        } else if !report.processes.is_empty()
            && self.alive.as_ref().is_none_or(|known| known.looked <= at)
        {
            report.processes.truncate(MAX_PROCESSES);
            for process in &mut report.processes {
                process.stack.truncate(MAX_STACK);
            }
            self.alive = Some(report);
        }
    }

    /// A look since then found nobody: the record of its end must have been lost.
    pub fn is_gone(&self, since: BootTime) -> bool {
        let alive = self.alive.as_ref().map(|report| report.looked);
        self.nobody.is_some_and(|at| at >= since) && self.nobody > alive
    }

    /// `certain`: no record of it was lost. Otherwise a freeze whose beginning or end was not seen
    /// may have begun or ended at any time.
    fn freeze(
        &self,
        told: BootTime,
        until: Option<BootTime>,
        certain: impl Fn(&Freeze) -> bool,
    ) -> Option<Freeze> {
        let polled = self.polled.map(|p| Freeze { from: Some(p.first), to: p.thawed });
        let touches = |f: &&Freeze| {
            let began = until.is_none_or(|until| f.from.is_none_or(|from| from < until));
            began && f.to.is_none_or(|to| to > told)
        };
        // Looks know nothing of the true beginning.
        let by_kernel = self.freezes.iter().filter(touches).max_by_key(|f| length(f, until));
        by_kernel
            .filter(|f| f.from.is_some() && f.to.is_some() || certain(f))
            .filter(|f| length(f, until) >= FROZEN_AT_LEAST)
            .copied()
            .or(polled.filter(|p| touches(&p)))
    }
}

/// How long it was frozen, the time before it was told to end included. Of an unknown beginning or
/// end, as long as can be.
fn length(freeze: &Freeze, until: Option<BootTime>) -> Duration {
    let to = match (freeze.to, until) {
        (Some(to), Some(until)) => Some(to.min(until)),
        (to, until) => to.or(until),
    };
    freeze.from.zip(to).map_or(Duration::MAX, |(from, to)| to.since(from))
}

/// The first process of the latest look that should have been dead for a while. It began before
/// its SIGKILL: a process of the same number that began later is another one.
pub fn survivor(processes: &Processes) -> Option<Survivor<'_>> {
    let report = processes.lingering.alive.as_ref()?;
    let mut survivors = report.processes.iter().filter_map(|process| {
        let killed = killed(processes, process)?;
        let is_it = process.state != TaskState::Zombie && process.started <= killed.0;
        (is_it && report.looked >= killed + AFTER).then_some((process, killed))
    });
    let (process, killed) = survivors.next()?;
    let listed = u32::try_from(survivors.count()).unwrap_or(u32::MAX);
    let unlisted = report
        .alive
        .unwrap_or_default()
        .saturating_sub(u32::try_from(report.processes.len()).unwrap_or(u32::MAX));
    let others = listed.saturating_add(unlisted);
    Some(Survivor { process, killed, looked: report.looked, others })
}

fn killed(processes: &Processes, process: &ProcProcess) -> Option<BootTime> {
    let known = processes.started(process.tgid);
    if known.is_some_and(|known| !same_start(known, process.started)) {
        return None;
    }
    processes.killed(process.tgid)
}

/// A start time of the kernel and one of /proc, which is rounded down to clock ticks of 10 ms
/// (USER_HZ is 100 on every architecture that runs containers).
pub fn same_start(kernel: u64, proc: u64) -> bool {
    const TICK: u64 = 10_000_000;
    kernel / TICK == proc / TICK
}

/// It lived on after SIGKILL: what /proc showed of it, or where nobody looked, the kernel's
/// records of the signal and of the end.
pub fn unkillable(processes: &Processes) -> Option<Finding> {
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
        // With records missing, another may have been taken for the main process.
        .filter(|(killed, _)| processes.losses.spare(*killed))?;
    found(format!(
        "Alive until {} after SIGKILL; where it hung is not known: /proc could not be read in time.",
        secs(until.since(killed))
    ))
}

/// Its cgroup was frozen when it was told to end, or before it had ended. `told`: when, and with
/// which signal.
pub fn frozen(processes: &Processes, told: Option<(BootTime, u8)>) -> Option<Finding> {
    let (told, signal) = told?;
    let signal = signal::name(signal);
    let until = processes.ended();
    // Its end may have been lost since it began, its beginning at any time.
    let certain = |f: &Freeze| processes.losses.spare(f.from.unwrap_or_default());
    let freeze = processes.lingering.freeze(told, until, certain)?;
    let mut detail = match freeze.from {
        None => format!("Its cgroup was frozen when {signal} came, since before the agent looked"),
        Some(from) if from <= told => {
            format!("Its cgroup was frozen {} before {signal} came", secs(told.since(from)))
        }
        Some(from) if processes.lingering.freezes.is_empty() => {
            format!("Its cgroup was found frozen {} after {signal}", secs(from.since(told)))
        }
        Some(from) => format!("Its cgroup was frozen {} after {signal}", secs(from.since(told))),
    };
    let end = match (freeze.to, until) {
        (Some(to), Some(until)) if to >= until => ", until it had ended".into(),
        (Some(to), _) => format!(", and thawed {} after it", secs(to.since(told))),
        (None, Some(_)) => ", until it had ended".into(),
        (None, None) => ", and it still is".into(),
    };
    // Cannot fail: a String takes all.
    let _ = write!(
        detail,
        "{end}: a frozen process runs no handler, so a signal waits until it is thawed."
    );
    Some(Finding::new(FindingKind::Frozen, detail))
}

/// The latest look, as a piece of evidence.
pub fn evidence(processes: &Processes) -> Option<Evidence> {
    let Survivor { process, looked, .. } = survivor(processes)?;
    Some(Evidence {
        at: looked,
        source: Source::Proc,
        kind: EvidenceKind::Process(process.clone()),
    })
}

impl Survivor<'_> {
    /// As one sentence.
    pub fn still_alive(&self) -> String {
        format!("Still alive {} after SIGKILL: {self}.", secs(self.looked.since(self.killed)))
    }
}

impl std::fmt::Display for Survivor<'_> {
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
        // Without the right to see the one the other may be there.
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
