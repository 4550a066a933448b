//! Loaded BPF programs, as the kernel accounts for them: which ones a process holds, how often each ran and for how long.
//!
//! A program is known by its tracepoint. The kernel keeps only 15 characters of a program's own name, which
//! `sched_process_exec` and `sched_process_exit` share.

use anyhow::Context as _;
use aya::{
    programs::loaded_programs,
    sys::{Stats, enable_stats},
};
use std::{collections::BTreeMap, fs, os::fd::OwnedFd, time::Duration};

/// While the descriptor is open, the kernel counts and times every program's runs, which adds about 60 ns to each.
pub(crate) fn count_runs() -> anyhow::Result<OwnedFd> {
    enable_stats(Stats::RunTime).context("the kernel does not count the runs of BPF programs")
}

/// The IDs of the programs that a process has open, with the raw tracepoint to which each is attached, if it is to one.
pub(crate) fn of_process(pid: u32) -> anyhow::Result<BTreeMap<u32, Option<String>>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
        // A descriptor may be closed after it was listed.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let Some(program) = field("prog_id:").and_then(|id| id.parse().ok()) else { continue };
        let tracepoint = field("tp_name:").map(str::to_owned);
        let known: &mut Option<String> = found.entry(program).or_default();
        *known = known.take().or(tracepoint);
    }
    Ok(found)
}

/// Runs of some programs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Runs {
    /// In all of them, on all CPUs.
    pub(crate) time: Duration,
    /// Of the one that ran most often: an event runs each program of its tracepoint.
    pub(crate) count: u64,
}

/// How often and for how long programs have run while [`count_runs`] was in effect.
#[derive(Clone, Debug)]
pub(crate) struct Statistics(BTreeMap<u32, Runs>);

impl Statistics {
    /// Of all loaded programs, now.
    pub(crate) fn read() -> Self {
        // A program that cannot be read was unloaded after it was listed.
        let programs = loaded_programs().flatten();
        let runs = programs.map(|program| {
            (program.id(), Runs { time: program.run_time(), count: program.run_count() })
        });
        Self(runs.collect())
    }

    /// Of these programs, since an earlier reading.
    pub(crate) fn since<'a>(&self, then: &Self, ids: impl IntoIterator<Item = &'a u32>) -> Runs {
        let mut sum = Runs::default();
        for id in ids {
            let (now, then) = (self.of(*id), then.of(*id));
            sum.time += now.time.saturating_sub(then.time);
            sum.count = sum.count.max(now.count.saturating_sub(then.count));
        }
        sum
    }

    fn of(&self, id: u32) -> Runs {
        self.0.get(&id).copied().unwrap_or_default()
    }

    /// How many of these programs have ever run.
    pub(crate) fn have_run<'a>(&self, ids: impl IntoIterator<Item = &'a u32>) -> usize {
        ids.into_iter().filter(|id| self.of(**id).count > 0).count()
    }
}
