//! Runtimes that nobody named: found below the host's root, as a pod of the DaemonSet finds them.

use super::{
    bench::{STUCK, outage},
    runtime::{FakeRuntime, Serving},
    things::sandbox,
};
use coroner::sources::cri::{self, CriOptions, Dialed};
use coroner_core::input::{CriEvent, Input, Received};
use std::{path::Path, sync::Arc};
use tempfile::TempDir;
use tokio::sync::mpsc;

const DOCKERS: &str = "/run/containerd/containerd.sock";
const K3S: &str = "/run/k3s/containerd/containerd.sock";

/// A host's root, with a cgroup of the pod of sandbox `s1`.
fn host() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("cgroup/kubepods/burstable/poduid-s1")).unwrap();
    root
}

fn serve(root: &TempDir, runtime: &FakeRuntime, at: &str) -> Serving {
    let socket = root.path().join(at.trim_start_matches('/'));
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    runtime.serve(&socket)
}

fn with_sandbox(id: &str) -> FakeRuntime {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes.push(sandbox(id));
    runtime
}

struct Adapter {
    events: mpsc::Receiver<Received>,
    dialed: Arc<Dialed>,
}

impl Adapter {
    fn start(root: &TempDir) -> Self {
        let options = CriOptions {
            host_root: root.path().into(),
            cgroup_root: Some(root.path().join("cgroup")),
            timeout: STUCK,
            ..CriOptions::new(None)
        };
        let dialed = Arc::clone(&options.dialed);
        let (to, events) = mpsc::channel(64);
        let (requests, asked) = mpsc::channel(4);
        tokio::spawn(async move {
            let _requests = requests;
            cri::run(options, to, asked).await
        });
        Self { events, dialed }
    }

    async fn until<T>(&mut self, pick: impl Fn(CriEvent) -> Option<T>) -> T {
        let picked = async {
            loop {
                let received = self.events.recv().await.expect("the adapter ended");
                if let Input::Cri(event) = received.input
                    && let Some(picked) = pick(event)
                {
                    return picked;
                }
            }
        };
        tokio::time::timeout(STUCK, picked).await.expect("it never came")
    }

    /// The socket of the next connection.
    async fn connected(&mut self) -> String {
        self.until(|event| matches!(event, CriEvent::Connected { .. }).then_some(())).await;
        self.dialed.get().expect("it is connected").path.display().to_string()
    }
}

#[tokio::test]
async fn the_only_runtime_is_taken() {
    let root = host();
    let mut adapter = Adapter::start(&root);
    let (error, _) = adapter.until(outage).await;
    for wanted in [DOCKERS, K3S, "k0s", "set --runtime-endpoint"] {
        assert!(error.contains(wanted), "{error}");
    }
    let _serving = serve(&root, &FakeRuntime::default(), K3S);
    assert_eq!(adapter.connected().await, K3S, "it came later");
}

#[tokio::test]
async fn of_two_runtimes_it_is_the_one_with_this_nodes_pods() {
    for dockers in [FakeRuntime::default(), with_sandbox("s2")] {
        let root = host();
        let _dockers = serve(&root, &dockers, DOCKERS);
        let k3s = with_sandbox("s1");
        let serving = serve(&root, &k3s, K3S);
        let mut adapter = Adapter::start(&root);
        assert_eq!(adapter.connected().await, K3S);
        // It stays the one: what is away for a moment is not replaced by its neighbour.
        k3s.state().sandboxes.clear();
        serving.kill();
        std::fs::remove_file(root.path().join(K3S.trim_start_matches('/'))).unwrap();
        let (error, _) = adapter.until(|event| outage(event).filter(|(e, _)| !e.is_empty())).await;
        assert!(!error.contains(DOCKERS), "{error}");
        let _serving = serve(&root, &k3s, K3S);
        assert_eq!(adapter.connected().await, K3S);
    }
}

#[tokio::test]
async fn what_does_not_speak_the_cri_is_no_runtime() {
    let root = host();
    let dockers = FakeRuntime::default();
    dockers.state().lacks_v1 = true;
    let _dockers = serve(&root, &dockers, DOCKERS);
    let _k3s = serve(&root, &FakeRuntime::default(), K3S);
    assert_eq!(Adapter::start(&root).connected().await, K3S);
}

#[tokio::test]
async fn where_it_cannot_be_told_both_are_named() {
    let root = host();
    let (_one, _other) =
        (serve(&root, &with_sandbox("s2"), DOCKERS), serve(&root, &with_sandbox("s3"), K3S));
    let mut adapter = Adapter::start(&root);
    let (error, _) = adapter.until(outage).await;
    for wanted in [DOCKERS, K3S, "containerd 1.7.24, 0 of its 1 pods", "set --runtime-endpoint"] {
        assert!(error.contains(wanted), "{error}");
    }
    assert_eq!(adapter.dialed.get(), None);
    // The first pod that the kubelet starts tells.
    std::fs::create_dir(root.path().join("cgroup/kubepods/poduid-s3")).unwrap();
    assert_eq!(adapter.connected().await, K3S);
}

/// An unreadable folder in the place of the host's root is read by root all the same; a file is not.
#[tokio::test]
async fn a_closed_root_is_named_with_what_opens_it() {
    let root = host();
    std::fs::write(root.path().join("closed"), "").unwrap();
    let options =
        CriOptions { host_root: root.path().join("closed"), ..CriOptions::new(Some(K3S.into())) };
    let (to, mut events) = mpsc::channel(4);
    let (_requests, asked) = mpsc::channel(4);
    tokio::spawn(cri::run(options, to, asked));
    let first = tokio::time::timeout(STUCK, events.recv()).await.unwrap().unwrap();
    let Input::Cri(CriEvent::Unreachable { error, .. }) = first.input else { panic!("{first:?}") };
    assert!(error.contains(K3S) && !Path::new(K3S).exists(), "{error}");
}
