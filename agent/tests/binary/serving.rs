//! An agent's API inside the test.

use coroner::outputs::http::{self, Audience, SharedState, listener::Listener, tls::Certificate};
use std::{path::PathBuf, sync::Arc};
use tempfile::TempDir;

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
