//! The HTTP server: metrics and health for everybody, and the API for people on the node. It only reads.

pub mod addresses;
pub mod listener;
mod lists;
pub mod tls;

use crate::{
    linux::clock,
    outputs::{
        http::listener::Listener,
        metrics::{Metrics, OPENMETRICS},
        report::printable,
    },
    store::{
        audits::AuditStore,
        health::Health,
        history::{Filter, History, Kind},
        leaks::LeakStore,
    },
};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequestParts, Path, Query, Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{
            ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST, VARY,
            X_CONTENT_TYPE_OPTIONS,
        },
        request::Parts,
        uri::Authority,
    },
    middleware::{Next, from_fn, map_response},
    response::{IntoResponse, Response},
    routing::get,
};
use coroner_report::{BootTime, ContainerDeath, PodTermination, openapi};
use flate2::{Compression, write::GzEncoder};
use lists::{audits, leaks, list};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    future::Future,
    io::Write as _,
    net::IpAddr,
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

/// The socket on which `coroner run` serves the API on the node, and which the command line queries.
pub const DEFAULT_SOCKET: &str = "/run/coroner/coroner.sock";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// Anyone who reaches the port (`--listen`): metrics and health, which name no pod but those of leaks
    Network,
    /// Anyone who may forward a port to the agent (`--api-listen`): the API, too. A web page that a browser on
    /// that machine shows is refused by its Host header.
    Forwarded,
    /// This user on this node (`--socket`): the API, too.
    Node,
}

const INDEX: &str = "coroner: how long pods take to die on this node, and how their containers died

/metrics                     Prometheus
/healthz                     200 while the event loop runs
/readyz                      200 while every source of evidence works; else 503 and what to do
";

const INDEX_OF_API: &str = "\
/api/v1/terminations         recent pod terminations, newest first
/api/v1/terminations/UID     the last termination of one pod; ?life=N for an earlier instance
/api/v1/deaths               recent container deaths, including pods that still run, newest first
/api/v1/leaks                leaks, and the state of leak detection
/api/v1/audit                how each running container will respond to its stop signal; ?response=ignores
                             lists take ?namespace=NAMESPACE &pod=NAME &since=1h &limit=N,
                             and &after=CURSOR shows what has changed
/api/v1/openapi.json         all of this as OpenAPI 3.1
";

const NOT_HERE: &str = "the API is not served on this port because it names pods; use the unix \
                        socket on the node (coroner terminations), or kubectl port-forward to \
                        --api-listen";

/// No scrape is older than this: a flood of them costs no more than one a second.
const SCRAPE_AGE: Duration = Duration::from_secs(1);

/// What the event loop writes and the server reads. Locks are held for a few instructions, never
/// across an await.
#[derive(Debug)]
pub struct SharedState {
    pub health: Mutex<Health>,
    pub history: History,
    pub leaks: Mutex<LeakStore>,
    pub audits: Mutex<AuditStore>,
    pub metrics: Metrics,
    /// The last scrape of each form: text, OpenMetrics.
    pub scrape: Mutex<[Option<Scrape>; 2]>,
    pub observed: Observed,
    /// Since when, once it does.
    pub observed_since: OnceLock<BootTime>,
    /// Distinguishes the cursors of this run's leaks from those of another one.
    started: BootTime,
}

/// When it was computed; plain and compressed.
pub type Scrape = (BootTime, [Bytes; 2]);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observed {
    pub node: String,
    /// Boot of the node; empty if unknown.
    pub boot_id: String,
}

impl SharedState {
    pub fn new(health: Health, history: History, leaks: LeakStore, metrics: Metrics) -> Self {
        let (health, leaks) = (health.into(), leaks.into());
        Self {
            health,
            history,
            leaks,
            audits: Mutex::default(),
            metrics,
            scrape: Mutex::default(),
            observed: Observed::default(),
            observed_since: OnceLock::new(),
            started: clock::boot_now(),
        }
    }

    pub fn of(self, observed: Observed) -> Self {
        Self { observed, ..self }
    }
}

/// Serves until `stop` is done.
pub async fn serve(
    listener: impl Into<Listener>,
    shared: Arc<SharedState>,
    audience: Audience,
    stop: impl Future<Output = ()>,
) {
    let counted = Arc::clone(&shared);
    let dropped = move |why| counted.metrics.connection_dropped(why);
    listener.into().serve(router(shared, audience), dropped, stop).await;
}

pub fn router(shared: Arc<SharedState>, audience: Audience) -> Router {
    let api = match audience {
        Audience::Network => Router::new().route("/{*page}", get(not_here)),
        Audience::Forwarded | Audience::Node => Router::new()
            .route("/terminations", get(list::<PodTermination>))
            .route("/terminations/{uid}", get(termination))
            .route("/leaks", get(leaks))
            .route("/deaths", get(list::<ContainerDeath>))
            .route("/audit", get(audits))
            .route("/openapi.json", get(document)),
    };
    let router = Router::new()
        .route("/", get(async move || index(audience)))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .nest("/api/v1", api)
        .fallback(async || no(StatusCode::NOT_FOUND, "not found; see / for the list of pages"))
        .method_not_allowed_fallback(async || no(StatusCode::METHOD_NOT_ALLOWED, "only GET"))
        .with_state(shared);
    let router = match audience {
        Audience::Forwarded => router.layer(from_fn(only_by_address)),
        Audience::Network | Audience::Node => router,
    };
    router.layer(map_response(with_headers))
}

/// What is served is text or JSON, whatever a browser makes of the bytes.
async fn with_headers(mut response: Response) -> Response {
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A web page may have its own name resolve to 127.0.0.1, and so read what a port-forward serves there: the Host
/// header then bears that name (DNS rebinding).
async fn only_by_address(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    let is_address = authority.is_some_and(|authority| {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
    });
    if is_address {
        return next.run(request).await;
    }
    no(StatusCode::FORBIDDEN, "the Host header must be an IP address or localhost")
}

/// Part of it may be what was asked for: nothing of that gets at the asker's terminal.
fn no(status: StatusCode, why: impl AsRef<str>) -> Response {
    (status, printable(why.as_ref()) + "\n").into_response()
}

fn index(audience: Audience) -> String {
    match audience {
        Audience::Network => format!("{INDEX}\n/api/v1/*: {NOT_HERE}\n"),
        Audience::Forwarded | Audience::Node => format!("{INDEX}{INDEX_OF_API}"),
    }
}

async fn not_here() -> Response {
    no(StatusCode::FORBIDDEN, NOT_HERE)
}

async fn document() -> Response {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi::document().into());
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone()).into_response()
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

/// At most one scrape a second and form is computed, and all who ask in that second share its bytes.
async fn metrics(State(shared): State<Arc<SharedState>>, headers: HeaderMap) -> Response {
    let now = clock::boot_now();
    let asked = headers.get(ACCEPT).and_then(|asked| asked.to_str().ok());
    let is_open = asked.is_some_and(|asked| asked.contains("application/openmetrics-text"));
    let last = &mut shared.scrape.lock()[usize::from(is_open)];
    if last.as_ref().is_none_or(|(at, _)| now.since(*at) >= SCRAPE_AGE) {
        let health = shared.health.lock();
        let scrape = match is_open {
            true => shared.metrics.scrape_openmetrics(health),
            false => shared.metrics.scrape(health),
        };
        let scrape = scrape.map_err(|error| error.to_string());
        let forms = scrape.and_then(|text| {
            let compressed = gzip(text.as_bytes()).map_err(|error| error.to_string())?;
            Ok([text.into(), compressed.into()])
        });
        match forms {
            Ok(forms) => *last = Some((now, forms)),
            Err(error) => return no(StatusCode::INTERNAL_SERVER_ERROR, error),
        }
    }
    let [plain, compressed] = last.as_ref().map(|(_, forms)| forms.clone()).unwrap_or_default();
    let form = if is_open { OPENMETRICS } else { prometheus::TEXT_FORMAT };
    let content = [(CONTENT_TYPE, form), (VARY, "accept, accept-encoding")];
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok());
    let is_gzip =
        |coding: &str| coding.trim().split(';').next() == Some("gzip") && !coding.ends_with("q=0");
    if accepted.is_some_and(|accepted| accepted.split(',').any(is_gzip)) {
        return (content, [(CONTENT_ENCODING, "gzip")], compressed).into_response();
    }
    (content, plain).into_response()
}

fn gzip(text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
    compressed.write_all(text)?;
    compressed.finish()
}

async fn healthz(State(shared): State<Arc<SharedState>>) -> Response {
    match shared.health.lock().alive(clock::boot_now()) {
        Ok(()) => "ok\n".into_response(),
        Err(silent) => no(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the event loop has been stalled for {} s", silent.as_secs()),
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
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ReadyQuery>,
) -> Response {
    let checks = shared.health.lock().checks(clock::boot_now());
    let status = if checks.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if query.format == Format::Json {
        return (status, Json(checks)).into_response();
    }
    (status, checks.to_string()).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneQuery {
    life: Option<u32>,
}

async fn termination(
    State(shared): State<Arc<SharedState>>,
    Path(uid): Path<String>,
    Parameters(query): Parameters<OneQuery>,
) -> Response {
    let clock = clock::anchor();
    let (pod, limit) = (Some(uid.clone()), Some(1));
    let filter = Filter { pod, life: query.life, limit, ..Filter::default() };
    let found = async {
        let selected = shared.history.select(Kind::Termination, filter, clock).await?;
        shared.history.stored(selected.ids).await
    };
    match found.await {
        Ok(found) => match found.first().and_then(|one| lists::item(&shared, one, &clock)) {
            Some(report) => Json::<PodTermination>(report).into_response(),
            None => no(
                StatusCode::NOT_FOUND,
                format!(
                    "no termination of pod {uid} is available; --history-age and --history-size limit how many are \
                     kept"
                ),
            ),
        },
        Err(error) => no(StatusCode::SERVICE_UNAVAILABLE, error),
    }
}
