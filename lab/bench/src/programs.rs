//! What the kernel itself says of loaded BPF programs: how often each has run and for how long, how
//! much of it the verifier had to follow, how large it is.
//!
//! A program is found by the tracepoint that it hangs on. Its own name does not tell: the kernel
//! keeps 15 characters of it, and `sched_process_exec` and `sched_process_exit` share those.

use anyhow::Context as _;
use aya::{
    programs::{ProgramError, ProgramInfo, loaded_programs},
    sys::{Stats, enable_stats},
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs, io,
    os::fd::OwnedFd,
    path::Path,
};

/// A loaded program, as `BPF_OBJ_GET_INFO_BY_FD` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its number, which no other program gets while it is loaded.
    pub id: u32,
    /// The raw tracepoint that it is attached to.
    pub hook: String,
    /// Time spent in it, ns: all CPUs, since it was loaded, while there was [`Statistics`].
    pub run_time: u64,
    /// How often it ran meanwhile.
    pub runs: u64,
    /// Instructions that the verifier followed; `None` before Linux 5.16.
    pub verified: Option<u32>,
    /// Bytes of BPF instructions after the verifier took out what cannot be reached; `None` without
    /// the privileges to see it.
    pub translated: Option<u32>,
    /// Bytes of machine code; 0 without a JIT compiler.
    pub machine_code: u32,
}

/// The raw tracepoint programs that a process holds attached, by [`Program::id`]. They need not be
/// of its own making: a descriptor may have been handed to it.
pub fn of_process(pid: u32) -> anyhow::Result<Vec<Program>> {
    let hooks = hooks(Path::new("/proc").join(pid.to_string()).as_path())?;
    let mut found = Vec::new();
    for info in loaded_programs() {
        match info {
            Ok(info) => {
                found.extend(hooks.get(&info.id()).map(|hook| Program::of(&info, hook.clone())))
            }
            // Somebody else's, unloaded since it was listed.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error).context("cannot list the kernel's BPF programs"),
        }
    }
    Ok(found)
}

/// Programs by their hook. Where several of them are on one, an event runs each, and their cost is that of all.
pub fn by_hook(programs: impl IntoIterator<Item = Program>) -> BTreeMap<String, Program> {
    let mut hooks = BTreeMap::<String, Program>::new();
    for program in programs {
        match hooks.entry(program.hook.clone()) {
            Entry::Vacant(first) => drop(first.insert(program)),
            Entry::Occupied(first) => first.into_mut().add(&program),
        }
    }
    hooks
}

/// [`of_process`] without those that were there before.
pub fn newer_of_process(pid: u32, before: &BTreeSet<u32>) -> anyhow::Result<Vec<Program>> {
    let all = of_process(pid)?;
    Ok(all.into_iter().filter(|program| !before.contains(&program.id)).collect())
}

impl Program {
    fn of(info: &ProgramInfo, hook: String) -> Self {
        Self {
            id: info.id(),
            hook,
            run_time: u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX),
            runs: info.run_count(),
            verified: info.verified_instruction_count(),
            translated: info.size_translated(),
            machine_code: info.size_jitted(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.run_time += other.run_time;
        self.runs = self.runs.max(other.runs);
        self.verified = self.verified.zip(other.verified).map(|(one, other)| one + other);
        self.translated = self.translated.zip(other.translated).map(|(one, other)| one + other);
        self.machine_code += other.machine_code;
    }
}

fn is_gone(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error)
        if error.io_error.kind() == io::ErrorKind::NotFound)
}

/// Which program hangs on which raw tracepoint, by what /proc/PID/fdinfo says of the links.
fn hooks(process: &Path) -> anyhow::Result<BTreeMap<u32, String>> {
    let directory = process.join("fdinfo");
    let entries =
        fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", directory.display()))?;
        // Closed since it was listed.
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        found.extend(link(&text));
    }
    Ok(found)
}

/// The program and the tracepoint of a link's fdinfo; `None`: it is of something else.
fn link(fdinfo: &str) -> Option<(u32, String)> {
    let field = |name: &str| {
        fdinfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    (field("link_type") == Some("raw_tracepoint"))
        .then(|| Some((field("prog_id")?.parse().ok()?, field("tp_name")?.to_owned())))?
}

/// While this lives, the kernel counts and times every program's runs, which costs each run some
/// 60 ns more.
#[derive(Debug)]
pub struct Statistics {
    _enabled: OwnedFd,
}

impl Statistics {
    /// Turns the counting on; it stays on for as long as anybody holds such a descriptor.
    pub fn enable() -> anyhow::Result<Self> {
        let enabled = enable_stats(Stats::RunTime).context("cannot count the programs' runs")?;
        Ok(Self { _enabled: enabled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_known_by_their_tracepoints() {
        let fdinfo = "pos:\t0\nflags:\t02000000\nmnt_id:\t16\nino:\t2085\n\
                      link_type:\traw_tracepoint\nlink_id:\t4\nprog_tag:\ta04f5eef06a7f555\n\
                      prog_id:\t17\ntp_name:\tsched_process_exit\n";
        assert_eq!(link(fdinfo), Some((17, "sched_process_exit".to_owned())));
        assert_eq!(link("pos:\t0\nprog_type:\t17\nprog_id:\t17\n"), None, "the program itself");
        assert_eq!(link(&fdinfo.replace("raw_tracepoint", "cgroup")), None);
        assert_eq!(link(""), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(hooks(Path::new("/proc/0")).is_err());
    }
}
