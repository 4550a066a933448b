//! What the engine's target plays: a recording of the lab, and histories of the core's own simulation.

use crate::node::healthy_node;
use coroner_core::{
    engine::Settings,
    ids::{CgroupId, ContainerId, PodUid, SandboxId},
    input::{
        ApiEvent, ApiPod, CriContainer, CriEvent, CriSandbox, Input, KernelEvent, KernelFact,
        Received,
    },
    time::{Anchor, BootTime},
};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    sync::LazyLock,
    time::Duration,
};

/// The lab's pods on a real kernel and a real runtime.
const LAB: &[u8] = include_bytes!("../../../agent/samples/lab.jsonl.gz");

macro_rules! found {
    ($name:literal) => {
        include_str!(concat!("../../../agent/core/tests/simulation/found/", $name, ".jsonl"))
    };
}

/// Histories of one pod that were once reported wrongly, without the one that has no pod object. Inputs name them by
/// their number: new ones come last.
const SIMULATED: [&str; 14] = [
    found!("deleted-in-back-off"),
    found!("last-delete-in-a-list"),
    found!("back-off-in-a-list-with-the-deletion"),
    found!("changed-image-and-deletion-at-once"),
    found!("containers-leave-their-pods-report"),
    found!("counting-ends-with-the-sandbox"),
    found!("empty-before-its-main-process-whose-record-was-lost"),
    found!("exits-long-before-an-unseen-deletion"),
    found!("image-changed-in-a-gap"),
    found!("liveness-when-the-image-was-pulled"),
    found!("next-attempt-only-in-status"),
    found!("runtime-away-before-a-call-failed"),
    found!("started-while-the-agent-starts"),
    found!("stopped-before-the-deletion-under-a-wrong-clock"),
];
/// Short, so that few ticks make a leak certain.
const LEAK_THRESHOLD: Duration = Duration::from_secs(20);

/// The inputs of an agent's life, and what is named in them.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) settings: Settings,
    /// Ticks are left out: the player makes them.
    pub(crate) inputs: Vec<Received>,
    /// As each was last reported, in the order of their ids.
    pub(crate) pods: Vec<ApiPod>,
    pub(crate) sandboxes: Vec<CriSandbox>,
    pub(crate) containers: Vec<CriContainer>,
    pub(crate) cgroups: Vec<CgroupId>,
}

/// All stories: decoded once for all executions.
pub(crate) static STORIES: LazyLock<Vec<Story>> = LazyLock::new(|| {
    let lab: Vec<String> = BufReader::new(flate2::read::GzDecoder::new(LAB))
        .lines()
        .map(|line| line.expect("the lab's recording is text"))
        .collect();
    let mut lab = lab.iter().map(String::as_str);
    let header: serde_json::Value = parse(lab.next().expect("a recording has a header"));
    let anchor: Anchor = serde_json::from_value(header["clock"].clone()).expect("a clock");
    let simulated = SIMULATED.map(|history| {
        // As the simulation's judge has it. The first line is what must come out.
        Story::new(Anchor { boot_ns: 0, wall_ns: 0 }, history.lines().skip(1))
    });
    // The last line closes the recording.
    let lab = Story::new(anchor, lab.filter(|line| !line.contains("\"end\":{")));
    [lab].into_iter().chain(simulated).collect()
});

fn parse<T: serde::de::DeserializeOwned>(line: &str) -> T {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

impl Story {
    fn new<'a>(anchor: Anchor, lines: impl Iterator<Item = &'a str>) -> Self {
        let all: Vec<Received> =
            lines.map(parse).filter(|one: &Received| one.input != Input::Tick).collect();
        let mut pods = BTreeMap::<String, ApiPod>::new();
        let mut sandboxes = BTreeMap::<SandboxId, CriSandbox>::new();
        let mut containers = BTreeMap::<ContainerId, CriContainer>::new();
        let mut cgroups = Vec::new();
        for Received { input, .. } in &all {
            match input {
                Input::Api(ApiEvent::Applied(pod)) => {
                    drop(pods.insert(pod.uid.clone(), pod.clone()))
                }
                Input::Cri(CriEvent::Sandboxes { sandboxes: listed, .. }) => {
                    sandboxes.extend(listed.iter().map(|one| (one.id.clone(), one.clone())));
                }
                Input::Cri(CriEvent::Containers { containers: listed, .. }) => {
                    containers.extend(listed.iter().map(|one| (one.id.clone(), one.clone())));
                }
                Input::Kernel(KernelEvent {
                    fact: KernelFact::CgroupCreated { cgroup, .. },
                    ..
                }) => {
                    cgroups.push(*cgroup);
                }
                _ => {}
            }
        }
        Self {
            settings: Settings { leak_threshold: LEAK_THRESHOLD, ..Settings::new(anchor) },
            inputs: healthy_node()
                .map(|input| Received { at: BootTime(anchor.boot_ns), input })
                .into_iter()
                .chain(without_unchanged_lists(all))
                .collect(),
            pods: pods.into_values().collect(),
            sandboxes: sandboxes.into_values().collect(),
            containers: containers.into_values().collect(),
            cgroups,
        }
    }

    pub(crate) fn pod_uid(&self, which: usize) -> PodUid {
        PodUid::new(&self.pods[which % self.pods.len()].uid)
    }
}

/// Of lists in a row that are equal, the first and the last: two thirds of a recording are lists in which
/// nothing has changed.
fn without_unchanged_lists(inputs: Vec<Received>) -> Vec<Received> {
    // Of each kind of list the newest two that are kept.
    let mut newest = BTreeMap::<(bool, Option<SandboxId>), [Option<usize>; 2]>::new();
    let mut kept: Vec<Option<Received>> = Vec::new();
    for received in inputs {
        let key = match &received.input {
            Input::Cri(CriEvent::Sandboxes { only, .. }) => Some((true, only.clone())),
            Input::Cri(CriEvent::Containers { only, .. }) => Some((false, only.clone())),
            _ => None,
        };
        if let Some(key) = key {
            let two = newest.entry(key).or_default();
            let equals = |index: &Option<usize>| {
                let known = index.and_then(|index| kept[index].as_ref());
                known.is_some_and(|known| lists_the_same(&known.input, &received.input))
            };
            let replaced = two.iter().all(equals).then_some(two[1]).flatten();
            *two = [if replaced.is_some() { two[0] } else { two[1] }, Some(kept.len())];
            if let Some(index) = replaced {
                kept[index] = None;
            }
        }
        kept.push(Some(received));
    }
    kept.into_iter().flatten().collect()
}

fn lists_the_same(one: &Input, other: &Input) -> bool {
    match (one, other) {
        (
            Input::Cri(CriEvent::Sandboxes { sandboxes: one, .. }),
            Input::Cri(CriEvent::Sandboxes { sandboxes: other, .. }),
        ) => one == other,
        (
            Input::Cri(CriEvent::Containers { containers: one, .. }),
            Input::Cri(CriEvent::Containers { containers: other, .. }),
        ) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_of_a_story_can_be_named_by_a_byte() {
        for story in &*STORIES {
            assert!((15..=256).contains(&story.inputs.len()), "{}", story.inputs.len());
            for count in [story.pods.len(), story.sandboxes.len(), story.containers.len()] {
                assert!((1..=8).contains(&count), "a mask has 8 bits: {count}");
            }
            assert!(!story.cgroups.is_empty());
        }
    }

    #[test]
    fn of_equal_lists_in_a_row_the_first_and_the_last_are_kept() {
        let list = |at: u64, names: usize| {
            let sandboxes = STORIES[0].sandboxes[..names].to_vec();
            let at = BootTime(at);
            let input = Input::Cri(CriEvent::Sandboxes { asked: at, only: None, sandboxes });
            Received { at, input }
        };
        let all = [list(1, 0), list(2, 1), list(3, 1), list(4, 1), list(5, 1), list(6, 0)];
        let kept = without_unchanged_lists(all.to_vec());
        let times: Vec<u64> = kept.iter().map(|one| one.at.0).collect();
        assert_eq!(times, [1, 2, 5, 6]);
    }
}
