//! A container runtime inside the test: serves the reading calls of the CRI on a unix socket,
//! remembers every call made to it, and can be killed as hard as a process.

use crate::things::{
    self, ListAll, StatusAnswer, StreamContainersResponse, StreamPodSandboxesResponse,
};
use coroner_cri_api::v1;
use futures::stream::{self, BoxStream, StreamExt};
use std::{
    collections::HashMap,
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::UnixListener,
    runtime::Runtime,
    sync::{RwLock, broadcast},
};
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService},
    transport::Server,
};
use tonic_prost::ProstCodec;

/// Ends a test that would wait for ever; nothing is measured by it.
const STUCK: Duration = Duration::from_secs(60);

/// A call that was made, with its filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Version,
    Sandboxes(String),
    Containers(String),
    Events,
    SandboxStream,
    ContainerStream,
    Status {
        container: String,
        verbose: bool,
    },
    SandboxStatus {
        sandbox: String,
        verbose: bool,
    },
    /// None of these.
    Other(String),
}

/// What becomes of a subscription to container events.
#[derive(Clone, Default)]
pub(crate) enum Events {
    #[default]
    Unimplemented,
    /// The stream ends at once, as in CRI-O by default.
    Disabled,
    /// All that is sent there, from then on; its end breaks the stream off.
    Sent(broadcast::Sender<v1::ContainerEventResponse>),
}

/// What the runtime has, and what was asked of it.
#[derive(Default)]
pub(crate) struct RuntimeState {
    /// It does not have the service: it is no runtime, or speaks v1alpha2 only.
    pub(crate) lacks_v1: bool,
    /// It has streaming lists, with so many items in each message.
    pub(crate) streams: Option<usize>,
    pub(crate) events: Events,
    /// Streaming lists break off after their first message.
    pub(crate) breaks_off: bool,
    /// RuntimeName and RuntimeVersion.
    pub(crate) named: Option<(&'static str, &'static str)>,
    pub(crate) sandboxes: Vec<v1::PodSandbox>,
    pub(crate) containers: Vec<v1::Container>,
    pub(crate) statuses: HashMap<String, StatusAnswer>,
    /// The next ContainerStatus calls fail with these.
    pub(crate) status_failures: Vec<Status>,
    /// What PodSandboxStatus says; of others, that they do not exist.
    pub(crate) sandbox_statuses: HashMap<String, Result<v1::PodSandboxStatusResponse, Status>>,
    pub(crate) calls: Vec<Call>,
}

impl RuntimeState {
    /// A sandbox with a container that has exited.
    pub(crate) fn add_exited(&mut self, container: &str, sandbox: &str) {
        let exited = v1::ContainerState::ContainerExited;
        self.sandboxes.push(things::sandbox(sandbox));
        self.containers.push(things::container(container, sandbox, exited));
        self.statuses.insert(container.into(), things::status(container, exited, 0));
    }
}

/// The runtime's state outlives its server, as a real one's does.
#[derive(Clone, Default)]
pub(crate) struct FakeRuntime {
    state: Arc<Mutex<RuntimeState>>,
    /// All lists wait as long as somebody holds this for writing.
    pub(crate) lists: Arc<RwLock<()>>,
    /// Full lists wait as long as somebody holds this for writing.
    pub(crate) full: Arc<RwLock<()>>,
    /// Version waits as long as somebody holds this for writing.
    pub(crate) versions: Arc<RwLock<()>>,
    /// A PodSandboxStatus waits as long as somebody holds this for writing.
    pub(crate) shims: Arc<RwLock<()>>,
}

/// A running server; dies with [`Serving::kill`].
pub(crate) struct Serving(Option<Runtime>);

impl Serving {
    /// Ends everything at once, connections included: when this returns, nobody serves.
    pub(crate) fn kill(mut self) {
        let runtime = self.0.take().expect("it runs");
        // In a thread of its own: no runtime may wait for another's end.
        let killer = std::thread::spawn(move || runtime.shutdown_timeout(STUCK));
        killer.join().expect("the runtime ends");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl FakeRuntime {
    /// One with the sandbox `s1`, whose container `c1` has exited.
    pub(crate) fn with_exited() -> Self {
        let me = Self::default();
        me.state().add_exited("c1", "s1");
        me
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, RuntimeState> {
        self.state.lock().expect("no test panics while it holds this")
    }

    /// Serves at `socket`, in place of whoever did before.
    pub(crate) fn serve(&self, socket: &Path) -> Serving {
        let _ = std::fs::remove_file(socket);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(socket).expect("the socket")
        };
        runtime.spawn(
            Server::builder()
                .add_service(self.clone())
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        Serving(Some(runtime))
    }

    fn called(&self, call: Call) {
        self.state().calls.push(call);
    }

    async fn version(&self, _: v1::VersionRequest) -> v1::VersionResponse {
        self.called(Call::Version);
        drop(self.versions.read().await);
        let (name, version) = self.state().named.unwrap_or(("containerd", "v1.7.24"));
        v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: name.into(),
            runtime_version: version.into(),
            runtime_api_version: "v1".into(),
        }
    }

    /// What a list shows is what there was when it was asked for; it may be answered much later.
    async fn answers(&self, only: &str) {
        drop(self.lists.read().await);
        if only.is_empty() {
            drop(self.full.read().await);
        }
    }

    async fn sandboxes(&self, request: v1::ListPodSandboxRequest) -> v1::ListPodSandboxResponse {
        let only = request.filter.unwrap_or_default().id;
        self.called(Call::Sandboxes(only.clone()));
        let all = self.state().sandboxes.clone();
        self.answers(&only).await;
        let items = all.into_iter().filter(|one| only.is_empty() || one.id == only).collect();
        v1::ListPodSandboxResponse { items }
    }

    async fn containers(&self, request: v1::ListContainersRequest) -> v1::ListContainersResponse {
        let only = request.filter.unwrap_or_default().pod_sandbox_id;
        self.called(Call::Containers(only.clone()));
        let all = self.state().containers.clone();
        self.answers(&only).await;
        let containers =
            all.into_iter().filter(|one| only.is_empty() || one.pod_sandbox_id == only).collect();
        v1::ListContainersResponse { containers }
    }

    /// A streamed list of all: its messages.
    fn stream<I: Clone, M>(
        &self,
        call: Call,
        all: impl Fn(&RuntimeState) -> &Vec<I>,
        message: impl Fn(Vec<I>) -> M,
    ) -> Result<Stream<M>, Status> {
        self.called(call);
        let state = self.state();
        let size = state.streams.ok_or_else(|| Status::unimplemented("unknown method"))?;
        let mut messages: Vec<_> =
            all(&state).chunks(size).map(|items| Ok(message(items.to_vec()))).collect();
        if state.breaks_off {
            messages.truncate(1);
            messages.push(Err(Status::internal("the rest is lost")));
        }
        Ok(tokio_stream::iter(messages))
    }

    fn events(
        &self,
    ) -> Result<BoxStream<'static, Result<v1::ContainerEventResponse, Status>>, Status> {
        // With one lock: who sees the call may count on the subscription.
        let mut state = self.state();
        state.calls.push(Call::Events);
        match &state.events {
            Events::Unimplemented => Err(Status::unimplemented("unknown method")),
            Events::Disabled => Ok(stream::empty().boxed()),
            Events::Sent(events) => {
                let sent = BroadcastStream::new(events.subscribe());
                let sent = sent.map(|event| event.map_err(|_| Status::internal("too slow")));
                let end = stream::once(async { Err(Status::internal("no more events")) });
                Ok(sent.chain(end).boxed())
            }
        }
    }

    fn status(&self, request: v1::ContainerStatusRequest) -> Result<StatusAnswer, Status> {
        let v1::ContainerStatusRequest { container_id: container, verbose } = request;
        self.called(Call::Status { container: container.clone(), verbose });
        let mut state = self.state();
        if !state.status_failures.is_empty() {
            return Err(state.status_failures.remove(0));
        }
        let found = state.statuses.get(&container).cloned();
        found.ok_or_else(|| Status::not_found(format!("no container {container}")))
    }

    async fn sandbox_status(
        &self,
        request: v1::PodSandboxStatusRequest,
    ) -> Result<v1::PodSandboxStatusResponse, Status> {
        let v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox, verbose } = request;
        self.called(Call::SandboxStatus { sandbox: sandbox.clone(), verbose });
        let _alive = self.shims.read().await;
        let found = self.state().sandbox_statuses.get(&sandbox).cloned();
        found.unwrap_or_else(|| Err(Status::not_found(format!("no sandbox {sandbox}"))))
    }
}

type Stream<M> = tokio_stream::Iter<std::vec::IntoIter<Result<M, Status>>>;

impl NamedService for FakeRuntime {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl Service<http::Request<Body>> for FakeRuntime {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if self.state().lacks_v1 {
            let answer = Status::unimplemented("unknown service").into_http();
            return Box::pin(std::future::ready(Ok(answer)));
        }
        self.serve_call(request)
    }
}

impl FakeRuntime {
    fn serve_call(
        &self,
        request: http::Request<Body>,
    ) -> BoxFuture<http::Response<Body>, Infallible> {
        let me = self.clone();
        let call = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            /// One call: decode, let `$answer` work, encode.
            macro_rules! unary {
                ($request:ident, $answer:expr) => {
                    Grpc::new(ProstCodec::default())
                        .unary(
                            tower::service_fn(|$request: Request<_>| {
                                let $request = $request.into_inner();
                                let me = me.clone();
                                async move {
                                    let me = &me;
                                    $answer(me, $request).await.map(Response::new)
                                }
                            }),
                            request,
                        )
                        .await
                };
            }
            /// One call that is answered by a stream.
            macro_rules! streaming {
                ($request:ty, $answer:expr) => {
                    Grpc::new(ProstCodec::default())
                        .server_streaming(
                            tower::service_fn(|_: Request<$request>| {
                                std::future::ready($answer.map(Response::new))
                            }),
                            request,
                        )
                        .await
                };
            }
            Ok(match call.as_str() {
                "StreamPodSandboxes" => streaming!(
                    ListAll,
                    me.stream(
                        Call::SandboxStream,
                        |state| &state.sandboxes,
                        |pod_sandboxes| StreamPodSandboxesResponse { pod_sandboxes },
                    )
                ),
                "StreamContainers" => streaming!(
                    ListAll,
                    me.stream(
                        Call::ContainerStream,
                        |state| &state.containers,
                        |containers| StreamContainersResponse { containers },
                    )
                ),
                "GetContainerEvents" => streaming!(v1::GetEventsRequest, me.events()),
                "Version" => unary!(asked, async |me: &Self, asked| Ok(me.version(asked).await)),
                "ListPodSandbox" => {
                    unary!(asked, async |me: &Self, asked| Ok(me.sandboxes(asked).await))
                }
                "ListContainers" => {
                    unary!(asked, async |me: &Self, asked| Ok(me.containers(asked).await))
                }
                "ContainerStatus" => unary!(asked, async |me: &Self, asked| me.status(asked)),
                "PodSandboxStatus" => {
                    unary!(asked, async |me: &Self, asked| me.sandbox_status(asked).await)
                }
                _ => {
                    me.called(Call::Other(call));
                    Status::unimplemented("not a call that only reads").into_http()
                }
            })
        })
    }
}
