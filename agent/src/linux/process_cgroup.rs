//! From a process to the cgroup it is in.

use crate::linux::{
    cgroupfs,
    mountinfo::{Mount, mounts},
    procfs::read_lossy,
};
use coroner_core::ids::CgroupId;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// The cgroup of a process in the cgroup2 hierarchy mounted at `cgroup_root`, and its path from there. The error
/// says what failed.
pub fn of_process(proc: &Path, cgroup_root: &Path, pid: u32) -> Result<(CgroupId, String), String> {
    let read =
        |path: &Path| read_lossy(path).map_err(|error| format!("read {}: {error}", path.display()));
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let mount = mount_of(&mounts, cgroup_root)
        .ok_or_else(|| format!("{} is not in a cgroup2 file system", cgroup_root.display()))?;
    let memberships = read(&proc.join(format!("{pid}/cgroup")))?;
    let path = path_in(&memberships)
        .ok_or_else(|| format!("process {pid} is in no cgroup of cgroup v2"))?;
    let directory = mount.directory(path, || mount.own()).ok_or_else(|| {
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

impl Mount {
    /// Where a cgroup's directory is seen. `None`: outside of what is mounted.
    ///
    /// In a cgroup namespace, which a container has of its own, all paths are relative
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
    fn own(&self) -> Option<(PathBuf, String)> {
        let memberships = read_lossy(Path::new("/proc/self/cgroup")).ok()?;
        let path = path_in(&memberships)?.to_owned();
        Some((own_cgroup(&self.at)?, path))
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

/// The mount of cgroup2 that holds `path`: the longest mount point, and of several there the last, which
/// covers the others.
fn mount_of(mountinfo: &str, path: &Path) -> Option<Mount> {
    mounts(mountinfo.as_bytes())
        .filter(|mount| mount.kind == "cgroup2" && path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.components().count())
}

/// The path of a process' cgroup. Format: cgroups(7), `/proc/PID/cgroup`.
fn path_in(memberships: &str) -> Option<&str> {
    let path = memberships.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A removed cgroup is shown with this suffix.
    (!path.ends_with(" (deleted)")).then_some(path)
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
        mount_of(MOUNTS, Path::new(root))?.directory(path_in(MEMBERSHIPS)?, || None)
    }

    #[test]
    fn a_cgroup_is_found_wherever_cgroup2_is_mounted() {
        for (root, expected) in [
            ("/sys/fs/cgroup/unified", Some("/sys/fs/cgroup/unified/kubepods/pod1/unified")),
            (
                "/sys/fs/cgroup/unified/kubepods",
                Some("/sys/fs/cgroup/unified/kubepods/pod1/unified"),
            ),
            ("/mnt/a part", Some("/mnt/a part/pod1/unified")),
            ("/sys/fs/cgroup/memory", None),
            ("/sys/fs/cgroup", None),
            ("/", None),
        ] {
            assert_eq!(found(root), expected.map(PathBuf::from), "{root}");
        }
    }

    #[test]
    fn paths_from_another_namespace_lead_nowhere() {
        let mount = mount_of(MOUNTS, Path::new("/sys/fs/cgroup/unified")).unwrap();
        for path in ["/../../kubepods/pod1", "/kubepods/../x", "relative"] {
            assert_eq!(mount.directory(path, || None), None, "{path}");
        }
        assert_eq!(path_in("0::/gone (deleted)\n"), None);
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
}
