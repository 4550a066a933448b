//! An agent's API inside the test.

use coroner::{
    linux::clock,
    outputs::{
        http::{self, Audience, Observed, SharedState, listener::Listener, tls::Certificate},
        metrics::Metrics,
    },
    store::{health::Health, history::History, leaks::LeakStore},
};
use coroner_report::{Leak, PodTermination};
use std::{path::PathBuf, sync::Arc};
use tempfile::TempDir;

/// What an agent of node n1 serves that has just started, and has these.
pub(crate) fn state(history: History, leaks: LeakStore) -> Arc<SharedState> {
    let health = Health::new(true, clock::boot_now());
    let state = SharedState::new(health, history, leaks, Metrics::new().unwrap());
    let state = state.of(Observed { node: "n1".into(), boot_id: "b\"1".into() });
    state.observed_since.get_or_init(clock::boot_now);
    Arc::new(state)
}

/// The report, and the leak, that the unit tests pin as the API's form.
pub(crate) fn sample() -> PodTermination {
    serde_json::from_str(include_str!("../../report/tests/golden/termination.json")).unwrap()
}

pub(crate) fn leak() -> Leak {
    serde_json::from_str(include_str!("../../report/tests/golden/leak.json")).unwrap()
}

/// The socket of an agent that serves until the test ends.
pub(crate) struct ServedSocket {
    path: PathBuf,
    _folder: TempDir,
}

impl ServedSocket {
    pub(crate) fn of(shared: Arc<SharedState>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coroner.sock");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        spawn(shared, move || tokio::net::UnixListener::from_std(socket).unwrap().into());
        Self { path, _folder: folder }
    }

    /// The flag that names it.
    pub(crate) fn flag(&self) -> String {
        format!("--socket {}", self.path.display())
    }
}

/// Serves on TCP until the test ends; the port.
pub(crate) fn serve_tls(shared: Arc<SharedState>, certificate: Arc<Certificate>) -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    spawn(shared, move || {
        let mut listener = Listener::from(tokio::net::TcpListener::from_std(socket).unwrap());
        listener.tls = Some(certificate);
        listener
    });
    port
}

fn spawn(shared: Arc<SharedState>, listener: impl FnOnce() -> Listener + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            http::serve(listener(), shared, Audience::Node, std::future::pending()).await
        })
    });
}
