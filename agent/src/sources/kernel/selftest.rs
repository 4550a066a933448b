//! The self-test at start: real processes of our own in a cgroup of our own must give exactly the
//! records that they should. A wrong offset would yield silent garbage; here it is loud.
//!
//! What a test of a second can do without harm is proven: making, freezing, emptying and removing
//! a cgroup, an exec, exits, a handled signal. The OOM killer is not provoked. Where no cgroup can be
//! made (the DaemonSet sees the host's read-only) the processes stay in the agent's own: then signals
//! and processes are proven, and that cgroups come and go is not.

mod actors;
mod connections;

use super::{KernelCounters, Unproven, load::Watching, plan::Planned, ring::Rings};
use crate::linux::cgroupfs;
use actors::Actor;
pub(super) use connections::prove_counting;
use coroner_core::{
    ids::CgroupId,
    input::{Disposition, ExitStatus, KernelFact, SignalResult, Task},
};
use coroner_ebpf::Container;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long the records may take. They come within a millisecond; a machine that boots in an
/// emulator is slower.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long to sleep between two looks.
const PAUSE: Duration = Duration::from_millis(1);
/// Beginning of the directory's name; the rest is our pid.
const PREFIX: &str = "coroner-selftest-";
/// What the actors exit with.
const HANDLED: u8 = 37;
const EXECED: u8 = 38;

/// Proves the attached hooks; one that does not give the record it should is detached and its plan
/// says why. Returns what could not be tested.
pub(super) fn prove(
    root: &Path,
    watching: &mut Watching,
    rings: &mut Rings,
    plan: &mut [Planned],
    counters: &KernelCounters,
) -> Option<Unproven> {
    remove_leftovers(root);
    let mut act = |stage: Stage, rings: &mut Rings| {
        rings.ignored.insert(stage.base);
        watching.insert(stage.base, Container::default());
        let play = stage.play(|id| rings.ignored.insert(id));
        watching.remove(stage.base);
        if play.is_err() {
            rings.ignored.remove(&stage.base);
        }
        play.map_err(|error| format!("the self-test's child processes failed: {error}"))
    };
    let made = Stage::build(root)
        .map_err(|error| format!("cannot create a cgroup in {}: {error}", root.display()))
        .and_then(|stage| act(stage, rings));
    // Where none can be made, or nobody be moved into it (a delegated hierarchy), our own will do.
    let (expected, mut doubts) = match made {
        Ok(expected) => (expected, Vec::new()),
        Err(why) => {
            let own = Stage::own(root).ok_or("and this process is in no visible cgroup".to_owned());
            match own.and_then(|stage| act(stage, rings)) {
                Ok(expected) => (expected, vec![why]),
                Err(own) => {
                    let hooks = attached(plan).collect();
                    return Some(Unproven { hooks, why: format!("{why}; {own}") });
                }
            }
        }
    };
    if expected.execer.is_none() {
        doubts.push("this host does not allow executing an anonymous file (memfd)".to_owned());
    }

    let mut seen = Vec::new();
    let mut others = Vec::new();
    let until = Instant::now() + TIMEOUT;
    loop {
        // What is there after the time counts too: a machine that stalls has not lost it.
        let is_last = Instant::now() >= until;
        for event in rings.drain_all(counters) {
            let own = event.fact.cgroup().is_some_and(|id| rings.ignored.contains(&id));
            if own { seen.push(event.fact) } else { others.push(event) }
        }
        let is_proven = |planned: &Planned| {
            planned.verdict.is_err() || verify(planned.hook.name, &expected, &seen).is_ok()
        };
        if is_last || plan.iter().all(is_proven) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    rings.keep(others);
    if expected.name.is_none() {
        rings.ignored.remove(&expected.base);
    }

    for planned in plan.iter_mut().filter(|planned| planned.verdict.is_ok()) {
        if let Err(what) = verify(planned.hook.name, &expected, &seen) {
            watching.detach(&planned.hook);
            rings.forget(&planned.hook);
            planned.verdict =
                Err(format!("refused by the self-test: {what}: {}", planned.hook.loss));
        }
    }
    let hooks: Vec<_> = attached(plan).filter(|hook| !expected.tests(hook)).collect();
    (!hooks.is_empty()).then(|| Unproven { hooks, why: doubts.join("; ") })
}

fn attached(plan: &[Planned]) -> impl Iterator<Item = &'static str> {
    plan.iter().filter(|planned| planned.verdict.is_ok()).map(|planned| planned.hook.name)
}

/// What must have been seen.
struct ExpectedRecord {
    base: CgroupId,
    leaf: CgroupId,
    /// Name of the leaf; `None`: it was not made, but is the agent's own cgroup.
    name: Option<String>,
    frozen: bool,
    /// The actor that handles a signal, by its pid in our namespace.
    handler: u32,
    /// The one that execs; `None`: this host does not let it.
    execer: Option<u32>,
}

impl ExpectedRecord {
    /// Something was done that this hook must tell.
    fn tests(&self, hook: &str) -> bool {
        match hook {
            "cgroup_notify_frozen" => self.frozen,
            "sched_process_exec" => self.execer.is_some(),
            "mark_victim" => true, // nobody provokes the OOM killer: it is never tested
            hook => self.name.is_some() || !hook.starts_with("cgroup_"),
        }
    }
}

fn verify(hook: &str, expected: &ExpectedRecord, seen: &[KernelFact]) -> Result<(), String> {
    // The actors are in the agent's own PID namespace, whichever of the kernel's that is.
    let is = |task: &Task, pid: u32| {
        task.ns_pid == Some(pid) && task.tgid.0 == pid && task.started.is_some()
    };
    let exited = |pid: u32, code: u8| {
        move |fact: &KernelFact| {
            matches!(fact, KernelFact::Exit { task, status, .. }
                if is(task, pid) && *status == ExitStatus::Code(code))
        }
    };
    let any = |wanted: &dyn Fn(&KernelFact) -> bool| seen.iter().any(wanted);
    let has = |fact: KernelFact| seen.contains(&fact);
    let cgroup = expected.leaf;
    if !expected.tests(hook) {
        return Ok(());
    }
    let (proven, what) = match hook {
        "cgroup_mkdir" => {
            let (parent, name) = (Some(expected.base), expected.name.clone().unwrap_or_default());
            let made = KernelFact::CgroupCreated { cgroup, parent, name, scanned: false };
            (has(made), "no record of a new cgroup, its parent and its name")
        }
        "cgroup_rmdir" => {
            (has(KernelFact::CgroupRemoved { cgroup }), "no record of a removed cgroup")
        }
        "cgroup_notify_populated" => {
            (has(KernelFact::CgroupEmpty { cgroup }), "no record of an emptied cgroup")
        }
        "cgroup_notify_frozen" => {
            let both = [true, false].map(|frozen| has(KernelFact::CgroupFrozen { cgroup, frozen }));
            (both == [true; 2], "no record of a frozen and thawed cgroup")
        }
        "sched_process_exec" => (
            expected.execer.is_some_and(|pid| {
                any(&|fact| {
                    matches!(fact, KernelFact::Exec { task, parent, .. }
                        if is(task, pid) && parent.in_container == Some(false))
                })
            }),
            "no record of an exec from outside",
        ),
        "sched_process_exit" => (
            any(&exited(expected.handler, HANDLED))
                && expected.execer.is_none_or(|pid| any(&exited(pid, EXECED))),
            "no record of an exit with its code",
        ),
        "signal_generate" => (
            any(&|fact| {
                matches!(fact, KernelFact::SignalGenerated(signal)
                if signal.signal == 15
                    && signal.code == 0
                    && signal.group
                    && signal.result == SignalResult::Delivered
                    && is(&signal.target, expected.handler)
                    && signal.sender.in_container == Some(false)
                    && signal.state.is_some_and(|state| {
                        state.disposition == Disposition::Handler
                            && !state.blocked
                            && !state.unkillable
                            && !state.group_exit
                    }))
            }),
            "no record of a signal, its target and its disposition",
        ),
        "signal_deliver" => (
            any(&|fact| {
                matches!(fact, KernelFact::SignalDelivered { task, signal: 15, disposition, .. }
                    if is(task, expected.handler) && *disposition == Disposition::Handler)
            }),
            "no record of a handled signal",
        ),
        _ => (true, ""),
    };
    if proven { Ok(()) } else { Err(format!("{what} (saw {} records)", seen.len())) }
}

/// The cgroups of the test. They go when it goes, unless they are the agent's own.
struct Stage {
    path: PathBuf,
    base: CgroupId,
    is_own: bool,
}

impl Stage {
    fn build(root: &Path) -> io::Result<Self> {
        let path = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)?;
        let base = cgroupfs::inode(&path).map(CgroupId).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { path, base, is_own: false })
    }

    fn own(root: &Path) -> Option<Self> {
        let path = cgroupfs::of_process(root, std::process::id()).ok().flatten()?;
        let base = cgroupfs::inode(&path).map(CgroupId)?;
        Some(Self { path, base, is_own: true })
    }

    fn play(&self, announce: impl FnMut(CgroupId) -> bool) -> io::Result<ExpectedRecord> {
        let made = if self.is_own { None } else { Some(self.make_leaf(announce)?) };
        let procs = made.as_ref().map(|leaf| leaf.path.join("cgroup.procs"));
        let procs = procs.as_deref();
        let mut handler = Actor::handler(HANDLED, procs)?;
        handler.terminate()?;
        handler.wait()?;
        // Hosts may forbid to exec files without a name (vm.memfd_noexec).
        let execer = Actor::execer(EXECED, procs).and_then(|mut execer| {
            let status = execer.wait()?;
            Ok((status == i32::from(EXECED) << 8).then(|| execer.pid()))
        });

        if let Some(leaf) = &made {
            wait_until_empty(&leaf.path);
            remove_patiently(&leaf.path)?;
        }
        Ok(ExpectedRecord {
            base: self.base,
            leaf: made.as_ref().map_or(self.base, |leaf| leaf.id),
            frozen: made.as_ref().is_some_and(|leaf| leaf.frozen),
            name: made.map(|leaf| leaf.name),
            handler: handler.pid(),
            execer: execer.unwrap_or_default(),
        })
    }

    fn make_leaf(&self, mut announce: impl FnMut(CgroupId) -> bool) -> io::Result<Leaf> {
        // A container's name: 64 digits.
        let name = format!("{:064x}", std::process::id());
        let path = self.path.join(&name);
        fs::create_dir(&path)?;
        let id = cgroupfs::inode(&path).map(CgroupId).ok_or(io::ErrorKind::NotFound)?;
        announce(id);

        // An empty cgroup freezes at once.
        let freezer = path.join("cgroup.freeze");
        let frozen = freezer.exists();
        if frozen {
            fs::write(&freezer, "1")?;
            fs::write(&freezer, "0")?;
        }
        Ok(Leaf { path, name, id, frozen })
    }
}

/// The cgroup that the actors are in, if one could be made.
struct Leaf {
    path: PathBuf,
    name: String,
    id: CgroupId,
    frozen: bool,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.is_own {
            remove_tree(&self.path, remove_patiently);
        }
    }
}

/// Since Linux 7 a cgroup can be removed while its last process is still leaving it (`finish_task_switch`), and is then
/// never reported as empty.
fn wait_until_empty(path: &Path) {
    let until = Instant::now() + TIMEOUT;
    let is_populated = || {
        let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    };
    while is_populated() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
}

/// A cgroup can be removed a moment after its last process was reaped.
fn remove_patiently(path: &Path) -> io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// What an agent that was killed during its self-test left behind.
fn remove_leftovers(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            remove_tree(&entry.path(), |path| fs::remove_dir(path));
        }
    }
}

/// Best effort: directories that will not go hold processes that are not ours.
fn remove_tree(path: &Path, remove: fn(&Path) -> io::Result<()>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
