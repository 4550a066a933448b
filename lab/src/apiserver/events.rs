//! Events of events.k8s.io/v1. They are kept as those of core/v1, which is what the agent lists; the real apiserver
//! keeps one of both kinds, too (pkg/apis/events/v1/conversion.go).

use super::failure::ApiFailure;
use serde_json::{Value, json};

pub(super) const GROUP_VERSION: &str = "events.k8s.io/v1";

/// Fields with two names: in core/v1, in events.k8s.io/v1.
const NAMES: [(&str, &str); 3] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
];

pub(super) fn from_core(mut event: Value) -> Value {
    rename(&mut event, |(core, new)| (core, new));
    event["apiVersion"] = json!(GROUP_VERSION);
    event
}

pub(super) fn to_core(mut event: Value) -> Value {
    rename(&mut event, |(core, new)| (new, core));
    event["apiVersion"] = json!("v1");
    event
}

type Names = (&'static str, &'static str);

fn rename(event: &mut Value, of: impl Fn(Names) -> Names) {
    let Some(fields) = event.as_object_mut() else { return };
    for names in NAMES {
        let (from, to) = of(names);
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

/// What the real apiserver demands of an Event by the newer API (`ValidateEventCreate`,
/// pkg/apis/core/validation/events.go). `event` is of core/v1.
pub(super) fn validate(event: &Value) -> Result<(), ApiFailure> {
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let demand = |holds: bool, field: &str| {
        holds.then_some(()).ok_or_else(|| ApiFailure::invalid(format!("{field}: Invalid value")))
    };
    demand(event["eventTime"].is_string(), "eventTime")?;
    demand(matches!(text("type"), "Normal" | "Warning"), "type")?;
    demand(text("message").len() <= 1024, "message")?;
    for (field, most) in
        [("action", 128), ("reason", 128), ("reportingInstance", 128), ("reportingComponent", 316)]
    {
        demand((1..=most).contains(&text(field).len()), field)?;
    }
    let about = event["involvedObject"]["namespace"].as_str().unwrap_or("default");
    demand(event["metadata"]["namespace"] == about, "involvedObject.namespace")?;
    let series = &event["series"];
    demand(series.is_null() || series["count"].as_i64() >= Some(2), "series.count")
}
