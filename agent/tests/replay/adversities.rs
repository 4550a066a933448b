//! Whatever is lost, told twice or restarted: never a wrong verdict. `unknown` is allowed.

use super::{Said, collect, names, random::cases, recordings, replay};
use coroner_core::{
    engine::{Engine, Settings},
    ids::ContainerId,
    input::{ApiEvent, ApiPod, CriEvent, Input, KernelEvent, KernelFact, Loss, LossKind, Received},
    report::ContainerDeath,
    time::{Anchor, BootTime, WallTime},
    types::{Cause, Verdict},
};
use proptest::{
    prelude::*,
    strategy::{Union, ValueTree as _},
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// What goes wrong.
#[derive(Clone, Debug)]
enum Adversity {
    /// One in so many records of the kernel is lost; the loss is counted up to a second later.
    Losses { one_in: u64 },
    /// One in so many inputs is told twice.
    Duplicates { one_in: u64 },
    /// The agent starts, anew, at this share of the recording.
    AgentStarts { at: f64 },
    /// The runtime is away from this share of the recording on, for so long.
    RuntimeAway { at: f64, millis: u64 },
    /// The watch breaks, and so long after goes on with a snapshot.
    WatchBroken { at: f64, millis: u64 },
    /// Each event of the watch comes up to so late, in order.
    WatchLate { millis: u64 },
    /// The watch delivers nothing from this share of the recording on, which an error says only so long
    /// after. Then the pods are listed again, or it delivers what it held back.
    WatchHung { at: f64, millis: u64, listed: bool },
    /// This machine's wall clock is set at this share of the recording: what the runtime dates from
    /// then on is so far off, and the agent hears of it up to a second later. The apiserver is on
    /// another machine.
    ClockSet { at: f64, millis: i64 },
    /// Cgroups get the ids of others that are gone: as many as possible.
    CgroupIdsReused,
}

/// Each kind of them, by name.
fn kinds() -> [(&'static str, BoxedStrategy<Adversity>); 10] {
    let share = || 0.0..1.0;
    let away = || (share(), 100_u64..60_000);
    let hung = || (share(), 1_000_u64..120_000);
    [
        ("losses", (2_u64..40).prop_map(|one_in| Adversity::Losses { one_in }).boxed()),
        ("duplicates", (2_u64..10).prop_map(|one_in| Adversity::Duplicates { one_in }).boxed()),
        ("agent-starts", share().prop_map(|at| Adversity::AgentStarts { at }).boxed()),
        (
            "runtime-away",
            away().prop_map(|(at, millis)| Adversity::RuntimeAway { at, millis }).boxed(),
        ),
        (
            "watch-broken",
            away().prop_map(|(at, millis)| Adversity::WatchBroken { at, millis }).boxed(),
        ),
        ("watch-late", (1_u64..120_000).prop_map(|millis| Adversity::WatchLate { millis }).boxed()),
        (
            "watch-hung-resumed",
            hung()
                .prop_map(|(at, millis)| Adversity::WatchHung { at, millis, listed: false })
                .boxed(),
        ),
        (
            "watch-hung-relisted",
            hung()
                .prop_map(|(at, millis)| Adversity::WatchHung { at, millis, listed: true })
                .boxed(),
        ),
        (
            "clock-set",
            (share(), -20_000_000_i64..20_000_000)
                .prop_map(|(at, millis)| Adversity::ClockSet { at, millis })
                .boxed(),
        ),
        ("cgroup-ids-reused", Just(Adversity::CgroupIdsReused).boxed()),
    ]
}

fn adversity() -> impl Strategy<Value = Adversity> {
    Union::new(kinds().map(|(_, adversity)| adversity))
}

impl Adversity {
    /// What the watch holds back is older than what the apiserver lists: it is held back last.
    fn order(&self) -> u8 {
        match self {
            Self::WatchLate { .. } => 2,
            Self::WatchHung { .. } => 1,
            _ => 0,
        }
    }

    fn makes_reports_wait(&self) -> bool {
        self.order() > 0 || matches!(self, Self::RuntimeAway { .. } | Self::WatchBroken { .. })
    }
}

fn at_share(inputs: &[Received], share: f64) -> BootTime {
    let (first, last) = (inputs[0].at, inputs[inputs.len() - 1].at);
    first + last.since(first).mul_f64(share)
}

/// `real`: what really happened, which every answer tells.
fn suffer(
    inputs: Vec<Received>,
    real: &[Received],
    anchor: Anchor,
    adversity: &Adversity,
    rng: &mut TestRng,
) -> Vec<Received> {
    let mut out: Vec<Received> = match *adversity {
        Adversity::Losses { one_in } => {
            let mut out = Vec::new();
            for input in inputs {
                match ring_of(&input.input).filter(|_| rng.next_u64().is_multiple_of(one_in)) {
                    Some(kind) => {
                        let at = input.at + Duration::from_millis(rng.next_u64() % 1000);
                        out.push(Received { at, input: Input::Lost(Loss::new(kind, 1)) });
                    }
                    None => out.push(input),
                }
            }
            out
        }
        Adversity::Duplicates { one_in } => {
            let twice = |input: Received| {
                let times = if rng.next_u64().is_multiple_of(one_in) { 2 } else { 1 };
                std::iter::repeat_n(input, times)
            };
            inputs.into_iter().flat_map(twice).collect()
        }
        Adversity::AgentStarts { at } => start_at(&inputs, real, at_share(&inputs, at)),
        Adversity::RuntimeAway { at, millis } => {
            let from = at_share(&inputs, at);
            let to = from + Duration::from_millis(millis);
            let mut out: Vec<Received> = inputs
                .iter()
                .filter(|i| !matches!(i.input, Input::Cri(_)) || i.at < from || i.at >= to)
                .cloned()
                .collect();
            let say = |at, event| Received { at, input: Input::Cri(event) };
            out.push(say(
                from,
                CriEvent::Unreachable { error: "connection refused".into(), code: None },
            ));
            out.push(say(to, CriEvent::Connected { runtime: "c".into(), process: None }));
            // Its next answers tell all that is, and the ends of all that has exited.
            out.extend(answers(real, to));
            out
        }
        Adversity::WatchBroken { at, millis } => {
            let from = at_share(&inputs, at);
            let to = from + Duration::from_millis(millis);
            let mut out: Vec<Received> = inputs
                .iter()
                .filter(|i| !matches!(i.input, Input::Api(_)) || i.at < from || i.at >= to)
                .cloned()
                .collect();
            let error = ApiEvent::OutOfSync { error: "connection reset".into() };
            out.push(Received { at: from, input: Input::Api(error) });
            out.push(snapshot(real, to));
            out
        }
        Adversity::WatchLate { millis } => {
            let mut last = BootTime(0);
            let late = |mut input: Received| {
                if matches!(input.input, Input::Api(_)) {
                    last = last.max(input.at + Duration::from_millis(rng.next_u64() % millis));
                    input.at = last;
                }
                input
            };
            inputs.into_iter().map(late).collect()
        }
        Adversity::WatchHung { at, millis, listed } => {
            let from = at_share(&inputs, at);
            let to = from + Duration::from_millis(millis);
            let is_held =
                |i: &Received| matches!(i.input, Input::Api(_)) && i.at >= from && i.at < to;
            let (held, mut out): (Vec<_>, Vec<_>) = inputs.into_iter().partition(is_held);
            let api = |event| Received { at: to, input: Input::Api(event) };
            out.push(api(ApiEvent::OutOfSync { error: "http2: ping timeout".into() }));
            if listed {
                out.push(snapshot(real, to));
            } else {
                out.push(api(ApiEvent::Resumed));
                out.extend(held.into_iter().map(|input| Received { at: to, ..input }));
            }
            out
        }
        Adversity::ClockSet { at, millis } => {
            let (at, by) = (at_share(&inputs, at), millis * 1_000_000);
            let mut out: Vec<Received> =
                inputs.into_iter().map(|input| dated(input, anchor.wall(at), by)).collect();
            let heard = at + Duration::from_millis(rng.next_u64() % 1000);
            let set = Anchor { wall_ns: anchor.wall_ns + by, ..anchor };
            out.push(Received { at: heard, input: Input::Clock(set) });
            out
        }
        Adversity::CgroupIdsReused => reused(inputs),
    };
    out.sort_by_key(|i| i.at);
    out
}

/// What the runtime dates at or after `from` it dates so far off.
fn dated(mut received: Received, from: WallTime, by: i64) -> Received {
    let shift = |time: &mut WallTime| {
        if *time >= from {
            time.0 += by;
        }
    };
    match &mut received.input {
        Input::Cri(CriEvent::Sandboxes { sandboxes, .. }) => {
            sandboxes.iter_mut().filter_map(|one| one.created.as_mut()).for_each(shift);
        }
        Input::Cri(CriEvent::Containers { containers, .. }) => {
            containers.iter_mut().filter_map(|one| one.created.as_mut()).for_each(shift);
        }
        _ => {}
    }
    received
}

/// How long the id of a cgroup that is gone stays unused. Linux has 64 bits for them, of which the
/// upper half counts up each time the lower one is used again: it never comes to this.
const UNUSED: Duration = Duration::from_secs(10);

/// The same with as few ids of cgroups as there can be.
fn reused(inputs: Vec<Received>) -> Vec<Received> {
    let (mut ids, mut free) = (BTreeMap::<u64, u64>::new(), VecDeque::<(BootTime, u64)>::new());
    let mut next = 1;
    let rewrite = |received: Received| {
        let at = received.at;
        let fact = match &received.input {
            Input::Kernel(event) => Some(&event.fact),
            _ => None,
        };
        if let Some(KernelFact::CgroupCreated { cgroup, .. }) = fact {
            ids.entry(cgroup.0).or_insert_with(|| match free.front().copied() {
                Some((since, id)) if since + UNUSED < at => {
                    free.pop_front();
                    id
                }
                _ => {
                    next += 1;
                    next
                }
            });
        }
        let removed = match fact {
            Some(KernelFact::CgroupRemoved { cgroup }) => Some(cgroup.0),
            _ => None,
        };
        let mut value = serde_json::to_value(&received).expect("an input can be written");
        rename(&mut value, &mut |id| {
            *ids.entry(id).or_insert_with(|| {
                next += 1;
                next
            })
        });
        if let Some(id) = removed.and_then(|cgroup| ids.get(&cgroup)) {
            free.push_back((at, *id));
        }
        serde_json::from_value(value).expect("and read again")
    };
    inputs.into_iter().map(rewrite).collect()
}

/// Renames each cgroup in an input's JSON: `parent` is one where it is a number.
fn rename(value: &mut serde_json::Value, to: &mut impl FnMut(u64) -> u64) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_u64().filter(|_| key == "cgroup" || key == "parent") {
                    Some(id) => *value = to(id).into(),
                    None => rename(value, to),
                }
            }
        }
        serde_json::Value::Array(all) => all.iter_mut().for_each(|value| rename(value, to)),
        _ => {}
    }
}

/// The ring that the record would have gone to; `None`: it is no record, or the scan tells it.
fn ring_of(input: &Input) -> Option<LossKind> {
    let Input::Kernel(KernelEvent { fact, .. }) = input else { return None };
    match fact {
        KernelFact::CgroupCreated { scanned: true, .. } => None,
        KernelFact::SignalDelivered { .. } => Some(LossKind::DetailRingFull),
        _ => Some(LossKind::DecidingRingFull),
    }
}

/// What the runtime would answer at this moment.
pub(super) fn answers(inputs: &[Received], at: BootTime) -> Vec<Received> {
    let (mut sandboxes, mut containers, mut exits) = (None, None, BTreeMap::new());
    for input in inputs.iter().filter(|i| i.at <= at) {
        match &input.input {
            Input::Cri(CriEvent::Sandboxes { sandboxes: list, .. }) => {
                sandboxes = Some(list);
            }
            Input::Cri(CriEvent::Containers { containers: list, .. }) => {
                containers = Some(list);
            }
            Input::Cri(CriEvent::ContainerExited(exit)) => {
                exits.insert(exit.container.clone(), exit.clone());
            }
            _ => {}
        }
    }
    let sandboxes = sandboxes.cloned().unwrap_or_default();
    let containers = containers.cloned().unwrap_or_default();
    exits.retain(|id, _| containers.iter().any(|c| &c.id == id));
    let lists = [
        CriEvent::Sandboxes { asked: at, only: None, sandboxes },
        CriEvent::Containers { asked: at, only: None, containers },
    ];
    let exits = exits.into_values().map(CriEvent::ContainerExited);
    lists.into_iter().chain(exits).map(|e| Received { at, input: Input::Cri(e) }).collect()
}

/// What the apiserver would list at this moment.
pub(super) fn pods(inputs: &[Received], at: BootTime) -> Vec<ApiPod> {
    let mut pods: BTreeMap<String, ApiPod> = BTreeMap::new();
    for input in inputs.iter().filter(|i| i.at <= at) {
        match &input.input {
            Input::Api(ApiEvent::Snapshot { pods: list }) => {
                pods = list.iter().map(|p| (p.uid.clone(), p.clone())).collect();
            }
            Input::Api(ApiEvent::Applied(pod)) => {
                pods.insert(pod.uid.clone(), pod.clone());
            }
            Input::Api(ApiEvent::Deleted(pod)) => {
                pods.remove(&pod.uid);
            }
            _ => {}
        }
    }
    pods.into_values().collect()
}

fn snapshot(inputs: &[Received], at: BootTime) -> Received {
    let pods = pods(inputs, at);
    Received { at, input: Input::Api(ApiEvent::Snapshot { pods }) }
}

/// An agent that starts now scans the cgroups that there are, and lists what the sources list.
fn start_at(inputs: &[Received], real: &[Received], at: BootTime) -> Vec<Received> {
    let mut cgroups = BTreeMap::new();
    for input in real.iter().filter(|i| i.at <= at) {
        match &input.input {
            Input::Kernel(KernelEvent {
                fact: KernelFact::CgroupCreated { cgroup, parent, name, .. },
                ..
            }) => {
                cgroups.insert(*cgroup, (*parent, name.clone()));
            }
            Input::Kernel(KernelEvent { fact: KernelFact::CgroupRemoved { cgroup }, .. }) => {
                cgroups.remove(cgroup);
            }
            _ => {}
        }
    }
    let scan = cgroups.into_iter().map(|(cgroup, (parent, name))| {
        let fact = KernelFact::CgroupCreated { cgroup, parent, name, scanned: true };
        Received { at, input: Input::Kernel(KernelEvent { time: at, fact }) }
    });
    let connected = CriEvent::Connected { runtime: "c".into(), process: None };
    scan.chain([Received { at, input: Input::Cri(connected) }])
        .chain(answers(real, at))
        .chain([snapshot(real, at)])
        .chain(inputs.iter().filter(|i| i.at > at).cloned())
        .collect()
}

fn run(anchor: Anchor, inputs: Vec<Received>) -> Said {
    let mut engine = Engine::new(Settings::new(anchor));
    collect(replay(&mut engine, inputs, Duration::from_secs(100)))
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn no_adversity_makes_a_verdict_wrong(
        name in prop::sample::select(names()),
        mut adversities in prop::collection::vec(adversity(), 1..4),
        seed in any::<[u8; 32]>(),
    ) {
        let recording = recordings::load(&name);
        let truth: BTreeMap<_, _> = run(recording.anchor, recording.inputs.clone())
            .deaths
            .into_values()
            .flatten()
            .map(|death| (death.id.clone(), death))
            .collect();
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        adversities.sort_by_key(Adversity::order);
        // A report that waits for a source needs ids for longer than this reuse of them leaves.
        let mut waits = adversities.iter().map(Adversity::makes_reports_wait);
        if waits.any(|waits| waits) {
            adversities.retain(|one| !matches!(one, Adversity::CgroupIdsReused));
        }
        let inputs = adversities
            .iter()
            .fold(recording.inputs.clone(), |inputs, adversity| {
                suffer(inputs, &recording.inputs, recording.anchor, adversity, &mut rng)
            });
        let said = run(recording.anchor, inputs);
        let mut seen = std::collections::BTreeSet::new();
        for death in said.deaths.into_values().flatten() {
            let truth = truth.get(&death.id).expect("nobody dies who does not");
            prop_assert!(
                [Verdict::Unknown, truth.verdict].contains(&death.verdict),
                "{} of {}: {} instead of {}: {}",
                death.name, name, death.verdict, truth.verdict, death.proof.message,
            );
            for finding in &death.findings {
                prop_assert!(
                    truth.findings.iter().any(|known| known.kind == finding.kind),
                    "{} of {}: {finding:?}", death.name, name,
                );
            }
            prop_assert!(seen.insert(death.id), "told twice: {}", death.name);
        }
    }
}

/// Causes that say nothing.
const UNTOLD: [Cause; 2] = [Cause::Unknown, Cause::Restart];

/// So many runs of each recording under each adversity.
const RUNS: u32 = 2;

/// Of what happens while nobody watches and is over when the pods are listed again, these say that the pod was
/// deleted: its object was, and a container of it was stopped.
const MAY_GUESS: [&str; 2] = ["watch-broken", "watch-hung-relisted"];

fn is_wrong(said: Cause, truth: Cause, adversity: &str) -> bool {
    // That the deletion was a forced one may come too late.
    let is_less = (said, truth) == (Cause::ApiDelete, Cause::ForceDelete);
    !UNTOLD.contains(&said) && !is_less && !MAY_GUESS.contains(&adversity)
}

/// What is reported last of each container.
fn last_reports(said: Said) -> BTreeMap<ContainerId, ContainerDeath> {
    let by_pods = said.terminations.into_values().flatten().flat_map(|end| end.containers);
    let all = said.deaths.into_values().flatten().chain(by_pods);
    all.map(|death| (death.id.clone(), death)).collect()
}

/// The least that must be known: percent of verdicts and of causes.
fn floor(kind: &str) -> [f64; 2] {
    let lines = include_str!("floors.txt").lines();
    let mut rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&kind)).expect("each adversity has its floor");
    [1, 2].map(|column| row[column].parse().expect("a number"))
}

#[test]
fn under_each_adversity_enough_is_known_and_no_cause_is_wrong() {
    let config = cases(RUNS);
    let runs = config.cases;
    let mut runner = TestRunner::new(config);
    // Of each: verdicts known, of so many; causes known, of so many.
    let mut known: BTreeMap<&str, [u32; 4]> = BTreeMap::new();
    let mut failed = Vec::new();
    for name in &names() {
        let recording = recordings::load(name);
        let real = &recording.inputs;
        let truth = last_reports(run(recording.anchor, real.clone()));
        for (kind, strategy) in kinds() {
            let [verdicts, of_verdicts, causes, of_causes] = known.entry(kind).or_default();
            for _ in 0..runs {
                let adversity = strategy.new_tree(&mut runner).expect("one").current();
                let mut rng = runner.new_rng();
                let inputs = suffer(real.clone(), real, recording.anchor, &adversity, &mut rng);
                let said = last_reports(run(recording.anchor, inputs));
                for (id, truth) in &truth {
                    let said = said.get(id);
                    if truth.verdict != Verdict::Unknown {
                        *of_verdicts += 1;
                        *verdicts += u32::from(said.is_some_and(|d| d.verdict == truth.verdict));
                    }
                    if UNTOLD.contains(&truth.cause) {
                        continue;
                    }
                    *of_causes += 1;
                    match said {
                        Some(said) if said.cause == truth.cause => *causes += 1,
                        Some(said) if is_wrong(said.cause, truth.cause, kind) => {
                            failed.push(format!(
                                "{} of {name} under {adversity:?}: {} instead of {}: {}",
                                said.name, said.cause, truth.cause, said.cause_message
                            ));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    for (kind, [verdicts, of_verdicts, causes, of_causes]) in known {
        let share = |part, whole| 100.0 * f64::from(part) / f64::from(whole);
        let (known, floor) =
            ([share(verdicts, of_verdicts), share(causes, of_causes)], floor(kind));
        println!("{kind:<20}{:>7.2}{:>7.2}", known[0], known[1]);
        if known[0] < floor[0] || known[1] < floor[1] {
            failed.push(format!("{kind}: known {known:.2?} %, and the floor is {floor:?}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
