//! The apiserver adapter against a scripted apiserver over plain HTTP.

pub(crate) mod apiserver;
mod events;
mod events_lookup;
mod hostile;
mod lookup;

use crate::server::{STUCK, wait_until};
use apiserver::{FakeApiserver, Script, status_object};
use coroner::sources::kube::{self, KubeCounters, KubeOptions};
use coroner_core::ids::PodRef;
use coroner_core::input::{ApiEvent, ApiPod, Input, Received};
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

pub(crate) fn pod(name: &str, version: u64) -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": format!("uid-{name}"),
            "resourceVersion": version.to_string(),
        },
        "spec": { "containers": [{ "name": "main" }] },
    })
}

fn names(pods: &[ApiPod]) -> Vec<&str> {
    pods.iter().map(|pod| pod.name.as_str()).collect()
}

/// Writes one of this user.
pub(crate) fn kubeconfig(folder: &Path, server: &str, user: &Value) -> std::path::PathBuf {
    let path = folder.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    });
    std::fs::write(&path, text.to_string()).expect("the kubeconfig");
    path
}

/// The adapter, running, and an apiserver for it.
struct KubeBench {
    server: FakeApiserver,
    events: mpsc::Receiver<Received>,
    counters: Arc<KubeCounters>,
    ask: mpsc::Sender<Vec<PodRef>>,
    _folder: TempDir,
}

impl KubeBench {
    fn new(script: Script) -> Self {
        let server = FakeApiserver::start(script);
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = KubeOptions::new("n1");
        options.spread = Duration::ZERO; // a fleet's agents wait for a random time: one alone need not
        let url = format!("http://{}", server.address);
        options.kubeconfig = Some(kubeconfig(folder.path(), &url, &json!({})));
        let counters = Arc::clone(&options.counters);
        let (to, events) = mpsc::channel(16);
        let (ask, requests) = mpsc::channel(16);
        tokio::spawn(kube::run(options, to, requests));
        Self { server, events, counters, ask, _folder: folder }
    }

    /// One with these pods, listed and with its first watch open.
    async fn in_sync(names: &[&str]) -> (Self, apiserver::OpenWatch) {
        let pods = names.iter().map(|name| pod(name, 7)).collect();
        let mut bench = Self::new(Script { pods, version: 10, ..Script::default() });
        let ApiEvent::Snapshot { pods } = bench.event().await else { panic!("no snapshot") };
        assert_eq!(self::names(&pods), names);
        let watch = bench.server.watch().await;
        assert_eq!(watch.from, "10");
        (bench, watch)
    }

    /// The next event of the watch; the answers to questions come between, whenever they come.
    async fn event(&mut self) -> ApiEvent {
        let is_of_pods = |event: &ApiEvent| !is_answer(event) && !is_clock(event);
        next(&mut self.events, is_of_pods).await
    }

    async fn out_of_sync(&mut self) -> String {
        match self.event().await {
            ApiEvent::OutOfSync { error } => error,
            other => panic!("not out of sync but {other:?}"),
        }
    }

    async fn snapshot(&mut self) -> Vec<ApiPod> {
        match self.event().await {
            ApiEvent::Snapshot { pods } => pods,
            other => panic!("no snapshot but {other:?}"),
        }
    }
}

fn is_answer(event: &ApiEvent) -> bool {
    matches!(event, ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. } | ApiEvent::Checked { .. })
}

fn is_clock(event: &ApiEvent) -> bool {
    matches!(event, ApiEvent::Clock { .. })
}

/// The next event that is wanted.
async fn next(
    events: &mut mpsc::Receiver<Received>,
    is_wanted: impl Fn(&ApiEvent) -> bool,
) -> ApiEvent {
    loop {
        let received = tokio::time::timeout(STUCK, events.recv()).await.expect("no event came");
        match received.expect("the adapter ended").input {
            Input::Api(event) if is_wanted(&event) => return event,
            Input::Api(_) => {}
            other => panic!("not of the apiserver: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_list_and_what_follows_but_for_nonsense() {
    let mut anonymous = pod("anonymous", 7);
    anonymous["metadata"]["uid"] = json!("");
    let mut mistyped = pod("mistyped", 7);
    mistyped["spec"]["terminationGracePeriodSeconds"] = json!("thirty");
    let pods = vec![anonymous.clone(), pod("a", 7), mistyped, pod("b", 7)];
    let mut bench = KubeBench::new(Script { pods, version: 10, ..Script::default() });
    assert_eq!(names(&bench.snapshot().await), ["a", "b"]);
    let watch = bench.server.watch().await;
    watch.event("MODIFIED", anonymous).await;
    watch.event("ADDED", pod("c", 11)).await;
    let mut dying = pod("c", 12);
    dying["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:35:35Z");
    dying["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    watch.event("MODIFIED", dying.clone()).await;
    dying["metadata"]["resourceVersion"] = json!("13");
    watch.event("DELETED", dying).await;
    let ApiEvent::Applied(added) = bench.event().await else { panic!("not added") };
    assert_eq!((&*added.name, added.deletion_grace_seconds), ("c", None));
    let ApiEvent::Applied(modified) = bench.event().await else { panic!("not modified") };
    assert_eq!((&*modified.name, modified.deletion_grace_seconds), ("c", Some(30)));
    let ApiEvent::Deleted(deleted) = bench.event().await else { panic!("not deleted") };
    assert_eq!(deleted.name, "c");
    assert_eq!(bench.counters.skipped.load(Ordering::Relaxed), 3);
    assert!(bench.server.script().selectors.iter().all(|one| one == "spec.nodeName=n1"));
}

#[tokio::test]
async fn a_watch_tells_the_apiservers_clock() {
    let mut bench = KubeBench::new(Script { version: 10, ..Script::default() });
    let ApiEvent::Clock { date, .. } = next(&mut bench.events, is_clock).await else { panic!() };
    let now = coroner::linux::clock::anchor().wall_ns;
    assert!((now - 5_000_000_000..=now).contains(&date.0), "{date}");
}

#[tokio::test]
async fn a_watch_that_ends_goes_on_from_its_last_bookmark() {
    let (mut bench, watch) = KubeBench::in_sync(&["a"]).await;
    let bookmark =
        json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": "50" } });
    watch.event("BOOKMARK", bookmark).await;
    drop(watch);
    let watch = bench.server.watch().await;
    assert_eq!(watch.from, "50");
    watch.event("DELETED", pod("a", 51)).await;
    // An end that the protocol foresees is no outage.
    assert!(matches!(bench.event().await, ApiEvent::Deleted(_)));
}

#[tokio::test]
async fn a_connection_cut_within_a_line_loses_nothing() {
    let (mut bench, watch) = KubeBench::in_sync(&["a"]).await;
    watch.event("ADDED", pod("b", 11)).await;
    assert!(matches!(bench.event().await, ApiEvent::Applied(_)));
    let line = json!({ "type": "DELETED", "object": pod("b", 12) }).to_string();
    watch.raw(&line[..line.len() / 2]).await;
    watch.cut().await;
    let watch = bench.server.watch().await;
    assert_eq!(watch.from, "11", "the half line must not count");
    watch.raw(&format!("{line}\n")).await;
    let mut next = bench.event().await;
    // Whether the cut shows as an end or as an error is the HTTP library's matter.
    if matches!(next, ApiEvent::OutOfSync { .. }) {
        assert_eq!(bench.event().await, ApiEvent::Resumed);
        next = bench.event().await;
    }
    let ApiEvent::Deleted(deleted) = next else { panic!("not deleted but {next:?}") };
    assert_eq!(deleted.name, "b");
}

#[tokio::test]
async fn each_outage_is_reported_once_and_its_end_without_waiting_for_an_event() {
    let (mut bench, mut watch) = KubeBench::in_sync(&["a"]).await;
    for version in 10..12 {
        bench.server.kill();
        drop(watch);
        bench.out_of_sync().await;
        let errors = || bench.counters.errors.load(Ordering::Relaxed);
        let before = errors();
        wait_until("two more errors", || errors() >= before + 2).await;
        bench.server.serve();
        watch = bench.server.watch().await;
        assert_eq!(watch.from, version.to_string());
        assert_eq!(bench.event().await, ApiEvent::Resumed);
        watch.event("ADDED", pod("b", version + 1)).await;
        assert!(matches!(bench.event().await, ApiEvent::Applied(_)));
    }
}

#[tokio::test]
async fn a_deletion_missed_in_an_outage_is_in_the_next_list() {
    let (mut bench, watch) = KubeBench::in_sync(&["a", "b"]).await;
    bench.server.kill();
    drop(watch);
    bench.out_of_sync().await;
    {
        let mut script = bench.server.script();
        script.pods.remove(0);
        script.version = 90;
        script.watch_failures.push_back(410);
    }
    bench.server.serve();
    assert_eq!(names(&bench.snapshot().await), ["b"]);
    assert_eq!(bench.server.watch().await.from, "90");
}

/// What is lost may have been a deletion.
#[tokio::test]
async fn gone_as_an_event_or_a_line_that_cannot_be_read_is_followed_by_a_list() {
    let gone = json!({ "type": "ERROR", "object": status_object(410) }).to_string();
    for (line, said) in [(gone.as_str(), "410"), ("}garbage{", "invalid JSON")] {
        let (mut bench, watch) = KubeBench::in_sync(&["a", "b"]).await;
        bench.server.script().pods.remove(1);
        bench.server.script().version = 90;
        watch.raw(&format!("{line}\n")).await;
        let error = bench.out_of_sync().await;
        assert!(error.contains(said), "{error}");
        assert_eq!(names(&bench.snapshot().await), ["a"]);
        assert_eq!(bench.server.watch().await.from, "90");
    }
}

#[tokio::test]
async fn a_place_that_is_refused_again_and_again_is_given_up() {
    let (mut bench, watch) = KubeBench::in_sync(&["a"]).await;
    // "Too large resource version" of an apiserver whose store was put back.
    bench.server.script().watch_failures.extend([504, 504, 504]);
    bench.server.script().version = 3;
    drop(watch);
    bench.out_of_sync().await;
    assert_eq!(names(&bench.snapshot().await), ["a"]);
    assert_eq!(bench.server.watch().await.from, "3");
}

/// If an empty answer counted as a list, all pods would count as deleted.
#[tokio::test]
async fn an_answer_that_is_no_list_is_an_outage() {
    for text in ["", "{}", r#"{"metadata":{},"items":[]}"#, r#"{"items":["#] {
        let pods = vec![pod("a", 7)];
        let list = Some(text.to_owned());
        let mut bench = KubeBench::new(Script { list, pods, version: 10, ..Script::default() });
        bench.out_of_sync().await;
        bench.server.script().list = None;
        assert_eq!(names(&bench.snapshot().await), ["a"], "{text}");
    }
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let script = Script { list_failures: [403, 403].into(), version: 10, ..Script::default() };
    let mut bench = KubeBench::new(script);
    let error = bench.out_of_sync().await;
    assert!(error.contains("403") || error.contains("Forbidden"), "{error}");
    assert!(error.contains("RBAC must allow list and watch of pods"), "{error}");
    assert_eq!(bench.snapshot().await, []);
}

#[tokio::test]
async fn ends_when_nobody_listens_or_asks() {
    for listens in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = KubeOptions::new("n1");
        // Nobody listens there; the client, with its TLS, is made.
        options.kubeconfig = Some(kubeconfig(folder.path(), "https://127.0.0.1:1", &json!({})));
        let (to, events) = mpsc::channel(16);
        let (ask, requests) = mpsc::channel(1);
        let _rest: Box<dyn std::any::Any> = if listens {
            drop(ask);
            Box::new(events)
        } else {
            drop(events);
            Box::new(ask)
        };
        let run = kube::run(options, to, requests);
        tokio::time::timeout(STUCK, run).await.expect("it ends").unwrap();
    }
}
