//! The parts that all lists share: the query and the envelope.

use crate::{leak::Detection, time::Moment};
use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Serialize};
use std::{ops::Not, time::Duration};

/// The query. Unknown parameters are rejected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
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
    /// Maximum number of items. With `after`, the cursor of the answer brings the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only what is new, corrected or resolved since the answer with this `cursor`, oldest change first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl ListQuery {
    pub fn on(&self, path: &str) -> String {
        let mut pairs = Vec::new();
        let mut add = |name, value: Option<String>| {
            pairs.extend(value.map(|value| format!("{name}={}", encode(&value))));
        };
        add("namespace", self.namespace.clone());
        add("pod", self.pod.clone());
        add("since", self.since.clone());
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("after", self.after.clone());
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

/// A list, or what has changed of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    pub node: String,
    /// The boot of the node to which all `bootNs` belong (/proc/sys/kernel/random/boot_id); empty if unknown.
    pub boot_id: String,
    /// Since when the agent observes the node: what happened before is not in the list. Absent: it does not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_since: Option<Moment>,
    /// For leaks: the state of leak detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// The value of `after` that asks for what has changed since this answer.
    pub cursor: String,
    /// The list begins again: the question had no cursor, or one that the agent does not know, as after a restart. Drop
    /// the items that you have.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub complete: bool,
    pub items: Vec<T>,
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
            ..ListQuery::default()
        };
        assert_eq!(query.on("/p"), "/p?namespace=a%26b&since=1h%205m&limit=3");
    }
}
