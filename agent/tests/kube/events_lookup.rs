//! The lookup of a pod's Events: one list per question, within a budget; what cannot be listed is no answer.

use super::{apiserver::FakeApiserver, apiserver::Script, apiserver::status_object, kubeconfig};
use coroner::sources::kube::{EventsOptions, list_events};
use coroner_core::{
    ids::{PodRef, PodUid},
    input::{Input, KillReason, LookupEvent, PostedEvent},
};
use serde_json::{Value, json};
use std::{collections::VecDeque, net::SocketAddr, time::Duration};
use tokio::sync::mpsc;

const EVENTS: &str = "namespaces/default/events";
/// No token is added while a test runs.
const NEVER: Duration = Duration::from_secs(86_400);

fn reference(uid: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: "p".into(), uid: PodUid::new(uid) }
}

fn killing(message: &str) -> Value {
    json!({
        "reason": "Killing", "message": message,
        "firstTimestamp": "2026-11-22T12:49:56Z", "lastTimestamp": "2026-11-22T12:49:56Z",
        "involvedObject": { "fieldPath": "spec.containers{a}" },
        "source": { "component": "kubelet", "host": "n1" },
    })
}

/// A list of Events, whole unless a page follows.
fn page(items: &[Value], following: &str) -> Value {
    let metadata = json!({ "resourceVersion": "7", "continue": following });
    json!({ "kind": "EventList", "apiVersion": "v1", "metadata": metadata, "items": items })
}

fn list(items: &[Value]) -> Value {
    page(items, "")
}

/// Asks for the Events of these pods: the answer for each.
async fn asked(server: SocketAddr, pods: &[PodRef]) -> VecDeque<Option<Vec<PostedEvent>>> {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = kubeconfig(folder.path(), &format!("http://{server}"), &json!({}));
    let options = EventsOptions { kubeconfig: Some(kubeconfig), every: NEVER, node: "n1".into() };
    let (to, mut events) = mpsc::channel(64);
    let (ask, requests) = mpsc::channel(64);
    for pod in pods {
        ask.send(pod.clone()).await.expect("there is room");
    }
    drop(ask);
    list_events(options, to, requests).await.expect("the adapter ends with its questions");
    let mut answers = VecDeque::new();
    while let Some(received) = events.recv().await {
        match received.input {
            Input::Events(LookupEvent::Lookup { lists }) => assert!(lists),
            Input::Events(LookupEvent::Events { pod, entries, .. }) => {
                assert_eq!(Some(&pod), pods.get(answers.len()).map(|asked| &asked.uid));
                answers.push_back(entries);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers.len(), pods.len(), "each question has an answer");
    answers
}

fn server(status: u16, body: Value) -> FakeApiserver {
    FakeApiserver::start(Script {
        gets: [(EVENTS.to_owned(), (status, body))].into(),
        ..Script::default()
    })
}

#[tokio::test]
async fn a_budget_bounds_the_lists_and_a_list_is_one_page() {
    let server =
        server(200, list(&[killing("Container a failed liveness probe, will be restarted")]));
    let pods: Vec<PodRef> = (0..5).map(|number| reference(&format!("uid-{number}"))).collect();
    let answers = asked(server.address, &pods).await;
    let listed: Vec<bool> = answers.iter().map(Option::is_some).collect();
    assert_eq!(listed, [true, true, true, false, false]);
    let entry = &answers[0].as_ref().expect("listed")[0];
    assert_eq!(entry.reason, Some(KillReason::LivenessProbe));
    let got = server.script().got.clone();
    assert_eq!(got.len(), 3, "{got:?}");
    for ((path, query), pod) in got.iter().zip(&pods) {
        assert_eq!(path, EVENTS);
        assert!(
            query.contains(&format!("fieldSelector=involvedObject.uid={},source=kubelet", pod.uid)),
            "{query}"
        );
        assert!(query.contains("limit="), "{query}");
    }
}

#[tokio::test]
async fn without_the_permission_it_is_asked_once() {
    let server = server(403, status_object(403));
    let answers = asked(server.address, &[reference("a"), reference("b")]).await;
    assert_eq!(answers, [None, None]);
    assert_eq!(server.script().got.len(), 1);
}

#[tokio::test]
async fn what_is_no_list_of_events_is_no_answer() {
    let cut = list(&[killing("x")]).to_string();
    let posted_by = |source: Value| {
        let mut event = killing("Container a failed liveness probe, will be restarted");
        event["source"] = source;
        event["reportingComponent"] = json!("kubelet");
        (200, list(&[event]), Some(0))
    };
    let table: [(u16, Value, Option<usize>); 11] = [
        posted_by(json!({ "component": "default-scheduler", "host": "n1" })),
        posted_by(json!({ "component": "kubelet", "host": "n2" })),
        posted_by(json!({})),
        (200, list(&[]), Some(0)),
        (200, list(&[json!({ "reason": "Scheduled" }), json!({ "reason": "Killing" })]), Some(0)),
        (200, list(&vec![killing("Stopping container a"); 500]), None),
        (200, page(&[killing("Stopping container a")], "more"), None),
        (200, json!("}garbage{"), None),
        (200, json!(cut[..cut.len() - 2]), None),
        (200, json!(""), None),
        (500, json!("broken"), None),
    ];
    for (status, body, expected) in table {
        let text = body.to_string();
        let server = server(status, body);
        let answers = asked(server.address, &[reference("a")]).await;
        let found = answers[0].as_ref().map(Vec::len);
        assert_eq!(found, expected, "{status} {}", &text[..text.len().min(80)]);
    }
    // What could name anything else is not asked for.
    let server = server(200, list(&[]));
    let odd = PodRef { namespace: "a/../b".into(), ..reference("a") };
    assert_eq!(asked(server.address, &[reference("a,b=c"), odd]).await, [None, None]);
    assert!(server.script().got.is_empty());
}

/// The clock jumps to the next timeout: the apiserver never answers.
#[tokio::test(start_paused = true)]
async fn an_apiserver_that_does_not_answer_is_no_answer() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("the address");
    assert_eq!(asked(address, &[reference("a")]).await, [None]);
}
