//! Recordings: every input of the engine in a file, so that what the agent said on a node can be
//! had again elsewhere, byte for byte. The format is described in `docs/recording.md`.
//!
//! **Architecture invariant.** A recording can be attached to a bug report: it holds no
//! environment variables, no command lines beyond a binary's name, and no labels or annotations
//! but those of the join. The conversions of the adapters leave them out; [`redact`](mod@redact) takes the
//! free text of errors from what remains, before the engine sees it.

mod format;
mod read;
mod recorder;
mod redact;
pub mod replay;
mod write;

pub use format::{Header, NodeFacts, RecordingEnd, Stopped, VERSION};
pub use read::{Reader, RecordingStatus};
pub use recorder::{Recorder, create};
pub use redact::redact;
pub use write::Writer;

/// A few pods of the lab (`cargo xtask run`), recorded on a real kernel and a real runtime: so
/// that there is something to see without a node.
const SAMPLE: &[u8] = include_bytes!("../../../samples/lab.jsonl.gz");

/// Its pod that shows most.
pub const SAMPLE_POD: &str = "one-of-two-overruns";

pub fn sample() -> anyhow::Result<Reader> {
    Reader::new(SAMPLE)
}
