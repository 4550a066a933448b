//! Requests to answers.

use super::{
    AGENTS_RULES, events,
    failure::ApiFailure,
    store::{DeleteOptions, Kind, Store},
    watch::{self, WatchRequest},
};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Query as Parameters, State},
    http::{HeaderMap, Method, Uri, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync;

#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) available: sync::watch::Receiver<bool>,
    pub(super) bookmarks: Duration,
}

pub(super) fn router(shared: Shared) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

/// A path below /api/v1 or /apis/events.k8s.io/v1. Subresources (eviction, exec, portforward) have a place in `parse`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Target {
    kind: Kind,
    /// `None`: all namespaces.
    namespace: Option<String>,
    name: Option<String>,
    /// Of events.k8s.io/v1.
    is_newer: bool,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let newer = path.strip_prefix("/apis/events.k8s.io/v1/");
        let is_newer = newer.is_some();
        let parts: Vec<&str> =
            newer.or_else(|| path.strip_prefix("/api/v1/"))?.split('/').collect();
        let (namespace, rest) = match parts.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (resource, name) = match rest {
            [resource] => (resource, None),
            [resource, name] => (resource, Some(*name)),
            _ => return None,
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.resource() == *resource)?;
        // A name needs its namespace, and an object without one is not found in one.
        let is_complete = match kind.is_namespaced() {
            true => name.is_none() || namespace.is_some(),
            false => namespace.is_none(),
        };
        let [namespace, name] = [namespace, name].map(|part| part.map(str::to_owned));
        let is_served = is_complete && (!is_newer || kind == Kind::Event);
        is_served.then_some(Self { kind, namespace, name, is_newer })
    }

    /// As a rule of a role names it: with its group, if that is not the core's.
    fn resource(&self) -> String {
        format!("{}{}", self.kind.resource(), if self.is_newer { ".events.k8s.io" } else { "" })
    }

    fn shown(&self, object: &Value) -> Value {
        if self.is_newer { events::from_core(object.clone()) } else { object.clone() }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Query {
    watch: Option<String>,
    resource_version: Option<String>,
    field_selector: Option<String>,
    allow_watch_bookmarks: Option<String>,
    timeout_seconds: Option<u64>,
}

/// The terms of a field selector, `path=value`, and the namespace of the request.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector(Vec<(String, String)>);

impl Selector {
    fn new(target: &Target, fields: Option<&str>) -> Result<Self, ApiFailure> {
        let term = |text: &str| {
            let (path, value) = text.split_once('=')?;
            // Of an Event (pkg/registry/core/event, `ToSelectableFields`).
            let path = if path == "source" { "source/component" } else { path };
            Some((format!("/{}", path.replace('.', "/")), value.trim_start_matches('=').to_owned()))
        };
        let all = fields.unwrap_or_default().split(',').filter(|text| !text.is_empty());
        let terms: Option<Vec<_>> = all.map(term).collect();
        let mut terms =
            terms.ok_or_else(|| ApiFailure::bad_request("unable to parse the field selector"))?;
        terms.extend(target.namespace.clone().map(|of| ("/metadata/namespace".to_owned(), of)));
        Ok(Self(terms))
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let is = |(path, wanted): &(String, String)| {
            object.pointer(path).and_then(Value::as_str).unwrap_or_default() == wanted
        };
        self.0.iter().all(is)
    }
}

async fn answer(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    handle(shared, &method, &uri, &headers, &body).unwrap_or_else(IntoResponse::into_response)
}

fn handle(
    shared: Shared,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiFailure> {
    if !*shared.available.borrow() {
        return Err(ApiFailure::unavailable());
    }
    let target =
        Target::parse(uri.path()).ok_or_else(|| ApiFailure::not_found("path", uri.path()))?;
    let Parameters(query) = Parameters::<Query>::try_from_uri(uri)
        .map_err(|error| ApiFailure::bad_request(error.body_text()))?;
    let is_true = |value: &Option<String>| matches!(value.as_deref(), Some("true" | "1"));
    let verb = match (method, &target.name) {
        (&Method::GET, None) if is_true(&query.watch) => "watch",
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, None) => "create",
        (&Method::PATCH, Some(_)) => "patch",
        (&Method::DELETE, Some(_)) => "delete",
        _ => return Err(ApiFailure::method(method.as_str())),
    };
    let resource = target.resource();
    let is_agent = headers.contains_key(header::AUTHORIZATION);
    if is_agent && !AGENTS_RULES.contains(&(verb, &resource)) {
        return Err(ApiFailure::forbidden(verb, &resource));
    }
    let (store, selector) =
        (&shared.store, Selector::new(&target, query.field_selector.as_deref())?);
    let namespace = target.namespace.as_deref().unwrap_or_default();
    let name = target.name.as_deref().unwrap_or_default();
    let object = match verb {
        "watch" => {
            let wanted = WatchRequest {
                kind: target.kind,
                selector,
                version: version(query.resource_version.as_deref())?,
                bookmarks: is_true(&query.allow_watch_bookmarks).then_some(shared.bookmarks),
                timeout: query.timeout_seconds.map(Duration::from_secs),
            };
            let lines = watch::watch(shared.store, shared.available, wanted)?;
            let json = [(header::CONTENT_TYPE, "application/json")];
            return Ok((json, Body::from_stream(lines)).into_response());
        }
        "list" => {
            let (version, objects) = store.list(target.kind);
            let mine = objects.iter().filter(|object| selector.matches(object));
            let items: Vec<Value> = mine.map(|object| target.shown(object)).collect();
            let api = if target.is_newer { events::GROUP_VERSION } else { "v1" };
            return Ok(Json(json!({
                "kind": format!("{}List", target.kind.name()), "apiVersion": api,
                "metadata": { "resourceVersion": version.to_string() }, "items": items,
            }))
            .into_response());
        }
        "get" => store.get(target.kind, namespace, name)?,
        "create" => {
            let mut object = read(body)?;
            if target.kind.is_namespaced() {
                object["metadata"]["namespace"] = json!(namespace);
            }
            if target.is_newer {
                object = events::to_core(object);
                events::validate(&object)?;
            }
            store.create(target.kind, object)?
        }
        "patch" => store.update(target.kind, namespace, name, |object| {
            let patch = read(body)?;
            merge(object, if target.is_newer { events::to_core(patch) } else { patch });
            if target.is_newer { events::validate(object) } else { Ok(()) }
        })?,
        _ => {
            let body = if body.is_empty() { Value::Null } else { read(body)? };
            let grace = body["gracePeriodSeconds"].as_i64();
            let uid = body["preconditions"]["uid"].as_str().map(str::to_owned);
            store.delete(target.kind, namespace, name, &DeleteOptions { grace, uid })?
        }
    };
    Ok(Json(target.shown(&object)).into_response())
}

/// The version to watch from; `None`: from now.
fn version(text: Option<&str>) -> Result<Option<u64>, ApiFailure> {
    match text {
        None | Some("" | "0") => Ok(None),
        Some(text) => {
            let wrong = |_| ApiFailure::bad_request(format!("{text:?}: invalid resource version"));
            text.parse().map(Some).map_err(wrong)
        }
    }
}

fn read(body: &[u8]) -> Result<Value, ApiFailure> {
    serde_json::from_slice(body).map_err(|error| ApiFailure::bad_request(error.to_string()))
}

/// JSON merge patch, RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(fields) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().map(|object| object.remove(&name));
        } else {
            merge(&mut target[name], value);
        }
    }
}
