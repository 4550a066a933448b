//! The parts that all lists share: the query and the envelope.

use crate::{
    StopResponse, labels,
    leak::Detection,
    time::{Moment, WallTime},
};
use jiff::{Span, SpanRelativeTo, Timestamp};
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
    /// Only the pod of this name or UID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Only pods of this workload, as `web` or `Deployment/web`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Only what ended since then, by the node's clock: a duration before now (`30m`, `1h 30m`, `1d`) or a time of RFC 3339. Of
    /// leaks, what was confirmed or resolved since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only what ended before then, given in the same ways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// For the audit: only containers with this response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<StopResponse>,
    /// Only the container of this name, and terminations with one that matches. Not for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Only deaths with this verdict, and terminations with one. Not for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Only items with this cause; of a termination, its own or that of a container that matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Only items with this finding; of a termination, its own or that of a container that matches. Not for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// Only what took longer than this duration; of a death, from the start of its stop. Not for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Which items come first, if there is no `after`. Not for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<SortBy>,
    /// Maximum number of items: 500 if nothing else is asked for, but for leaks and with `after`. With `after`, the cursor of the
    /// answer brings the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only what is new, corrected or resolved since the answer with this `cursor`, oldest change first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

labels! {
    pub enum SortBy {
        /// What ended last.
        Ended = "ended",
        /// What took longest.
        Took = "took",
    }
}

impl ListQuery {
    pub fn on(&self, path: &str) -> String {
        let mut pairs = Vec::new();
        let mut add = |name, value: Option<String>| {
            pairs.extend(value.map(|value| format!("{name}={}", encode(&value))));
        };
        add("namespace", self.namespace.clone());
        add("pod", self.pod.clone());
        add("workload", self.workload.clone());
        add("since", self.since.clone());
        add("until", self.until.clone());
        add("container", self.container.clone());
        add("verdict", self.verdict.clone());
        add("cause", self.cause.clone());
        add("finding", self.finding.clone());
        add("over", self.over.clone());
        add("sort", self.sort.map(|sort| sort.to_string()));
        add("response", self.response.map(|response| response.to_string()));
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

/// A duration before now, or a time of RFC 3339.
pub fn parse_time(text: &str, now: WallTime) -> Option<WallTime> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return i64::try_from(time.as_nanosecond()).ok().map(WallTime);
    }
    let before = i64::try_from(parse_duration(text)?.as_nanos()).unwrap_or(i64::MAX);
    Some(WallTime(now.0.saturating_sub(before)))
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
    /// Since when the agent observes the node: of what happened before, the list has what earlier runs kept. Absent: it does
    /// not yet.
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
    /// More items match than `limit` allows.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub more: bool,
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

    #[test]
    fn a_time_is_a_time_or_before_now() {
        let now = WallTime::from_secs(1_790_000_000);
        let minute = Some(WallTime::from_secs(1_789_999_940));
        for (text, time) in [
            ("1m", minute),
            ("2026-09-21T14:12:20Z", minute),
            ("2026-09-21T16:12:20+02:00", minute),
            ("2026-09-21", None),
            ("yesterday", None),
            ("-1m", None),
        ] {
            assert_eq!(parse_time(text, now), time, "{text}");
        }
    }
}
