//! Objects as the table that `kubectl get` prints (pkg/printers/internalversion/printers.go).

use super::kind::ResourceKind;
use jiff::Timestamp;
use serde_json::{Value, json};

/// How much of each object a row carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(super) fn parse(text: Option<&str>) -> Include {
        match text {
            Some("None") => Include::None,
            Some("Object") => Include::Object,
            _ => Include::Metadata,
        }
    }
}

/// A `Table` of objects of one kind.
pub(super) fn of(
    kind: ResourceKind,
    objects: &[&Value],
    version: &str,
    include: Include,
    now: Timestamp,
) -> Value {
    let columns: &[(&str, &str)] = match kind {
        ResourceKind::Pod => &[
            ("Name", "string"),
            ("Ready", "string"),
            ("Status", "string"),
            ("Restarts", "integer"),
            ("Age", "string"),
        ],
        ResourceKind::Event => &[
            ("Last Seen", "string"),
            ("Type", "string"),
            ("Reason", "string"),
            ("Object", "string"),
            ("Message", "string"),
        ],
        ResourceKind::Node | ResourceKind::Namespace => {
            &[("Name", "name"), ("Status", ""), ("Age", "")]
        }
        _ => &[("Name", "name"), ("Age", "")],
    };
    let columns: Vec<Value> = columns
        .iter()
        .map(|(name, format)| {
            let kind = if *format == "integer" { "integer" } else { "string" };
            json!({ "name": name, "type": kind, "format": "", "description": "", "priority": 0 })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let carried = match include {
                Include::None => Value::Null,
                Include::Object => (*object).clone(),
                Include::Metadata => json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": object["metadata"],
                }),
            };
            json!({ "cells": cells(kind, object, now), "object": carried })
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": version },
        "columnDefinitions": columns, "rows": rows,
    })
}

fn cells(kind: ResourceKind, object: &Value, now: Timestamp) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or("<unknown>").to_owned();
    let name = text(&object["metadata"]["name"]);
    let age = age(&object["metadata"]["creationTimestamp"], now);
    match kind {
        ResourceKind::Pod => {
            let (ready, restarts) = containers(object);
            json!([name, ready, pod_status(object), restarts, age])
        }
        ResourceKind::Event => {
            let about = &object["involvedObject"];
            let about = format!("{}/{}", text(&about["kind"]).to_lowercase(), text(&about["name"]));
            let (class, reason) = (text(&object["type"]), text(&object["reason"]));
            json!([last_seen(object, now), class, reason, about, text(&object["message"])])
        }
        ResourceKind::Node => {
            let ready = condition(object, "Ready") == Some("True");
            json!([name, if ready { "Ready" } else { "NotReady" }, age])
        }
        ResourceKind::Namespace => json!([name, text(&object["status"]["phase"]), age]),
        _ => json!([name, age]),
    }
}

/// printEvent's: the series', of old clients the last time, or when it was made.
fn last_seen(event: &Value, now: Timestamp) -> String {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["firstTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ];
    age(times.into_iter().find(|time| time.is_string()).unwrap_or(&Value::Null), now)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn condition<'a>(object: &'a Value, wanted: &str) -> Option<&'a str> {
    let mut all = list(&object["status"]["conditions"]).iter();
    all.find(|condition| condition["type"] == wanted)?["status"].as_str()
}

fn containers(pod: &Value) -> (String, i64) {
    let statuses = list(&pod["status"]["containerStatuses"]);
    let ready = statuses.iter().filter(|status| status["ready"] == true).count();
    let restarts = statuses.iter().filter_map(|status| status["restartCount"].as_i64()).sum();
    (format!("{ready}/{}", list(&pod["spec"]["containers"]).len()), restarts)
}

/// printPod's status: the last container with something to say, over which the pod's own reason
/// and phase stand back; a pod being deleted is Terminating.
fn pod_status(pod: &Value) -> String {
    let status = &pod["status"];
    let said = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(String::from);
    let mut reason =
        said(&status["reason"]).or_else(|| said(&status["phase"])).unwrap_or("Unknown".into());
    let mut runs = false;
    for container in list(&status["containerStatuses"]).iter().rev() {
        let state = &container["state"];
        let terminated = &state["terminated"];
        if let Some(waiting) = said(&state["waiting"]["reason"]) {
            reason = waiting;
        } else if terminated.is_object() {
            let (signal, code) = (&terminated["signal"], &terminated["exitCode"]);
            reason = said(&terminated["reason"]).unwrap_or_else(|| match signal.as_i64() {
                Some(signal) if signal != 0 => format!("Signal:{signal}"),
                _ => format!("ExitCode:{code}"),
            });
        } else if state["running"].is_object() && container["ready"] == true {
            runs = true;
        }
    }
    if reason == "Completed" && runs {
        let ready = condition(pod, "Ready") == Some("True");
        reason = if ready { "Running" } else { "NotReady" }.into();
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        let lost = status["reason"] == "NodeLost";
        reason = if lost { "Unknown" } else { "Terminating" }.into();
    }
    reason
}

/// `HumanDuration` of apimachinery, for the ages that a lab sees.
fn age(created: &Value, now: Timestamp) -> String {
    let Some(created) = created.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".into();
    };
    let seconds = now.as_second() - created.as_second();
    match seconds {
        ..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 == 0 => format!("{}m", seconds / 60),
        120..600 => format!("{}m{}s", seconds / 60, seconds % 60),
        600..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Value {
        json!({ "metadata": { "name": "web" }, "spec": { "containers": [{}, {}] }, "status": status })
    }

    #[test]
    fn a_pods_status_is_what_kubectl_prints() {
        let terminated = |more: Value| json!([{ "state": { "terminated": more } }]);
        for (status, wanted) in [
            (json!({ "phase": "Running" }), "Running"),
            (json!({ "phase": "Failed", "reason": "Evicted" }), "Evicted"),
            (
                json!({ "phase": "Pending", "containerStatuses":
                    [{ "state": { "waiting": { "reason": "ContainerCreating" } } }] }),
                "ContainerCreating",
            ),
            (
                json!({ "phase": "Failed", "containerStatuses":
                    terminated(json!({ "reason": "OOMKilled", "exitCode": 137 })) }),
                "OOMKilled",
            ),
            (json!({ "containerStatuses": terminated(json!({ "exitCode": 3 })) }), "ExitCode:3"),
            (json!({ "containerStatuses": terminated(json!({ "signal": 9 })) }), "Signal:9"),
        ] {
            assert_eq!(pod_status(&pod(status.clone())), wanted, "{status}");
        }
        let mut dying = pod(json!({ "phase": "Running" }));
        dying["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
        assert_eq!(pod_status(&dying), "Terminating");
    }

    #[test]
    fn readiness_counts_against_the_spec() {
        let statuses = json!({ "containerStatuses":
            [{ "ready": true, "restartCount": 2 }, { "ready": false, "restartCount": 1 }] });
        assert_eq!(containers(&pod(statuses)), ("1/2".into(), 3));
        assert_eq!(containers(&Value::Null), ("0/0".into(), 0));
    }

    #[test]
    fn an_event_was_seen_when_its_series_was() {
        let now = "2026-11-21T00:10:00Z".parse().unwrap();
        let at = |minute| json!(format!("2026-11-21T00:0{minute}:00.000000Z"));
        let mut event = json!({ "metadata": { "creationTimestamp": at(1) } });
        let mut seen = vec![last_seen(&event, now)];
        event["eventTime"] = at(2);
        seen.push(last_seen(&event, now));
        event["lastTimestamp"] = at(3);
        seen.push(last_seen(&event, now));
        event["series"] = json!({ "count": 2, "lastObservedTime": at(4) });
        seen.push(last_seen(&event, now));
        assert_eq!(seen, ["9m", "8m", "7m", "6m"]);
        assert_eq!(last_seen(&Value::Null, now), "<unknown>");
    }

    #[test]
    fn ages() {
        let created = json!("2026-11-21T00:00:00Z");
        for (now, wanted) in [
            ("2026-11-20T23:59:59Z", "0s"),
            ("2026-11-21T00:01:59Z", "119s"),
            ("2026-11-21T00:03:00Z", "3m"),
            ("2026-11-21T00:03:05Z", "3m5s"),
            ("2026-11-21T01:30:00Z", "90m"),
            ("2026-11-21T04:00:00Z", "4h"),
            ("2026-11-24T00:00:00Z", "3d"),
        ] {
            assert_eq!(age(&created, now.parse().unwrap()), wanted);
        }
        assert_eq!(age(&json!("yesterday"), Timestamp::UNIX_EPOCH), "<unknown>");
    }
}
