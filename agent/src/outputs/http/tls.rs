//! TLS for the HTTP server: a certificate, its key and, if clients need certificates, their CAs, from files that are
//! read again when cert-manager or the kubelet changes them.
//!
//! Neither an error nor a log shows what a file holds: a file of another kind, given
//! by mistake, may hold a secret.

use parking_lot::{Mutex, RwLock};
use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{
    self, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tracing::{info, warn};

/// How often the files are looked at. A kubelet brings a changed Secret within a minute or so.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// No chain of certificates is longer, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Where a certificate and its key are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// PEM: the server's certificate, then those of its issuers.
    pub cert: PathBuf,
    /// PEM: its private key (PKCS#8, PKCS#1 or SEC1), not encrypted.
    pub key: PathBuf,
    /// PEM: the CAs that sign the clients' certificates; `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// The directories of the files, in which a change shows.
    pub fn directories(&self) -> Vec<PathBuf> {
        let files = [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()];
        // A link leads to another directory, perhaps.
        let meant = files.into_iter().flatten();
        let meant = meant.flat_map(|file| [Some(file.clone()), std::fs::canonicalize(file).ok()]);
        let parents = meant.flatten().filter_map(|file| Some(file.parent()?.to_owned()));
        parents.map(|parent| Path::new(".").join(parent)).collect()
    }
}

/// Why a certificate cannot be used. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("--{flag} {}: cannot read the file: {error}", path.display())]
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Not a certificate.
    #[error(
        "--tls-cert {} contains no certificate; use a PEM file with the server's certificate \
         followed by its intermediates",
        .0.display()
    )]
    NoCertificate(PathBuf),
    /// Not a key.
    #[error(
        "--tls-key {} contains no private key; use a PEM file with an unencrypted key (PKCS#8, \
         PKCS#1 or SEC1)",
        .0.display()
    )]
    NoKey(PathBuf),
    /// A key of a kind that cannot be used.
    #[error("--tls-key {}: unsupported key type; use RSA, ECDSA or Ed25519", .0.display())]
    UnusableKey(PathBuf),
    /// Key and certificate are not of one pair.
    #[error(
        "--tls-key {} does not match the first certificate in --tls-cert {}; use a matching pair",
        .0.key.display(), .0.cert.display()
    )]
    NoPair(TlsFiles),
    /// No CA that clients' certificates can be verified with.
    #[error(
        "--tls-client-ca {} contains no CA certificate, or one that cannot be read; use a PEM file \
         with the CAs that sign the clients' certificates",
        .0.display()
    )]
    NoClientCa(PathBuf),
    /// TLS as such cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Setup(#[source] rustls::Error),
}

/// A certificate that connections are answered with, always the last good one of its files.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<ServerConfig>>,
    /// Of what `current` was made, as a hash, so that the key is not kept twice.
    made_of: Mutex<u64>,
    hasher: RandomState,
}

impl Certificate {
    /// Reads it for the first time.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let (provider, hasher) = (Arc::new(ring::default_provider()), RandomState::new());
        let contents = Contents::read(&files)?;
        let config = contents.config(&files, &provider)?;
        let made_of = Mutex::new(contents.hash(&hasher));
        let current = RwLock::new(Arc::new(config));
        Ok(Arc::new(Self { files, provider, current, made_of, hasher }))
    }

    /// Reads it again; whether it has changed. Where it cannot be used, the one before stays.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        let contents = Contents::read(&self.files)?;
        let hash = contents.hash(&self.hasher);
        let mut made_of = self.made_of.lock();
        if hash == *made_of {
            return Ok(false);
        }
        let config = Arc::new(contents.config(&self.files, &self.provider)?);
        *self.current.write() = config;
        *made_of = hash;
        Ok(true)
    }

    /// Answers one connection, TLS 1.2 or 1.3.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read()))
    }

    /// Clients need a certificate.
    pub(super) fn verifies_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Looks at the files for ever, and says on the log what became of a change.
    pub async fn follow(self: Arc<Self>) {
        let mut trouble = Trouble::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || this.refresh()).await;
            let cert = self.files.cert.display();
            match looked {
                Ok(Ok(changed)) => {
                    trouble = Trouble::default();
                    if changed {
                        info!(%cert, "TLS certificate reloaded");
                    }
                }
                Ok(Err(error)) => {
                    if trouble.is_news(&error.to_string()) {
                        warn!(%error, "TLS certificate reload failed; keeping the current one");
                    }
                }
                Err(_) => return, // the runtime ends
            }
        }
    }
}

/// What went wrong at the last look.
#[derive(Default, Debug)]
struct Trouble {
    said: String,
    times: u32,
}

impl Trouble {
    /// The same for the second time, and no more. Files that are replaced one by one are no pair in
    /// between, which is no trouble yet.
    fn is_news(&mut self, said: &str) -> bool {
        if self.said == said {
            self.times = self.times.saturating_add(1);
        } else {
            *self = Self { said: said.to_owned(), times: 1 };
        }
        self.times == 2
    }
}

/// What stands in the files.
#[derive(Hash)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let client_ca = files.client_ca.as_deref().map(|file| read("tls-client-ca", file));
        let (cert, key) = (read("tls-cert", &files.cert)?, read("tls-key", &files.key)?);
        Ok(Self { cert, key, client_ca: client_ca.transpose()? })
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one(self)
    }

    fn config(
        &self,
        files: &TlsFiles,
        provider: &Arc<CryptoProvider>,
    ) -> Result<ServerConfig, TlsError> {
        let pair = self.pair(files, provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = match self.clients(files, provider)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session would not be verified again: its certificate may have expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(config)
    }

    /// Verifies the certificate of a client that has one: the kubelet's probes have none.
    fn clients(
        &self,
        files: &TlsFiles,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let (Some(pem), Some(file)) = (&self.client_ca, &files.client_ca) else { return Ok(None) };
        let no_ca = || TlsError::NoClientCa(file.clone());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|_| no_ca())?).map_err(|_| no_ca())?;
        }
        let provider = Arc::clone(provider);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
            .allow_unauthenticated()
            .build();
        Ok(Some(verifier.map_err(|_| no_ca())?))
    }

    fn pair(&self, files: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
        let no_certificate = || TlsError::NoCertificate(files.cert.clone());
        // The parser's own words would show lines of the file.
        let chain = CertificateDer::pem_slice_iter(&self.cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|_| no_certificate())?;
        if chain.is_empty() {
            return Err(no_certificate());
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError::NoKey(files.key.clone()))?;
        let key = provider
            .key_provider
            .load_private_key(key)
            .map_err(|_| TlsError::UnusableKey(files.key.clone()))?;
        let pair = CertifiedKey::new(chain, key);
        match pair.keys_match() {
            Ok(()) => Ok(pair),
            Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::NoPair(files.clone())),
            Err(_) => Err(no_certificate()),
        }
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE).read_to_end(&mut content))
        .map_err(|error| TlsError::Unreadable { flag, path: path.to_owned(), error })?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_once_and_not_at_once() {
        let mut trouble = Trouble::default();
        let logged: Vec<bool> =
            ["a", "b", "b", "b", "a", "a"].map(|said| trouble.is_news(said)).into();
        assert_eq!(logged, [false, false, true, false, false, true]);
    }
}
