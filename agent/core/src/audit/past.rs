//! What earlier stops of a workload's containers showed, while this agent observed them.

use crate::{
    ids::{PodRef, Workload},
    report::{ContainerDeath, MilestoneKind, PodTermination, REFUSED, Verdict},
    table::push_latest,
};
use coroner_report::{ConnectionEvent, TrafficPeer};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Bounds on containers of workloads, and on the stops of each. The one that was stopped least recently makes room.
const MAX_KNOWN: usize = 1024;
const MAX_STOPS: usize = 16;

/// One stop of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PastStop {
    verdict: Verdict,
    /// From the stop signal to the exit, or to SIGKILL.
    shutdown: Duration,
    was_killed: bool,
    hook: Duration,
}

#[derive(Clone, Debug, Default)]
pub struct Past {
    stops: VecDeque<PastStop>,
    /// Clients connected for so long after the stop began.
    late: Duration,
    learned: u64,
}

/// By namespace, workload and container; what is of a whole pod has an empty name.
#[derive(Debug, Default)]
pub struct PastStops {
    all: BTreeMap<(String, Workload, String), Past>,
    learned: u64,
}

impl PastStops {
    pub fn of(&self, pod: &PodRef, workload: &Workload, container: &str) -> Option<&Past> {
        self.all.get(&(pod.namespace.clone(), workload.clone(), container.to_owned()))
    }

    fn entry(&mut self, pod: &PodRef, workload: &Workload, container: &str) -> &mut Past {
        let key = (pod.namespace.clone(), workload.clone(), container.to_owned());
        if self.all.len() >= MAX_KNOWN && !self.all.contains_key(&key) {
            let oldest = self.all.iter().min_by_key(|(_, past)| past.learned);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| self.all.remove(&key));
        }
        self.learned += 1;
        let past = self.all.entry(key).or_default();
        past.learned = self.learned;
        past
    }

    pub fn died(&mut self, death: &ContainerDeath) {
        let at = |kind| death.milestone(kind).map(|milestone| milestone.at);
        let between = |from, to| Some(at(to)?.since(at(from)?));
        let (Some(pod), Some(workload)) = (&death.pod, &death.workload) else { return };
        let killed = between(MilestoneKind::TermSent, MilestoneKind::KillSent);
        let exited = || between(MilestoneKind::TermSent, MilestoneKind::Exited);
        let Some(shutdown) = killed.or_else(exited) else { return };
        let hook = between(MilestoneKind::PreStopBegan, MilestoneKind::PreStopEnded);
        let (verdict, hook) = (death.verdict, hook.unwrap_or_default());
        let stop = PastStop { verdict, shutdown, was_killed: killed.is_some(), hook };
        push_latest(&mut self.entry(pod, workload, &death.name).stops, stop, MAX_STOPS);
    }

    pub fn terminated(&mut self, report: &PodTermination) {
        let (Some(traffic), Some(workload)) = (&report.traffic, &report.workload) else { return };
        let mut late = vec![ConnectionEvent::OpenedAfterStop];
        late.extend(REFUSED);
        let last = traffic.sum(&[TrafficPeer::Client], &late).last;
        if let Some((last, began)) = last.zip(report.stop_began()) {
            let past = self.entry(&report.pod, workload, "");
            past.late = past.late.max(last.since(began));
        }
    }
}

impl Past {
    /// The longest shutdown of a process that took its stop signal, whether SIGKILL cut it off, and of how many.
    pub(super) fn shutdown(&self) -> Option<((Duration, bool), usize)> {
        let takes = [Verdict::Graceful, Verdict::GraceExceeded, Verdict::PrestopExhaustedGrace];
        let taken = self.stops.iter().filter(|stop| takes.contains(&stop.verdict));
        let longest = taken.clone().map(|stop| (stop.shutdown, stop.was_killed)).max()?;
        Some((longest, taken.count()))
    }

    pub fn late(&self) -> Duration {
        self.late
    }

    pub(super) fn hook(&self) -> Duration {
        self.stops.iter().map(|stop| stop.hook).max().unwrap_or_default()
    }

    /// ` 3 earlier stops: graceful 2, grace_exceeded 1.`
    pub fn sentence(&self) -> String {
        let mut verdicts: BTreeMap<Verdict, usize> = BTreeMap::new();
        self.stops.iter().for_each(|stop| *verdicts.entry(stop.verdict).or_default() += 1);
        let counts: Vec<_> =
            verdicts.iter().map(|(verdict, count)| format!("{verdict} {count}")).collect();
        match self.stops.len() {
            0 => String::new(),
            1 => format!(" 1 earlier stop of the workload: {}.", counts.join(", ")),
            n => format!(" {n} earlier stops of the workload: {}.", counts.join(", ")),
        }
    }
}
