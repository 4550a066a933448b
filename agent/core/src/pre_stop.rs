//! The preStop hook: which of the processes from outside it was, or, where it has no process
//! (sleep, httpGet, tcpSocket), what the spec and the gap before the stop signal say of it.

use super::{
    evidence::EvidenceKind,
    ids::Tgid,
    input::{ContainerKind, ExitStatus, Hook},
    object::Object,
    observation::Source,
    process::{Injected, Processes},
    time::BootTime,
};
use std::time::Duration;

/// From the end of the hook to the stop signal: 10 to 30 ms on an idle node (FACTS §7).
const HOOK_TO_STOP: Duration = Duration::from_millis(500);

/// From the end of a hook's grace to the stop signal, at the worst: the runtime has to end the hook's
/// process first.
const SLOW_NODE: Duration = Duration::from_secs(10);

/// A gap as short as this is the kubelet's own reaction: whether a request by the kubelet was part
/// of it cannot be told.
const REACTION: Duration = Duration::from_secs(1);

/// How the hook ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HookRun {
    /// Its beginning. Inferred where it has no process: for a request by the kubelet the delete
    /// request, so that the kubelet's own reaction is part of it.
    pub began: BootTime,
    /// Its end, if it ended before it was given up.
    pub ended: Option<BootTime>,
    /// How its process ended.
    pub status: Option<ExitStatus>,
    /// Its process, where it has one.
    pub tgid: Option<Tgid>,
    /// The kernel saw its process, or it is inferred.
    pub source: Source,
    /// What shows it.
    pub shows: EvidenceKind,
}

/// What the search for the hook rests on.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The hook by the spec.
    pub spec: &'a Hook,
    /// What the kernel told.
    pub processes: &'a Processes,
    /// The container's kind: a sidecar's hook runs at once, its stop signal comes when all others
    /// are gone.
    pub kind: ContainerKind,
    /// When the pod's deletion was requested.
    pub requested: Option<BootTime>,
    /// The earliest moment at which the kubelet may have heard of that.
    pub earliest_request: Option<BootTime>,
    /// The grace in force, seconds.
    pub grace_seconds: Option<i64>,
    /// The stop signal.
    pub stop: Option<BootTime>,
    /// The main process' exit.
    pub exit: Option<BootTime>,
}

impl Search<'_> {
    /// How the hook ran, if it did.
    pub fn run(&self) -> Option<HookRun> {
        match self.spec {
            Hook::Exec(binary) => self.process(binary),
            Hook::Sleep(seconds) => self.sleep(u64::try_from(*seconds).ok()?),
            Hook::HttpGet | Hook::TcpSocket => self.request(),
        }
    }

    /// The kubelet makes a grace of 0 a second (pod_workers.go).
    fn grace(&self) -> Option<Duration> {
        Some(Duration::from_secs(u64::try_from(self.grace_seconds?).ok()?.max(1)))
    }

    /// Which of the processes from outside was the hook. The kubelet calls StopContainer as soon as the hook
    /// has ended. In this order: one with the handler's name that began after the request; any other that
    /// began then, and ended just before the stop signal or still ran (neither counts where there was no request
    /// and no stop signal); one that began earlier, with both, for
    /// the watch may be late, a stop may have begun before the request, and on a node that is overloaded a
    /// hook takes longer to be ended than its grace; the first that began after the request. A doubt
    /// remains where a probe of the same name ends in that very moment.
    fn process(&self, binary: &str) -> Option<HookRun> {
        let until = self.stop.or(self.exit)?;
        let longest = self.grace()? + Duration::from_secs(1);
        let since = self.earliest_request.unwrap_or(until - longest);
        let earliest = since.min(until - (longest + SLOW_NODE));
        let waits = self.kind == ContainerKind::Sidecar;
        let close = |i: &Injected| {
            waits || i.ended.is_none_or(|(at, _)| at >= until || until.since(at) <= HOOK_TO_STOP)
        };
        // Nothing else says that it was stopped at all.
        let alone = self.stop.is_none() && self.earliest_request.is_none();
        let rank = |i: &Injected| match (i.is_named(binary), close(i), i.began >= since) {
            (named, close, _) if alone && !(named && close) => None,
            (true, true, true) => Some(0),
            (true, false, true) => Some(1),
            (false, true, true) => Some(2),
            (true, true, false) => Some(3),
            (false, false, true) => Some(4),
            _ => None,
        };
        let in_time = |i: &Injected| i.began < until && i.began >= earliest;
        let ranked = self.processes.injected().filter(in_time);
        let ranked = ranked.filter_map(|i| Some(((rank(&i)?, i.began), i)));
        let (_, hook) = ranked.min_by_key(|(rank, _)| *rank)?;
        Some(HookRun {
            began: hook.began,
            ended: hook.ended.map(|(at, _)| at),
            status: hook.ended.map(|(_, status)| status),
            tgid: Some(hook.tgid),
            source: Source::Kernel,
            shows: EvidenceKind::PreStopExec { pid: hook.tgid, comm: hook.comm },
        })
    }

    /// The kubelet sleeps, at most for the grace (`runSleepHandler`, lifecycle/handlers.go), then
    /// stops the container.
    fn sleep(&self, seconds: u64) -> Option<HookRun> {
        let wanted = Duration::from_secs(seconds);
        let slept = self.grace().map_or(wanted, |grace| grace.min(wanted));
        let run = |began, ended| HookRun {
            began,
            ended,
            status: None,
            tgid: None,
            source: Source::Inferred,
            shows: EvidenceKind::PreStopSpec { hook: self.spec.clone() },
        };
        match (self.requested, self.stop) {
            (Some(requested), Some(stop)) if self.kind == ContainerKind::Sidecar => {
                (stop.since(requested) + REACTION >= slept).then(|| {
                    run(requested, (slept == wanted).then(|| (requested + slept).min(stop)))
                })
            }
            (requested, Some(stop)) => {
                let long_enough = requested.is_none_or(|at| stop.since(at) + REACTION >= slept);
                long_enough.then(|| run(stop - slept, (slept == wanted).then_some(stop)))
            }
            // It left, or was killed, before the hook was over.
            (Some(requested), None) => {
                self.exit.filter(|exit| *exit > requested).map(|_| run(requested, None))
            }
            (None, None) => None,
        }
    }

    /// The kubelet makes a request and waits for the answer, at most for the grace.
    fn request(&self) -> Option<HookRun> {
        let (requested, stop) = (self.requested?, self.stop?);
        let gap = stop.since(requested);
        // How long a sidecar waited for the hook and how long for its turn cannot be told.
        if gap < REACTION || self.kind == ContainerKind::Sidecar {
            return None;
        }
        let cut_off = self.grace().is_some_and(|grace| gap >= grace);
        Some(HookRun {
            began: requested,
            ended: (!cut_off).then_some(stop),
            status: None,
            tgid: None,
            source: Source::Inferred,
            shows: EvidenceKind::PreStopSpec { hook: self.spec.clone() },
        })
    }
}

/// The hook by the spec: the object's, else the runtime's annotation.
pub fn spec(object: Option<&Object>, container: &str, annotated: Option<&Hook>) -> Option<Hook> {
    object
        .and_then(|o| o.pod.containers.get(container))
        .and_then(|c| c.pre_stop.clone())
        .or_else(|| annotated.cloned())
}
