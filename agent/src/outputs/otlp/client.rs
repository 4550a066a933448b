//! One request to a receiver, by gRPC or by HTTP with protobuf, and what its answer means by the specification of OTLP.

use super::options::Target;
use crate::outputs::report::printable;
use coroner_core::labels;
use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderMap, Method, Request, StatusCode, Uri,
    header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER},
    uri::PathAndQuery,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use prost::Message;
use std::{error::Error as _, io::Write as _, time::Duration};
use tokio::time::timeout;
use tonic::{Code, Status, body::Body, codec::CompressionEncoding, metadata::MetadataMap};
use tonic_prost::ProstCodec;

/// An answer is a few words.
const ANSWER_BYTES: usize = 64 << 10;
/// The longest pause that a receiver may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Of a receiver's message, what is shown.
const MESSAGE_CHARS: usize = 200;

labels! {
    /// Why a request is repeated.
    pub enum Failure {
        /// No connection, or it broke.
        Unreachable = "unreachable",
        /// No answer in time.
        Timeout = "timeout",
        /// The receiver has no room, or is not ready.
        Unavailable = "unavailable",
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Taken, but for so many, which are not to be sent again.
    Taken { rejected: u64, why: String },
    /// To be sent again, after the receiver's pause if it names one.
    Later { failure: Failure, why: String, pause: Option<Duration> },
    /// Never to be sent again: why, and what to do.
    Refused { why: String, todo: &'static str },
}

/// What is in an answer to either signal.
pub(super) trait Rejections: Message + Default + 'static {
    /// Number and reason.
    fn rejected(self) -> (i64, String);
}

pub(super) struct Client {
    pub(super) target: Target,
    http: HyperClient<HttpsConnector<HttpConnector>, Body>,
}

impl Client {
    /// Connects when it is used; follows no redirect.
    pub(super) fn new(target: Target) -> Self {
        let builder = HttpsConnectorBuilder::new().with_tls_config(target.tls.clone());
        let connector = match target.is_grpc {
            true => builder.https_or_http().enable_http2().build(),
            false => builder.https_or_http().enable_http1().build(),
        };
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http2_only(target.is_grpc)
            .build(connector);
        Self { target, http }
    }

    pub(super) async fn send<A: Rejections>(
        &self,
        request: &(impl Message + Clone + 'static),
        service: &'static str,
    ) -> Answer {
        let sent = async {
            match self.target.is_grpc {
                true => self.call::<A>(request.clone(), service).await,
                false => self.post::<A>(request.encode_to_vec()).await,
            }
        };
        let late = Answer::Later {
            failure: Failure::Timeout,
            why: format!("no answer within {:?}", self.target.timeout),
            pause: None,
        };
        timeout(self.target.timeout, sent).await.unwrap_or(late)
    }

    async fn call<A: Rejections>(
        &self,
        message: impl Message + 'static,
        service: &'static str,
    ) -> Answer {
        let mut parts = self.target.endpoint.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static("/"));
        let origin = Uri::from_parts(parts).unwrap_or_default();
        let grpc = tonic::client::Grpc::with_origin(self.http.clone(), origin)
            .max_decoding_message_size(ANSWER_BYTES);
        let mut grpc = match self.target.is_compressed {
            true => grpc.send_compressed(CompressionEncoding::Gzip),
            false => grpc,
        };
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.target.headers.clone());
        if let Err(error) = grpc.ready().await {
            return unreachable(&error);
        }
        let codec = ProstCodec::<_, A>::default();
        let path = PathAndQuery::from_static(service);
        match grpc.unary(request, path, codec).await {
            Ok(answer) => self.taken(answer.into_inner()),
            Err(status) => self.failed(&status),
        }
    }

    fn failed(&self, status: &Status) -> Answer {
        if let Some(error) = status.source() {
            return unreachable(error);
        }
        let pause = retry_info(status.details());
        let why = format!("{:?}{}", status.code(), self.message(status.message()));
        let todo = match status.code() {
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss => return later(why, pause),
            Code::ResourceExhausted if pause.is_some() => return later(why, pause),
            Code::Unauthenticated | Code::PermissionDenied => CHECK_HEADERS,
            Code::Unimplemented => CHECK_ENDPOINT,
            _ => SEE_LOG,
        };
        Answer::Refused { why, todo }
    }

    async fn post<A: Rejections>(&self, mut body: Vec<u8>) -> Answer {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.target.endpoint)
            .header(CONTENT_TYPE, "application/x-protobuf");
        if self.target.is_compressed {
            let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
            // To memory: cannot fail.
            let _ = compressed.write_all(&body);
            body = compressed.finish().unwrap_or_default();
            request = request.header(CONTENT_ENCODING, "gzip");
        }
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.target.headers.clone());
        }
        let request = match request.body(Body::new(Full::from(body))) {
            Ok(request) => request,
            Err(error) => return unreachable(&error),
        };
        let response = match self.http.request(request).await {
            Ok(response) => response,
            Err(error) => return unreachable(&error),
        };
        let (status, pause) = (response.status(), retry_after(response.headers()));
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        if status.is_success() {
            return self.taken(A::decode(body).unwrap_or_default());
        }
        let message = RpcStatus::decode(body).map(|status| status.message).unwrap_or_default();
        let why = format!("HTTP {status}{}", self.message(&message));
        let todo = match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => return later(why, pause),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CHECK_HEADERS,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => CHECK_ENDPOINT,
            status if status.is_redirection() => NO_REDIRECT,
            _ => SEE_LOG,
        };
        Answer::Refused { why, todo }
    }

    fn taken(&self, answer: impl Rejections) -> Answer {
        let (rejected, why) = answer.rejected();
        let rejected = u64::try_from(rejected).unwrap_or_default();
        Answer::Taken { rejected, why: self.message(&why) }
    }

    /// The receiver's words, unless they might repeat a header.
    fn message(&self, text: &str) -> String {
        match text {
            "" => String::new(),
            _ if !self.target.headers.is_empty() => {
                " (its message is not shown: it might repeat a header)".to_owned()
            }
            text => {
                format!(": {}", printable(&text.chars().take(MESSAGE_CHARS).collect::<String>()))
            }
        }
    }
}

const CHECK_HEADERS: &str = "check OTEL_EXPORTER_OTLP_HEADERS";
const CHECK_ENDPOINT: &str = "check the endpoint's path and OTEL_EXPORTER_OTLP_PROTOCOL; for a receiver of only traces or \
                              only logs, set only its OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or …_LOGS_ENDPOINT";
const NO_REDIRECT: &str =
    "no redirect is followed; set the endpoint to the address that it leads to";
const SEE_LOG: &str = "see the receiver's log";

fn later(why: String, pause: Option<Duration>) -> Answer {
    Answer::Later { failure: Failure::Unavailable, why, pause }
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> Answer {
    let why = printable(&crate::chain(error));
    Answer::Later { failure: Failure::Unreachable, why, pause: None }
}

/// In seconds; a date is left to the own pauses.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_PAUSE))
}

fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|one| one.type_url.ends_with("google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.delay.unwrap_or_default();
    let delay = Duration::new(u64::try_from(delay.seconds).ok()?, 0)
        + Duration::from_nanos(u64::try_from(delay.nanos).ok()?);
    Some(delay.min(MAX_PAUSE))
}

/// google.rpc.Status.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// google.protobuf.Any.
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// google.rpc.RetryInfo.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<Delay>,
}

/// google.protobuf.Duration.
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}
