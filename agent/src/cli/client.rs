//! Asks a running agent on its unix socket.

use crate::config::args::AgentArgs;
use anyhow::{Context, bail};
use coroner_report::{List, ListQuery, printable::shown};
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::net::UnixStream;

/// Larger than any list.
const MAX_BODY: usize = 256 << 20;
/// An agent answers from memory.
const TIMEOUT: Duration = Duration::from_secs(30);

impl AgentArgs {
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &ListQuery,
    ) -> anyhow::Result<List<T>> {
        let path = query.on(path);
        let page = format!("{} {path}", self.socket.display());
        let json = match tokio::time::timeout(TIMEOUT, self.fetch(&path, &page)).await {
            Ok(answer) => answer?,
            Err(_) => bail!("{page} did not answer within {} s", TIMEOUT.as_secs()),
        };
        serde_json::from_slice(&json)
            .context("cannot parse the agent's response; the agent is probably another version")
    }

    /// The body of a successful answer; anything else is an error.
    async fn fetch(&self, path: &str, page: &str) -> anyhow::Result<Bytes> {
        let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
        let stream = UnixStream::connect(&self.socket).await.with_context(|| {
            format!(
                "no agent answers at {}; check that `coroner run` is running and that --socket names its socket",
                self.socket.display()
            )
        })?;
        let server = stream.peer_cred()?.uid();
        if server != 0 && server != rustix::process::geteuid().as_raw() {
            bail!("{page} is answered by user {server}, who is neither root nor you");
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{page}: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            bail!("{page} returned {status}: {}", shown(String::from_utf8_lossy(&body).trim()));
        }
        Ok(body)
    }
}
