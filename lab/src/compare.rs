//! What was expected against what was observed. Pure: each point in which they disagree is a sentence; none: they agree.

use crate::{
    clients::Connection,
    driver::StopCall,
    play::{Account, WorkloadLine},
    scenarios::{Death, Expected, ExpectedLeak, ExpectedTraffic, Holding, Scenario, Span},
};
use coroner::outputs::report::{Style, explain};
use coroner_core::{
    input::{ConnectionEvent as E, ExitStatus, TrafficBlindness, TrafficPeer},
    leak::{Leak, LeakKey},
    report::{Audit, CLIENTS, ContainerDeath, PodTermination, StopResponse, Traffic},
    types::{FindingKind, MilestoneKind, PhaseKind, Verdict},
};
use std::{
    collections::{BTreeSet, HashMap},
    io::ErrorKind,
};

/// Seconds by which phases overlap at their edges.
const EDGE: f64 = 0.2;

/// The findings about connections.
const TRAFFIC_FINDINGS: [FindingKind; 4] = [
    FindingKind::ConnectionsCut,
    FindingKind::ConnectionsRefused,
    FindingKind::LateConnections,
    FindingKind::ListenerClosedEarly,
];

/// All disagreements of a scenario. `is_late`: the agent's sources were late, and may have completed a report once.
pub fn disagreements(scenario: &Scenario, account: &Account, is_late: bool) -> Vec<String> {
    let mut expected = scenario.expected.clone();
    if is_late {
        expected.ignore_times();
    }
    let mut points = leaks(&expected.leaks, &account.leaks);
    let contradicted = audited(account).filter(|(audit, death)| contradicts(audit, death));
    points.extend(contradicted.map(|(audit, death)| {
        format!(
            "{}: audited as {}, which is certain, and {}",
            audit.name, audit.response, death.verdict
        )
    }));
    match &account.termination {
        Some(report) if expected.terminates => {
            if began_late(report) {
                expected.excuse(&TRAFFIC_FINDINGS);
            }
            points.extend(termination(&expected, report, account));
            if is_late {
                points.extend(revisions(&expected, report, &account.first));
            }
        }
        None if expected.terminates => points.push("no termination was reported".into()),
        // What was left is deleted when the scenario is cleaned up.
        _ => {}
    }
    points
}

/// Each container that was audited, and how it died.
pub fn audited(account: &Account) -> impl Iterator<Item = (&Audit, &ContainerDeath)> {
    let last = account.termination.iter().flat_map(|report| &report.containers);
    let deaths = account.earlier.iter().chain(last);
    deaths.filter_map(|death| {
        account.audits.iter().find(|audit| audit.id == death.id).map(|audit| (audit, death))
    })
}

/// A certain answer about the signal that was sent, and a verdict on what became of that signal, which do not agree.
pub fn contradicts(audit: &Audit, death: &ContainerDeath) -> bool {
    use Verdict::{
        GraceExceeded, Graceful, StopSignalBlocked, StopSignalIgnored, TerminatedByDefault,
    };
    let expected: &[Verdict] = match audit.response {
        StopResponse::Ignores => &[StopSignalIgnored],
        StopResponse::Blocked => &[StopSignalBlocked],
        StopResponse::EndsByDefault => &[TerminatedByDefault],
        StopResponse::HasHandler | StopResponse::Waits => &[Graceful, GraceExceeded],
        StopResponse::Unknown => return false,
    };
    let of_the_signal =
        [Graceful, GraceExceeded, StopSignalBlocked, StopSignalIgnored, TerminatedByDefault];
    let is_comparable = audit.certain
        && audit.stop_signal == death.stop_signal
        && of_the_signal.contains(&death.verdict);
    is_comparable && !expected.contains(&death.verdict)
}

fn termination(expected: &Expected, report: &PodTermination, account: &Account) -> Vec<String> {
    let mut points = Vec::new();
    if report.cause != expected.cause {
        points.push(format!("cause {}, expected {}", report.cause, expected.cause));
    }
    for (name, death) in &expected.containers {
        let mut all = report.containers.iter().filter(|one| one.name == *name);
        match (all.next(), all.next()) {
            (Some(seen), None) => points.extend(differs(name, seen, death)),
            (None, _) => points.push(format!("{name}: no death, expected {}", death.verdict)),
            _ => points.push(format!("{name}: two deaths")),
        }
    }
    for death in &report.containers {
        if !expected.containers.contains_key(&*death.name) {
            points.push(format!("{:?}: an unexpected death", death.name));
        }
        if expected.grace.is_some() && death.grace_seconds != expected.grace {
            let (seen, wanted) = (death.grace_seconds, expected.grace);
            points.push(format!("{}: grace {seen:?} s, expected {wanted:?} s", death.name));
        }
    }
    match (&expected.earlier, account.earlier.as_slice()) {
        (None, []) => {}
        (Some(earlier), [seen]) if seen.name == earlier.container => {
            points.extend(differs("before", seen, &earlier.death));
            if seen.cause != earlier.cause {
                points.push(format!("before: cause {}, expected {}", seen.cause, earlier.cause));
            }
        }
        (_, seen) => points.push(format!("{} deaths before the pod's termination", seen.len())),
    }
    points.extend(findings(expected, report));
    points.extend(expected.phases.iter().filter_map(|span| phase(span, report, account)));
    if report.truncated != expected.is_truncated {
        points
            .push(format!("truncated is {}, expected {}", report.truncated, expected.is_truncated));
    }
    let is_marked = !report.incomplete.is_empty()
        || report.containers.iter().any(|death| !death.incomplete.is_empty());
    if expected.loses && !(is_marked && account.lost > 0.0) {
        let lost = account.lost;
        points
            .push(format!("{lost} records counted as lost, and the report names it: {is_marked}"));
    }
    if let Some(wanted) = expected.calls {
        let calls =
            report.containers.iter().map(|death| calls(death, &account.logs)).sum::<usize>();
        if calls < wanted {
            points.push(format!("{calls} calls between handler and exit, expected {wanted}"));
        }
    }
    if let Some(traffic) = &expected.traffic {
        points.extend(connections(traffic, account, report));
    }
    points
}

fn differs(name: &str, seen: &ContainerDeath, expected: &Death) -> Vec<String> {
    let mut points = Vec::new();
    if seen.verdict != expected.verdict {
        points.push(format!("{name}: {}, expected {}", seen.verdict, expected.verdict));
    }
    if exit(seen.exit) != exit(expected.exit) {
        points.push(format!("{name}: {}, expected {}", exit(seen.exit), exit(expected.exit)));
    }
    points
}

/// `exit 0`, `signal 9`. A core dump depends on the machine (ulimits, core_pattern).
pub fn exit(status: Option<ExitStatus>) -> String {
    match status {
        Some(ExitStatus::Code(code)) => format!("exit {code}"),
        Some(ExitStatus::Signal { signal, .. }) => format!("signal {signal}"),
        None => "no exit seen".into(),
    }
}

/// Findings of a termination and of its containers.
pub fn found(report: &PodTermination) -> BTreeSet<FindingKind> {
    let of_containers = report.containers.iter().flat_map(|death| &death.findings);
    of_containers.chain(&report.findings).map(|finding| finding.kind).collect()
}

fn findings(expected: &Expected, report: &PodTermination) -> Vec<String> {
    let found = found(report);
    let missing = expected.findings.iter().filter(|kind| !found.contains(kind));
    let missing = missing.map(|kind| format!("{kind} was not found"));
    let is_fine = |kind| expected.findings.contains(kind) || expected.also_allowed.contains(kind);
    let more = found.iter().filter(|kind| !is_fine(kind));
    missing.chain(more.map(|kind| format!("{kind} was found, unexpectedly"))).collect()
}

/// A phase against the scenario's arithmetic and the lab's own record of the calls that caused it. A sleep is never too
/// short; how late a busy machine was, the record shows: the agent's times lie between those of the driver's calls.
fn phase(span: &Span, report: &PodTermination, account: &Account) -> Option<String> {
    let seconds = report.phase(span.phase).as_secs_f64();
    let critical =
        report.containers.iter().find(|death| Some(&death.id) == report.critical.as_ref());
    let stops = critical.and_then(|critical| account.stops.get(&critical.name));
    let measured = stops.and_then(|stops| recorded(span, stops, account.deleted));
    let (at_least, at_most) = measured.unwrap_or((span.seconds - EDGE, f64::INFINITY));
    (!(at_least..=at_most).contains(&seconds)).then(|| {
        format!("{} took {seconds:.2} s, expected {at_least:.2} to {at_most:.2}", span.phase)
    })
}

fn recorded(span: &Span, stops: &[StopCall], deleted: Option<u64>) -> Option<(f64, f64)> {
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
    let until = |end: Option<u64>, from| end.map_or(f64::INFINITY, |end| seconds(from, end));
    let (first, last) = (stops.first()?, stops.last()?);
    let took = match span.phase {
        // The deletion comes while the hook runs: how much of it is left is up to when.
        PhaseKind::PostStart => {
            let took = seconds(deleted?, first.hook_began.or(first.asked)?);
            return Some((took / 2.0, took));
        }
        PhaseKind::PreStop => until(first.hook_done.or(last.done), first.hook_began?),
        _ => until(last.done, first.asked?),
    };
    let least = match span.phase {
        // One that was cut off began when its process was started.
        PhaseKind::PreStop if first.hook_done.is_none() => span.seconds / 2.0,
        PhaseKind::PreStop => span.seconds,
        // A hook that took the grace up left less for the rest.
        _ => span.seconds.min(first.timeout? as f64),
    };
    Some((least - EDGE, took + EDGE))
}

/// How many calls to the apiserver were answered after the stop signal was handled, as the agent has it, and before the
/// exit.
fn calls(death: &ContainerDeath, logs: &HashMap<String, Vec<WorkloadLine>>) -> usize {
    let at = |kind| death.milestone(kind).map(|milestone| milestone.at.boot.0);
    let (Some(from), Some(to)) = (at(MilestoneKind::TermHandled), at(MilestoneKind::Exited)) else {
        return 0;
    };
    let is_call =
        |line: &&WorkloadLine| line.event == "called" && (from..=to).contains(&line.boot_ns);
    logs.get(&death.name).into_iter().flatten().filter(is_call).count()
}

/// How much later than the workload's own record the agent's times are, ns: of the handler and of the exit, for those
/// that both have.
pub fn clock_differences(account: &Account) -> Vec<(MilestoneKind, i64)> {
    let Some(report) = &account.termination else { return Vec::new() };
    let mut all = Vec::new();
    for death in &report.containers {
        let exited = matches!(death.exit, Some(ExitStatus::Code(_)));
        let kinds =
            [("term", MilestoneKind::TermHandled, true), ("exit", MilestoneKind::Exited, exited)];
        for (event, kind, _) in kinds.into_iter().filter(|(.., is_comparable)| *is_comparable) {
            let lines = account.logs.get(&death.name).into_iter().flatten();
            let own = lines.into_iter().find(|line| line.event == event && line.pid == 1);
            if let (Some(own), Some(measured)) = (own, death.milestone(kind)) {
                all.push((kind, measured.at.boot.0.wrapping_sub(own.boot_ns).cast_signed()));
            }
        }
    }
    all
}

/// Late evidence completes a report once, and corrects no verdict.
fn revisions(
    expected: &Expected,
    report: &PodTermination,
    first: &[ContainerDeath],
) -> Vec<String> {
    let mut points = Vec::new();
    for death in first {
        let wanted = expected.containers.get(&*death.name).map(|wanted| wanted.verdict);
        if wanted.is_some_and(|wanted| wanted != death.verdict) {
            points.push(format!("{}: first reported as {}", death.name, death.verdict));
        }
    }
    if !report.is_final {
        points.push("the report did not become final".into());
    }
    if report.revision > 2 {
        points.push(format!("{} updates of the report, expected 1 at most", report.revision - 1));
    }
    points
}

fn leaks(expected: &[ExpectedLeak], seen: &[Leak]) -> Vec<String> {
    let mut points = Vec::new();
    let mut others: Vec<&Leak> = seen.iter().collect();
    for wanted in expected {
        match others.iter().position(|leak| leak.class == wanted.class) {
            Some(at) => points.extend(leak(wanted, others.remove(at))),
            None => points.push(format!("no {} was reported", wanted.class)),
        }
    }
    let more = others
        .into_iter()
        .map(|leak| format!("{} of {} was reported, unexpectedly", leak.class, which(&leak.key)));
    points.extend(more);
    points
}

fn leak(expected: &ExpectedLeak, leak: &Leak) -> Vec<String> {
    let class = expected.class;
    let resources = holdings(leak);
    let mut points = Vec::new();
    let mut check = |agrees: bool, what: &str, seen: &dyn std::fmt::Debug| {
        if !agrees {
            points.push(format!("{class}: {what} {seen:?}, expected {expected:?}"));
        }
    };
    check(leak.cause.kind == expected.cause, "cause", &leak.cause.kind);
    check(resources == expected.resources, "holds", &resources);
    check(leak.pod.is_some() == expected.names_pod, "pod", &leak.pod);
    check(!leak.evidence.is_empty(), "evidence", &leak.evidence);
    points
}

/// The kinds of resources that a leak holds.
fn holdings(leak: &Leak) -> BTreeSet<Holding> {
    let of = &leak.resources;
    let all = [
        (Holding::Netns, of.netns.is_some()),
        (Holding::Ips, !of.ips.is_empty()),
        (Holding::Cgroup, of.cgroup.is_some()),
        (Holding::Pids, !of.pids.is_empty()),
        (Holding::Containers, !of.containers.is_empty()),
    ];
    all.into_iter().filter_map(|(kind, is_held)| is_held.then_some(kind)).collect()
}

/// A leaked thing, for a person.
pub fn which(key: &LeakKey) -> String {
    match key {
        LeakKey::Sandbox { id } => format!("sandbox {}", id.as_str()),
        LeakKey::Shim { pid, id, .. } => format!("shim {pid} of {id}"),
        LeakKey::Netns { name, .. } => format!("network namespace {name}"),
        LeakKey::PodCgroup { pod, .. } => format!("cgroup of pod {}", pod.as_str()),
        LeakKey::Pod { uid } => format!("pod {}", uid.as_str()),
    }
}

/// Counting began after the stop signal or not at all, and the report says so. This depends on the load of the machine; a
/// run limits how many pods may be late.
pub fn began_late(report: &PodTermination) -> bool {
    report.traffic.as_ref().is_some_and(|traffic| {
        let late = [TrafficBlindness::TooLate, TrafficBlindness::NoProcess];
        traffic.stopped.is_some_and(|stopped| stopped < traffic.since)
            || traffic.not_visible.is_some_and(|blind| late.contains(&blind))
    })
}

/// How an exit ends clients' connections, and listeners.
const EXACT: [E; 4] = [E::CutIdle, E::Cut, E::ListenerClosed, E::ListenerCut];

/// What is reported of the pod's connections against what was stated and against the clients' own record.
fn connections(
    expected: &ExpectedTraffic,
    account: &Account,
    report: &PodTermination,
) -> Vec<String> {
    let Some(traffic) = &report.traffic else {
        return vec!["its connections were not counted".into()];
    };
    if began_late(report) {
        return Vec::new();
    }
    if let Some(blind) = traffic.not_visible {
        return vec![format!("its connections are not visible: {blind}")];
    }
    let all: Vec<_> = account.clients.iter().flat_map(|(_, all)| all).collect();
    // One that was open when a listener was closed or the process exited, although it was to end before: anything.
    let torn = all.iter().filter(|one| one.is_torn()).count() as u64;
    let mut points = Vec::new();
    let mut check = |what: &str, seen: u64, least: u64, most: u64| {
        if !(least..=most).contains(&seen) {
            points.push(format!("{what}: {seen}, expected {least} to {most}"));
        }
    };
    for event in EXACT {
        let wanted = expected.counts.get(&event).copied().unwrap_or_default();
        let seen = traffic.sum(&CLIENTS, &[event]).count;
        check(&event.to_string(), seen, wanted, wanted + torn);
    }
    let on_node = traffic.sum(&[TrafficPeer::Node], &EXACT[..2]).count;
    check("ended on the node", on_node, expected.on_node, expected.on_node);
    let opened = bounds(&all, traffic, |one| one.error.is_none());
    let seen = traffic.sum(&CLIENTS, &[E::Opened, E::OpenedAfterStop]).count;
    check("opened", seen, opened.0, opened.1);
    if traffic.sees_refusals {
        let refused = bounds(&all, traffic, |one| one.error == Some(ErrorKind::ConnectionRefused));
        let seen = traffic.sum(&CLIENTS, &[E::Refused, E::RefusedAfterStop]).count;
        check("refused", seen, refused.0, refused.1);
    }
    let begin = traffic.at_begin.as_ref();
    let standing = all.iter().filter(|one| !one.arrived()).count() as u64 + expected.within;
    let arriving = all.iter().filter(|one| one.arrived()).count() as u64;
    let established = begin.map_or(u64::MAX, |open| open.established);
    check("established at the beginning", established, standing, standing + arriving);
    if begin.map(|open| &open.listening) != Some(&expected.listening) {
        points.push(format!("{begin:?}, expected listening on {:?}", expected.listening));
    }
    points.extend(advice(expected, report, traffic));
    points
}

/// How many of the clients' calls were counted for certain, and how many may have been.
fn bounds(
    all: &[&Connection],
    traffic: &Traffic,
    is_it: impl Fn(&Connection) -> bool,
) -> (u64, u64) {
    let mine = all.iter().filter(|one| is_it(one));
    let since = traffic.since.boot.0;
    mine.fold((0, 0), |(least, most), one| {
        let (is_certain, may_be) = (one.opened.before >= since, one.opened.after >= since);
        (least + u64::from(is_certain && !one.is_torn()), most + u64::from(may_be))
    })
}

/// The advice is what was stated, and its sleep what the reported counts give.
fn advice(
    expected: &ExpectedTraffic,
    report: &PodTermination,
    traffic: &Traffic,
) -> Option<String> {
    let stated = expected.advice?;
    let text = explain(report, &[], true, &Style::default());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let late = traffic.sum(&[TrafficPeer::Client], &[E::OpenedAfterStop, E::RefusedAfterStop]).last;
    let sleep = late.zip(report.stop_began());
    let sleep = sleep.map(|(late, began)| late.since(began).as_nanos().div_ceil(1_000_000_000));
    let stated = stated.replace("{sleep}", &format!("{} s", sleep.unwrap_or_default()));
    (!text.contains(&stated)).then(|| format!("no advice {stated:?} in {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::catalogue;
    use coroner_core::{
        leak::{LeakCause, LeakClass},
        types::Cause,
    };

    /// A scenario that expects what was reported, and the report.
    fn agreeing() -> (Scenario, Account) {
        const REPORT: &str = include_str!("../../agent/report/tests/golden/termination.json");
        const LEAK: &str = include_str!("../../agent/report/tests/golden/leak.json");
        let mut report: PodTermination = serde_json::from_str(REPORT).unwrap();
        report.traffic = None;
        let leak: Leak = serde_json::from_str(LEAK).unwrap();
        let mut scenario = catalogue().remove(0);
        let expected = &mut scenario.expected;
        let deaths = report.containers.iter().map(|death| {
            let name: &'static str = death.name.clone().leak();
            (name, Death { verdict: death.verdict, exit: death.exit })
        });
        expected.containers = deaths.collect();
        expected.cause = report.cause;
        expected.findings = found(&report).into_iter().collect();
        expected.is_truncated = report.truncated;
        let phase = report.phases[0].kind;
        expected.phases = vec![Span { phase, seconds: report.phase(phase).as_secs_f64() }];
        expected.leaks = vec![ExpectedLeak {
            class: leak.class,
            cause: leak.cause.kind,
            resources: holdings(&leak),
            names_pod: leak.pod.is_some(),
        }];
        let account =
            Account { termination: Some(report), leaks: vec![leak], ..Account::default() };
        (scenario, account)
    }

    #[test]
    fn every_single_deviation_is_a_disagreement() {
        let (scenario, account) = agreeing();
        assert_eq!(disagreements(&scenario, &account, false), [""; 0]);
        let first = |expected: &mut Expected| *expected.containers.first_entry().unwrap().key();
        let deviations: [fn(&mut Expected); 12] = [
            |expected| expected.cause = Cause::Unknown,
            |expected| expected.is_truncated = !expected.is_truncated,
            |expected| expected.findings.clear(),
            |expected| expected.findings.push(FindingKind::Frozen),
            |expected| expected.phases[0].seconds = 9.0,
            |expected| expected.grace = Some(7),
            |expected| expected.loses = true,
            |expected| expected.calls = Some(1),
            |expected| expected.leaks.clear(),
            |expected| expected.leaks[0].class = LeakClass::OrphanNetns,
            |expected| expected.leaks[0].cause = LeakCause::VolumeBusy,
            |expected| expected.traffic = Some(ExpectedTraffic::default()),
        ];
        for (at, deviate) in deviations.into_iter().enumerate() {
            let (mut scenario, account) = agreeing();
            deviate(&mut scenario.expected);
            assert!(!disagreements(&scenario, &account, false).is_empty(), "deviation {at}");
        }
        let deaths: [fn(&mut Death); 2] =
            [|death| death.verdict = Verdict::Crashed, |death| death.exit = None];
        for deviate in deaths {
            let (mut scenario, account) = agreeing();
            let name = first(&mut scenario.expected);
            deviate(scenario.expected.containers.get_mut(name).unwrap());
            assert_eq!(disagreements(&scenario, &account, false).len(), 1);
        }
        let (mut scenario, account) = agreeing();
        let name = first(&mut scenario.expected);
        scenario.expected.containers.remove(name);
        assert_eq!(disagreements(&scenario, &account, false).len(), 1);
        let (scenario, account) = agreeing();
        let nothing = Account { termination: None, ..account };
        assert_eq!(disagreements(&scenario, &nothing, false).len(), 1);
    }
}
