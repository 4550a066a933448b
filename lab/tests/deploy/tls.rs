//! An apiserver by https, as clusters have it.

use anyhow::Result;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer},
};

/// Takes TLS off every connection and passes it on; takes no more once it is dropped.
pub(crate) struct TlsFront {
    /// Where connections are taken.
    pub(crate) address: SocketAddr,
    /// What clients have to trust.
    pub(crate) certificate: String,
    task: JoinHandle<()>,
}

impl TlsFront {
    /// On a free port of this machine, for what is called `name` and listens at `to`.
    pub(crate) async fn of(name: &str, to: SocketAddr) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())?;
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    // A client that goes away is no failure of the test: it says what it misses.
                    if let Ok(mut outside) = tls.accept(connection).await
                        && let Ok(mut inside) = TcpStream::connect(to).await
                    {
                        let _ = copy_bidirectional(&mut outside, &mut inside).await;
                    }
                });
            }
        });
        Ok(Self { address, certificate: cert.pem(), task })
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.task.abort();
    }
}
