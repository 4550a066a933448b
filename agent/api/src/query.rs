//! The parts that all lists share: the query, the envelope, and the lines of a watch.

use crate::{Moment, leaks::Detection};
use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// The number of items in a page if the query has no limit.
pub const DEFAULT_LIMIT: usize = 500;

/// The maximum number of items in a page.
pub const MAX_LIMIT: usize = 5000;

/// Time between two heartbeats of a watch, seconds.
pub const HEARTBEAT_SECONDS: u64 = 10;

/// The query. Unknown parameters are rejected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only pods of this namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only pods of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Only items that are younger than this duration, by the node's clock (`30m`, `1h 30m`, `1d`): terminations and deaths by
    /// their end, leaks by their confirmation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Maximum number of items in the page: 500 if not given, 5000 at most. A watch has no pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The next page: the value of `continue` in the previous page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    #[param(rename = "continue")]
    pub after: Option<String>,
    /// Stream JSON lines instead: the existing items, oldest first, then a heartbeat, then each change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watch: bool,
}

impl ListQuery {
    /// The path with this query.
    pub fn on(&self, path: &str) -> String {
        let mut pairs = Vec::new();
        let mut add = |name, value: Option<String>| {
            pairs.extend(value.map(|value| format!("{name}={}", encode(&value))));
        };
        add("namespace", self.namespace.clone());
        add("pod", self.pod.clone());
        add("since", self.since.clone());
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("continue", self.after.clone());
        add("watch", self.watch.then(|| "true".to_owned()));
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// `5s`, `250ms`, `1h 30m`, `1d`, `2w`: not negative. A day has 24 hours.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?.try_into().ok()
}

/// Percent-encodes all bytes that a query must not contain.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                (byte as char).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// A page of a list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// The node that the agent observes.
    pub node: String,
    /// The boot of the node to which all `bootNs` belong (/proc/sys/kernel/random/boot_id); empty if unknown.
    pub boot_id: String,
    /// Since when the agent observes the node: what happened before is not in the list. Absent: it does not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_since: Option<Moment>,
    /// For leaks: the state of leak detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// The items.
    pub items: Vec<T>,
    /// Present if there are more items: the value of `continue` for the next page.
    #[serde(rename = "continue", default, skip_serializing_if = "Option::is_none")]
    #[schema(rename = "continue")]
    pub next: Option<String>,
}

/// A line of a watch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "UPPERCASE")]
pub enum Event<T> {
    /// A new item, or one that existed when the watch began.
    Added {
        /// The item.
        object: T,
    },
    /// A changed item.
    Modified {
        /// The present item.
        object: T,
    },
    /// A resolved leak.
    Deleted {
        /// The last state of the item.
        object: T,
    },
    /// The watch is alive. The first heartbeat follows the items that existed when the watch began.
    Heartbeat(Heartbeat),
    /// A kind of line that only newer agents send.
    #[serde(other, skip_serializing)]
    #[schema(skip)]
    Newer,
}

/// A heartbeat of a watch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// The node that the agent observes.
    pub node: String,
    /// The boot of the node, as in a list.
    pub boot_id: String,
    /// The present time.
    pub at: Moment,
    /// For leaks: the state of leak detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_as_a_path() {
        assert_eq!(ListQuery::default().on("/p"), "/p");
        let query = ListQuery {
            namespace: Some("a&b".into()),
            since: Some("1h 5m".into()),
            limit: Some(3),
            watch: true,
            ..ListQuery::default()
        };
        assert_eq!(query.on("/p"), "/p?namespace=a%26b&since=1h%205m&limit=3&watch=true");
    }

    #[test]
    fn lines_of_newer_agents_are_passed_over() {
        let read = |json| serde_json::from_str::<Event<u32>>(json).unwrap();
        assert_eq!(read(r#"{"type":"ADDED","object":7,"more":1}"#), Event::Added { object: 7 });
        assert_eq!(read(r#"{"type":"COUNTED","object":[]}"#), Event::Newer);
    }
}
