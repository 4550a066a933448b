//! Requests to answers.

use super::{
    ApiserverFault, discovery, events,
    failure::ApiFailure,
    kind::ResourceKind,
    patch, protobuf, rbac,
    request::{Query, Target, is_true},
    store::Store,
    stream::{self, ApiserverShared, WatchRequest},
    table::{self, Include},
};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Query as Parameters, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn router(shared: ApiserverShared) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

async fn answer(
    State(shared): State<ApiserverShared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match *shared.fault.borrow() {
        ApiserverFault::Unavailable => return ApiFailure::unavailable().into_response(),
        ApiserverFault::Garbage => return (StatusCode::OK, "{\"kind\":").into_response(),
        ApiserverFault::None | ApiserverFault::Expired => {}
    }
    if let Some(known) = discovery::answer(&shared.store, uri.path()) {
        return Json(known).into_response();
    }
    let target = Target::parse(uri.path()).filter(|target| shared.store.serves(target.kind));
    let Some(target) = target else {
        return ApiFailure::no_path(uri.path()).into_response();
    };
    let query = match Parameters::<Query>::try_from_uri(&uri) {
        Ok(Parameters(query)) => query,
        Err(error) => return ApiFailure::bad_request(error.body_text()).into_response(),
    };
    if query.dry_run.is_some() && method != Method::GET {
        return ApiFailure::bad_request("the lab's apiserver has no dry runs").into_response();
    }
    let verb = match (&method, &target.name) {
        (&Method::GET, None) if is_true(query.watch.as_deref()) => "watch",
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, _) => "delete",
        _ => return ApiFailure::method(method.as_str()).into_response(),
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let user = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    if let Err(failure) = rbac::authorize(&shared.store, user, verb, &target) {
        return failure.into_response();
    }
    let answered = match (verb, &target.name) {
        ("watch", _) => watch(shared, &target, &query, &headers),
        ("list", _) => list(&shared.store, &target, &query, &headers),
        ("get", Some(name)) => get(&shared.store, &target, name, &query, &headers),
        ("create", None) => create(&shared.store, &target, &headers, &body),
        ("update", Some(name)) => replace(&shared.store, &target, name, &headers, &body),
        ("patch", Some(name)) => patch(&shared.store, &target, name, &query, &headers, &body),
        ("delete", Some(name)) if !target.status => {
            delete(&shared.store, &target, name, &query, &headers, &body)
        }
        _ => Err(ApiFailure::method(method.as_str())),
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

type HandlerResult = Result<Response, ApiFailure>;

fn namespace(target: &Target) -> &str {
    target.namespace.as_deref().unwrap_or_default()
}

/// kubectl asks for tables by the Accept header.
fn as_table(headers: &HeaderMap, query: &Query) -> Option<Include> {
    let accept = headers.get(header::ACCEPT)?.to_str().ok()?;
    accept.contains("as=Table").then(|| Include::parse(query.include_object.as_deref()))
}

fn watch(
    shared: ApiserverShared,
    target: &Target,
    query: &Query,
    headers: &HeaderMap,
) -> HandlerResult {
    if target.newer {
        return Err(ApiFailure::method("WATCH")); // who watches Events asks core/v1
    }
    if is_true(query.send_initial_events.as_deref()) {
        // As a real one without the WatchList feature.
        return Err(ApiFailure::invalid(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the \
             WatchList feature gate is enabled",
        ));
    }
    let version = query.version()?;
    if *shared.fault.borrow() == ApiserverFault::Expired {
        return Err(ApiFailure::expired(version.unwrap_or_default(), u64::MAX));
    }
    let wanted = WatchRequest {
        kind: target.kind,
        selector: query.selector(target)?,
        version,
        bookmarks: is_true(query.allow_watch_bookmarks.as_deref()),
        timeout: query.timeout_seconds.map(Duration::from_secs),
        table: as_table(headers, query),
    };
    let lines = stream::watch(shared, wanted)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response())
}

fn list(store: &Store, target: &Target, query: &Query, headers: &HeaderMap) -> HandlerResult {
    let selector = query.selector(target)?;
    let (version, objects) = store.list(target.kind);
    let version = version.to_string();
    let mine: Vec<&Value> = objects
        .iter()
        .map(AsRef::as_ref)
        // Each API's selectors have its own names.
        .filter(|object| match target.newer {
            true => selector.matches(&target.shown(object)),
            false => selector.matches(object),
        })
        .collect();
    Ok(Json(match as_table(headers, query) {
        Some(include) => table::of(target.kind, &mine, &version, include, Timestamp::now()),
        None => json!({
            "kind": format!("{}List", target.kind.name()), "apiVersion": target.api_version(),
            "metadata": { "resourceVersion": version },
            "items": mine.into_iter().map(|object| target.shown(object)).collect::<Vec<_>>(),
        }),
    })
    .into_response())
}

fn get(
    store: &Store,
    target: &Target,
    name: &str,
    query: &Query,
    headers: &HeaderMap,
) -> HandlerResult {
    let object = store.get(target.kind, namespace(target), name)?;
    Ok(Json(match as_table(headers, query) {
        Some(include) => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            table::of(target.kind, &[&object], version, include, Timestamp::now())
        }
        None => target.shown(&object),
    })
    .into_response())
}

fn create(store: &Store, target: &Target, headers: &HeaderMap, body: &[u8]) -> HandlerResult {
    let Some(namespace) = &target.namespace else {
        return Err(ApiFailure::method("POST"));
    };
    add(store, target, namespace, object(read(headers, body)?)?)
}

fn add(store: &Store, target: &Target, namespace: &str, mut object: Value) -> HandlerResult {
    // Scenarios have Events on pods in namespaces that nobody created.
    if target.kind.is_namespaced() && target.kind != ResourceKind::Event {
        let found = store.get(ResourceKind::Namespace, "", namespace)?;
        if found["status"]["phase"] == "Terminating" {
            return Err(ApiFailure::terminating(namespace));
        }
    }
    if target.newer {
        object = events::to_core(object);
        events::check_new(namespace, &object)?;
    }
    let made = store.create(target.kind, namespace, object)?;
    Ok((StatusCode::CREATED, Json(target.shown(&made))).into_response())
}

fn replace(
    store: &Store,
    target: &Target,
    name: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> HandlerResult {
    let new = object(read(headers, body)?)?;
    let made =
        store.update(target.kind, namespace(target), name, |object| take(target, object, new))?;
    Ok(Json(target.shown(&made)).into_response())
}

const APPLY: &str = "application/apply-patch+yaml";

fn patch(
    store: &Store,
    target: &Target,
    name: &str,
    query: &Query,
    headers: &HeaderMap,
    body: &[u8],
) -> HandlerResult {
    // A strategic patch is taken as a merge patch: its lists replace instead of being merged.
    const MERGE: [&str; 2] =
        ["application/merge-patch+json", "application/strategic-merge-patch+json"];
    let applies = content_type(headers, &[APPLY]).is_ok();
    if !applies {
        content_type(headers, &MERGE)?;
    }
    // JSON is YAML, and what clients send.
    let wanted = object(parse(body)?)?;
    let manager = query.field_manager.as_deref().unwrap_or_default();
    if applies && manager.is_empty() {
        return Err(ApiFailure::invalid(
            "fieldManager: Required value: is required for apply patch",
        ));
    }
    let made = store.update(target.kind, namespace(target), name, |object| {
        let mut new = target.shown(object);
        if applies {
            patch::apply(&mut new, &wanted, manager);
        } else {
            patch::merge(&mut new, &wanted);
        }
        take(target, object, new)
    });
    match made {
        Err(failure) if applies && !target.status && failure.code == 404 => {
            let mut object = json!({ "metadata": { "name": name } });
            patch::apply(&mut object, &wanted, manager);
            add(store, target, namespace(target), object)
        }
        made => Ok(Json(target.shown(&made?)).into_response()),
    }
}

fn delete(
    store: &Store,
    target: &Target,
    name: &str,
    query: &Query,
    headers: &HeaderMap,
    body: &[u8],
) -> HandlerResult {
    let body = if body.is_empty() { Value::Null } else { read(headers, body)? };
    let options = query.delete_options(&body)?;
    let left = store.delete(target.kind, namespace(target), name, &options)?;
    // Pods come back as objects, whatever happened to them (`ReturnDeletedObject`).
    let gone = || store.get(target.kind, namespace(target), name).is_err();
    Ok(Json(if target.kind != ResourceKind::Pod && gone() {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {
                "name": name, "kind": target.kind.resource(), "uid": left["metadata"]["uid"],
            },
        })
    } else {
        left
    })
    .into_response())
}

/// Takes over what came in the form of the request's API.
fn take(target: &Target, object: &mut Value, mut new: Value) -> Result<(), ApiFailure> {
    if target.newer {
        new = events::to_core(new);
        events::check_change(object, &new)?;
    }
    change(object, new, target.status)
}

/// Takes over what a client may change: everything but the status, or the status alone, and never
/// what the apiserver itself keeps in the metadata.
fn change(object: &mut Value, mut new: Value, status: bool) -> Result<(), ApiFailure> {
    for field in ["uid", "resourceVersion"] {
        let (given, known) = (&new["metadata"][field], &object["metadata"][field]);
        if given.as_str().is_some_and(|text| !text.is_empty()) && given != known {
            return Err(ApiFailure::conflict(format!(
                "the object has been modified: {field} is {known}, not {given}; \
                 please apply your changes to the latest version and try again"
            )));
        }
    }
    if status {
        object["status"] = new["status"].take();
        return Ok(());
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        match &object["metadata"][field] {
            Value::Null => {
                if let Some(metadata) = new["metadata"].as_object_mut() {
                    metadata.remove(field);
                }
            }
            known => new["metadata"][field] = known.clone(),
        }
    }
    new["kind"] = object["kind"].clone();
    new["apiVersion"] = object["apiVersion"].clone();
    if !object["status"].is_null() {
        new["status"] = object["status"].clone();
    }
    *object = new;
    Ok(())
}

fn content_type(headers: &HeaderMap, known: &[&str]) -> Result<(), ApiFailure> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .map_or("application/json", |value| value.to_str().unwrap_or_default());
    let essence = given.split(';').next().unwrap_or_default().trim();
    if known.contains(&essence) { Ok(()) } else { Err(ApiFailure::media_type(given)) }
}

/// A body that is no patch.
fn read(headers: &HeaderMap, body: &[u8]) -> Result<Value, ApiFailure> {
    if content_type(headers, &[protobuf::MEDIA_TYPE]).is_ok() {
        return protobuf::decode(body);
    }
    content_type(headers, &["application/json"])?;
    parse(body)
}

fn parse(body: &[u8]) -> Result<Value, ApiFailure> {
    serde_json::from_slice(body).map_err(|error| ApiFailure::bad_request(error.to_string()))
}

fn object(value: Value) -> Result<Value, ApiFailure> {
    if value.is_object() && (value["metadata"].is_object() || value["metadata"].is_null()) {
        Ok(value)
    } else {
        Err(ApiFailure::bad_request("the body is no object with metadata"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_change_what_the_apiserver_keeps() {
        let mut object = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": { "name": "web", "uid": "u", "resourceVersion": "7" },
            "spec": { "nodeName": "n" }, "status": { "phase": "Running" },
        });
        let before = object.clone();
        let new = json!({
            "metadata": { "name": "other", "deletionTimestamp": "2026-11-21T00:00:00Z" },
            "spec": { "nodeName": "n" }, "status": { "phase": "Failed" },
        });
        change(&mut object, new.clone(), false).unwrap();
        assert_eq!(object, before);
        change(&mut object, new, true).unwrap();
        assert_eq!(object["status"]["phase"], "Failed");
        assert_eq!(object["metadata"], before["metadata"]);
        let stale = json!({ "metadata": { "resourceVersion": "6" } });
        assert_eq!(change(&mut object, stale, false).unwrap_err().code, 409);
    }
}
