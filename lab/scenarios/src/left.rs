//! What should have been left behind against what the agent told. Pure.

use super::{ExpectedLeak, Holding};
use coroner_core::{
    leak::{Leak, LeakKey, LeakedResources},
    time::WallTime,
};
use std::collections::BTreeSet;

/// How far two figures of one moment may be apart: each is converted between clocks.
const SAME_MOMENT_NS: u64 = 100_000_000;

/// Names by which things of a scenario are known: UIDs, ids of sandboxes, names of files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Things(BTreeSet<String>);

impl Things {
    /// One more.
    pub fn insert(&mut self, name: impl Into<String>) {
        self.0.insert(name.into());
    }

    /// It is one of them, or of the pod that is one of them.
    pub fn own(&self, leak: &Leak) -> bool {
        let own = |name: &str| self.0.contains(name);
        let pod = leak.pod.as_ref().is_some_and(|pod| own(pod.uid.as_str()));
        pod || match &leak.key {
            LeakKey::Sandbox { id } => own(id.as_str()),
            LeakKey::Shim { id, .. } => own(id),
            LeakKey::Netns { name, .. } => own(name),
            LeakKey::PodCgroup { pod: uid, .. } | LeakKey::Pod { uid } => own(uid.as_str()),
        }
    }
}

/// A leak as the agent told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenLeak {
    /// The last that it said.
    pub leak: Leak,
    /// Since when the agent observed it, before it was restarted.
    pub observed_before: Option<WallTime>,
    /// When it was made, by the runtime's own word.
    pub created: Option<WallTime>,
}

/// Every point in which they disagree, as a sentence for a person; empty: they agree.
pub fn disagreements(expected: &[ExpectedLeak], seen: &[SeenLeak]) -> Vec<String> {
    let mut points = Vec::new();
    let mut others: Vec<&SeenLeak> = seen.iter().collect();
    for leak in expected {
        match others.iter().position(|seen| seen.leak.class == leak.class) {
            Some(at) => points.extend(differences(leak, others.remove(at))),
            None => points.push(format!("no {} was told", leak.class)),
        }
    }
    for SeenLeak { leak, .. } in others {
        points.push(format!(
            "{} of {} was told, nothing of the kind was expected",
            leak.class,
            which(&leak.key)
        ));
    }
    points
}

fn differences(expected: &ExpectedLeak, seen: &SeenLeak) -> Vec<String> {
    let leak = &seen.leak;
    let class = expected.class;
    let mut points = Vec::new();
    if leak.cause.kind != expected.cause {
        points.push(format!("{class}: cause {}, expected {}", leak.cause.kind, expected.cause));
    }
    let resources = holdings(&leak.resources);
    if resources != expected.resources {
        points.push(format!("{class}: holds {resources:?}, expected {:?}", expected.resources));
    }
    if leak.blocked_on != expected.blocked_on {
        points.push(format!(
            "{class}: stuck by {:?}, expected {:?}",
            leak.blocked_on, expected.blocked_on
        ));
    }
    if leak.pod.is_some() != expected.names_pod {
        points.push(format!("{class}: its pod is {:?}", leak.pod));
    }
    if leak.preexisting != expected.preexisting {
        points.push(format!(
            "{class}: since_start {}, expected {}",
            leak.preexisting, expected.preexisting
        ));
    }
    if let Some(before) = seen.observed_before
        && (leak.first_observed.0.abs_diff(before.0) < SAME_MOMENT_NS) != expected.remembered
    {
        let kept = if expected.remembered { "the same" } else { "another" };
        points.push(format!(
            "{class}: observed since {:?}, before the agent's restart {before:?}; expected {kept}",
            leak.first_observed
        ));
    }
    if let Some(created) = seen.created
        && leak.created.is_none_or(|told| told.0.abs_diff(created.0) >= SAME_MOMENT_NS)
    {
        points.push(format!("{class}: created {:?}, by the runtime {created:?}", leak.created));
    }
    if leak.evidence.is_empty() {
        points.push(format!("{class}: without evidence"));
    }
    points
}

/// What kinds of things it holds.
pub fn holdings(resources: &LeakedResources) -> BTreeSet<Holding> {
    [
        (Holding::Netns, resources.netns.is_some()),
        (Holding::Ips, !resources.ips.is_empty()),
        (Holding::Cgroup, resources.cgroup.is_some()),
        (Holding::Pids, !resources.pids.is_empty()),
        (Holding::Containers, !resources.containers.is_empty()),
    ]
    .into_iter()
    .filter_map(|(kind, held)| held.then_some(kind))
    .collect()
}

/// A thing, for a person.
pub fn which(key: &LeakKey) -> String {
    match key {
        LeakKey::Sandbox { id } => format!("sandbox {}", id.as_str()),
        LeakKey::Shim { pid, id, .. } => format!("shim {pid} of {id}"),
        LeakKey::Netns { name, .. } => format!("network namespace {name}"),
        LeakKey::PodCgroup { pod, .. } => format!("cgroup of pod {}", pod.as_str()),
        LeakKey::Pod { uid } => format!("pod {}", uid.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::leak::{BlockedOn, LeakCause, LeakClass};

    fn expected() -> ExpectedLeak {
        ExpectedLeak {
            class: LeakClass::NetnsOpen,
            cause: LeakCause::CniDeleteFailing,
            resources: [Holding::Netns].into(),
            blocked_on: None,
            names_pod: true,
            preexisting: false,
            remembered: true,
        }
    }

    /// What agrees with it.
    fn seen() -> SeenLeak {
        let leak: coroner_api::leaks::Leak = serde_json::from_value(serde_json::json!({
            "class": "netns_open", "key": {"thing": "sandbox", "id": "c0ffee"},
            "pod": {"namespace": "lab", "name": "a", "uid": "u1"},
            "created": {"time": "1970-01-01T00:00:05Z"},
            "firstObserved": {"time": "1970-01-01T00:00:07Z"},
            "confirmed": {"time": "1970-01-01T00:00:09Z"},
            "resources": {"netns": "cni-1"},
            "cause": {"kind": "cni_delete_failing", "message": ""},
            "evidence": [{"kind": "network_namespace", "open": true, "source": "cri", "message": ""}],
        }))
        .unwrap();
        SeenLeak {
            leak: Option::from(leak).unwrap(),
            observed_before: Some(WallTime(7_000_000_001)),
            created: Some(WallTime(5_000_000_001)),
        }
    }

    #[test]
    fn every_single_deviation_is_a_disagreement() {
        assert_eq!(disagreements(&[expected()], &[seen()]), [""; 0]);
        let deviations: [fn(&mut SeenLeak); 10] = [
            |seen| seen.leak.class = LeakClass::ReadyNoPod,
            |seen| seen.leak.cause.kind = LeakCause::Unknown,
            |seen| seen.leak.resources.netns = None,
            |seen| seen.leak.resources.pids = vec![7],
            |seen| seen.leak.blocked_on = Some(BlockedOn::Process),
            |seen| seen.leak.pod = None,
            |seen| seen.leak.preexisting = true,
            |seen| seen.observed_before = Some(WallTime(6_000_000_000)),
            |seen| seen.created = Some(WallTime(6_000_000_000)),
            |seen| seen.leak.evidence.clear(),
        ];
        for (at, deviate) in deviations.into_iter().enumerate() {
            let mut other = seen();
            deviate(&mut other);
            assert!(!disagreements(&[expected()], &[other]).is_empty(), "deviation {at}");
        }
        assert_eq!(disagreements(&[expected()], &[]).len(), 1);
        assert_eq!(disagreements(&[], &[seen()]).len(), 1);
        assert_eq!(disagreements(&[expected()], &[seen(), seen()]).len(), 1);
    }

    #[test]
    fn a_leak_is_known_by_its_pod_and_by_its_own_name() {
        for (name, owns) in [("u1", true), ("c0ffee", true), ("a", false)] {
            let mut things = Things::default();
            things.insert(name);
            assert_eq!(things.own(&seen().leak), owns, "{name}");
        }
    }
}
