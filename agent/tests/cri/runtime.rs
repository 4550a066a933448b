//! A container runtime inside the test: serves the reading calls of the CRI on a unix socket,
//! remembers every call made to it, and can be killed as hard as a process.

use crate::server::Server;
use coroner_cri_api::read::{
    self, ContainerState,
    image_service_server::{ImageService, ImageServiceServer},
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};
use prost::{Message, bytes::Bytes};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::{net::UnixListener, sync::RwLock};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server as TonicServer};

/// A call that was made, with its filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Version,
    Sandboxes(String),
    Containers(String),
    Status(String),
    SandboxStatus(String),
    Image(String),
}

/// What the runtime has, and what was asked of it.
#[derive(Default)]
pub(crate) struct RuntimeState {
    /// It does not have the service: it is no runtime, or speaks v1alpha2 only.
    pub(crate) lacks_v1: bool,
    /// RuntimeName and RuntimeVersion.
    pub(crate) named: Option<(&'static str, &'static str)>,
    pub(crate) sandboxes: Vec<read::PodSandbox>,
    pub(crate) containers: Vec<read::Container>,
    pub(crate) statuses: HashMap<String, read::ContainerStatusResponse>,
    /// The next ContainerStatus calls fail with these.
    pub(crate) status_failures: Vec<Status>,
    /// What PodSandboxStatus says; of others, that they do not exist.
    pub(crate) sandbox_statuses: HashMap<String, Result<read::PodSandboxStatusResponse, Status>>,
    pub(crate) calls: Vec<Call>,
}

impl RuntimeState {
    /// A sandbox with a container in this state, that was started with this stop signal.
    pub(crate) fn add(&mut self, container: &str, of: &str, state: ContainerState, signal: i32) {
        self.sandboxes.push(sandbox(of));
        self.containers.push(self::container(container, of, state));
        self.statuses.insert(container.into(), status(container, state, signal));
    }

    /// A sandbox with a container that has exited.
    pub(crate) fn add_exited(&mut self, container: &str, sandbox: &str) {
        self.add(container, sandbox, ContainerState::ContainerExited, 0);
    }
}

/// The runtime's state outlives its server, as a real one's does.
#[derive(Clone, Default)]
pub(crate) struct FakeRuntime {
    state: Arc<Mutex<RuntimeState>>,
    /// Full lists wait as long as a test holds this for writing.
    pub(crate) full: Arc<RwLock<()>>,
    /// Version waits as long as a test holds this for writing.
    pub(crate) versions: Arc<RwLock<()>>,
    /// A PodSandboxStatus waits as long as a test holds this for writing.
    pub(crate) shims: Arc<RwLock<()>>,
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

    /// Serves at `socket`, in place of an earlier server.
    pub(crate) fn serve(&self, socket: &Path) -> Server {
        let _ = std::fs::remove_file(socket);
        let socket = std::os::unix::net::UnixListener::bind(socket).expect("the socket");
        socket.set_nonblocking(true).expect("the socket");
        let service = RuntimeServiceServer::new(self.clone());
        let images = ImageServiceServer::new(self.clone());
        Server::start(async move {
            let listener = UnixListener::from_std(socket).expect("the socket");
            let incoming = UnixListenerStream::new(listener);
            TonicServer::builder()
                .add_service(service)
                .add_service(images)
                .serve_with_incoming(incoming)
                .await
        })
    }

    fn called(&self, call: Call) {
        self.state().calls.push(call);
    }

    /// Those of a list that were asked for.
    async fn listed<T: Message>(&self, all: Vec<T>, only: &str, of: fn(&T) -> &str) -> Vec<Bytes> {
        if only.is_empty() {
            drop(self.full.read().await);
        }
        let wanted = all.iter().filter(|one| only.is_empty() || of(one) == only);
        wanted.map(|one| one.encode_to_vec().into()).collect()
    }
}

type Answer<T> = Result<Response<T>, Status>;

/// What a list shows is what there was when it was asked for; it may be answered much later.
#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(&self, _: Request<read::VersionRequest>) -> Answer<read::VersionResponse> {
        if self.state().lacks_v1 {
            return Err(Status::unimplemented("unknown service"));
        }
        self.called(Call::Version);
        drop(self.versions.read().await);
        let (name, version) = self.state().named.unwrap_or(("containerd", "v1.7.24"));
        Ok(Response::new(read::VersionResponse {
            runtime_name: name.into(),
            runtime_version: version.into(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<read::ListPodSandboxRequest>,
    ) -> Answer<read::ListPodSandboxResponse> {
        let only = request.into_inner().filter.unwrap_or_default().id;
        self.called(Call::Sandboxes(only.clone()));
        let all = self.state().sandboxes.clone();
        let items = self.listed(all, &only, |one| &one.id).await;
        Ok(Response::new(read::ListPodSandboxResponse { items }))
    }

    async fn list_containers(
        &self,
        request: Request<read::ListContainersRequest>,
    ) -> Answer<read::ListContainersResponse> {
        let only = request.into_inner().filter.unwrap_or_default().pod_sandbox_id;
        self.called(Call::Containers(only.clone()));
        let all = self.state().containers.clone();
        let items = self.listed(all, &only, |one| &one.pod_sandbox_id).await;
        Ok(Response::new(read::ListContainersResponse { items }))
    }

    async fn container_status(
        &self,
        request: Request<read::ContainerStatusRequest>,
    ) -> Answer<read::ContainerStatusResponse> {
        let read::ContainerStatusRequest { container_id: container, verbose } =
            request.into_inner();
        self.called(Call::Status(container.clone()));
        let mut state = self.state();
        if !state.status_failures.is_empty() {
            return Err(state.status_failures.remove(0));
        }
        let mut found = state.statuses.get(&container).cloned();
        found.iter_mut().filter(|_| !verbose).for_each(|found| found.info.clear());
        let missing = || Status::not_found(format!("no container {container}"));
        found.map(Response::new).ok_or_else(missing)
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<read::PodSandboxStatusRequest>,
    ) -> Answer<read::PodSandboxStatusResponse> {
        let read::PodSandboxStatusRequest { pod_sandbox_id: sandbox, verbose } =
            request.into_inner();
        self.called(Call::SandboxStatus(sandbox.clone()));
        if !verbose {
            return Err(Status::invalid_argument("what is wanted stands in the info"));
        }
        let _alive = self.shims.read().await;
        let found = self.state().sandbox_statuses.get(&sandbox).cloned();
        let missing = || Err(Status::not_found(format!("no sandbox {sandbox}")));
        found.unwrap_or_else(missing).map(Response::new)
    }
}

/// Its only image has the stop signal SIGQUIT.
#[tonic::async_trait]
impl ImageService for FakeRuntime {
    async fn image_status(
        &self,
        request: Request<read::ImageStatusRequest>,
    ) -> Answer<read::ImageStatusResponse> {
        let image = request.into_inner().image.unwrap_or_default().image;
        self.called(Call::Image(image.clone()));
        if image != "sha256:quit" {
            return Err(Status::unknown("no such image"));
        }
        let info = r#"{"imageSpec":{"config":{"StopSignal":"SIGQUIT"}}}"#;
        let info = HashMap::from([("info".into(), info.into())]);
        Ok(Response::new(read::ImageStatusResponse { info }))
    }
}

/// Labels or annotations.
pub(crate) fn entries(pairs: &[(&str, &str)]) -> Vec<Bytes> {
    let entry =
        |(key, value): &(&str, &str)| read::Entry { key: (*key).into(), value: (*value).into() };
    pairs.iter().map(|pair| entry(pair).encode_to_vec().into()).collect()
}

/// A sandbox that makes sense.
pub(crate) fn sandbox(id: &str) -> read::PodSandbox {
    read::PodSandbox {
        id: id.into(),
        metadata: Some(read::PodSandboxMetadata {
            name: format!("pod-{id}"),
            uid: format!("uid-{id}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        created_at: 1,
        ..Default::default()
    }
}

/// A container that makes sense.
pub(crate) fn container(id: &str, sandbox: &str, state: ContainerState) -> read::Container {
    read::Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        metadata: Some(read::ContainerMetadata { name: format!("name-{id}"), attempt: 0 }),
        state: state.into(),
        created_at: 1,
        ..Default::default()
    }
}

/// A container's status.
pub(crate) fn status(
    id: &str,
    state: ContainerState,
    stop_signal: i32,
) -> read::ContainerStatusResponse {
    let exited = state == ContainerState::ContainerExited;
    read::ContainerStatusResponse {
        status: Some(read::ContainerStatus {
            id: id.into(),
            state: state.into(),
            started_at: 5,
            finished_at: if exited { 9 } else { 0 },
            exit_code: if exited { 143 } else { 0 },
            reason: if exited { "Error".into() } else { String::new() },
            stop_signal,
            ..Default::default()
        }),
        info: HashMap::new(),
    }
}

/// A verbose sandbox status as containerd answers: one in a network of its own.
pub(crate) fn sandbox_status(info: &str) -> read::PodSandboxStatusResponse {
    let ip = |text: &str| read::PodIp { ip: text.into() };
    read::PodSandboxStatusResponse {
        status: Some(read::PodSandboxStatus {
            network: Some(read::PodSandboxNetworkStatus {
                ip: "10.88.0.2".into(),
                additional_ips: vec![ip("fd00::2")],
            }),
            linux: Some(read::LinuxPodSandboxStatus {
                namespaces: Some(read::Namespace {
                    options: Some(read::NamespaceOption::default()),
                }),
            }),
        }),
        info: HashMap::from([("info".into(), info.into())]),
    }
}
