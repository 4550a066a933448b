//! Which sandboxes the garbage collector may remove (kuberuntime_gc.go). Pure.

use std::collections::{BTreeMap, BTreeSet};

/// A sandbox, as the collector looks at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sandbox {
    pub id: String,
    /// The UID of its pod.
    pub pod: String,
    /// SANDBOX_READY.
    pub ready: bool,
    /// created_at, ns since the epoch.
    pub created: i64,
}

/// The sandboxes to remove: not ready, without containers, and either of a pod that is `gone`
/// (object and worker both) or not the newest of its pod. `occupied` are the ids of sandboxes that
/// still have containers.
pub fn evictable<'a>(
    sandboxes: &'a [Sandbox],
    occupied: &BTreeSet<String>,
    gone: impl Fn(&str) -> bool,
) -> Vec<&'a str> {
    let newest = newest(sandboxes);
    sandboxes
        .iter()
        .filter(|sandbox| !sandbox.ready && !occupied.contains(&sandbox.id))
        .filter(|sandbox| gone(&sandbox.pod) || newest[sandbox.pod.as_str()].id != sandbox.id)
        .map(|sandbox| sandbox.id.as_str())
        .collect()
}

/// The newest sandbox of each pod, by its UID.
fn newest(sandboxes: &[Sandbox]) -> BTreeMap<&str, &Sandbox> {
    let mut newest: BTreeMap<&str, &Sandbox> = BTreeMap::new();
    for sandbox in sandboxes {
        newest
            .entry(&sandbox.pod)
            .and_modify(|known| {
                if sandbox.created > known.created {
                    *known = sandbox;
                }
            })
            .or_insert(sandbox);
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, pod: &str, ready: bool, created: i64) -> Sandbox {
        Sandbox { id: id.into(), pod: pod.into(), ready, created }
    }

    #[test]
    fn keeps_what_is_ready_occupied_or_the_newest_of_a_pod_that_exists() {
        let sandboxes = [
            sandbox("ready", "gone", true, 1),
            sandbox("occupied", "gone", false, 2),
            sandbox("free", "gone", false, 3),
            sandbox("old", "here", false, 1),
            sandbox("newest", "here", false, 2),
        ];
        let occupied = BTreeSet::from(["occupied".to_owned()]);
        assert_eq!(evictable(&sandboxes, &occupied, |pod| pod == "gone"), ["free", "old"]);
    }
}
