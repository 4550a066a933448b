//! What keeps one container from ending, according to the kernel's records and to looks into /proc.

use crate::{input::ProcReport, table::push_latest, time::BootTime};
use std::{collections::VecDeque, time::Duration};

/// A runtime that signals all processes of a container freezes it for some milliseconds (runc,
/// `signalAllProcesses`): too short to explain anything.
const FROZEN_AT_LEAST: Duration = Duration::from_millis(100);
/// Bound on freezes; the latest are kept.
const MAX_FREEZES: usize = 16;
/// Bounds on processes of one report, and on functions of a stack.
const MAX_PROCESSES: usize = 8;
const MAX_STACK: usize = 16;

/// The freezes of one container, and the latest looks into /proc.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inspections {
    /// Freezes that the kernel reported, in order.
    freezes: VecDeque<Freeze>,
    /// A freeze found by looking, and the last look that found it: a container may have been frozen before the agent
    /// started.
    polled: Option<(Freeze, BootTime)>,
    /// The latest look that found a living process.
    pub alive: Option<ProcReport>,
    /// The latest look that found none.
    last_empty: Option<BootTime>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freeze {
    /// `None`: before the agent started.
    pub from: Option<BootTime>,
    /// `None`: not thawed.
    pub to: Option<BootTime>,
}

impl Inspections {
    /// The kernel reported that the container's own cgroup was frozen or thawed.
    pub fn apply_frozen(&mut self, at: BootTime, frozen: bool) {
        match self.freezes.back_mut().filter(|freeze| freeze.to.is_none()) {
            Some(_) if frozen => {}
            Some(open) => open.to = Some(at),
            None => {
                let freeze = Freeze { from: frozen.then_some(at), to: (!frozen).then_some(at) };
                push_latest(&mut self.freezes, freeze, MAX_FREEZES);
            }
        }
    }

    pub fn apply(&mut self, mut report: ProcReport) {
        let at = report.looked;
        match (report.frozen, &mut self.polled) {
            (Some(true), Some((freeze, last))) => {
                (freeze.from, *last) = (freeze.from.min(Some(at)), at.max(*last));
            }
            (Some(true), none) => *none = Some((Freeze { from: Some(at), to: None }, at)),
            (Some(false), Some((freeze, last))) if at > *last => {
                freeze.to = Some(freeze.to.map_or(at, |known| known.min(at)));
            }
            _ => {}
        }
        if report.alive == Some(0) {
            self.last_empty = self.last_empty.max(Some(at));
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

    /// The kernel has reported no freeze of it.
    pub fn has_no_records(&self) -> bool {
        self.freezes.is_empty()
    }

    /// A look since then found no process: the record of the exit must have been lost.
    pub fn is_gone(&self, since: BootTime) -> bool {
        let alive = self.alive.as_ref().map(|report| report.looked);
        self.last_empty.is_some_and(|at| at >= since) && self.last_empty > alive
    }

    /// The longest freeze that overlaps the time from `since` to `until`. `certain`: no record of the freeze
    /// was lost; otherwise a missing beginning or end may be at any time.
    pub fn freeze(
        &self,
        since: BootTime,
        until: Option<BootTime>,
        certain: impl Fn(&Freeze) -> bool,
    ) -> Option<Freeze> {
        let touches = |f: &&Freeze| {
            let began = until.is_none_or(|until| f.from.is_none_or(|from| from < until));
            began && f.to.is_none_or(|to| to > since)
        };
        // A freeze that was only found by looking has no exact beginning, so the kernel's records come first.
        let by_kernel = self.freezes.iter().filter(touches).max_by_key(|f| length(f, until));
        by_kernel
            .filter(|f| f.from.is_some() && f.to.is_some() || certain(f))
            .filter(|f| length(f, until) >= FROZEN_AT_LEAST)
            .copied()
            .or(self.polled.map(|(freeze, _)| freeze).filter(|freeze| touches(&freeze)))
    }
}

/// How long it was frozen, including the time before the stop. Unknown ends count as far as possible.
fn length(freeze: &Freeze, until: Option<BootTime>) -> Duration {
    let to = match (freeze.to, until) {
        (Some(to), Some(until)) => Some(to.min(until)),
        (to, until) => to.or(until),
    };
    freeze.from.zip(to).map_or(Duration::MAX, |(from, to)| to.since(from))
}
