//! What is asked of the apiserver and what that takes: counted, for the benchmarks.

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use futures::TryStreamExt as _;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// How much there was since some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApiTraffic {
    /// Requests, whatever their answer.
    pub requests: u64,
    /// Bytes of the answers' bodies, those of watches under way included.
    pub bytes: u64,
}

impl ApiTraffic {
    /// What has come since an earlier moment.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    /// All since the start.
    pub(super) fn read(&self) -> ApiTraffic {
        ApiTraffic { requests: self.0.requests.load(Relaxed), bytes: self.0.bytes.load(Relaxed) }
    }
}

/// A layer that counts what passes.
pub(super) async fn count(
    State(counter): State<Counter>,
    request: Request,
    next: Next,
) -> Response {
    counter.0.requests.fetch_add(1, Relaxed);
    next.run(request).await.map(|body| {
        Body::from_stream(body.into_data_stream().inspect_ok(move |piece| {
            counter.0.bytes.fetch_add(piece.len() as u64, Relaxed);
        }))
    })
}
