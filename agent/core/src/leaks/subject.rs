//! The subject of a leak by its key: its pod, and whether it still exists.

use super::facts::LeakFacts;
use crate::{api::PodObject, ids::*, time::*};

/// The pod of a candidate; for a cgroup possibly only the UID.
pub(super) fn pod_of(facts: &LeakFacts<'_>, key: &LeakKey) -> Option<PodRef> {
    match key {
        LeakKey::Sandbox { id } => Some(facts.stores.cri.sandbox(id)?.info.pod_ref()),
        LeakKey::Pod { uid } | LeakKey::PodCgroup { pod: uid, .. } => {
            Some(facts.object(uid).map_or_else(|| PodRef::nameless(uid), PodObject::pod_ref))
        }
        LeakKey::Shim { .. } | LeakKey::Netns { .. } => None,
    }
}

/// The runtime or a survey has shown it since `due`, and no list has lacked it. For a pod the apiserver is
/// queried directly.
pub(super) fn is_shown_since(facts: &LeakFacts<'_>, key: &LeakKey, due: BootTime) -> bool {
    match key {
        LeakKey::Sandbox { id } => {
            let sandbox = facts.stores.cri.sandbox(id);
            sandbox.is_some_and(|sandbox| sandbox.missing.is_none() && sandbox.asked >= due)
        }
        LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => {
            facts.survey.is_some_and(|survey| survey.asked >= due)
        }
        LeakKey::Pod { .. } => true,
    }
}

/// It is gone, whatever else is unknown.
pub(super) fn is_gone(facts: &LeakFacts<'_>, key: &LeakKey) -> bool {
    match key {
        LeakKey::Sandbox { id } => {
            facts.stores.cri.sandbox(id).is_none_or(|sandbox| sandbox.removed.is_some())
        }
        LeakKey::Pod { uid } => facts.object(uid).is_none_or(|object| object.gone.is_some()),
        // Only the next survey can show that.
        LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => false,
    }
}
