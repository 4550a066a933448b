//! Removing everything of a lab, of this one or of one that was killed: all its processes are in one cgroup, which is
//! named after the work directory, and all its files are in that directory.

use super::namespace::mount_point;
use crate::wait::LIMIT;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::{io::Errno, mount::UnmountFlags, process::Pid};
use sha2::{Digest as _, Sha256};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Where in the work directory the freezer of cgroup v1 is mounted, if the machine has not mounted it.
pub(crate) const FREEZER: &str = "freezer";
/// Held by the lab that runs in the work directory; its file marks the directory as a lab's.
const LOCK: &str = "lock";
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
    let path = work.join(LOCK);
    let is_free = path.exists() || fs::read_dir(&work)?.next().is_none();
    ensure!(is_free, "{} has other files than a lab's: choose another directory", work.display());
    let lock = File::options().create(true).append(true).open(&path).with_context(at)?;
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
        let of_v1 = |hierarchy: Option<PathBuf>| hierarchy.map(|at| at.join(&name[1..]));
        let frozen = of_v1(mount_point("cgroup", "freezer"));
        if let Some(frozen) = frozen.as_ref().filter(|frozen| frozen.exists()) {
            // Killed but frozen, nothing exits.
            fs::write(frozen.join("freezer.state"), "THAWED")?;
        }
        end_cgroup(&self.cgroup)?;
        for group in [frozen, of_v1(mount_point("cgroup", "memory"))].into_iter().flatten() {
            end_cgroup(&group)?;
        }
        match rustix::mount::unmount(self.work.join(FREEZER), UnmountFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(error).context("cannot unmount the lab's freezer"),
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

/// Kills all that is in a cgroup or below it (cgroup.kill needs Linux 5.14; v1 has none), and removes it.
pub fn end_cgroup(cgroup: &Path) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while cgroup.exists() {
        // Absent in v1, whose processes are in the v2 hierarchy, too.
        let kill = cgroup.join("cgroup.kill");
        if kill.exists() {
            fs::write(&kill, "1").with_context(|| format!("cannot write {}", kill.display()))?;
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

/// Removes a cgroup and all below it. What vanishes meanwhile is left out.
pub(crate) fn remove_groups(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path())?;
        }
    }
    match fs::remove_dir(cgroup) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
