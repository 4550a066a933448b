//! The reader on the wrappings of public reports, on what a tenant may write, and on logs of real kubelets.

use super::{
    lane::{KubeletLane, NamedPod},
    line,
    quotes::{Leaked, Quote, quotes},
    reading::{KubeletLog, LogEntry, read},
    table::{Edge, MESSAGES, Stage},
    zone::Zone,
};
use crate::outputs::report::{Style, samples};
use coroner_core::{
    ids::PodUid,
    leak::{Leak, LeakKey},
    report::PodTermination,
    time::{Anchor, Moment, WallTime},
    types::Cause,
};
use flate2::read::GzDecoder;
use std::{fs::File, io::BufReader, path::Path};

const UID: &str = "d695b232-ff16-454a-830b-02194bec6d01";
const SANDBOX: &str = "d25b1fe9f0eae615534102c4a2d370897be12abe05d26408e6baed4556c3d1f1";

fn log(text: &str) -> KubeletLog {
    read(text.as_bytes(), |_, _| true).unwrap()
}

fn messages(text: &str) -> Vec<&'static str> {
    log(text).entries.iter().map(|entry| entry.statement.message.text).collect()
}

fn wall(text: &str) -> WallTime {
    let time: jiff::Timestamp = text.parse().unwrap();
    WallTime(time.as_nanosecond().try_into().unwrap())
}

/// A line of klog, of process 1766.
fn klog(time: &str, rest: &str) -> String {
    format!("E1127 {time}    1766 a.go:12] {rest}")
}

fn stuck(time: &str) -> String {
    let text = "Pod worker has been requested for removal but is still not fully terminated";
    klog(time, &format!("\"{text}\" podUID=\"{UID}\""))
}

#[test]
fn a_line_is_the_kubelets_behind_any_prefix() {
    let line = klog("19:38:07.123935", r#""SyncLoop DELETE" source="api" pods=["a/b"]"#);
    let (go, json) = (format!("{line:?}"), serde_json::to_string(&line).unwrap());
    for whole in [
        line.clone(),
        line.replace("a.go", "??? a.go"),
        format!("Nov 27 19:38:07 node kubelet[1766]: {line}"),
        format!("2026-11-27T19:38:07.123+01:00 node-1.example k3s[3]: {line}"),
        format!("Mon 2026-11-27 14:18:35 UTC node kubelet[3]: {line}"),
        format!("нояб. 27 19:38:07 node snap.microk8s.daemon-kubelite[3]: {line}"),
        format!("Nov 27 19:38:07 node microshift[17919]: kubelet {line}"),
        format!("2026-11-27T19:38:07.5Z stderr F {line}"),
        format!("MESSAGE={line}"),
        format!("time=\"2026-11-27\" level=info msg={go} component=kubelet stream=stderr"),
        format!("{{\"log\":{json},\"stream\":\"stderr\"}}"),
        format!("{{\"__CURSOR\":\"s=1\", \"MESSAGE\" : {json}, \"_PID\":\"7\"}}"),
        format!("{{\"insertId\":\"x\",\"jsonPayload\":{{\"MESSAGE\":{json}}}}}"),
    ] {
        let found = log(&format!("{whole}\n"));
        assert_eq!((found.lines, found.entries.len()), (1, 1), "{whole}");
        assert_eq!(found.entries[0].statement.subject.pods, ["a/b"], "{whole}");
    }
}

#[test]
fn json_of_the_kubelet_states_the_same_with_an_exact_time() {
    let json = r#"{"ts":1795808287123.935,"caller":"kubelet/kubelet.go:1","msg":"SyncLoop DELETE","v":2,"source":"api","pods":[{"name":"b","namespace":"a"}]}"#;
    for whole in [json.to_owned(), format!("Nov 27 19:38:07 node kubelet[1]: {json}")] {
        let found = log(&whole);
        assert_eq!(found.entries[0].statement.subject.pods, ["a/b"], "{whole}");
        let time = found.entries[0].time.near(WallTime(0), 0).unwrap();
        assert!(time.0.abs_diff(wall("2026-11-27T19:38:07.123935Z").0) < 1_000, "{time:?}");
    }
}

#[test]
fn a_header_elsewhere_in_a_line_is_not_the_kubelets() {
    let line = stuck("19:38:07.123935");
    let (go, json) = (format!("{line:?}"), serde_json::to_string(&line).unwrap());
    for whole in [
        format!("\t{line}"),
        format!(" {line}"),
        format!("Nov 27 19:38:07 node kubelet[1]: \t{line}"),
        format!("Nov 27 19:38:07 node kubelet[1]: #011{line}"),
        format!("Nov 27 19:38:07 node kubelet[1]: error: {line}"),
        format!("Nov 27 19:38:07 node kubelet[1]: kube-proxy {line}"),
        format!("Nov 27 19:38:07 node kubelet[1]:         kubelet {line}"),
        format!("kube-apiserver {line}"),
        format!("time=\"2026\" level=error stderr={go}"),
        format!("{{\"output\":{json}}}"),
        format!("time=\"2026\" msg={go} component=kube-apiserver"),
        format!("time=\"2026\" level=error msg=\"pod said {}", &go[1..]),
        format!("time=\"2026\" level=error pod=x {line}"),
        format!("{{\"MESSAGE\":\"\\t{}", &json[1..]),
        format!("{{\"MESSAGE\":\"x {}", &json[1..]),
        klog("19:38:06.000000", &format!("\"x\" err={go}")),
        line.replace("a.go:12]", "a.rs:12]"),
        line.replace("podUID", "and podUID"),
        format!("{line} more"),
        line.replace(&format!("\"{UID}\""), "\"unended"),
    ] {
        assert!(messages(&whole).is_empty(), "{whole}");
    }
}

#[test]
fn a_value_of_several_lines_states_nothing() {
    let (inner, next) = (stuck("19:38:07.000000"), stuck("19:38:08.000000"));
    let opener = klog("19:38:06.000000", "\"Probe failed\" probeType=\"Liveness\" output=<");
    let forms: [(&str, &str, &str); 5] = [
        ("", "", ""),
        ("Nov 27 19:38:0%d node kubelet[17%d]: ", "\t", ""),
        ("Nov 27 19:38:07 node kubelet[1]: ", "#011", ""),
        // A terminal shows a tab as spaces.
        ("Nov 27 19:38:07 node kubelet[1]: ", "        ", ""),
        ("{\"MESSAGE\":\"", "\\t", "\"}"),
    ];
    for (prefix, tab, end) in forms {
        let mut count = 0;
        let mut put = |tab: &str, text: &str| {
            count += 1;
            let text = if end.is_empty() { text.to_owned() } else { text.replace('"', "\\\"") };
            format!("{}{tab}{text}{end}\n", prefix.replace("%d", &count.to_string()))
        };
        let tab = if tab.is_empty() { "\t" } else { tab };
        let mut text = put("", &opener);
        for forged in [" >", " > x=1", "", "=<", &inner, "not a header", &inner] {
            text += &put(tab, forged);
        }
        text += &put("", " > last=7");
        text += &put("", &next);
        assert_eq!(messages(&text).len(), 1, "{text}");
        // Of an excerpt the end may be missing, and the beginning.
        let cut = text.replace(" > last=7", "");
        assert_eq!(messages(&cut).len(), 1, "{cut}");
        let (_, cut) = text.split_once('\n').unwrap();
        assert_eq!(messages(cut).len(), 1, "{cut}");
    }
    // Where whitespace was trimmed, the end of the value takes back what it contained; and a second value is one, too.
    for rest in [format!("{inner}\n> podUID=u"), format!(" > y=<\n\t{inner}")] {
        assert!(messages(&format!("{opener}\n{rest}\n")).is_empty(), "{rest}");
    }
    // In a quoted string it is one line.
    let whole = klog("19:38:06.000000", "\"Kill container failed\" err=<\n\tx\n > podUID=u");
    assert_eq!(messages(&format!("msg={whole:?}")), ["Kill container failed"]);
}

/// A tenant's NFS path with a line break, in the error of a mount: its lines have any header.
#[test]
fn what_follows_an_unstructured_line_is_forged_if_its_text_goes_on() {
    let mount = |time: &str| {
        let text = format!(
            "Operation for \"{{volumeName:v podName:{UID} nodeName:}}\" failed. No retries permitted until x. Error: MountVolume.SetUp failed for volume \"v\" : mount failed: exit status 32\nMounting arguments: -t nfs h:/x"
        );
        klog(time, &text)
    };
    let own = klog("19:38:05.000000", &format!("\"Kill container failed\" podUID=\"{UID}\""));
    let next = klog("19:38:09.000000", "\"SyncLoop DELETE\" source=\"api\" pods=[\"a/b\"]");
    for forged in [
        // The error goes on behind the path.
        format!("{}\nOutput: mount.nfs: x", stuck("19:38:07.500000")),
        format!("{} is not a directory", stuck("19:38:07.500000")),
    ] {
        let text = format!("{own}\n{}\n{forged}\n{next}\n", mount("19:38:07.000000"));
        assert_eq!(messages(&text), ["Kill container failed", "SyncLoop DELETE"], "{text}");
    }
    // A real line there counts.
    let text =
        format!("{own}\n{}\n{}\n{next}\n", mount("19:38:07.000000"), stuck("19:38:08.000000"));
    assert_eq!(messages(&text).len(), 3, "{text}");
    // The end of the text seems to be that of another message, or of a value; or all later lines seem to be old.
    let forged = stuck("19:38:07.500000");
    for more in [
        klog("19:38:27.000000", "x"),
        klog("19:38:27.000000", "\"x\" y=<"),
        klog("23:59:59.000000", "x").replace("1127", "1231"),
        format!("kubelet {}", klog("19:38:07.000000", "\"x\" y=<")),
        format!("{forged} x=<"),
    ] {
        let text = format!("{own}\n{}\n{forged}\n{more}\nOutput: x", mount("19:38:07.000000"));
        let text = text.replace('\n', "\nNov 27 19:38:08 node kubelet[1766]: ");
        let text = format!("Nov 27 19:38:05 node kubelet[1766]: {text}\n");
        let text = format!("{text}Nov 27 19:38:09 node kubelet[1766]: {next}\n");
        assert_eq!(messages(&text), ["Kill container failed", "SyncLoop DELETE"], "{text}");
    }
}

#[test]
fn a_log_that_is_not_read_whole_says_so() {
    let lines = ["19:38:09.000000", "19:38:07.000000", "19:38:05.000000"].map(stuck);
    let log_of = log(&lines.join("\n"));
    assert_eq!((log_of.lines, log_of.entries.len()), (3, 0));
    assert_eq!(log_of.gaps(), "; 2 lines are out of order: sort the log by time");
    // A leak is logged for hours after its termination, in which the zone is known.
    let delete =
        klog("10:38:01.000000", &format!("\"SyncLoop DELETE\" pods=[\"a/b\"] podUID=\"{UID}\""));
    let mut text = format!("{delete}\n");
    for second in (2_282..36_282).step_by(2) {
        let time =
            format!("{:02}:{:02}:{:02}.000000", 10 + second / 3_600, second / 60 % 60, second % 60);
        text += &format!("{}\n", stuck(&time));
    }
    let account = account(("b", UID), Cause::ApiDelete, "2026-11-27T10:38:00Z");
    let log = log(&text);
    let lane = KubeletLane::of(&log.entries, &NamedPod::of(&account), &account);
    assert_eq!(lane.zone.sentence("x"), "its times are taken as UTC");
    assert_eq!(lane.spans.len(), 1, "{:#?}", lane.spans);
    assert_eq!(log.gaps(), "; 4096 lines in its middle are left out");
}

#[test]
fn the_zone_of_a_leak_is_that_of_the_last_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let [old, new] = ["13:00:00.000000", "14:30:00.000000"].map(stuck);
    let last = klog("14:39:50.000000", "\"x\"");
    std::fs::write(file.path(), format!("{old}\n{new}\n{last}\n")).unwrap();
    let found = quotes(file.path(), &[&leak()], wall("2026-11-27T19:40:00Z")).unwrap();
    let mut text = String::new();
    found.write(0, &mut text, &Style { width: 200, color: false });
    assert!(text.contains("logged at 2026-11-27T19:30:00.000Z:"), "{text}");
    let zone = "its times are taken as UTC-05:00: UTC does not fit";
    assert!(found.note.contains(zone) && found.note.ends_with("quoted: 1"), "{}", found.note);
}

#[test]
fn a_long_line_has_no_second_beginning() {
    let long = klog("19:38:06.000000", &format!("\"x\" err=\"{}", "x".repeat(64 << 10)));
    let at = 64 << 10;
    let text = format!("{}{}\n", &long[..at], stuck("19:38:07.000000"));
    assert!(messages(&text).is_empty());
    assert_eq!(messages(&format!("{text}{}\n", stuck("19:38:08.000000"))).len(), 1);
}

#[test]
fn the_zone_is_utc_unless_only_another_one_fits() {
    let moment = wall("2027-01-01T00:10:00Z");
    let zone = |text: &str| {
        let line = format!("I{text} 1 a.go:1] \"x\"");
        let time = line::parse(&line).unwrap().time;
        let zone = Zone::find([time].into_iter(), moment, |at| at.0.abs_diff(moment.0) < 120 << 30);
        (zone.sentence("x fits"), time.near(moment, zone.ahead))
    };
    for (text, words) in [
        ("0101 00:10:30.000000", "its times are taken as UTC"),
        ("0101 05:40:30.000000", "its times are taken as UTC+05:30: UTC does not fit"),
        ("1231 19:10:30.000000", "its times are taken as UTC-05:00: UTC does not fit"),
    ] {
        let at = Some(wall("2027-01-01T00:10:30Z"));
        assert_eq!(zone(text), (words.to_owned(), at), "{text}");
    }
    assert!(zone("0601 00:00:00.000000").0.contains("in no zone"));
    assert!(line::parse("I1342 00:00:00.000000 1 a.go:1] \"x\"").is_none(), "no day at all");
}

/// The quotes of a log for the leak of the pod, which was deleted at 19:23:36.
fn quoted(text: &str, leak: Leak) -> Vec<Quote> {
    let now = wall("2026-11-27T19:40:00Z");
    let mut leaked = Leaked::of(&leak);
    let log = log(text);
    // As the reading does.
    for entry in &log.entries {
        leaked.is_in(&entry.statement);
    }
    let timed = |entry: &LogEntry| entry.time.near(now, 0).unwrap();
    let all: Vec<_> = log.entries.iter().map(|entry| (timed(entry), &entry.statement)).collect();
    leaked.quotes(&all)
}

fn leak() -> Leak {
    let mut leak = Leak { key: LeakKey::Sandbox { id: SANDBOX.into() }, ..samples::leaked() };
    leak.pod.as_mut().unwrap().uid = PodUid::new(UID);
    let at = |time| Some(Moment { time: wall(time), ..Moment::default() });
    leak.evidence[0].at = at("2026-11-27T19:23:36Z");
    leak.first_observed = at("2026-11-27T19:24:00Z").unwrap();
    leak
}

fn operation(time: &str, action: &str) -> String {
    let text = format!(
        "Operation for \"{{volumeName:kubernetes.io/nfs/{UID}-nfs-pv podName:{UID} nodeName:}}\" failed. No retries permitted until 2026-12-16 17:54:42 (durationBeforeRetry 2m2s). Error: {action} failed for volume \"nfs-pv\" : unmount failed: exit status 32\nUnmounting arguments: /var/lib/kubelet\nOutput: umount: not mounted.\n"
    );
    klog(time, &text)
}

/// `volume-not-mounted`.
#[test]
fn why_a_volume_is_not_unmounted_is_quoted_with_the_lines_below() {
    let [first, last] = ["19:37:59.107302", "19:38:07.109885"]
        .map(|time| operation(time, "UnmountVolume.TearDown"));
    let other = klog("19:38:03.107520", r#""SyncLoop UPDATE" source="api" pods=["default/other"]"#);
    let quotes = quoted(&format!("{first}\n{other}\n{last}\n"), leak());
    let [quote] = &quotes[..] else { panic!("{quotes:#?}") };
    assert_eq!((quote.count, quote.last), (2, wall("2026-11-27T19:38:07.109885Z")));
    for wanted in ["UnmountVolume.TearDown failed", "exit status 32\nUnmounting", "not mounted."] {
        assert!(quote.text.contains(wanted), "{quote:#?}");
    }
    let text = format!(
        "UnmountVolume.TearDown succeeded for volume \"kubernetes.io/nfs/{UID}-nfs-pv\" (OuterVolumeSpecName: \"nfs-pv\") pod \"{UID}\" (UID: \"{UID}\"). InnerVolumeSpecName \"x\"."
    );
    let done = klog("19:38:09.000000", &text);
    assert!(quoted(&format!("{last}\n{done}\n"), leak()).is_empty());
    let of_another = done.replace("nfs-pv\" (Outer", "other\" (Outer");
    assert_eq!(quoted(&format!("{last}\n{of_another}\n"), leak()).len(), 1);
    // Why one was not mounted (`mount-failure-proves-busy`) says nothing of the leak.
    assert!(quoted(&operation("19:28:00.112801", "MountVolume.SetUp"), leak()).is_empty());
}

/// `stale-kill-failure`.
#[test]
fn a_stop_that_succeeded_later_is_not_quoted() {
    let id = "e25b1fe9f0eae615534102c4a2d370897be12abe05d26408e6baed4556c3d1f1";
    let timeout = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    let text = format!(
        "\"Container termination failed with gracePeriod\" err=\"{timeout}\" pod=\"default/nfs\" podUID={UID} containerName=\"app\" containerID=\"containerd://{id}\" gracePeriod=30"
    );
    let kill = klog("19:27:59.059066", &text);
    let text = format!(
        "\"Error syncing pod, skipping\" err=\"failed to \\\"KillContainer\\\" for \\\"app\\\" with KillContainerError: \\\"{timeout}\\\"\" pod=\"default/nfs\" podUID={UID}"
    );
    let sync = klog("19:28:00.059074", &text);
    let died = |id: &str| {
        let text = format!(
            "\"SyncLoop (PLEG): event for pod\" pod=\"default/nfs\" event=&{{ID:{UID} Type:ContainerDied Data:{id}}}"
        );
        klog("19:28:09.059079", &text)
    };
    let volume = operation("19:38:07.059581", "UnmountVolume.TearDown");
    let texts = |text: &str| -> Vec<String> {
        let quotes = quoted(text, leak());
        quotes.into_iter().map(|quote| quote.text.chars().take(20).collect()).collect()
    };
    let all = texts(&format!("{kill}\n{sync}\n{volume}\n"));
    let wanted = ["Operation for \"{volu", "\"Error syncing pod, ", "\"Container terminati"];
    assert_eq!(all, wanted);
    assert_eq!(texts(&format!("{kill}\n{sync}\n{}\n{volume}\n", died(id))), all[..1]);
    // The sandbox, or another container, is not this one.
    assert_eq!(texts(&format!("{kill}\n{sync}\n{}\n{volume}\n", died(SANDBOX))), all);
    // Before the deletion.
    let earlier = format!("{kill}\n{sync}\n").replace("19:2", "19:1");
    assert!(texts(&earlier).is_empty());
    // Of a container that does not start.
    assert!(texts(&sync.replace("KillContainer\\", "StartContainer\\")).is_empty());
    // Another pod of that name.
    assert!(texts(&format!("{kill}\n{sync}\n").replace(UID, "another")).is_empty());
}

/// `cri-dockerd-cni-teardown`.
#[test]
fn the_text_of_a_network_plugin_is_quoted_whole() {
    let error = "rpc error: code = Unknown desc = networkPlugin cni failed to teardown pod \\\"web_default\\\" network: could not retrieve port mappings: key is not found";
    let stop = |time| {
        let text = format!(
            "\"StopPodSandbox from runtime service failed\" err=\"{error}\" podSandboxID=\"{SANDBOX}\""
        );
        klog(time, &text)
    };
    let failed = klog(
        "19:37:59.123488",
        &format!("\"Failed to stop sandbox\" podSandboxID={{Type:docker ID:{SANDBOX}}}"),
    );
    let text = format!("{}\n{failed}\n{}\n", stop("19:37:59.123481"), stop("19:38:03.123774"));
    let quotes = quoted(&text, leak());
    assert_eq!((quotes[0].count, quotes.len()), (2, 2), "{quotes:#?}");
    assert!(quotes[0].text.contains(error), "{quotes:#?}");
    let mut shown = String::new();
    let hostile =
        Quote { text: format!("{}\u{1b}[2J\u{202e}", quotes[0].text), ..quotes[0].clone() };
    hostile.write(&mut shown, &Style { width: 10_000, color: false });
    assert!(shown.contains(error) && !shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
    assert!(shown.starts_with("  ! the kubelet logged at 2026-11-27T19:38:03.123Z, 2 times since 2026-11-27T19:37:59.123Z:"), "{shown}");
}

/// The log of a recording of a real node.
fn recorded(name: &str, pod: &mut NamedPod) -> KubeletLog {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/recordings");
    let file = File::open(folder.join(format!("{name}.kubelet.log.gz"))).unwrap();
    read(BufReader::new(GzDecoder::new(file)), |_, statement| pod.is_in(statement)).unwrap()
}

fn account(pod: (&str, &str), cause: Cause, began: &str) -> PodTermination {
    let mut account = samples::graceful();
    let (name, uid) = pod;
    account.pod.namespace = "default".into();
    (account.pod.name, account.pod.uid) = (name.into(), PodUid::new(uid));
    account.cause = cause;
    account.date(&Anchor { boot_ns: account.began.boot.0, wall_ns: wall(began).0 });
    account.containers.clear();
    account
}

fn stages_in_order(lane: &KubeletLane, wanted: &[Stage]) {
    let mut left = lane.spans.iter();
    for stage in wanted {
        let is_next = left.any(|span| span.stage == *stage);
        assert!(is_next, "{stage} does not follow: {:#?}", lane.spans);
    }
}

/// Seeds 000 and 001: the mirror pod is deleted and comes back, and its static pod does not notice; then the eight steps
/// of the static pod's removal.
#[test]
fn the_stages_of_a_static_pod_and_its_mirror() {
    use Stage::*;
    let uid = "1de36ca0b481978dbf91bcea5e3e80ed";
    let account = account(("st-sysnode", uid), Cause::StaticRemoved, "2026-11-22T06:40:18.117Z");
    let mut pod = NamedPod::of(&account);
    let log = recorded("k1.36-containerd2.1-systemd/static-and-mirror", &mut pod);
    let lane = KubeletLane::of(&log.entries, &pod, &account);
    let mirror = [MirrorCreate, MirrorDelete, MirrorCreate, StatusUpdate, Noticed, Terminating];
    stages_in_order(&lane, &mirror);
    let removal = [Noticed, Terminating, PreStop, Kill, Pleg, Terminated, Unmount, Cgroup];
    let end = [Housekeeping, MirrorDelete, MirrorRemoved, GarbageCollection];
    stages_in_order(&lane, &[&removal[..], &end].concat());
    let noticed: Vec<_> = lane.spans.iter().filter(|span| span.stage == Noticed).collect();
    let level = |stage| lane.spans.iter().find(|span| span.stage == stage).map(|span| span.level);
    let levels = [Noticed, PreStop, Kill, Terminating].map(level);
    assert_eq!(levels, [Some(2), Some(3), Some(2), Some(4)]);
    assert_eq!(noticed.len(), 1, "the deletion of the mirror pod is no end of the static pod");
}

/// Seed 002: the sandbox of a pod whose worker started again and hangs is never removed.
#[test]
fn the_stages_of_a_pod_that_leaks_its_sandbox() {
    use Stage::*;
    let uid = "4393f462-f293-4c9f-a692-66663810a734";
    let account = account(("leak2", uid), Cause::ApiDelete, "2026-11-21T02:56:50.8Z");
    let mut pod = NamedPod::of(&account);
    let log = recorded("k1.23-containerd1.7/leak-notready", &mut pod);
    let lane = KubeletLane::of(&log.entries, &pod, &account);
    let first = [Noticed, Terminating, Kill, Pleg, Terminated, Unmount, Cgroup, Removed, ApiDelete];
    stages_in_order(&lane, &first);
    assert!(!lane.spans.iter().any(|span| span.stage == GarbageCollection), "{:#?}", lane.spans);
    let stuck =
        lane.quotes.iter().find(|quote| quote.text.contains("is still not fully terminated"));
    assert!(stuck.is_some_and(|quote| quote.count > 50), "{:#?}", lane.quotes);
    // What the table calls the begin of a stage is never its end.
    assert!(MESSAGES.iter().all(|one| one.stage != Some((Edge::Moment, Kill))));
}
