//! Asks a running agent over HTTP: on its unix socket, or on TCP with TLS or without.

use crate::{
    printable::shown,
    query::{List, ListQuery},
};
use anyhow::{Context, bail};
use http::{Request, Response, StatusCode, Uri, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use serde::de::DeserializeOwned;
use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::net::UnixStream;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Larger than any list.
const MAX_BODY: usize = 256 << 20;
/// An agent answers from memory.
const TIMEOUT: Duration = Duration::from_secs(30);

/// No agent listens at the address.
#[derive(Debug, thiserror::Error)]
#[error(
    "no agent answers at {0}; check that `coroner run` is running and that --socket or --url \
     names its address"
)]
pub struct NoAgent(String);

/// A running agent.
#[derive(Debug)]
pub enum AgentAddress {
    /// On its unix socket.
    Socket(PathBuf),
    /// On TCP.
    Url(Uri, Box<Client<HttpsConnector<HttpConnector>, Empty<Bytes>>>),
}

impl AgentAddress {
    /// The agent at `url`. For https, its certificate must be signed by `ca` (a PEM file), or without `ca` by a CA that
    /// this machine trusts. No request is sent yet.
    pub fn at_url(url: &Uri, ca: Option<&Path>) -> anyhow::Result<Self> {
        let roots = match ca {
            Some(file) => roots_of(file)?,
            // Plain HTTP needs no certificates.
            None if url.scheme_str() != Some("https") => RootCertStore::empty(),
            None => roots_of_machine()?,
        };
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("cannot set up TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        let client = Box::new(Client::builder(TokioExecutor::new()).build(connector));
        Ok(Self::Url(url.clone(), client))
    }

    /// A page of the agent, as a person would name it.
    pub fn page(&self, path: &str) -> anyhow::Result<String> {
        Ok(match self {
            Self::Socket(socket) => format!("{} {path}", socket.display()),
            Self::Url(url, _) => with_path(url, path)?.to_string(),
        })
    }

    /// A list.
    pub async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &ListQuery,
    ) -> anyhow::Result<List<T>> {
        let json = self.fetch(&query.on(path)).await?;
        serde_json::from_slice(&json)
            .context("cannot parse the agent's response; the agent is probably another version")
    }

    /// The body of a successful answer; anything else is an error.
    pub async fn fetch(&self, path: &str) -> anyhow::Result<Bytes> {
        let page = self.page(path)?;
        let whole = async {
            let body = Limited::new(self.ask(path, &page).await?.into_body(), MAX_BODY);
            let body = body.collect().await.map_err(|error| anyhow::anyhow!("{page}: {error}"))?;
            Ok(body.to_bytes())
        };
        match tokio::time::timeout(TIMEOUT, whole).await {
            Ok(answer) => answer,
            Err(_) => bail!("{page} did not answer within {} s", TIMEOUT.as_secs()),
        }
    }

    /// An answer with the status 200.
    async fn ask(&self, path: &str, page: &str) -> anyhow::Result<Response<Incoming>> {
        let answer = match self {
            Self::Socket(socket) => {
                let request = Request::get(path).header(HOST, "localhost").body(Empty::new())?;
                let stream = UnixStream::connect(socket).await.map_err(|error| {
                    anyhow::Error::new(error).context(NoAgent(socket.display().to_string()))
                })?;
                let server = stream.peer_cred()?.uid();
                if server != 0 && server != rustix::process::geteuid().as_raw() {
                    bail!("{page} is answered by user {server}, who is neither root nor you");
                }
                let (mut sender, connection) =
                    http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                sender.send_request(request).await?
            }
            Self::Url(url, client) => {
                let uri = with_path(url, path)?;
                let request = Request::get(uri.clone()).body(Empty::new())?;
                client.request(request).await.map_err(|error| match refusal(&error, &uri) {
                    Some(refusal) => anyhow::Error::msg(refusal),
                    None => anyhow::Error::new(error).context(NoAgent(page.to_owned())),
                })?
            }
        };
        let status = answer.status();
        if status == StatusCode::OK {
            return Ok(answer);
        }
        let body = Limited::new(answer.into_body(), 1 << 16).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        bail!("{page} returned {status}: {}", shown(text.trim()))
    }
}

fn with_path(url: &Uri, path: &str) -> anyhow::Result<Uri> {
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// The certificates in `file`, which the agent's own must be signed by, or be.
fn roots_of(file: &Path) -> anyhow::Result<RootCertStore> {
    let shown = file.display();
    let pem =
        std::fs::read(file).with_context(|| format!("--ca-file {shown}: cannot read the file"))?;
    let mut roots = RootCertStore::empty();
    // What the parser says would show lines of a file of another kind.
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let (taken, _) = roots.add_parsable_certificates(certificates.unwrap_or_default());
    if taken == 0 {
        bail!(
            "--ca-file {shown} contains no certificate; use a PEM file with the CA's certificate"
        );
    }
    Ok(roots)
}

fn roots_of_machine() -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    if taken == 0 {
        bail!("this machine has no trusted CA certificates; set --ca-file to the agent's CA");
    }
    Ok(roots)
}

/// Somebody listens, but there is no way to speak with each other: why, and what to do.
fn refusal(error: &(dyn Error + 'static), uri: &Uri) -> Option<String> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(tls) = in_io(cause).or_else(|| cause.downcast_ref::<rustls::Error>()) {
            return Some(tls_refusal(tls, uri));
        }
        if let Some(http) = cause.downcast_ref::<hyper::Error>()
            && http.is_parse()
        {
            return Some(format!("{uri} did not answer with HTTP; try https://"));
        }
        next = cause.source();
    }
    None
}

/// Errors of TLS come in those of I/O, whose `source` passes over what is in them.
fn in_io<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = error.downcast_ref::<std::io::Error>()?.get_ref()?;
    inner.downcast_ref().or_else(|| in_io(inner))
}

fn tls_refusal(error: &rustls::Error, uri: &Uri) -> String {
    let todo = match error {
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "set --ca-file to the CA that signed it",
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "use a host name that the certificate contains",
        rustls::Error::InvalidCertificate(_) => "replace the agent's certificate (--tls-cert)",
        _ => return format!("TLS handshake with {uri} failed ({error}); try http://"),
    };
    format!("the certificate of {uri} is not trusted ({error}); {todo}")
}
