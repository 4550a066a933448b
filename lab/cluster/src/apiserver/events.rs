//! Events as events.k8s.io/v1 has them. They are kept as those of core/v1, which is what kubectl
//! reads; the real one keeps one of both kinds, too (pkg/apis/events/v1/conversion.go), and so strict
//! is it with what comes by the newer API (pkg/apis/core/validation/events.go).

use super::failure::ApiFailure;
use serde_json::{Value, json};

/// `apiVersion`.
pub(super) const API_VERSION: &str = "events.k8s.io/v1";

/// Fields with two names: in core/v1, in events.k8s.io/v1.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// What only the older API may set.
const DEPRECATED: [&str; 4] = ["source", "firstTimestamp", "lastTimestamp", "count"];
/// All that an update must leave alone: everything but the series, labels and annotations.
const IMMUTABLE: [&str; 13] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
];

/// An Event of core/v1 as one of events.k8s.io/v1.
pub(super) fn from_core(mut event: Value) -> Value {
    rename(&mut event, |(core, new)| (core, new));
    event["apiVersion"] = json!(API_VERSION);
    event
}

/// The other way round.
pub(super) fn to_core(mut event: Value) -> Value {
    rename(&mut event, |(core, new)| (new, core));
    event["apiVersion"] = json!("v1");
    event
}

fn rename(
    event: &mut Value,
    of: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(fields) = event.as_object_mut() else { return };
    for pair in NAMES {
        let (from, to) = of(pair);
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

/// `ValidateEventCreate`, for the newer API. `event` is of core/v1.
pub(super) fn check_new(namespace: &str, event: &Value) -> Result<(), ApiFailure> {
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    for field in DEPRECATED {
        demand(is_empty(&event[field]), field, "needs to be unset")?;
    }
    demand(event["eventTime"].is_string(), "eventTime", "Required value")?;
    demand(matches!(text("type"), "Normal" | "Warning"), "type", "has invalid value")?;
    for (field, most) in
        [("action", 128), ("reason", 128), ("reportingInstance", 128), ("reportingComponent", 316)]
    {
        demand(!text(field).is_empty(), field, "Required value")?;
        demand(text(field).len() <= most, field, "is too long")?;
    }
    demand(text("message").len() <= 1024, "message", "can have at most 1024 characters")?;
    let about = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    let nobody_s = about.is_empty() && matches!(namespace, "default" | "kube-system");
    demand(
        about == namespace || nobody_s,
        "involvedObject.namespace",
        "does not match event.namespace",
    )?;
    check_series(event)
}

/// `ValidateEventUpdate`, for the newer API. Both are of core/v1.
pub(super) fn check_change(old: &Value, new: &Value) -> Result<(), ApiFailure> {
    for field in IMMUTABLE {
        let same = new[field] == old[field] || is_empty(&new[field]) && is_empty(&old[field]);
        demand(same, field, "field is immutable")?;
    }
    check_series(new)
}

fn check_series(event: &Value) -> Result<(), ApiFailure> {
    let series = &event["series"];
    if series.is_null() {
        return Ok(());
    }
    let count = series["count"].as_i64().unwrap_or_default();
    demand(count >= 2, "series.count", "should be at least 2")?;
    demand(series["lastObservedTime"].is_string(), "series.lastObservedTime", "Required value")
}

fn demand(holds: bool, field: &str, what: &str) -> Result<(), ApiFailure> {
    if holds { Ok(()) } else { Err(ApiFailure::invalid(format!("{field}: {what}"))) }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Value {
        to_core(json!({
            "metadata": { "name": "web.17" },
            "regarding": { "kind": "Pod", "namespace": "shop", "name": "web" },
            "reason": "StopSignalIgnored", "action": "Stopping", "type": "Warning",
            "note": "thrown away",
            "eventTime": "2026-11-21T00:00:00.000000Z",
            "reportingController": "coroner", "reportingInstance": "n1",
        }))
    }

    #[test]
    fn both_apis_tell_of_the_same_event() {
        let core = event();
        assert_eq!(core["involvedObject"]["name"], "web");
        assert_eq!(core["message"], "thrown away");
        assert_eq!(core["reportingComponent"], "coroner");
        let new = from_core(core.clone());
        assert_eq!(new["regarding"]["name"], "web");
        assert!(new["involvedObject"].is_null() && new["apiVersion"] == API_VERSION, "{new}");
        assert_eq!(to_core(new), core);
    }

    #[test]
    fn what_the_real_one_refuses_is_refused() {
        assert_eq!(check_new("shop", &event()), Ok(()));
        let changed = |field: &str, value: Value| {
            let mut event = event();
            event[field] = value;
            event
        };
        for (field, value) in [
            ("eventTime", Value::Null),
            ("type", json!("Bad")),
            ("action", json!("")),
            ("reason", Value::Null),
            ("reportingInstance", json!("x".repeat(129))),
            ("message", json!("x".repeat(1025))),
            ("count", json!(1)),
            ("source", json!({ "component": "kubelet" })),
            ("series", json!({ "count": 1, "lastObservedTime": "2026-11-21T00:00:00Z" })),
        ] {
            let refused = check_new("shop", &changed(field, value.clone())).unwrap_err();
            assert_eq!(refused.code, 422, "{field} {value}");
            assert!(refused.message.contains(field), "{refused}");
        }
        assert!(check_new("other", &event()).is_err());
        let of_node = changed("involvedObject", json!({ "kind": "Node", "name": "n1" }));
        assert_eq!(check_new("default", &of_node), Ok(()));
        assert!(check_new("shop", &of_node).is_err());
    }

    #[test]
    fn only_the_series_may_change() {
        let mut new = event();
        new["series"] = json!({ "count": 2, "lastObservedTime": "2026-11-21T00:00:00Z" });
        assert_eq!(check_change(&event(), &new), Ok(()));
        new["message"] = json!("another");
        assert!(check_change(&event(), &new).is_err());
    }
}
