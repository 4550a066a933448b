//! The lines of a recording.

use coroner_core::{
    engine::Settings,
    time::{Anchor, BootTime},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Version of the format. Raised when a reader of the old one would misread the new: fields may
/// come without that, kinds of lines and changed meanings may not. Names in it are those of
/// `tests/recording/format-1.jsonl`, whatever the core calls them.
pub const VERSION: u32 = 1;

/// The first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`] of the writer.
    pub coroner_recording: u32,
    #[serde(default)]
    pub agent: String,
    /// Boot clock and wall clock of the recorded machine, read together when the agent started.
    pub clock: Anchor,
    /// The engine's settle window, ns: a replay needs the same.
    pub settle_ns: u64,
    /// The threshold of leaks, ns. Recordings of agents that knew no leaks have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leak_threshold_ns: Option<u64>,
    /// The agent did without the apiserver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_api: bool,
    /// What is worth knowing of the node when reading a bug report. A replay needs none of it.
    #[serde(default)]
    pub node: NodeFacts,
}

/// Facts about the recorded node that tell nothing of its owner. The runtime's name and version
/// come with its first answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeFacts {
    /// `uname -r`.
    #[serde(default)]
    pub kernel: String,
    /// `uname -m`.
    #[serde(default)]
    pub machine: String,
    #[serde(default)]
    pub hooks: BTreeMap<String, bool>,
}

impl Header {
    pub fn new(settings: &Settings, node: NodeFacts) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            coroner_recording: VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            clock: settings.anchor,
            settle_ns: nanos(settings.settle),
            leak_threshold_ns: Some(nanos(settings.leak_threshold)),
            without_api: !settings.uses_api,
            node,
        }
    }

    pub fn settings(&self) -> Settings {
        let defaults = Settings::new(self.clock);
        let threshold = self.leak_threshold_ns.map(Duration::from_nanos);
        Settings {
            settle: Duration::from_nanos(self.settle_ns),
            leak_threshold: threshold.unwrap_or(defaults.leak_threshold),
            uses_api: !self.without_api,
            ..defaults
        }
    }
}

/// A line that is no input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) at: BootTime,
    #[serde(flatten)]
    pub(super) what: MarkKind,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MarkKind {
    /// Inputs that the engine had just before this moment, and the recording has not.
    Gap {
        inputs: u64,
    },
    End(RecordingEnd),
}

/// The last line of a recording that was not cut off.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecordingEnd {
    pub inputs: u64,
    pub why: Stopped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    Agent,
    /// `--record-limit` was reached: the agent went on without recording.
    Limit,
}
