//! One connection to the runtime: its four reading calls, each with a deadline.

use super::{
    Counters,
    convert::{RawContainer, RawSandbox, RawStatus},
};
use crate::domain::{
    ids::{ContainerId, SandboxId},
    input::DaemonProcess,
};
use hyper_util::rt::TokioIo;
use k8s_cri::v1::{
    ContainerFilter, ContainerStatusRequest, ListContainersRequest, ListPodSandboxRequest,
    PodSandboxFilter, VersionRequest, runtime_service_client::RuntimeServiceClient,
};
use std::{
    collections::HashMap,
    error::Error,
    fs, io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Request, Response, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;

/// The largest message either way: the limit of the kubelet (cri-client, `maxMsgSize`) and of
/// containerd (`DefaultMaxRecvMsgSize`). gRPC's own 4 MiB are too little for a node that leaks.
const MAX_MESSAGE: usize = 16 << 20;

/// Longest wait for the socket to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a call gave no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// The connection is of no more use.
    Broken(String),
    /// The runtime answered that it could not, or with more than a message may hold; the
    /// connection is good.
    Refused(String),
    /// The thing asked about does not exist (any more).
    NotFound,
}

/// One connection. It never turns into another one behind the caller's back: when it breaks,
/// every call fails, so that a restart of the runtime cannot go unnoticed.
pub(super) struct Connection {
    runtime: RuntimeServiceClient<Channel>,
    raw: Grpc<Channel>,
    limit: Duration,
    counters: Arc<Counters>,
    /// Who is at the other end.
    pub(super) peer: Option<DaemonProcess>,
}

impl Connection {
    /// Connects. The error says what to look at.
    pub(super) async fn open(
        socket: &Path,
        host_root: &Path,
        limit: Duration,
        counters: Arc<Counters>,
    ) -> Result<Self, String> {
        let failed = |why: &str| format!("connect to {}: {why}", socket.display());
        let stream = match timeout(CONNECT_TIMEOUT.min(limit), UnixStream::connect(socket)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failed(&refusal(&error))),
            Err(_) => return Err(failed("the runtime does not accept connections")),
        };
        let peer = stream
            .peer_cred()
            .ok()
            .and_then(|peer| peer.pid())
            .and_then(|pid| process(host_root, pid));
        let mut stream = Some(stream);
        let connector = tower::service_fn(move |_: Uri| {
            let stream = stream.take();
            async move {
                stream
                    .map(TokioIo::new)
                    .ok_or_else(|| io::Error::other("the runtime closed the connection"))
            }
        });
        // The authority is never resolved: the connector has the socket already.
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await
            .map_err(|error| failed(&chain(&error)))?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            raw: Grpc::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            limit,
            counters,
            peer,
        })
    }

    /// RuntimeName and RuntimeVersion.
    pub(super) async fn version(&mut self) -> Result<String, Failure> {
        let request = self.request(VersionRequest { version: "v1".into() });
        let answer = self.runtime.version(request);
        let answer = within("Version", self.limit, &self.counters, answer).await?;
        let version = answer.runtime_version.trim_start_matches('v');
        Ok(format!("{} {version}", answer.runtime_name))
    }

    /// ListPodSandbox: all, or this one.
    pub(super) async fn sandboxes(
        &mut self,
        only: Option<&SandboxId>,
    ) -> Result<impl Iterator<Item = RawSandbox> + use<>, Failure> {
        let filter =
            only.map(|id| PodSandboxFilter { id: id.as_str().to_owned(), ..Default::default() });
        let request = self.request(ListPodSandboxRequest { filter });
        let answer = self.runtime.list_pod_sandbox(request);
        let answer = within("ListPodSandbox", self.limit, &self.counters, answer).await?;
        Ok(answer.items.into_iter().map(RawSandbox::from))
    }

    /// ListContainers: all, or those of this sandbox.
    pub(super) async fn containers(
        &mut self,
        only: Option<&SandboxId>,
    ) -> Result<impl Iterator<Item = RawContainer> + use<>, Failure> {
        let filter = only.map(|id| ContainerFilter {
            pod_sandbox_id: id.as_str().to_owned(),
            ..Default::default()
        });
        let request = self.request(ListContainersRequest { filter });
        let answer = self.runtime.list_containers(request);
        let answer = within("ListContainers", self.limit, &self.counters, answer).await?;
        Ok(answer.containers.into_iter().map(RawContainer::from))
    }

    /// ContainerStatus. The answer's `info` is filled only if `verbose`, which costs the runtime
    /// much more.
    pub(super) async fn status(
        &mut self,
        container: &ContainerId,
        verbose: bool,
    ) -> Result<(RawStatus, HashMap<String, String>), Failure> {
        const CALL: &str = "ContainerStatus";
        let request = self.request(ContainerStatusRequest {
            container_id: container.as_str().to_owned(),
            verbose,
        });
        let raw = &mut self.raw;
        let answer = async {
            raw.ready()
                .await
                .map_err(|error| Status::unavailable(format!("no connection: {error}")))?;
            let path = PathAndQuery::from_static("/runtime.v1.RuntimeService/ContainerStatus");
            let codec = ProstCodec::<ContainerStatusRequest, StatusAnswer>::default();
            raw.unary(request, path, codec).await
        };
        let answer = within(CALL, self.limit, &self.counters, answer).await?;
        let status = answer
            .status
            .ok_or_else(|| Failure::Refused(format!("{CALL}: an answer without a status")))?;
        Ok((
            RawStatus {
                id: status.id,
                state: status.state,
                started_at: status.started_at,
                finished_at: status.finished_at,
                exit_code: status.exit_code,
                reason: status.reason,
                stop_signal: status.stop_signal,
            },
            answer.info,
        ))
    }

    /// A request that also tells the runtime when the answer will be of no more use.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.limit);
        request
    }
}

/// ContainerStatusResponse, cut down to what is read. Our own because k8s-cri 0.11 is made from a
/// protocol older than `stop_signal` (field 19), and because the rest need not be decoded.
#[derive(Clone, PartialEq, prost::Message)]
struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    status: Option<StatusPart>,
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

/// ContainerStatus, cut down.
#[derive(Clone, PartialEq, prost::Message)]
struct StatusPart {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(int64, tag = "5")]
    started_at: i64,
    #[prost(int64, tag = "6")]
    finished_at: i64,
    #[prost(int32, tag = "7")]
    exit_code: i32,
    #[prost(string, tag = "10")]
    reason: String,
    #[prost(int32, tag = "19")]
    stop_signal: i32,
}

/// Waits for a call's answer, at most `limit`, and counts it.
async fn within<T>(
    call: &str,
    limit: Duration,
    counters: &Counters,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Failure> {
    counters.calls.fetch_add(1, Ordering::Relaxed);
    let failure = match timeout(limit, answer).await {
        Ok(Ok(answer)) => return Ok(answer.into_inner()),
        Ok(Err(status)) => judge(call, &status),
        Err(_) => Failure::Broken(format!("{call}: no answer within {limit:?}")),
    };
    if failure != Failure::NotFound {
        counters.errors.fetch_add(1, Ordering::Relaxed);
    }
    Err(failure)
}

/// What a status means for the connection.
fn judge(call: &str, status: &Status) -> Failure {
    match status.code() {
        Code::NotFound => Failure::NotFound,
        // ResourceExhausted is how Go's gRPC says it of itself, OutOfRange how tonic does.
        Code::ResourceExhausted | Code::OutOfRange => Failure::Refused(format!(
            "{call}: the answer does not fit into one message; the CRI's limit is 16 MiB, some \
             11,000 containers: {}",
            status.message()
        )),
        Code::Unimplemented => Failure::Refused(format!(
            "{call}: the runtime does not speak version v1 of the CRI (containerd does from 1.6, \
             CRI-O from 1.23): {}",
            status.message()
        )),
        // Only statuses made on this side have a source: they tell of the transport.
        code if status.source().is_some()
            || matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled) =>
        {
            Failure::Broken(format!("{call}: {}", chain(status)))
        }
        code => Failure::Refused(format!("{call}: {code:?}: {}", status.message())),
    }
}

/// An error and what caused it, on one line, without saying anything twice.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

fn refusal(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such socket; is the runtime running, and is this \
                                    its socket?"
            .to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens; is the runtime running?".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; the socket belongs to root".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The process with this pid and its start time. For a socket that systemd opened the peer is
/// systemd itself (SO_PEERCRED names who listened), which then never changes.
fn process(host_root: &Path, pid: i32) -> Option<DaemonProcess> {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let stat = fs::read_to_string(host_root.join(format!("proc/{pid}/stat"))).ok()?;
    Some(DaemonProcess { pid, started: start_time(&stat)? })
}

/// Field 22 of /proc/PID/stat. The second one, the name, may hold blanks and parentheses.
fn start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_stands_behind_any_name() {
        let tail = "S 1 10 10 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 12 0 86400 99 1";
        for name in ["containerd", "a b", "((", ") ) 1 2 3", ""] {
            assert_eq!(start_time(&format!("10 ({name}) {tail}")), Some(86_400), "{name:?}");
        }
        for bad in ["", "10 (x", "10 (x) S 1", "10 (x) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 x"] {
            assert_eq!(start_time(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_a_status_means() {
        for (status, broken) in [
            (Status::unavailable("gone"), true),
            (Status::deadline_exceeded("late"), true),
            (Status::cancelled("h2"), true),
            (Status::from_error(Box::new(io::Error::other("reset"))), true),
            (Status::unknown("shim"), false),
            (Status::internal("shim"), false),
            (Status::permission_denied("no"), false),
        ] {
            assert_eq!(matches!(judge("X", &status), Failure::Broken(_)), broken, "{status:?}");
        }
        assert_eq!(judge("X", &Status::not_found("c1")), Failure::NotFound);
        for status in [Status::resource_exhausted("too large"), Status::out_of_range("too large")] {
            let Failure::Refused(text) = judge("ListContainers", &status) else {
                panic!("{status:?}");
            };
            assert!(text.contains("16 MiB") && text.contains("ListContainers"), "{text}");
        }
    }
}
