//! What clients ask before they ask for anything: versions and resources.

use super::{
    events::{API_VERSION, GROUP},
    store::ResourceKind,
};
use serde_json::{Value, json};

/// The answer for a path that is not about objects.
pub(super) fn answer(path: &str) -> Option<Value> {
    match path.trim_end_matches('/') {
        "/api" => Some(json!({
            "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
        })),
        "/apis" => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()],
        })),
        "/apis/events.k8s.io" => Some(group()),
        "/apis/events.k8s.io/v1" => Some(json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": API_VERSION,
            "resources": resources(ResourceKind::Event).collect::<Vec<_>>(),
        })),
        "/api/v1" => Some(json!({
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": ResourceKind::ALL.into_iter().flat_map(resources).collect::<Vec<_>>(),
        })),
        "/version" => Some(json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.0-coroner-lab",
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "", "compiler": "", "platform": "linux/amd64",
        })),
        "/healthz" | "/livez" | "/readyz" => Some(json!("ok")),
        _ => None,
    }
}

fn group() -> Value {
    let version = json!({ "groupVersion": API_VERSION, "version": "v1" });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": [version], "preferredVersion": version,
    })
}

fn resources(kind: ResourceKind) -> impl Iterator<Item = Value> {
    let short = match kind {
        ResourceKind::Namespace => "ns",
        ResourceKind::Node => "no",
        ResourceKind::Pod => "po",
        ResourceKind::Event => "ev",
    };
    let object = json!({
        "name": kind.resource(),
        "singularName": kind.name().to_lowercase(),
        "shortNames": [short],
        "namespaced": kind.is_namespaced(),
        "kind": kind.name(),
        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
    });
    let status = json!({
        "name": format!("{}/status", kind.resource()),
        "singularName": "",
        "namespaced": kind.is_namespaced(),
        "kind": kind.name(),
        "verbs": ["get", "patch", "update"],
    });
    [Some(object), (kind != ResourceKind::Event).then_some(status)].into_iter().flatten()
}
