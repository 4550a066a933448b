//! The kubelet's line to the container runtime.

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use std::path::PathBuf;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// A CRI v1 client; clones share one connection.
pub type Cri = RuntimeServiceClient<Channel>;

/// kubelet's own limit (cri-client/pkg/utils.go), bytes.
const MAX_MESSAGE: usize = 16 << 20;

/// Connects to `unix:///…/containerd.sock` (the scheme may be left out).
pub async fn connect(endpoint: &str) -> anyhow::Result<Cri> {
    let path = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
    let shown = path.display().to_string();
    let channel = Endpoint::from_static("http://cri")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
        .await
        .with_context(|| format!("no container runtime answers at {shown}"))?;
    Ok(RuntimeServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE))
}
