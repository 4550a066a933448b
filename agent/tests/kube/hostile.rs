//! Objects that a tenant makes so that others come to harm: a real apiserver takes and serves them.

use super::*;
use coroner::sources::cut::Cut;

/// A pod as text: with so many levels in its managed fields, which are free-form JSON.
fn deep(name: &str, version: u64, levels: usize) -> String {
    let pod = pod(name, version).to_string();
    let fields = format!("{}{}", "{\"f:a\":".repeat(levels), "{}".to_owned() + &"}".repeat(levels));
    let managed = format!("{{\"managedFields\":[{{\"fieldsV1\":{fields}}}],");
    let metadata = pod.find("\"metadata\":{").expect("metadata") + "\"metadata\":".len();
    format!("{}{managed}{}", &pod[..metadata], &pod[metadata + 1..])
}

fn list(pods: &[String]) -> String {
    let items = pods.join(",");
    format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"10"}},"items":[{items}]}}"#)
}

#[tokio::test]
async fn a_pod_of_any_depth_spoils_neither_list_nor_watch() {
    let pods = [pod("a", 7).to_string(), deep("deep", 7, 100_000), pod("b", 7).to_string()];
    let mut bench =
        KubeBench::new(Script { list: Some(list(&pods)), version: 10, ..Script::default() });
    assert_eq!(names(&bench.snapshot().await), ["a", "deep", "b"]);
    let watch = bench.server.watch().await;
    for (kind, version) in [("MODIFIED", 11), ("DELETED", 12)] {
        let object = deep("deep", version, 140);
        watch.raw(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")).await;
    }
    let ApiEvent::Applied(applied) = bench.event().await else { panic!("not applied") };
    let ApiEvent::Deleted(deleted) = bench.event().await else { panic!("not deleted") };
    assert_eq!((&*applied.name, &*deleted.name), ("deep", "deep"));
    assert_eq!(bench.counters.errors.load(Ordering::Relaxed), 1, "the Node, which is not there");
}

/// 1.2 MB each: the apiserver limits neither the number of finalizers nor demands that they differ.
#[tokio::test]
async fn what_is_long_is_cut_and_counted() {
    let mut long = pod("long", 7);
    long["metadata"]["finalizers"] = json!(vec!["a.b/c"; 150_000]);
    long["spec"]["containers"] = json!(vec![json!({ "name": "x".repeat(100) }); 1_000]);
    let pods = vec![pod("a", 7), long.clone()];
    let mut bench = KubeBench::new(Script { pods, version: 10, ..Script::default() });
    let pods = bench.snapshot().await;
    assert_eq!(pods[1].finalizers, vec!["a.b/c"; 16]);
    assert_eq!(pods[1].containers.keys().map(String::len).collect::<Vec<_>>(), [64]);
    let watch = bench.server.watch().await;
    watch.event("MODIFIED", long).await;
    let ApiEvent::Applied(applied) = bench.event().await else { panic!("not applied") };
    assert_eq!(applied.finalizers.len(), 16);
    let cuts = &bench.counters.truncated;
    assert_eq!(cuts.of(Cut::Finalizers), 2 * 149_984);
    assert_eq!(cuts.of(Cut::Containers), 2 * 744);
    assert_eq!(cuts.of(Cut::Text), 2 * 256);
}

/// No state of it can be told, but that it is gone can.
#[tokio::test]
async fn a_deletion_that_cannot_be_read_is_followed_by_a_list() {
    let (mut bench, watch) = KubeBench::in_sync(&["a", "b"]).await;
    bench.server.script().pods.remove(0);
    let mut odd = pod("a", 11);
    odd["spec"]["terminationGracePeriodSeconds"] = json!("thirty");
    watch.event("DELETED", odd).await;
    bench.out_of_sync().await;
    assert_eq!(names(&bench.snapshot().await), ["b"]);
}

/// Anybody may bind pods to a node. Those that the kubelet refused make room for those that live.
#[tokio::test]
async fn more_pods_than_are_kept() {
    let ended = |n: usize| {
        json!({
            "metadata": { "name": format!("ended-{n}"), "namespace": "a", "uid": format!("e{n}") },
            "status": { "phase": "Failed", "reason": "OutOfpods" },
        })
    };
    let mut pods: Vec<_> = (0..1_028).map(ended).collect();
    pods.extend([pod("y", 7), pod("z", 7)]);
    let mut bench = KubeBench::new(Script { pods, version: 10, ..Script::default() });
    let pods = bench.snapshot().await;
    assert_eq!(pods.len(), 1_024);
    assert_eq!(pods.iter().filter(|pod| !pod.is_finished()).count(), 2);
    assert_eq!(bench.counters.truncated.of(Cut::Pods), 6);

    // One more that runs is an outage, and the list that follows makes room for it.
    let watch = bench.server.watch().await;
    watch.event("ADDED", ended(1_028)).await;
    watch.event("ADDED", pod("x", 11)).await;
    bench.server.script().pods.push(pod("x", 11));
    bench.out_of_sync().await;
    assert_eq!(bench.snapshot().await.iter().filter(|pod| !pod.is_finished()).count(), 3);

    // If the list left out pods that still run, they would count as deleted.
    let pods = (0..1_025).map(|n| pod(&n.to_string(), 7)).collect();
    let mut bench = KubeBench::new(Script { pods, version: 10, ..Script::default() });
    let error = bench.out_of_sync().await;
    assert!(error.contains("more than 1024 pods"), "{error}");
}
