//! The resources of the node that a leak holds.

use super::facts::LeakFacts;
use crate::{
    cri::Sandbox,
    ids::*,
    input::*,
    leak::{LeakedContainer, LeakedResources},
};

/// Bound on processes, and on containers.
const MAX_LISTED: usize = 16;

/// What the leak holds.
pub(super) fn of(facts: &LeakFacts<'_>, key: &LeakKey) -> LeakedResources {
    let group = facts.cgroup_of(key);
    let mut held = LeakedResources {
        cgroup: group.map(|group| group.path.clone()),
        pids: group.map(|group| group.pids.clone()).unwrap_or_default(),
        ..LeakedResources::default()
    };
    let sandbox = match key {
        LeakKey::Sandbox { id } => facts.stores.cri.sandbox(id),
        LeakKey::Pod { uid } => facts.listed_of(uid).next_back(),
        _ => None,
    };
    sandbox.into_iter().for_each(|sandbox| add_sandbox(facts, sandbox, &mut held));
    match key {
        LeakKey::Shim { pid, .. } => held.pids.push(*pid),
        LeakKey::Netns { name, .. } => held.netns = Some(name.clone()),
        _ => {}
    }
    held.pids.truncate(MAX_LISTED);
    held
}

fn add_sandbox(facts: &LeakFacts<'_>, sandbox: &Sandbox, held: &mut LeakedResources) {
    let listed = facts.containers_of(&sandbox.info.id).take(MAX_LISTED).map(|c| &c.info);
    held.containers =
        listed.map(|info| LeakedContainer { name: info.name.clone(), state: info.state }).collect();
    let Some(status) = facts.statuses.current(sandbox) else { return };
    if let Some(pid) = status.pid.filter(|pid| *pid > 0) {
        held.pids.retain(|known| *known != pid);
        held.pids.insert(0, pid);
    }
    let SandboxNetwork::Own { path, closed } = &status.network else { return };
    if *closed == Some(false) || (closed.is_none() && sandbox.info.ready) {
        held.netns = Some(path.clone().unwrap_or_else(|| "(path not reported)".to_owned()));
        held.ips.clone_from(&status.ips);
    }
}
