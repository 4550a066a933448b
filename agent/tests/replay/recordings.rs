//! The recordings of real nodes: `recordings/README.md`.

use coroner::outputs::recording::Reader;
use coroner_core::{
    input::{Input, Received},
    time::{Anchor, BootTime},
};
use serde_json::Value;
use std::{fs, path::PathBuf};

/// A recording as inputs, in order of receipt, and what must be reported of them.
pub(crate) struct Recording {
    pub(crate) anchor: Anchor,
    pub(crate) inputs: Vec<Received>,
    /// It goes on until then, though nothing more came.
    pub(crate) end: BootTime,
    pub(crate) truth: Value,
}

pub(crate) fn load(name: &str) -> Recording {
    let mut reader = Reader::open(&path(&format!("{name}.jsonl.gz"))).unwrap();
    let mut inputs: Vec<_> = reader.by_ref().collect();
    let end = inputs.last().unwrap().at;
    inputs.retain(|one| one.input != Input::Tick);
    assert!(reader.status().is_whole(), "{name}: {}", reader.status());
    let truth = fs::read_to_string(path(&format!("{name}.json"))).unwrap();
    let truth = serde_json::from_str(&truth).unwrap();
    Recording { anchor: reader.header().clock, inputs, end, truth }
}

pub(crate) fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/replay/recordings").join(file)
}
