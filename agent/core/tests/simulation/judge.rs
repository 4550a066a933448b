//! What the engine says of a history, held against its truth.

use super::truth::{End, Expected};
use coroner_core::{
    engine::{Engine, Settings},
    input::{LossKind, Received},
    output::Report,
    report::ContainerDeath,
    time::Anchor,
};
use std::collections::BTreeMap;

/// What must never be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// A report says what is not true.
    Contradiction,
    /// A termination is not reported, not counted, or too late.
    Lost,
    /// A termination is reported or counted more than once.
    Twice,
    /// A container's report and its pod's differ.
    Disagreement,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Contradiction, Self::Lost, Self::Twice, Self::Disagreement];
}

/// What came of one history.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// What must never be, in words.
    pub(crate) wrong: Vec<(Kind, String)>,
    deaths: u32,
    verdicts: u32,
    causes: u32,
}

/// How much is known, over many histories.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    deaths: u32,
    verdicts: u32,
    causes: u32,
}

impl Floor {
    pub(crate) fn deaths(&self) -> u32 {
        self.deaths
    }

    pub(crate) fn add(&mut self, judgement: &Shares) {
        self.deaths += judgement.deaths;
        self.verdicts += judgement.verdicts;
        self.causes += judgement.causes;
    }

    /// Of how many deaths, percent, the verdict and the cause are known.
    pub(crate) fn known(&self) -> (f64, f64) {
        let percent = |part: u32| 100.0 * f64::from(part) / f64::from(self.deaths.max(1));
        (percent(self.verdicts), percent(self.causes))
    }
}

#[derive(Debug)]
struct Told {
    at: u64,
    what: &'static str,
    verdict: &'static str,
    cause: &'static str,
    why: String,
}

/// A container's report of its own.
const OWN: &str = "its own report";

/// `restart` says that the kubelet's reasons, and others, cannot be told apart.
fn is_known(label: &str) -> bool {
    !matches!(label, "unknown" | "restart")
}

/// Its pod did not go on after it.
fn is_wrong_restart(cause: &str, end: &End) -> bool {
    let goes_on = ["liveness", "definition_changed", "external_stop"];
    cause == "restart" && !end.causes.iter().any(|one| goes_on.contains(&one.as_str()))
}

/// Holds what the engine says against the truth.
pub(crate) fn judge(expected: &Expected, inputs: &[Received]) -> Shares {
    let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
    let mut engine = Engine::new(Settings { uses_api: true, ..Settings::new(anchor) });
    let mut told: BTreeMap<String, Vec<Told>> = BTreeMap::new();
    let mut ended: Vec<(u64, &'static str, String)> = Vec::new();
    let mut judgement = Shares::default();
    let mut uncounted: BTreeMap<String, i32> = BTreeMap::new();
    for received in inputs {
        let at = received.at.0 / 1_000_000;
        for said in engine.step(received.clone()).reports {
            let mut note = |what, death: &ContainerDeath| {
                told.entry(death.id.to_string()).or_default().push(Told {
                    at,
                    what,
                    verdict: death.verdict.as_str(),
                    cause: death.cause.as_str(),
                    why: format!("{} {}", death.proof.message, death.cause_message),
                });
            };
            match said {
                Report::ContainerDied(death) => {
                    note(OWN, &death);
                    *uncounted.entry(death.id.to_string()).or_default() += 1;
                }
                Report::PodTerminated(end) => {
                    ended.push((at, end.cause.as_str(), end.cause_message.clone()));
                    *uncounted.entry(end.pod.uid.to_string()).or_default() += 1;
                    end.containers.iter().for_each(|death| note("its pod's report", death));
                }
                Report::PodUpdated(end, _) => {
                    end.containers.iter().for_each(|death| note("its pod's updated report", death));
                }
                Report::CountDeath(death) => {
                    *uncounted.entry(death.id.to_string()).or_default() -= 1
                }
                Report::CountTermination(end) => {
                    *uncounted.entry(end.pod.uid.to_string()).or_default() -= 1;
                }
                _ => {}
            }
        }
    }
    let mut wrong = |kind, what: String| judgement.wrong.push((kind, what));
    for said in engine.count_the_rest() {
        wrong(Kind::Lost, format!("not counted in time: {said:?}"));
    }
    for (id, times) in uncounted.into_iter().filter(|(_, times)| *times != 0) {
        let kind = if times > 0 { Kind::Lost } else { Kind::Twice };
        wrong(kind, format!("{id}: reported {times} times more than counted"));
    }
    // When the agent began to look on.
    let starts = inputs[0].at.0 / 1_000_000;
    let (mut missing, mut deaths, mut verdicts, mut causes) = (0, 0, 0, 0);
    for one in &expected.attempts {
        let name = &one.name;
        let Some(end) = &one.end else {
            if let Some(told) = told.get(&one.id) {
                wrong(Kind::Contradiction, format!("{name} lives, and was reported: {told:?}"));
            }
            continue;
        };
        if end.at < starts {
            continue;
        }
        deaths += 1;
        let Some(reports) = told.get(&one.id) else {
            missing += 1;
            continue;
        };
        for told in reports {
            let Told { at, what, verdict, cause, why } = told;
            let of = format!("{name}, {what} at {at}");
            if *verdict != "unknown" && *verdict != end.verdict {
                let text = format!("{of}: {verdict} instead of {}: {why}", end.verdict);
                wrong(Kind::Contradiction, text);
            }
            if is_known(cause) && !end.causes.iter().any(|one| one == cause)
                || is_wrong_restart(cause, end)
            {
                let text = format!("{of}: {cause} instead of {:?}: {why}", end.causes);
                wrong(Kind::Contradiction, text);
            }
        }
        let mut own_reports = reports.iter().filter(|told| told.what == OWN);
        let own = own_reports.next();
        if let Some(again) = own_reports.next() {
            wrong(Kind::Twice, format!("{name}: reported again at {}", again.at));
        }
        let of_pod = reports.iter().rev().find(|told| told.what != OWN);
        if let (Some(own), Some(of_pod)) = (own, of_pod) {
            let differ = |own: &str, of_pod: &str| own != of_pod && is_known(own);
            if differ(own.verdict, of_pod.verdict) || differ(own.cause, of_pod.cause) {
                wrong(Kind::Disagreement, format!("{name}: {own:?} but {of_pod:?}"));
            }
        }
        let last = of_pod.or(own);
        verdicts += u32::from(last.is_some_and(|told| told.verdict != "unknown"));
        causes += u32::from(last.is_some_and(|told| is_known(told.cause)));
    }
    // Whom the runtime never listed is counted instead.
    let counted = engine.gauges().losses.get(&LossKind::NeverResolved).copied().unwrap_or_default();
    if missing > counted {
        wrong(Kind::Lost, format!("{missing} deaths not reported, {counted} of them counted"));
    }
    match (&expected.pod_end, ended.as_slice()) {
        (None, []) => {}
        (None, ended) => {
            wrong(Kind::Contradiction, format!("the pod goes on, and was reported: {ended:?}"));
        }
        // The agent came when nothing of it ran any more.
        (Some(_), [])
            if expected
                .attempts
                .iter()
                .all(|one| one.end.as_ref().is_some_and(|end| end.at < starts)) => {}
        (Some(_), []) if missing > 0 && told.is_empty() => {}
        (Some(_), []) => wrong(Kind::Lost, "the pod's end was never reported".into()),
        (Some(_), [_, _, ..]) => wrong(Kind::Twice, format!("reported twice: {ended:?}")),
        (Some(cause), [(at, told, why)]) => {
            if *told != "unknown" && told != cause {
                let text = format!("the pod: {told} instead of {cause}: {why}");
                wrong(Kind::Contradiction, text);
            }
            if *at > expected.complete + 90_000 {
                wrong(Kind::Lost, format!("the pod's end was reported only at {at}"));
            }
        }
    }
    Shares { deaths, verdicts, causes, ..judgement }
}
