//! A container runtime that has only the reading half of the CRI: lists and statuses as large and
//! as detailed as containerd's.

use super::census::{CONTAINERS, Plan, digest, image};
use anyhow::Context as _;
use coroner_cri_api::v1;
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task,
};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService},
    transport::Server,
};
use tonic_prost::{ProstCodec, prost::Message as _};

/// The runtime's state; cloning gives another handle on the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Runtime {
    state: Arc<Mutex<ServedState>>,
}

#[derive(Debug, Default)]
struct ServedState {
    sandboxes: BTreeMap<String, v1::PodSandbox>,
    containers: BTreeMap<String, RuntimeContainer>,
}

#[derive(Debug)]
struct RuntimeContainer {
    listed: v1::Container,
    pid: u32,
    started: i64,
    finished: i64,
    exit_code: i32,
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(super) struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Runtime {
    pub(super) fn serve(&self, socket: &Path) -> anyhow::Result<Serving> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let server = Server::builder()
            .add_service(self.clone())
            .serve_with_incoming(UnixListenerStream::new(listener));
        Ok(Serving(tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::warn!("the synthetic runtime ended: {error}");
            }
        })))
    }

    fn lock(&self) -> MutexGuard<'_, ServedState> {
        // Every change is one insertion or one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RunPodSandbox.
    pub(super) fn run_sandbox(&self, plan: &Plan, uid: &str) {
        let mut labels: HashMap<String, String> =
            plan.labels().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        labels.extend(pod_labels(plan, uid));
        let mut annotations: HashMap<String, String> =
            plan.annotations().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        annotations.insert("kubernetes.io/config.seen".into(), "2026-11-21T10:04:56.1Z".into());
        annotations.insert("kubernetes.io/config.source".into(), "api".into());
        let sandbox = v1::PodSandbox {
            id: plan.sandbox(),
            metadata: Some(v1::PodSandboxMetadata {
                name: plan.name.clone(),
                uid: uid.into(),
                namespace: plan.namespace.clone(),
                attempt: 0,
            }),
            state: v1::PodSandboxState::SandboxReady.into(),
            created_at: now(),
            labels,
            annotations,
            runtime_handler: String::new(),
        };
        self.lock().sandboxes.insert(sandbox.id.clone(), sandbox);
    }

    /// CreateContainer and StartContainer.
    pub(super) fn run_container(&self, plan: &Plan, uid: &str, name: &str, pid: u32) {
        let mut labels: HashMap<String, String> = pod_labels(plan, uid).into();
        labels.insert("io.kubernetes.container.name".into(), name.into());
        let annotations = [
            ("io.kubernetes.container.hash", &digest(name)[..8]),
            (
                "io.kubernetes.container.ports",
                r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#,
            ),
            (
                "io.kubernetes.container.preStopHandler",
                r#"{"exec":{"command":["/bin/drain","--wait"]}}"#,
            ),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "30"),
        ];
        let started = now();
        let listed = v1::Container {
            id: plan.container(name),
            pod_sandbox_id: plan.sandbox(),
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image(name), ..Default::default() }),
            image_ref: format!("sha256:{}", digest(name)),
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: started,
            labels,
            annotations: annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..Default::default()
        };
        let held = RuntimeContainer { pid, started, finished: 0, exit_code: 0, listed };
        self.lock().containers.insert(held.listed.id.clone(), held);
    }

    /// The runtime has noticed that a container's main process ended.
    pub(super) fn exited(&self, container: &str, exit_code: i32) {
        if let Some(held) = self.lock().containers.get_mut(container) {
            held.listed.state = v1::ContainerState::ContainerExited.into();
            (held.finished, held.exit_code, held.pid) = (now(), exit_code, 0);
        }
    }

    pub(super) fn stop_sandbox(&self, sandbox: &str) {
        if let Some(sandbox) = self.lock().sandboxes.get_mut(sandbox) {
            sandbox.state = v1::PodSandboxState::SandboxNotready.into();
        }
    }

    /// RemoveContainer for each of a pod's.
    pub(super) fn remove_containers(&self, plan: &Plan) {
        for name in CONTAINERS {
            self.lock().containers.remove(&plan.container(name));
        }
    }

    pub(super) fn remove_sandbox(&self, sandbox: &str) {
        self.lock().sandboxes.remove(sandbox);
    }

    /// Bytes of the two full lists.
    pub(super) fn lists(&self) -> usize {
        let sandboxes = self.list_sandboxes(Default::default()).map(|list| list.encoded_len());
        let containers = self.list_containers(Default::default()).map(|list| list.encoded_len());
        sandboxes.unwrap_or_default() + containers.unwrap_or_default()
    }

    fn version(&self, _: v1::VersionRequest) -> Result<v1::VersionResponse, Status> {
        Ok(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "containerd".into(),
            runtime_version: "v1.7.24".into(),
            runtime_api_version: "v1".into(),
        })
    }

    fn list_sandboxes(
        &self,
        request: v1::ListPodSandboxRequest,
    ) -> Result<v1::ListPodSandboxResponse, Status> {
        let only = request.filter.unwrap_or_default().id;
        let mut items: Vec<v1::PodSandbox> = match only.as_str() {
            "" => self.lock().sandboxes.values().cloned().collect(),
            only => self.lock().sandboxes.get(only).cloned().into_iter().collect(),
        };
        for item in &mut items {
            reorder(&mut item.labels);
            reorder(&mut item.annotations);
        }
        Ok(v1::ListPodSandboxResponse { items })
    }

    fn list_containers(
        &self,
        request: v1::ListContainersRequest,
    ) -> Result<v1::ListContainersResponse, Status> {
        let only = request.filter.unwrap_or_default().pod_sandbox_id;
        let state = self.lock();
        let all = state.containers.values().map(|held| &held.listed);
        let mut containers: Vec<v1::Container> =
            all.filter(|one| only.is_empty() || one.pod_sandbox_id == only).cloned().collect();
        for container in &mut containers {
            reorder(&mut container.labels);
            reorder(&mut container.annotations);
        }
        Ok(v1::ListContainersResponse { containers })
    }

    fn container_status(
        &self,
        request: v1::ContainerStatusRequest,
    ) -> Result<v1::ContainerStatusResponse, Status> {
        let id = request.container_id;
        let state = self.lock();
        let held = state.containers.get(&id).ok_or_else(|| {
            Status::not_found(format!(
                "an error occurred when try to find container {id:?}: not found"
            ))
        })?;
        let listed = held.listed.clone();
        let exited = held.finished != 0;
        let reason = match (exited, held.exit_code) {
            (false, _) => "",
            (true, 0) => "Completed",
            (true, _) => "Error",
        };
        let status = v1::ContainerStatus {
            id: listed.id,
            metadata: listed.metadata,
            state: listed.state,
            created_at: listed.created_at,
            started_at: held.started,
            finished_at: held.finished,
            exit_code: held.exit_code,
            image: listed.image,
            image_ref: listed.image_ref,
            reason: reason.into(),
            labels: listed.labels,
            annotations: listed.annotations,
            log_path: format!("/var/log/pods/{id}/0.log"),
            ..Default::default()
        };
        let info = match request.verbose {
            true => verbose(held.pid),
            false => HashMap::new(),
        };
        Ok(v1::ContainerStatusResponse { status: Some(status), info })
    }

    fn sandbox_status(
        &self,
        request: v1::PodSandboxStatusRequest,
    ) -> Result<v1::PodSandboxStatusResponse, Status> {
        let id = request.pod_sandbox_id;
        let state = self.lock();
        let sandbox = state.sandboxes.get(&id).cloned().ok_or_else(|| {
            Status::not_found(format!(
                "an error occurred when try to find sandbox {id:?}: not found"
            ))
        })?;
        let status = v1::PodSandboxStatus {
            id: sandbox.id,
            metadata: sandbox.metadata,
            state: sandbox.state,
            created_at: sandbox.created_at,
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.88.0.7".into(),
                additional_ips: Vec::new(),
            }),
            labels: sandbox.labels,
            annotations: sandbox.annotations,
            ..Default::default()
        };
        let info = if request.verbose { verbose(0) } else { HashMap::new() };
        Ok(v1::PodSandboxStatusResponse { status: Some(status), info, ..Default::default() })
    }
}

/// What containerd's `info` is about: the pid, and an OCI specification of some kilobytes.
/// In another order each time, as Go's maps are: no two answers of containerd are the same bytes.
fn reorder(map: &mut HashMap<String, String>) {
    *map = std::mem::take(map).into_iter().collect();
}

fn verbose(pid: u32) -> HashMap<String, String> {
    let info = json!({
        "pid": pid,
        "runtimeType": "io.containerd.runc.v2",
        "runtimeSpec": { "ociVersion": "1.2.0", "process": { "env": vec!["OPTION=value"; 200] } },
    });
    HashMap::from([("info".to_owned(), info.to_string())])
}

fn pod_labels(plan: &Plan, uid: &str) -> [(String, String); 3] {
    [
        ("io.kubernetes.pod.name".into(), plan.name.clone()),
        ("io.kubernetes.pod.namespace".into(), plan.namespace.clone()),
        ("io.kubernetes.pod.uid".into(), uid.into()),
    ]
}

/// ns since the epoch.
fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

impl NamedService for Runtime {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl Service<http::Request<Body>> for Runtime {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let me = self.clone();
        Box::pin(async move {
            /// One call: decode, answer, encode.
            macro_rules! unary {
                ($answer:ident) => {
                    Grpc::new(ProstCodec::default())
                        .unary(
                            tower::service_fn(|request: Request<_>| {
                                std::future::ready(
                                    me.$answer(request.into_inner()).map(Response::new),
                                )
                            }),
                            request,
                        )
                        .await
                };
            }
            let call = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            Ok(match call.as_str() {
                "Version" => unary!(version),
                "ListPodSandbox" => unary!(list_sandboxes),
                "ListContainers" => unary!(list_containers),
                "ContainerStatus" => unary!(container_status),
                "PodSandboxStatus" => unary!(sandbox_status),
                _ => Status::unimplemented(format!("unknown method {call}")).into_http(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner::sources::{
        cri::{convert::ContainerInfo, fuzzing},
        cut::Cuts,
    };

    #[test]
    fn a_containers_life_as_the_agent_reads_it() {
        let (runtime, plan) = (Runtime::default(), Plan::of(1, 3));
        runtime.run_sandbox(&plan, "uid");
        runtime.run_container(&plan, "uid", "checkout", 7);
        let all = runtime.list_sandboxes(Default::default()).expect("a list").encode_to_vec();
        let sandbox = fuzzing::sandboxes(&all).expect("a list").remove(0).expect("sense");
        assert!(sandbox.ready && sandbox.pod == "uid".into() && sandbox.name == plan.name);
        let all = runtime.list_containers(Default::default()).expect("a list").encode_to_vec();
        let container = fuzzing::containers(&all).expect("a list").remove(0).expect("sense");
        assert_eq!((container.grace_seconds, container.sandbox), (Some(30), sandbox.id));
        let asked = || v1::ContainerStatusRequest {
            container_id: plan.container("checkout"),
            verbose: true,
        };
        let info = runtime.container_status(asked()).expect("a status").info;
        assert_eq!(ContainerInfo::parse(&info["info"], &Cuts::default()).pid, Some(7));

        runtime.exited(&plan.container("checkout"), 143);
        runtime.stop_sandbox(&plan.sandbox());
        let status = runtime.container_status(asked()).expect("a status").status.expect("one");
        assert_eq!((status.exit_code, status.reason.as_str()), (143, "Error"));
        assert!(status.finished_at >= status.started_at);
        runtime.remove_containers(&plan);
        assert!(runtime.container_status(asked()).is_err());
        runtime.remove_sandbox(&plan.sandbox());
        assert!(runtime.list_sandboxes(Default::default()).expect("a list").items.is_empty());
    }
}
