//! What the agent reports of a pod's connections, against what was expected and against the clients' own record. Pure.

use super::{Ends, ExpectedTraffic, Origin, TRAFFIC_FINDINGS};
use coroner::outputs::report::{Style, explain};
use coroner_core::{
    input::{ConnectionEvent as E, TrafficBlindness, TrafficPeer},
    pod_view::{CLIENTS, LOST, OPENED, REFUSED},
    report::{OpenConnections, PodTermination, Traffic},
    types::MilestoneKind,
};
use coroner_lab_cluster::traffic::{Between, Bounds, ClientConnection, Ending, Habit, Opening};
use std::ops::Range;

/// All that clients have recorded.
pub type ClientRecord = [(Origin, Vec<ClientConnection>)];

/// The ways in which a client's connection ends.
const ENDS: &[E] = &[
    E::Closed,
    E::PeerClosed,
    E::Reset,
    E::PeerReset,
    E::TimedOut,
    E::Unaccepted,
    E::CutIdle,
    E::CutRequest,
    E::CutSending,
    E::CutUnread,
    E::CutHalfClosed,
    E::CutHalfClosedUnread,
];
/// Of those, the ones that follow the end of what the client sends, which has been counted.
const SECOND_ENDS: [E; 2] = [E::CutHalfClosed, E::CutHalfClosedUnread];

/// What happened to a connection as its client knows it: one of these events, in this time.
struct Occurrence {
    at: Between,
    may_be: &'static [E],
    /// It may not have happened at all.
    is_doubtful: bool,
}

/// Every point in which they disagree, as a sentence; empty: they agree.
pub fn disagreements(
    expected: &ExpectedTraffic,
    record: &ClientRecord,
    termination: &PodTermination,
) -> Vec<String> {
    let Some(traffic) = &termination.traffic else {
        return vec!["its connections were not counted".into()];
    };
    let is_late = began_late(termination);
    let seen = traffic.not_visible;
    let wanted = expected.not_visible;
    if seen.is_some() || wanted.is_some() {
        let agrees = match seen {
            // Whose network it was can be seen only while it has a process.
            Some(TrafficBlindness::NoProcess) => true,
            Some(TrafficBlindness::TooLate) => wanted.is_none(),
            _ => seen == wanted,
        };
        let wrong = !agrees || !traffic.counts.is_empty() || traffic.at_begin.is_some();
        let point = || format!("not visible: {seen:?}, expected {wanted:?}");
        return wrong.then(point).into_iter().collect();
    }
    let listened =
        traffic.at_begin.as_ref().is_some_and(|open| open.listening == expected.listening);
    if is_late && !listened {
        return Vec::new(); // whose connections they were cannot be known
    }
    let mut points = if is_late { Vec::new() } else { as_stated(expected, traffic) };
    for (peer, origin) in
        [(TrafficPeer::Client, Origin::Elsewhere), (TrafficPeer::Node, Origin::Node)]
    {
        let own = record.iter().filter(|(from, _)| *from == origin).flat_map(|(_, all)| all);
        let occurred: Vec<_> =
            own.flat_map(|one| occurrences(one, expected.ends, termination)).collect();
        points.extend(as_recorded(peer, &occurred, traffic));
    }
    points.extend(sums(expected, record, traffic));
    points.extend(milestones(termination, traffic));
    if expected.finds_what_was_recorded {
        points.extend(findings(expected, termination, traffic));
    }
    if !is_late {
        points.extend(advice(expected, termination, traffic));
    }
    points
}

/// Counting began after the stop signal or not at all, and the report says so: what happened before is not counted. This
/// depends on the load of the machine; a run limits how many pods may be late.
pub fn began_late(termination: &PodTermination) -> bool {
    termination.traffic.as_ref().is_some_and(|traffic| {
        let is_after = traffic.stopped.is_some_and(|stopped| stopped < traffic.since);
        let late = [TrafficBlindness::TooLate, TrafficBlindness::NoProcess];
        is_after || traffic.not_visible.is_some_and(|blind| late.contains(&blind))
    })
}

fn as_stated(expected: &ExpectedTraffic, traffic: &Traffic) -> Vec<String> {
    let listeners = [E::ListenerClosed, E::ListenerCut].map(|event| (event, 0));
    let stated = expected.counts.iter().map(|(event, count)| (*event, *count));
    let unstated = listeners.into_iter().filter(|(event, _)| !expected.counts.contains_key(event));
    let mut points: Vec<_> = stated
        .chain(unstated)
        .map(|(event, wanted)| (event, wanted, traffic.sum(&CLIENTS, &[event]).count))
        .filter(|(_, wanted, seen)| wanted != seen)
        .map(|(event, wanted, seen)| format!("{seen} {event}, expected {wanted}"))
        .collect();
    let listening = traffic.at_begin.as_ref().map(|open| &open.listening);
    if listening != Some(&expected.listening) {
        points.push(format!("listening on {listening:?}, expected {:?}", expected.listening));
    }
    points
}

/// Each event as often as the clients have seen it, and when they have.
fn as_recorded(peer: TrafficPeer, occurred: &[Occurrence], traffic: &Traffic) -> Vec<String> {
    let mut points = Vec::new();
    let mut sum = 0;
    let visible = |event: &&E| traffic.sees_refusals || !REFUSED.contains(event);
    for event in OPENED.iter().chain(&REFUSED).chain(ENDS).filter(visible) {
        let time = window(*event, traffic);
        let (certain, possible) =
            in_time(occurred, &time, |one| one.may_be.contains(&base(*event)));
        let certain: Vec<_> = certain.into_iter().filter(|one| one.may_be.len() == 1).collect();
        let seen = traffic.sum(&[peer], &[*event]);
        sum += seen.count;
        points.extend(differs(
            &format!("{peer} {event}"),
            seen.count,
            certain.len(),
            possible.len(),
        ));
        let Some((first, last)) = seen.first.zip(seen.last) else { continue };
        let after = |of: &[&Occurrence]| of.iter().map(|one| one.at.after).collect::<Vec<_>>();
        let before = |of: &[&Occurrence]| of.iter().map(|one| one.at.before).collect::<Vec<_>>();
        let from = before(&possible).into_iter().min().unwrap_or(u64::MAX);
        let by = after(&certain).into_iter().min().unwrap_or(u64::MAX);
        let not_before = before(&certain).into_iter().max().unwrap_or(0);
        let until = after(&possible).into_iter().max().unwrap_or(0);
        if !(from..=by).contains(&first.0) || !(not_before..=until).contains(&last.0) {
            points.push(format!(
                "{peer} {event}: from {} to {}, the clients have {from} to {by}, and {not_before} to {until}",
                first.0, last.0
            ));
        }
    }
    let time = traffic.since.0..u64::MAX;
    let (certain, possible) =
        in_time(occurred, &time, |one| traffic.sees_refusals || one.may_be != [E::Refused]);
    points.extend(differs(&format!("{peer}, all events"), sum, certain.len(), possible.len()));
    points
}

/// Those that were in this time for certain, and those that may have been.
fn in_time<'a>(
    occurred: &'a [Occurrence],
    time: &Range<u64>,
    is_it: impl Fn(&Occurrence) -> bool,
) -> (Vec<&'a Occurrence>, Vec<&'a Occurrence>) {
    let possible =
        |one: &&Occurrence| is_it(one) && one.at.after >= time.start && one.at.before < time.end;
    let possible: Vec<_> = occurred.iter().filter(possible).collect();
    let is_certain = |one: &&Occurrence| {
        !one.is_doubtful && one.at.before >= time.start && one.at.after < time.end
    };
    (possible.iter().copied().filter(is_certain).collect(), possible)
}

fn differs(what: &str, seen: u64, least: usize, most: usize) -> Option<String> {
    let agrees = Bounds { least, most }.contain(usize::try_from(seen).unwrap_or(usize::MAX));
    (!agrees).then(|| format!("{what}: {seen}, the clients have {least} to {most}"))
}

/// When an event can be counted, ns of CLOCK_BOOTTIME.
fn window(event: E, traffic: &Traffic) -> Range<u64> {
    let (since, stopped) = (traffic.since.0, traffic.stopped.map_or(u64::MAX, |at| at.0));
    match event {
        E::Opened | E::Refused => since..stopped,
        E::OpenedAfterStop | E::RefusedAfterStop => stopped.max(since)..u64::MAX,
        _ => since..u64::MAX,
    }
}

/// Whatever its time.
fn base(event: E) -> E {
    match event {
        E::OpenedAfterStop => E::Opened,
        E::RefusedAfterStop => E::Refused,
        other => other,
    }
}

/// All that happened to one connection.
fn occurrences(
    one: &ClientConnection,
    ends: Ends,
    termination: &PodTermination,
) -> Vec<Occurrence> {
    let sure = |at, may_be| Occurrence { at, may_be, is_doubtful: false };
    let mut all = Vec::new();
    match one.opening {
        Opening::Refused => all.push(sure(one.opened, &[E::Refused])),
        Opening::Connected => all.push(sure(one.established(), &[E::Opened])),
        Opening::TimedOut | Opening::Failed(_) => {}
    }
    let Some((ended, ending)) = one.ended else { return all };
    let asked = one.exchanges.last().map(|last| last.asked);
    let at = Between { before: asked.map_or(one.opened, |asked| asked).before, after: ended.after };
    // One that has just come when listeners are closed, or the process exits: anything.
    let exits =
        termination.containers.iter().filter_map(|death| death.milestone(MilestoneKind::Exited));
    let stopped = termination.traffic.as_ref().and_then(|traffic| traffic.stopped);
    let breaks = exits.map(|exit| exit.at).chain(stopped);
    let mut meets = breaks.filter(|moment| (one.opened.before..=at.after).contains(&moment.0));
    if one.habit == Habit::Once && meets.next().is_some() {
        // Where the server never saw the end of the handshake, neither did its kernel.
        all.iter_mut().for_each(|opened| opened.is_doubtful = ending == Ending::Reset);
        all.push(Occurrence { at, may_be: ENDS, is_doubtful: ending == Ending::Reset });
        return all;
    }
    if one.habit == Habit::HalfClosed
        && let Some(asked) = asked
    {
        // What it sends last is its end.
        all.push(sure(Between { before: asked.before, after: at.after }, &[E::PeerClosed]));
        if one.is_mid_request() {
            all.push(sure(at, &SECOND_ENDS));
        }
        return all;
    }
    let is_steady = matches!(one.habit, Habit::Steady { .. });
    let may_be: &[E] = match (ending, ends, one.is_mid_request()) {
        // The rest of the answer, and the end, may have been lost with the pod's network.
        (_, Ends::ByExit, true) if one.habit == Habit::Deaf => &[E::CutSending],
        (Ending::ClosedByClient, ..) => &[E::PeerClosed],
        (Ending::ResetByClient, ..) => &[E::PeerReset],
        (Ending::Reset, Ends::ByReset, _) => &[E::Reset],
        // A request may cross the exit, and an answer wait for its acknowledgement.
        (_, Ends::ByExit, true) if is_steady => &[E::CutRequest, E::CutIdle, E::CutUnread],
        (_, Ends::ByExit, false) if is_steady => &[E::CutIdle, E::CutSending],
        (Ending::Reset, ..) => &[E::CutUnread, E::Unaccepted],
        (Ending::Eof, Ends::InOrder, _) => &[E::Closed],
        (Ending::Eof, _, true) => &[E::CutRequest],
        (Ending::Eof, _, false) => &[E::CutIdle],
        (Ending::Failed(_), ..) => &[],
    };
    all.push(sure(at, may_be));
    all
}

/// What was open at the beginning, and what is at the end.
fn sums(expected: &ExpectedTraffic, record: &ClientRecord, traffic: &Traffic) -> Vec<String> {
    let mut points = Vec::new();
    let established = |open: &OpenConnections| open.established.saturating_sub(expected.within);
    let opened =
        record.iter().flat_map(|(_, all)| all).filter(|one| one.opening == Opening::Connected);
    let (since, mut open, mut half) = (traffic.since.0, Bounds::default(), Bounds::default());
    for one in opened {
        // Closed by the client before, and by the server after it: open, and what ends it is no event.
        let ended =
            one.ended.filter(|(ended, _)| ended.after >= since && one.opened.before < since);
        if let Some((ended, ending)) = ended {
            let is_half_closed = one.habit == Habit::HalfClosed;
            half.least += usize::from(is_half_closed && ended.before >= since);
            half.most += usize::from(is_half_closed || ending == Ending::ClosedByClient);
        }
        let (from, until) = (one.established(), one.ended.map(|(ended, _)| ended));
        open.least +=
            usize::from(from.after < since && until.is_none_or(|until| until.before >= since));
        open.most +=
            usize::from(from.before < since && until.is_none_or(|until| until.after >= since));
    }
    let seen = traffic.at_begin.as_ref().map(established);
    points.extend(differs(
        "established at the beginning",
        seen.unwrap_or(u64::MAX),
        open.least,
        open.most,
    ));
    let new = traffic.sum(&CLIENTS, &OPENED).count;
    let ended = ENDS.iter().filter(|event| !SECOND_ENDS.contains(event));
    let ended: u64 = ended.map(|event| traffic.sum(&CLIENTS, &[*event]).count).sum();
    let left = (seen.unwrap_or_default() + new).checked_sub(ended);
    let what = "open at the beginning and new ones, without those that ended";
    points.extend(differs(what, left.unwrap_or(u64::MAX), half.least, half.most));
    // Unknown where the sandbox was stopped before that was read, which follows at once: not so in every scenario.
    if let Some(open) = traffic.still_open.filter(|open| *open > 0) {
        points.push(format!("{open} connections outlived the pod, expected none"));
    }
    // What a client has closed may still be in a listener's queue, or unread: the client cannot know.
    let reset = traffic.sum(&CLIENTS, &[E::ResetHalfClosed]).count;
    if reset > traffic.sum(&CLIENTS, &[E::PeerClosed]).count {
        points.push(format!("{reset} resets of connections that fewer clients had closed"));
    }
    if traffic.sees_refusals && traffic.resets_sent != Some(0) {
        points.push(format!("{:?} resets that nothing explains", traffic.resets_sent));
    }
    points
}

fn milestones(termination: &PodTermination, traffic: &Traffic) -> Vec<String> {
    let wanted = [
        (MilestoneKind::LastNewConnection, &OPENED),
        (MilestoneKind::ListenerClosed, &[E::ListenerClosed, E::ListenerCut]),
    ];
    let wanted = wanted.map(|(kind, of)| (kind, traffic.sum(&[TrafficPeer::Client], of).last));
    let differ =
        wanted.iter().filter(|(kind, at)| termination.milestone(*kind).map(|one| one.at) != *at);
    differ.map(|(kind, at)| format!("the milestone {kind} is not at {at:?}")).collect()
}

/// The findings follow from the counts, which the clients have confirmed.
fn findings(
    expected: &ExpectedTraffic,
    termination: &PodTermination,
    traffic: &Traffic,
) -> Vec<String> {
    let client = |events: &[E]| traffic.sum(&[TrafficPeer::Client], events);
    let (refused, closed) = (client(&REFUSED).last, client(&[E::ListenerClosed]).last);
    let late = client(&[E::OpenedAfterStop]).last.zip(traffic.stopped);
    let follows = [
        client(&LOST).count > 0,
        refused.is_some() && !expected.listening.is_empty(),
        late.is_some_and(|(last, stopped)| last.0 > stopped.0 + 1_000_000_000),
        closed.is_some() && refused >= closed,
    ];
    let found = |kind| termination.findings.iter().any(|finding| finding.kind == kind);
    let differ = TRAFFIC_FINDINGS
        .into_iter()
        .zip(follows)
        .filter(|(kind, follows)| found(*kind) != *follows);
    differ.map(|(kind, follows)| format!("{kind}: found is not {follows}")).collect()
}

/// The advice is what was stated, and its sleep what the reported counts give, which the clients have confirmed.
fn advice(
    expected: &ExpectedTraffic,
    termination: &PodTermination,
    traffic: &Traffic,
) -> Option<String> {
    let stated = expected.advice?;
    let text = explain(termination, &[], &Style::default())
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let (_, advice) = text.split_once("Advice: ").unwrap_or_default();
    let (advice, _) = advice.split_once(" Time per phase").unwrap_or((advice, ""));
    let late = traffic.sum(&[TrafficPeer::Client], &[E::OpenedAfterStop, E::RefusedAfterStop]).last;
    let sleep = late.zip(termination.stop_began());
    let sleep = sleep.map(|(late, began)| late.since(began).as_nanos().div_ceil(1_000_000_000));
    let stated = stated.replace("{sleep}", &format!("{} s", sleep.unwrap_or_default()));
    (!advice.contains(&stated)).then(|| format!("the advice is {advice:?}, expected {stated:?}"))
}
