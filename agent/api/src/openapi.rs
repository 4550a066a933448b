//! The API as a document of OpenAPI 3.1, from the types of this crate.

use crate::{
    Event, List, ListQuery,
    leaks::Leak,
    terminations::{Death, Termination},
};
use utoipa::OpenApi;

/// Where the document is served.
pub const PATH: &str = "/api/v1/openapi.json";
/// The list of terminations.
pub const TERMINATIONS: &str = "/api/v1/terminations";
/// The list of deaths.
pub const DEATHS: &str = "/api/v1/deaths";
/// The list of leaks.
pub const LEAKS: &str = "/api/v1/leaks";

/// The document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "coroner",
        description = "How long pods take to terminate on one node, how their containers died, and what leaked. \
                       Version 1 only grows: fields, values of enums, kinds of evidence and kinds of watch lines \
                       may be added; ignore what you do not know. docs/api.md has the promise.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"),
    ),
    paths(terminations, termination, deaths, leaks)
)]
struct Document;

/// The document as JSON.
pub fn document() -> String {
    Document::openapi().to_pretty_json().unwrap_or_default()
}

/// Recent pod terminations, newest first. A report that is updated keeps its place.
#[utoipa::path(get, path = "/api/v1/terminations", params(ListQuery), responses(
    (status = 200, description = "A page, or with `watch` one event per line.",
        content((List<Termination> = "application/json"), (Event<Termination> = "application/jsonl"))),
    (status = 400, description = "The query is wrong. All errors are one line of text."),
    (status = 403, description = "The API is not served on this port, or the Host header is no address."),
    (status = 410, description = "`continue` is of an earlier run of the agent: start again."),
))]
#[allow(dead_code, reason = "for the document only")]
fn terminations() {}

/// One pod's termination.
#[utoipa::path(get, path = "/api/v1/terminations/{uid}", params(
    ("uid" = String, Path, description = "The pod's UID."),
    ("life" = Option<u32>, Query, description = "Which incarnation of a static pod; the last one if not given."),
), responses(
    (status = 200, body = Termination),
    (status = 404, description = "None of this pod is kept."),
))]
#[allow(dead_code, reason = "for the document only")]
fn termination() {}

/// Recent container deaths, of pods that still run too, newest first.
#[utoipa::path(get, path = "/api/v1/deaths", params(ListQuery), responses(
    (status = 200, description = "A page, or with `watch` one event per line.",
        content((List<Death> = "application/json"), (Event<Death> = "application/jsonl"))),
    (status = 400, description = "The query is wrong."),
    (status = 410, description = "`continue` is of an earlier run of the agent: start again."),
))]
#[allow(dead_code, reason = "for the document only")]
fn deaths() {}

/// Leaks, in the order in which they were confirmed, and the state of leak detection.
#[utoipa::path(get, path = "/api/v1/leaks", params(ListQuery), responses(
    (status = 200, description = "A page, or with `watch` one event per line.",
        content((List<Leak> = "application/json"), (Event<Leak> = "application/jsonl"))),
    (status = 400, description = "The query is wrong."),
    (status = 410, description = "`continue` is of an earlier run of the agent: start again."),
))]
#[allow(dead_code, reason = "for the document only")]
fn leaks() {}
