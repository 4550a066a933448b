//! Load on the CPUs: one process each that does nothing else than use it up.

use anyhow::Context as _;
use coroner_lab_harness::agent::die_with_parent;
use std::{path::Path, process::Stdio};
use tokio::process::{Child, Command};

/// The sub-command of `coroner-lab` that [`spin`]s.
pub const COMMAND: &str = "spin";

/// Running load. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Burners {
    _children: Vec<Child>,
}

impl Burners {
    /// As many as there are CPUs for this process, at ordinary priority. `program` is `coroner-lab`.
    pub(super) fn light(program: &Path) -> anyhow::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let burn = || {
            let mut command = Command::new(program);
            command.arg(COMMAND).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
            die_with_parent(&mut command);
            command.spawn().with_context(|| format!("cannot start {}", program.display()))
        };
        Ok(Self { _children: (0..cpus).map(|_| burn()).collect::<anyhow::Result<_>>()? })
    }
}

/// Uses up a CPU until it is killed.
pub fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
