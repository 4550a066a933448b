//! `coroner leaks` as a person meets it: asking an agent, and looking itself at a runtime and an
//! apiserver inside the test.

use crate::{
    binary::{coroner, run, serving::ServedSocket},
    cri::runtime::{FakeRuntime, Serving, sandbox},
    kube::apiserver::{FakeApiserver, Script},
};
use coroner::{
    linux::clock,
    outputs::{
        http::{Observed, SharedState},
        metrics::Metrics,
    },
    store::{health::Health, leaks::LeakStore, terminations::History},
};
use coroner_core::{
    leak::{DetectionState, Leak},
    leaks::LeakGauges,
};
use coroner_cri_api::read;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

const BOOT: &str = "8c1b2f9e-0000-4000-8000-000000000001";

/// A node: its runtime, its apiserver, and as much of its file system as tells the boot.
struct FakeNode {
    apiserver: FakeApiserver,
    _serving: Serving,
    folder: TempDir,
}

impl FakeNode {
    /// With a stopped sandbox s1 and a running one s2; the apiserver says it is `boot`.
    fn new(boot: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc/sys/kernel/random");
        std::fs::create_dir_all(&proc).unwrap();
        std::fs::write(proc.join("boot_id"), format!("{BOOT}\n")).unwrap();
        let node = json!({
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": { "name": "n1" },
            "status": { "nodeInfo": { "bootID": boot, "kubeletVersion": "v1.23.17" } },
        });
        let mut script = Script { version: 7, pods: vec![pod("s2")], ..Script::default() };
        script.gets.insert("nodes/n1".to_owned(), (200, node));
        let apiserver = FakeApiserver::start(script);
        let runtime = FakeRuntime::default();
        let stopped = read::PodSandbox {
            state: read::PodSandboxState::SandboxNotready.into(),
            ..sandbox("s1")
        };
        runtime.state().sandboxes = vec![stopped, sandbox("s2")];
        let serving = runtime.serve(&folder.path().join("cri.sock"));
        let me = Self { apiserver, _serving: serving, folder };
        me.write_kubeconfig(&format!("http://{}", me.apiserver.address));
        me
    }

    fn write_kubeconfig(&self, server: &str) {
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "c", "cluster": { "server": server } }],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "x",
        });
        std::fs::write(self.path("kubeconfig"), text.to_string()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Only one namespace: what other tests leave of cgroups on this machine has none.
    fn leaks(&self, flags: &str) -> Command {
        let mut command = coroner(&format!(
            "leaks --standalone --node n1 --runtime-endpoint {} --kubeconfig {} --host-root {} -n default {flags}",
            self.path("cri.sock").display(),
            self.path("kubeconfig").display(),
            self.folder.path().display(),
        ));
        command.env("CORONER_FOR", "2s");
        command
    }
}

fn pod(of: &str) -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": format!("pod-{of}"),
            "namespace": "default",
            "uid": format!("uid-{of}"),
            "resourceVersion": "5",
        },
        "spec": { "containers": [{ "name": "main" }] },
    })
}

#[test]
fn what_was_seen_for_all_of_the_time_is_a_leak() {
    let node = FakeNode::new(BOOT);
    let (code, out, err) = run(&mut node.leaks("-v"));
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("STATE      CLASS"), "{out}");
    for wanted in
        ["confirmed  notready_no_pod", "pod-s1", "has no pod of this UID", "$ crictl rmp s1"]
    {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    assert!(
        err.contains("observing node n1 for 2s") && err.contains("could not read: shims"),
        "{err}"
    );
    let asked = &node.apiserver.script().got;
    assert!(asked.iter().any(|(path, _)| path.ends_with("pods/pod-s1")), "{asked:?}");
}

#[test]
fn what_came_later_is_a_candidate() {
    let mut node = FakeNode::new(BOOT);
    node.apiserver.script().pods.push(pod("s1"));
    let observing = node.leaks("--for 10s -o json").stdout(Stdio::piped()).spawn().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let objects = runtime.block_on(node.apiserver.watch());
    std::thread::sleep(Duration::from_secs(5));
    runtime.block_on(objects.event("DELETED", pod("s1")));
    let answer = observing.wait_with_output().unwrap().stdout;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        (&answer["items"], &answer["candidates"][0]["class"]),
        (&json!([]), &json!("notready_no_pod"))
    );
}

#[test]
fn the_kubelets_log_is_quoted_below_the_leak() {
    let node = FakeNode::new(BOOT);
    let line = "E0101 19:37:59.123481 1 remote_runtime.go:205] \"StopPodSandbox from runtime service failed\" \
                err=\"networkPlugin cni failed to teardown\" podSandboxID=\"s1\"";
    std::fs::write(node.path("log"), format!("{line}\n{}\n", line.replace("s1", "s9"))).unwrap();
    let log = format!("--kubelet-log {}", node.path("log").display());
    let (code, out, err) = run(&mut node.leaks(&log));
    assert_eq!(code, 0, "{err}");
    for wanted in
        ["confirmed", "pod_worker_stuck", "the kubelet logged at ", "cni failed to teardown"]
    {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    assert!(!out.contains("s9") && err.contains("2 lines of the kubelet's log"), "{out}{err}");
    std::fs::write(node.path("log"), "something else\n").unwrap();
    let (_, _, err) = run(&mut node.leaks(&log));
    assert!(err.contains("is not a kubelet's log"), "{err}");
}

#[test]
fn scripts_get_a_status_and_json() {
    let node = FakeNode::new(BOOT);
    let (code, out, err) = run(&mut node.leaks("--exit-code -o json"));
    assert_eq!(code, 3, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["detection"]["state"], "possible");
    assert_eq!(answer["standalone"], true);
    assert_eq!(answer["candidates"], json!([]));
    assert_eq!(answer["detection"]["thresholdSeconds"], 2);
    assert_eq!(answer["items"].as_array().unwrap().len(), 1, "{out}");
    assert_eq!(answer["items"][0]["pod"]["name"], "pod-s1");
}

#[test]
fn where_every_pod_exists_nothing_was_left_behind() {
    let node = FakeNode::new(BOOT);
    node.apiserver.script().pods.push(pod("s1"));
    let (code, out, err) = run(&mut node.leaks("--exit-code"));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("no leaks on node n1 in namespace default (all sources"), "{out}{err}");
}

#[test]
fn the_apiserver_has_the_last_word() {
    let node = FakeNode::new(BOOT);
    let path = "namespaces/default/pods/pod-s1".to_owned();
    node.apiserver.script().gets.insert(path, (200, pod("s1")));
    let (code, out, err) = run(&mut node.leaks("--for 5s -o json"));
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["items"], json!([]), "the watch does not show it, but it exists: {out}");
}

#[test]
fn another_machines_node_is_an_error() {
    let node = FakeNode::new("8c1b2f9e-0000-4000-8000-00000000000f");
    let (code, out, err) = run(&mut node.leaks(""));
    assert_eq!((code, &*out), (1, ""), "{err}");
    for wanted in ["leak detection is suspended", "another machine", "on node n1", "check --node"] {
        assert!(err.contains(wanted), "{wanted}: {err}");
    }
}

#[test]
fn a_runtime_that_is_not_there_is_an_error() {
    let node = FakeNode::new(BOOT);
    std::fs::remove_file(node.path("cri.sock")).unwrap();
    let (code, out, err) = run(&mut node.leaks(""));
    assert_eq!((code, &*out), (1, ""), "{err}");
    for wanted in ["cri.sock", "start the container runtime"] {
        assert!(err.contains(wanted), "{wanted}: {err}");
    }
}

/// An agent that serves these leaks until the test ends.
fn agent(
    leaks: Vec<Leak>,
    detection_state: DetectionState,
    watched: u64,
) -> (ServedSocket, Arc<SharedState>) {
    let mut store = LeakStore::new(Duration::from_secs(300));
    leaks.into_iter().for_each(|leak| store.put(Arc::new(leak)));
    store.update_detection(&gauges(detection_state, watched));
    let mut health = Health::new(true, clock::boot_now());
    health.detection_state = detection_state;
    let shared = SharedState::new(health, History::new(1), store, Metrics::new().unwrap());
    let shared = Arc::new(shared.of(Observed { node: "n1".into(), ..Observed::default() }));
    (ServedSocket::of(Arc::clone(&shared)), shared)
}

fn gauges(detection_state: DetectionState, watched: u64) -> LeakGauges {
    LeakGauges { detection_state, watched: Duration::from_secs(watched), ..LeakGauges::default() }
}

fn leak(namespace: &str) -> Leak {
    serde_json::from_value(json!({
        "class": "notready_no_pod",
        "key": { "thing": "sandbox", "id": "0123456789abcdef" },
        "pod": { "namespace": namespace, "name": "web-0", "uid": "u1" },
        "attempt": 2,
        "created": { "time": "2023-11-14T22:13:20Z" },
        "firstObserved": { "time": "2023-11-14T22:15:00Z" },
        "confirmed": { "time": "2023-11-14T22:20:00Z" },
        "resources": { "netns": "/run/netns/cni-1", "ips": ["10.0.0.9"] },
        "cause": { "kind": "pod_worker_stuck", "message": "kubelet v1.23\u{1b}[2J" },
        "evidence": [{ "source": "cri", "message": "its sandbox was no longer ready" }],
        "remediation": ["$ crictl rmp 0123456789abcdef"],
    }))
    .unwrap()
}

#[test]
fn a_running_agent_is_asked() {
    let (served, _) = agent(vec![leak("shop"), leak("shop")], DetectionState::Possible, 1000);
    let socket = served.flag();
    let (code, out, err) = run(&mut coroner(&format!("leaks {socket}")));
    assert_eq!((code, &*err), (0, ""));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(lines[0].starts_with("CLASS"), "{out}");
    assert!(lines[1].starts_with("notready_no_pod  shop       web-0  0123456789abc"), "{out}");
    let (_, out, _) = run(&mut coroner(&format!("leaks -o wide {socket}")));
    for wanted in ["network namespace /run/netns/cni-1; addresses 10.0.0.9", "u1", "ATTEMPT"] {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    assert!(!out.contains('\u{1b}'), "a terminal must not obey it: {out}");
    let (_, out, _) = run(&mut coroner(&format!("leaks {socket} -v")));
    assert!(
        out.contains("its sandbox was no longer ready") && out.contains("$ crictl rmp"),
        "{out}"
    );
    let (_, out, _) = run(&mut coroner(&format!("leaks {socket} -o json")));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&answer["standalone"], &answer["detection"]["watchedSeconds"]),
        (&json!(false), &json!(1000))
    );
    let (code, _, _) = run(&mut coroner(&format!("leaks {socket} --exit-code")));
    assert_eq!(code, 3);
    let other = format!("leaks {socket} --exit-code -n other");
    let (code, out, err) = run(&mut coroner(&other));
    assert_eq!((code, &*out), (0, ""));
    assert!(err.contains("no leaks on node n1 in namespace other"), "{err}");
}

#[test]
fn an_agent_that_cannot_judge_never_says_that_there_is_nothing() {
    let (served, _) = agent(Vec::new(), DetectionState::NodeForeign, 0);
    let socket = served.flag();
    for flags in ["", "-o json", "--exit-code"] {
        let (code, out, err) = run(&mut coroner(&format!("leaks {socket} {flags}")));
        assert_eq!((code, &*out), (1, ""), "{flags}");
        assert!(err.contains("on node n1: the Node") && err.contains("→ check --node"), "{err}");
    }
    let (served, _) = agent(vec![leak("shop")], DetectionState::ApiOutOfSync, 1000);
    let socket = served.flag();
    let (code, out, err) = run(&mut coroner(&format!("leaks {socket} --exit-code")));
    assert_eq!(code, 3, "what was certain is");
    assert!(out.contains("web-0") && err.contains("confirmed before"), "{out}{err}");
}

#[test]
fn an_agent_that_has_just_started_has_not_seen_enough() {
    let (served, shared) = agent(Vec::new(), DetectionState::Possible, 12);
    let socket = served.flag();
    let (code, out, err) = run(&mut coroner(&format!("leaks {socket}")));
    assert_eq!((code, &*out), (0, ""));
    assert!(err.contains("no confirmed leaks on node n1 yet") && err.contains("12s"), "{err}");
    let exit_code = format!("leaks {socket} --exit-code");
    let (code, _, err) = run(&mut coroner(&exit_code));
    assert!(code == 1 && err.contains("ask again after 5m"), "nobody knows yet: {code} {err}");
    shared.leaks.lock().put(Arc::new(leak("shop")));
    assert_eq!(run(&mut coroner(&exit_code)).0, 3);
}
