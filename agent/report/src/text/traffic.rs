//! A pod's connections in sentences, and what would have covered them.

use super::{Style, details::title, seconds, style::Paint, wrap};
use crate::{
    BootTime, CLIENTS, ConnectionEvent as E, MilestoneKind, OPENED, PhaseKind, PodTermination,
    REFUSED, Traffic, TrafficBlindness, TrafficPeer, Workload,
};
use std::{fmt::Write, time::Duration};

/// terminationGracePeriodSeconds is advised in steps of this.
const GRACE_STEP: u64 = 5;

/// Why the connections cannot be seen, as the end of a sentence.
fn because(reason: TrafficBlindness) -> &'static str {
    match reason {
        TrafficBlindness::Off => "the agent runs with --traffic off",
        TrafficBlindness::HostNetwork => "the pod is in the host's network",
        TrafficBlindness::TooLate => {
            "it was too late to count them, because a container had already ended"
        }
        TrafficBlindness::NoProcess => {
            "the pod's last process had exited before its network could be found"
        }
        TrafficBlindness::NoProgram => "this kernel does not show them; see `coroner doctor`",
        TrafficBlindness::NotAttached => "the kernel program could not be attached",
        TrafficBlindness::MapFull => "too many pods terminated at once",
        TrafficBlindness::OwnStack => "its runtime has a network stack of its own",
    }
}

/// The times in which clients connected and were refused, for the waterfall.
pub(super) fn spans(account: &PodTermination) -> Vec<(&'static str, Paint, BootTime, BootTime)> {
    let Some(traffic) = account.traffic.as_ref().filter(|_| !account.never_listened()) else {
        return Vec::new();
    };
    let until = |kind| account.milestone(kind).map(|at| (account.began.boot, at.at.boot));
    let refused = traffic.sum(&[TrafficPeer::Client], &REFUSED);
    [
        ("new connections", Paint::Own, until(MilestoneKind::LastNewConnection)),
        ("listener open", Paint::Own, until(MilestoneKind::ListenerClosed)),
        ("refused", Paint::Bad, refused.first.zip(refused.last)),
    ]
    .into_iter()
    .filter_map(|(name, paint, span)| span.map(|(from, to)| (name, paint, from, to)))
    .filter(|(.., from, _)| *from <= account.ended.boot)
    .collect()
}

/// The section of `explain -v`: the counts. `none`: why there is no advice.
pub(super) fn write(text: &mut String, account: &PodTermination, none: &str, style: &Style) {
    let Some(traffic) = &account.traffic else { return };
    title(text, "Connections", style);
    let mut line = |line: &str| wrap(text, line, 2, "", style);
    if let Some(reason) = traffic.not_visible {
        line(&format!("Its connections were not visible: {}.", because(reason)));
        return;
    }
    line(&open(account, traffic));
    for (who, peers) in [
        ("Clients", CLIENTS.as_slice()),
        ("Of these, from the node's own addresses", &[TrafficPeer::Node]),
    ] {
        let events = events(traffic, peers);
        if !events.is_empty() {
            line(&format!("{who}: {}.", events.join(", ")));
        }
    }
    if !none.is_empty() {
        line(&format!("Advice: none; {none}."));
    }
}

fn open(account: &PodTermination, traffic: &Traffic) -> String {
    let after = seconds(traffic.since.since(account.began));
    let Some(begin) = &traffic.at_begin else {
        return format!("Counted from +{after}.");
    };
    let ports: Vec<_> = begin.listening.iter().map(ToString::to_string).collect();
    let listening = match ports.as_slice() {
        [] => "no port was open".to_owned(),
        [port] => format!("port {port} was open"),
        ports => format!("ports {} were open", ports.join(", ")),
    };
    let mut text = format!(
        "At +{after}, {} connection(s) were established and {listening}",
        begin.established
    );
    if let Some(stop) = &traffic.at_stop {
        let _ = write!(text, "; at the stop signal, {} were established", stop.established);
    }
    text + "."
}

/// What happened to these connections, the worst first.
fn events(traffic: &Traffic, peers: &[TrafficPeer]) -> Vec<String> {
    let words: [(&[E], &str); 5] = [
        (&[E::Cut], "cut in the middle of a request"),
        (&REFUSED, "refused"),
        (&[E::CutIdle], "cut while idle"),
        (&[E::Opened], "new before the stop signal"),
        (&[E::OpenedAfterStop], "new after the stop signal"),
    ];
    let mut told = Vec::new();
    for (events, what) in words {
        let found = traffic.sum(peers, events);
        let Some(last) = found.last.filter(|_| found.count > 0) else { continue };
        let mut one = format!("{} {what}", found.count);
        if let Some(stopped) = traffic.stopped.filter(|stopped| last > stopped.boot)
            && (events == REFUSED || events == [E::OpenedAfterStop])
        {
            let _ = write!(one, " (the last {} after it)", seconds(last.since(stopped)));
        }
        told.push(one);
    }
    told
}

/// How long after the stop signal clients still connected, or tried to; `None`: no client was seen at all, or a
/// listener was closed and this kernel does not show who was refused then.
pub fn endpoint_lag(account: &PodTermination) -> Option<Duration> {
    let traffic = account.traffic.as_ref()?;
    let client = |events: &[E]| traffic.sum(&[TrafficPeer::Client], events);
    let connected = client(&OPENED).count > 0 || client(&REFUSED).count > 0;
    let is_known = connected && !account.never_listened() && !misses_refusals(traffic);
    let stopped = traffic.stopped.filter(|_| is_known)?;
    let late = client(&[E::OpenedAfterStop, E::RefusedAfterStop]).last;
    Some(late.map_or(Duration::ZERO, |late| late.since(stopped)))
}

/// Clients may have been refused, and this kernel does not report it.
fn misses_refusals(traffic: &Traffic) -> bool {
    let closed = traffic.sum(&[TrafficPeer::Client], &[E::ListenerClosed, E::ListenerCut]);
    !traffic.sees_refusals && closed.count > 0
}

/// What preStop sleep and grace would have covered the clients, with the arithmetic; or why there is no advice.
pub(super) fn advice(account: &PodTermination, same: &[&PodTermination]) -> Result<String, String> {
    // From the beginning of the stop: a hook delays the stop signal, and an earlier one had another hook.
    let covered = |one: &PodTermination| {
        let traffic = one.traffic.as_ref()?;
        let (lag, stopped) = (endpoint_lag(one)?, traffic.stopped?);
        let began = one.stop_began().filter(|at| (one.began.boot..=stopped.boot).contains(at));
        let hook = stopped.since(began.unwrap_or(stopped.boot));
        Some(if lag.is_zero() { lag } else { hook + lag })
    };
    let all: Vec<Duration> = same.iter().copied().chain([account]).filter_map(covered).collect();
    let Some(worst) = all.iter().max().copied() else {
        let why = match &account.traffic {
            Some(traffic) if misses_refusals(traffic) => {
                "this kernel does not report which clients were refused after the listener was closed"
            }
            _ if account.never_listened() => "the pod listened on no port",
            Some(traffic) if traffic.stopped.is_none() => "the pod was sent no stop signal",
            _ => "no client connected while the pod terminated",
        };
        return Err(why.into());
    };
    let of = match (all.len(), &account.workload) {
        (2.., Some(workload)) => {
            let Workload { kind, name } = workload;
            format!(" (the maximum of {} terminations of {kind} {name})", all.len())
        }
        _ => String::new(),
    };
    let hook = account.phase(PhaseKind::PreStop);
    if worst.is_zero() {
        return Err(format!("no client connected after the stop signal{of}"));
    }
    if worst <= hook {
        return Err(format!(
            "clients connected until {} after the stop began{of}, and the present hook took {}",
            seconds(worst),
            seconds(hook)
        ));
    }
    let sleep = whole_seconds(worst);
    let mut text = format!(
        "Clients connected until {} after the stop began{of}: a preStop sleep of {sleep} s",
        seconds(worst)
    );
    if !hook.is_zero() {
        let _ = write!(text, " (the present hook took {})", seconds(hook));
    }
    text += " would have covered them";
    // What it needed itself, and a second for the kubelet.
    let own = account.phase(PhaseKind::Shutdown) + account.phase(PhaseKind::Kill);
    let needed = sleep + whole_seconds(own) + 1;
    let grace = account.grace_seconds.and_then(|grace| u64::try_from(grace).ok());
    if let Some(grace) = grace.filter(|grace| *grace < needed) {
        let raised = needed.div_ceil(GRACE_STEP) * GRACE_STEP;
        let _ = write!(
            text,
            ". Its own shutdown takes {}, so raise terminationGracePeriodSeconds from {grace} to {raised}",
            seconds(own)
        );
    }
    if all.len() == 1 {
        text += ". Clients were seen in one termination only, which is not enough for a rule";
    }
    Ok(text + ".")
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
