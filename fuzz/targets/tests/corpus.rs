//! Every input that the repository keeps (`fuzz/corpus`), given to its fuzz target.

use coroner_core::output::Report;
use coroner_fuzz_targets as targets;
use flate2::read::GzDecoder;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read as _,
    path::Path,
};
use tar::Archive;

/// The histories of the simulation that were once reported wrongly: the engine's target begins with them, too.
const HISTORIES: &str = "../../agent/core/tests/simulation/found";

/// The inputs of a target, each with its name.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../corpus/{target}.tar.gz"));
    let file = File::open(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut inputs = Vec::new();
    for entry in Archive::new(GzDecoder::new(file)).entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        if entry.header().entry_type().is_file() {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("an input");
            inputs.push((entry.path().expect("a path").display().to_string(), bytes));
        }
    }
    assert!(!inputs.is_empty(), "fuzz/corpus/{target}.tar.gz has no input");
    inputs
}

fn histories() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(HISTORIES);
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files.map(|path| (path.display().to_string(), fs::read(&path).expect("a file"))).collect()
}

/// Gives the target these inputs; the output of a test that fails ends with the name of the last.
fn replay(target: fn(&[u8]), inputs: &[(String, Vec<u8>)]) {
    for (name, bytes) in inputs {
        println!("{name}");
        target(bytes);
    }
}

#[test]
fn api() {
    replay(targets::api, &inputs("api"));
}

#[test]
fn cri() {
    replay(targets::cri, &inputs("cri"));
}

#[test]
fn record() {
    replay(targets::record, &inputs("record"));
}

#[test]
fn recording() {
    replay(targets::recording, &inputs("recording"));
}

/// A container that nothing is known of is audited, and then exits.
fn audited() -> String {
    let cri = |at: u64, answer: &str, items: &str| {
        let at = at * 1_000_000_000;
        format!(r#"{{"at":{at},"cri":{{"answer":"{answer}","asked":{at},"{answer}":[{items}]}}}}"#)
            + "\n"
    };
    let tick = |at: u64| format!(r#"{{"at":{},"tick":null}}"#, at * 1_000_000_000) + "\n";
    let sandbox = r#"{"id":"s","pod":"u","name":"p","namespace":"n","attempt":0,"ready":true}"#;
    let container = |state: &str| {
        format!(r#"{{"id":"c","sandbox":"s","name":"c","attempt":0,"state":"{state}"}}"#)
    };
    [
        cri(1, "sandboxes", sandbox),
        cri(1, "containers", &container("running")),
        tick(2),
        tick(400),
        tick(480),
        cri(481, "containers", &container("exited")),
        tick(482),
    ]
    .concat()
}

/// What no kept input reaches, libFuzzer seldom finds within seconds.
#[test]
fn engine_and_every_kind_of_report() {
    let all =
        [inputs("engine"), histories(), vec![("audited".to_owned(), audited().into())]].concat();
    replay(targets::engine, &all);
    let mut kinds = BTreeSet::new();
    for (_, bytes) in &all {
        kinds.extend(targets::outputs(bytes).reports.iter().map(|report| match report {
            Report::ContainerDied(_) => "container died",
            Report::PodTerminated(_) => "pod terminated",
            Report::PodUpdated(..) => "pod updated",
            Report::CountDeath(_) => "count death",
            Report::CountTermination(_) => "count termination",
            Report::LeakOpened(_) => "leak opened",
            Report::LeakChanged(_) => "leak changed",
            Report::LeakResolved(_) => "leak resolved",
            Report::Unkillable(_) => "unkillable",
            Report::Audited(_) => "audited",
            Report::AuditOver(_) => "audit over",
        }));
    }
    assert_eq!(kinds.len(), 11, "only {kinds:?}");
}
