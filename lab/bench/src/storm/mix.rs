//! What the load is made of, and at what pace. Pure.

use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// Containers that storm.
pub(super) const CONTAINERS: usize = 10;
/// How many of them are told to stop, again and again, and do not.
pub(super) const STOPPED: usize = 5;
/// Processes that storm outside.
pub(super) const OUTSIDE: usize = 2;

/// Events in a second. A signal is a SIGHUP that a process sends itself and catches, unless said
/// otherwise; an exit is a child's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Mix {
    /// Signals inside of containers.
    pub(super) inside: f64,
    /// SIGTERMs from outside to those of the containers that are told to stop.
    pub(super) stops: f64,
    /// Exits inside of containers.
    pub(super) exits_inside: f64,
    /// Containers whose only process exits at once: each is a cgroup made, an exit, the cgroup empty,
    /// the cgroup removed.
    pub(super) lives: f64,
    /// Signals outside.
    pub(super) outside: f64,
    pub(super) exits_outside: f64,
}

impl Mix {
    /// 20,000 signals and 2,000 exits inside, 200,000 and 5,000 outside.
    pub(super) const STORM: Self = Self {
        inside: 19_000.0,
        stops: 1_000.0,
        exits_inside: 1_950.0,
        lives: 50.0,
        outside: 200_000.0,
        exits_outside: 5_000.0,
    };

    /// 200,000 signals inside, half of them SIGTERMs from outside: each of those decides.
    pub(super) const BURST: Self = Self {
        inside: 100_000.0,
        stops: 100_000.0,
        exits_inside: 0.0,
        lives: 0.0,
        outside: 0.0,
        exits_outside: 0.0,
    };

    /// What each container's process is to do.
    pub(super) fn container(&self) -> Orders {
        let share = 1.0 / CONTAINERS as f64;
        Orders {
            signals: self.inside * share,
            exits: self.exits_inside * share,
            ..Orders::default()
        }
    }

    /// What each process outside is to do.
    pub(super) fn outsider(&self) -> Orders {
        let share = 1.0 / OUTSIDE as f64;
        Orders {
            signals: self.outside * share,
            exits: self.exits_outside * share,
            ..Orders::default()
        }
    }

    /// What the one is to do that stops containers, and makes and ends short ones below `pod`.
    pub(super) fn runtime(&self, stopped: Vec<i32>, pod: PathBuf) -> Orders {
        Orders {
            stops: self.stops,
            stopped,
            lives: self.lives,
            pod: Some(pod),
            ..Orders::default()
        }
    }
}

/// What one process of the load is to do: a line on its stdin. Rates are per second.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Orders {
    /// When to begin: CLOCK_BOOTTIME, ns.
    pub(super) from: u64,
    /// For how long.
    pub(super) lasting: Duration,
    /// SIGHUPs to itself.
    pub(super) signals: f64,
    /// Children that exit at once.
    pub(super) exits: f64,
    /// SIGTERMs to `stopped`, in turn.
    pub(super) stops: f64,
    /// Whom.
    pub(super) stopped: Vec<i32>,
    /// Short containers below `pod`.
    pub(super) lives: f64,
    /// Where.
    pub(super) pod: Option<PathBuf>,
}

/// What one process of the load, or all of it, has done: a line on its stdout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// SIGHUPs sent to itself.
    pub(super) signals: u64,
    /// SIGHUPs caught.
    pub(super) caught: u64,
    /// SIGTERMs sent to others.
    pub(super) stops: u64,
    /// SIGTERMs caught: two that come before the first is caught are one.
    pub(super) stops_caught: u64,
    /// Children that exited.
    pub(super) exits: u64,
    /// Short containers.
    pub(super) lives: u64,
    /// CPU that it used, without its children, ns.
    pub(super) cpu: u64,
}

impl Done {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            signals: self.signals + other.signals,
            caught: self.caught + other.caught,
            stops: self.stops + other.stops,
            stops_caught: self.stops_caught + other.stops_caught,
            exits: self.exits + other.exits,
            lives: self.lives + other.lives,
            cpu: self.cpu + other.cpu,
        }
    }

    /// Signals that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.signals + self.stops
    }

    /// Processes that exited.
    pub(super) fn exited(&self) -> u64 {
        self.exits + self.lives
    }
}

/// What all did, by where they did it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    /// In containers that are told to stop.
    pub(super) stopped: Done,
    /// In the other containers.
    pub(super) unstopped: Done,
    /// Outside, SIGTERMs to containers and short containers left out.
    pub(super) outside: Done,
    /// SIGTERMs to containers, and short containers.
    pub(super) runtime: Done,
}

impl Totals {
    pub(super) fn all(&self) -> Done {
        self.stopped.and(self.unstopped).and(self.outside).and(self.runtime)
    }

    /// What happened in containers.
    pub(super) fn inside(&self) -> Done {
        self.stopped.and(self.unstopped).and(self.runtime)
    }

    /// How many records coroner's programs have to make of it, or have to count as lost: each signal's
    /// sending and its being caught; the exits of containers that are being stopped (of others, a
    /// container's own children are its own affair); four for each short container.
    pub(super) fn records(&self) -> u64 {
        let inside = self.inside();
        inside.sent() + inside.caught + inside.stops_caught + self.stopped.exits + 4 * inside.lives
    }
}

/// How many events of a rate are due.
pub(super) fn due(rate: f64, elapsed: Duration) -> u64 {
    // Rates and times are small and positive; what is not becomes 0.
    (rate * elapsed.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_the_one_that_is_stated() {
        let mix = Mix::STORM;
        assert_eq!((mix.inside + mix.stops, mix.exits_inside + mix.lives), (20e3, 2e3));
        assert_eq!((mix.outside, mix.exits_outside), (200e3, 5e3));
        assert_eq!(mix.container().signals * CONTAINERS as f64, mix.inside);
        assert_eq!(mix.outsider().exits * OUTSIDE as f64, mix.exits_outside);
        assert_eq!(Mix::BURST.inside + Mix::BURST.stops, 200e3);
    }

    #[test]
    fn what_is_due_grows_with_time() {
        assert_eq!(due(1000.0, Duration::from_micros(999)), 0);
        assert_eq!(due(1000.0, Duration::from_millis(30)), 30);
        assert_eq!(due(-1.0, Duration::from_secs(1)), 0);
    }

    #[test]
    fn every_event_that_concerns_a_container_is_a_record() {
        let inside = Done { signals: 10, caught: 10, exits: 4, ..Done::default() };
        let totals = Totals {
            stopped: Done { stops_caught: 2, ..inside },
            unstopped: inside,
            outside: Done { signals: 1000, caught: 1000, exits: 100, ..Done::default() },
            runtime: Done { stops: 3, lives: 1, ..Done::default() },
        };
        assert_eq!(totals.records(), 20 + 20 + 3 + 2 + 4 + 4);
        assert_eq!((totals.all().sent(), totals.all().exited()), (1023, 109));
    }

    #[test]
    fn orders_and_reports_are_lines() {
        let orders = Orders { from: 7, stopped: vec![1, 2], ..Mix::STORM.container() };
        let line = serde_json::to_string(&orders).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Orders>(&line).unwrap(), orders);
    }
}
