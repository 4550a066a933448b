//! An agent's API inside the test.

use coroner::outputs::http::{self, Audience, SharedState, listener::Listener, tls::Certificate};
use std::{net::TcpListener, sync::Arc};

/// Serves until the test ends; the port.
pub(crate) fn serve(
    shared: Arc<SharedState>,
    audience: Audience,
    certificate: Option<Arc<Certificate>>,
) -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = tokio::net::TcpListener::from_std(socket).unwrap();
            let mut listener = Listener::from(socket);
            listener.tls = certificate;
            http::serve(listener, shared, audience, std::future::pending()).await
        })
    });
    port
}
