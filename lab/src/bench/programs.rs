//! A process' BPF programs, as the kernel accounts for them.

use anyhow::Context as _;
use aya::{
    programs::loaded_programs,
    sys::{Stats, enable_stats},
};
use std::{collections::BTreeMap, fs, os::fd::OwnedFd, time::Duration};

/// How often programs ran and for how long, by their tracepoint: an event runs each program of its tracepoint once.
pub(crate) type Runs = BTreeMap<String, (u64, Duration)>;

/// While the descriptor is open, the kernel counts and times every program's runs, which adds about 60 ns to each.
pub(crate) fn count_runs() -> anyhow::Result<OwnedFd> {
    enable_stats(Stats::RunTime).context("the kernel does not count the runs of BPF programs")
}

/// Of the programs that a process has attached now.
pub(crate) fn runs(pid: u32) -> anyhow::Result<Runs> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut attached = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
        // A descriptor may be closed after it was listed.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if let (Some(id), Some(hook)) = (field("prog_id:"), field("tp_name:")) {
            attached.insert(id.parse::<u32>()?, hook.to_owned());
        }
    }
    let mut all = Runs::new();
    // A program that cannot be read was unloaded after it was listed.
    for program in loaded_programs().flatten() {
        if let Some(hook) = attached.get(&program.id()) {
            let (count, time) = all.entry(hook.clone()).or_default();
            *count = program.run_count().max(*count);
            *time += program.run_time();
        }
    }
    Ok(all)
}
