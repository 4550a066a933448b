//! Asks a running agent over HTTP.

use crate::domain::observation::PodTermination;
use anyhow::{Context, bail};
use axum::body::Body;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::time::Duration;

/// More than --history can ever hold.
const MAX_BODY: usize = 256 << 20;
/// An agent answers from memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// Nobody listens where the agent should be.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers at {0}: is `coroner run` running, and --url its address?")]
pub(super) struct NoAgent(Uri);

/// The body of a good answer; anything else is an error.
pub(super) fn get(uri: Uri) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fetch(uri))
}

/// The same, for whoever has an event loop already.
pub(super) async fn fetch(uri: Uri) -> anyhow::Result<String> {
    match tokio::time::timeout(PATIENCE, answer(uri.clone())).await {
        Ok(answer) => answer,
        Err(_) => bail!("{uri} did not answer within {} s", PATIENCE.as_secs()),
    }
}

async fn answer(uri: Uri) -> anyhow::Result<String> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::get(uri.clone()).body(Body::empty())?;
    let answer = client.request(request).await.with_context(|| NoAgent(uri.clone()))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{uri}: {error}"))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status != StatusCode::OK {
        bail!("{uri} answers {status}: {}", text.trim());
    }
    Ok(text)
}

/// The accounts in the body of `/api/v1/terminations`, newest first.
pub(super) fn accounts(body: &str) -> anyhow::Result<Vec<PodTermination>> {
    serde_json::from_str(body)
        .context("the agent's answer is not understood: is it of another version?")
}

/// The agent's URL with another path.
pub(super) fn at(agent: &Uri, path: &str) -> anyhow::Result<Uri> {
    let mut parts = agent.clone().into_parts();
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
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
