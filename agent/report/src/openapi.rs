//! The OpenAPI 3.1 document of the API, generated from the types of this crate.

use crate::{Audit, ContainerDeath, Leak, List, ListQuery, PodTermination};
use utoipa::{
    OpenApi,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, OneOfBuilder, Type},
    },
};

/// Where the document is served.
pub const PATH: &str = "/api/v1/openapi.json";
pub const TERMINATIONS: &str = "/api/v1/terminations";
pub const DEATHS: &str = "/api/v1/deaths";
pub const LEAKS: &str = "/api/v1/leaks";
pub const AUDIT: &str = "/api/v1/audit";

/// The document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "coroner",
        description = "How long pods take to terminate on one node, how their containers died, and what leaked. \
                       Version 1 only grows: fields, values of enums and kinds of evidence may be added; ignore those that you do not know. docs/api.md has the promise.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"),
    ),
    paths(terminations, termination, deaths, leaks, audit)
)]
struct Document;

pub fn document() -> String {
    Document::openapi().to_pretty_json().unwrap_or_default()
}

/// Recent pod terminations, newest first. An updated report keeps its position.
#[utoipa::path(get, path = "/api/v1/terminations", params(ListQuery), responses(
    (status = 200, body = List<PodTermination>),
    (status = 400, description = "Invalid query. Every error is one line of text."),
    (status = 403, description = "The API is not served on this port, or the Host header is not an address."),
))]
#[allow(dead_code, reason = "for the document only")]
fn terminations() {}

/// One pod's termination.
#[utoipa::path(get, path = "/api/v1/terminations/{uid}", params(
    ("uid" = String, Path, description = "The pod's UID."),
    ("life" = Option<u32>, Query, description = "The incarnation of a static pod [default: the last one]."),
), responses(
    (status = 200, body = PodTermination),
    (status = 404, description = "The agent keeps no termination of this pod."),
))]
#[allow(dead_code, reason = "for the document only")]
fn termination() {}

/// Recent container deaths, newest first, including those in pods that still run.
#[utoipa::path(get, path = "/api/v1/deaths", params(ListQuery), responses(
    (status = 200, body = List<ContainerDeath>),
    (status = 400, description = "Invalid query."),
))]
#[allow(dead_code, reason = "for the document only")]
fn deaths() {}

/// Leaks, in the order in which they were confirmed, and the state of leak detection.
#[utoipa::path(get, path = "/api/v1/leaks", params(ListQuery), responses(
    (status = 200, body = List<Leak>),
    (status = 400, description = "Invalid query."),
))]
#[allow(dead_code, reason = "for the document only")]
fn leaks() {}

/// How each running container will respond to its stop signal.
#[utoipa::path(get, path = "/api/v1/audit", params(ListQuery), responses(
    (status = 200, body = List<Audit>),
    (status = 400, description = "Invalid query."),
))]
#[allow(dead_code, reason = "for the document only")]
fn audit() {}

/// See [`labels!`]: the first meaning is the set's.
#[doc(hidden)]
pub fn label_schema(
    meanings: &[&str],
    labels: impl Iterator<Item = &'static str>,
) -> RefOr<Schema> {
    let (set, values) = meanings.split_first().unwrap_or((&"", &[]));
    let schema = OneOfBuilder::new().description(Some(set.trim()));
    let of = |(label, meaning): (&'static str, &&str)| {
        let one = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([label]));
        one.description(Some(meaning.trim()))
    };
    labels.zip(values).map(of).fold(schema, OneOfBuilder::item).into()
}
