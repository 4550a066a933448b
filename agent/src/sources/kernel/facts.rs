//! What this host offers the programs. Facts only: I/O here, decisions in
//! [`layout`](super::layout) and [`plan`](super::plan).

use super::{
    KernelOptions, btf,
    plan::{self, Tracepoint},
};
use crate::linux::{
    cgroupfs, privileges::Privileges, process_cgroup::unescape, procfs::read_lossy,
};
use rustix::{
    fs::{major, minor},
    process::{Resource, getrlimit},
};
use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

/// The facts. Nothing was loaded to learn them.
#[derive(Debug)]
pub struct KernelFacts {
    /// `uname -r`.
    pub release: String,
    /// The kernel's BTF, or why it could not be had.
    pub btf: Result<BtfFacts, String>,
    /// What this process may do.
    pub privileges: Privileges,
    /// RLIMIT_MEMLOCK is too small for the maps on this kernel, unless CAP_SYS_RESOURCE lifts it.
    pub memlock_is_short: bool,
    /// The hierarchy to watch, or why none could be chosen.
    pub hierarchy: Result<Hierarchy, HierarchyError>,
    /// The kernel programs are built into this binary.
    pub programs_embedded: bool,
}

/// Locked memory that the maps take beside the rings, generously: CONTAINERS has 16,384 entries.
const MAPS: u64 = 8 << 20;

/// Before Linux 5.11 gave them to the memory cgroup (kernel commit 97306be45fbe), maps counted as
/// locked memory; whether RLIMIT_MEMLOCK, unless it is lifted, is too small for them.
pub(super) fn memlock_is_short(ring_bytes: u32) -> bool {
    // A ring's pages are mapped twice, and counted once.
    let needed = MAPS + 2 * u64::from(ring_bytes);
    version(&release()) < (5, 11)
        && getrlimit(Resource::Memlock).maximum.is_some_and(|limit| limit < needed)
}

/// Major and minor number of a kernel's release; distributions put much behind them. Zero: not to
/// be read.
pub fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The kernel's BTF and what is read from it at once.
pub struct BtfFacts {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Each hook's tracepoint.
    pub tracepoints: Vec<(&'static str, Tracepoint)>,
}

impl fmt::Debug for BtfFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BtfFacts")
            .field("bytes", &self.bytes.len())
            .field("tracepoints", &self.tracepoints)
            .finish()
    }
}

/// The cgroup hierarchy that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// cgroup v2.
    V2 {
        /// Where it is mounted.
        root: PathBuf,
    },
    /// One hierarchy of cgroup v1.
    V1 {
        /// Where it is mounted.
        root: PathBuf,
        /// A controller of it: by its place in `css_set.subsys` its cgroups are found.
        controller: String,
        /// Its number: first field of /proc/self/cgroup.
        id: u32,
    },
}

impl Hierarchy {
    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        match self {
            Self::V2 { root } | Self::V1 { root, .. } => root,
        }
    }

    /// It is cgroup v2.
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V2 { root } => write!(f, "v2 at {}", root.display()),
            Self::V1 { root, controller, .. } => write!(f, "v1 {controller} at {}", root.display()),
        }
    }
}

/// Why no hierarchy could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum HierarchyError {
    /// Nothing is mounted.
    #[error(
        "no cgroup hierarchy is mounted; in a container, mount the host's /sys/fs/cgroup and set \
         --cgroup-root"
    )]
    None,
    /// The one that was named is none.
    #[error("--cgroup-root {0} is not a cgroup2 or cgroup v1 mount")]
    NotCgroup(PathBuf),
    /// The one that was named has no controller.
    #[error(
        "--cgroup-root {0} is a v1 hierarchy without a controller; use one with a controller, for \
         example pids or memory"
    )]
    NoController(PathBuf),
    /// A file of the host could not be read.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Looks at the host. Loads nothing, changes nothing.
pub fn probe(options: &KernelOptions) -> KernelFacts {
    KernelFacts {
        release: release(),
        memlock_is_short: memlock_is_short(options.ring_bytes),
        btf: probe_btf(),
        privileges: Privileges::held(),
        hierarchy: hierarchy(options.cgroup_root.as_deref()),
        programs_embedded: super::load::OBJECT.is_some(),
    }
}

/// Inode of the kernel's first PID namespace: `PROC_PID_INIT_INO` (`include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: u32 = 0xeffffffc;

/// Inode of this process' PID namespace; 0: it is the kernel's first one, or cannot be read.
pub(super) fn own_pid_namespace() -> u32 {
    let inode = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
    // `ns_common.inum` is 32 bits wide.
    u32::try_from(inode).ok().filter(|inode| *inode != FIRST_PID_NAMESPACE).unwrap_or(0)
}

pub(super) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn probe_btf() -> Result<BtfFacts, String> {
    let bytes = std::fs::read(btf::VMLINUX).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{} does not exist; this kernel was built without CONFIG_DEBUG_INFO_BTF",
            btf::VMLINUX
        ),
        _ => format!("cannot read {}: {error}", btf::VMLINUX),
    })?;
    let tracepoints = btf::Btf::parse(&bytes)
        .map(|btf| plan::tracepoints(&btf))
        .map_err(|error| format!("cannot use {}: {error}", btf::VMLINUX))?;
    Ok(BtfFacts { bytes, tracepoints })
}

/// A cgroup mount of /proc/self/mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// `major:minor`: the same for all mounts of one hierarchy.
    device: (u32, u32),
    point: PathBuf,
    unified: bool,
    /// v1: the super options, controllers among them.
    options: Vec<String>,
}

/// The cgroup hierarchy that holds the containers: the one that is `named`, or found by itself.
///
/// # Errors
/// None is mounted, or what is named is none.
pub fn hierarchy(named: Option<&Path>) -> Result<Hierarchy, HierarchyError> {
    let read = |path: &str| {
        read_lossy(Path::new(path)).map_err(|error| HierarchyError::Io { path: path.into(), error })
    };
    let mounts = mounts(&read("/proc/self/mountinfo")?);
    let numbers = hierarchy_numbers(&read("/proc/self/cgroup")?);
    match named {
        Some(root) => {
            let device = rustix::fs::stat(root)
                .map_err(|errno| HierarchyError::Io { path: root.into(), error: errno.into() })?
                .st_dev;
            let mount = mounts
                .iter()
                .find(|mount| mount.device == (major(device), minor(device)))
                .ok_or_else(|| HierarchyError::NotCgroup(root.into()))?;
            of_mount(mount, root, &numbers).ok_or_else(|| HierarchyError::NoController(root.into()))
        }
        None => choose(&mounts, &numbers, &|root| cgroupfs::holds_kubepods(root))
            .ok_or(HierarchyError::None),
    }
}

/// Without a word from the user: cgroup2 where it is all there is; else, on a hybrid or v1 host,
/// the hierarchy that the kubelet uses, which shows by its `kubepods`; else v1 `pids` or another
/// controller, for that is where a kubelet would put them.
fn choose(
    mounts: &[Mount],
    numbers: &BTreeMap<String, u32>,
    holds_kubepods: &dyn Fn(&Path) -> bool,
) -> Option<Hierarchy> {
    let unified = mounts.iter().find(|mount| mount.unified);
    let v1 = ["pids", "memory", "freezer", "cpu", "cpuset", "devices", "blkio"]
        .iter()
        .filter_map(|controller| {
            mounts.iter().find(|m| !m.unified && m.options.iter().any(|o| o == controller))
        })
        .chain(mounts.iter().filter(|mount| !mount.unified))
        .filter_map(|mount| of_mount(mount, &mount.point, numbers));
    let v2 = unified.map(|mount| Hierarchy::V2 { root: mount.point.clone() });
    if unified.is_some_and(|mount| mount.point == Path::new("/sys/fs/cgroup")) {
        return v2;
    }
    let all: Vec<_> = v1.chain(v2).collect();
    all.iter().find(|hierarchy| holds_kubepods(hierarchy.root())).or(all.first()).cloned()
}

fn of_mount(mount: &Mount, root: &Path, numbers: &BTreeMap<String, u32>) -> Option<Hierarchy> {
    if mount.unified {
        return Some(Hierarchy::V2 { root: root.into() });
    }
    mount.options.iter().find_map(|option| {
        let id = *numbers.get(option)?;
        Some(Hierarchy::V1 { root: root.into(), controller: option.clone(), id })
    })
}

/// What [`hierarchy`] chooses by these two files where no hierarchy holds a `kubepods`: for the
/// fuzz targets.
pub fn hierarchy_in(mountinfo: &str, cgroup: &str) -> Option<Hierarchy> {
    choose(&mounts(mountinfo), &hierarchy_numbers(cgroup), &|_| false)
}

/// The cgroup mounts of /proc/self/mountinfo (`man 5 proc`).
fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ');
            let (major, minor) = left.nth(2)?.split_once(':')?;
            let point = left.nth(1)?;
            let mut right = right.split(' ');
            let unified = match right.next()? {
                "cgroup2" => true,
                "cgroup" => false,
                _ => return None,
            };
            let options = right.nth(1)?.split(',').map(str::to_owned).collect();
            let device = (major.parse().ok()?, minor.parse().ok()?);
            Some(Mount { device, point: unescape(point), unified, options })
        })
        .collect()
}

/// v1 controllers and the numbers of their hierarchies, from /proc/self/cgroup. A name such as
/// `name=systemd` is no controller.
fn hierarchy_numbers(cgroup: &str) -> BTreeMap<String, u32> {
    cgroup
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let number = fields.next()?.parse::<u32>().ok()?;
            Some(fields.next()?.split(',').map(move |name| (name.to_owned(), number)))
        })
        .flatten()
        .filter(|(name, number)| *number != 0 && !name.is_empty() && !name.contains('='))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 1 0:21 / /sys rw,nosuid - sysfs sysfs rw
29 25 0:24 / /sys/fs/cgroup rw,relatime shared:4 - tmpfs tmpfs rw,mode=755
30 29 0:25 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw
31 29 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
32 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 29 0:28 / /sys/fs/cgroup/pids rw master:1 propagate_from:2 - cgroup cgroup rw,pids
34 29 0:29 / /mnt/a\\040b rw - cgroup cgroup rw,memory";
    const UNIFIED: &str = "30 25 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
    const NUMBERS: &str =
        "9:name=systemd:/\n8:pids:/\n3:cpu,cpuacct:/a:b\n4:memory:/\n0::/\nnonsense";

    fn chosen(mountinfo: &str, holds: &[&str]) -> Option<Hierarchy> {
        choose(&mounts(mountinfo), &hierarchy_numbers(NUMBERS), &|root| {
            holds.contains(&root.to_str().unwrap_or_default())
        })
    }

    fn v1(root: &str, controller: &str, id: u32) -> Option<Hierarchy> {
        Some(Hierarchy::V1 { root: root.into(), controller: controller.into(), id })
    }

    fn v2(root: &str) -> Option<Hierarchy> {
        Some(Hierarchy::V2 { root: root.into() })
    }

    #[test]
    fn the_hierarchy_of_the_kubelet_is_chosen() {
        assert_eq!(chosen(UNIFIED, &[]), v2("/sys/fs/cgroup"));
        assert_eq!(chosen(HYBRID, &[]), v1("/sys/fs/cgroup/pids", "pids", 8));
        assert_eq!(
            chosen(HYBRID, &["/sys/fs/cgroup/unified"]),
            v2("/sys/fs/cgroup/unified"),
            "only there are pods"
        );
        assert_eq!(
            chosen(HYBRID, &["/sys/fs/cgroup/unified", "/mnt/a b"]),
            v1("/mnt/a b", "memory", 4),
            "a hybrid runtime makes both, the kubelet uses v1"
        );
        assert_eq!(chosen("25 1 0:21 / /sys rw - sysfs sysfs rw\nnonsense", &[]), None);
    }

    #[test]
    fn hierarchies_without_a_controller_cannot_be_watched() {
        let mounts = mounts(HYBRID);
        let numbers = hierarchy_numbers(NUMBERS);
        let of = |point: &str| {
            let mount = mounts.iter().find(|m| m.point == Path::new(point)).unwrap();
            of_mount(mount, &mount.point, &numbers)
        };
        assert_eq!(of("/sys/fs/cgroup/systemd"), None);
        assert_eq!(of("/sys/fs/cgroup/cpu,cpuacct"), v1("/sys/fs/cgroup/cpu,cpuacct", "cpu", 3));
    }

    #[test]
    fn distributions_put_much_behind_the_version() {
        for (text, wanted) in [
            ("5.8+", (5, 8)),
            ("5.10.0-33-cloud-amd64", (5, 10)),
            ("6.18.5", (6, 18)),
            ("7.2-rc1", (7, 2)),
            ("", (0, 0)),
        ] {
            assert_eq!(version(text), wanted, "{text}");
        }
    }
}
