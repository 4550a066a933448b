//! What the engine is given: a recording of a real kernel and a real runtime, over and over again,
//! on a node that is full of other pods.

use super::{
    node::InputSource,
    shift::{STAYING_CGROUPS, Shift},
};
use anyhow::{Context as _, ensure};
use coroner::outputs::recording::{self, replay::replay};
use coroner_core::{
    engine::Settings,
    ids::CgroupId,
    input::{ApiEvent, ApiPod, CriEvent, Input, KernelEvent, KernelFact, Received},
    output::Report,
    time::BootTime,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const TICK: Duration = Duration::from_secs(1);
/// Long enough after the last line for whatever is still open.
const AFTER: Duration = Duration::from_secs(60);

/// Inputs without end.
#[derive(Debug)]
pub struct Load {
    settings: Settings,
    beginning: Vec<Received>,
    /// One round, as it was recorded, and what of the node comes meanwhile.
    round: Vec<Received>,
    first_cgroup: CgroupId,
    span: Duration,
    /// Pods that end in a round.
    ends: u64,
}

impl Load {
    /// The recording that comes with coroner, on a node with so many pods besides.
    pub fn new(pods: u64) -> anyhow::Result<Self> {
        let reader = recording::sample().context("the recording that comes with coroner")?;
        let settings =
            Settings { leak_threshold: Duration::from_secs(300), ..reader.header().settings() };
        let recorded: Vec<Received> = reader.collect();
        let from = recorded.first().context("it is empty")?.at;
        let node = InputSource::new(pods, settings.anchor.wall(from));

        let mut round: Vec<Received> =
            recorded.into_iter().filter(|received| !is_beginning(&received.input)).collect();
        let last = round.last().context("it is empty")?.at;
        round.extend(clearance(&round, last));
        let end = last + TICK;
        round.push(Received { at: last, input: Input::Host(node.survey(last)) });
        round.push(Received { at: end, input: Input::Tick });
        for received in &mut round {
            fill(&node, &mut received.input);
        }
        round.extend(node.probes(from, end));
        round.sort_by_key(|received| received.at);

        let mut beginning = node.beginning(from);
        let connected =
            CriEvent::Connected { runtime: "containerd 2.1.4".to_owned(), process: None };
        let pods = node.objects().collect();
        let lists = full_lists(from).map(|mut list| {
            fill(&node, &mut list);
            list
        });
        let told = [
            Input::Cri(connected),
            Input::Api(ApiEvent::Snapshot { pods }),
            Input::Host(node.survey(from)),
        ];
        let told = told.into_iter().chain(lists).map(|input| Received { at: from, input });
        beginning.extend(told);

        let created = round.iter().filter_map(|received| Some(created(&received.input)?.0));
        let staying = CgroupId(STAYING_CGROUPS);
        let first_cgroup = created.min().unwrap_or(staying);
        let span = end.since(from) + TICK;
        let mut load = Self { settings, beginning, round, first_cgroup, span, ends: 0 };
        load.ends = load.ends_of_a_round();
        ensure!(load.ends > 0, "no pod ends in the recording");
        Ok(load)
    }

    /// The engine's settings in it.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// What comes before the first round.
    pub fn beginning(&self) -> Vec<Received> {
        self.beginning.clone()
    }

    /// A round: pods that were not there before, later than all that was before.
    pub fn round(&self, number: u32) -> impl ExactSizeIterator<Item = Received> {
        let by = u64::try_from(self.span.as_nanos()).unwrap_or(u64::MAX) * u64::from(number);
        let shift = Shift { round: number, by, first_cgroup: self.first_cgroup };
        self.round.iter().map(move |received| shift.copy(received))
    }

    /// Pods that end in a round.
    pub fn ends(&self) -> u64 {
        self.ends
    }

    /// How long a round took when it was recorded.
    pub fn span(&self) -> Duration {
        self.span
    }

    /// How many inputs of each kind a round has.
    pub fn mix(&self) -> BTreeMap<InputKind, u64> {
        let mut mix = BTreeMap::new();
        for received in &self.round {
            *mix.entry(InputKind::of(&received.input)).or_default() += 1;
        }
        mix
    }

    fn ends_of_a_round(&self) -> u64 {
        let mut engine = coroner_core::engine::Engine::new(self.settings);
        // What one leaves behind is seen to be gone in the next.
        let inputs = self.beginning().into_iter().chain(self.round(1));
        let ended = |report: &&Report| matches!(report, Report::PodTerminated(_));
        replay(&mut engine, inputs, AFTER).reports.iter().filter(ended).count() as u64
    }
}

/// Kinds of inputs that cost differently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum InputKind {
    /// A record of the kernel programs.
    Kernel,
    /// A list of one sandbox, or an answer about one container.
    Filtered,
    /// A list of everything.
    Full,
    /// Of the apiserver or the host.
    Api,
    /// A second has passed.
    Tick,
}

impl InputKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kernel, Self::Filtered, Self::Full, Self::Api, Self::Tick];

    pub fn of(input: &Input) -> Self {
        match input {
            Input::Kernel(_) => Self::Kernel,
            Input::Cri(
                CriEvent::Sandboxes { only: None, .. } | CriEvent::Containers { only: None, .. },
            ) => Self::Full,
            Input::Cri(_) => Self::Filtered,
            Input::Tick => Self::Tick,
            _ => Self::Api,
        }
    }

    /// As a part of a figure's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel_record",
            Self::Filtered => "filtered_list",
            Self::Full => "full_list",
            Self::Api => "api_event",
            Self::Tick => "tick",
        }
    }
}

/// Said once, however often the recording is replayed: the first answers of all sources.
fn is_beginning(input: &Input) -> bool {
    match input {
        Input::Api(ApiEvent::Snapshot { .. }) | Input::Cri(CriEvent::Connected { .. }) => true,
        Input::Cri(CriEvent::Sandboxes { only: None, sandboxes, .. }) => sandboxes.is_empty(),
        Input::Cri(CriEvent::Containers { only: None, containers, .. }) => containers.is_empty(),
        _ => false,
    }
}

fn full_lists(asked: BootTime) -> impl Iterator<Item = Input> {
    let sandboxes = CriEvent::Sandboxes { asked, only: None, sandboxes: Vec::new() };
    let containers = CriEvent::Containers { asked, only: None, containers: Vec::new() };
    [sandboxes, containers].into_iter().map(Input::Cri)
}

/// The pods that stay are in each full list.
fn fill(node: &InputSource, input: &mut Input) {
    match input {
        Input::Cri(CriEvent::Sandboxes { only: None, sandboxes, .. }) => {
            sandboxes.extend(node.sandboxes());
        }
        Input::Cri(CriEvent::Containers { only: None, containers, .. }) => {
            containers.extend(node.containers());
        }
        _ => {}
    }
}

fn created(input: &Input) -> Option<(CgroupId, &str)> {
    match input {
        Input::Kernel(KernelEvent {
            fact: KernelFact::CgroupCreated { cgroup, name, .. }, ..
        }) => Some((*cgroup, name)),
        _ => None,
    }
}

/// What the recording leaves behind goes: its objects and its cgroups. Its sandboxes and containers
/// go with the next round's lists, which do not show them.
fn clearance(round: &[Received], at: BootTime) -> Vec<Received> {
    let mut objects: BTreeMap<&str, &ApiPod> = BTreeMap::new();
    let mut cgroups: BTreeSet<CgroupId> = BTreeSet::new();
    for Received { input, .. } in round {
        match input {
            Input::Api(ApiEvent::Applied(pod)) => _ = objects.insert(&pod.uid, pod),
            Input::Api(ApiEvent::Deleted(pod)) => _ = objects.remove(pod.uid.as_str()),
            Input::Kernel(KernelEvent { fact: KernelFact::CgroupRemoved { cgroup }, .. }) => {
                cgroups.remove(cgroup);
            }
            other => cgroups.extend(created(other).map(|(cgroup, _)| cgroup)),
        }
    }
    let deleted = objects.into_values().map(|pod| Input::Api(ApiEvent::Deleted(pod.clone())));
    let removed = cgroups.into_iter().rev().map(|cgroup| {
        Input::Kernel(KernelEvent { time: at, fact: KernelFact::CgroupRemoved { cgroup } })
    });
    deleted.chain(removed).map(|input| Received { at, input }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::{
        engine::{Engine, Gauges},
        leaks::LeakGauges,
    };

    /// What is held after so many rounds, and how many pods have ended in them.
    fn after(rounds: u32) -> (Gauges, u64) {
        let load = Load::new(3).expect("the recording is there");
        let mut engine = Engine::new(load.settings());
        let mut inputs = load.beginning();
        inputs.extend((1..=rounds).flat_map(|number| load.round(number)));
        assert!(inputs.is_sorted_by_key(|received| received.at), "time does not go backwards");
        let out = replay(&mut engine, inputs, Duration::from_secs(1_200));
        let ended = out.reports.iter().filter(|report| matches!(report, Report::PodTerminated(_)));
        let ended = ended.count() as u64;
        assert_eq!(ended, u64::from(rounds) * load.ends());
        (Gauges { leaks: LeakGauges::default(), ..engine.gauges() }, ended)
    }

    #[test]
    fn each_round_brings_new_pods_and_leaves_nothing_behind() {
        let ((few, ended), (many, later)) = (after(5), after(20));
        assert_eq!(later, 4 * ended);
        assert_eq!(few, many, "but for what only the next round's lists tell of");
        assert!(many.losses.is_empty() && many.terminating == 0, "{many:?}");
        assert!((3..=4).contains(&many.sandboxes), "those that stay: {many:?}");
    }

    #[test]
    fn the_mix_holds_all_kinds() {
        let load = Load::new(250).expect("the recording is there");
        let mix = load.mix();
        assert_eq!(mix.keys().copied().collect::<Vec<_>>(), InputKind::ALL);
        assert_eq!(mix.values().sum::<u64>(), load.round(1).len() as u64);
    }
}
