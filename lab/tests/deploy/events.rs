//! What the agent says in Events, as kubectl shows it: through the agent's own adapter and the lab's
//! apiserver. Needs a current kubectl; what happens in real containers is the catalogue's.

use coroner::{
    outputs::events::{self, EventDraft, EventOptions, note},
    sources::kube,
};
use coroner_api::terminations::Death;
use coroner_core::{leak::Leak, output::Report};
use coroner_lab_cluster::{apiserver, apiserver::Apiserver, apiserver::ResourceKind};
use serde_json::{Value, json};
use std::{path::PathBuf, process::Command, sync::Arc};
use tempfile::TempDir;
use tokio::sync::mpsc;

fn kubectl() -> PathBuf {
    let named = std::env::var_os("CORONER_KUBECTL").unwrap_or_else(|| {
        panic!(
            "no kubectl: run `cargo xtask test deploy`, which brings one, or name a current one \
             with CORONER_KUBECTL"
        )
    });
    named.into()
}

/// An apiserver with a node and its pods, and what the agent said to it.
struct Cluster {
    apiserver: Apiserver,
    folder: TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let apiserver = Apiserver::start(apiserver::ApiserverOptions::default()).await.unwrap();
        let store = apiserver.store();
        let node = json!({ "metadata": { "name": "n1" } });
        store.create(ResourceKind::Node, "", node).unwrap();
        let folder = tempfile::tempdir().unwrap();
        apiserver.write_kubeconfig(&folder.path().join("kubeconfig")).unwrap();
        Self { apiserver, folder }
    }

    /// Gives its UID.
    fn pod(&self, name: &str, annotations: Value) -> String {
        let pod = json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "nodeName": "n1", "containers": [{ "name": "app", "image": "app" }] },
        });
        let made = self.apiserver.store().create(ResourceKind::Pod, "shop", pod).unwrap();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The agent tells this, and ends.
    async fn tell(&self, reports: impl IntoIterator<Item = Report>) {
        let api = kube::KubeOptions {
            kubeconfig: Some(self.folder.path().join("kubeconfig")),
            ..kube::KubeOptions::new("n1")
        };
        let options = EventOptions::new(&api);
        let counters = Arc::clone(&options.counters);
        let (to, notes) = mpsc::channel::<EventDraft>(64);
        let mut told = 0;
        for report in reports {
            to.try_send(note(&report).expect("it is worth a note")).unwrap();
            told += 1;
        }
        drop(to);
        events::run(options, notes).await.unwrap();
        let counts =
            counters.all().map(|(_, count)| count.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(counts, [told, 0, 0, 0, 0], "sent, and nothing refused");
    }

    /// What kubectl prints.
    async fn kubectl(&self, arguments: &str) -> String {
        let mut command = Command::new(kubectl());
        command
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .env("HOME", self.folder.path()); // its cache of what there is
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments}: {error}\n{told}");
        told
    }
}

/// Words apart by one space, for kubectl's columns are as wide as it likes.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lines of an answer that tell of this.
fn lines(told: &str, of: &str) -> Vec<String> {
    told.lines().filter(|line| line.contains(of)).map(words).collect()
}

fn ignored(pod: &str, uid: &str) -> Report {
    let death: Death = serde_json::from_value(json!({
        "id": "c1", "name": "app", "kind": "main",
        "pod": { "namespace": "shop", "name": pod, "uid": uid },
        "verdict": "stop_signal_ignored",
        "proof": { "message": "The kernel discarded SIGTERM: PID 1 (app) had no handler for it.", "evidence": [] },
        "cause": "definition_changed", "causeCertainty": "inferred", "causeSource": "inferred",
        "causeMessage": "Its image was changed.",
        "exit": null, "stopSignal": 15, "graceSeconds": 30, "graceRatio": 1.0,
        "childrenKilled": 0, "milestones": [],
    }))
    .unwrap();
    Report::CountDeath(Box::new(death.into()))
}

fn leaked(name: &str) -> Report {
    let leak: coroner_api::leaks::Leak = serde_json::from_value(json!({
        "class": "notready_no_pod", "key": { "thing": "sandbox", "id": "398445f28f116ed45394" },
        "pod": { "namespace": "shop", "name": name, "uid": "gone" },
        "created": { "time": "1970-01-01T00:00:00Z" }, "firstObserved": { "time": "1970-01-01T00:00:00Z" },
        "confirmed": { "time": "1970-01-02T00:00:00Z" },
        "resources": { "ips": ["10.244.1.17"] },
        "cause": { "kind": "unknown", "message": "" }, "evidence": [],
    }))
    .unwrap();
    let leak: Option<Leak> = leak.into();
    Report::LeakOpened(Arc::new(leak.unwrap()))
}

#[tokio::test]
async fn kubectl_describe_pod_shows_what_its_owner_should_know() {
    let cluster = Cluster::new().await;
    let uid = cluster.pod("web", Value::Null);
    let other = cluster.pod("other", Value::Null);
    let namesake = ignored("web", "an-earlier-one");
    cluster
        .tell([ignored("web", &uid), ignored("web", &uid), ignored("other", &other), namesake])
        .await;
    let told = cluster.kubectl("describe pod web -n shop").await;
    let [line] = &lines(&told, "StopSignalIgnored")[..] else { panic!("not one:\n{told}") };
    assert!(line.starts_with("Warning StopSignalIgnored"), "{line}");
    assert!(line.contains("(x2 over") && line.contains(" coroner "), "{line}");
    let message =
        "The kernel discarded SIGTERM: PID 1 (app) had no handler for it. The grace period passed";
    assert!(line.contains(message), "{line}");

    let all = cluster.kubectl("get events -n shop").await;
    assert_eq!(lines(&all, "pod/web").len(), 2, "the earlier one's too:\n{all}");
    assert_eq!(lines(&all, "pod/other").len(), 1, "{all}");
    let selected = "get events -A -o json --field-selector reason=StopSignalIgnored";
    let list: Value = serde_json::from_str(&cluster.kubectl(selected).await).unwrap();
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 3);
    assert!(items.iter().all(|e| e["involvedObject"]["fieldPath"] == "spec.containers{app}"));
    assert!(items.iter().any(|event| event["series"]["count"] == 2), "{list:#}");
}

#[tokio::test]
async fn kubectl_describe_pod_finds_a_static_pods_by_its_mirror() {
    let cluster = Cluster::new().await;
    cluster.pod("etcd-n1", json!({ "kubernetes.io/config.mirror": "6f1c0a" }));
    cluster.tell([ignored("etcd-n1", "6f1c0a")]).await;
    let told = cluster.kubectl("describe pod etcd-n1 -n shop").await;
    assert_eq!(lines(&told, "StopSignalIgnored").len(), 1, "{told}");
}

#[tokio::test]
async fn kubectl_describe_node_shows_what_was_left_behind() {
    let cluster = Cluster::new().await;
    cluster.tell([leaked("a"), leaked("b")]).await;
    let told = cluster.kubectl("describe node n1").await;
    let leaks = lines(&told, "SandboxLeaked");
    assert_eq!(leaks.len(), 2, "each is one, though both are the node's:\n{told}");
    assert!(leaks[0].contains("Sandbox 398445f28f116 of shop/"), "{told}");
    assert!(leaks[0].contains("1d 0h old: no source shows the cause; see the evidence."), "{told}");
    assert!(leaks[0].contains("To do: `crictl rmp 398445f28f116ed45394`"), "{told}");
}

#[tokio::test]
async fn both_apis_show_the_same_and_kubectl_knows_of_both() {
    let cluster = Cluster::new().await;
    cluster.tell([leaked("a")]).await;
    for resource in ["events", "events.events.k8s.io"] {
        let told = cluster.kubectl(&format!("get {resource} -n default")).await;
        let [line] = &lines(&told, "node/n1")[..] else { panic!("{resource}:\n{told}") };
        assert!(line.contains("Warning SandboxLeaked node/n1"), "{resource}: {line}");
    }
    let newer = cluster.kubectl("get events.events.k8s.io -n default -o json").await;
    let newer: Value = serde_json::from_str(&newer).unwrap();
    assert_eq!(newer["items"][0]["regarding"]["uid"], "n1", "{newer:#}");
    assert_eq!(newer["items"][0]["apiVersion"], "events.k8s.io/v1");
}
