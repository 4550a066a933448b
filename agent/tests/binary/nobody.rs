//! An address at which nobody listens.

use tokio::net::TcpSocket;

/// A port that is taken, so that nobody else can get it, and refuses connections.
pub(crate) struct Nobody {
    pub(crate) url: String,
    _socket: TcpSocket,
}

impl Nobody {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        Self { url, _socket: socket }
    }
}
