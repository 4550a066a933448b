//! Events on pods and the node, sent to a scripted apiserver.

use super::{
    STUCK,
    apiserver::{FakeApiserver, Script, not_found, status_object},
    kubeconfig, wait_until,
};
use coroner::outputs::events::{
    self, EventCounters, EventDraft, EventOptions, Rate, RateLimits, Reason, Regarding,
};
use coroner_core::ids::PodRef;
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinHandle};

/// The adapter, running, and an apiserver for it.
struct EventsBench {
    server: FakeApiserver,
    notes: mpsc::Sender<EventDraft>,
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
            kubeconfig: Some(kubeconfig(folder.path(), &url)),
            ..coroner::sources::kube::KubeOptions::new("n1")
        };
        let options = EventOptions { pace, ..EventOptions::new(&api) };
        let counters = Arc::clone(&options.counters);
        let (notes, from_notes) = mpsc::channel(2048);
        let running = tokio::spawn(events::run(options, from_notes));
        Self { server, notes, counters, running, _folder: folder }
    }

    fn tell(&self, note: EventDraft) {
        self.notes.try_send(note).expect("there is room");
    }

    /// Until the counters are so, in the order of [`EventCounters::all`].
    async fn counted(&self, wanted: [u64; 5]) {
        let now = || self.counters.all().map(|(_, count)| count.load(Relaxed));
        assert!(wait_until(|| now() == wanted).await, "{:?}, not {wanted:?}", now());
    }

    fn sent(&self) -> Vec<(String, String, Value)> {
        self.server.script().events.clone()
    }

    async fn requests(&self, wanted: usize) {
        let waited = wait_until(|| self.sent().len() >= wanted).await;
        assert!(waited, "{:#?}, not {wanted}", self.sent());
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
async fn an_event_is_what_the_apiserver_demands() {
    let bench = EventsBench::new(Script::default(), pace());
    bench.tell(on_pod("web"));
    bench.tell(on_node("gone"));
    bench.counted([2, 0, 0, 0, 0]).await;
    let sent = bench.end().await;
    let (method, path, event) = &sent[0];
    assert_eq!(
        (method.as_str(), path.as_str()),
        ("POST", "/apis/events.k8s.io/v1/namespaces/shop/events")
    );
    assert_eq!(
        event["regarding"],
        json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web",
            "uid": "uid-web", "fieldPath": "spec.containers{app}",
        })
    );
    for (field, wanted) in [
        ("type", "Warning"),
        ("reason", "StopSignalIgnored"),
        ("action", "Stopping"),
        ("note", "The kernel discarded SIGTERM."),
        ("reportingController", "coroner"),
        ("reportingInstance", "n1"),
    ] {
        assert_eq!(event[field], wanted, "{field}");
    }
    assert!(event["eventTime"].is_string() && event["series"].is_null(), "{event}");
    // The node's UID is its name, as in the kubelet's Events, and it has no namespace.
    let (_, path, event) = &sent[1];
    assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/default/events");
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1",
        "fieldPath": "notready_no_pod{gone}",
    });
    assert_eq!(event["regarding"], node);
    assert_eq!(event["related"]["name"], "gone");
}

#[tokio::test]
async fn the_same_again_is_counted_in_the_event_that_is_there() {
    let bench = EventsBench::new(Script::default(), pace());
    for _ in 0..3 {
        bench.tell(on_pod("web"));
    }
    bench.tell(on_pod("other"));
    bench.counted([4, 0, 0, 0, 0]).await;
    let sent = bench.end().await;
    let methods: Vec<&str> = sent.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
    let name = sent[0].2["metadata"]["name"].as_str().unwrap();
    assert_eq!(sent[1].1, format!("/apis/events.k8s.io/v1/namespaces/shop/events/{name}"));
    assert_eq!(sent[1].2["series"]["count"], 2);
    assert_eq!(sent[2].2["series"]["count"], 3);
    // The apiserver lets nothing but the series change.
    for field in ["eventTime", "note", "regarding", "reportingInstance"] {
        assert_eq!(sent[2].2[field], sent[0].2[field], "{field}");
    }
}

#[tokio::test]
async fn leaks_without_a_pod_are_told_apart() {
    let bench = EventsBench::new(Script::default(), pace());
    for sandbox in ["a", "b", "a"] {
        let mut note = on_node(sandbox);
        if let Regarding::Node { related, .. } = &mut note.about {
            *related = None;
        }
        bench.tell(note);
    }
    bench.counted([3, 0, 0, 0, 0]).await;
    let methods: Vec<String> = bench.end().await.into_iter().map(|(method, ..)| method).collect();
    assert_eq!(methods, ["POST", "POST", "PATCH"]);
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
async fn thousands_of_leaks_are_a_burst_and_a_summary() {
    let rare = Rate { burst: 5, every: Duration::from_secs(3600) };
    let soon = Duration::from_millis(200);
    let pace = RateLimits { pods: rare, node: rare, suppressed_after: soon, ..pace() };
    let bench = EventsBench::new(Script::default(), pace);
    for n in 0..2000 {
        bench.tell(on_node(&format!("p{n}")));
    }
    bench.counted([6, 0, 0, 1995, 0]).await;
    // They do not take the pods' share.
    bench.tell(on_pod("web"));
    bench.counted([7, 0, 0, 1995, 0]).await;
    let sent = bench.end().await;
    let reasons: Vec<&str> =
        sent.iter().map(|(_, _, event)| event["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons[..5], ["SandboxLeaked"; 5]);
    assert_eq!(reasons[5..], ["EventsSuppressed", "StopSignalIgnored"]);
    let told = sent[5].2["note"].as_str().unwrap();
    assert!(told.contains("1995 more") && told.contains("1995 SandboxLeaked"), "{told}");
}

#[tokio::test]
async fn a_missing_right_is_counted_and_tried_with_the_next_one() {
    let refused = [status_object(403), status_object(403)];
    let script = Script { event_failures: refused.into(), ..Script::default() };
    let bench = EventsBench::new(script, pace());
    bench.tell(on_pod("a"));
    bench.tell(on_pod("b"));
    bench.counted([0, 2, 0, 0, 0]).await;
    // Somebody has granted the permission.
    bench.tell(on_pod("c"));
    bench.counted([1, 2, 0, 0, 0]).await;
    assert_eq!(bench.end().await.len(), 3, "a refusal is not asked for again");
}

#[tokio::test]
async fn a_namespace_that_goes_takes_no_events() {
    let mut terminating = status_object(403);
    terminating["details"] = json!({
        "name": "web.17", "group": "events.k8s.io", "kind": "events",
        "causes": [{ "reason": "NamespaceTerminating", "field": "metadata.namespace" }],
    });
    let mut gone = not_found("shop");
    gone["details"] = json!({ "name": "shop", "kind": "namespaces" });
    let script = Script { event_failures: [terminating, gone].into(), ..Script::default() };
    let bench = EventsBench::new(script, pace());
    bench.tell(on_pod("a"));
    bench.tell(on_pod("b"));
    bench.counted([0, 2, 0, 0, 0]).await;
    assert_eq!(bench.end().await.len(), 2);
}

#[tokio::test]
async fn what_cannot_be_a_name_is_not_sent() {
    let bench = EventsBench::new(Script::default(), pace());
    let mut note = on_pod("web");
    note.about =
        Regarding::Pod { pod: PodRef { namespace: "../x".into(), ..pod("web") }, field: None };
    bench.tell(note);
    bench.counted([0, 1, 0, 0, 0]).await;
    assert!(bench.end().await.is_empty());
}

#[tokio::test]
async fn an_apiserver_that_is_busy_or_away_is_asked_again() {
    let failures = [status_object(429), status_object(500), status_object(503)];
    let script = Script { event_failures: failures.into(), ..Script::default() };
    let mut bench = EventsBench::new(script, pace());
    bench.tell(on_pod("a"));
    bench.counted([1, 0, 0, 0, 0]).await;
    assert_eq!(bench.sent().len(), 4);
    bench.server.kill();
    bench.tell(on_pod("b"));
    bench.tell(on_pod("c"));
    // Attempts that fail: no answer comes, and nothing is given up.
    let refused = tokio::time::timeout(STUCK, bench.server.refuse(4));
    refused.await.expect("it is asked again");
    bench.counted([1, 0, 0, 0, 0]).await;
    bench.server.serve();
    bench.counted([3, 0, 0, 0, 0]).await;
    let sent = bench.end().await;
    let mut names: Vec<&str> = sent[3..]
        .iter()
        .map(|(_, _, event)| event["regarding"]["name"].as_str().unwrap())
        .collect();
    // One that failed goes behind the others, which may concern another namespace.
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"], "each once");
}

#[tokio::test]
async fn what_waited_too_long_is_given_up() {
    let pace = RateLimits { patience: Duration::ZERO, ..pace() };
    let mut bench = EventsBench::new(Script::default(), pace);
    bench.server.kill();
    bench.tell(on_pod("a"));
    bench.counted([0, 0, 1, 0, 0]).await;
    bench.end().await;
}

#[tokio::test]
async fn a_queue_that_is_full_drops_and_never_blocks() {
    let script = Script { holds_events: true, ..Script::default() };
    let bench = EventsBench::new(script, pace());
    bench.tell(on_pod("first"));
    bench.requests(1).await;
    for n in 0..100 {
        bench.tell(on_pod(&format!("p{n}")));
    }
    bench.counted([0, 0, 0, 0, 36]).await;
    bench.server.script().holds_events = false;
    bench.counted([65, 0, 0, 0, 36]).await;
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
