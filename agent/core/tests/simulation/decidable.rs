//! Whether what the sources delivered of a death decides its cause. The rules are those of the kubelet (why it stops
//! a container, and by what each reason is told apart), in plain words, and share nothing with the core:
//!
//!  1. **Was it stopped?** A signal from outside says so. Without one it was not, unless a record may be missing: one
//!     was lost while it may have been stopped, or the agent began less than a grace before its end.
//!  2. **Not stopped**: it ended by itself, or (the same to its pod) while its pod was being deleted. A status without
//!     a deletionTimestamp that shows its end tells the two apart, and so does a later attempt.
//!  3. **A pod that was never shown** has no spec, no status and no deletion: nothing tells one reason from another,
//!     except the runtime's hashes of two attempts, which tell of a changed definition.
//!  4. **Stopped, and then its pod is deleted**: it may have been stopped for the deletion, unless a status without a
//!     deletionTimestamp shows its end, or a later attempt exists.
//!  5. **Stopped in a pod that goes on.** A changed definition shows in the hashes of both attempts, or in another
//!     image that was delivered before the stop. A failed liveness probe shows in the last run of its binary, where it
//!     has one. Apart from these, the order of the status decides: `running(N)` then `running(N+1)` or
//!     `waiting(N)` is the kubelet's own stop, and with a liveness probe that probe's; `terminated(N)` first is anybody
//!     else's. A preStop hook that ran before the stop signal is the kubelet's, too. What has no probe, and the same
//!     definition before and after, the kubelet has no reason to stop.
//!  6. **The order shows nothing** in a list that replaced the watch, nor where the runtime was away during the stop:
//!     what the kubelet could not finish it finds ended later.
//!
//! What is no evidence: how soon the next attempt comes (the kubelet may find an end at once), a run of a probe that
//! succeeded (another probe may use the same binary), a hook that did not run (it may not exist).

use super::{
    truth::{ExpectedAttempt, TrueEnd},
    view::{Order, View},
};
use std::ops::RangeInclusive;

/// Why no source shows the cause of a death. A closed set: each has its ceiling in `floors.txt`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Hidden {
    /// The kernel's record of a stop may have been lost.
    RecordLost,
    /// The stop may have begun before the agent.
    BeforeAgent,
    /// Neither a list nor a status named the container.
    NeverNamed,
    /// No version of the pod was delivered.
    PodNeverShown,
    /// The pod was deleted before a status showed that it goes on.
    DeletedMeanwhile,
    /// The runtime was away while it was stopped.
    RuntimeAway,
    /// A list came between the status before and the status after.
    OrderInList,
}

impl Hidden {
    pub(crate) const ALL: [Self; 7] = [
        Self::RecordLost,
        Self::BeforeAgent,
        Self::NeverNamed,
        Self::PodNeverShown,
        Self::DeletedMeanwhile,
        Self::RuntimeAway,
        Self::OrderInList,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RecordLost => "record-lost",
            Self::BeforeAgent => "before-agent",
            Self::NeverNamed => "never-named",
            Self::PodNeverShown => "pod-never-shown",
            Self::DeletedMeanwhile => "deleted-meanwhile",
            Self::RuntimeAway => "runtime-away",
            Self::OrderInList => "order-in-list",
        }
    }
}

/// No stop takes longer: the longest grace of a plan and its longest hook, ms.
const LONGEST_STOP: u64 = 45_000;
/// A full ring is noticed within this, ms.
const NOTICED: u64 = 2_000;

/// A change of the spec that is delivered so long after the stop began may have come before it, ms.
const PROMPT: u64 = 1_000;
/// Whoever stops a whole pod begins with the next part of it so soon after the last one, ms.
const AT_ONCE: u64 = 2_000;

/// Why nothing decides the cause of this death; `None`: something does.
pub(crate) fn hidden(view: &View<'_>, one: &ExpectedAttempt, end: &TrueEnd) -> Option<Hidden> {
    let ExpectedAttempt { id, name, .. } = one;
    let cause = end.causes[0].as_str();
    if !view.is_named(id, name) {
        return Some(Hidden::NeverNamed);
    }
    let is_shown_to_go_on = view.has_later(id, name) || view.is_outlasted(id, name);
    let ran_on = || view.ran_on(end.at, AT_ONCE);
    let goes_on = is_shown_to_go_on
        || view.stop_began(id).is_some_and(|began| view.was_deleted_after(began))
        || ran_on();
    let deleted = view.deleted();
    let Some(stopped) = view.stopped(id) else {
        // It ended with its pod, stopped or not.
        let with_its_pod = cause == "api_delete" && deleted.is_some_and(|at| at <= end.at);
        return if with_its_pod { None } else { perhaps_stopped(view, id, end.at) };
    };
    if cause == "definition_changed" && view.redefined(id) == Some(true) {
        return None;
    }
    if view.versions.is_empty() {
        return Some(Hidden::PodNeverShown);
    }
    let changed = view.image_changed(name);
    let is_changed_first = changed
        .is_some_and(|at| at <= stopped + PROMPT && deleted.is_none_or(|deleted| at < deleted));
    match cause {
        "api_delete" => None,
        // A sidecar is stopped once all main containers have ended by themselves.
        "completed" => view.mains().into_iter().find_map(|main| match view.ended(main) {
            Some(_) if view.stopped(main).is_some() => Some(Hidden::DeletedMeanwhile),
            Some(at) => perhaps_stopped(view, main, at),
            None if view.lost(0..=end.at + NOTICED) => Some(Hidden::RecordLost),
            None => Some(Hidden::BeforeAgent),
        }),
        "definition_changed" if is_changed_first => None,
        _ if !goes_on => Some(Hidden::DeletedMeanwhile),
        "definition_changed" if changed.is_some() && view.has_later(id, name) => None,
        "definition_changed" if !is_shown_to_go_on => Some(Hidden::DeletedMeanwhile),
        "definition_changed" => Some(Hidden::OrderInList),
        "liveness" if view.probe_failed(id, name, stopped) => None,
        _ => in_a_pod_that_goes_on(view, one, stopped..=end.at, is_shown_to_go_on),
    }
}

/// Without a recorded stop: why it may have been stopped all the same.
fn perhaps_stopped(view: &View<'_>, id: &str, ended: u64) -> Option<Hidden> {
    let may_begin = ended.saturating_sub(LONGEST_STOP);
    if view.lost(may_begin..=ended + NOTICED) {
        return Some(Hidden::RecordLost);
    }
    (view.was_found(id) && view.starts > may_begin).then_some(Hidden::BeforeAgent)
}

fn in_a_pod_that_goes_on(
    view: &View<'_>,
    one: &ExpectedAttempt,
    stop: RangeInclusive<u64>,
    is_shown: bool,
) -> Option<Hidden> {
    let ExpectedAttempt { id, name, end } = one;
    let is_liveness = end.as_ref().is_some_and(|end| end.causes[0] == "liveness");
    let was_away = view.was_away(stop.clone());
    let spec = view.last(name);
    let probed = spec.is_some_and(|spec| spec.liveness.is_some() || spec.startup.is_some());
    // What changed before the agent began shows only in the hashes.
    let same = match view.redefined(id) {
        Some(differ) => !differ,
        None => {
            view.backs_off(id, name)
                || !view.was_found(id)
                    && view.is_end_shown(id, name)
                    && view.image_changed(name).is_none()
        }
    };
    let decided = match view.order(id, name) {
        Order::FoundEnded if !was_away && !is_liveness => return None,
        Order::SameSync => is_liveness,
        _ if is_liveness => view.hook(id, *stop.start()).is_some(),
        _ => !probed,
    };
    match decided {
        true if same => None,
        true => Some(Hidden::BeforeAgent),
        false if was_away => Some(Hidden::RuntimeAway),
        false if !is_shown => Some(Hidden::DeletedMeanwhile),
        false => Some(Hidden::OrderInList),
    }
}
