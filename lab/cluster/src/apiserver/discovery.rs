//! What clients ask before they ask for anything: versions and resources.

use super::{events, kind::ResourceKind, store::Store};
use serde_json::{Map, Value, json};

/// The answer for a path that is not about objects.
pub(super) fn answer(store: &Store, path: &str) -> Option<Value> {
    let path = path.trim_end_matches('/');
    match path {
        "/api" => Some(json!({
            "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
        })),
        "/apis" => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": groups(store).into_iter().map(group).collect::<Vec<_>>(),
        })),
        "/api/v1" => Some(resources(store, "v1")),
        "/openapi/v3" => {
            let groups = groups(store).into_iter().map(|version| format!("apis/{version}"));
            let all = groups.chain(["api/v1".to_owned()]);
            let at = |path| json!({ "serverRelativeURL": format!("/openapi/v3/{path}") });
            let paths: Map<_, _> = all.map(|path| (path.clone(), at(path))).collect();
            Some(json!({ "paths": paths }))
        }
        "/openapi/v3/api/v1" => Some(openapi(store, "v1")),
        "/version" => Some(json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.0-coroner-lab",
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "", "compiler": "", "platform": "linux/amd64",
        })),
        "/healthz" | "/livez" | "/readyz" => Some(json!("ok")),
        _ if path.starts_with("/openapi/v3/apis/") => {
            let version = path.strip_prefix("/openapi/v3/apis/")?;
            groups(store).contains(&version).then(|| openapi(store, version))
        }
        _ => {
            let path = path.strip_prefix("/apis/")?;
            let known = groups(store).into_iter();
            known
                .filter_map(|version| match version.strip_prefix(path)? {
                    "" => Some(resources(store, version)),
                    rest => rest.starts_with('/').then(|| group(version)),
                })
                .next()
        }
    }
}

/// The versions of all groups but that of core/v1; each group has one.
fn groups(store: &Store) -> Vec<&'static str> {
    let served = ResourceKind::all().filter(|kind| store.serves(*kind));
    let mut all: Vec<_> =
        served.map(ResourceKind::api_version).filter(|one| *one != "v1").collect();
    all.push(events::API_VERSION);
    all.sort_unstable();
    all.dedup();
    all
}

fn group(api_version: &str) -> Value {
    let (name, version) = api_version.split_once('/').unwrap_or_default();
    let version = json!({ "groupVersion": api_version, "version": version });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": name,
        "versions": [version], "preferredVersion": version,
    })
}

/// No schemas, only what clients look for before they rely on the apiserver's own validation of fields
/// (kubectl's pkg/util/openapi and cli-runtime's `QueryParamVerifierV3`).
fn openapi(store: &Store, api_version: &str) -> Value {
    let path = |kind: ResourceKind| {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let operation = json!({
            "x-kubernetes-group-version-kind":
                { "group": group, "version": version, "kind": kind.name() },
            "parameters": [{ "name": "fieldValidation", "in": "query" }],
            "responses": {},
        });
        (format!("/{}", kind.resource()), json!({ "patch": operation }))
    };
    json!({
        "openapi": "3.0.0", "info": { "title": "lab", "version": "1" },
        "paths": kinds(store, api_version).map(path).collect::<Map<_, _>>(),
    })
}

fn kinds(store: &Store, api_version: &str) -> impl Iterator<Item = ResourceKind> {
    ResourceKind::all().filter(move |kind| match api_version {
        events::API_VERSION => *kind == ResourceKind::Event,
        _ => kind.api_version() == api_version && store.serves(*kind),
    })
}

fn resources(store: &Store, api_version: &str) -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version,
        "resources": kinds(store, api_version).flat_map(resource).collect::<Vec<_>>(),
    })
}

fn resource(kind: ResourceKind) -> impl Iterator<Item = Value> {
    let object = json!({
        "name": kind.resource(),
        "singularName": kind.name().to_lowercase(),
        "shortNames": kind.short_names(),
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
    [Some(object), kind.has_status().then_some(status)].into_iter().flatten()
}
