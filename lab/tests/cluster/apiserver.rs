//! The lab's apiserver, seen by the client that coroner itself uses, and by bare HTTP where that
//! client hides what matters.

use coroner_lab_cluster::{
    apiserver::Apiserver, apiserver::ApiserverFault, apiserver::ApiserverOptions,
    apiserver::DeleteOptions, apiserver::ResourceKind,
};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    runtime::watcher,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

fn pod(name: &str, node: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 10,
            "containers": [{ "name": "main", "image": "docker.io/coroner/workload:lab" }],
        },
    }))
    .unwrap()
}

async fn client(apiserver: &Apiserver) -> Api<Pod> {
    let config = Config::new(apiserver.url().parse().unwrap());
    Api::default_namespaced(Client::try_from(config).unwrap())
}

/// The next thing a watcher says that is not silence, as text.
async fn next(
    watcher: &mut (impl futures::Stream<Item = watcher::Result<watcher::Event<Pod>>> + Unpin),
) -> String {
    let name = |pod: Pod| {
        let dying = pod.metadata.deletion_timestamp.is_some();
        format!("{}{}", pod.metadata.name.unwrap_or_default(), if dying { " dying" } else { "" })
    };
    match watcher.next().await.unwrap() {
        Ok(watcher::Event::Init) => "init".into(),
        Ok(watcher::Event::InitApply(pod)) => format!("init {}", name(pod)),
        Ok(watcher::Event::InitDone) => "done".into(),
        Ok(watcher::Event::Apply(pod)) => format!("apply {}", name(pod)),
        Ok(watcher::Event::Delete(pod)) => format!("delete {}", name(pod)),
        Err(error) => format!("error {error}").split(':').next().unwrap_or_default().into(),
    }
}

#[tokio::test]
async fn a_watcher_follows_one_node_through_deletes_and_410() {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await.unwrap();
    let store = apiserver.store();
    store.create_pod(&pod("old", "here")).unwrap();
    store.create_pod(&pod("other", "there")).unwrap();
    let config = watcher::Config::default().fields("spec.nodeName=here");
    let mut watcher = Box::pin(watcher(client(&apiserver).await, config));
    assert_eq!(next(&mut watcher).await, "init");
    assert_eq!(next(&mut watcher).await, "init old");
    assert_eq!(next(&mut watcher).await, "done");

    store.create_pod(&pod("new", "here")).unwrap();
    assert_eq!(next(&mut watcher).await, "apply new");
    store.delete_pod("default", "old", &DeleteOptions::default()).unwrap();
    assert_eq!(next(&mut watcher).await, "apply old dying");
    store.delete_pod("default", "other", &DeleteOptions::default()).unwrap();
    let now = DeleteOptions { grace: Some(0), ..Default::default() };
    store.delete_pod("default", "old", &now).unwrap();
    assert_eq!(next(&mut watcher).await, "apply old dying");
    assert_eq!(next(&mut watcher).await, "delete old dying");

    apiserver.set_fault(ApiserverFault::Expired);
    let said = next(&mut watcher).await;
    assert!(said.starts_with("error"), "{said}");
    apiserver.set_fault(ApiserverFault::None);
    // It lists anew, and what is gone is not in the list.
    let mut after = Vec::new();
    while after.last().is_none_or(|said: &String| said != "done") {
        after.push(next(&mut watcher).await);
    }
    assert_eq!(after[after.len() - 3..], ["init", "init new", "done"].map(String::from));
}

#[tokio::test]
async fn a_watch_from_a_forgotten_version_is_gone() {
    let apiserver =
        Apiserver::start(ApiserverOptions { history: 2, ..ApiserverOptions::default() })
            .await
            .unwrap();
    let pods = client(&apiserver).await;
    let version =
        pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    for name in ["a", "b"] {
        apiserver.store().create_pod(&pod(name, "here")).unwrap();
    }
    let mut watch = pods.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    for name in ["a", "b"] {
        match watch.try_next().await.unwrap() {
            Some(WatchEvent::Added(pod)) => assert_eq!(pod.metadata.name.as_deref(), Some(name)),
            other => panic!("{other:?}"),
        }
    }
    apiserver.store().create_pod(&pod("c", "here")).unwrap();
    let gone = match pods.watch(&WatchParams::default(), &version).await {
        Err(kube::Error::Api(status)) => status.code,
        Ok(watch) => match watch.boxed().try_next().await {
            Err(kube::Error::Api(status)) => status.code,
            Ok(Some(WatchEvent::Error(status))) => status.code,
            other => panic!("{other:?}"),
        },
        Err(other) => panic!("{other}"),
    };
    assert_eq!(gone, 410);
}

#[tokio::test]
async fn bookmarks_move_the_version_of_a_quiet_watch() {
    let options = ApiserverOptions {
        bookmark_every: std::time::Duration::from_millis(20),
        ..ApiserverOptions::default()
    };
    let apiserver = Apiserver::start(options).await.unwrap();
    let node = serde_json::from_value(json!({ "metadata": { "name": "here" } })).unwrap();
    let pods = client(&apiserver).await;
    let version =
        pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    // Not a pod: only a bookmark can tell this watch of its version.
    apiserver.store().create_node(&node).unwrap();
    let (newest, _) = apiserver.store().list(ResourceKind::Pod);
    let mut watch = pods.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    match watch.try_next().await.unwrap() {
        Some(WatchEvent::Bookmark(bookmark)) => {
            assert_eq!(bookmark.metadata.resource_version, newest.to_string());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_client_creates_patches_and_deletes() {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await.unwrap();
    let pods = client(&apiserver).await;
    let made = pods.create(&PostParams::default(), &pod("web", "here")).await.unwrap();
    let code = |error: kube::Error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    };
    let again = pods.create(&PostParams::default(), &pod("web", "here")).await;
    assert_eq!(code(again.unwrap_err()), 409);
    assert_eq!(code(pods.get("nobody").await.unwrap_err()), 404);

    let status = json!({ "status": { "phase": "Running" } });
    let patched =
        pods.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    assert_eq!(patched.status.unwrap().phase.as_deref(), Some("Running"));

    let stranger = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: Some("another".into()),
            resource_version: None,
        }),
        ..Default::default()
    };
    assert_eq!(code(pods.delete("web", &stranger).await.unwrap_err()), 409);
    let left = pods.delete("web", &DeleteParams::default().grace_period(4)).await.unwrap();
    let left = left.left().unwrap().metadata;
    assert_eq!((left.deletion_grace_period_seconds, left.uid), (Some(4), made.metadata.uid));

    let finalizers = json!({ "metadata": { "finalizers": ["lab/keep"] } });
    pods.patch("web", &PatchParams::default(), &Patch::Merge(&finalizers)).await.unwrap();
    pods.delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    let kept = pods.get("web").await.unwrap();
    assert_eq!(kept.metadata.deletion_grace_period_seconds, Some(0));
    let none = json!({ "metadata": { "finalizers": null } });
    pods.patch("web", &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
    assert_eq!(code(pods.get("web").await.unwrap_err()), 404);
}

#[tokio::test]
async fn faults_are_seen_as_faults() {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await.unwrap();
    let pods = client(&apiserver).await;
    apiserver.set_fault(ApiserverFault::Unavailable);
    // Bare HTTP: kube's client tries again for minutes.
    let address = apiserver.url().replace("http://", "");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    apiserver.set_fault(ApiserverFault::Garbage);
    assert!(pods.list(&ListParams::default()).await.is_err());
    apiserver.set_fault(ApiserverFault::None);
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn nonsense_is_refused_and_harms_nothing() {
    let apiserver = Apiserver::start(ApiserverOptions::default()).await.unwrap();
    for object in [
        json!([]),
        json!({ "metadata": "web" }),
        json!({ "metadata": {} }),
        json!({ "metadata": { "name": "web" }, "spec": "none" }),
        json!({ "metadata": { "name": "web" }, "status": [] }),
        json!({ "metadata": { "name": "web", "namespace": "other" } }),
    ] {
        let refused = apiserver.store().create(ResourceKind::Pod, "default", object.clone());
        assert!(refused.is_err_and(|failure| (400..500).contains(&failure.code)), "{object}");
    }
    assert_eq!(apiserver.store().list(ResourceKind::Pod).1, Vec::<std::sync::Arc<Value>>::new());
}
