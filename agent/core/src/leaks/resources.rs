//! The resources of the node that a leak holds.

use super::facts::LeakFacts;
use crate::{
    ids::*,
    input::*,
    leak::{LeakedContainer, LeakedResources},
};

/// Bound on processes, and on containers.
const MAX_LISTED: usize = 16;

/// What the leak holds.
pub(super) fn of(facts: &LeakFacts<'_>, key: &LeakKey) -> LeakedResources {
    let mut held = LeakedResources::default();
    if let Some(group) = facts.cgroup_of(key) {
        (held.cgroup, held.pids) = (Some(group.path.clone()), group.pids.clone());
    }
    if let Some(sandbox) = facts.sandboxes(key).last() {
        let listed = facts.containers_of(&sandbox.info.id).take(MAX_LISTED).map(|c| &c.info);
        held.containers = listed
            .map(|info| LeakedContainer { name: info.name.clone(), state: info.state })
            .collect();
        if let Some(status) = facts.statuses.current(sandbox) {
            if let Some(pid) = status.pid.filter(|pid| *pid > 0) {
                held.pids.retain(|known| *known != pid);
                held.pids.insert(0, pid);
            }
            if let SandboxNetwork::Own { path, closed } = &status.network
                && !closed.unwrap_or(!sandbox.info.ready)
            {
                held.netns = Some(path.clone().unwrap_or_else(|| "(path not reported)".to_owned()));
                held.ips.clone_from(&status.ips);
            }
        }
    }
    match key {
        LeakKey::Shim { pid, .. } => held.pids.push(*pid),
        LeakKey::Netns { name, .. } => held.netns = Some(name.clone()),
        _ => {}
    }
    held.pids.truncate(MAX_LISTED);
    held
}
