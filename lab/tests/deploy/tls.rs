//! An apiserver by https, as clusters have it.

use anyhow::Result;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer},
};

/// Takes TLS off every connection and passes it on to `to`, which clients call `name`. What clients have to trust.
pub(crate) fn front(name: &str, listener: TcpListener, to: SocketAddr) -> Result<String> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())?;
    let tls = TlsAcceptor::from(Arc::new(tls));
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                // A client that goes away is no failure of the test.
                if let Ok(mut outside) = tls.accept(connection).await
                    && let Ok(mut inside) = TcpStream::connect(to).await
                {
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                }
            });
        }
    });
    Ok(cert.pem())
}
