//! Whether a source stated the cause of a death before its report was final. The rule shares nothing with the core: a
//! deletion is stated by a deletionTimestamp that was delivered, however late if the pod was shown before; a probe by its failed runs just before the
//! stop, or by an Event that was listed; a changed definition by such an Event; an end without a stop by the kernel,
//! where no record of a stop may be missing. A stop past the kubelet nobody states.

use super::{
    truth::{ExpectedAttempt, Posted, TrueEnd},
    view::View,
};
use coroner_core::input::KillReason;

/// Why no source stated the cause of a death. A closed set: each has its ceiling in `floors.txt`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Hidden {
    /// The kernel's record of a stop may have been lost.
    RecordLost,
    /// The stop may have begun before the agent.
    BeforeAgent,
    /// Neither a list nor a status named the container.
    NeverNamed,
    /// No statement of it was delivered.
    NotStated,
}

impl Hidden {
    pub(crate) const ALL: [Self; 4] =
        [Self::RecordLost, Self::BeforeAgent, Self::NeverNamed, Self::NotStated];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RecordLost => "record-lost",
            Self::BeforeAgent => "before-agent",
            Self::NeverNamed => "never-named",
            Self::NotStated => "not-stated",
        }
    }
}

/// No stop takes longer: the longest grace of a plan and its longest hook, ms.
const LONGEST_STOP: u64 = 45_000;
/// What is delivered later than this after an end changes no report of it, ms; but the report of a pod waits for the end
/// of an object that was shown by then.
const FINAL: u64 = 60_000;
/// A full ring is noticed within this, ms.
const NOTICED: u64 = 2_000;

/// Why nothing states the cause of this death; `None`: something does. `listed`: the Events that were listed.
pub(super) fn hidden(
    view: &View<'_>,
    one: &ExpectedAttempt,
    end: &TrueEnd,
    listed: &[Posted],
) -> Option<Hidden> {
    let ExpectedAttempt { id, name, .. } = one;
    let cause = end.causes[0].as_str();
    if !view.is_named(id, name) {
        return Some(Hidden::NeverNamed);
    }
    let deleted = view.deleted();
    let Some(stopped) = view.stopped(id) else {
        // It ended with its pod, stopped or not.
        let with_its_pod = cause == "api_delete" && deleted.is_some_and(|at| at <= end.at);
        return if with_its_pod { None } else { perhaps_stopped(view, id, end.at) };
    };
    let says = |reason| {
        let is_it = |event: &&Posted| event.container == *name && event.at <= end.at;
        listed.iter().rfind(is_it).is_some_and(|event| event.reason == reason)
    };
    let is_shown = view.versions.iter().any(|version| version.at <= end.at + FINAL);
    let probe_failed = || is_shown && view.probe_failed(id, name, stopped);
    let is_stated = match cause {
        "api_delete" => is_shown && deleted.is_some(),
        "liveness" => probe_failed() || says(KillReason::LivenessProbe),
        "definition_changed" => says(KillReason::DefinitionChanged),
        // A sidecar is stopped once all main containers have ended by themselves.
        "completed" => {
            return view.mains().into_iter().find_map(|main| match view.ended(main) {
                Some(_) if view.stopped(main).is_some() => Some(Hidden::NotStated),
                Some(at) => perhaps_stopped(view, main, at),
                None if view.lost(0..=end.at + NOTICED) => Some(Hidden::RecordLost),
                None => Some(Hidden::BeforeAgent),
            });
        }
        _ => false,
    };
    (!is_stated).then_some(Hidden::NotStated)
}

/// Without a recorded stop: why it may have been stopped all the same.
fn perhaps_stopped(view: &View<'_>, id: &str, ended: u64) -> Option<Hidden> {
    let may_begin = ended.saturating_sub(LONGEST_STOP);
    if view.lost(may_begin..=ended + NOTICED) {
        return Some(Hidden::RecordLost);
    }
    (view.was_found(id) && view.starts > may_begin).then_some(Hidden::BeforeAgent)
}
