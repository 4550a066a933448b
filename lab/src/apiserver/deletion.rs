//! The arithmetic of a deletion, as the real apiserver's: `BeforeDelete` in
//! staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go and `CheckGracefulDelete` in
//! pkg/registry/core/pod/strategy.go.

use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

/// What a delete request does to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Nothing: the deletion under way is as short or shorter.
    None,
    /// The deadline was set or moved; the object stays until the kubelet deletes it with grace 0.
    Waits,
    /// The object goes at once, unless finalizers keep it.
    Goes,
}

/// Applies a delete request to a pod. `grace` is the request's gracePeriodSeconds.
pub(super) fn of_pod(pod: &mut Value, grace: Option<i64>, now: Timestamp) -> Effect {
    // A negative grace is taken as one second.
    let at_least_one = |seconds: i64| if seconds < 0 { 1 } else { seconds };
    let grace = grace.map(at_least_one);
    let deadline = pod["metadata"]["deletionTimestamp"].as_str();
    if let Some(deadline) = deadline.and_then(|at| at.parse::<Timestamp>().ok()) {
        let current = pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
        let Some(shorter) = grace.filter(|&grace| grace < current) else {
            return if current == 0 { Effect::Goes } else { Effect::None };
        };
        // The time of the first request stays in the deadline; a deadline that has passed becomes now.
        let wanted = shift(deadline, shorter - current);
        let (deadline, period) =
            if wanted < now { (now, shorter.min(1)) } else { (wanted, shorter) };
        mark(pod, deadline, period);
        return if period == 0 { Effect::Goes } else { Effect::Waits };
    }
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let period = if finished {
        0
    } else {
        let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
        grace.unwrap_or_else(|| at_least_one(own))
    };
    mark(pod, shift(now, period), period);
    if let Some(generation) = pod["metadata"]["generation"].as_i64() {
        pod["metadata"]["generation"] = json!(generation + 1);
    }
    if period == 0 { Effect::Goes } else { Effect::Waits }
}

fn mark(object: &mut Value, deadline: Timestamp, period: i64) {
    object["metadata"]["deletionTimestamp"] = json!(seconds(deadline));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(period);
}

/// As the API writes times: whole seconds.
pub(super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Absurd graces saturate instead of overflowing.
fn shift(time: Timestamp, by: i64) -> Timestamp {
    // The span's own limit is about 20,000 years in seconds.
    time.saturating_add(by.clamp(-600_000_000_000, 600_000_000_000).seconds()).unwrap_or(time)
}
