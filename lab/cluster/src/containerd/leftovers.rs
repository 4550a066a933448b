//! Removing everything that a private containerd made: processes, cgroups, directories. The same
//! code serves an orderly stop and the remains of a run that was killed.

use super::namespace::Hierarchies;
use crate::wait;
use anyhow::{Context, Result, bail};
use rustix::{
    fs::stat,
    io::Errno,
    mount::UnmountFlags,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Where in the work directory the freezer of cgroup v1 is mounted, if it is needed.
pub const FREEZER: &str = "freezer";
/// Its switch, in each of its cgroups.
pub const FREEZER_STATE: &str = "freezer.state";

/// Held by the lab that runs in the work directory.
const LOCK: &str = "lock";

/// Between two looks at what was killed, of whose end nothing tells.
const LOOK: Duration = Duration::from_millis(10);

/// Removes what earlier runs left behind in this work directory, and the directory itself. Nothing
/// to remove is no error.
pub fn clean_up(work: &Path) -> Result<()> {
    let work = match fs::canonicalize(work) {
        Ok(work) => work,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| work.display().to_string()),
    };
    let _lock = lock(&work)?;
    remove(&work)?;
    give_up(&work)
}

/// Fails if a lab is running in the work directory.
pub fn ensure_free(work: &Path) -> Result<()> {
    if work.join(LOCK).exists() { lock(work).map(drop) } else { Ok(()) }
}

/// Claims the work directory for this process' life.
pub fn lock(work: &Path) -> Result<File> {
    let path = work.join(LOCK);
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("another lab is running in {}", work.display()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// The lab's top-level cgroup, from the work directory's path, so that it is found again.
pub fn cgroup_parent(work: &Path) -> String {
    let digest = Sha256::digest(work.as_os_str().as_encoded_bytes());
    let short: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("/coroner-lab-{short}")
}

/// Kills and removes all there is but the lock, which the caller holds.
pub(super) fn remove(work: &Path) -> Result<()> {
    let parent = cgroup_parent(work);
    let cgroups: Vec<PathBuf> = Hierarchies::of_this_machine()?
        .all()
        .map(|root| root.join(parent.trim_start_matches('/')))
        .collect();
    // The daemon and the shims first: they would report and restart what dies below them.
    end(|| kill_members(work), &cgroups)?;
    unmount_freezer(work)?;
    for name in ["run", "lib", "containerd.toml", "containerd.log"] {
        let path = work.join(name);
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        absent_is_fine(removed).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Unmounts the freezer of this work directory, if it is mounted.
pub fn unmount_freezer(work: &Path) -> Result<()> {
    let point = work.join(FREEZER);
    match rustix::mount::unmount(&point, UnmountFlags::empty()) {
        // There is none, or nothing is mounted there.
        Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot unmount {}", point.display()));
        }
    }
    absent_is_fine(fs::remove_dir(&point))
        .with_context(|| format!("cannot remove {}", point.display()))
}

/// Kills all that is in a cgroup or below it, and removes it.
pub fn end_cgroup(cgroup: &Path) -> Result<()> {
    end(|| Ok(0), &[cgroup.to_path_buf()])
}

/// Kills the processes that are outside of all cgroups, then those in them, until none is left, and
/// removes the cgroups.
fn end(outside: impl Fn() -> Result<usize>, cgroups: &[PathBuf]) -> Result<()> {
    let deadline = Instant::now() + wait::LIMIT;
    loop {
        let mut alive = outside()?;
        for cgroup in cgroups {
            alive += kill_cgroup(cgroup)?;
        }
        let left: Vec<&PathBuf> =
            cgroups.iter().filter(|cgroup| remove_cgroup(cgroup).is_err()).collect();
        if alive == 0 && left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{alive} processes and the cgroups {left:?} of the lab do not go away");
        }
        thread::sleep(LOOK);
    }
}

/// Removes the lock and, if nothing else is in it, the work directory. The caller holds the lock.
pub fn give_up(work: &Path) -> Result<()> {
    absent_is_fine(fs::remove_file(work.join(LOCK))).context("cannot remove the lock")?;
    // What else is there is not ours; then the directory stays.
    let _ = fs::remove_dir(work);
    Ok(())
}

/// Kills the processes of the private namespace: those whose /run is this work directory's. That
/// tells the lab's shims from the machine's own, whose command lines look the same.
fn kill_members(work: &Path) -> Result<usize> {
    let Ok(run) = stat(work.join("run")) else { return Ok(0) };
    let is_member = |pid: i32| {
        stat(format!("/proc/{pid}/root/run"))
            .is_ok_and(|seen| (seen.st_dev, seen.st_ino) == (run.st_dev, run.st_ino))
    };
    kill_all(is_member)
}

/// Kills all processes of which that is true; how many there were.
pub(super) fn kill_all(is_meant: impl Fn(i32) -> bool) -> Result<usize> {
    let mut killed = 0;
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if is_meant(pid) && kill(pid, || is_meant(pid))? {
            killed += 1;
        }
    }
    Ok(killed)
}

/// Kills every process in the cgroup and below it.
fn kill_cgroup(cgroup: &Path) -> Result<usize> {
    let mut killed = 0;
    for directory in below(cgroup) {
        let switch = directory.join(FREEZER_STATE);
        if switch.exists() {
            // Killed but frozen, nothing ends.
            fs::write(&switch, "THAWED")
                .with_context(|| format!("cannot write {}", switch.display()))?;
        }
        let list = directory.join("cgroup.procs");
        let members = || fs::read_to_string(&list).unwrap_or_default();
        for pid in members().lines().filter_map(|line| line.parse().ok()) {
            let still = || members().lines().any(|line| line.parse() == Ok(pid));
            if kill(pid, still)? {
                killed += 1;
            }
        }
    }
    Ok(killed)
}

/// Kills one process if, once its number cannot be reused any more, it still is the one meant.
fn kill(pid: i32, is_it: impl FnOnce() -> bool) -> Result<bool> {
    // A pid of 0 in cgroup.procs is a process of another PID namespace.
    let Some(number) = Pid::from_raw(pid) else { return Ok(false) };
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("cannot open process {pid}")),
    };
    if !is_it() {
        return Ok(false);
    }
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot kill process {pid}")),
    }
}

/// Removes the cgroup and all below it; they have to be empty.
fn remove_cgroup(cgroup: &Path) -> io::Result<()> {
    for directory in below(cgroup).iter().rev() {
        absent_is_fine(fs::remove_dir(directory))?;
    }
    Ok(())
}

/// The directory and all below it, parents first. What vanishes meanwhile is left out.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut ahead = vec![directory.to_path_buf()];
    while let Some(directory) = ahead.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let inside = entries.filter_map(Result::ok);
        ahead.extend(
            inside
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
        all.push(directory);
    }
    all
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
