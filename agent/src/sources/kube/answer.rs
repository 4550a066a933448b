//! Requests to the apiserver and their answers, read as they arrive. kube-rs makes the connection, with
//! TLS and credentials; its own decoding holds an answer whole, is ended by one object that it does not
//! understand, and writes what it cannot decode to the log, other tenants' environments included.

use super::shape;
use crate::{
    printable::shown,
    sources::{
        cut::Cuts,
        json::{self, DocumentReader, JsonEvent, Keep, Malformed, Reduced},
    },
};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::{Client, client::Body};
use serde::Deserialize;

/// The longest answer to a request that was refused, and the most that is read of one that nobody wants.
const MAX_REFUSAL: usize = 64 << 10;

/// Why a request has no answer that could be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestFailure {
    /// The apiserver, or a proxy before it, refuses.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The apiserver ends a watch: its place in history is gone, or the watch cannot go on.
    #[error("{0}")]
    Ended(Box<Refusal>),
    /// No connection, or it broke.
    #[error(transparent)]
    Transport(#[from] kube::Error),
    /// The request cannot be made.
    #[error("cannot build the request")]
    Request(#[from] kube::core::request::Error),
    /// What came is no JSON.
    #[error("cannot parse the response: {0} (content not shown)")]
    Malformed(#[from] Malformed),
    /// It is JSON, and not what was asked for.
    #[error("cannot parse the response: not {0} (content not shown)")]
    Unexpected(&'static str),
    /// The connection ended within it.
    #[error("the response was truncated")]
    Short,
    /// More pods than can be kept apart.
    #[error("this node has more than {0} pods that have not terminated")]
    TooMany(usize),
}

impl RequestFailure {
    /// The HTTP status of a refusal.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }
}

/// A Status, or the status of an answer that holds none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: String,
    message: String,
    pub(crate) details: Option<Details>,
}

/// What a Status is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) causes: Option<Vec<Cause>>,
}

/// Why, in a word.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cause {
    pub(crate) reason: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, reason, message, .. } = self;
        match (message.as_str(), reason.as_str()) {
            ("", "") => write!(to, "status {code} without a Kubernetes reason"),
            (one, "") | ("", one) => write!(to, "{} ({code})", shown(one)),
            (message, reason) => write!(to, "{}: {} ({code})", shown(message), shown(reason)),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Of the body of an answer with this status: what is no Status is not shown.
    fn of(code: u16, body: &[u8]) -> Self {
        let reduced = json::reduce(&shape::STATUS, body, &Cuts::default()).ok();
        let said = reduced.and_then(|reduced| reduced.decode::<Self>()).unwrap_or_default();
        Self { code, ..said }
    }
}

/// An answer, document by document.
pub(super) struct AnswerStream {
    body: Body,
    reader: DocumentReader,
    /// What has arrived and is not read yet.
    rest: Bytes,
}

impl AnswerStream {
    /// Sends a request. The answer has documents of this shape.
    pub(super) async fn to(
        client: &Client,
        request: HttpRequest,
        shape: &'static Keep,
    ) -> Result<Self, RequestFailure> {
        let body = send(client, request).await?;
        Ok(Self { body, reader: DocumentReader::new(shape), rest: Bytes::new() })
    }

    /// The next item or document; `None`: the answer is complete. Nothing is lost if this is dropped
    /// before it is done.
    pub(super) async fn next(&mut self, cuts: &Cuts) -> Result<Option<JsonEvent>, RequestFailure> {
        loop {
            let mut rest = &*self.rest;
            let event = self.reader.next(&mut rest)?;
            let read = self.rest.len() - rest.len();
            self.rest = self.rest.split_off(read);
            if event.is_some() {
                self.reader.count_cuts(cuts);
                return Ok(event);
            }
            match self.body.frame().await {
                Some(frame) => self.rest = frame?.into_data().unwrap_or_default(),
                None if self.reader.is_within() => return Err(RequestFailure::Short),
                None => return Ok(None),
            }
        }
    }

    /// The only document.
    pub(super) async fn only(mut self, cuts: &Cuts) -> Result<Reduced, RequestFailure> {
        loop {
            match self.next(cuts).await? {
                Some(JsonEvent::End(document)) => return Ok(document),
                Some(JsonEvent::Item(_)) => {}
                None => return Err(RequestFailure::Short),
            }
        }
    }
}

/// A request without its body, or with one that is held.
pub(super) type HttpRequest = http::Request<Vec<u8>>;

/// Sends a request of which only success matters.
pub(crate) async fn order(client: &Client, request: HttpRequest) -> Result<(), RequestFailure> {
    let body = send(client, request).await?;
    // Read to its end, so that the connection can be used again.
    beginning(body).await.map(|_| ())
}

async fn send(client: &Client, mut request: HttpRequest) -> Result<Body, RequestFailure> {
    // Nothing is there to unpack another.
    let identity = http::HeaderValue::from_static("identity");
    request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
    let answer = client.send(request.map(Body::from)).await?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let body = beginning(answer.into_body()).await?;
    Err(RequestFailure::Refused(Box::new(Refusal::of(status.as_u16(), &body))))
}

/// A body, as far as it is not too long.
async fn beginning(mut body: Body) -> Result<Vec<u8>, RequestFailure> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = frame?.into_data().unwrap_or_default();
        let room = MAX_REFUSAL - bytes.len();
        bytes.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            break;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_refusal_only_a_status_is_shown() {
        let status =
            br#"{"kind":"Status","status":"Failure","message":"pods is forbidden","reason":
            "Forbidden","details":{"kind":"pods","causes":null},"code":200}"#;
        let refusal = Refusal::of(403, status);
        assert_eq!(refusal.to_string(), "pods is forbidden: Forbidden (403)");
        assert_eq!(refusal.details.map(|of| of.kind).as_deref(), Some("pods"));
        for other in ["<html>hunter2</html>", "hunter2", "", "{\"password\":\"hunter2\"}"] {
            let text = Refusal::of(502, other.as_bytes()).to_string();
            assert_eq!(text, "status 502 without a Kubernetes reason");
        }
        let long = format!(r#"{{"message":"{}\u202e"}}"#, "x".repeat(100_000));
        assert!(Refusal::of(500, long.as_bytes()).to_string().len() < 600);
        let odd = Refusal::of(500, b"{\"message\":\"a\\u202eb\\u001b[2J\"}").to_string();
        assert_eq!(odd, "a\\u{202e}b\\u{1b}[2J (500)");
    }
}
