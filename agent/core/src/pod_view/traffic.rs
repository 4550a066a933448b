//! The pod's connections: what of them is reported, and the findings.

use super::PodView;
use crate::{input::*, report::*, traffic::CountedTraffic};
use std::time::Duration;

/// Connections that come sooner after the stop signal were on their way.
const IN_FLIGHT: Duration = Duration::from_secs(1);

/// Dates these counts, all of which are of the time after the stop signal.
fn after_stop(counts: &[TrafficCount]) -> Vec<TrafficCount> {
    let mut dated: Vec<TrafficCount> = Vec::new();
    for count in counts {
        let pair = [OPENED, REFUSED].into_iter().find(|[before, _]| count.event == *before);
        let event = pair.map_or(count.event, |[_, after]| after);
        match dated.iter_mut().find(|one| (one.peer, one.event) == (count.peer, event)) {
            Some(sum) => {
                sum.count = sum.count.saturating_add(count.count);
                (sum.first, sum.last) = (sum.first.min(count.first), sum.last.max(count.last));
            }
            None => dated.push(TrafficCount { event, ..count.clone() }),
        }
    }
    dated
}

impl PodView<'_> {
    fn counted(&self) -> Option<&CountedTraffic> {
        self.sandboxes.iter().rev().find_map(|one| self.stores.traffic.get(&one.info.id))
    }

    /// The last counts are still to come.
    pub(super) fn traffic_pending(&self) -> bool {
        self.counted().is_some_and(|counted| self.stores.traffic.is_pending(counted))
    }

    /// What was lost of the counts.
    pub(super) fn traffic_loss(&self) -> Option<LossKind> {
        self.counted()
            .filter(|counted| counted.is_incomplete())
            .map(|_| LossKind::ConnectionSkipped)
    }

    /// The pod's connections, if they were counted.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        let counted = self.counted()?;
        let (stopped, sees_refusals) = (counted.stopped, counted.sees_refusals);
        let empty = Traffic {
            not_visible: counted.not_visible,
            since: counted.last.at.into(),
            until: counted.last.at.into(),
            stopped: stopped.map(Moment::from),
            sees_refusals,
            at_begin: None,
            at_stop: None,
            counts: Vec::new(),
        };
        let Some(began) = &counted.began else {
            return counted.not_visible.is_some().then_some(empty);
        };
        // Of a stop signal without a deletion request, or where many pods are deleted at once.
        let since = stopped.map_or(counted.since, |stopped| stopped.min(counted.since));
        let lacks_an_end = |reading: &TrafficReading| {
            let mut ends = self.containers().filter_map(|one| self.end(&one.info.id));
            ends.any(|end| end.earliest > since && end.latest < reading.at)
        };
        if lacks_an_end(began) {
            return Some(Traffic { not_visible: Some(TrafficBlindness::TooLate), ..empty });
        }
        let share = |count: TrafficCount| TrafficShare {
            peer: count.peer,
            event: count.event,
            count: count.count,
            first: count.first.into(),
            last: count.last.into(),
        };
        let open = |reading: &TrafficReading| {
            let NetworkCounters { established, listening } = reading.network.clone()?;
            Some(OpenConnections { established, listening })
        };
        let (at_stop, counts) = match counted.is_all_after_stop() {
            true => (None, after_stop(&counted.last.counts)),
            false => (counted.at_stop.as_ref(), counted.last.counts.clone()),
        };
        Some(Traffic {
            not_visible: None,
            since: began.at.into(),
            at_begin: open(began),
            at_stop: at_stop.filter(|at| !lacks_an_end(at)).and_then(open),
            counts: counts.into_iter().map(share).collect(),
            ..empty
        })
    }

    /// The findings about the connections. Only what other clients than the node's own addresses lost is one: the
    /// kubelet's readiness probes go on, too.
    pub(super) fn traffic_findings(&self, traffic: &Traffic, never_listened: bool) -> Vec<Finding> {
        if self.is_of_a_job() {
            return Vec::new(); // nobody is sent to it by a Service
        }
        let refused = if never_listened { Vec::new() } else { refused(traffic) };
        cut(traffic).into_iter().chain(refused).chain(late(traffic)).collect()
    }

    /// The milestones in the connections.
    pub(super) fn traffic_milestones(
        traffic: &Traffic,
        began: BootTime,
    ) -> impl Iterator<Item = Milestone> {
        use ConnectionEvent as E;
        let client = |events: &[E]| traffic.sum(&[TrafficPeer::Client], events).last;
        let closed = client(&[E::ListenerClosed, E::ListenerCut]);
        let exact = |kind, at: Option<BootTime>| {
            Milestone::exact(kind, at.filter(|at| *at >= began), Source::Kernel)
        };
        let closed = exact(MilestoneKind::ListenerClosed, closed);
        let connected = exact(MilestoneKind::LastNewConnection, client(&OPENED));
        closed.into_iter().chain(connected)
    }

    fn is_of_a_job(&self) -> bool {
        let workload = self.object().and_then(|object| object.pod.workload.as_ref());
        workload.is_some_and(|workload| workload.is_job())
    }
}

/// How many connections of clients, and how many of the node's own addresses beside them.
fn with_node(traffic: &Traffic, events: &[ConnectionEvent]) -> String {
    let count = traffic.sum(&[TrafficPeer::Client], events).count;
    match traffic.sum(&[TrafficPeer::Node], events).count {
        0 => count.to_string(),
        by_node => format!("{count} (and {by_node} from the node's own addresses)"),
    }
}

fn cut(traffic: &Traffic) -> Option<Finding> {
    let client = |event| traffic.sum(&[TrafficPeer::Client], &[event]).count;
    if client(ConnectionEvent::Cut) == 0 {
        return None;
    }
    let idle = match client(ConnectionEvent::CutIdle) {
        0 => String::new(),
        idle => format!("; {idle} more were idle"),
    };
    let detail = format!(
        "The exit of the process cut {} connection(s) in the middle of a request (the client had sent data \
         last){idle}.",
        with_node(traffic, &[ConnectionEvent::Cut])
    );
    Some(Finding::new(FindingKind::ConnectionsCut, detail))
}

fn refused(traffic: &Traffic) -> Vec<Finding> {
    let client = |events: &[ConnectionEvent]| traffic.sum(&[TrafficPeer::Client], events);
    let refused = client(&REFUSED);
    let Some((first, last)) = refused.first.zip(refused.last) else { return Vec::new() };
    // A preStop hook may close the listener before the stop signal.
    let from = |time: BootTime| match traffic.stopped.filter(|stopped| time >= stopped.boot) {
        Some(stopped) => (stopped, "the stop signal"),
        None => (traffic.since, "the deletion request"),
    };
    let (began, what) = from(first);
    let detail = format!(
        "{} new connection(s) were refused, the first {} and the last {} after {what}.",
        with_node(traffic, &REFUSED),
        secs(first.since(began)),
        secs(last.since(began)),
    );
    let mut findings = vec![Finding::new(FindingKind::ConnectionsRefused, detail)];
    let closed = client(&[ConnectionEvent::ListenerClosed]).last;
    if let Some(closed) = closed.filter(|closed| *closed <= last) {
        let (began, what) = from(closed);
        let detail = format!(
            "The process closed its listener {} after {what}, while clients still connected: the last was \
             refused {} later.",
            secs(closed.since(began)),
            secs(last.since(closed)),
        );
        findings.push(Finding::new(FindingKind::ListenerClosedEarly, detail));
    }
    findings
}

fn late(traffic: &Traffic) -> Option<Finding> {
    let opened = [ConnectionEvent::OpenedAfterStop];
    let last = traffic.sum(&[TrafficPeer::Client], &opened).last?;
    let stopped = traffic.stopped.filter(|stopped| last > stopped.boot + IN_FLIGHT)?;
    let detail = format!(
        "Clients opened {} connection(s) after the stop signal, the last {} after it: the removal of the \
         endpoint took that long to reach them.",
        with_node(traffic, &opened),
        secs(last.since(stopped)),
    );
    Some(Finding::new(FindingKind::LateConnections, detail))
}
