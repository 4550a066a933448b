//! cgroup2 as a file system: what was there before the agent.
//!
//! The scan has no gap: the programs are attached first, and of each directory the id is inserted
//! *before* its entries are read. A child made in between is listed, or inherited in the kernel.

use coroner_core::{
    cgroup_path,
    ids::{CgroupId, PodUid, Tgid},
    input::{KernelFact, Task},
};
use coroner_ebpf::{Container, MAX_NESTING, NESTED_SHARE, is_container_name};
use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What marks the root of a kubelet's cgroups, wherever it is.
const ROOT: &str = "kubepods";
/// CRI-O's monitor of a container: left out, as in the kernel.
const MONITOR: &str = "-conmon-";
/// A `kubepods` tree deeper than this is not found.
const MAX_DEPTH: usize = 32;

/// Cgroups that one search goes through.
const MAX_VISITED: usize = 1 << 16;

/// What became of an insertion into the map of watched cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    New,
    /// The kernel knew it: it was made since the programs are attached.
    Known,
    Full,
}

/// Scans for processes and cgroups that were there before.
pub struct Scan<'a> {
    pub root: &'a Path,
    pub proc: &'a Path,
    /// Makes a cgroup watched.
    pub insert: &'a mut dyn FnMut(CgroupId, Container) -> Inserted,
    /// Tells a container's main process.
    pub main: &'a mut dyn FnMut(CgroupId, &Task),
    /// So many more cgroups and processes are looked at.
    pub room: ScanRoom,
}

/// How much one scan looks at, and how much it left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanRoom {
    pub cgroups: usize,
    pub processes: usize,
    pub left_out: u64,
    /// Cgroups beyond their container's share, or nested too deeply.
    pub too_deep: u64,
}

impl ScanRoom {
    /// For all that may be on a machine, once.
    pub const ALL: Self = Self::of(MAX_VISITED, 1 << 20);
    /// For one container and its share: this runs on the event loop, and a container may create any number
    /// of cgroups.
    pub const ONE: Self = Self::of(1 + NESTED_SHARE as usize, 512);

    const fn of(cgroups: usize, processes: usize) -> Self {
        Self { cgroups, processes, left_out: 0, too_deep: 0 }
    }
}

impl Scan<'_> {
    /// Watches every `kubepods` tree of the hierarchy and tells what is in it.
    pub fn kubepods(&mut self) -> Vec<KernelFact> {
        let mut found = Vec::new();
        for root in kubepods_below(self.root) {
            self.directory(&root, false, None, &mut 0, &mut found);
        }
        found
    }

    /// Watches this cgroup as a container, whatever its name, and what is below it.
    pub fn container(&mut self, path: &Path) -> Vec<KernelFact> {
        let mut found = Vec::new();
        self.directory(path, true, None, &mut 0, &mut found);
        found
    }

    /// `share`: how many cgroups below the container above are still followed.
    fn directory(
        &mut self,
        path: &Path,
        is_container: bool,
        above: Option<Container>,
        share: &mut u32,
        found: &mut Vec<KernelFact>,
    ) {
        let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else { return };
        if name.contains(MONITOR) {
            return;
        }
        let is_nested = above.is_some_and(|above| above.owner != 0);
        if is_nested && *share == 0 {
            self.room.too_deep += 1;
            return;
        }
        // Vanished since it was listed: the kernel reports that too.
        let Some(id) = inode(path) else { return };
        let is_container = is_container || is_container_name(name.len(), name.contains(ROOT));
        let entry = entry(id, is_container, above);
        if entry.depth > MAX_NESTING {
            self.room.too_deep += 1;
            return;
        }
        *share -= u32::from(is_nested);
        let mut own = NESTED_SHARE;
        let share = if entry.owner == id { &mut own } else { share };
        let Some(left) = self.room.cgroups.checked_sub(1) else {
            self.room.left_out += 1;
            return;
        };
        self.room.cgroups = left;
        let state = (self.insert)(CgroupId(id), entry);
        if state == Inserted::New {
            found.push(KernelFact::CgroupCreated {
                cgroup: CgroupId(id),
                parent: path.parent().and_then(inode).map(CgroupId),
                name: path_below(self.root, path),
                scanned: true,
            });
            let processes = processes(path, self.proc, self.room.processes);
            self.room.processes -= processes.len();
            if let Some(main) = main_process(&processes).filter(|_| entry.owner == id) {
                (self.main)(CgroupId(id), main);
            }
            found.extend(
                processes
                    .into_iter()
                    .map(|task| KernelFact::Running { cgroup: CgroupId(id), task }),
            );
        }
        for child in directories(path) {
            self.directory(&child, false, Some(entry), share, found);
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

/// The init of a PID namespace; in a container that shares its pod's or the host's, the first
/// process, which is the oldest unless the numbers have wrapped.
fn main_process(processes: &[Task]) -> Option<&Task> {
    let init = processes.iter().find(|task| task.ns_pid == Some(1));
    init.or(processes.first())
}

/// Whether pods are in a hierarchy, of either version of cgroups.
pub fn holds_pods(root: &Path) -> bool {
    kubepods_below(root).iter().any(|top| !pods_below(root, top).is_empty())
}

/// The topmost directories that bear `kubepods` in their names.
pub(crate) fn kubepods_below(root: &Path) -> Vec<PathBuf> {
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

/// The directories of pods below the top of a `kubepods` tree ([`kubepods_below`]): right below it, or below a QoS
/// class.
pub(crate) fn pods_below(root: &Path, top: &Path) -> Vec<(PathBuf, PodUid)> {
    const LEVELS: usize = 2;
    let mut found = Vec::new();
    let mut open = vec![(top.to_owned(), 1)];
    while let Some((folder, level)) = open.pop() {
        for child in directories(&folder) {
            match cgroup_path::parse(&path_below(root, &child)).pod {
                Some(pod) => found.push((child, pod)),
                None if level < LEVELS => open.push((child, level + 1)),
                None => {}
            }
        }
    }
    found
}

/// The path of a directory from the hierarchy's root, `/kubepods/…`.
pub(crate) fn path_below(root: &Path, directory: &Path) -> String {
    format!("/{}", directory.strip_prefix(root).unwrap_or(directory).display())
}

fn is_kubepods(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(ROOT))
}

/// The uppermost first: what is below a container's own cgroup comes after all that lies higher, however
/// much it is.
fn find(
    root: &Path,
    most: usize,
    wanted: &mut dyn FnMut(&Path) -> bool,
) -> Result<Option<PathBuf>, TooManyCgroups> {
    let (mut open, mut visited) = (VecDeque::from([root.to_owned()]), 0);
    while let Some(path) = open.pop_front() {
        for child in directories(&path) {
            visited += 1;
            if wanted(&child) {
                return Ok(Some(child));
            }
            if visited >= most {
                return Err(TooManyCgroups);
            }
            open.push_back(child);
        }
    }
    Ok(None)
}

/// A search that ended before it had seen every cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not found among the first {MAX_VISITED} cgroups")]
pub struct TooManyCgroups;

/// Where a cgroup is. `None`: there is no such cgroup.
pub fn find_cgroup(root: &Path, cgroup: CgroupId) -> Result<Option<PathBuf>, TooManyCgroups> {
    find(root, MAX_VISITED, &mut |path| inode(path) == Some(cgroup.0))
}

/// Where the cgroup of a process is. `None`: it has ended, or is outside. Its /proc/PID/cgroup would name it as a
/// cgroup namespace shows it; the directory that lists it is the same for all.
pub fn of_process(root: &Path, pid: u32) -> Result<Option<PathBuf>, TooManyCgroups> {
    if pids(root).contains(&pid) {
        return Ok(Some(root.to_owned()));
    }
    find(root, MAX_VISITED, &mut |path| pids(path).contains(&pid))
}

/// A cgroup's id is its directory's inode number.
pub fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

pub fn directories(path: &Path) -> Vec<PathBuf> {
    // A directory may go at any time: then it has no entries.
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .take(MAX_VISITED)
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// The pids in one cgroup; 0 is one that this PID namespace has no number for.
/// Nothing if the cgroup is gone.
pub(crate) fn pids(path: &Path) -> BTreeSet<u32> {
    let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    procs.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The processes of a cgroup that have a number here, of so many at most.
fn processes(path: &Path, proc: &Path, most: usize) -> Vec<Task> {
    pids(path)
        .into_iter()
        .filter(|pid| *pid != 0)
        .take(most)
        .filter_map(|pid| {
            // Its name may be no UTF-8.
            let status = fs::read(proc.join(pid.to_string()).join("status")).ok()?;
            Some(task(pid, &String::from_utf8_lossy(&status)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// A hierarchy, a /proc and a map, all of our own.
    struct Host {
        folder: tempfile::TempDir,
        watched: BTreeMap<u64, Container>,
        mains: BTreeMap<u64, u32>,
        known: Option<u64>,
        full: bool,
        room: ScanRoom,
    }

    impl Host {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (watched, mains) = (BTreeMap::new(), BTreeMap::new());
            let room = ScanRoom::ALL;
            let host = Self { folder, watched, mains, known: None, full: false, room };
            fs::create_dir_all(host.root()).unwrap();
            host
        }

        fn root(&self) -> PathBuf {
            self.folder.path().join("cgroup")
        }

        fn cgroup(&self, path: &str, pids: &[u32]) -> u64 {
            let path = self.root().join(path);
            fs::create_dir_all(&path).unwrap();
            let procs: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
            fs::write(path.join("cgroup.procs"), procs).unwrap();
            inode(&path).unwrap()
        }

        fn process(&self, pid: u32, status: &str) {
            let path = self.folder.path().join("proc").join(pid.to_string());
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("status"), status).unwrap();
        }

        fn scan<T>(&mut self, scan: impl FnOnce(&mut Scan<'_>) -> T) -> T {
            let (root, proc) = (self.root(), self.folder.path().join("proc"));
            let (watched, mains) = (&mut self.watched, &mut self.mains);
            let (known, full, room) = (self.known, self.full, self.room);
            scan(&mut Scan {
                root: &root,
                proc: &proc,
                insert: &mut |id, entry| {
                    if full {
                        return Inserted::Full;
                    }
                    watched.insert(id.0, entry);
                    if known == Some(id.0) { Inserted::Known } else { Inserted::New }
                },
                main: &mut |id, main| {
                    mains.insert(id.0, main.tgid.0);
                },
                room,
            })
        }
    }

    fn names(facts: &[KernelFact]) -> Vec<&str> {
        facts
            .iter()
            .filter_map(|fact| match fact {
                KernelFact::CgroupCreated { name, scanned: true, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn trees_of_pods_are_found_under_any_root() {
        let mut host = Host::new();
        host.cgroup("system.slice/sshd.service", &[1]);
        let root = host.cgroup("system.slice/docker.scope/kubelet-kubepods.slice", &[]);
        let pod_path =
            "system.slice/docker.scope/kubelet-kubepods.slice/kubelet-kubepods-pod0.slice";
        let pod = host.cgroup(pod_path, &[]);
        let container_path = format!("{pod_path}/cri-containerd-{ID}.scope");
        let container = host.cgroup(&container_path, &[7, 0, 8]);
        let nested = host.cgroup(&format!("{container_path}/nested"), &[]);
        host.cgroup(&format!("{pod_path}/crio-conmon-{ID}.scope"), &[9]);
        host.process(7, "Name:\tnginx\nNSpid:\t7\t1\n");
        assert!(holds_pods(&host.root()));

        let facts = host.scan(|scan| scan.kubepods());
        let expected = [
            "/system.slice/docker.scope/kubelet-kubepods.slice".to_owned(),
            format!("/{pod_path}"),
            format!("/{container_path}"),
            format!("/{container_path}/nested"),
        ];
        assert_eq!(names(&facts), expected);
        let running: Vec<_> =
            facts.iter().filter(|f| matches!(f, KernelFact::Running { .. })).collect();
        let task =
            Task { tgid: Tgid(7), tid: 7, ns_pid: Some(1), started: None, comm: "nginx".into() };
        let expected = KernelFact::Running { cgroup: CgroupId(container), task };
        assert_eq!(running, [&expected], "8 is gone, 0 is of another namespace, 9 is a monitor");

        let shape = |id: u64| host.watched.get(&id).map(|entry| (entry.owner, entry.depth));
        assert_eq!(shape(root), Some((0, 0)));
        assert_eq!(shape(pod), Some((0, 1)));
        assert_eq!(shape(container), Some((container, 0)));
        assert_eq!(shape(nested), Some((container, 1)));
        assert_eq!(host.watched.len(), 4);
        assert_eq!(host.mains, BTreeMap::from([(container, 7)]));
    }

    #[test]
    fn what_the_kernel_has_told_or_cannot_watch_is_not_told() {
        let mut host = Host::new();
        let root = host.cgroup("kubepods", &[]);
        host.cgroup("kubepods/pod0", &[]);
        host.known = Some(root);
        assert_eq!(names(&host.scan(|scan| scan.kubepods())), ["/kubepods/pod0"]);
        host.full = true;
        assert_eq!(host.scan(|scan| scan.kubepods()), []);
    }

    #[test]
    fn the_main_process_is_the_init_or_else_the_first() {
        let process = |pid, ns_pid| Task {
            tgid: Tgid(pid),
            tid: pid,
            ns_pid: Some(ns_pid),
            started: None,
            comm: String::new(),
        };
        let main = |processes: &[Task]| main_process(processes).map(|task| task.tgid);
        assert_eq!(main(&[process(5, 9), process(7, 1)]), Some(Tgid(7)));
        assert_eq!(main(&[process(5, 5), process(7, 7)]), Some(Tgid(5)));
        assert_eq!(main(&[]), None);
    }

    /// A container may make cgroups below its own without end.
    #[test]
    fn one_container_is_looked_at_as_far_as_there_is_room() {
        let mut host = Host::new();
        let container = host.cgroup(&format!("kubepods/pod0/{ID}"), &[7, 8, 9]);
        for n in 0..10 {
            host.cgroup(&format!("kubepods/pod0/{ID}/n{n}"), &[]);
        }
        for pid in 7..10 {
            host.process(pid, &format!("Name:\tapp\nNSpid:\t{pid}\t{}\n", pid - 6));
        }
        let path = find_cgroup(&host.root(), CgroupId(container)).unwrap().unwrap();
        host.room = ScanRoom::of(4, 2);
        let (facts, left_out) = host.scan(|scan| (scan.container(&path), scan.room.left_out));
        assert_eq!((names(&facts).len(), left_out), (4, 7));
        let running = facts.iter().filter(|fact| matches!(fact, KernelFact::Running { .. }));
        assert_eq!(running.count(), 2);
    }

    #[test]
    fn of_one_container_a_share_is_followed() {
        let mut host = Host::new();
        let (first, second) = (format!("kubepods/pod1/{ID}"), format!("kubepods/pod2/{ID}"));
        for n in 0..2 * NESTED_SHARE {
            host.cgroup(&format!("{first}/{n}"), &[]);
        }
        host.cgroup(&format!("{second}/nested"), &[]);
        let deep: String = (0..20).map(|n| format!("/n{n}")).collect();
        host.cgroup(&format!("kubepods/pod3/{ID}{deep}"), &[]);
        let (facts, room) = host.scan(|scan| (scan.kubepods(), scan.room));
        // The root, three pods with their containers, and what is below the second and the third.
        assert_eq!(names(&facts).len(), 8 + NESTED_SHARE as usize + MAX_NESTING as usize);
        // What is below the deepest is not looked at.
        assert_eq!(room.too_deep, u64::from(NESTED_SHARE) + 1);

        host.room = ScanRoom::ONE;
        let (facts, room) = host.scan(|scan| (scan.container(&scan.root.join(&first)), scan.room));
        assert_eq!(names(&facts).len(), 1 + NESTED_SHARE as usize);
        assert_eq!((room.left_out, room.too_deep), (0, u64::from(NESTED_SHARE)));
    }

    #[test]
    fn a_container_is_one_by_any_name_also_without_processes_of_its_own() {
        let mut host = Host::new();
        let odd = host.cgroup("machine/odd", &[]);
        let nested = host.cgroup("machine/odd/nested", &[7]);
        host.cgroup("kubepods/besteffort", &[]);
        assert!(!holds_pods(&host.root()));
        let path = find_cgroup(&host.root(), CgroupId(odd)).unwrap().unwrap();
        let facts = host.scan(|scan| scan.container(&path));
        assert_eq!(names(&facts), ["/machine/odd", "/machine/odd/nested"]);
        assert_eq!([odd, nested].map(|id| host.watched[&id].owner), [odd, odd]);
        assert_eq!(find_cgroup(&host.root(), CgroupId(1)), Ok(None));
    }

    #[test]
    fn a_search_that_gives_up_is_not_one_that_finds_nothing() {
        let host = Host::new();
        for n in 0..4 {
            host.cgroup(&format!("kubepods/pod{n}"), &[]);
        }
        let search = |most, name: &str| find(&host.root(), most, &mut |path| path.ends_with(name));
        assert!(matches!(search(4, "pod2"), Ok(Some(_))));
        assert_eq!(search(4, "pod3"), Err(TooManyCgroups));
        assert!(matches!(search(5, "pod3"), Ok(Some(_))));
        assert_eq!(search(6, "pod4"), Ok(None));
    }
}
