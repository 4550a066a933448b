//! Requests to the apiserver and their answers, which a thread of its own decodes as they arrive. kube-rs makes the connection,
//! with TLS and credentials; its own decoding holds an answer whole, is ended by one object that it does not understand, and
//! writes what it cannot decode to the log, other tenants' environments included.

use super::errors;
use coroner_core::time::WallTime;
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body, core::Status};
use std::io::{self, Read};
use tokio::{sync::oneshot, task::spawn_blocking};
use tokio_util::io::{StreamReader, SyncIoBridge};

/// The longest answer to a request that was refused.
const MAX_REFUSAL: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFailure {
    /// The apiserver, or a proxy before it, refuses.
    #[error("{}", errors::refusal(.0))]
    Refused(Box<Status>),
    /// The apiserver ends a watch: its place in history is gone, or the watch cannot go on.
    #[error("{}", errors::refusal(.0))]
    Ended(Box<Status>),
    #[error(transparent)]
    Unreachable(#[from] kube::Error),
    #[error(transparent)]
    Broken(io::Error),
    #[error("cannot build the request")]
    Request(#[from] kube::core::request::Error),
    #[error(
        "cannot parse the response: invalid JSON at line {line}, column {column} (content not shown)"
    )]
    Malformed { line: usize, column: usize },
    #[error("cannot parse the response: not {0} (content not shown)")]
    Unexpected(&'static str),
    #[error("the response was truncated")]
    Short,
    #[error("this node has more than {0} pods that have not terminated")]
    TooMany(usize),
}

impl RequestFailure {
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            _ => None,
        }
    }
}

impl From<serde_json::Error> for RequestFailure {
    fn from(error: serde_json::Error) -> Self {
        use serde_json::error::Category;
        match (error.classify(), error.io_error_kind()) {
            (_, Some(io::ErrorKind::FileTooLarge)) => Self::Unexpected("an object below 16 MiB"),
            (Category::Io, _) => Self::Broken(error.into()),
            (Category::Eof, _) => Self::Short,
            _ => Self::Malformed { line: error.line(), column: error.column() },
        }
    }
}

/// Ends the body that belongs to it when it is dropped, and so the thread that waits for more.
pub(super) struct OpenBody(#[expect(dead_code)] oneshot::Sender<()>);

/// The header Date of an answer: the apiserver's clock.
pub(super) fn date(headers: &http::HeaderMap) -> Option<WallTime> {
    let date = headers.get(http::header::DATE)?.to_str().ok()?;
    let date = jiff::fmt::rfc2822::parse(date).ok()?;
    Some(WallTime::from_secs(date.timestamp().as_second()))
}

/// Sends a request. The body blocks its reader while nothing arrives.
pub(super) async fn send(
    client: &Client,
    mut request: http::Request<Vec<u8>>,
) -> Result<(impl Read + Send + use<>, OpenBody, Option<WallTime>), RequestFailure> {
    // Nothing is there to unpack another.
    let identity = http::HeaderValue::from_static("identity");
    request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
    let answer = client.send(request.map(Body::from)).await?;
    let code = answer.status().as_u16();
    if !answer.status().is_success() {
        let body = Limited::new(answer.into_body(), MAX_REFUSAL).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        // What is no Status is not shown.
        let status = serde_json::from_slice::<Status>(&body).unwrap_or_default();
        return Err(RequestFailure::Refused(status.with_code(code).boxed()));
    }
    let date = date(answer.headers());
    let (open, dropped) = oneshot::channel();
    let body = answer.into_body().into_data_stream().map_err(io::Error::other).take_until(dropped);
    Ok((SyncIoBridge::new(StreamReader::new(Box::pin(body.fuse()))), OpenBody(open), date))
}

/// Sends a request and decodes the answer. Dropping this ends both.
pub(super) async fn decoded<T: Send + 'static>(
    client: &Client,
    request: http::Request<Vec<u8>>,
    decode: impl FnOnce(&mut dyn Read) -> Result<T, RequestFailure> + Send + 'static,
) -> Result<T, RequestFailure> {
    let (mut body, _open, _) = send(client, request).await?;
    let decoding = spawn_blocking(move || decode(&mut body)).await;
    decoding.unwrap_or_else(|stopped| match stopped.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(RequestFailure::Short), // the agent ends
    })
}
