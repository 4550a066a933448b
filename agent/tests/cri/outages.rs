//! Runtimes that are away, come back, or are not the one: those that nobody named are found below the host's root, as a
//! pod of the DaemonSet finds them.

use super::{
    bench::{CriBench, NEVER, STUCK, exited, outage, wait_until},
    runtime::{FakeRuntime, sandbox},
};
use crate::server::Server;
use coroner::sources::cri::CriOptions;
use coroner_core::input::CriEvent;
use std::{fs, time::Duration};
use tempfile::TempDir;

#[tokio::test]
async fn a_killed_runtime_is_told_once_and_met_again() {
    let mut bench = CriBench::new(FakeRuntime::with_exited(), Duration::from_millis(5));
    bench.until(exited).await;

    bench.serving.take().expect("it serves").kill();
    let (error, code) = bench.until(outage).await;
    assert!(!error.is_empty());
    assert_eq!(code.as_deref(), Some("UNAVAILABLE"));
    // Some attempts fail meanwhile.
    let before = bench.errors();
    wait_until("two more errors", || bench.errors() >= before + 2).await;
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Connected { .. }), "{next:?}");
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Sandboxes { only: None, .. }), "{next:?}");
    for _ in 0..3 {
        bench.list_without(exited).await;
    }
}

/// A file in the place of the host's root: an unreadable folder is read by root all the same.
#[tokio::test]
async fn a_missing_socket_and_a_closed_root_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("closed"), "").unwrap();
    for (root, wanted) in [(".", "no such socket"), ("closed", "/nobody.sock")] {
        let mut bench = CriBench::with(FakeRuntime::default(), |options| {
            options.host_root = folder.path().join(root);
            options.endpoint = Some("/nobody.sock".into());
        });
        let (error, code) = bench.until(outage).await;
        assert!(error.contains("/nobody.sock") && error.contains(wanted), "{error}");
        assert_eq!(code, None);
    }
}

#[tokio::test]
async fn a_runtime_without_v1_is_an_outage_with_a_remedy_and_is_asked_again() {
    let runtime = FakeRuntime::default();
    runtime.state().lacks_v1 = true;
    let mut bench = CriBench::new(runtime, NEVER);
    let (error, code) = bench.until(outage).await;
    assert!(error.contains("upgrade") && error.contains("socket"), "{error}");
    assert_eq!(code.as_deref(), Some("UNIMPLEMENTED"));
    assert!(bench.errors() > 0);
    // As when the plugin was only not ready yet.
    bench.runtime.state().lacks_v1 = false;
    bench.full_list().await;
}

const DOCKERS: &str = "/run/containerd/containerd.sock";
const K3S: &str = "/run/k3s/containerd/containerd.sock";

/// A host's root, with a cgroup of the pod of sandbox `s1`.
fn host() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("cgroup/kubepods/burstable/poduid-s1")).unwrap();
    root
}

/// A runtime at this place of the host, which has the pods of these sandboxes.
fn serve(root: &TempDir, at: &str, sandboxes: &[&str]) -> (FakeRuntime, Server) {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes.extend(sandboxes.iter().map(|id| sandbox(id)));
    let socket = root.path().join(at.trim_start_matches('/'));
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let serving = runtime.serve(&socket);
    (runtime, serving)
}

/// The adapter on this host.
fn discover(root: &TempDir) -> CriBench {
    CriBench::with(FakeRuntime::default(), |options| {
        *options = CriOptions {
            host_root: root.path().into(),
            cgroup_root: Some(root.path().join("cgroup")),
            timeout: STUCK,
            ..CriOptions::new(None)
        }
    })
}

/// The socket of the next connection.
async fn connected(bench: &mut CriBench) -> String {
    bench.until(|event| matches!(event, CriEvent::Connected { .. }).then_some(())).await;
    bench.options.dialed.get().expect("it is connected").path.display().to_string()
}

#[tokio::test]
async fn the_only_runtime_is_taken() {
    let root = host();
    let mut bench = discover(&root);
    let (error, _) = bench.until(outage).await;
    for wanted in [DOCKERS, K3S, "k0s", "set --runtime-endpoint"] {
        assert!(error.contains(wanted), "{error}");
    }
    let _serving = serve(&root, K3S, &[]);
    assert_eq!(connected(&mut bench).await, K3S, "it came later");
}

#[tokio::test]
async fn of_two_runtimes_it_is_the_one_with_this_nodes_pods_or_the_one_that_speaks_the_cri() {
    for (lacks_v1, pods) in [(false, &["s1"][..]), (true, &[])] {
        let root = host();
        let (dockers, _dockers) = serve(&root, DOCKERS, &["s2"]);
        dockers.state().lacks_v1 = lacks_v1;
        let (k3s, serving) = serve(&root, K3S, pods);
        let mut bench = discover(&root);
        assert_eq!(connected(&mut bench).await, K3S);
        // It stays the one: what is away for a moment is not replaced by its neighbour.
        k3s.state().sandboxes.clear();
        serving.kill();
        let socket = root.path().join(K3S.trim_start_matches('/'));
        fs::remove_file(&socket).unwrap();
        let (error, _) = bench.until(|event| outage(event).filter(|(e, _)| !e.is_empty())).await;
        assert!(!error.contains(DOCKERS), "{error}");
        let _serving = k3s.serve(&socket);
        assert_eq!(connected(&mut bench).await, K3S);
    }
}

#[tokio::test]
async fn where_it_cannot_be_told_both_are_named() {
    let root = host();
    let _both = (serve(&root, DOCKERS, &["s2"]), serve(&root, K3S, &["s3"]));
    let mut bench = discover(&root);
    let (error, _) = bench.until(outage).await;
    for wanted in [DOCKERS, K3S, "containerd 1.7.24, 0 of its 1 pods", "set --runtime-endpoint"] {
        assert!(error.contains(wanted), "{error}");
    }
    assert_eq!(bench.options.dialed.get(), None);
    // The first pod that the kubelet starts tells.
    fs::create_dir(root.path().join("cgroup/kubepods/poduid-s3")).unwrap();
    assert_eq!(connected(&mut bench).await, K3S);
}
