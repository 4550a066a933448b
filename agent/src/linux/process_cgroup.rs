//! From a process to the cgroup it is in, in the one hierarchy that the programs watch.

use crate::linux::{cgroupfs, procfs::read_lossy};
use coroner_core::ids::CgroupId;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Component, Path, PathBuf},
};

/// The cgroup of a process in the hierarchy mounted at `cgroup_root`, and its path from there. The error
/// says what failed.
pub fn of_process(proc: &Path, cgroup_root: &Path, pid: u32) -> Result<(CgroupId, String), String> {
    let read =
        |path: &Path| read_lossy(path).map_err(|error| format!("read {}: {error}", path.display()));
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let mount = mount_of(&mounts, cgroup_root)
        .ok_or_else(|| format!("{} is not in a cgroup file system", cgroup_root.display()))?;
    let memberships = read(&proc.join(format!("{pid}/cgroup")))?;
    let path = path_in(&memberships, &mount.hierarchy)
        .ok_or_else(|| format!("process {pid} has no cgroup in {:?}", mount.hierarchy))?;
    let directory = mount.of_process(path, cgroup_root).ok_or_else(|| {
        format!("cgroup {path} of process {pid} is outside {}", mount.at.display())
    })?;
    let inode = fs::metadata(&directory)
        .map_err(|error| format!("stat {}: {error}", directory.display()))?
        .ino();
    let below = directory
        .strip_prefix(cgroup_root)
        .map_err(|_| format!("{} is outside {}", directory.display(), cgroup_root.display()))?;
    Ok((CgroupId(inode), format!("/{}", below.display())))
}

/// Which hierarchy a mount shows.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MountedHierarchy {
    /// cgroup2.
    Unified,
    /// One of v1, by the options of its file system: its controllers, or `name=systemd`.
    Controllers(Vec<String>),
}

/// A mounted hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
struct HierarchyMount {
    hierarchy: MountedHierarchy,
    /// Which of its directories is mounted; a bind mount or a cgroup namespace may show a part.
    root: PathBuf,
    at: PathBuf,
}

impl HierarchyMount {
    /// Where the cgroup is that /proc/PID/cgroup shows of another process.
    fn of_process(&self, cgroup: &str, top: &Path) -> Option<PathBuf> {
        // Of a process that exits v1 shows the root, whatever the reader's namespace is (proc_cgroup_show).
        if cgroup == "/" && self.hierarchy != MountedHierarchy::Unified {
            return Some(top.to_owned());
        }
        self.directory(cgroup, || self.own(own_cgroup))
    }

    /// Where a cgroup's directory is seen. `None`: outside of what is mounted.
    ///
    /// In a cgroup namespace, which a container has of its own on cgroup v2, all paths are relative
    /// to the namespace's root: the host's hierarchy is mounted from `/../../..`, and another
    /// container is `/../../other`. `own` is where this process is, and its path as it sees it.
    fn directory(
        &self,
        cgroup: &str,
        own: impl FnOnce() -> Option<(PathBuf, String)>,
    ) -> Option<PathBuf> {
        if !self.root.components().any(|part| part == Component::ParentDir) {
            let inside = Path::new(cgroup).strip_prefix(&self.root).ok()?;
            return inside.components().all(is_normal).then(|| self.at.join(inside));
        }
        let (seen_at, own_path) = own()?;
        let own_path = Path::new(&own_path);
        if own_path.components().any(|part| part == Component::ParentDir) {
            return None; // outside of its own namespace's root: from there nothing can be found
        }
        let down = own_path.components().filter(|part| is_normal(*part)).count();
        let up =
            Path::new(cgroup).components().filter(|part| *part == Component::ParentDir).count();
        let common = seen_at.ancestors().nth(down + up)?;
        let below: PathBuf =
            Path::new(cgroup).components().filter(|part| is_normal(*part)).collect();
        common.starts_with(&self.at).then(|| common.join(below))
    }

    /// Where this process is in it, and the path of that as this process sees it.
    fn own(&self, find: impl Fn(&Path) -> Option<PathBuf>) -> Option<(PathBuf, String)> {
        let memberships = read_lossy(Path::new("/proc/self/cgroup")).ok()?;
        let path = path_in(&memberships, &self.hierarchy)?.to_owned();
        Some((find(&self.at)?, path))
    }
}

/// [`cgroupfs::own_cgroup`], looked for once: nobody moves the agent.
fn own_cgroup(root: &Path) -> Option<PathBuf> {
    static FOUND: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock();
    if let Some(own) = found.get(root) {
        return Some(own.clone());
    }
    let own = cgroupfs::own_cgroup(root)?;
    found.insert(root.to_owned(), own.clone());
    Some(own)
}

fn is_normal(part: Component<'_>) -> bool {
    matches!(part, Component::Normal(_))
}

/// The mount of a cgroup file system that holds `path`: the longest mount point, and of several
/// there the last, which covers the others.
fn mount_of(mountinfo: &str, path: &Path) -> Option<HierarchyMount> {
    mounts(mountinfo)
        .filter(|mount| path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.components().count())
}

/// The mounted cgroup file systems. Format: proc(5), `/proc/PID/mountinfo`.
fn mounts(mountinfo: &str) -> impl Iterator<Item = HierarchyMount> {
    mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let hierarchy = match (right.next()?, right.nth(1)) {
            ("cgroup2", _) => MountedHierarchy::Unified,
            ("cgroup", Some(options)) => {
                MountedHierarchy::Controllers(options.split(',').map(str::to_owned).collect())
            }
            _ => return None,
        };
        Some(HierarchyMount { hierarchy, root: unescape(root), at: unescape(at) })
    })
}

/// A directory from which can be read whether the processes in it are frozen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Freezer {
    /// It has `cgroup.events`.
    V2(PathBuf),
    /// It has `freezer.state`.
    V1(PathBuf),
}

/// The freezers that may hold a process, as far as they can be seen from here: of cgroup v2 and of
/// the v1 freezer, whichever hierarchy the programs watch. A runtime uses either.
pub fn freezers(proc: &Path, pid: u32) -> Vec<Freezer> {
    let (Ok(mountinfo), Ok(memberships)) = (
        read_lossy(Path::new("/proc/self/mountinfo")),
        read_lossy(&proc.join(format!("{pid}/cgroup"))),
    ) else {
        return Vec::new();
    };
    freezers_in(&mountinfo, &memberships, own_cgroup)
}

/// The freezers that /proc/PID/mountinfo and /proc/PID/cgroup name. `own`: where this process is below a mount.
pub fn freezers_in(
    mountinfo: &str,
    memberships: &str,
    own: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<Freezer> {
    mounts(mountinfo)
        .filter_map(|mount| {
            let folder =
                mount.directory(path_in(memberships, &mount.hierarchy)?, || mount.own(&own))?;
            match &mount.hierarchy {
                MountedHierarchy::Unified => Some(Freezer::V2(folder)),
                MountedHierarchy::Controllers(all) => {
                    all.iter().any(|one| one == "freezer").then_some(Freezer::V1(folder))
                }
            }
        })
        .collect()
}

/// The path of a process' cgroup in a hierarchy. Format: cgroups(7), `/proc/PID/cgroup`.
fn path_in<'a>(memberships: &'a str, hierarchy: &MountedHierarchy) -> Option<&'a str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let here = match hierarchy {
            MountedHierarchy::Unified => number == "0" && controllers.is_empty(),
            MountedHierarchy::Controllers(options) => {
                controllers.split(',').any(|one| options.iter().any(|option| option == one))
            }
        };
        // A removed cgroup is shown with this suffix.
        (here && !path.ends_with(" (deleted)")).then_some(path)
    })
}

/// A path as mountinfo writes it: blanks, tabs, newlines and backslashes in octal.
pub fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| text.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(octal.unwrap_or(bytes[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:6 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
35 22 0:27 /kubepods /mnt/a\\040part rw - cgroup2 cgroup2 rw
garbage
";

    const MEMBERSHIPS: &str = "\
12:memory:/kubepods/pod1/c1
4:cpu,cpuacct:/kubepods/pod1/cpu
1:name=systemd:/system.slice/x:y
0::/kubepods/pod1/unified
";

    fn found(root: &str) -> Option<PathBuf> {
        let mount = mount_of(MOUNTS, Path::new(root))?;
        mount.directory(path_in(MEMBERSHIPS, &mount.hierarchy)?, || None)
    }

    #[test]
    fn the_watched_hierarchy_decides_which_line_counts() {
        for (root, expected) in [
            ("/sys/fs/cgroup/unified", Some("/sys/fs/cgroup/unified/kubepods/pod1/unified")),
            ("/sys/fs/cgroup/memory", Some("/sys/fs/cgroup/memory/kubepods/pod1/c1")),
            ("/sys/fs/cgroup/memory/kubepods", Some("/sys/fs/cgroup/memory/kubepods/pod1/c1")),
            ("/sys/fs/cgroup/cpu,cpuacct", Some("/sys/fs/cgroup/cpu,cpuacct/kubepods/pod1/cpu")),
            ("/sys/fs/cgroup/systemd", Some("/sys/fs/cgroup/systemd/system.slice/x:y")),
            ("/mnt/a part", Some("/mnt/a part/pod1/unified")),
            ("/sys/fs/cgroup", None),
            ("/", None),
        ] {
            assert_eq!(found(root), expected.map(PathBuf::from), "{root}");
        }
    }

    #[test]
    fn either_version_may_freeze() {
        let mounts = format!("{MOUNTS}36 30 0:31 / /cg/freezer rw - cgroup cgroup rw,freezer\n");
        let memberships = format!("{MEMBERSHIPS}6:freezer:/kubepods/pod1/f\n");
        let expected = [
            Freezer::V2("/sys/fs/cgroup/unified/kubepods/pod1/unified".into()),
            Freezer::V2("/mnt/a part/pod1/unified".into()),
            Freezer::V1("/cg/freezer/kubepods/pod1/f".into()),
        ];
        assert_eq!(freezers_in(&mounts, &memberships, |_| None), expected);
        assert_eq!(freezers_in(&mounts, "", |_| None), []);
    }

    #[test]
    fn paths_from_another_namespace_lead_nowhere() {
        let mount = mount_of(MOUNTS, Path::new("/sys/fs/cgroup/unified")).unwrap();
        for path in ["/../../kubepods/pod1", "/kubepods/../x", "relative"] {
            assert_eq!(mount.directory(path, || None), None, "{path}");
        }
        assert_eq!(path_in("0::/gone (deleted)\n", &MountedHierarchy::Unified), None);
    }

    #[test]
    fn a_namespace_of_our_own_hides_nobody() {
        const OURS: &str = "40 1 0:26 /../../.. /host ro - cgroup2 cgroup2 rw\n";
        let mount = mount_of(OURS, Path::new("/host")).unwrap();
        let own = |path: &str| Some((PathBuf::from("/host/kubepods/pod1/ours"), path.to_owned()));
        for (path, expected) in [
            ("/", Some("/host/kubepods/pod1/ours")),
            ("/init", Some("/host/kubepods/pod1/ours/init")),
            ("/../beside", Some("/host/kubepods/pod1/beside")),
            ("/../../pod2/theirs", Some("/host/kubepods/pod2/theirs")),
            ("/../../../init.scope", Some("/host/init.scope")),
            ("/../../../..", None),
        ] {
            let found = mount.directory(path, || own("/"));
            assert_eq!(found, expected.map(PathBuf::from), "{path}");
        }
        let nested = || Some((PathBuf::from("/host/kubepods/pod1/ours/init"), "/init".to_owned()));
        let found = mount.directory("/../beside", nested);
        assert_eq!(found, Some("/host/kubepods/pod1/beside".into()));
        assert_eq!(mount.directory("/../beside", || None), None, "who does not find itself");
        assert_eq!(mount.directory("/../beside", || own("/../out")), None, "who is outside");
    }

    #[test]
    fn a_process_that_exits_is_in_the_root_and_not_where_the_reader_is() {
        let hierarchy = MountedHierarchy::Controllers(vec!["memory".into()]);
        let mount = HierarchyMount { hierarchy, root: "/../..".into(), at: "/host".into() };
        assert_eq!(mount.of_process("/", Path::new("/host")), Some("/host".into()));
    }

    #[test]
    fn this_process() {
        let root = Path::new("/sys/fs/cgroup");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let roots = mounts
            .lines()
            .filter(|line| line.contains(" - cgroup"))
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|at| Path::new(at).starts_with(root));
        for at in roots {
            let (id, path) =
                of_process(Path::new("/proc"), Path::new(at), std::process::id()).unwrap();
            let directory = Path::new(at).join(path.trim_start_matches('/'));
            assert_eq!(cgroupfs::inode(&directory), Some(id.0), "{at}: {path}");
        }
    }
}
