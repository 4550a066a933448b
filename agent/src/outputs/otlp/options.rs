//! Where reports go: the variables of the OpenTelemetry specification, each also for one signal
//! (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`). A signal without an endpoint is not exported.
//!
//! Nothing here shows a header, nor more of an endpoint than scheme and authority: a path may hold a token, too.

use anyhow::{Context, bail, ensure};
use coroner_core::labels;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, uri::Authority};
use std::{fmt, fs, str::FromStr, sync::Arc, time::Duration};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// gRPC's port; any other is that of HTTP, unless a variable says.
const GRPC_PORT: u16 = 4317;

labels! {
    /// What is exported.
    pub enum Signal {
        Traces = "traces",
        Logs = "logs",
    }
}

/// An endpoint as it was given, which is never shown.
#[derive(Clone)]
pub struct Endpoint(pub String);

impl FromStr for Endpoint {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endpoint(…)")
    }
}

/// The receiver of one signal.
#[derive(Clone)]
pub struct Target {
    pub signal: Signal,
    pub(super) endpoint: Uri,
    pub(super) is_grpc: bool,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) is_compressed: bool,
    pub(super) tls: ClientConfig,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.endpoint.authority().map_or("", Authority::as_str);
        write!(f, "{}://{authority}", self.endpoint.scheme_str().unwrap_or_default())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} to {self})", self.signal)
    }
}

impl Target {
    /// A header on a connection that anyone on the path can read.
    pub fn shows_headers(&self) -> bool {
        !self.headers.is_empty() && self.endpoint.scheme_str() == Some("http")
    }

    /// `None`: this signal has no endpoint.
    fn of(
        signal: Signal,
        flag: Option<&Endpoint>,
        env: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<Self>> {
        let prefix = "OTEL_EXPORTER_OTLP_";
        let own = |name: &str| format!("{prefix}{}_{name}", signal.as_str().to_uppercase());
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let either = |name: &str| set(&own(name)).or_else(|| set(&format!("{prefix}{name}")));
        let own_endpoint = set(&own("ENDPOINT"));
        let general = || {
            flag.map(|flag| flag.0.clone())
                .filter(|text| !text.is_empty())
                .or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"))
        };
        let (text, is_own) = match own_endpoint {
            Some(text) => (text, true),
            None => match general() {
                Some(text) => (text, false),
                None => return Ok(None),
            },
        };
        let endpoint = endpoint(&text)?;
        let is_grpc = match either("PROTOCOL").as_deref() {
            None => endpoint.port_u16() == Some(GRPC_PORT),
            Some("grpc") => true,
            Some("http/protobuf") => false,
            Some(_) => bail!("unknown {prefix}PROTOCOL; use grpc or http/protobuf"),
        };
        let is_compressed = match either("COMPRESSION").as_deref() {
            None | Some("none") => false,
            Some("gzip") => true,
            Some(_) => bail!("unknown {prefix}COMPRESSION; use gzip or none"),
        };
        let timeout = match either("TIMEOUT").map(|text| text.parse()) {
            None => TIMEOUT,
            Some(Ok(millis @ 1..)) => Duration::from_millis(millis),
            Some(_) => bail!("{prefix}TIMEOUT is no number of milliseconds; use for example 10000"),
        };
        let path = format!("/v1/{signal}");
        let endpoint = match is_own || is_grpc {
            true => endpoint,
            false => with_path(endpoint, &path)?,
        };
        let headers = headers(&either("HEADERS").unwrap_or_default())?;
        let is_https = endpoint.scheme_str() == Some("https");
        let tls = tls(either("CERTIFICATE").as_deref(), is_https)?;
        Ok(Some(Self { signal, endpoint, is_grpc, headers, timeout, is_compressed, tls }))
    }
}

/// By `--otlp-endpoint` and the environment: traces and logs.
pub fn targets(
    flag: Option<&Endpoint>,
    env: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Vec<Target>> {
    let all = Signal::ALL.iter().map(|signal| Target::of(*signal, flag, &env).transpose());
    all.flatten().collect()
}

fn endpoint(text: &str) -> anyhow::Result<Uri> {
    const USE: &str = "use http://HOST:PORT or https://HOST:PORT";
    // The parser's own error is about what it read.
    let uri =
        text.parse::<Uri>().ok().with_context(|| format!("the OTLP endpoint is no URL; {USE}"))?;
    ensure!(
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some(),
        "the OTLP endpoint has no scheme; {USE}"
    );
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    ensure!(
        !has_user,
        "the OTLP endpoint has a user or password; put them into OTEL_EXPORTER_OTLP_HEADERS \
         (authorization=Basic%20…)"
    );
    Ok(uri)
}

fn with_path(endpoint: Uri, path: &str) -> anyhow::Result<Uri> {
    let base = endpoint.path().trim_end_matches('/');
    let path = format!("{base}{path}");
    let mut parts = endpoint.into_parts();
    parts.path_and_query = Some(path.parse().ok().context("the OTLP endpoint has an odd path")?);
    Uri::from_parts(parts).ok().context("the OTLP endpoint has an odd path")
}

/// `key=value,key=value`, with percent-encoded values as in W3C Baggage.
fn headers(text: &str) -> anyhow::Result<HeaderMap> {
    const WRONG: &str = "OTEL_EXPORTER_OTLP_HEADERS (content not shown) is not key=value,key=value";
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').context(WRONG)?;
        let name: HeaderName = name.trim().parse().ok().context(WRONG)?;
        let value = decoded(value.trim()).context(WRONG)?;
        let mut value = HeaderValue::from_bytes(&value).ok().context(WRONG)?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part.get(2..)?.as_bytes());
    }
    Some(bytes)
}

/// Trusts the given certificates alone, or else the web's: the image has no bundle. Without https nothing is trusted, to
/// save memory.
fn tls(certificate: Option<&str>, is_https: bool) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match certificate {
        None if !is_https => {}
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let name = "OTEL_EXPORTER_OTLP_CERTIFICATE";
            let pem = fs::read(file).with_context(|| format!("{name} {file}: cannot read it"))?;
            let found = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
            roots.add_parsable_certificates(found);
            ensure!(!roots.is_empty(), "{name} {file} contains no certificate; use a PEM file");
        }
    }
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables = &'static [(&'static str, &'static str)];

    fn read(flag: Option<&str>, set: &[(&str, &str)]) -> anyhow::Result<Vec<Target>> {
        let value = |name: &str| {
            let name = name.strip_prefix("OTEL_EXPORTER_OTLP_").unwrap();
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        targets(flag.map(|text| Endpoint(text.into())).as_ref(), value)
    }

    #[test]
    fn each_signal_has_its_endpoint_and_protocol() {
        type Row = (Option<&'static str>, Variables, &'static [&'static str]);
        let rows: [Row; 6] = [
            (None, &[], &[]),
            (None, &[("ENDPOINT", "")], &[]),
            (
                Some("https://c:4318/base/"),
                &[("ENDPOINT", "http://other")],
                &["http https://c:4318/base/v1/traces", "http https://c:4318/base/v1/logs"],
            ),
            (
                None,
                &[("ENDPOINT", "http://c:4317")],
                &["grpc http://c:4317/", "grpc http://c:4317/"],
            ),
            (
                None,
                &[("ENDPOINT", "http://c:4317"), ("PROTOCOL", "http/protobuf")],
                &["http http://c:4317/v1/traces", "http http://c:4317/v1/logs"],
            ),
            (
                None,
                &[("LOGS_ENDPOINT", "http://loki/otlp/v1/logs")],
                &["http http://loki/otlp/v1/logs"],
            ),
        ];
        for (flag, set, wanted) in rows {
            let read = read(flag, set).unwrap();
            let shown = read.iter().map(|target| {
                let protocol = if target.is_grpc { "grpc" } else { "http" };
                format!("{protocol} {}", target.endpoint)
            });
            assert_eq!(shown.collect::<Vec<_>>(), wanted, "{flag:?} {set:?}");
        }
    }

    #[test]
    fn headers_are_sent_and_never_shown() {
        let set = [
            ("ENDPOINT", "http://c/s3cret"),
            ("HEADERS", "authorization=Bearer%20s3cret, x-org = 7"),
            ("COMPRESSION", "gzip"),
            ("TIMEOUT", "250"),
        ];
        let target = read(None, &set).unwrap().remove(0);
        assert_eq!(target.headers["authorization"], "Bearer s3cret");
        assert_eq!(target.headers["x-org"], "7");
        assert!(target.is_compressed && target.shows_headers());
        assert_eq!(target.timeout, Duration::from_millis(250));
        let shown =
            format!("{target} {target:?} {:?} {:?}", target.headers, Endpoint("s3cret".into()));
        assert!(!shown.contains("s3cret"), "{shown}");
        for (name, value, wanted) in [
            ("ENDPOINT", "c-s3cret:4318", "no scheme"),
            ("ENDPOINT", "http://u:s3cret@c", "HEADERS"),
            ("ENDPOINT", "http://c/ s3cret", "is no URL"),
            ("HEADERS", "s3cret", "key=value"),
            ("HEADERS", "a=%zs3cret", "key=value"),
            ("PROTOCOL", "http/json", "grpc or http/protobuf"),
            ("COMPRESSION", "zstd", "gzip or none"),
            ("TIMEOUT", "10s", "milliseconds"),
            ("CERTIFICATE", "/none", "cannot read it"),
            ("CERTIFICATE", "/dev/null", "PEM"),
        ] {
            let flag = (name != "ENDPOINT").then_some("http://c");
            let error = format!("{:#}", read(flag, &[(name, value)]).unwrap_err());
            assert!(error.contains(wanted) && !error.contains("s3cret"), "{name}: {error}");
        }
    }
}
