//! What a request asks for: the path and the query, as values.

use super::{
    events,
    failure::ApiFailure,
    kind::ResourceKind,
    selector::Selector,
    store::{DeleteOptions, Propagation},
};
use serde::Deserialize;
use serde_json::Value;

/// A path below /api/v1 or /apis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) kind: ResourceKind,
    /// `None`: all namespaces. Empty for what lives in none.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    /// `/status`, the only subresource there is.
    pub(super) status: bool,
    /// An Event as events.k8s.io/v1 has it.
    pub(super) newer: bool,
}

impl Target {
    /// `None` for a path that leads nowhere.
    pub(super) fn parse(path: &str) -> Option<Target> {
        let (api_version, path) = match path.strip_prefix("/api/v1/") {
            Some(path) => ("v1", path),
            None => {
                let path = path.strip_prefix("/apis/")?;
                path.match_indices('/').nth(1).map(|(at, _)| (&path[..at], &path[at + 1..]))?
            }
        };
        let newer = api_version == events::API_VERSION;
        let parts: Vec<&str> = path.split('/').collect();
        let (namespace, rest) = match parts.as_slice() {
            ["namespaces", namespace, rest @ ..]
                if rest.first().is_some_and(|part| *part != "status") =>
            {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let (resource, name, status) = match rest {
            [resource] => (resource, None, false),
            [resource, name] => (resource, Some((*name).to_owned()), false),
            [resource, name, "status"] => (resource, Some((*name).to_owned()), true),
            _ => return None,
        };
        let kind = ResourceKind::all().find(|kind| {
            let serves = if newer {
                *kind == ResourceKind::Event
            } else {
                kind.api_version() == api_version
            };
            serves && kind.resource() == *resource
        })?;
        if status && !kind.has_status() {
            return None;
        }
        match (kind.is_namespaced(), &namespace) {
            // A name needs its namespace, and what has none is not found in one.
            (true, None) if name.is_some() => None,
            (false, Some(_)) => None,
            (true, _) => Some(Target { kind, namespace, name, status, newer }),
            (false, None) => {
                Some(Target { kind, namespace: Some(String::new()), name, status, newer })
            }
        }
    }

    /// `apiVersion` of what is asked for.
    pub(super) fn api_version(&self) -> &'static str {
        if self.newer { events::API_VERSION } else { self.kind.api_version() }
    }

    /// Its group; that of core/v1 is empty.
    pub(super) fn group(&self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// As rules of roles name it.
    pub(super) fn resource(&self) -> String {
        format!("{}{}", self.kind.resource(), if self.status { "/status" } else { "" })
    }

    /// A stored object as it was asked for.
    pub(super) fn shown(&self, object: &Value) -> Value {
        if self.newer { events::from_core(object.clone()) } else { object.clone() }
    }
}

/// The query of any request; what a verb has no use for is ignored, as the real one does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Query {
    pub(super) watch: Option<String>,
    pub(super) resource_version: Option<String>,
    field_selector: Option<String>,
    label_selector: Option<String>,
    pub(super) allow_watch_bookmarks: Option<String>,
    pub(super) send_initial_events: Option<String>,
    pub(super) timeout_seconds: Option<u64>,
    pub(super) include_object: Option<String>,
    grace_period_seconds: Option<i64>,
    propagation_policy: Option<String>,
    /// Who applies.
    pub(super) field_manager: Option<String>,
    pub(super) dry_run: Option<String>,
}

impl Query {
    pub(super) fn selector(&self, target: &Target) -> Result<Selector, ApiFailure> {
        Selector::parse(
            self.field_selector.as_deref(),
            self.label_selector.as_deref(),
            target.namespace.as_deref().filter(|_| target.kind.is_namespaced()),
        )
    }

    /// The version to watch from; `None`: from whatever there is now.
    pub(super) fn version(&self) -> Result<Option<u64>, ApiFailure> {
        match self.resource_version.as_deref() {
            None | Some("" | "0") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ApiFailure::bad_request(format!(
                    "Invalid value: {text:?}: invalid resource version"
                ))
            }),
        }
    }

    /// The options of a delete: the body's, and failing those the query's.
    pub(super) fn delete_options(&self, body: &Value) -> Result<DeleteOptions, ApiFailure> {
        let grace = match &body["gracePeriodSeconds"] {
            Value::Null => self.grace_period_seconds,
            value => Some(value.as_i64().ok_or_else(|| {
                ApiFailure::bad_request(format!("gracePeriodSeconds is no whole number: {value}"))
            })?),
        };
        let wanted = |field: &str| body["preconditions"][field].as_str().map(String::from);
        let propagation = body["propagationPolicy"].as_str().or(self.propagation_policy.as_deref());
        let propagation = match propagation {
            None | Some("Background") => Propagation::Background,
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            Some(other) => {
                return Err(ApiFailure::invalid(format!(
                    "propagationPolicy: Unsupported value: {other:?}"
                )));
            }
        };
        Ok(DeleteOptions {
            grace,
            uid: wanted("uid"),
            resource_version: wanted("resourceVersion"),
            propagation,
        })
    }
}

/// How a query says yes.
pub(super) fn is_true(value: Option<&str>) -> bool {
    matches!(value, Some("true" | "1" | "True" | "TRUE" | "t" | "T"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        let at = |kind, namespace: Option<&str>, name: Option<&str>, status| {
            let (namespace, name) = (namespace.map(String::from), name.map(String::from));
            Some(Target { kind, namespace, name, status, newer: false })
        };
        for (path, target) in [
            ("/api/v1/pods", at(ResourceKind::Pod, None, None, false)),
            ("/api/v1/namespaces/a/pods", at(ResourceKind::Pod, Some("a"), None, false)),
            ("/api/v1/namespaces/a/pods/web", at(ResourceKind::Pod, Some("a"), Some("web"), false)),
            (
                "/api/v1/namespaces/a/pods/web/status",
                at(ResourceKind::Pod, Some("a"), Some("web"), true),
            ),
            ("/api/v1/namespaces", at(ResourceKind::Namespace, Some(""), None, false)),
            ("/api/v1/namespaces/a", at(ResourceKind::Namespace, Some(""), Some("a"), false)),
            ("/api/v1/nodes/n", at(ResourceKind::Node, Some(""), Some("n"), false)),
            ("/api/v1/namespaces/a/nodes", None),
            ("/api/v1/pods/web", None),
            ("/api/v1/namespaces/a/pods/web/log", None),
            ("/api/v1/secrets", at(ResourceKind::Secret, None, None, false)),
            (
                "/apis/apps/v1/namespaces/a/daemonsets/d/status",
                at(ResourceKind::DaemonSet, Some("a"), Some("d"), true),
            ),
            ("/api/v1/namespaces/a/secrets/s/status", None),
            ("/api/v1/daemonsets", None),
            ("/apis/apps/v1/pods", None),
            ("/apis/apps/v1", None),
            ("/apis", None),
        ] {
            assert_eq!(Target::parse(path), target, "{path}");
        }
        let newer = "/apis/events.k8s.io/v1/namespaces/a/events/e";
        let event = at(ResourceKind::Event, Some("a"), Some("e"), false);
        assert_eq!(Target::parse(newer), event.map(|target| Target { newer: true, ..target }));
        assert_eq!(Target::parse("/apis/events.k8s.io/v1/namespaces/a/pods"), None);
    }

    #[test]
    fn the_body_of_a_delete_goes_before_its_query() {
        let query = Query { grace_period_seconds: Some(5), ..Query::default() };
        let grace = |body| query.delete_options(&body).map(|options| options.grace);
        assert_eq!(grace(Value::Null), Ok(Some(5)));
        assert_eq!(grace(json!({})), Ok(Some(5)));
        assert_eq!(grace(json!({ "gracePeriodSeconds": 0 })), Ok(Some(0)));
        assert!(grace(json!({ "gracePeriodSeconds": "soon" })).is_err());
        let propagation = |policy| {
            query
                .delete_options(&json!({ "propagationPolicy": policy }))
                .map(|options| options.propagation)
        };
        assert_eq!(propagation("Orphan"), Ok(Propagation::Orphan));
        assert!(propagation("Later").is_err());
    }
}
