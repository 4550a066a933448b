//! One connection to the runtime: the calls that read, each with a deadline.

use super::{
    CriCounters,
    calls::{Call, Runtime},
    convert::{InvalidItem, RawContainer, RawSandbox, RawStatus, sandbox_status::RawSandboxStatus},
    events::{self, ContainerEvent},
    failure::{self, CallFailure, CriError, Scope},
    messages::{ContainerItem, ContainerStatusAnswer, ItemList, SandboxItem, SandboxStatusAnswer},
    pending::PendingRequests,
};
use crate::{
    linux::{procfs::read_stat, socket_file::SocketFile},
    sources::cut::Cuts,
};
use coroner_core::{
    ids::{ContainerId, SandboxId},
    input::DaemonProcess,
};
use coroner_cri_api::v1::{
    ContainerFilter, ContainerStatusRequest, GetEventsRequest, ListContainersRequest,
    ListPodSandboxRequest, PodSandboxFilter, PodSandboxStatusRequest, VersionRequest,
    VersionResponse,
};
use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use std::{
    collections::HashMap,
    fmt::Display,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::UnixStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;

/// The largest message either way: the limit of the kubelet (cri-client, `maxMsgSize`) and of
/// containerd (`DefaultMaxRecvMsgSize`). gRPC's own 4 MiB are too little for a node that leaks.
const MAX_MESSAGE: usize = 16 << 20;

/// The largest answer about one thing. A verbose status has the pod's annotations three times and a
/// container's environment twice; a pod that makes it longer hides no more than itself.
const MAX_ABOUT_ONE: usize = 4 << 20;

/// Items of one streamed list: as many as the core keeps containers, four times over.
const MAX_ITEMS: usize = 65_536;

/// Longest wait for the socket to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A sandbox' status goes through its shim, which may hang: silent for longer, while the runtime
/// answers others, it does.
const SHIM_TIMEOUT: Duration = Duration::from_secs(3);

/// One connection. It never turns into another one behind the caller's back: when it breaks,
/// every call fails, so that a restart of the runtime cannot go unnoticed.
pub(super) struct Connection {
    grpc: Grpc<Channel>,
    limit: Duration,
    counters: Arc<CriCounters>,
    /// The runtime has streaming lists, as far as is known.
    streams: AtomicBool,
    /// The task that reads the runtime's events; ends with the connection.
    events: JoinSet<()>,
    /// Who is at the other end.
    pub(super) peer: Option<DaemonProcess>,
}

impl Connection {
    /// Connects. The error says what to look at.
    pub(super) async fn open(
        socket: &SocketFile,
        proc: &Path,
        limit: Duration,
        counters: Arc<CriCounters>,
    ) -> Result<Self, String> {
        let path = socket.id.path.display();
        let failed = |why: &str| format!("connect to {path}: {why}");
        let connecting = UnixStream::connect(socket.address());
        let stream = match timeout(CONNECT_TIMEOUT.min(limit), connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(refused(&path, &error)),
            Err(_) => return Err(failed("the runtime does not accept connections")),
        };
        let peer =
            stream.peer_cred().ok().and_then(|peer| peer.pid()).and_then(|pid| process(proc, pid));
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
            .map_err(|error| failed(&crate::chain(&error)))?;
        Ok(Self {
            grpc: Grpc::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            limit,
            counters,
            streams: AtomicBool::new(true),
            events: JoinSet::new(),
            peer,
        })
    }

    /// Version.
    pub(super) async fn runtime(&self) -> Result<Runtime, CallFailure> {
        match self.version().await {
            Ok(answer) => {
                let version = answer.runtime_version.trim_start_matches('v').to_owned();
                Ok(Runtime { name: answer.runtime_name, version })
            }
            Err(CallFailure::Lacking(_)) => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                Err(CallFailure::Refused(CriError {
                    text: "Version: the server does not support CRI v1; check that this is the socket of a container \
                           runtime and that its CRI plugin is enabled, and upgrade a runtime that has v1alpha2 only \
                           (containerd before 1.6, CRI-O before 1.23)"
                        .to_owned(),
                    code: Some(Code::Unimplemented),
                }))
            }
            Err(failure) => Err(failure),
        }
    }

    async fn version(&self) -> Result<VersionResponse, CallFailure> {
        self.call(Call::VERSION, VersionRequest { version: "v1".into() }).await
    }

    /// ListPodSandbox: all, or this one. `each` is given them one by one, as they came; if the call
    /// fails, what it was given before is not the list.
    pub(super) async fn sandboxes(
        &self,
        only: Option<&SandboxId>,
        each: impl FnMut(Bytes),
    ) -> Result<(), CallFailure> {
        let filter =
            only.map(|id| PodSandboxFilter { id: id.as_str().to_owned(), ..Default::default() });
        let request = ListPodSandboxRequest { filter };
        let full = only.is_none();
        self.list(Call::LIST_SANDBOXES, Call::STREAM_SANDBOXES, full, request, each).await
    }

    /// ListContainers: all, or those of this sandbox; otherwise as [`Self::sandboxes`].
    pub(super) async fn containers(
        &self,
        only: Option<&SandboxId>,
        each: impl FnMut(Bytes),
    ) -> Result<(), CallFailure> {
        let filter = only.map(|id| ContainerFilter {
            pod_sandbox_id: id.as_str().to_owned(),
            ..Default::default()
        });
        let request = ListContainersRequest { filter };
        let full = only.is_none();
        self.list(Call::LIST_CONTAINERS, Call::STREAM_CONTAINERS, full, request, each).await
    }

    /// A list, streamed if it is a full one and the runtime can: the requests are the same
    /// (a filter under tag 1), and so are the answers, but for a stream there may be many.
    async fn list<Q: prost::Message + Clone + 'static>(
        &self,
        call: Call,
        stream: Call,
        full: bool,
        request: Q,
        mut each: impl FnMut(Bytes),
    ) -> Result<(), CallFailure> {
        if full && self.streams.load(Ordering::Relaxed) {
            match self.stream(stream, request.clone(), &mut each).await {
                Err(CallFailure::Lacking(_)) => self.streams.store(false, Ordering::Relaxed),
                done => return done,
            }
        }
        let list: ItemList = self.call(call, request).await?;
        list.items.into_iter().for_each(each);
        Ok(())
    }

    /// A streamed list, which as a whole has as long as any other call.
    async fn stream<Q: prost::Message + 'static>(
        &self,
        call: Call,
        message: Q,
        mut each: impl FnMut(Bytes),
    ) -> Result<(), CallFailure> {
        let path = call.path();
        let limit = self.limit;
        let mut grpc = self.grpc.clone();
        let answer = async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Q, ItemList>::default();
            let answer = grpc.server_streaming(with_deadline(message, limit), path, codec).await;
            let (mut lists, mut items) = (answer?.into_inner(), 0);
            while let Some(list) = lists.message().await? {
                items += list.items.len();
                if items > MAX_ITEMS {
                    return Err(Status::resource_exhausted("list too long"));
                }
                list.items.into_iter().for_each(&mut each);
            }
            Ok(())
        };
        counted(call, Scope::Runtime, limit, &self.counters, answer).await
    }

    /// ContainerStatus. The answer's `info` is filled only if `verbose`, which costs the runtime
    /// much more.
    pub(super) async fn status(
        &self,
        container: &ContainerId,
        verbose: bool,
    ) -> Result<(RawStatus, HashMap<String, String>), CallFailure> {
        const CALL: Call = Call::CONTAINER_STATUS;
        let request =
            ContainerStatusRequest { container_id: container.as_str().to_owned(), verbose };
        let answer: ContainerStatusAnswer = self.call(CALL, request).await?;
        let status = answer.status.ok_or_else(|| no_status(CALL))?;
        Ok((status.into(), answer.info))
    }

    /// PodSandboxStatus, verbose: it asks the sandbox' shim, and marshals all that the runtime
    /// knows.
    pub(super) async fn sandbox_status(
        &self,
        sandbox: &SandboxId,
    ) -> Result<RawSandboxStatus, CallFailure> {
        const CALL: Call = Call::SANDBOX_STATUS;
        let request =
            PodSandboxStatusRequest { pod_sandbox_id: sandbox.as_str().to_owned(), verbose: true };
        let answer = self.call_about(CALL, Scope::OneThing, request);
        let answer: SandboxStatusAnswer = tokio::select! {
            biased;
            answer = answer => answer?,
            () = self.only_others_answered() => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                return Err(failure::of_silence(CALL, Scope::OneThing, SHIM_TIMEOUT));
            }
        };
        answer.raw().ok_or_else(|| no_status(CALL))
    }

    /// Returns when a call that goes through a shim has been silent for a while and the runtime has
    /// answered another one meanwhile: then it is the shim that hangs, and not the runtime that is
    /// slow. The others wait for that lane, so that it is not kept until the deadline.
    async fn only_others_answered(&self) {
        sleep(SHIM_TIMEOUT).await;
        if self.version().await.is_err() {
            std::future::pending().await
        }
    }

    /// GetContainerEvents, for as long as the connection lives: without a deadline, as an event may
    /// come tomorrow.
    pub(super) fn subscribe(&mut self, pending: Arc<PendingRequests>) {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let path = Call::EVENTS.path();
        let mut grpc = self.grpc.clone();
        let subscription = async move {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<GetEventsRequest, ContainerEvent>::default();
            let answer =
                grpc.server_streaming(Request::new(GetEventsRequest {}), path, codec).await;
            Ok(answer?.into_inner())
        };
        let counters = Arc::clone(&self.counters);
        self.events.spawn(async move { events::follow(subscription, &pending, &counters).await });
    }

    /// A call about the runtime, with the deadline that all have.
    async fn call<Q, A>(&self, call: Call, message: Q) -> Result<A, CallFailure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.call_about(call, Scope::Runtime, message).await
    }

    /// A call about the runtime, or about one thing in it.
    async fn call_about<Q, A>(&self, call: Call, scope: Scope, message: Q) -> Result<A, CallFailure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let path = call.path();
        let limit = self.limit;
        let mut grpc = self.grpc.clone();
        if call.is_about_one() {
            grpc = grpc.max_decoding_message_size(MAX_ABOUT_ONE);
        }
        let answer = async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(with_deadline(message, limit), path, codec).await;
            Ok(answer?.into_inner())
        };
        counted(call, scope, limit, &self.counters, answer).await
    }
}

/// Waits until the channel can take a call. Its error is made here, so that it has a source: it
/// tells of the transport.
async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))
}

/// A request that also tells the runtime when the answer will be of no more use.
fn with_deadline<Q>(message: Q, limit: Duration) -> Request<Q> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Waits for a call's answer for at most `limit`, and counts it.
async fn counted<A>(
    call: Call,
    scope: Scope,
    limit: Duration,
    counters: &CriCounters,
    answer: impl Future<Output = Result<A, Status>>,
) -> Result<A, CallFailure> {
    counters.calls.fetch_add(1, Ordering::Relaxed);
    let begun = Instant::now();
    // A shim that hangs says nothing of the runtime.
    let _waiting = (scope == Scope::Runtime).then(|| counters.latency.begin());
    let failure = match timeout(limit, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        // The runtime watches the deadline, too; as nobody else cancels calls here, it is that.
        Ok(Err(status)) if status.code() == Code::Cancelled && begun.elapsed() >= limit => {
            failure::of_silence(call, scope, limit)
        }
        Ok(Err(status)) => failure::of_status(call, scope, limit, &status),
        Err(_) => failure::of_silence(call, scope, limit),
    };
    // The others are answers, too.
    if matches!(failure, CallFailure::Broken(_) | CallFailure::Refused(_)) {
        counters.errors.fetch_add(1, Ordering::Relaxed);
    }
    Err(failure)
}

/// An item of [`Connection::sandboxes`].
pub(super) fn sandbox(item: Bytes, cuts: &Cuts) -> Result<RawSandbox, InvalidItem> {
    decode::<SandboxItem>(item).map(|item| RawSandbox::from(item).cut(cuts))
}

/// An item of [`Connection::containers`].
pub(super) fn container(item: Bytes, cuts: &Cuts) -> Result<RawContainer, InvalidItem> {
    decode::<ContainerItem>(item).map(|item| RawContainer::from(item).cut(cuts))
}

pub(super) fn decode<M: prost::Message + Default>(item: Bytes) -> Result<M, InvalidItem> {
    M::decode(item).map_err(|_| InvalidItem::Undecodable)
}

fn no_status(call: Call) -> CallFailure {
    let text = format!("{}: response without a status", call.name);
    CallFailure::Refused(CriError::without_code(text))
}

/// Why a socket could not be opened or connected to.
pub(super) fn refused(path: &impl Display, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => {
            "no such socket; check that the runtime runs and that this is its socket".to_owned()
        }
        io::ErrorKind::ConnectionRefused => {
            "connection refused; check that the runtime runs".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; run as root, which owns the socket, and where the host's root is \
             /proc/1/root with SYS_PTRACE and without AppArmor and SELinux confinement"
                .to_owned()
        }
        _ => error.to_string(),
    };
    format!("connect to {path}: {why}")
}

/// The process with this pid and its start time. For a socket that systemd opened the peer is
/// systemd itself (SO_PEERCRED names who listened), which then never changes.
fn process(proc: &Path, pid: i32) -> Option<DaemonProcess> {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let stat = read_stat(&proc.join(pid.to_string()))?;
    Some(DaemonProcess { pid, started: stat.started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_used_until_the_deadline_and_silence_is_an_outage() {
        let limit = Duration::from_secs(60);
        for (takes, answered) in [(15, true), (59, true), (61, false)] {
            let answer = async {
                sleep(Duration::from_secs(takes)).await;
                Ok(takes)
            };
            let counters = CriCounters::default();
            let call = counted(Call::LIST_SANDBOXES, Scope::Runtime, limit, &counters, answer);
            match call.await {
                Ok(_) => assert!(answered, "{takes} s"),
                Err(CallFailure::Broken(_)) => assert!(!answered, "{takes} s"),
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// A runtime whose own clock for the deadline rings first answers `CANCELLED` (tonic's server
    /// does).
    #[tokio::test]
    async fn a_call_that_is_cancelled_at_its_deadline_was_too_slow() {
        let (short, long) = (Duration::from_millis(5), Duration::from_secs(3_600));
        for (limit, takes, code) in
            [(short, short, Code::DeadlineExceeded), (long, Duration::ZERO, Code::Cancelled)]
        {
            let answer = async {
                // In one go, so that the wait for the answer cannot end first.
                std::thread::sleep(takes);
                Err::<(), _>(Status::cancelled("Timeout expired"))
            };
            let counters = CriCounters::default();
            let call = counted(Call::VERSION, Scope::Runtime, limit, &counters, answer);
            let Err(CallFailure::Broken(error)) = call.await else { panic!("{code:?}: no outage") };
            assert_eq!(error.code, Some(code), "{}", error.text);
        }
    }
}
