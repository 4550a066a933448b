//! The connections of terminating pods: of which sandboxes they are counted, and the counts so far.

use crate::input::{TrafficBlindness, TrafficEvent, TrafficFact, TrafficReading};
use crate::report::{BootTime, SandboxId};
use crate::{output::TrafficRequest, table::Table};
use std::time::Duration;

/// Sandboxes whose connections are counted at once; the map of the kernel programs has room for fewer.
const MAX_COUNTED: usize = 1_024;
/// A sandbox in which nothing terminates any more is forgotten after this.
pub(crate) const IDLE: Duration = Duration::from_secs(120);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CountedTraffic {
    /// The last reason to count.
    touched: BootTime,
    /// The beginning; `None`: not answered yet, or not visible.
    pub began: Option<TrafficReading>,
    /// The kernel shows refused SYNs.
    pub sees_refusals: bool,
    /// The first reading after the stop signal.
    pub at_stop: Option<TrafficReading>,
    /// When the first container was sent its stop signal.
    pub stopped: Option<BootTime>,
    pub last: TrafficReading,
    /// When counting was asked for.
    pub since: BootTime,
    /// The reading at the stop signal was asked for.
    is_stop_read: bool,
    /// The reading after the sandbox had stopped was asked for.
    is_end_read: bool,
    /// The kernel counts no longer: what was counted waits for its report to be final.
    is_over: bool,
    /// Why nothing is seen, or no longer.
    pub not_visible: Option<TrafficBlindness>,
    /// When it was last asked for a reading: at first, when counting was asked for.
    asked: BootTime,
}

/// The connections of all sandboxes that terminate.
#[derive(Clone, Debug, Default)]
pub struct TrafficState {
    sandboxes: Table<SandboxId, CountedTraffic>,
    /// The adapter has answered once. There is none in the recording of an agent that could not count.
    pub has_adapter: bool,
}

impl CountedTraffic {
    /// The stop signal came before counting began: all that was counted was after it, and the programs have seen no
    /// stop signal, or a later one.
    pub fn is_all_after_stop(&self) -> bool {
        let began = self.began.as_ref();
        self.stopped.zip(began).is_some_and(|(stopped, began)| stopped <= began.at)
    }

    /// Events may be missing in the counts.
    pub fn is_incomplete(&self) -> bool {
        self.began.as_ref().is_some_and(|began| self.last.skipped > began.skipped)
    }
}

impl TrafficState {
    pub fn get(&self, sandbox: &SandboxId) -> Option<&CountedTraffic> {
        self.sandboxes.get(sandbox)
    }

    /// Counts that were asked for have not come, so what is known lacks the end. The time of the reading decides, not
    /// the number of answers: any later reading has what a lost request would have brought.
    pub fn is_pending(&self, counted: &CountedTraffic) -> bool {
        self.has_adapter && counted.not_visible.is_none() && counted.last.at < counted.asked
    }

    /// Notes that a sandbox terminates. True: its connections are to be counted from now on.
    pub fn begin(&mut self, at: BootTime, sandbox: &SandboxId, stopped: Option<BootTime>) -> bool {
        let is_new = !self.sandboxes.contains_key(sandbox);
        if is_new && self.sandboxes.len() >= MAX_COUNTED {
            return false;
        }
        let counted = self.sandboxes.entry(sandbox.clone()).or_default();
        counted.touched = at;
        if is_new {
            (counted.since, counted.asked) = (at, at);
        }
        counted.stopped = counted.stopped.or(stopped);
        is_new
    }

    /// Counts are to be read at the stop signal. Once: whoever sends signals is not bounded.
    pub fn read_at_stop(&mut self, sandbox: SandboxId) -> Option<TrafficRequest> {
        let counts = |counted: &&mut CountedTraffic| {
            // The beginning is nearer to a stop signal that came before it.
            counted.began.is_some() && !counted.is_over && !counted.is_all_after_stop()
        };
        let counted = self.sandboxes.get_mut(&sandbox).filter(counts)?;
        if std::mem::replace(&mut counted.is_stop_read, true) {
            return None;
        }
        Some(TrafficRequest::Read(sandbox))
    }

    /// Counts are to be read: a container's last process has gone. Also while counting begins, which takes longer
    /// than a short shutdown if many pods are deleted at once.
    pub fn read_at_end(&mut self, at: BootTime, sandbox: SandboxId) -> Option<TrafficRequest> {
        let counted = self.sandboxes.get_mut(&sandbox)?;
        if counted.not_visible.is_some() || counted.is_over {
            return None;
        }
        counted.asked = counted.asked.max(at);
        Some(TrafficRequest::Read(sandbox))
    }

    /// Counts are to be read once more in each of these sandboxes, which has stopped: clients are refused until its
    /// network is gone.
    pub fn read_stopped(
        &mut self,
        at: BootTime,
        has_stopped: impl Fn(&SandboxId) -> bool,
    ) -> Vec<TrafficRequest> {
        let mut requests = Vec::new();
        for (sandbox, counted) in self.sandboxes.iter_mut() {
            if counted.is_end_read || counted.not_visible.is_some() || !has_stopped(sandbox) {
                continue;
            }
            (counted.is_end_read, counted.asked) = (true, counted.asked.max(at));
            requests.push(TrafficRequest::Read(sandbox.clone()));
        }
        requests
    }

    /// Applies an answer. False: it changes nothing.
    pub fn apply(&mut self, event: TrafficEvent) -> bool {
        let Some(counted) = self.sandboxes.get_mut(&event.sandbox) else { return false };
        match event.fact {
            TrafficFact::Began { reading, .. } if reading.at < counted.since => return false, // an earlier stop's
            TrafficFact::Began { reading, sees_refusals } => {
                counted.sees_refusals = sees_refusals;
                counted.not_visible = None;
                counted.last.clone_from(&reading);
                counted.began = Some(reading);
            }
            TrafficFact::Counted { reading } => {
                if counted.began.is_none() || reading.at < counted.last.at {
                    return false;
                }
                if counted.at_stop.is_none() && counted.stopped.is_some_and(|at| reading.at >= at) {
                    counted.at_stop = Some(reading.clone());
                }
                counted.last = reading;
            }
            // The adapter no longer knows it: what was counted stands.
            TrafficFact::NotVisible { .. } if counted.is_over => return false,
            TrafficFact::NotVisible { reason } => {
                counted.not_visible.get_or_insert(reason);
            }
        }
        true
    }

    /// Stops counting in a sandbox, and keeps what was counted. True: it was counted.
    pub fn stop(&mut self, sandbox: &SandboxId) -> bool {
        let counted = self.sandboxes.get_mut(sandbox);
        counted.is_some_and(|counted| !std::mem::replace(&mut counted.is_over, true))
    }

    /// Stops counting in a sandbox. True: it was counted.
    pub fn forget(&mut self, sandbox: &SandboxId) -> bool {
        self.sandboxes.remove(sandbox).is_some_and(|counted| !counted.is_over)
    }

    /// Sandboxes in which nothing has happened for long.
    pub fn idle(&self, now: BootTime) -> impl Iterator<Item = &SandboxId> {
        let idle = move |counted: &CountedTraffic| now > counted.touched + IDLE;
        self.sandboxes.iter().filter(move |(_, counted)| idle(counted)).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answers_about_an_earlier_stop_change_nothing() {
        let (mut state, sandbox) = (TrafficState::default(), SandboxId::new("s"));
        let says = |state: &mut TrafficState, fact| {
            state.apply(TrafficEvent { sandbox: sandbox.clone(), fact })
        };
        let began = |at| TrafficFact::Began {
            reading: TrafficReading { at: BootTime(at), ..TrafficReading::default() },
            sees_refusals: true,
        };
        assert!(state.begin(BootTime(10), &sandbox, None));
        assert!(state.forget(&sandbox));
        assert!(state.begin(BootTime(20), &sandbox, None));
        assert!(!says(&mut state, began(15)));
        assert!(says(&mut state, TrafficFact::NotVisible { reason: TrafficBlindness::NoProcess }));
        assert!(says(&mut state, began(25)));
        let counted = state.get(&sandbox).unwrap();
        assert_eq!(counted.not_visible, None);
        assert_eq!(counted.began.as_ref().map(|reading| reading.at), Some(BootTime(25)));
    }
}
