//! Removing everything of a lab, of this one or of one that was killed: all its processes are in one cgroup, which is
//! named after the work directory, and all its files are in that directory.

use super::namespace::mount_point;
use crate::wait::LIMIT;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::{
    io::Errno,
    mount::UnmountFlags,
    process::{Pid, Signal, kill_process},
};
use sha2::{Digest as _, Sha256};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Where in the work directory the freezer of cgroup v1 is mounted.
pub(crate) const FREEZER: &str = "freezer";
/// Held by the lab that runs in the work directory.
const LOCK: &str = "coroner-lab.lock";
/// What that file contains. Without it, nothing in the directory is removed.
const MARK: &str = "The work directory of a coroner-lab, which removes everything in it.\n";
/// Between two attempts to remove a cgroup whose processes were killed.
const RETRY: Duration = Duration::from_millis(10);

/// A work directory that is this lab's. Dropped, it removes all that was made in and for it.
#[derive(Debug)]
pub struct Claim {
    work: PathBuf,
    cgroup: PathBuf,
    is_removed: bool,
    _lock: File,
}

/// Makes the work directory or takes it over, and removes what an earlier lab left.
pub fn claim(work: &Path) -> Result<Claim> {
    let at = || work.display().to_string();
    fs::create_dir_all(work).with_context(at)?;
    let work = fs::canonicalize(work).with_context(at)?;
    let lock = lock_file(&work).with_context(at)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("another lab is running in {}", work.display()),
        Err(TryLockError::Error(error)) => return Err(error).with_context(at),
    }
    let cgroup = super::unified_hierarchy()?.join(cgroup_name(&work).trim_start_matches('/'));
    let claim = Claim { work, cgroup, is_removed: false, _lock: lock };
    claim.clear()?;
    Ok(claim)
}

/// Opens the lock file of a directory that is a lab's, or empty.
fn lock_file(work: &Path) -> Result<File> {
    let path = work.join(LOCK);
    if fs::read_dir(work)?.next().is_none() {
        fs::write(&path, MARK)?;
    }
    let is_marked = fs::read(&path).is_ok_and(|content| content == MARK.as_bytes());
    ensure!(is_marked, "the directory has other files than a lab's: choose or make another one");
    Ok(File::open(&path)?)
}

impl Claim {
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// The directory of the lab's cgroup.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Removes all of the lab and the work directory.
    pub fn remove(mut self) -> Result<()> {
        self.is_removed = true;
        self.clear()?;
        fs::remove_dir_all(&self.work).with_context(|| self.work.display().to_string())
    }

    /// Removes all of the lab but its lock.
    fn clear(&self) -> Result<()> {
        let name = cgroup_name(&self.work);
        let own = self.work.join(FREEZER);
        let frozen = own.join(&name[1..]);
        if frozen.exists() {
            // Killed but frozen, nothing exits.
            fs::write(frozen.join("freezer.state"), "THAWED")?;
        }
        end_cgroup(&self.cgroup)?;
        end_cgroup(&frozen)?;
        if let Some(memory) = mount_point("cgroup", "memory") {
            end_cgroup(&memory.join(&name[1..]))?;
        }
        loop {
            match rustix::mount::unmount(&own, UnmountFlags::empty()) {
                // Two that were mounted at once cover each other.
                Ok(()) => {}
                Err(Errno::NOENT | Errno::INVAL) => break,
                Err(error) => return Err(error).context("cannot unmount the lab's freezer"),
            }
        }
        for entry in fs::read_dir(&self.work)? {
            let path = entry?.path();
            let removed = match path.file_name() {
                Some(name) if name == LOCK => Ok(()),
                _ if path.is_dir() && !path.is_symlink() => fs::remove_dir_all(&path),
                _ => fs::remove_file(&path),
            };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let done = if self.is_removed { Ok(()) } else { self.clear() };
        if let Err(error) = done {
            tracing::warn!("the lab left something behind: {error:#}");
        }
    }
}

/// The lab's cgroup, from the work directory's path, so that it is found again.
pub fn cgroup_name(work: &Path) -> String {
    let digest = Sha256::digest(work.as_os_str().as_encoded_bytes());
    let short: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("/coroner-lab-{short}")
}

/// The directory of a process' cgroup.
pub fn cgroup_of(pid: Pid, root: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_pid()))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(root.join(path.context("it is in no cgroup of version 2")?))
}

/// Kills all that is in a cgroup or below it, and removes it.
pub fn end_cgroup(cgroup: &Path) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while cgroup.exists() {
        let kill = cgroup.join("cgroup.kill");
        if kill.exists() {
            fs::write(&kill, "1").with_context(|| format!("cannot write {}", kill.display()))?;
        } else {
            kill_members(cgroup);
        }
        match remove_groups(cgroup) {
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
                return Err(error).with_context(|| format!("cannot remove {}", cgroup.display()));
            }
            _ => {}
        }
        ensure!(Instant::now() < deadline, "cgroup {} is still in use", cgroup.display());
        thread::sleep(RETRY);
    }
    Ok(())
}

/// Kills what is in a cgroup or below it: cgroup.kill needs Linux 5.14, and v1 has none.
fn kill_members(cgroup: &Path) {
    let members = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        // It may have exited.
        let _ = kill_process(pid, Signal::KILL);
    }
    groups_below(cgroup).iter().for_each(|group| kill_members(group));
}

fn groups_below(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

/// Removes a cgroup and all below it. What vanishes meanwhile is left out.
pub(crate) fn remove_groups(cgroup: &Path) -> io::Result<()> {
    for group in groups_below(cgroup) {
        remove_groups(&group)?;
    }
    match fs::remove_dir(cgroup) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
