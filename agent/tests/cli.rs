//! The binary as a person meets it: exit statuses and messages.

use crate::{
    binary::{
        coroner, run,
        serving::{self, ServedSocket},
    },
    kube::kubeconfig,
};
use clap::CommandFactory as _;
use coroner::{
    config::args::Cli,
    store::{history::History, leaks::LeakStore},
};
use coroner_report::{List, PodTermination};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::Stdio,
};

#[test]
fn wrong_usage_is_64_and_says_what_is_wrong() {
    let cases = [
        ("", "Usage: coroner"),
        ("fly", "unrecognized subcommand 'fly'"),
        ("run --runtime-endpoint /run/x.sock", "set --node NAME"),
        ("run --no-api --runtime-endpoint tcp://h:1", "not a unix socket"),
        ("run --no-api --log-level =,=", "--log-level"),
        ("run --node n --kubeconfig /no/such", "--kubeconfig /no/such: no such file"),
        ("leaks --standalone --runtime-endpoint /x", "set --node NAME"),
    ];
    for (args, message) in cases {
        let (code, out, err) = run(&mut coroner(args));
        assert_eq!((code, &*out), (64, ""), "{args}: {err}");
        assert!(err.contains(message), "{args}: {err}");
    }
}

#[test]
fn what_cannot_be_had_is_found_out_before_anything_is_attached() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = format!("--listen {address}");
    let file = "--listen 127.0.0.1:0 --record /no/such/dir/rec";
    for (flags, wanted, hint) in [
        (&*port, &*format!("cannot listen on {address}"), "--listen"),
        (file, "cannot record to /no/such/dir/rec", "create its directory"),
    ] {
        let run_of = "run --no-api --runtime-endpoint /nowhere.sock --api-listen off --socket off";
        let (code, _, err) = run(&mut coroner(&format!("{run_of} {flags}")));
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(wanted) && err.contains(hint), "{err}");
    }
}

/// An excerpt begins with the pod's first line.
#[test]
fn the_kubelets_log_of_a_termination_is_shown_as_a_lane() {
    let lines = [
        r#"I1121 07:35:39.560000 1766 kubelet.go:2451] "SyncLoop DELETE" source="api" pods=["lab/one-of-two-overruns"]"#,
        r#"I1121 07:35:42.745000 1766 kuberuntime_container.go:808] "Killing container with a grace period" pod="lab/one-of-two-overruns" podUID="a79add0d-98d3-451b-acf8-062cf38271a4" containerName="web" containerID="containerd://bb" gracePeriod=5"#,
        r#"I1121 07:35:48.700000 1766 kubelet.go:2445] "SyncLoop REMOVE" source="api" pods=["lab/one-of-two-overruns"]"#,
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    let explain = |text: &str| {
        fs::write(file.path(), text).unwrap();
        let args = "explain one-of-two-overruns --sample --kubelet-log";
        let (code, out, err) = run(&mut coroner(&format!("{args} {}", file.path().display())));
        assert_eq!((code, &*err), (0, ""));
        out.split_once("\nKubelet's log\n").map(|(_, lane)| lane.to_owned()).unwrap()
    };
    let lane = explain(&lines.join("\n"));
    for wanted in ["+0.004 s          -  -v=2", "+3.189 s", "3 lines of this pod"] {
        assert!(lane.contains(wanted), "{wanted}: {lane}");
    }
    assert!(explain("x\n").contains("is not a kubelet's log"));
    let other = lines[0].replace("one-of", "another");
    assert!(explain(&other).contains("No line of it is about this termination."));
}

#[test]
fn the_sample_shows_something_without_a_node() {
    let (code, shown, err) = run(&mut coroner("explain --sample"));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("also in the sample: oom-killed, shell-not-forwarding"), "{err}");
    let (code, out, err) = run(&mut coroner("explain one-of-two-overruns --sample"));
    assert_eq!((code, &*err, &*out), (0, "", &*shown));
    for wanted in ["web  grace_exceeded", "log  graceful", "pre_stop", "Fix: "] {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
}

#[test]
fn without_an_agent_each_command_says_what_to_do() {
    for (command, hint) in [
        ("explain web-0", "--sample"),
        ("explain", "--from FILE"), // a sample would be taken for the node's own
        ("terminations", "--socket"),
        ("leaks", "--standalone"),
    ] {
        let (code, out, err) = run(&mut coroner(&format!("{command} --socket /no/such.sock")));
        assert_eq!((code, &*out), (1, ""));
        assert!(err.contains("check that `coroner run` is running") && err.contains(hint), "{err}");
    }
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "apiVersion: v1\n").unwrap();
    let (code, out, err) = run(&mut coroner(&format!("replay {}", file.display())));
    assert_eq!((code, &*out), (1, ""));
    assert!(err.contains("not a recording") && err.contains("cannot replay"), "{err}");
    let (code, _, err) = run(&mut coroner("replay /no/such/file"));
    assert_eq!(code, 1);
    assert!(err.contains("/no/such/file"), "{err}");
    assert_eq!(err.matches("No such file").count(), 1, "each cause once: {err}");
    // The sample, cut off: what there is is used, and said.
    let sample = include_bytes!("../samples/lab.jsonl.gz");
    fs::write(&file, &sample[..sample.len() - 20]).unwrap();
    let (code, out, err) = run(&mut coroner(&format!("replay {} -o table", file.display())));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("one-of-two-overruns") && err.contains("is truncated"), "{out}{err}");
}

/// Serves so many reports until the test ends.
fn agent(reports: usize) -> ServedSocket {
    let history = History::in_memory();
    for n in 0..reports {
        let mut report = serving::sample();
        report.pod.name = format!("web-{n}");
        report.pod.uid = format!("uid-{n}").as_str().into();
        history.terminated(Box::new(report), false);
    }
    ServedSocket::of(serving::state(history, LeakStore::default()))
}

#[test]
fn lists_have_the_forms_that_kubectl_has() {
    let agent = agent(2);
    let both = |args: &str| {
        let (code, out, err) = run(&mut coroner(&format!("{args} {}", agent.flag())));
        assert!(code == 0 && (err.is_empty() || err.starts_with("note: no ")), "{args}: {err}");
        (out, err)
    };
    let ask = |args: &str| both(args).0;
    assert_eq!(ask("terminations -o name"), "shop/web-1\nshop/web-0\n", "the newest first");
    assert_eq!(ask("terminations web-0 -n shop -o name"), "shop/web-0\n");
    let (out, err) = both("terminations -n other");
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(err.contains("no pod terminations that match on node n1, observed since 20"), "{err}");
    let list: List<PodTermination> =
        serde_json::from_str(&ask("terminations --limit 1 -o json")).unwrap();
    assert_eq!((list.items.len(), list.complete), (1, true));
    let wide = ask("terminations -o wide");
    assert!(wide.contains("children_not_signalled") && wide.contains("  n1\n"), "{wide}");
    assert!(ask("terminations -o yaml").contains("causeSource: "));
    // The golden report is not of this boot: by its own clock it ended long ago, or will.
    assert!(ask("terminations -A --since 1d").lines().count() <= 3);
    let deaths = ask("deaths");
    assert!(deaths.starts_with("NAMESPACE"), "{deaths}");
    let report: PodTermination = serde_json::from_str(&ask("explain web-1 -o json")).unwrap();
    assert_eq!(&*report.pod.name, "web-1");
    assert!(ask("explain shop/web-1 -o yaml").contains("verdict: graceful"));
    let (code, _, err) = run(&mut coroner(&format!("explain web-7 {}", agent.flag())));
    assert!(code == 1 && err.contains("shop/web-0  uid-0"), "{err}");
}

#[test]
fn a_watch_goes_on_where_the_list_ended() {
    let agent = agent(2);
    let mut child = coroner(&format!("terminations --watch -o name {}", agent.flag()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for name in ["shop/web-0", "shop/web-1"] {
        assert_eq!(lines.next().unwrap().unwrap(), name, "the oldest first");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// `cargo xtask docs` writes them.
#[test]
fn the_man_pages_are_what_the_flags_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
    let made = tempfile::tempdir().unwrap();
    // The pages do not depend on what was built.
    let version = env!("CARGO_PKG_VERSION");
    let command = Cli::command().disable_help_subcommand(true).long_version(version);
    clap_mangen::generate_to(command, made.path()).unwrap();
    let pages = |folder: &Path| -> BTreeMap<String, String> {
        let files = fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap());
        files
            .map(|file| {
                let name = file.file_name().into_string().unwrap();
                (name, fs::read_to_string(file.path()).unwrap())
            })
            .collect()
    };
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in pages(made.path()) {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    let wanted = pages(made.path());
    assert!(wanted.len() > 8 && pages(&folder) == wanted, "stale; run `cargo xtask docs`");
}

/// A parser that shows the line it stumbles over would show what stands in it.
#[test]
fn a_kubeconfig_s_secrets_are_not_told() {
    const SECRET: &str = "hunter2";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let of_user = |user: Value| {
        fs::read_to_string(kubeconfig(folder.path(), "https://127.0.0.1:1", &user)).unwrap()
    };
    let broken = [
        format!("users:\n- name: u\n  user:\n    token: {SECRET}\n   oops: {SECRET}\n"),
        format!("token {SECRET}"),
        of_user(json!({ "token": [SECRET] })),
        of_user(json!({ "client-certificate-data": format!("{SECRET}!") })),
        of_user(json!({
            "client-certificate-data": "aHVudGVyMg==", "client-key-data": format!("{SECRET}!"),
        })),
        of_user(json!({ "token": format!("{SECRET}\n{SECRET}") })),
        of_user(json!({ "token": SECRET })),
    ];
    for content in broken {
        fs::write(&file, &content).unwrap();
        let args = format!(
            "doctor --node n --runtime-endpoint /nowhere.sock --kubeconfig {}",
            file.display()
        );
        let (code, out, err) = run(&mut coroner(&args));
        assert_eq!(code, 1);
        assert!(out.contains("api         FAILING"), "{out}{err}");
        for secret in [SECRET, "aHVudGVyMg"] {
            assert!(!out.contains(secret) && !err.contains(secret), "{content}: {out}{err}");
        }
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    let agent = agent(2000); // far more than a pipe holds
    let mut child = coroner(&format!("terminations --limit 2000 {}", agent.flag()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*err), (Some(0), ""));
}

#[test]
fn doctor_always_answers_and_its_status_agrees() {
    let (code, out, err) =
        run(&mut coroner("doctor --no-api --runtime-endpoint /nowhere.sock -o json"));
    assert_eq!(code, 1, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["ready"], false);
    let checks = answer["checks"].as_array().unwrap();
    let of = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(of("cri")["severity"], "failing");
    assert!(of("cri")["found"].as_str().unwrap().contains("/nowhere.sock"));
    assert_eq!(of("api")["found"], "not used (--no-api)");
}
