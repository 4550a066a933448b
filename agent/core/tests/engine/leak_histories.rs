//! Random histories of pods, sandboxes, daemons and outages: what a fault-free oracle calls leaked
//! is told after the threshold, and nothing else ever.

use super::{
    node::{LeakyNode, THRESHOLD},
    random::cases,
    world::{ids, of_file, sandbox},
};
use coroner_core::{input::DaemonState, leak::LeakKey, time::WallTime};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Pods in one history.
const PODS: u64 = 6;

/// What happens in one step, and how long the world then goes on.
#[derive(Clone, Copy, Debug)]
enum HistoryEvent {
    Run(u64),
    /// A static pod: no object, or one that comes and goes.
    RunStatic(u64),
    Stop(u64),
    Delete(u64),
    /// The apiserver has it again (it was never gone for the kubelet: a restored backup).
    Return(u64),
    Collect(u64),
    /// A second sandbox for the same pod.
    Again(u64),
    Api(bool),
    Cri(bool),
    Gets(bool),
    Kubelet(bool),
    /// The agent starts anew.
    Restart,
}

fn event() -> impl Strategy<Value = (HistoryEvent, u64)> {
    let pod = || 1..=PODS;
    let event = prop_oneof![
        4 => pod().prop_map(HistoryEvent::Run),
        1 => pod().prop_map(HistoryEvent::RunStatic),
        3 => pod().prop_map(HistoryEvent::Stop),
        3 => pod().prop_map(HistoryEvent::Delete),
        1 => pod().prop_map(HistoryEvent::Return),
        3 => pod().prop_map(HistoryEvent::Collect),
        2 => pod().prop_map(HistoryEvent::Again),
        2 => any::<bool>().prop_map(HistoryEvent::Api),
        2 => any::<bool>().prop_map(HistoryEvent::Cri),
        1 => any::<bool>().prop_map(HistoryEvent::Gets),
        1 => any::<bool>().prop_map(HistoryEvent::Kubelet),
        1 => Just(HistoryEvent::Restart),
    ];
    (event, prop_oneof![3 => 0_u64..4, 2 => 4_u64..20, 1 => 20_u64..90])
}

/// The sandboxes that are left behind in truth: no object and not of a manifest, or not the newest
/// of their pod.
fn left_behind(node: &LeakyNode) -> BTreeSet<LeakKey> {
    let newest = |pod| {
        let of_pod = node.sandboxes.values().filter(|s| s.pod == pod);
        of_pod.map(|s| (s.created, s.attempt, s.id.clone())).max().map(|(.., id)| id)
    };
    let newest_runs = |pod| {
        let id = newest(pod);
        node.sandboxes.values().any(|s| Some(&s.id) == id.as_ref() && s.ready)
    };
    node.sandboxes
        .values()
        .filter(|s| {
            let has_pod = node.pods.values().any(|pod| pod.uid == s.pod.as_str())
                || s.config_source.as_deref() == Some("file");
            let is_newest = newest(s.pod.clone()).as_ref() == Some(&s.id);
            let is_empty = node.containers.values().all(|c| c.sandbox != s.id);
            match (has_pod, s.ready) {
                (false, _) => true,
                (true, true) => !is_newest && newest_runs(s.pod.clone()),
                (true, false) => !is_newest && is_empty,
            }
        })
        .map(|s| LeakKey::Sandbox { id: s.id.clone() })
        .collect()
}

fn happens(node: &mut LeakyNode, event: HistoryEvent) {
    match event {
        // No runtime gives the same id twice.
        HistoryEvent::Run(n) if node.is_new(n) => {
            node.run(n);
        }
        HistoryEvent::RunStatic(n) if node.is_new(n) => {
            node.sandboxes.insert(n, of_file(sandbox(n, true)));
        }
        HistoryEvent::Stop(n) if node.sandboxes.contains_key(&n) => {
            node.stop(n);
        }
        HistoryEvent::Delete(n) => {
            node.delete(n);
        }
        HistoryEvent::Return(n) => _ = node.pod(n),
        HistoryEvent::Collect(n) => {
            node.stop_and_collect(n);
        }
        HistoryEvent::Again(n) if node.sandboxes.contains_key(&n) => {
            let mut again = node.sandboxes[&n].clone();
            again.id = ids(n + PODS).1;
            (again.attempt, again.ready) = (1, true);
            again.created = again.created.map(|at| WallTime(at.0 + 1_000));
            node.sandboxes.insert(n + PODS, again);
        }
        HistoryEvent::Api(answers) => node.api_answers = answers,
        HistoryEvent::Cri(answers) => node.cri_answers = answers,
        HistoryEvent::Gets(answer) => node.gets_answer = answer,
        HistoryEvent::Kubelet(runs) => {
            node.kubelet = if runs { LeakyNode::new().kubelet } else { DaemonState::Absent };
        }
        HistoryEvent::Restart => node.restart(),
        HistoryEvent::Run(_)
        | HistoryEvent::RunStatic(_)
        | HistoryEvent::Stop(_)
        | HistoryEvent::Again(_) => {}
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn what_is_left_behind_is_told_and_nothing_else(
        history in proptest::collection::vec(event(), 1..30)
    ) {
        let mut node = LeakyNode::new();
        // For how many seconds each thing has truly been left behind while all could be known.
        let mut since: BTreeMap<LeakKey, u64> = BTreeMap::new();
        let mut told = 0;
        let settle = [
            (HistoryEvent::Api(true), 0), (HistoryEvent::Cri(true), 0), (HistoryEvent::Gets(true), THRESHOLD + 250),
        ];
        for (event, seconds) in history.into_iter().chain(settle) {
            happens(&mut node, event);
            let true_now = left_behind(&node);
            for _ in 0..seconds {
                node.seconds(1);
                let known = node.api_answers && node.cri_answers;
                // What is not so now began anew; but what came and went in no time, or while
                // nobody could tell, was left behind before it and is after it.
                if known {
                    since.retain(|key, _| true_now.contains(key));
                }
                for key in &true_now {
                    *since.entry(key.clone()).or_default() += u64::from(known);
                }
                for key in &node.found[told..] {
                    let held = since.get(key).copied().filter(|_| true_now.contains(key));
                    prop_assert!(
                        held.is_some_and(|seconds| seconds >= THRESHOLD),
                        "{key:?} was told after {held:?} s"
                    );
                }
                told = node.found.len();
            }
        }
        let standing: BTreeSet<LeakKey> = node.leaks.keys().cloned().collect();
        prop_assert_eq!(standing, left_behind(&node));
    }
}
