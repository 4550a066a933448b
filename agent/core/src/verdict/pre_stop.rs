//! The preStop hook: its process, or, for a hook without one (sleep, httpGet, tcpSocket), the time that the
//! spec and the gap before the stop signal show.

use super::{DeathFacts, HOOK_GAP, KUBELET_REACTION, KUBELET_SLACK};
use crate::process::{ExecProcess, SentSignal, discarded, is_of_the_node};
use crate::{input::*, report::*};
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HookRun {
    /// When it began. For a request by the kubelet this is the deletion request, so it includes the kubelet's
    /// own delay.
    pub(super) began: BootTime,
    /// When it ended, if the kubelet did not give up.
    pub(super) ended: Option<BootTime>,
    pub(super) status: Option<ExitStatus>,
    /// Its process, where it has one.
    pub(super) tgid: Option<Tgid>,
    pub(super) source: Source,
    pub(super) evidence: EvidenceKind,
}

impl DeathFacts<'_> {
    /// The run of the hook, if there was one.
    pub(super) fn find_hook(&self) -> Option<HookRun> {
        match self.case.pre_stop? {
            Hook::Exec(binary) => self.process(binary),
            Hook::Sleep(seconds) => self.sleep(u64::try_from(*seconds).ok()?),
            Hook::HttpGet | Hook::TcpSocket => self.request(),
        }
    }

    /// The kubelet raises a grace of 0 to one second (pod_workers.go).
    fn grace(&self) -> Option<Duration> {
        self.case.grace_seconds.map(|grace| seconds(grace.max(1)))
    }

    /// When the node sent the stop signal, and when the main process exited.
    fn stop_and_exit(&self) -> (Option<BootTime>, Option<BootTime>) {
        (self.stop_by_node().map(|stop| stop.at), self.exit.map(|(at, _)| at))
    }

    fn is_sidecar(&self) -> bool {
        self.case.kind == ContainerKind::Sidecar
    }

    /// A run without a process.
    fn inferred(&self, began: BootTime, ended: Option<BootTime>) -> Option<HookRun> {
        let hook = self.case.pre_stop?.clone();
        let (source, evidence) = (Source::Inferred, EvidenceKind::PreStopSpec { hook });
        Some(HookRun { began, ended, status: None, tgid: None, source, evidence })
    }

    /// Finds the hook among the processes from outside. The kubelet calls StopContainer as soon as the hook
    /// has ended. In order of preference: the handler's name, begun after the request; another name, begun
    /// after it, that ended just before the stop signal or still ran (neither counts without a request and a
    /// stop signal); begun earlier, with both properties, because the watch may be late, a stop may precede
    /// the request, and an overloaded node ends a hook late; the first one begun after the request. A probe
    /// of the same name that ends at that very moment cannot be excluded.
    fn process(&self, binary: &str) -> Option<HookRun> {
        let (stop, exit) = self.stop_and_exit();
        let until = stop.or(exit)?;
        let longest = self.grace()? + Duration::from_secs(1);
        let since = self.case.request.map_or(until - longest, |request| request.made.earliest);
        let earliest = since.min(until - (longest + KUBELET_SLACK));
        let waits = self.is_sidecar();
        let close = |i: &ExecProcess| {
            waits || i.ended.is_none_or(|(at, _)| at >= until || until.since(at) <= HOOK_GAP)
        };
        // No other evidence that the container was stopped: a late watch may show a request made after its end.
        let alone =
            stop.is_none() && self.case.request.is_none_or(|request| request.made.latest > until);
        let rank = |i: &ExecProcess| match (i.is_named(binary), close(i), i.began >= since) {
            (named, close, _) if alone && !(named && close) => None,
            (true, true, true) => Some(0),
            (true, false, true) => Some(1),
            (false, true, true) => Some(2),
            (true, true, false) => Some(3),
            (false, false, true) => Some(4),
            _ => None,
        };
        let in_time = |i: &ExecProcess| i.began < until && i.began >= earliest;
        let ranked = self.case.processes.exec_processes().filter(in_time);
        let ranked = ranked.filter_map(|i| Some(((rank(&i)?, i.began), i)));
        let (_, hook) = ranked.min_by_key(|(rank, _)| *rank)?;
        Some(HookRun {
            began: hook.began,
            ended: hook.ended.map(|(at, _)| at),
            status: hook.ended.map(|(_, status)| status),
            tgid: Some(hook.tgid),
            source: Source::Kernel,
            evidence: EvidenceKind::PreStopExec { pid: hook.tgid, comm: hook.comm },
        })
    }

    /// The kubelet sleeps for at most the grace (`runSleepHandler`, lifecycle/handlers.go), then stops the
    /// container.
    fn sleep(&self, seconds: u64) -> Option<HookRun> {
        let wanted = Duration::from_secs(seconds);
        let slept = self.grace().map_or(wanted, |grace| grace.min(wanted));
        let whole = slept == wanted;
        let (stop, exit) = self.stop_and_exit();
        match (self.requested(), stop) {
            (requested, Some(stop)) => {
                let in_time = |at| stop.since(at) + KUBELET_REACTION >= slept;
                let (began, ended) = match requested.filter(|_| self.is_sidecar()) {
                    Some(requested) => (requested, (requested + slept).min(stop)),
                    None => (stop - slept, stop),
                };
                let hook = self.inferred(began, whole.then_some(ended));
                hook.filter(|_| requested.is_none_or(in_time))
            }
            // The container exited or was killed before the hook was over.
            (Some(requested), None) => {
                exit.filter(|exit| *exit > requested).and_then(|_| self.inferred(requested, None))
            }
            (None, None) => None,
        }
    }

    /// The kubelet makes a request and waits for the answer, for at most the grace.
    fn request(&self) -> Option<HookRun> {
        let (request, stop) = (self.case.request?, self.stop_and_exit().0?);
        // Where an outage hides when the request was made, what is certain is when it had been; unless a SIGKILL shows
        // that the grace was over sooner.
        let over_sooner = |grace: Duration| {
            let left = grace.saturating_sub(stop.since(request.made.latest));
            let by_node = |kill: &&SentSignal| {
                let SignalGenerated { sender, .. } = &kill.signal;
                kill.at >= stop && !discarded(&kill.signal) && is_of_the_node(&sender.comm)
            };
            let kill = self.kill.filter(by_node).filter(|_| self.killed());
            kill.is_some_and(|kill| kill.at.since(stop) + HOOK_GAP < left)
        };
        let is_over = self.grace().is_some_and(over_sooner);
        let requested = if is_over { request.date } else { request.made.latest };
        let gap = stop.since(requested);
        // A sidecar waits for the hook and for its turn, and nothing separates the two.
        if gap < KUBELET_REACTION || self.is_sidecar() {
            return None;
        }
        let cut_off = self.grace().is_some_and(|grace| gap >= grace);
        self.inferred(requested, (!cut_off).then_some(stop))
    }
}
