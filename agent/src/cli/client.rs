//! Asks a running agent over HTTP: on its unix socket, or on TCP with TLS or without.

use crate::config::args::AgentArgs;
use crate::outputs::report::printable;
use anyhow::{Context, bail};
use axum::body::Body;
use coroner_core::report::PodTermination;
use http::{Request, StatusCode, Uri, header::HOST};
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
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

/// More than --history can ever hold.
const MAX_BODY: usize = 256 << 20;
/// An agent answers from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Nobody listens where the agent should be.
#[derive(Debug, thiserror::Error)]
#[error(
    "no agent answers at {0}; check that `coroner run` is running and that --socket or --url \
     names its address"
)]
pub(super) struct NoAgent(String);

/// A running agent.
pub(super) enum Agent {
    /// On its unix socket.
    Socket(PathBuf),
    /// On TCP.
    Url { url: Uri, client: Box<Client<HttpsConnector<HttpConnector>, Body>> },
}

impl Agent {
    /// The agent that the flags name. By https it must show a certificate of `ca`, or without one of those that
    /// this machine trusts. Nothing is sent yet.
    pub(super) fn new(args: &AgentArgs) -> anyhow::Result<Self> {
        let Some(url) = &args.url else { return Ok(Self::Socket(args.socket.clone())) };
        let ca = args.ca.as_deref();
        let roots = match ca {
            Some(file) => roots_of(file)?,
            // By plain HTTP nobody is asked for a certificate.
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
        Ok(Self::Url { url: url.clone(), client })
    }

    /// A page of the agent, as a person would name it.
    pub(super) fn at(&self, path: &str) -> anyhow::Result<String> {
        Ok(match self {
            Self::Socket(socket) => format!("{} {path}", socket.display()),
            Self::Url { url, .. } => with_path(url, path)?.to_string(),
        })
    }

    /// The body of a good answer; anything else is an error.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.fetch(path))
    }

    /// The same, where there is an event loop already.
    pub(super) async fn fetch(&self, path: &str) -> anyhow::Result<String> {
        let page = self.at(path)?;
        match tokio::time::timeout(TIMEOUT, self.answer(path, &page)).await {
            Ok(answer) => answer,
            Err(_) => bail!("{page} did not answer within {} s", TIMEOUT.as_secs()),
        }
    }

    async fn answer(&self, path: &str, page: &str) -> anyhow::Result<String> {
        let answer = match self {
            Self::Socket(socket) => {
                let request = Request::get(path).header(HOST, "localhost").body(Body::empty())?;
                let stream = UnixStream::connect(socket).await.map_err(|error| {
                    anyhow::Error::new(error).context(NoAgent(socket.display().to_string()))
                })?;
                let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                sender.send_request(request).await?
            }
            Self::Url { url, client } => {
                let uri = with_path(url, path)?;
                let request = Request::get(uri.clone()).body(Body::empty())?;
                client.request(request).await.map_err(|error| match refusal(&error, &uri) {
                    Some(refusal) => anyhow::Error::msg(refusal),
                    None => anyhow::Error::new(error).context(NoAgent(page.to_owned())),
                })?
            }
        };
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{page}: {error}"))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if status != StatusCode::OK {
            bail!("{page} answers {status}: {}", printable(text.trim()));
        }
        Ok(text)
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
    let pem = std::fs::read(file).with_context(|| format!("--ca {shown}: cannot read the file"))?;
    let mut roots = RootCertStore::empty();
    // What the parser says would show lines of a file of another kind.
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let (taken, _) = roots.add_parsable_certificates(certificates.unwrap_or_default());
    if taken == 0 {
        bail!("--ca {shown} contains no certificate; use a PEM file with the CA's certificate");
    }
    Ok(roots)
}

fn roots_of_machine() -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    if taken == 0 {
        bail!("this machine has no trusted CA certificates; set --ca to the agent's CA");
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
        ) => "set --ca to the CA that signed it",
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "use a host name that the certificate contains",
        rustls::Error::InvalidCertificate(_) => "replace the agent's certificate (--tls-cert)",
        _ => return format!("TLS handshake with {uri} failed ({error}); try http://"),
    };
    format!("the certificate of {uri} is not trusted ({error}); {todo}")
}

/// The accounts in the body of `/api/v1/terminations`, newest first.
pub(super) fn accounts(body: &str) -> anyhow::Result<Vec<PodTermination>> {
    serde_json::from_str(body)
        .context("cannot parse the agent's response; the agent is probably another version")
}

/// Percent-encodes all that a query may not hold as it is.
pub(super) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                (byte as char).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
