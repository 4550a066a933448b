//! The recordings of real nodes: `recordings/README.md`.

use coroner::outputs::recording::Reader;
use coroner_core::{
    input::{Input, Received},
    time::Anchor,
};
use serde_json::Value;
use std::{fs, path::PathBuf};

/// A recording as inputs, in order of receipt, and what must be reported of them.
pub(crate) struct Recording {
    pub(crate) anchor: Anchor,
    pub(crate) inputs: Vec<Received>,
    pub(crate) truth: Value,
}

/// Without the kubelet's Events.
pub(crate) fn load_without_events(name: &str) -> Recording {
    let mut recording = load(name);
    recording.inputs.retain(|one| !matches!(one.input, Input::Events(_)));
    recording
}

pub(crate) fn load(name: &str) -> Recording {
    let mut reader = Reader::open(&path(&format!("{name}.jsonl.gz"))).unwrap();
    let inputs = reader.by_ref().collect();
    assert!(reader.status().is_whole(), "{name}: {}", reader.status());
    let truth = fs::read_to_string(path(&format!("{name}.json"))).unwrap();
    let truth = serde_json::from_str(&truth).unwrap();
    Recording { anchor: reader.header().clock, inputs, truth }
}

pub(crate) fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/replay/recordings").join(file)
}
