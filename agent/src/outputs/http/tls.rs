//! TLS for the HTTP server: a certificate and its key, from files that are read again when cert-manager or the kubelet
//! changes them.
//!
//! Neither an error nor a log shows what a file holds: a file of another kind, given by mistake, may hold a secret.

use anyhow::Context;
use parking_lot::RwLock;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tracing::{info, warn};

/// How often the files are read. A kubelet brings a changed Secret within a minute or so.
const READ_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// PEM: the server's certificate, then those of its issuers.
    pub cert: PathBuf,
    /// PEM: its private key (PKCS#8, PKCS#1 or SEC1), not encrypted.
    pub key: PathBuf,
}

impl TlsFiles {
    /// The directories of the files, in which a change shows.
    pub fn directories(&self) -> Vec<PathBuf> {
        // A link leads to another directory, perhaps.
        let files = [&self.cert, &self.key];
        let files =
            files.into_iter().flat_map(|file| [Some(file.clone()), fs::canonicalize(file).ok()]);
        let parents = files.flatten().filter_map(|file| Some(file.parent()?.to_owned()));
        parents.map(|parent| Path::new(".").join(parent)).collect()
    }

    /// The parser's own errors would show lines of the files.
    fn read(&self) -> anyhow::Result<(Vec<CertificateDer<'static>>, ServerConfig)> {
        let read = |flag, file: &Path| {
            fs::read(file)
                .with_context(|| format!("--{flag} {}: cannot read the file", file.display()))
        };
        let (cert, key) = (read("tls-cert", &self.cert)?, read("tls-key", &self.key)?);
        let chain = CertificateDer::pem_slice_iter(&cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.ok().filter(|chain| !chain.is_empty()).with_context(|| {
            format!(
                "--tls-cert {} contains no certificate; use a PEM file with the server's \
                 certificate followed by its intermediates",
                self.cert.display()
            )
        })?;
        let key = PrivateKeyDer::from_pem_slice(&key).ok().with_context(|| {
            format!(
                "--tls-key {} contains no private key; use a PEM file with an unencrypted key \
                 (PKCS#8, PKCS#1 or SEC1)",
                self.key.display()
            )
        })?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key)
            .with_context(|| {
                format!(
                    "cannot use --tls-cert {} with --tls-key {}; use a matching pair of RSA, ECDSA \
                     or Ed25519",
                    self.cert.display(),
                    self.key.display()
                )
            })?;
        Ok((chain, config))
    }
}

/// A certificate that connections are answered with, always the last good one of its files.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    current: RwLock<(Vec<CertificateDer<'static>>, Arc<ServerConfig>)>,
}

impl Certificate {
    pub fn open(files: TlsFiles) -> anyhow::Result<Arc<Self>> {
        let (chain, config) = files.read()?;
        Ok(Arc::new(Self { files, current: RwLock::new((chain, config.into())) }))
    }

    /// Reads it again; whether it has changed. After an error, the one before stays.
    pub fn refresh(&self) -> anyhow::Result<bool> {
        let (chain, config) = self.files.read()?;
        let mut current = self.current.write();
        let has_changed = current.0 != chain;
        if has_changed {
            *current = (chain, config.into());
        }
        Ok(has_changed)
    }

    /// Answers one connection, TLS 1.2 or 1.3.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().1))
    }

    /// Reads the files for ever, and logs a change once.
    pub async fn follow(self: Arc<Self>) {
        let mut failure = None;
        loop {
            tokio::time::sleep(READ_EVERY).await;
            let this = Arc::clone(&self);
            let Ok(read) = tokio::task::spawn_blocking(move || this.refresh()).await else {
                return; // the runtime ends
            };
            let error = read.as_ref().err().map(|error| format!("{error:#}"));
            if read.is_ok_and(|has_changed| has_changed) {
                info!(cert = %self.files.cert.display(), "TLS certificate reloaded");
            }
            if let Some(error) = error.as_ref().filter(|_| error != failure) {
                warn!(error, "TLS certificate reload failed; keeping the current one");
            }
            failure = error;
        }
    }
}
