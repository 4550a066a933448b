//! What the engine says of a history, held against its truth.

use super::{
    connections::Connections,
    decidable::{Hidden, hidden},
    truth::{Expected, Posted, TrueEnd},
    view::View,
};
use coroner_core::testkit::*;
use std::collections::{BTreeMap, VecDeque};

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
    known: Floor,
}

/// How much is known, of one history or of many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floor {
    deaths: u32,
    verdicts: u32,
    causes: u32,
    /// Deaths whose cause something delivered decides, and how many of these causes are known.
    decidable: u32,
    decided: u32,
    /// All other deaths, by the reason.
    hidden: [Tally; Hidden::ALL.len()],
}

/// Deaths of which nothing that was delivered decides the cause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    deaths: u32,
    /// Of these, the true cause was reported.
    pub(crate) right: u32,
    /// Of these, another cause was reported that the same evidence allows.
    pub(crate) other: u32,
}

impl Tally {
    /// The true cause was reported no more often than one of the two that the evidence allows, at random: otherwise
    /// something decides it.
    pub(crate) fn is_chance(self) -> bool {
        let (right, other) = (f64::from(self.right), f64::from(self.other));
        right <= other + 3.0 * (right + other).sqrt() + 2.0
    }
}

fn percent(part: u32, whole: u32) -> f64 {
    100.0 * f64::from(part) / f64::from(whole.max(1))
}

impl Floor {
    pub(crate) fn deaths(&self) -> u32 {
        self.deaths
    }

    pub(crate) fn add(&mut self, judgement: &Shares) {
        let other = &judgement.known;
        self.deaths += other.deaths;
        self.verdicts += other.verdicts;
        self.causes += other.causes;
        self.decidable += other.decidable;
        self.decided += other.decided;
        for (own, other) in self.hidden.iter_mut().zip(&other.hidden) {
            own.deaths += other.deaths;
            own.right += other.right;
            own.other += other.other;
        }
    }

    fn note(&mut self, hidden: Option<Hidden>, true_cause: &str, last: Option<&ReportedDeath>) {
        let cause = last.map(|told| told.cause).filter(|cause| is_known(cause));
        self.deaths += 1;
        self.verdicts += u32::from(last.is_some_and(|told| told.verdict != "unknown"));
        self.causes += u32::from(cause.is_some());
        let Some(hidden) = hidden else {
            self.decidable += 1;
            self.decided += u32::from(cause.is_some());
            return;
        };
        let tally = &mut self.hidden[hidden as usize];
        tally.deaths += 1;
        tally.right += u32::from(cause == Some(true_cause));
        tally.other += u32::from(cause.is_some_and(|cause| cause != true_cause));
    }

    /// Of how many deaths, percent, the verdict and the cause are known.
    pub(crate) fn known(&self) -> (f64, f64) {
        (percent(self.verdicts, self.deaths), percent(self.causes, self.deaths))
    }

    /// Of how many deaths, percent, something decides the cause, and of how many of these it is known.
    pub(crate) fn decidable(&self) -> (f64, f64) {
        (percent(self.decidable, self.deaths), percent(self.decided, self.decidable))
    }

    /// Of how many deaths, percent, this hides the cause, and what was reported of them.
    pub(crate) fn hidden(&self, hidden: Hidden) -> (f64, Tally) {
        let tally = self.hidden[hidden as usize];
        (percent(tally.deaths, self.deaths), tally)
    }
}

#[derive(Debug)]
struct ReportedDeath {
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
fn is_wrong_restart(cause: &str, end: &TrueEnd) -> bool {
    let goes_on = ["liveness", "definition_changed", "external_stop"];
    cause == "restart" && !end.causes.iter().any(|one| goes_on.contains(&one.as_str()))
}

/// As the apiserver lists it: its time has whole seconds.
fn event(posted: &Posted) -> PostedEvent {
    let time = BootTime((posted.at / 1_000 * 1_000 + 500) * 1_000_000);
    PostedEvent {
        container: Some(posted.container.clone()),
        reason: Some(posted.reason),
        ..PostedEvent::new(time, 500_000_000, EventReason::Killing)
    }
}

/// Holds what the engine says against the truth.
pub(crate) fn judge(expected: &Expected, inputs: &[Received]) -> Shares {
    let mut engine = Engine::new(Settings::new(ANCHOR));
    let mut told: BTreeMap<String, Vec<ReportedDeath>> = BTreeMap::new();
    let mut ended: Vec<(u64, &'static str, String)> = Vec::new();
    let mut judgement = Shares::default();
    let mut uncounted: BTreeMap<String, i32> = BTreeMap::new();
    let mut connections = Connections::default();
    let mut queue: VecDeque<_> = inputs.iter().cloned().collect();
    let lists = Input::Events(LookupEvent::Lookup { lists: true });
    queue.push_front(Received { at: inputs[0].at, input: lists });
    let (mut is_away, mut listed) = (false, Vec::new());
    while let Some(received) = queue.pop_front() {
        let (time, at) = (received.at, received.at.0 / 1_000_000);
        match &received.input {
            Input::Api(ApiEvent::OutOfSync { .. }) => is_away = true,
            Input::Api(ApiEvent::Resumed | ApiEvent::Snapshot { .. }) => is_away = false,
            _ => {}
        }
        let outputs = engine.step(received);
        for request in &outputs.requests {
            if let Request::ListEvents(pod) = request {
                let known = expected.posted.iter().filter(|event| event.at <= at && !is_away);
                let known: Vec<Posted> = known.cloned().collect();
                let entries = (!is_away).then(|| known.iter().map(event).collect());
                let event = LookupEvent::Events { pod: pod.uid.clone(), asked: time, entries };
                queue.push_front(Received { at: time, input: Input::Events(event) });
                listed.extend(known);
                continue;
            }
            match connections.answer(request, time) {
                Ok(None) => {}
                Ok(Some(input)) => queue.push_front(Received { at: time, input }),
                Err(what) => judgement.wrong.push((Kind::Contradiction, what)),
            }
        }
        for said in outputs.reports {
            let mut note = |what, death: &ContainerDeath| {
                told.entry(death.id.to_string()).or_default().push(ReportedDeath {
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
                    let wrong = connections.check(&end);
                    judgement.wrong.extend(wrong.map(|what| (Kind::Contradiction, what)));
                    ended.push((at, end.cause.as_str(), end.cause_message.clone()));
                    *uncounted.entry(end.pod.uid.to_string()).or_default() += 1;
                    end.containers.iter().for_each(|death| note("its pod's report", death));
                }
                Report::PodUpdated(end, _) => {
                    let wrong = connections.check(&end);
                    judgement.wrong.extend(wrong.map(|what| (Kind::Contradiction, what)));
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
    if let Some(what) = connections.rest() {
        judgement.wrong.push((Kind::Lost, what));
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
    let view = View::of(inputs);
    let (mut missing, mut known) = (0, Floor::default());
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
        let hidden = hidden(&view, one, end, &listed);
        let allowed = end.causes.as_slice();
        let Some(reports) = told.get(&one.id) else {
            known.note(hidden, &end.causes[0], None);
            missing += 1;
            continue;
        };
        for told in reports {
            let ReportedDeath { at, what, verdict, cause, why } = told;
            let of = format!("{name}, {what} at {at}");
            if *verdict != "unknown" && *verdict != end.verdict {
                let text = format!("{of}: {verdict} instead of {}: {why}", end.verdict);
                wrong(Kind::Contradiction, text);
            }
            if is_known(cause) && !allowed.iter().any(|one| one == cause)
                || is_wrong_restart(cause, end)
            {
                let text = format!("{of}: {cause} instead of {allowed:?}: {why}");
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
            // Of two statements that both hold the one of the apiserver, which may come later, counts.
            let hold = |cause: &str| allowed.iter().any(|one| one == cause);
            let causes_differ =
                differ(own.cause, of_pod.cause) && !(hold(own.cause) && hold(of_pod.cause));
            if differ(own.verdict, of_pod.verdict) || causes_differ {
                wrong(Kind::Disagreement, format!("{name}: {own:?} but {of_pod:?}"));
            }
        }
        let last = of_pod.or(own);
        known.note(hidden, &end.causes[0], last);
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
    Shares { known, ..judgement }
}
