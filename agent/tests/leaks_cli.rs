//! `coroner leaks` as a person meets it: asking an agent, and looking itself at a runtime and an
//! apiserver inside the test.

use crate::{
    binary::{
        coroner, run,
        serving::{self, ServedSocket},
    },
    cri::runtime::{FakeRuntime, sandbox},
    kube::{
        self,
        apiserver::{FakeApiserver, Script},
        kubeconfig,
    },
    server::Server,
};
use coroner::store::{history::History, leaks::LeakStore};
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
    _serving: Server,
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
        kubeconfig(folder.path(), &format!("http://{}", apiserver.address), &json!({}));
        Self { apiserver, _serving: serving, folder }
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

/// The pod of a sandbox.
fn pod(of: &str) -> Value {
    let mut pod = kube::pod(&format!("pod-{of}"), 5);
    pod["metadata"]["uid"] = json!(format!("uid-{of}"));
    pod
}

#[test]
fn what_was_seen_for_all_of_the_time_is_a_leak_with_what_the_kubelet_logged_of_it() {
    let node = FakeNode::new(BOOT);
    let line = "E0101 19:37:59.123481 1 remote_runtime.go:205] \"StopPodSandbox from runtime service failed\" \
                err=\"networkPlugin cni failed to teardown\" podSandboxID=\"s1\"";
    std::fs::write(node.path("log"), format!("{line}\n{}\n", line.replace("s1", "s9"))).unwrap();
    let log = format!("--kubelet-log {}", node.path("log").display());
    let (code, out, err) = run(&mut node.leaks(&format!("-v {log}")));
    assert_eq!(code, 0, "{err}");
    for wanted in [
        "STATE      CLASS",
        "confirmed  notready_no_pod",
        "pod-s1",
        "has no pod of this UID",
        "$ crictl rmp s1",
        "pod_worker_stuck",
        "the kubelet logged at ",
        "cni failed to teardown",
    ] {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    assert!(!out.contains("s9"), "{out}");
    for wanted in
        ["observing node n1 for 2s", "could not read: shims", "2 lines of the kubelet's log"]
    {
        assert!(err.contains(wanted), "{wanted}: {err}");
    }
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

/// What there is on a node, and what is said of it: the exit status, words on stdout, and on stderr.
#[test]
fn what_is_no_leak_and_what_cannot_be_told() {
    type Case =
        (&'static str, fn(&FakeNode), &'static str, i32, &'static str, &'static [&'static str]);
    let cases: [Case; 4] = [
        (
            BOOT,
            |node| node.apiserver.script().pods.push(pod("s1")),
            "--exit-code",
            0,
            "",
            &["no leaks on node n1 in namespace default (all sources"],
        ),
        // The watch does not show it, but it exists.
        (
            BOOT,
            |node| {
                let path = "namespaces/default/pods/pod-s1".to_owned();
                node.apiserver.script().gets.insert(path, (200, pod("s1")));
            },
            "--for 5s -o json",
            0,
            "\"items\": []",
            &[],
        ),
        (
            "8c1b2f9e-0000-4000-8000-00000000000f",
            |_| {},
            "",
            1,
            "",
            &["leak detection is suspended", "another machine", "on node n1", "check --node"],
        ),
        (
            BOOT,
            |node| std::fs::remove_file(node.path("cri.sock")).unwrap(),
            "",
            1,
            "",
            &["cri.sock", "start the container runtime"],
        ),
    ];
    for (boot, happens, flags, status, shown, said) in cases {
        let node = FakeNode::new(boot);
        happens(&node);
        let (code, out, err) = run(&mut node.leaks(flags));
        assert_eq!(code, status, "{err}");
        assert!(out.contains(shown) && (code == 0 || out.is_empty()), "{out}");
        for wanted in said {
            assert!(err.contains(wanted), "{wanted}: {err}");
        }
    }
}

/// An agent that serves these leaks until the test ends.
fn agent(leaks: Vec<Leak>, detection_state: DetectionState, watched: u64) -> ServedSocket {
    let mut store = LeakStore::new(Duration::from_secs(300));
    leaks.into_iter().for_each(|leak| store.put(Arc::new(leak)));
    let watched = Duration::from_secs(watched);
    store.update_detection(&LeakGauges { detection_state, watched, ..LeakGauges::default() });
    let shared = serving::state(History::in_memory(), store);
    shared.health.lock().detection_state = detection_state;
    ServedSocket::of(shared)
}

#[test]
fn a_running_agent_is_asked() {
    let mut leak = serving::leak();
    leak.cause.message.push_str("\u{1b}[2J");
    let served = agent(vec![leak], DetectionState::Possible, 1000);
    let ask = |flags: &str| run(&mut coroner(&format!("leaks {} {flags}", served.flag())));
    for (flags, status, wanted) in [
        ("", 0, "notready_no_pod  shop       web-0  398445f28f116"),
        ("-o wide", 0, "network namespace /run/netns/cni-7a3f; addresses 10.244.1.17"),
        ("-v", 0, "its sandbox was no longer ready"),
        ("-o json --exit-code", 3, "\"watchedSeconds\": 1000"),
    ] {
        let (code, out, err) = ask(flags);
        assert_eq!((code, &*err), (status, ""), "{flags}");
        assert!(out.contains(wanted), "{flags}: {out}");
        assert!(!out.contains('\u{1b}'), "a terminal must not obey it: {out}");
    }
    let (code, out, err) = ask("--exit-code -n other");
    assert_eq!((code, &*out), (0, ""));
    assert!(err.contains("no leaks on node n1 in namespace other"), "{err}");
}

#[test]
fn an_agent_that_cannot_judge_or_has_just_started_never_says_that_there_is_nothing() {
    use DetectionState::{ApiOutOfSync, NodeForeign, Possible};
    let foreign = ["on node n1: the Node", "→ check --node"];
    let (none, some) = (Vec::new, || vec![serving::leak()]);
    for (state, watched, leaks, flags, status, said) in [
        (NodeForeign, 0, none(), "", 1, foreign),
        (NodeForeign, 0, none(), "-o json", 1, foreign),
        (NodeForeign, 0, none(), "--exit-code", 1, foreign),
        (ApiOutOfSync, 1000, some(), "--exit-code", 3, ["confirmed before", ""]),
        (Possible, 12, none(), "", 0, ["no confirmed leaks on node n1 yet", "12s"]),
        (Possible, 12, none(), "--exit-code", 1, ["ask again after 5m", ""]),
        (Possible, 12, some(), "--exit-code", 3, ["", ""]),
    ] {
        let shown = if leaks.is_empty() { "" } else { "web-0" };
        let served = agent(leaks, state, watched);
        let (code, out, err) = run(&mut coroner(&format!("leaks {} {flags}", served.flag())));
        assert_eq!(code, status, "{state} {flags}: {err}");
        assert!(out.contains(shown) && out.is_empty() == shown.is_empty(), "{state}: {out}");
        assert!(said.iter().all(|part| err.contains(part)), "{state} {flags}: {err}");
    }
}
