//! One connection to the runtime: the calls that read, each with a deadline, and what it means if one gives no answer.

use super::{
    CriCounters,
    convert::{self, Items},
};
use crate::linux::{procfs::read_stat, socket_file::SocketFile};
use coroner_core::{
    ids::{ContainerId, SandboxId},
    input::{CriContainer, CriSandbox, DaemonProcess},
};
use coroner_cri_api::read::{
    ContainerFilter, ContainerStatusRequest, ContainerStatusResponse, ImageSpec,
    ImageStatusRequest, ImageStatusResponse, ListContainersRequest, ListPodSandboxRequest,
    PodSandboxFilter, PodSandboxStatusRequest, PodSandboxStatusResponse, VersionRequest,
    image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
};
use hyper_util::rt::TokioIo;
use std::{
    error::Error as _,
    fmt::Display,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    net::UnixStream,
    time::{sleep, timeout},
};
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::ServiceExt;

/// The largest message either way: the limit of the kubelet (cri-client, `maxMsgSize`) and of
/// containerd (`DefaultMaxRecvMsgSize`). gRPC's own 4 MiB are too little for a node that leaks.
const MAX_MESSAGE: usize = 16 << 20;

/// The largest answer about one sandbox or container. A verbose status has the pod's annotations three times and a
/// container's environment twice; a pod that makes it longer hides no more than itself.
const MAX_ABOUT_ONE: usize = 4 << 20;

/// Longest wait for the socket to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A sandbox's status goes through its shim, which may hang: silent for longer, while the runtime
/// answers others, it does.
const SHIM_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CallFailure {
    /// The connection is of no more use.
    Broken(CriError),
    /// The runtime answered that it could not, or with more than a message may hold; the
    /// connection is good.
    Refused(CriError),
    NotFound,
}

/// An error with what to do about it, and the status's code, where a call got that far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CriError {
    pub(super) text: String,
    pub(super) code: Option<Code>,
}

impl CriError {
    /// The code as gRPC spells it (`DEADLINE_EXCEEDED`).
    pub(super) fn code(&self) -> Option<String> {
        let mut spelled = String::new();
        for letter in format!("{:?}", self.code?).chars() {
            if letter.is_uppercase() && !spelled.is_empty() {
                spelled.push('_');
            }
            spelled.push(letter);
        }
        Some(spelled.to_uppercase())
    }
}

impl From<CallFailure> for CriError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Broken(error) | CallFailure::Refused(error) => error,
            CallFailure::NotFound => Self {
                text: "the runtime answered NotFound".to_owned(),
                code: Some(Code::NotFound),
            },
        }
    }
}

/// What a call is about, which decides what its failure means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    All,
    One,
    /// Behind it is a shim that may hang or be dead, so that whatever the runtime answers
    /// (`UNAVAILABLE` too), or that it is late, says nothing of the connection.
    Shim,
}

/// One connection. It never turns into another one behind the caller's back: when it breaks,
/// every call fails, so that a restart of the runtime cannot go unnoticed.
pub(super) struct Connection {
    channel: Channel,
    limit: Duration,
    counters: Arc<CriCounters>,
    /// The process at the other end.
    pub(super) peer: Option<DaemonProcess>,
}

impl Connection {
    /// Connects.
    pub(super) async fn open(
        socket: &SocketFile,
        proc: &Path,
        limit: Duration,
        counters: Arc<CriCounters>,
    ) -> Result<Self, CallFailure> {
        let path = socket.id.path.display();
        let failed = |text| {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            CallFailure::Broken(CriError { text, code: None })
        };
        let connecting = UnixStream::connect(socket.address());
        let stream = match timeout(CONNECT_TIMEOUT.min(limit), connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failed(refused(&path, &error))),
            Err(_) => {
                let why = "the runtime does not accept connections";
                return Err(failed(format!("connect to {path}: {why}")));
            }
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
            .map_err(|error| failed(format!("connect to {path}: {}", crate::chain(&error))))?;
        Ok(Self { channel, limit, counters, peer })
    }

    /// Version: name and version of the runtime, `containerd 1.7.24`.
    pub(super) async fn runtime(&self) -> Result<String, CallFailure> {
        let request = VersionRequest { version: "v1".into() };
        let answer =
            self.call("Version", Scope::All, async |mut client| client.version(request).await);
        match answer.await {
            Ok(answer) => {
                let version = answer.runtime_version.trim_start_matches('v');
                Ok(format!("{} {version}", answer.runtime_name))
            }
            Err(CallFailure::Refused(CriError { code: Some(Code::Unimplemented), .. })) => {
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

    /// ListPodSandbox: all, or this one.
    pub(super) async fn sandboxes(
        &self,
        only: Option<&SandboxId>,
    ) -> Result<Items<CriSandbox>, CallFailure> {
        let filter = only.map(|id| PodSandboxFilter { id: id.as_str().to_owned() });
        let request = ListPodSandboxRequest { filter };
        let answer = self.call("ListPodSandbox", scope_of(only), async |client| {
            client.max_decoding_message_size(MAX_MESSAGE).list_pod_sandbox(request).await
        });
        Ok(convert::sandboxes(answer.await?, &self.counters.truncated))
    }

    /// ListContainers: all, or those of this sandbox.
    pub(super) async fn containers(
        &self,
        only: Option<&SandboxId>,
    ) -> Result<Items<CriContainer>, CallFailure> {
        let filter = only.map(|id| ContainerFilter { pod_sandbox_id: id.as_str().to_owned() });
        let request = ListContainersRequest { filter };
        let answer = self.call("ListContainers", scope_of(only), async |client| {
            client.max_decoding_message_size(MAX_MESSAGE).list_containers(request).await
        });
        Ok(convert::containers(answer.await?, &self.counters.truncated))
    }

    /// ContainerStatus. The answer's `info` is filled only if `verbose`, which costs the runtime
    /// much more.
    pub(super) async fn status(
        &self,
        container: &ContainerId,
        verbose: bool,
    ) -> Result<ContainerStatusResponse, CallFailure> {
        let request =
            ContainerStatusRequest { container_id: container.as_str().to_owned(), verbose };
        self.call("ContainerStatus", Scope::One, async |mut client| {
            client.container_status(request).await
        })
        .await
    }

    /// ImageStatus, verbose: only the image's configuration has its stop signal.
    pub(super) async fn image_status(
        &self,
        image: &str,
    ) -> Result<ImageStatusResponse, CallFailure> {
        let image = Some(ImageSpec { image: image.to_owned() });
        let request = ImageStatusRequest { image, verbose: true };
        // A runtime without this service works as well.
        self.call_on("ImageStatus", Scope::Shim, async |channel| {
            let client = ImageServiceClient::new(channel);
            client.max_decoding_message_size(MAX_ABOUT_ONE).image_status(request).await
        })
        .await
    }

    /// PodSandboxStatus, verbose: the runtime asks the sandbox's shim, and marshals all that it
    /// knows.
    pub(super) async fn sandbox_status(
        &self,
        sandbox: &SandboxId,
    ) -> Result<PodSandboxStatusResponse, CallFailure> {
        const CALL: &str = "PodSandboxStatus";
        let request =
            PodSandboxStatusRequest { pod_sandbox_id: sandbox.as_str().to_owned(), verbose: true };
        let answer = self
            .call(CALL, Scope::Shim, async |mut client| client.pod_sandbox_status(request).await);
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.only_others_answered() => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                Err(of_silence(CALL, Scope::Shim, SHIM_TIMEOUT))
            }
        }
    }

    /// Returns when the runtime has answered another call while one that goes through a shim is
    /// silent: then it is the shim that hangs, and not the runtime that is slow. Other sandboxes wait for
    /// that call, so that it is not kept until the deadline.
    async fn only_others_answered(&self) {
        sleep(SHIM_TIMEOUT).await;
        if self.runtime().await.is_err() {
            std::future::pending().await
        }
    }

    /// Makes a call, waits for its answer for at most the limit, and counts its failure.
    async fn call<A>(
        &self,
        name: &'static str,
        scope: Scope,
        ask: impl AsyncFnOnce(RuntimeServiceClient<Channel>) -> Result<Response<A>, Status>,
    ) -> Result<A, CallFailure> {
        self.call_on(name, scope, async |channel| {
            let client = RuntimeServiceClient::new(channel);
            ask(client.max_decoding_message_size(MAX_ABOUT_ONE)).await
        })
        .await
    }

    async fn call_on<A>(
        &self,
        name: &'static str,
        scope: Scope,
        ask: impl AsyncFnOnce(Channel) -> Result<Response<A>, Status>,
    ) -> Result<A, CallFailure> {
        // A shim that hangs says nothing of the runtime.
        let _waiting = (scope != Scope::Shim).then(|| self.counters.latency.begin());
        let answer = async {
            // Waited for here, because the client's error would not say that it is of the transport.
            let ready = self.channel.clone().ready_oneshot().await;
            let channel = ready.map_err(|error| Status::from_error(Box::new(error)))?;
            ask(channel).await
        };
        let failure = match timeout(self.limit, answer).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => of_status(name, scope, &status),
            Err(_) => of_silence(name, scope, self.limit),
        };
        // That a container is gone is an answer, too.
        if failure != CallFailure::NotFound {
            self.counters.errors.fetch_add(1, Ordering::Relaxed);
        }
        Err(failure)
    }
}

fn scope_of(only: Option<&SandboxId>) -> Scope {
    if only.is_none() { Scope::All } else { Scope::One }
}

fn of_status(call: &str, scope: Scope, status: &Status) -> CallFailure {
    let (code, message) = (status.code(), status.message());
    // Only statuses made on this side have a source: they are of the transport.
    let transport = status.source().is_some();
    let (text, code) = match code {
        Code::NotFound => return CallFailure::NotFound,
        // ResourceExhausted is how Go's gRPC names it, OutOfRange how tonic does.
        Code::ResourceExhausted | Code::OutOfRange => {
            let text = format!(
                "{call}: response too large for one message. The CRI's limit is 16 MiB (about 11,000 containers): {message}"
            );
            (text, code)
        }
        _ if transport => {
            // As Go's gRPC does: whatever this side's library made of it, nothing was reached.
            let text = format!("{call}: {}", crate::chain(status));
            return CallFailure::Broken(CriError { text, code: Some(Code::Unavailable) });
        }
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled if scope != Scope::Shim => {
            let text = format!("{call}: {}", crate::chain(status));
            return CallFailure::Broken(CriError { text, code: Some(code) });
        }
        code => (format!("{call}: {code:?}: {message}"), code),
    };
    CallFailure::Refused(CriError { text, code: Some(code) })
}

fn of_silence(call: &str, scope: Scope, limit: Duration) -> CallFailure {
    let text = format!("{call}: no answer within {limit:?}");
    let error = CriError { text, code: Some(Code::DeadlineExceeded) };
    match scope {
        Scope::Shim => CallFailure::Refused(error),
        _ => CallFailure::Broken(error),
    }
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
/// systemd itself (SO_PEERCRED names the process that listened), which then never changes.
fn process(proc: &Path, pid: i32) -> Option<DaemonProcess> {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let stat = read_stat(&proc.join(pid.to_string()))?;
    Some(DaemonProcess { pid, started: stat.started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_status_means() {
        let transport = || Status::from_error(Box::new(io::Error::other("reset")));
        for (status, broken, broken_for_one, code) in [
            (Status::unavailable("gone"), true, false, "UNAVAILABLE"),
            (Status::deadline_exceeded("late"), true, false, "DEADLINE_EXCEEDED"),
            (Status::cancelled("h2"), true, false, "CANCELLED"),
            (transport(), true, true, "UNAVAILABLE"),
            (Status::unknown("shim"), false, false, "UNKNOWN"),
            (Status::permission_denied("no"), false, false, "PERMISSION_DENIED"),
            (Status::resource_exhausted("too large"), false, false, "RESOURCE_EXHAUSTED"),
            (Status::out_of_range("too large"), false, false, "OUT_OF_RANGE"),
            (Status::unimplemented("unknown method"), false, false, "UNIMPLEMENTED"),
        ] {
            for (scope, broken) in [(Scope::All, broken), (Scope::Shim, broken_for_one)] {
                let failure = of_status("ListContainers", scope, &status);
                assert_eq!(matches!(failure, CallFailure::Broken(_)), broken, "{failure:?}");
                let error = CriError::from(failure);
                assert_eq!(error.code().as_deref(), Some(code));
                assert!(error.text.contains("ListContainers"), "{}", error.text);
                assert_eq!(error.text.contains("16 MiB"), status.message() == "too large");
            }
        }
        let missing = of_status("ContainerStatus", Scope::One, &Status::not_found("c1"));
        assert_eq!(missing, CallFailure::NotFound);
        let silence = |scope| of_silence("PodSandboxStatus", scope, SHIM_TIMEOUT);
        assert!(matches!(silence(Scope::All), CallFailure::Broken(_)));
        let CallFailure::Refused(error) = silence(Scope::Shim) else { panic!("an outage") };
        assert!(error.text.contains("3s"), "{}", error.text);
    }
}
