//! What was expected against what was observed. Pure.

use super::{Death, Earlier, Expected};
use coroner_core::{
    input::ExitStatus,
    report::{ContainerDeath, PodTermination},
    types::{Cause, Certainty, FindingKind, PhaseKind, Verdict},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

/// A pod's end, reduced to what expectations are about.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ObservedReport {
    /// Why the pod ended.
    pub cause: Cause,
    /// How each container died, by name.
    pub containers: BTreeMap<String, ObservedDeath>,
    /// Deaths before the pod's own end, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<ObservedEarlier>,
    /// Findings of the pod and of its containers.
    pub findings: BTreeSet<FindingKind>,
    /// The grace that each container was given, seconds, by name.
    pub graces: BTreeMap<String, Option<i64>>,
    /// Seconds spent in each phase of the critical path.
    pub phases: BTreeMap<PhaseKind, f64>,
    /// The agent says that it did not see the beginning.
    pub truncated: bool,
}

/// How one container died.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ObservedDeath {
    pub verdict: Verdict,
    /// How its init ended, if that was seen.
    pub exit: Option<ExitStatus>,
}

/// A death in a pod that went on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ObservedEarlier {
    /// The container's name.
    pub container: String,
    /// How it died.
    #[serde(flatten)]
    pub death: ObservedDeath,
    /// Why.
    pub cause: Cause,
    pub certainty: Certainty,
    /// The grace that applied, seconds.
    pub grace: Option<i64>,
    /// The cause's message.
    pub says: String,
}

impl ObservedReport {
    /// Of a timeline and of the deaths before it, the oldest first.
    pub fn of(timeline: &PodTermination, earlier: &[ContainerDeath]) -> Self {
        Self {
            cause: timeline.cause,
            containers: by_name(&timeline.containers),
            earlier: earlier
                .iter()
                .map(|death| ObservedEarlier {
                    container: death.name.clone(),
                    death: ObservedDeath::of(death),
                    cause: death.cause,
                    certainty: death.cause_certainty,
                    grace: death.grace_seconds,
                    says: death.cause_message.clone(),
                })
                .collect(),
            findings: timeline
                .containers
                .iter()
                .flat_map(|death| &death.findings)
                .chain(&timeline.findings)
                .map(|finding| finding.kind)
                .collect(),
            graces: timeline
                .containers
                .iter()
                .map(|death| (death.name.clone(), death.grace_seconds))
                .collect(),
            phases: PhaseKind::ALL
                .iter()
                .map(|phase| (*phase, timeline.phase(*phase).as_secs_f64()))
                .filter(|(_, seconds)| *seconds > 0.0)
                .collect(),
            truncated: timeline.truncated,
        }
    }
}

/// A name that comes twice is kept twice, and so contradicts.
fn by_name(deaths: &[ContainerDeath]) -> BTreeMap<String, ObservedDeath> {
    let mut named = BTreeMap::new();
    for death in deaths {
        let mut name = death.name.clone();
        while named.contains_key(&name) {
            name.push_str(" again");
        }
        named.insert(name, ObservedDeath::of(death));
    }
    named
}

impl ObservedDeath {
    fn of(death: &ContainerDeath) -> Self {
        Self { verdict: death.verdict, exit: death.exit }
    }

    fn points(self, name: &str, expected: &Death) -> Vec<String> {
        let mut points = Vec::new();
        if self.verdict != expected.verdict {
            points.push(format!("{name}: {}, expected {}", self.verdict, expected.verdict));
        }
        if !self.exit.is_some_and(|exit| same_end(exit, expected.exit)) {
            let seen = self.exit.map_or_else(|| "no exit seen".into(), exit);
            points.push(format!("{name}: {seen}, expected {}", exit(expected.exit)));
        }
        points
    }
}

/// Every point in which they disagree, as a sentence for a person; empty: they agree.
pub fn disagreements(expected: &Expected, observed: &ObservedReport) -> Vec<String> {
    let mut points = Vec::new();
    if observed.cause != expected.cause {
        points.push(format!("cause {}, expected {}", observed.cause, expected.cause));
    }
    for (name, death) in &expected.containers {
        match observed.containers.get(*name) {
            None => points.push(format!("{name}: no death, expected {}", told(death))),
            Some(seen) => points.extend(seen.points(name, death)),
        }
    }
    for name in observed.containers.keys() {
        if !expected.containers.contains_key(name.as_str()) {
            points.push(format!("{name:?}: a death that nobody expected"));
        }
    }
    points.extend(earlier(&expected.earlier, &observed.earlier));
    for finding in &expected.findings {
        if !observed.findings.contains(finding) {
            points.push(format!("{finding} was not found"));
        }
    }
    for finding in &observed.findings {
        if !expected.findings.contains(finding) && !expected.also_allowed.contains(finding) {
            points.push(format!("{finding} was found, nothing of the kind was expected"));
        }
    }
    for (name, grace) in &observed.graces {
        if expected.grace.is_some() && *grace != expected.grace {
            points.push(format!("{name}: grace {grace:?} s, expected {:?} s", expected.grace));
        }
    }
    for span in &expected.phases {
        let seconds = observed.phases.get(&span.phase).copied().unwrap_or(0.0);
        if !(span.at_least..=span.at_most).contains(&seconds) {
            points.push(format!(
                "{} took {seconds:.2} s, expected {:.1} to {:.1}",
                span.phase, span.at_least, span.at_most
            ));
        }
    }
    match (expected.truncated, observed.truncated) {
        (false, true) => {
            points.push("the timeline is truncated, though the agent saw it begin".into());
        }
        (true, false) => {
            points.push("the timeline is not truncated, though the agent came later".into());
        }
        _ => {}
    }
    points
}

/// How a report came to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revisions {
    /// The number of its last revision.
    pub last: u32,
    /// No other follows.
    pub is_final: bool,
    /// The verdict on each container in the first report that named it.
    pub first: Vec<(String, Verdict)>,
}

impl Revisions {
    /// Of a timeline and of the deaths as they were first reported.
    pub fn of(timeline: &PodTermination, first: &[ContainerDeath]) -> Self {
        let verdicts = first.iter().map(|death| (death.name.clone(), death.verdict));
        Self { last: timeline.revision, is_final: timeline.is_final, first: verdicts.collect() }
    }

    /// Late evidence completes a report once, and corrects nothing: every point in which this is not so.
    pub fn disagreements(&self, expected: &Expected) -> Vec<String> {
        let mut points = Vec::new();
        for (name, verdict) in &self.first {
            let wanted = expected.containers.get(name.as_str()).map(|death| death.verdict);
            if let Some(wanted) = wanted.filter(|wanted| wanted != verdict) {
                points.push(format!("{name}: first reported as {verdict}, expected {wanted}"));
            }
        }
        if !self.is_final {
            points.push("the report did not become final".into());
        }
        if self.last > 2 {
            points.push(format!("{} updates of the report, expected 1 at most", self.last - 1));
        }
        points
    }
}

/// The deaths in the order in which they are expected: containers that are stopped together end in any order.
/// `repeats`: without those that repeat a container's last one, because its probe goes on failing, and the
/// kubelet restarting it, while the lab waits for late answers.
pub fn as_expected(
    expected: &[Earlier],
    mut observed: Vec<ObservedEarlier>,
    repeats: bool,
) -> Vec<ObservedEarlier> {
    let mut ordered = Vec::new();
    for expected in expected {
        let same = |seen: &ObservedEarlier| seen.container == expected.container;
        ordered.extend(observed.iter().position(same).map(|at| observed.remove(at)));
    }
    observed.retain(|seen| {
        let last = expected.iter().rfind(|expected| expected.container == seen.container);
        !repeats
            || last.is_none_or(|last| {
                !earlier(slice::from_ref(last), slice::from_ref(seen)).is_empty()
            })
    });
    ordered.extend(observed);
    ordered
}

fn earlier(expected: &[Earlier], observed: &[ObservedEarlier]) -> Vec<String> {
    let mut points = Vec::new();
    for (expected, seen) in expected.iter().zip(observed) {
        let name = format!("{} before", expected.container);
        if seen.container != expected.container {
            points.push(format!("{name}: it was {:?}", seen.container));
        }
        points.extend(seen.death.points(&name, &expected.death));
        if seen.cause != expected.cause {
            points.push(format!("{name}: cause {}, expected {}", seen.cause, expected.cause));
        } else if seen.certainty != expected.certainty {
            points.push(format!(
                "{name}: cause {} is {}, expected {}",
                seen.cause, seen.certainty, expected.certainty
            ));
        }
        if expected.grace.is_some() && seen.grace != expected.grace {
            let (seen, expected) = (seen.grace, expected.grace);
            points.push(format!("{name}: grace {seen:?} s, expected {expected:?} s"));
        }
        if let Some(words) = expected.says.filter(|words| !seen.says.contains(words)) {
            points.push(format!("{name}: the cause says {:?}, expected {words:?}", seen.says));
        }
    }
    if expected.len() != observed.len() {
        points.push(format!(
            "{} deaths before the pod's end, expected {}",
            observed.len(),
            expected.len()
        ));
    }
    points
}

/// A core dump is the machine's business (ulimits, core_pattern), not the scenario's.
fn same_end(seen: ExitStatus, expected: ExitStatus) -> bool {
    match (seen, expected) {
        (ExitStatus::Signal { signal: seen, .. }, ExitStatus::Signal { signal: expected, .. }) => {
            seen == expected
        }
        (seen, expected) => seen == expected,
    }
}

fn told(death: &Death) -> String {
    format!("{} with {}", death.verdict, exit(death.exit))
}

/// `exit 0`, `signal 9`.
pub fn exit(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit {code}"),
        ExitStatus::Signal { signal, .. } => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    /// What would agree with everything that is expected.
    fn agreeing(expected: &Expected) -> ObservedReport {
        ObservedReport {
            cause: expected.cause,
            containers: expected
                .containers
                .iter()
                .map(|(name, death)| {
                    let seen = ObservedDeath { verdict: death.verdict, exit: Some(death.exit) };
                    ((*name).to_owned(), seen)
                })
                .collect(),
            earlier: expected
                .earlier
                .iter()
                .map(|earlier| ObservedEarlier {
                    container: earlier.container.into(),
                    death: ObservedDeath {
                        verdict: earlier.death.verdict,
                        exit: Some(earlier.death.exit),
                    },
                    cause: earlier.cause,
                    certainty: earlier.certainty,
                    grace: earlier.grace,
                    says: earlier.says.unwrap_or_default().into(),
                })
                .collect(),
            findings: expected.findings.iter().copied().collect(),
            graces: expected
                .containers
                .keys()
                .map(|name| ((*name).into(), expected.grace))
                .collect(),
            phases: expected.phases.iter().map(|span| (span.phase, span.at_least)).collect(),
            truncated: expected.truncated,
        }
    }

    #[test]
    fn a_death_that_repeats_the_last_is_left_out_and_no_other() {
        let all = catalogue();
        let probe = all.iter().find(|one| one.name == "liveness-probe-fails").unwrap();
        let expected = &probe.expected.earlier;
        let seen = agreeing(&probe.expected).earlier;
        let twice = [seen.clone(), seen.clone()].concat();
        assert_eq!(as_expected(expected, twice.clone(), true), seen);
        let mut another = twice;
        another.last_mut().unwrap().cause = Cause::Unknown;
        assert_eq!(as_expected(expected, another.clone(), true), another);
    }

    #[test]
    fn every_scenario_agrees_with_its_own_expectations() {
        for scenario in catalogue() {
            let points = disagreements(&scenario.expected, &agreeing(&scenario.expected));
            assert!(points.is_empty(), "{}: {points:?}", scenario.name);
        }
    }

    #[test]
    fn every_single_deviation_is_a_disagreement() {
        let scenario =
            catalogue().into_iter().find(|s| s.name == "prestop-exhausts-grace").unwrap();
        let expected = &scenario.expected;
        type Deviation = (&'static str, fn(&mut ObservedReport));
        let deviations: [Deviation; 9] = [
            ("cause", |o| o.cause = Cause::Unknown),
            ("verdict", |o| o.containers.get_mut("app").unwrap().verdict = Verdict::Graceful),
            ("exit", |o| o.containers.get_mut("app").unwrap().exit = Some(ExitStatus::Code(1))),
            ("no exit", |o| o.containers.get_mut("app").unwrap().exit = None),
            ("no death", |o| o.containers.clear()),
            ("missing finding", |o| o.findings.clear()),
            ("other finding", |o| {
                o.findings.insert(FindingKind::Contradiction);
            }),
            ("phase", |o| {
                o.phases.insert(PhaseKind::PreStop, 1.0);
            }),
            ("truncated", |o| o.truncated = true),
        ];
        for (what, deviate) in deviations {
            let mut observed = agreeing(expected);
            deviate(&mut observed);
            let points = disagreements(expected, &observed);
            assert_eq!(points.len(), 1, "{what}: {points:?}");
        }
    }

    #[test]
    fn another_grace_than_the_expected_one_is_a_disagreement() {
        let scenario = catalogue().into_iter().find(|s| s.name == "deleted-now").unwrap();
        let mut observed = agreeing(&scenario.expected);
        observed.graces.insert("app".into(), Some(1));
        assert_eq!(
            disagreements(&scenario.expected, &observed),
            ["app: grace Some(1) s, expected Some(2) s"]
        );
    }

    #[test]
    fn a_report_is_completed_once_and_not_corrected() {
        let all = catalogue();
        let scenario = all.iter().find(|s| s.name == "sigterm-ignored").unwrap();
        let points = |last, is_final, verdict| {
            let first = vec![("app".to_owned(), verdict)];
            Revisions { last, is_final, first }.disagreements(&scenario.expected)
        };
        assert_eq!(points(2, true, Verdict::StopSignalIgnored), [""; 0]);
        assert_eq!(points(3, true, Verdict::StopSignalIgnored).len(), 1);
        assert_eq!(points(1, false, Verdict::StopSignalIgnored).len(), 1);
        let corrected = points(2, true, Verdict::ForceKilled);
        assert_eq!(
            corrected,
            ["app: first reported as force_killed, expected stop_signal_ignored"]
        );
    }

    #[test]
    fn an_extra_container_is_a_disagreement_and_a_core_dump_is_not() {
        let scenario = catalogue().into_iter().find(|s| s.name == "crash").unwrap();
        let mut observed = agreeing(&scenario.expected);
        let dumped = ObservedDeath {
            verdict: Verdict::Crashed,
            exit: Some(ExitStatus::Signal { signal: 11, core: true }),
        };
        observed.containers.insert("app".into(), dumped);
        assert!(disagreements(&scenario.expected, &observed).is_empty());
        observed.containers.insert(String::new(), dumped);
        assert_eq!(disagreements(&scenario.expected, &observed).len(), 1);
    }

    #[test]
    fn allowed_findings_do_not_disagree() {
        let scenario =
            catalogue().into_iter().find(|s| s.name == "prestop-exhausts-grace").unwrap();
        let mut observed = agreeing(&scenario.expected);
        observed.findings.insert(FindingKind::ChildrenNotSignalled);
        assert!(disagreements(&scenario.expected, &observed).is_empty());
    }

    #[test]
    fn deaths_before_the_end_are_compared_too() {
        let scenario = catalogue().into_iter().find(|s| s.name == "only-events-prove-it").unwrap();
        let points = |deviate: fn(&mut Vec<ObservedEarlier>)| {
            let mut observed = agreeing(&scenario.expected);
            deviate(&mut observed.earlier);
            disagreements(&scenario.expected, &observed).len()
        };
        assert_eq!(points(|_| {}), 0);
        assert_eq!(points(|earlier| earlier.clear()), 1);
        assert_eq!(points(|earlier| earlier.push(earlier[0].clone())), 1);
        assert_eq!(points(|earlier| earlier[0].cause = Cause::Restart), 1);
        assert_eq!(points(|earlier| earlier[0].certainty = Certainty::Inferred), 1);
        assert_eq!(points(|earlier| earlier[0].grace = Some(7)), 1);
        assert_eq!(points(|earlier| earlier[0].says.clear()), 1);
        assert_eq!(points(|earlier| earlier[0].death.verdict = Verdict::GraceExceeded), 1);
        assert_eq!(points(|earlier| earlier[0].container = "other".into()), 1);
    }
}
