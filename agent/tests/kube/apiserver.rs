//! An apiserver inside the test: lists and gives pods and nodes as it is told to, and hands each
//! watch to the test, line by line.

use crate::server::{LOOK, Server};
use axum::{
    Router,
    body::Body,
    extract::{Path, Query, State},
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::mpsc,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// What the apiserver answers.
#[derive(Default)]
pub(crate) struct Script {
    /// What a list holds, and its resource version.
    pub(crate) pods: Vec<Value>,
    pub(crate) version: u64,
    /// Instead of these: the text of a list.
    pub(crate) list: Option<String>,
    /// The next lists fail with these.
    pub(crate) list_failures: VecDeque<u16>,
    /// The next watches fail with these.
    pub(crate) watch_failures: VecDeque<u16>,
    /// Pods beyond the first so many come with a second page.
    pub(crate) page: Option<usize>,
    /// What a GET gives, by path: a status, and a body that is an object or any text.
    pub(crate) gets: HashMap<String, (u16, Value)>,
    /// Field selectors of all lists and watches.
    pub(crate) selectors: Vec<String>,
    /// Every GET of one thing: its path, and its query.
    pub(crate) got: Vec<(String, String)>,
    /// The next Events are refused with these `Status` objects.
    pub(crate) event_failures: VecDeque<Value>,
    /// Events get no answer before this is false.
    pub(crate) holds_events: bool,
    /// Every Event that was sent: method, path and body.
    pub(crate) events: Vec<(String, String, Value)>,
}

pub(crate) struct OpenWatch {
    /// Its `resourceVersion`.
    pub(crate) from: String,
    lines: mpsc::Sender<io::Result<String>>,
}

impl OpenWatch {
    /// Sends a watch event.
    pub(crate) async fn event(&self, kind: &str, object: Value) {
        self.raw(&format!("{}\n", json!({ "type": kind, "object": object }))).await;
    }

    pub(crate) async fn raw(&self, text: &str) {
        self.lines.send(Ok(text.to_owned())).await.expect("the watch is open");
    }

    /// Cuts the connection, as a dying proxy does.
    pub(crate) async fn cut(self) {
        self.lines.send(Err(io::Error::other("cut"))).await.expect("the watch is open");
    }
}

/// The apiserver. What it knows outlives its server.
pub(crate) struct FakeApiserver {
    shared: FakeState,
    watches: mpsc::Receiver<OpenWatch>,
    pub(crate) address: SocketAddr,
    serving: Option<Server>,
    /// Keeps the port while nobody serves: nobody else can get it, and it refuses connections.
    _port: TcpSocket,
}

#[derive(Clone)]
struct FakeState {
    script: Arc<Mutex<Script>>,
    opened: mpsc::Sender<OpenWatch>,
}

impl FakeState {
    fn lock(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("no test panics while it holds this")
    }
}

impl FakeApiserver {
    pub(crate) fn start(script: Script) -> Self {
        let (opened, watches) = mpsc::channel(16);
        let port = TcpSocket::new_v4().expect("a socket");
        port.set_reuseaddr(true).expect("an option");
        port.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let mut me = Self {
            shared: FakeState { script: Arc::new(Mutex::new(script)), opened },
            watches,
            address: port.local_addr().expect("the address"),
            serving: None,
            _port: port,
        };
        me.serve();
        me
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.lock()
    }

    pub(crate) async fn watch(&mut self) -> OpenWatch {
        self.watches.recv().await.expect("this holds a sender")
    }

    /// Serves, always at the same port.
    pub(crate) fn serve(&mut self) {
        let socket = std::net::TcpListener::bind(self.address).expect("the port");
        socket.set_nonblocking(true).expect("the socket");
        let app = Router::new()
            .route("/api/v1/pods", get(pods))
            .route("/api/v1/{*path}", get(one))
            .fallback(any(event))
            .with_state(self.shared.clone());
        self.serving = Some(Server::start(async move {
            let listener = TcpListener::from_std(socket).expect("the listener");
            axum::serve(listener, app).await
        }));
    }

    /// Ends everything at once, connections included: when this returns, nobody serves.
    pub(crate) fn kill(&mut self) {
        self.serving.take().expect("it serves").kill();
    }
}

async fn pods(
    State(shared): State<FakeState>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let watch = query.get("watch").is_some_and(|watch| watch == "true");
    let answer = {
        let mut script = shared.lock();
        script.selectors.push(query.get("fieldSelector").cloned().unwrap_or_default());
        let failures = if watch { &mut script.watch_failures } else { &mut script.list_failures };
        match failures.pop_front() {
            Some(code) => Err(refusal(code)),
            None => {
                let size = script.page.unwrap_or(script.pods.len()).min(script.pods.len());
                let (first, second) = script.pods.split_at(size);
                let is_second = query.contains_key("continue");
                let more = if is_second || second.is_empty() { "" } else { "more" };
                Ok(json!({
                    "kind": "PodList",
                    "apiVersion": "v1",
                    "metadata": {
                        "resourceVersion": script.version.to_string(),
                        "continue": more,
                    },
                    "items": if is_second { second } else { first },
                }))
            }
        }
    };
    match answer {
        Err(refusal) => refusal,
        Ok(list) if !watch => {
            let text = shared.lock().list.clone();
            text.map_or_else(|| axum::Json(list).into_response(), IntoResponse::into_response)
        }
        Ok(_) => {
            let (lines, body) = mpsc::channel(16);
            let from = query.get("resourceVersion").cloned().unwrap_or_default();
            let _ = shared.opened.send(OpenWatch { from, lines }).await;
            Body::from_stream(ReceiverStream::new(body).map(|line| line)).into_response()
        }
    }
}

/// A GET of one thing. What the script does not know is not found, in the apiserver's own words.
async fn one(
    State(shared): State<FakeState>,
    Path(path): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let mut script = shared.lock();
    let query: Vec<String> =
        query.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    script.got.push((path.clone(), query.join("&")));
    let name = path.rsplit('/').next().unwrap_or_default();
    let missing = (404, not_found(name));
    let (code, body) = script.gets.get(&path).unwrap_or(&missing).clone();
    let status = StatusCode::from_u16(code).expect("a status");
    match body {
        Value::String(text) => (status, text).into_response(),
        object => (status, axum::Json(object)).into_response(),
    }
}

/// Anything that is neither a list nor a GET: what makes an Event.
async fn event(
    State(shared): State<FakeState>,
    method: Method,
    uri: Uri,
    body: String,
) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    let refused = {
        let mut script = shared.lock();
        script.events.push((method.to_string(), uri.path().to_owned(), body.clone()));
        script.event_failures.pop_front()
    };
    while shared.lock().holds_events {
        tokio::time::sleep(LOOK).await;
    }
    match refused {
        Some(status) => {
            let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            let code = code.and_then(|code| StatusCode::from_u16(code).ok()).expect("a status");
            (code, axum::Json(status)).into_response()
        }
        None => axum::Json(body).into_response(),
    }
}

/// How the apiserver says that there is no such thing.
pub(crate) fn not_found(name: &str) -> Value {
    let mut status = status_object(404);
    status["reason"] = json!("NotFound");
    status["details"] = json!({ "name": name, "kind": "things" });
    status
}

fn refusal(code: u16) -> Response {
    let status = StatusCode::from_u16(code).expect("a status");
    (status, axum::Json(status_object(code))).into_response()
}

/// A `Status`, as errors come in answers and in watches.
pub(crate) fn status_object(code: u16) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("refused with {code}"),
        "reason": if code == 410 { "Expired" } else { "Forbidden" },
        "code": code,
    })
}
