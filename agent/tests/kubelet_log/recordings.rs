//! Every `kubelet.log.gz` of the recordings: each line that a pattern has is read, and what the verbosity hides is not
//! there. `counts.txt` has how often each kubelet said what.

use coroner::sources::kubelet::{LineCounters, LineResult, fuzzing, table};
use coroner_core::{
    input::{KubeletEntry, KubeletEvent, KubeletKillReason, KubeletStatement as Says},
    time::{Anchor, BootTime},
};
use flate2::read::GzDecoder;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
};

struct Log {
    text: Vec<u8>,
    entries: Vec<KubeletEntry>,
    verbosity: u8,
    counters: LineCounters,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/recordings")
}

fn log(name: &str) -> Log {
    let folder = folder().join(name);
    let packed = fs::File::open(folder.join("kubelet.log.gz")).unwrap();
    let mut text = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut text).unwrap();
    let anchor = fs::read_to_string(folder.join("clock.json")).unwrap();
    let anchor: Anchor = serde_json::from_str(&anchor).unwrap();
    let counters = LineCounters::default();
    let (mut entries, mut verbosity, mut began) = (Vec::new(), 0, BootTime(0));
    for event in fuzzing::log(&text, anchor, &counters) {
        match event {
            KubeletEvent::Entry(entry) => entries.push(*entry),
            KubeletEvent::Verbosity { at_least } => verbosity = verbosity.max(at_least),
            KubeletEvent::Reading { since, .. } => began = since,
            other => panic!("{name}: {other:?}"),
        }
    }
    let first: Option<&KubeletEntry> = entries.first();
    assert!(first.is_some_and(|first| began.0 > 0 && began <= first.latest()), "{name}");
    Log { text, entries, verbosity, counters }
}

fn names() -> Vec<String> {
    let mut names = Vec::new();
    for set in fs::read_dir(folder()).unwrap().flatten().filter(|set| set.path().is_dir()) {
        for one in fs::read_dir(set.path()).unwrap().flatten() {
            if one.path().join("kubelet.log.gz").exists() {
                let (set, one) = (set.file_name(), one.file_name());
                names.push(format!("{}/{}", set.display(), one.display()));
            }
        }
    }
    names.sort();
    names
}

#[test]
fn every_line_that_a_pattern_has_is_read() {
    let known: BTreeSet<&[u8]> = table::patterns().map(|one| one.text.as_bytes()).collect();
    let names = names();
    assert_eq!(names.len(), 55);
    let mut counts = String::new();
    for name in &names {
        let log = log(name);
        let lines = log.text.split(|byte| *byte == b'\n');
        let deciding = lines
            .filter(|line| fuzzing::message(line).is_some_and(|message| known.contains(message)));
        let read = log.counters.of(LineResult::Read);
        assert!(read >= deciding.count() as u64, "{name}: {read} lines read");
        for result in [LineResult::NotUnderstood, LineResult::OtherBoot, LineResult::TooLong] {
            assert_eq!(log.counters.of(result), 0, "{name}: {result}");
        }
        let expected = if log
            .text
            .windows(12)
            .any(|part| part == b"SyncPod exit" || part == b"syncPod exit")
        {
            4
        } else {
            2
        };
        assert_eq!(log.verbosity, expected, "{name}");
        let mut said: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in &log.entries {
            *said.entry(entry.statement.as_str()).or_default() += 1;
        }
        let skipped = log.counters.of(LineResult::Skipped);
        counts += &format!("{name}: -v={}, {read} lines read, {skipped} skipped\n", log.verbosity);
        counts.extend(said.iter().map(|(what, count)| format!("  {what} {count}\n")));
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubelet_log/counts.txt");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &counts).unwrap();
    }
    assert_eq!(fs::read_to_string(golden).unwrap(), counts, "UPDATE_GOLDEN=1 writes it again");
}

#[test]
fn entries_are_of_the_time_of_the_recording() {
    for name in ["k1.36-restarts/preempt", "k1.23-containerd1.7/leak-notready"] {
        let clock = fs::read_to_string(folder().join(name).join("clock.json")).unwrap();
        let anchor: Anchor = serde_json::from_str(&clock).unwrap();
        for entry in log(name).entries {
            let distance = entry.time.signed_since(coroner_core::time::BootTime(anchor.boot_ns));
            assert!(distance.abs() < 1_200_000_000_000, "{name}: {distance} ns from the recording");
            assert!(entry.uncertainty_ns < 2_000_000_000, "{name}: {}", entry.uncertainty_ns);
        }
    }
}

/// The statements about pods of this name, or with this UID, in order.
fn about<'l>(log: &'l Log, name: &str) -> Vec<&'l KubeletEntry> {
    let named = |entry: &&KubeletEntry| entry.name.as_deref() == Some(name);
    let uids: BTreeSet<_> =
        log.entries.iter().filter(named).filter_map(|entry| entry.pod.clone()).collect();
    let of = |entry: &&KubeletEntry| {
        named(entry) || entry.pod.as_ref().is_some_and(|uid| uids.contains(uid))
    };
    log.entries.iter().filter(of).collect()
}

fn in_order(entries: &[&KubeletEntry], wanted: &[Says]) {
    let mut left = entries.iter();
    for says in wanted {
        assert!(left.any(|entry| entry.statement == *says), "{says} does not follow in order");
    }
}

#[test]
fn a_static_pod_and_its_mirror_show_the_steps_of_the_seeds() {
    let log = log("k1.36-containerd2.1-systemd/static-and-mirror");
    let pod = log.entries.iter().find(|entry| entry.statement == Says::MirrorCreating).unwrap();
    let entries = about(&log, pod.name.as_deref().unwrap());
    // The mirror is deleted, and comes back.
    in_order(&entries, &[Says::SyncLoopDelete, Says::MirrorDeleting, Says::MirrorCreating]);
    // The manifest is removed.
    in_order(
        &entries,
        &[
            Says::SyncLoopRemove,
            Says::KillRequested,
            Says::TeardownRemoval,
            Says::TerminatingBegin,
            Says::TerminatingGrace,
            Says::KillBegin,
            Says::ContainersStopped,
            Says::TerminatingEnd,
            Says::TerminatedBegin,
            Says::TerminatedEnd,
            Says::WorkerDone,
            Says::WorkerRemoved,
        ],
    );
}

#[test]
fn the_leaks_have_the_kubelets_own_words() {
    let stuck = log("k1.23-containerd1.7/leak-notready");
    let words = stuck.entries.iter().filter(|entry| entry.statement == Says::WorkerStuck);
    assert_eq!(words.filter(|entry| entry.pod.is_some()).count(), 67);
    let gave_up = log("k1.25-containerd1.7/leak-pod-worker");
    let failed = gave_up.entries.iter().find(|entry| entry.statement == Says::SyncFailed).unwrap();
    assert!(failed.failures.iter().any(|failure| failure.action == "KillContainer"), "{failed:?}");
}

#[test]
fn a_container_that_is_stopped_while_its_pod_goes_on_has_its_reason() {
    use KubeletKillReason as Reason;
    let cases = [
        ("live-http", Reason::LivenessProbe),
        ("live-tcp-grace", Reason::LivenessProbe),
        ("startup-tcp", Reason::StartupProbe),
        ("set-image-plain", Reason::DefinitionChanged),
        ("resize-http", Reason::Resize),
    ];
    for (name, reason) in cases {
        let log = log(&format!("k1.36-restarts/{name}"));
        // Of a resize only the Event has the words.
        let says = |says| matches!(says, Says::KillReason | Says::EventKilling);
        let found = log.entries.iter().filter(|entry| says(entry.statement));
        let reasons: BTreeSet<_> = found.filter_map(|entry| entry.reason).collect();
        assert!(reasons.contains(&reason), "{name}: {reasons:?}");
    }
}

#[test]
fn no_command_of_a_hook_or_probe_is_kept() {
    for name in names() {
        for entry in log(&name).entries {
            let text = format!("{entry:?}");
            for sign in
                ["sh -c", "kill -QUIT", "/proc/1/fd", "prestop $i", "execCommand", "Get \\\"http"]
            {
                assert!(!text.contains(sign), "{name}: {text}");
            }
        }
    }
}
