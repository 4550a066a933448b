//! What this host offers the programs. Facts only: I/O here, decisions in
//! [`layout`](super::layout) and [`plan`](super::plan).

use crate::linux::{cgroupfs, mountinfo::mounts};
use anyhow::anyhow;
use rustix::{
    fs::statfs,
    process::{Resource, getrlimit},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where the kernel publishes its BTF.
const BTF: &str = "/sys/kernel/btf/vmlinux";

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

/// The bytes of the kernel's BTF.
pub fn btf_bytes() -> anyhow::Result<Vec<u8>> {
    fs::read(BTF).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            anyhow!("{BTF} does not exist; use a kernel with CONFIG_DEBUG_INFO_BTF=y")
        }
        _ => anyhow!("cannot read {BTF}: {error}; coroner requires kernel BTF"),
    })
}

/// The cgroup2 hierarchy: the one that is `named`, or wherever it is mounted.
pub fn hierarchy(named: Option<&Path>) -> Result<PathBuf, String> {
    let failed = |path: &Path, error: io::Error| format!("cannot read {}: {error}", path.display());
    if let Some(root) = named {
        let kind = statfs(root).map_err(|errno| failed(root, errno.into()))?.f_type;
        if kind != libc::CGROUP2_SUPER_MAGIC {
            return Err(format!(
                "--cgroup-root {} is not in a cgroup2 file system; without --cgroup-root coroner finds the one that is \
                 mounted. If the host uses cgroup v1, boot it with systemd.unified_cgroup_hierarchy=1",
                root.display()
            ));
        }
    }
    let file = Path::new("/proc/self/mountinfo");
    let mountinfo = fs::read(file).map_err(|error| failed(file, error))?;
    choose(named, &mountinfo, &cgroupfs::holds_pods)
}

/// The one that is named, or the cgroup2 mount that shows the pods, or any if there are none. A runtime of a hybrid
/// machine may put its processes into both versions: cgroup2 counts. Pure.
fn choose(
    named: Option<&Path>,
    mountinfo: &[u8],
    holds_pods: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, String> {
    let [mut v2, v1] = ["cgroup2", "cgroup"].map(|kind| {
        let of_kind = mounts(mountinfo).filter(|mount| mount.kind == kind);
        of_kind.map(|mount| mount.at).collect::<Vec<_>>()
    });
    if let Some(named) = named {
        v2 = vec![named.into()];
    }
    let with_pods = |of: &[PathBuf]| of.iter().find(|at| holds_pods(at)).cloned();
    if let Some(root) = with_pods(&v2) {
        return Ok(root);
    }
    let v2 = v2.into_iter().next();
    if let Some(at) = with_pods(&v1) {
        let of_v2 = v2.map_or("which is not mounted".to_owned(), |v2| {
            format!("which is mounted at {} and holds no pods", v2.display())
        });
        return Err(format!(
            "the pods of this node are in cgroup v1 (at {}), and coroner needs cgroup v2, {of_v2}; boot the node with \
             systemd.unified_cgroup_hierarchy=1, or move its pods to a node whose kubelet uses cgroup v2",
            at.display()
        ));
    }
    v2.ok_or_else(|| {
        "cgroup v2 is not mounted; in a container, mount the host's /sys/fs/cgroup. If the host uses cgroup v1, boot it \
         with systemd.unified_cgroup_hierarchy=1"
            .to_owned()
    })
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

    fn chosen(mountinfo: &str, pods: &[&str]) -> Result<PathBuf, String> {
        named(None, mountinfo, pods)
    }

    fn named(named: Option<&str>, mountinfo: &str, pods: &[&str]) -> Result<PathBuf, String> {
        let holds_pods = |root: &Path| pods.contains(&root.to_str().unwrap_or_default());
        choose(named.map(Path::new), mountinfo.as_bytes(), &holds_pods)
    }

    fn v2(root: &str) -> Result<PathBuf, String> {
        Ok(root.into())
    }

    #[test]
    fn cgroup2_is_taken_wherever_it_is_mounted() {
        let unified = "30 25 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(chosen(unified, &[]), v2("/sys/fs/cgroup"));
        assert_eq!(chosen(unified, &["/sys/fs/cgroup"]), v2("/sys/fs/cgroup"));
        let hybrid = |pods: &[&str]| chosen(HYBRID, pods);
        assert_eq!(hybrid(&[]), v2("/sys/fs/cgroup/unified"), "a machine without pods");
        let both = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"];
        assert_eq!(hybrid(&both[1..]), v2(both[1]));
        assert_eq!(hybrid(&both), v2(both[1]), "the runtime uses both");
        let part = format!("29 1 0:25 /own /mnt/own rw - cgroup2 cgroup2 rw\n{HYBRID}");
        assert_eq!(chosen(&part, &both[1..]), v2(both[1]), "a mount of a part without pods");
    }

    #[test]
    fn pods_in_cgroup_v1_are_named_with_the_way_out() {
        let refused = |found: Result<PathBuf, String>, parts: &[&str]| {
            let text = found.unwrap_err();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        let parts = ["v1 (at /mnt/a b)", "/unified and holds no pods", "hierarchy=1"];
        refused(chosen(HYBRID, &["/mnt/a b"]), &parts);
        let legacy = "34 29 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let at = "/sys/fs/cgroup/memory";
        refused(chosen(legacy, &[at]), &["v1 (at /sys/fs/cgroup/memory)", "which is not mounted"]);
        for none in [legacy, "25 1 0:21 / /sys rw - sysfs sysfs rw"] {
            refused(chosen(none, &[]), &["cgroup v2 is not mounted"]);
        }
    }

    #[test]
    fn a_named_directory_does_not_hide_pods_in_cgroup_v1() {
        let (unified, pids) = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids");
        let refused = named(Some(unified), HYBRID, &[pids]).unwrap_err();
        assert!(refused.contains("v1 (at /sys/fs/cgroup/pids)"), "{refused}");
        assert_eq!(named(Some("/own"), HYBRID, &["/own", unified, pids]), v2("/own"));
        assert_eq!(named(Some("/own"), HYBRID, &[unified]), v2("/own"));
    }

    #[test]
    fn a_named_directory_must_be_in_cgroup2() {
        for (named, said) in [("/proc", "not in a cgroup2"), ("/nonexistent", "cannot read")] {
            assert!(hierarchy(Some(Path::new(named))).unwrap_err().contains(said), "{named}");
        }
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
