//! Questions beside the watch: does this pod exist, and whose node is this?

use super::{
    KubeBench, Script,
    apiserver::{not_found, status_object},
    next, pod,
};
use coroner_core::{
    ids::{PodRef, PodUid},
    input::{ApiEvent, ApiNode},
};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const NODE: &str = "nodes/n1";

fn node(boot: &str) -> Value {
    json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": { "name": "n1" },
        "status": {
            "nodeInfo": { "bootID": boot, "kubeletVersion": "v1.33.4" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn reference(name: &str, uid: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: name.into(), uid: PodUid::new(uid) }
}

/// The mirror of a static pod with this hash.
fn mirror(hash: &str) -> Value {
    let mut mirror = pod("static", 7);
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": hash });
    mirror["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n" }]);
    mirror
}

fn path(name: &str) -> String {
    format!("namespaces/default/pods/{name}")
}

impl KubeBench {
    /// The next answer of the node's kind.
    async fn node(&mut self) -> ApiEvent {
        let is_node =
            |event: &ApiEvent| matches!(event, ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. });
        next(&mut self.events, is_node).await
    }

    /// Asks about pods, and the answers.
    async fn check(&mut self, pods: &[PodRef]) -> Vec<Option<bool>> {
        self.ask.send(pods.to_vec()).await.expect("the adapter runs");
        let is_checked = |event: &ApiEvent| matches!(event, ApiEvent::Checked { .. });
        let ApiEvent::Checked { pods: checks, .. } = next(&mut self.events, is_checked).await
        else {
            unreachable!("only that was waited for");
        };
        let uids: Vec<&str> = checks.iter().map(|check| check.uid.as_str()).collect();
        assert_eq!(uids, pods.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>());
        checks.iter().map(|check| check.exists).collect()
    }
}

#[tokio::test]
async fn a_pod_is_looked_up_by_its_name_and_known_by_its_uid() {
    let (mut bench, watch) = KubeBench::in_sync(&[]).await;
    let mut nonsense = pod("nonsense", 7);
    nonsense["metadata"]["uid"] = json!("");
    bench.server.script().gets.extend([
        (path("here"), (200, pod("here", 7))),
        (path("static"), (200, mirror("hash"))),
        (path("nonsense"), (200, nonsense)),
        (path("garbage"), (200, json!("}garbage{"))),
        (path("refused"), (403, status_object(403))),
        (path("broken"), (500, status_object(500))),
        (path("proxy"), (404, json!("404 page not found"))),
        (path("path"), (404, not_found(""))),
    ]);
    let table = [
        ("here", "uid-here", Some(true)),
        ("here", "uid-of-another-life", Some(false)),
        ("static", "hash", Some(true)),
        ("static", "uid-static", Some(true)),
        ("static", "another-hash", Some(false)),
        ("gone", "uid-gone", Some(false)),
        ("nonsense", "uid-nonsense", None),
        ("garbage", "uid-garbage", None),
        ("refused", "uid-refused", None),
        ("broken", "uid-broken", None),
        // A proxy that does not know the path, and an apiserver that does not know pods.
        ("proxy", "uid-proxy", None),
        ("path", "uid-path", None),
        // Names that would lead elsewhere.
        ("", "uid-empty", None),
        ("../../../nodes/n1", "uid-odd", None),
        ("a?b", "uid-odd", None),
    ];
    for part in table.chunks(10) {
        let pods: Vec<_> = part.iter().map(|(name, uid, _)| reference(name, uid)).collect();
        let expected: Vec<_> = part.iter().map(|(.., exists)| *exists).collect();
        assert_eq!(bench.check(&pods).await, expected, "{part:?}");
    }
    let got = bench.server.script().got.clone();
    // Without a resource version: not from a cache that may lag behind.
    assert!(got.iter().all(|(_, query)| query.is_empty()), "{got:?}");
    assert!(!got.iter().any(|(path, _)| path.contains("..") || path.ends_with("pods/")));
    // A question that fails is no outage of the watch.
    watch.event("ADDED", pod("b", 11)).await;
    assert!(matches!(bench.event().await, ApiEvent::Applied(_)));
}

/// Eleven pods, of which so many exist as these say.
fn eleven(exists: impl Fn(u8) -> Option<bool>) -> (Vec<PodRef>, Vec<Option<bool>>) {
    (0..11).map(|n| (reference(&n.to_string(), &format!("uid-{n}")), exists(n))).unzip()
}

#[tokio::test]
async fn many_pods_cost_one_list() {
    let (mut bench, _watch) = KubeBench::in_sync(&["a"]).await;
    let mirror = mirror("uid-7");
    bench.server.script().pods = vec![pod("1", 7), mirror, pod("3", 7)];
    bench.server.script().page = Some(2); // the last comes with another page
    let (pods, expected) = eleven(|n| Some([1, 3, 7].contains(&n)));
    assert_eq!(bench.check(&pods).await, expected);
    let by_name = bench.server.script().got.iter().filter(|(path, _)| path != NODE).count();
    assert_eq!(by_name, 5, "some of those that the list lacks");
    assert!(bench.server.script().selectors.iter().all(|one| one == "spec.nodeName=n1"));

    let mut nonsense = pod("nonsense", 7);
    nonsense["metadata"]["uid"] = json!("");
    bench.server.script().pods.push(nonsense);
    let (_, expected) = eleven(|n| [1, 3, 7].contains(&n).then_some(true));
    assert_eq!(bench.check(&pods).await, expected, "one of them may be what makes no sense");

    bench.server.script().list_failures.push_back(500);
    assert_eq!(bench.check(&pods).await, vec![None; 11]);
    bench.server.script().list = Some(String::new());
    assert_eq!(bench.check(&pods).await, vec![None; 11], "an empty answer is no list");
    assert!(bench.counters.errors.load(Ordering::Relaxed) >= 1);
}

/// With a sibling node's name, on a machine of several nodes, the list is another node's. Of the ten pods that it lacks
/// every other is asked for: 0, 3, 5, 7, 9.
#[tokio::test]
async fn a_list_that_lacks_a_pod_which_exists_proves_nothing() {
    let (mut bench, _watch) = KubeBench::in_sync(&["a"]).await;
    bench.server.script().pods = vec![pod("1", 7)];
    bench.server.script().gets.insert(path("2"), (200, pod("2", 7)));
    let (pods, only_1) = eleven(|n| Some(n == 1));
    assert_eq!(bench.check(&pods).await, only_1, "none of those that are asked for exists");
    bench.server.script().gets.insert(path("5"), (200, pod("5", 7)));
    let (_, expected) = eleven(|n| match n {
        1 | 5 => Some(true),
        0 | 3 | 7 | 9 => Some(false), // by the apiserver's own word
        _ => None,
    });
    assert_eq!(bench.check(&pods).await, expected);
    // The same name, another pod: no contradiction.
    bench.server.script().gets.insert(path("5"), (200, pod("another", 7)));
    assert_eq!(bench.check(&pods).await, only_1);
    let refused = (0..11).map(|n| (path(&n.to_string()), (403, status_object(403))));
    bench.server.script().gets.extend(refused);
    let (_, expected) = eleven(|n| (n == 1).then_some(true));
    assert_eq!(bench.check(&pods).await, expected, "nothing confirms the list");
}

/// Of an orphaned cgroup the UID is all that is known.
#[tokio::test]
async fn what_one_lookup_finds_the_list_must_have_for_the_nameless() {
    let (mut bench, _watch) = KubeBench::in_sync(&["a"]).await;
    bench.server.script().pods = vec![pod("b", 7)];
    bench.server.script().gets.insert(path("a"), (200, pod("a", 7)));
    let nameless =
        |uid: &str| PodRef { namespace: String::new(), name: String::new(), uid: PodUid::new(uid) };
    let pods = [reference("a", "uid-a"), nameless("uid-b"), nameless("uid-c")];
    assert_eq!(bench.check(&pods).await, [Some(true), Some(true), None]);
    bench.server.script().pods.push(pod("a", 7));
    assert_eq!(bench.check(&pods).await, [Some(true), Some(true), Some(false)]);
}

#[tokio::test]
async fn why_the_node_is_not_known_is_said() {
    let without_boot = json!({ "metadata": { "name": "n1" }, "status": {} });
    for (answer, is_missing, words) in [
        (None, true, "compare --node"),
        (Some((403, status_object(403))), false, "must allow get of nodes"),
        (Some((401, status_object(401))), false, "renew the kubeconfig"),
        (Some((500, status_object(500))), false, "refused with 500"),
        (Some((404, json!("404 page not found"))), false, "status 404 without a Kubernetes reason"),
        (Some((200, json!("}garbage{"))), false, "cannot parse the response"),
        (Some((200, without_boot)), false, "no bootID"),
    ] {
        let gets = answer.into_iter().map(|answer| (NODE.to_owned(), answer)).collect();
        let mut bench = KubeBench::new(Script { gets, version: 10, ..Script::default() });
        let ApiEvent::NodeUnknown { missing, error } = bench.node().await else {
            panic!("it is known")
        };
        assert_eq!(missing, is_missing, "{error}");
        assert!(error.contains(words), "{words:?} in {error:?}");
    }
}

#[tokio::test]
async fn the_node_is_asked_for_again_after_an_outage() {
    // The Node is known, so that without an outage it is read again only after minutes.
    let gets = [(NODE.to_owned(), (200, node("boot-1")))].into();
    let mut bench = KubeBench::new(Script { gets, version: 10, ..Script::default() });
    assert!(matches!(bench.node().await, ApiEvent::Node(_)));
    let watch = bench.server.watch().await;
    bench.server.kill();
    drop(watch);
    next(&mut bench.events, |event| matches!(event, ApiEvent::OutOfSync { .. })).await;
    bench.server.script().gets.insert(NODE.into(), (200, node("boot-2")));
    bench.server.serve();
    let _watch = bench.server.watch().await;
    let expected =
        ApiNode { boot_id: "boot-2".into(), kubelet_version: "v1.33.4".into(), ready: Some(true) };
    assert_eq!(bench.node().await, ApiEvent::Node(expected));
}
