//! The arithmetic of a deletion, exactly as the real apiserver's: `BeforeDelete` in
//! staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go and `CheckGracefulDelete` in
//! pkg/registry/core/pod/strategy.go. Checked against recordings of a real one.

use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

/// What a delete request does to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Nothing: the deletion under way is as short or shorter.
    None,
    /// The deadline was set or moved; the object stays until the kubelet says so.
    Waits,
    /// The object is to go at once, unless finalizers keep it. `marked`: its metadata was changed
    /// and watchers see that first.
    Goes {
        /// A grace of 0 was written into the object.
        marked: bool,
    },
}

/// Applies a delete request to a pod. `grace` is the request's gracePeriodSeconds.
pub(super) fn of_pod(pod: &mut Value, grace: Option<i64>, now: Timestamp) -> Effect {
    // A negative grace is taken as one second.
    let at_least_one = |seconds: i64| if seconds < 0 { 1 } else { seconds };
    let grace = grace.map(at_least_one);
    if let Some(deadline) = timestamp(&pod["metadata"]["deletionTimestamp"]) {
        let Some(current) = pod["metadata"]["deletionGracePeriodSeconds"].as_i64() else {
            return Effect::Goes { marked: false };
        };
        let Some(shorter) = grace.filter(|&grace| grace < current) else { return Effect::None };
        // The request's own time is what the deadline says; a deadline that has passed is now.
        let wanted = shift(deadline, shorter - current);
        let (deadline, period) =
            if wanted < now { (now, shorter.min(1)) } else { (wanted, shorter) };
        mark(pod, deadline, period);
        return if period == 0 { Effect::Goes { marked: true } } else { Effect::Waits };
    }
    let unscheduled = pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let period = if unscheduled || finished {
        0
    } else {
        let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
        grace.unwrap_or_else(|| at_least_one(own))
    };
    mark(pod, shift(now, period), period);
    if let Some(generation) = pod["metadata"]["generation"].as_i64().filter(|&known| known > 0) {
        pod["metadata"]["generation"] = json!(generation + 1);
    }
    if period == 0 { Effect::Goes { marked: true } } else { Effect::Waits }
}

/// Marks an object without a grace of its own that finalizers keep.
pub(super) fn mark(object: &mut Value, deadline: Timestamp, period: i64) {
    object["metadata"]["deletionTimestamp"] = json!(seconds(deadline));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(period);
}

/// Keeps a namespace while something is in it; in its spec.
pub(super) const NAMESPACE: &str = "kubernetes";

/// Whether finalizers keep the object.
pub(super) fn is_kept(object: &Value) -> bool {
    let has = |of: &Value| of["finalizers"].as_array().is_some_and(|all| !all.is_empty());
    has(&object["metadata"]) || has(&object["spec"])
}

/// As the API writes times: whole seconds.
pub(super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn timestamp(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Absurd graces saturate instead of overflowing.
fn shift(time: Timestamp, by: i64) -> Timestamp {
    // The span's own limit is about 20,000 years in seconds.
    let by = by.clamp(-600_000_000_000, 600_000_000_000).seconds();
    time.saturating_add(by).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-21T02:{text}Z").parse().unwrap()
    }

    fn pod(spec_grace: i64, phase: &str, node: &str) -> Value {
        json!({
            "metadata": { "generation": 1 },
            "spec": { "nodeName": node, "terminationGracePeriodSeconds": spec_grace },
            "status": { "phase": phase },
        })
    }

    fn deadline(pod: &Value) -> (&str, i64) {
        let metadata = &pod["metadata"];
        (
            &metadata["deletionTimestamp"].as_str().unwrap()["2026-11-21T02:".len()..],
            metadata["deletionGracePeriodSeconds"].as_i64().unwrap(),
        )
    }

    #[test]
    fn a_first_request() {
        use Effect::{Goes, Waits};
        let gone = Goes { marked: true };
        for (grace, spec, phase, node, effect, want) in [
            (None, 15, "Running", "n", Waits, ("24:42Z", 15)),
            (Some(3), 15, "Running", "n", Waits, ("24:30Z", 3)),
            (Some(60), 15, "Running", "n", Waits, ("25:27Z", 60)),
            (Some(-5), 15, "Running", "n", Waits, ("24:28Z", 1)),
            (None, -5, "Running", "n", Waits, ("24:28Z", 1)),
            (None, 0, "Running", "n", gone, ("24:27Z", 0)),
            (Some(0), 15, "Running", "n", gone, ("24:27Z", 0)),
            (None, 15, "Pending", "", gone, ("24:27Z", 0)),
            (Some(9), 15, "Succeeded", "n", gone, ("24:27Z", 0)),
            (Some(9), 15, "Failed", "n", gone, ("24:27Z", 0)),
        ] {
            let mut pod = pod(spec, phase, node);
            let case = format!("{grace:?} {spec} {phase} {node:?}");
            assert_eq!(of_pod(&mut pod, grace, at("24:27")), effect, "{case}");
            assert_eq!(deadline(&pod), want, "{case}");
            assert_eq!(pod["metadata"]["generation"], 2, "{case}");
        }
    }

    #[test]
    fn a_second_request_only_shortens() {
        for (grace, now, effect, want) in [
            (None, "30:40", Effect::None, ("31:36Z", 60)),
            (Some(60), "30:40", Effect::None, ("31:36Z", 60)),
            (Some(90), "30:40", Effect::None, ("31:36Z", 60)),
            (Some(20), "30:40", Effect::Waits, ("30:56Z", 20)),
            // Recorded: `grace-shortened`, 6 s after the first request.
            (Some(3), "30:42", Effect::Waits, ("30:42Z", 1)),
            // Recorded: the kubelet's own last request.
            (Some(0), "31:37", Effect::Goes { marked: true }, ("31:37Z", 0)),
        ] {
            let mut pod = pod(60, "Running", "n");
            of_pod(&mut pod, None, at("30:36"));
            assert_eq!(of_pod(&mut pod, grace, at(now)), effect, "{grace:?} at {now}");
            assert_eq!(deadline(&pod), want, "{grace:?} at {now}");
            assert_eq!(pod["metadata"]["generation"], 2, "counted once");
        }
    }

    #[test]
    fn an_absurd_grace_is_no_panic() {
        let mut absurd = pod(i64::MAX, "Running", "n");
        assert_eq!(of_pod(&mut absurd, None, at("24:27")), Effect::Waits);
        of_pod(&mut absurd, Some(i64::MIN), at("24:28"));
    }
}
