//! The cgroup hierarchy as a file system: what was there before the agent.
//!
//! The scan has no gap: the programs are attached first, and of each directory the id is inserted
//! *before* its entries are read. A child made in between is listed, or inherited in the kernel.

use crate::domain::{
    ids::{CgroupId, Tgid},
    input::{KernelFact, Task},
};
use coroner_ebpf::{Container, is_container_name};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What marks the root of a kubelet's cgroups, wherever it is.
const ROOT: &str = "kubepods";
/// CRI-O's monitor of a container: left out, as in the kernel.
const MONITOR: &str = "-conmon-";
/// Directories deeper than this are not looked at.
const MAX_DEPTH: usize = 32;

/// What became of an insertion into the map of watched cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It is new.
    New,
    /// The kernel knew it: it was made since the programs are attached.
    Known,
    /// The map refuses it.
    Full,
}

/// Scans for processes and cgroups that were there before.
pub struct Scan<'a> {
    /// Mount point of the hierarchy.
    pub root: &'a Path,
    /// `/proc`.
    pub proc: &'a Path,
    /// Makes a cgroup watched.
    pub insert: &'a mut dyn FnMut(CgroupId, Container) -> Inserted,
}

impl Scan<'_> {
    /// Watches every `kubepods` tree of the hierarchy and tells what is in it.
    pub fn kubepods(&mut self) -> Vec<KernelFact> {
        let mut found = Vec::new();
        for root in kubepods_below(self.root) {
            self.directory(&root, None, &mut found);
        }
        found
    }

    /// Watches one cgroup and what is below it. A cgroup that has processes is a container,
    /// whatever its name. `None`: there is no such cgroup.
    pub fn cgroup(&mut self, cgroup: CgroupId) -> Option<Vec<KernelFact>> {
        let path = find(self.root, &mut |path| inode(path) == Some(cgroup.0))?;
        let mut found = Vec::new();
        self.directory(&path, None, &mut found);
        Some(found)
    }

    fn directory(&mut self, path: &Path, above: Option<Container>, found: &mut Vec<KernelFact>) {
        let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else { return };
        // Vanished since it was listed: the kernel tells of that too.
        let Some(id) = inode(path) else { return };
        if name.contains(MONITOR) {
            return;
        }
        let is_container = is_container_name(name.len(), name.contains(ROOT))
            || (above.is_none() && has_processes(path));
        let entry = entry(id, is_container, above);
        if entry.depth > super::kernel::MAX_NESTING {
            return;
        }
        let state = (self.insert)(CgroupId(id), entry);
        if state == Inserted::New {
            found.push(KernelFact::CgroupCreated {
                cgroup: CgroupId(id),
                parent: path.parent().and_then(inode).map(CgroupId),
                name: format!("/{}", path.strip_prefix(self.root).unwrap_or(path).display()),
                scanned: true,
            });
        }
        let processes = processes(path, self.proc);
        if state == Inserted::New {
            found.extend(
                processes
                    .into_iter()
                    .map(|task| KernelFact::Running { cgroup: CgroupId(id), task }),
            );
        }
        for child in directories(path) {
            self.directory(&child, Some(entry), found);
        }
    }
}

/// The same rules as in the kernel's `cgroup_mkdir`.
fn entry(id: u64, is_container: bool, above: Option<Container>) -> Container {
    let above_owner = above.map_or(0, |above| above.owner);
    let owner = match above_owner {
        0 if is_container => id,
        owner => owner,
    };
    let depth = match above {
        None => 0,
        Some(_) if owner == id => 0,
        Some(above) => above.depth + 1,
    };
    Container { owner, depth, ..Container::default() }
}

/// Whether a hierarchy has a `kubepods` tree.
pub fn holds_kubepods(root: &Path) -> bool {
    find(root, &mut |path| is_kubepods(path)).is_some()
}

/// The topmost directories that bear `kubepods` in their names.
fn kubepods_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((path, depth)) = open.pop() {
        for child in directories(&path) {
            if is_kubepods(&child) {
                found.push(child);
            } else if depth < MAX_DEPTH {
                open.push((child, depth + 1));
            }
        }
    }
    found
}

fn is_kubepods(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(ROOT))
}

fn find(root: &Path, wanted: &mut dyn FnMut(&Path) -> bool) -> Option<PathBuf> {
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((path, depth)) = open.pop() {
        for child in directories(&path) {
            if wanted(&child) {
                return Some(child);
            }
            if depth < MAX_DEPTH {
                open.push((child, depth + 1));
            }
        }
    }
    None
}

/// A cgroup's id is its directory's inode number.
pub fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

fn directories(path: &Path) -> Vec<PathBuf> {
    // A directory may go at any time: then it has no entries.
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn has_processes(path: &Path) -> bool {
    fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|procs| !procs.is_empty())
}

/// The processes of a cgroup. Those of another PID namespace's outside are listed as 0.
fn processes(path: &Path, proc: &Path) -> Vec<Task> {
    let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let pids: BTreeSet<u32> =
        procs.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect();
    pids.into_iter()
        .filter_map(|pid| {
            let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).ok()?;
            Some(task(pid, &status))
        })
        .collect()
}

/// A process from its /proc/PID/status. When it started is left open: /proc tells it in clock
/// ticks, the programs in nanoseconds, and the two would not compare.
fn task(pid: u32, status: &str) -> Task {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    Task {
        tgid: Tgid(pid),
        tid: pid,
        ns_pid: field("NSpid").and_then(|pids| pids.split_whitespace().last()?.parse().ok()),
        started: None,
        comm: field("Name").unwrap_or_default().to_owned(),
    }
}
