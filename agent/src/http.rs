//! The HTTP server: metrics, health, and the last terminations. It only reads.

use crate::{
    accept::Listener, clock, health::Health, history::History, leaks::Standing, metrics::Metrics,
    report::printable,
};
use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, Query, State},
    http::{StatusCode, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use coroner_core::{
    ids::PodUid,
    observation::{ContainerDeath, PodRef, PodTermination},
};
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Whether pods are named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// They are.
    Shown,
    /// The pages that would are refused (--hide-identity).
    Hidden,
}

const HIDDEN: &str = "this agent names no pod over HTTP (--hide-identity): its log does, and on the \
                      node `coroner leaks --standalone` looks for itself";

const INDEX: &str = "coroner: how long pods take to die on this node, and how their containers died

/metrics                     Prometheus
/healthz                     200 while the event loop turns
/readyz                      200 while every source of evidence works; else 503 and what to do
/api/v1/terminations         recent pod terminations, newest first
                             ?namespace=NAMESPACE &pod=NAME &limit=N
/api/v1/terminations/UID     the last termination of one pod; ?life=N for an earlier life
/api/v1/leaks                what was left behind, the oldest first, and whether that can be judged
                             ?namespace=NAMESPACE &pod=NAME &limit=N
/api/v1/deaths               recent deaths of containers, also in pods that go on, newest first
                             ?namespace=NAMESPACE &pod=NAME &limit=N
";

/// What the event loop writes and the server reads. Locks are held for a few instructions, never
/// across an await.
#[derive(Debug)]
pub struct Shared {
    /// The agent's own state.
    pub health: Mutex<Health>,
    /// The last terminations.
    pub history: Mutex<History>,
    /// The leaks that are certain.
    pub leaks: Mutex<Standing>,
    /// The metrics.
    pub metrics: Metrics,
}

/// Locks, also after a panic elsewhere: these values are whole between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until `stop` is done.
pub async fn serve(
    listener: impl Into<Listener>,
    shared: Arc<Shared>,
    identity: Identity,
    stop: impl Future<Output = ()>,
) {
    listener.into().serve(router(shared, identity), stop).await;
}

/// The routes.
pub fn router(shared: Arc<Shared>, identity: Identity) -> Router {
    let pods = match identity {
        Identity::Shown => Router::new()
            .route("/terminations", get(terminations))
            .route("/terminations/{uid}", get(termination))
            .route("/leaks", get(leaks))
            .route("/deaths", get(deaths)),
        Identity::Hidden => Router::new().route("/{*page}", get(hidden)),
    };
    Router::new()
        .route("/", get(async move || index(identity)))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .nest("/api/v1", pods)
        .fallback(async || no(StatusCode::NOT_FOUND, "no such page; / lists what there is"))
        .method_not_allowed_fallback(async || no(StatusCode::METHOD_NOT_ALLOWED, "only GET"))
        .with_state(shared)
}

/// Part of it may be what was asked for: nothing of that gets at the asker's terminal.
fn no(status: StatusCode, why: impl AsRef<str>) -> Response {
    (status, printable(why.as_ref()) + "\n").into_response()
}

fn index(identity: Identity) -> String {
    match identity {
        Identity::Shown => INDEX.to_owned(),
        Identity::Hidden => format!("{INDEX}\n/api/v1/* is refused: {HIDDEN}\n"),
    }
}

async fn hidden() -> Response {
    no(StatusCode::FORBIDDEN, HIDDEN)
}

/// The query, refused in plain words.
struct Parameters<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let query = Query::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Self(query))
            .map_err(|error| no(StatusCode::BAD_REQUEST, error.body_text()))
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let scrape = shared.metrics.scrape(&lock(&shared.health));
    match scrape {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => no(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    match lock(&shared.health).alive(clock::boot_now()) {
        Ok(()) => "ok\n".into_response(),
        Err(silent) => no(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the event loop has not ticked for {} s", silent.as_secs()),
        ),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadyQuery {
    #[serde(default)]
    format: Format,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Text,
    Json,
}

async fn readyz(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<ReadyQuery>,
) -> Response {
    let readiness = lock(&shared.health).readiness(clock::boot_now());
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if query.format == Format::Json {
        return (status, Json(readiness)).into_response();
    }
    (status, readiness.to_string()).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    namespace: Option<String>,
    pod: Option<String>,
    limit: Option<usize>,
}

impl ListQuery {
    fn wants(&self, pod: Option<&PodRef>) -> bool {
        let is = |wanted: &Option<String>, of: fn(&PodRef) -> &String| {
            wanted.as_ref().is_none_or(|wanted| pod.is_some_and(|pod| wanted == of(pod)))
        };
        is(&self.namespace, |pod| &pod.namespace) && is(&self.pod, |pod| &pod.name)
    }
}

async fn deaths(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let found: Vec<Arc<ContainerDeath>> = lock(&shared.history)
        .deaths()
        .filter(|death| query.wants(death.pod.as_ref()))
        .take(query.limit.unwrap_or(usize::MAX))
        .cloned()
        .collect();
    Json(found).into_response()
}

async fn leaks(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let mut list = lock(&shared.leaks).list();
    list.leaks.retain(|leak| query.wants(leak.pod.as_ref()));
    list.leaks.truncate(query.limit.unwrap_or(usize::MAX));
    Json(list).into_response()
}

async fn terminations(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let found: Vec<Arc<PodTermination>> = lock(&shared.history)
        .newest_first()
        .filter(|kept| query.wants(Some(&kept.pod)))
        .take(query.limit.unwrap_or(usize::MAX))
        .cloned()
        .collect();
    Json(found).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneQuery {
    life: Option<u32>,
}

async fn termination(
    State(shared): State<Arc<Shared>>,
    Path(uid): Path<String>,
    Parameters(query): Parameters<OneQuery>,
) -> Response {
    let found = lock(&shared.history).life(&PodUid::new(&uid), query.life).cloned();
    match found {
        Some(account) => Json(account).into_response(),
        None => no(
            StatusCode::NOT_FOUND,
            format!("no termination of pod {uid} is kept; --history says how many are"),
        ),
    }
}
