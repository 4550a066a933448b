//! What the engine says of a history, held against its truth.

use super::truth::{End, Truth};
use coroner_core::{
    engine::{Engine, Settings},
    input::{LossKind, Received},
    observation::ContainerDeath,
    output::Report,
    time::Anchor,
};
use std::{collections::BTreeMap, fmt};

/// What came of one history.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// What must never be.
    pub(crate) wrong: Vec<String>,
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
    pub(crate) fn add(&mut self, judgement: &Judgement) {
        self.deaths += judgement.deaths;
        self.verdicts += judgement.verdicts;
        self.causes += judgement.causes;
    }
}

impl Floor {
    /// Of how many deaths, percent, the verdict and the cause are known.
    pub(crate) fn known(&self) -> (f64, f64) {
        let percent = |part: u32| 100.0 * f64::from(part) / f64::from(self.deaths.max(1));
        (percent(self.verdicts), percent(self.causes))
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdicts, causes) = self.known();
        let deaths = self.deaths;
        write!(f, "{deaths:>6} deaths, verdict known {verdicts:.2} %, cause known {causes:.2} %")
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

/// `restart` says that the kubelet's reasons, and others, cannot be told apart.
fn is_known(label: &str) -> bool {
    !matches!(label, "unknown" | "restart")
}

/// Its pod did not go on after it.
fn is_wrong_restart(cause: &str, end: &End) -> bool {
    let goes_on = ["liveness", "definition_changed", "external_stop"];
    cause == "restart" && !goes_on.iter().any(|one| end.causes.contains(one))
}

/// Holds what the engine says against the truth. `complete`: when all sources had told all.
pub(crate) fn judge(truth: &Truth, inputs: &[Received], complete: u64) -> Judgement {
    let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
    let mut engine = Engine::new(Settings { uses_api: true, ..Settings::new(anchor) });
    let mut told: BTreeMap<String, Vec<Told>> = BTreeMap::new();
    let mut ended: Vec<(u64, &'static str, String)> = Vec::new();
    let mut judgement = Judgement::default();
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
                    why: format!("{} {}", death.proof.sentence, death.cause_proof),
                });
            };
            match said {
                Report::ContainerDied(death) => {
                    note("its own report", &death);
                    *uncounted.entry(death.id.to_string()).or_default() += 1;
                }
                Report::PodTerminated(end) => {
                    ended.push((at, end.cause.as_str(), end.cause_proof.clone()));
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
    for said in engine.count_the_rest() {
        judgement.wrong.push(format!("not counted in time: {said:?}"));
    }
    for (id, times) in uncounted.into_iter().filter(|(_, times)| *times != 0) {
        judgement.wrong.push(format!("{id}: reported {times} times more than counted"));
    }
    // When the agent began to look on.
    let starts = inputs[0].at.0 / 1_000_000;
    let mut missing = 0;
    for one in &truth.attempts {
        let Some(end) = &one.end else {
            if let Some(told) = told.get(&one.id) {
                judgement
                    .wrong
                    .push(format!("c{} lives, and was reported: {told:?}", one.container));
            }
            continue;
        };
        if end.at < starts {
            continue;
        }
        judgement.deaths += 1;
        let Some(reports) = told.get(&one.id) else {
            missing += 1;
            continue;
        };
        for told in reports {
            let Told { at, what, verdict, cause, why } = told;
            let of = format!("c{}, {what} at {at}", one.container);
            if *verdict != "unknown" && *verdict != end.verdict {
                judgement.wrong.push(format!("{of}: {verdict} instead of {}: {why}", end.verdict));
            }
            if is_known(cause) && !end.causes.contains(cause) || is_wrong_restart(cause, end) {
                judgement.wrong.push(format!("{of}: {cause} instead of {:?}: {why}", end.causes));
            }
        }
        let own = reports.iter().find(|told| told.what == "its own report");
        let of_pod = reports.iter().rev().find(|told| told.what != "its own report");
        if let (Some(own), Some(of_pod)) = (own, of_pod) {
            let differ = |own: &str, of_pod: &str| own != of_pod && is_known(own);
            if differ(own.verdict, of_pod.verdict) || differ(own.cause, of_pod.cause) {
                judgement.wrong.push(format!("c{}: {own:?} but {of_pod:?}", one.container));
            }
        }
        let last = of_pod.or(own);
        judgement.verdicts += u32::from(last.is_some_and(|told| told.verdict != "unknown"));
        judgement.causes += u32::from(last.is_some_and(|told| is_known(told.cause)));
    }
    // Whom the runtime never listed is counted instead.
    let counted = engine.gauges().losses.get(&LossKind::NeverResolved).copied().unwrap_or_default();
    if missing > counted {
        judgement.wrong.push(format!("{missing} deaths not reported, {counted} of them counted"));
    }
    match (truth.pod_end, ended.as_slice()) {
        (None, []) => {}
        (None, ended) => {
            judgement.wrong.push(format!("the pod goes on, and was reported: {ended:?}"))
        }
        // The agent came when nothing of it ran any more.
        (Some(_), [])
            if truth
                .attempts
                .iter()
                .all(|one| one.end.as_ref().is_some_and(|end| end.at < starts)) => {}
        (Some(_), []) if missing > 0 && told.is_empty() => {}
        (Some(_), []) => judgement.wrong.push("the pod's end was never reported".into()),
        (Some(_), [_, _, ..]) => judgement.wrong.push(format!("reported twice: {ended:?}")),
        (Some(cause), [(at, told, why)]) => {
            if *told != "unknown" && *told != cause {
                judgement.wrong.push(format!("the pod: {told} instead of {cause}: {why}"));
            }
            if *at > complete + 90_000 {
                judgement.wrong.push(format!("the pod's end was reported only at {at}"));
            }
        }
    }
    judgement
}
