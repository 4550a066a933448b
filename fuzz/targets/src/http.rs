use crate::{checks::plain, value};
use axum::{
    body::Body,
    http::{Request, StatusCode, Uri, header::CONTENT_TYPE},
};
use coroner::{
    linux::clock,
    outputs::{
        http::{Audience, SharedState, router},
        metrics::Metrics,
    },
    store::{health::Health, leaks::LeakStore, terminations::History},
};
use coroner_api::terminations::Termination;
use coroner_core::report::PodTermination;
use futures::{FutureExt as _, executor::block_on};
use http_body_util::BodyExt as _;
use std::sync::{Arc, LazyLock};
use tower::ServiceExt as _;

/// An agent that knows a death.
static AGENT: LazyLock<Arc<SharedState>> = LazyLock::new(|| {
    let report = include_str!("../../../agent/api/tests/golden/termination.json");
    let report: Termination = serde_json::from_str(report).expect("a report");
    let account = PodTermination::from(report);
    let mut history = History::new(8);
    account.containers.iter().for_each(|death| history.died(death.clone()));
    history.put(account, false);
    let health = Health::new(true, clock::boot_now());
    let metrics = Metrics::new().expect("metrics");
    Arc::new(SharedState::new(health, history, LeakStore::default(), metrics))
});

/// Requests to the agent's own server: any path and query.
pub fn http(bytes: &[u8]) {
    let Some(text) = value::<&str>(bytes) else { return };
    let Ok(uri) = text.parse::<Uri>() else { return };
    let api = uri.path().starts_with("/api/v1/");
    for audience in [Audience::Node, Audience::Network] {
        let request = Request::builder().uri(uri.clone()).body(Body::empty()).expect("a request");
        let answer = router(AGENT.clone(), audience).oneshot(request).now_or_never();
        let answer = answer.expect("no page waits").expect("no page fails");
        let status = answer.status();
        let is = |kind: &str| answer.headers().get(CONTENT_TYPE).is_some_and(|is| is == kind);
        // A watch has no end.
        if is("application/jsonl") {
            continue;
        }
        let json = is("application/json");
        let body = block_on(answer.into_body().collect()).expect("a body").to_bytes();
        let body = str::from_utf8(&body).expect("text");
        match status {
            StatusCode::OK if api => {
                assert_eq!(audience, Audience::Node, "{uri} names pods");
                serde_json::from_str::<serde_json::Value>(body).expect("JSON");
            }
            StatusCode::OK => {}
            StatusCode::BAD_REQUEST
            | StatusCode::FORBIDDEN
            | StatusCode::GONE
            | StatusCode::NOT_FOUND => plain(body),
            // Nothing has ticked yet, and no source has answered.
            StatusCode::SERVICE_UNAVAILABLE => {
                assert!(matches!(uri.path(), "/readyz" | "/healthz"), "{uri}");
            }
            other => panic!("{other} at {uri}"),
        }
        assert!(json || body.len() < 1 << 16);
    }
}
