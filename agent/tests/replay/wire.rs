//! CRI-O end to end: its recorded answers go over a socket of a runtime inside the test and through the adapter; what
//! comes out, with what kernel and apiserver showed at the time, must be the recording's truth. So the shape of CRI-O is
//! covered as it is on a node: sandboxes without a pause process, containers in `crio-<id>.scope/container`, a conmon
//! in a scope that bears its container's id, an event stream that ends at once, a runtime that goes and comes back.

use crate::{
    RECORDINGS, dir, import,
    runtime::{Call, Events, FakeRuntime, Serving},
    tells_its_truth,
    things::{StatusAnswer, StatusPart},
};
use coroner::sources::cri::{self, CriOptions};
use coroner_core::{
    input::{CriEvent, Input, Received},
    output::CriRequest,
    time::BootTime,
};
use coroner_cri_api::v1;
use serde_json::Value;
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Ends a test that would wait for ever; nothing is measured by it.
const STUCK: Duration = Duration::from_secs(60);

/// The adapter, and the runtime that it is connected to.
struct Wire {
    runtime: FakeRuntime,
    serving: Option<Serving>,
    socket: PathBuf,
    events: mpsc::Receiver<Received>,
    requests: mpsc::Sender<CriRequest>,
    /// What the adapter reported, at the times of the recording.
    inputs: Vec<Received>,
    _folder: TempDir,
}

impl Wire {
    /// Connected, with the lists that come first.
    async fn start(at: BootTime) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("crio.sock");
        let runtime = FakeRuntime::default();
        {
            let mut state = runtime.state();
            (state.named, state.events) = (Some(("cri-o", "1.36.3")), Events::Disabled);
        }
        let serving = Some(runtime.serve(&socket));
        let options = CriOptions {
            events: true,
            idle: Duration::from_secs(3_600), // lists come when they are asked for
            timeout: STUCK,
            ..CriOptions::new(socket.clone())
        };
        let (to, events) = mpsc::channel(64);
        let (requests, asked) = mpsc::channel(4);
        tokio::spawn(cri::run(options, to, asked));
        let inputs = Vec::new();
        let mut wire = Self { runtime, serving, socket, events, requests, inputs, _folder: folder };
        wire.listen(at).await;
        wire
    }

    /// Takes what comes until this is so of it.
    async fn until(&mut self, at: BootTime, is_last: impl Fn(&CriEvent) -> bool) {
        loop {
            let received = tokio::time::timeout(STUCK, self.events.recv());
            let received = received.await.expect("it never came").expect("the adapter ended");
            let Input::Cri(event) = received.input else { panic!("{received:?}") };
            let event = match event {
                // This test's own, whichever runtime it plays.
                CriEvent::Connected { runtime, .. } => {
                    CriEvent::Connected { runtime, process: None }
                }
                event => event,
            };
            let last = is_last(&event);
            self.inputs.push(Received { at, input: Input::Cri(import::asked_at(event, at)) });
            if last {
                return;
            }
        }
    }

    /// To the end of a full list, and what is asked because of it.
    async fn listen(&mut self, at: BootTime) {
        self.until(at, |event| matches!(event, CriEvent::Containers { only: None, .. })).await;
        let exited = |state: &crate::runtime::RuntimeState| {
            let ended = v1::ContainerState::ContainerExited as i32;
            let of = |one: &v1::Container| (one.state == ended).then(|| one.id.clone());
            state.containers.iter().filter_map(of).collect::<Vec<_>>()
        };
        let ended = exited(&self.runtime.state());
        for id in ended {
            let is_told = |received: &Received| matches!(&received.input, Input::Cri(CriEvent::ContainerExited(exit)) if exit.container.as_str() == id);
            if !self.inputs.iter().any(is_told) {
                self.until(at, |event| matches!(event, CriEvent::ContainerExited(_))).await;
            }
        }
    }

    async fn list(&mut self, at: BootTime) {
        self.requests.send(CriRequest::PollNow(None)).await.unwrap();
        self.listen(at).await;
    }
}

/// The lines of a recording's `cri.jsonl` as the adapter reports them.
async fn over_the_wire(name: &str) -> Vec<Received> {
    let lines = import::lines(&dir(name).join("cri.jsonl"));
    let ended: HashMap<String, StatusPart> =
        lines.iter().filter_map(|line| line.get("ContainerStatus")).map(status).collect();
    let mut wire = Wire::start(import::at(&lines[0])).await;
    let mut last = import::at(&lines[0]);
    for line in &lines {
        let at = import::at(line);
        if line.get("error").is_some() {
            wire.serving.take().expect("it serves").kill();
            wire.requests.send(CriRequest::PollNow(None)).await.unwrap();
            wire.until(at, |event| matches!(event, CriEvent::Unreachable { .. })).await;
        } else if wire.serving.is_some() && at - import::POLL > last {
            // The unchanged poll just before, which was not written.
            wire.list(at - import::POLL).await;
        }
        {
            let mut state = wire.runtime.state();
            if let Some(list) = line.get("ListPodSandbox") {
                state.sandboxes = import::items(&list["items"]).map(sandbox).collect();
            } else if let Some(list) = line.get("ListContainers") {
                state.containers = import::items(&list["containers"]).map(container).collect();
                state.statuses =
                    state.containers.iter().map(|one| status_of(one, &ended)).collect();
            }
        }
        if line.get("error").is_none() && line.get("ContainerStatus").is_none() {
            if wire.serving.is_none() {
                wire.serving = Some(wire.runtime.serve(&wire.socket));
                wire.listen(at).await;
            } else {
                wire.list(at).await;
            }
        }
        last = at;
    }
    let calls = wire.runtime.state().calls.clone();
    let made = |call: &Call| calls.iter().filter(|one| *one == call).count();
    let outages = lines.iter().filter(|line| line.get("error").is_some()).count();
    assert_eq!(made(&Call::Events), 1 + outages, "{name}: asked for events once a connection");
    wire.inputs
}

fn metadata(value: &Value) -> (String, u32) {
    (import::text(&value["metadata"]["name"]), import::number(&value["metadata"]["attempt"]) as u32)
}

fn sandbox(value: &Value) -> v1::PodSandbox {
    let raw = import::raw_sandbox(value);
    v1::PodSandbox {
        id: raw.id,
        metadata: Some(v1::PodSandboxMetadata {
            name: raw.name,
            uid: raw.uid,
            namespace: raw.namespace,
            attempt: raw.attempt,
        }),
        state: raw.state,
        created_at: raw.created_at,
        labels: raw.labels,
        annotations: raw.annotations,
        runtime_handler: raw.handler,
    }
}

fn container(value: &Value) -> v1::Container {
    let raw = import::raw_container(value);
    let (name, attempt) = metadata(value);
    v1::Container {
        id: raw.id,
        pod_sandbox_id: raw.sandbox,
        metadata: Some(v1::ContainerMetadata { name, attempt }),
        state: raw.state,
        created_at: raw.created_at,
        labels: raw.labels,
        annotations: raw.annotations,
        ..Default::default()
    }
}

/// Of a container that has ended.
fn status(line: &Value) -> (String, StatusPart) {
    let raw = import::raw_status(&line["status"]);
    let status = StatusPart {
        id: raw.id.clone(),
        state: raw.state,
        started_at: raw.started_at,
        finished_at: raw.finished_at,
        exit_code: raw.exit_code,
        reason: raw.reason,
        stop_signal: raw.stop_signal,
    };
    (raw.id, status)
}

/// What ContainerStatus answers as long as the list shows this of it.
fn status_of(
    container: &v1::Container,
    ended: &HashMap<String, StatusPart>,
) -> (String, StatusAnswer) {
    let id = container.id.clone();
    let mut status = ended.get(&id).cloned().unwrap_or_default();
    if container.state != v1::ContainerState::ContainerExited as i32 {
        status = StatusPart {
            id: id.clone(),
            state: container.state,
            started_at: status.started_at,
            ..Default::default()
        };
    }
    (id, StatusAnswer { status: Some(status), info: HashMap::new() })
}

#[tokio::test]
async fn what_crio_answers_over_its_socket_gives_the_recordings_truth() {
    let of_crio: Vec<_> = RECORDINGS.into_iter().filter(|name| name.contains("-crio")).collect();
    assert_eq!(of_crio.len(), 9);
    for name in of_crio {
        let mut recording = import::load(&dir(name));
        recording.inputs.retain(|received| !matches!(received.input, Input::Cri(_)));
        recording.inputs.extend(over_the_wire(name).await);
        recording.inputs.sort_by_key(|received| received.at);
        tells_its_truth(name, recording);
    }
}

/// The recordings have what the test above is for.
#[test]
fn the_recordings_show_the_shape_of_crio() {
    let cgroups = |name: &str| {
        let inputs = import::load(&dir(name)).inputs.into_iter();
        let names = inputs.filter_map(|received| match received.input {
            Input::Kernel(event) => match event.fact {
                coroner_core::input::KernelFact::CgroupCreated { name, .. } => Some(name),
                _ => None,
            },
            _ => None,
        });
        Arc::<[String]>::from(names.collect::<Vec<_>>())
    };
    let with_crun = cgroups("k1.36-crio1.36-systemd/sigterm-ignored");
    assert!(with_crun.iter().any(|path| path.ends_with(".scope/container")), "{with_crun:?}");
    // A sandbox without a process of its own: a plain directory.
    let is_sandbox = |path: &&String| {
        path.rsplit('/').next().is_some_and(|leaf| leaf.starts_with("crio-") && !leaf.contains('.'))
    };
    assert_eq!(with_crun.iter().filter(is_sandbox).count(), 1, "{with_crun:?}");
    let in_pod = cgroups("k1.33-crio1.36-systemd/prestop-then-handled");
    assert!(in_pod.iter().any(|path| path.contains("/crio-conmon-")), "{in_pod:?}");
}
