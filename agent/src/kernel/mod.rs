//! The kernel adapter: facts of the host → layout → plan → load → ring. The only place that knows
//! aya.

use crate::domain::{ids::CgroupId, input::Received};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicU64},
};
use tokio::sync::mpsc;

/// What the kernel adapter is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Mount point of the watched hierarchy; `None`: found by itself (cgroup2 at /sys/fs/cgroup,
    /// else the v1 hierarchy or the cgroup2 mount that holds `kubepods`).
    pub cgroup_root: Option<PathBuf>,
    /// Size of each ring buffer in bytes: a power of two, at least a page.
    pub ring_bytes: u32,
    /// Carry the programs' own diagnostics (aya-log) into tracing.
    pub debug_bpf: bool,
}

/// A running kernel side.
#[derive(Debug)]
pub struct Kernel {
    _private: (),
}

/// How the start went: for /readyz, doctor and the log.
#[derive(Clone, Debug, Default)]
pub struct StartReport {
    /// `v2 at /sys/fs/cgroup`, `v1 pids at …`.
    pub hierarchy: String,
    /// Each hook by name and, if it was refused or is missing, why.
    pub hooks: BTreeMap<&'static str, Result<(), String>>,
}

/// Counters of the kernel side, shared with the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Records by kind.
    pub records: Mutex<BTreeMap<&'static str, u64>>,
    /// Bytes waiting in the deciding ring at the last drain, and its size.
    pub deciding_used: AtomicU64,
    /// Bytes waiting in the detail ring at the last drain.
    pub detail_used: AtomicU64,
    /// Size of each ring.
    pub ring_bytes: AtomicU64,
    /// Entries in CONTAINERS.
    pub containers: AtomicU64,
}

/// What the app may ask of the running kernel side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Report this signal for this cgroup (a stop signal that is not in the common mask).
    AllowSignal {
        /// The cgroup.
        cgroup: CgroupId,
        /// The signal's number.
        signal: u8,
    },
    /// Watch this cgroup, and what is below it, from now on.
    Watch {
        /// The cgroup.
        cgroup: CgroupId,
    },
}

/// Why the kernel side could not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Anything.
    #[error("{0}")]
    Other(String),
}

/// Probes the host, resolves the layout, loads, attaches, proves it by the self-test and scans the
/// hierarchy. Blocking work of well under a second.
pub fn start(_options: &Options) -> Result<Kernel, StartError> {
    Err(StartError::Other("being written".into()))
}

impl Kernel {
    /// How the start went.
    pub fn report(&self) -> StartReport {
        StartReport::default()
    }

    /// Counters, shared.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::default()
    }

    /// First sends what the scan found, then drains the rings for ever. Ends when `to` is closed;
    /// then everything is detached.
    pub async fn run(
        self,
        _to: mpsc::Sender<Received>,
        _commands: mpsc::Receiver<Command>,
    ) -> anyhow::Result<()> {
        Ok(())
    }
}
