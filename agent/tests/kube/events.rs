//! Events on pods and the node, sent to a scripted apiserver.

use super::{
    apiserver::{FakeApiserver, Script, not_found, status_object},
    kubeconfig,
};
use crate::server::{STUCK, wait_until};
use coroner::outputs::events::{
    self, EventCounters, EventDraft, EventOptions, QueuedDraft, Rate, RateLimits, Reason, Regarding,
};
use coroner_core::ids::PodRef;
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

/// The adapter, running, and an apiserver for it.
struct EventsBench {
    server: FakeApiserver,
    notes: mpsc::Sender<QueuedDraft>,
    counters: Arc<EventCounters>,
    running: JoinHandle<anyhow::Result<()>>,
    _folder: TempDir,
}

/// As fast as a test wants it, and without limits.
fn pace() -> RateLimits {
    let plenty = Rate { burst: 1000, every: Duration::from_secs(1) };
    let soon = Duration::from_millis(10);
    RateLimits {
        pods: plenty,
        node: plenty,
        min_pause: soon,
        max_pause: soon,
        ..RateLimits::default()
    }
}

impl EventsBench {
    fn new(script: Script, pace: RateLimits) -> Self {
        let server = FakeApiserver::start(script);
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("http://{}", server.address);
        let api = coroner::sources::kube::KubeOptions {
            kubeconfig: Some(kubeconfig(folder.path(), &url, &json!({}))),
            ..coroner::sources::kube::KubeOptions::new("n1")
        };
        let options = EventOptions { pace, ..EventOptions::new(&api) };
        let counters = Arc::clone(&options.counters);
        let (notes, from_notes) = mpsc::channel(2048);
        let running = tokio::spawn(events::run(options, from_notes));
        Self { server, notes, counters, running, _folder: folder }
    }

    fn tell(&self, note: EventDraft) {
        self.notes.try_send((note, Instant::now())).expect("there is room");
    }

    /// Until the counters are so, in the order of [`EventCounters::all`].
    async fn counted(&self, wanted: [u64; 5]) {
        let now = || self.counters.all().map(|(_, count)| count.load(Relaxed));
        wait_until(&format!("{wanted:?}"), || now() == wanted).await;
    }

    fn sent(&self) -> Vec<(String, String, Value)> {
        self.server.script().events.clone()
    }

    async fn requests(&self, wanted: usize) {
        wait_until("so many requests", || self.sent().len() >= wanted).await;
    }

    /// The channel closes: the adapter ends, and not as an error.
    async fn end(self) -> Vec<(String, String, Value)> {
        drop(self.notes);
        let ended = tokio::time::timeout(STUCK, self.running).await.expect("it ends");
        ended.expect("no panic").expect("no error");
        self.server.script().events.clone()
    }
}

fn pod(name: &str) -> PodRef {
    PodRef {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("uid-{name}").as_str().into(),
    }
}

fn on_pod(name: &str) -> EventDraft {
    EventDraft {
        about: Regarding::Pod { pod: pod(name), field: Some("spec.containers{app}".into()) },
        reason: Reason::StopSignalIgnored,
        message: "The kernel discarded SIGTERM.".into(),
    }
}

fn on_node(leaked: &str) -> EventDraft {
    EventDraft {
        about: Regarding::Node {
            related: Some(pod(leaked)),
            field: Some(format!("notready_no_pod{{{leaked}}}")),
        },
        reason: Reason::SandboxLeaked,
        message: format!("Sandbox of {leaked}."),
    }
}

#[tokio::test]
async fn an_event_is_what_the_apiserver_demands_and_the_same_again_is_counted_in_it() {
    let bench = EventsBench::new(Script::default(), pace());
    // Of a sandbox without a pod.
    let mut orphan = on_node("orphan");
    if let Regarding::Node { related, .. } = &mut orphan.about {
        *related = None;
    }
    for note in [on_pod("web"), on_pod("web"), on_node("gone"), orphan] {
        bench.tell(note);
    }
    bench.counted([4, 0, 0, 0, 0]).await;
    let sent = bench.end().await;
    let paths: Vec<_> = sent.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let name = sent[0].2["metadata"]["name"].as_str().unwrap();
    let (events, node) = (
        "/apis/events.k8s.io/v1/namespaces/shop/events",
        "POST /apis/events.k8s.io/v1/namespaces/default/events",
    );
    assert_eq!(paths, [&format!("POST {events}"), &format!("PATCH {events}/{name}"), node, node]);
    let regarding = json!({
        "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web",
        "uid": "uid-web", "fieldPath": "spec.containers{app}",
    });
    for (field, wanted) in [
        ("regarding", regarding),
        ("type", json!("Warning")),
        ("reason", json!("StopSignalIgnored")),
        ("action", json!("Stopping")),
        ("note", json!("The kernel discarded SIGTERM.")),
        ("reportingController", json!("coroner")),
        ("reportingInstance", json!("n1")),
        ("series", json!(null)),
    ] {
        assert_eq!(sent[0].2[field], wanted, "{field}");
        // The apiserver lets nothing but the series change.
        assert_eq!(sent[1].2[field] == wanted, field != "series", "{field}");
    }
    assert_eq!(sent[1].2["series"]["count"], 2);
    assert!(sent[0].2["eventTime"].is_string() && sent[0].2["eventTime"] == sent[1].2["eventTime"]);
    // The node's UID is its name, as in the kubelet's Events, and it has no namespace.
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1",
        "fieldPath": "notready_no_pod{gone}",
    });
    assert_eq!(sent[2].2["regarding"], node);
    assert_eq!(sent[2].2["related"]["name"], "gone");
}

#[tokio::test]
async fn an_event_that_was_deleted_is_made_again() {
    let bench = EventsBench::new(Script::default(), pace());
    bench.tell(on_pod("web"));
    bench.counted([1, 0, 0, 0, 0]).await;
    let mut lost = not_found("web.17");
    lost["details"] = json!({ "name": "web.17", "group": "events.k8s.io", "kind": "events" });
    bench.server.script().event_failures.push_back(lost);
    bench.tell(on_pod("web"));
    bench.counted([2, 0, 0, 0, 0]).await;
    let methods: Vec<String> = bench.end().await.into_iter().map(|(method, ..)| method).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST"]);
}

#[tokio::test]
async fn thousands_of_leaks_are_a_burst() {
    let rare = Rate { burst: 5, every: Duration::from_secs(3600) };
    let pace = RateLimits { pods: rare, node: rare, ..pace() };
    let bench = EventsBench::new(Script::default(), pace);
    for n in 0..2000 {
        bench.tell(on_node(&format!("p{n}")));
    }
    bench.counted([5, 0, 0, 1995, 0]).await;
    // They do not take the pods' share.
    bench.tell(on_pod("web"));
    bench.counted([6, 0, 0, 1995, 0]).await;
    let sent = bench.end().await;
    let reasons: Vec<&str> =
        sent.iter().map(|(_, _, event)| event["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons[..5], ["SandboxLeaked"; 5]);
    assert_eq!(reasons[5..], ["StopSignalIgnored"]);
}

#[tokio::test]
async fn what_is_refused_is_counted_and_not_asked_for_again() {
    let script = Script { event_failures: [status_object(403)].into(), ..Script::default() };
    let bench = EventsBench::new(script, pace());
    let mut odd = on_pod("odd");
    let pod = PodRef { namespace: "../x".into(), ..pod("odd") };
    odd.about = Regarding::Pod { pod, field: None };
    bench.tell(odd); // cannot be a name, and is not sent
    bench.tell(on_pod("a"));
    bench.counted([0, 2, 0, 0, 0]).await;
    // Somebody has granted the permission.
    bench.tell(on_pod("b"));
    bench.counted([1, 2, 0, 0, 0]).await;
    assert_eq!(bench.end().await.len(), 2);
}

#[tokio::test]
async fn an_apiserver_that_is_busy_is_asked_again_and_one_that_is_away_not_for_ever() {
    let failures = [status_object(429), status_object(500), status_object(503)];
    let script = Script { event_failures: failures.into(), ..Script::default() };
    let bench = EventsBench::new(script, pace());
    bench.tell(on_pod("a"));
    bench.counted([1, 0, 0, 0, 0]).await;
    assert_eq!(bench.end().await.len(), 4);
    let pace = RateLimits { timeout: Duration::ZERO, ..pace() };
    let mut bench = EventsBench::new(Script::default(), pace);
    bench.server.kill();
    bench.tell(on_pod("a"));
    bench.counted([0, 0, 1, 0, 0]).await;
    bench.end().await;
}

#[tokio::test]
async fn a_shutdown_sends_what_waits_once() {
    let script = Script { holds_events: true, ..Script::default() };
    let bench = EventsBench::new(script, pace());
    for name in ["a", "b", "c"] {
        bench.tell(on_pod(name));
    }
    bench.requests(1).await;
    let counters = Arc::clone(&bench.counters);
    {
        let mut script = bench.server.script();
        // The second one is refused for now: nobody is there to try it again.
        script.event_failures.push_back(status_object(503));
        script.holds_events = false;
    }
    let sent = bench.end().await;
    assert_eq!(sent.len(), 3, "{sent:#?}");
    let counts = counters.all().map(|(_, count)| count.load(Relaxed));
    assert_eq!(counts, [2, 0, 1, 0, 0]);
}
