//! The daemon's mount namespace: everything that containerd, its shims and runc would change on
//! the machine is theirs alone. And the network namespace of the node's side of the pods' network, in which
//! the daemon is not: pods on the host's network are on the machine's.

use super::CgroupHierarchy;
use anyhow::{Context, Result, bail};
use rustix::{
    mount::{MountFlags, MountPropagationFlags},
    process::{Pid, Signal},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use std::{
    ffi::{CStr, CString},
    fs::{self, File},
    io,
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
};

/// Where the cgroup hierarchies are mounted on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Hierarchies {
    /// cgroup2, wherever it is mounted.
    pub(super) unified: Option<PathBuf>,
    /// Every v1 hierarchy.
    pub(super) legacy: Vec<PathBuf>,
    memory: Option<PathBuf>,
}

impl Hierarchies {
    pub(super) fn of_this_machine() -> Result<Hierarchies> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")
            .context("cannot read /proc/self/mountinfo")?;
        Ok(Hierarchies::read(&mounts))
    }

    /// From the lines of mountinfo, proc_pid_mountinfo(5): the mount point is the fifth field, the
    /// type and the super block's options stand after the dash.
    fn read(mountinfo: &str) -> Hierarchies {
        let mut found = Hierarchies::default();
        for line in mountinfo.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let (Some(point), Some(kind)) = (before.split(' ').nth(4), after.split(' ').next())
            else {
                continue;
            };
            let options = after.split(' ').nth(2).unwrap_or_default();
            match kind {
                "cgroup2" if found.unified.is_none() => found.unified = Some(point.into()),
                "cgroup" => {
                    if options.split(',').any(|option| option == "memory") {
                        found.memory = Some(point.into());
                    }
                    found.legacy.push(point.into());
                }
                _ => {}
            }
        }
        found
    }

    /// Every mount point, v1 and v2.
    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        self.unified.iter().chain(&self.legacy).map(PathBuf::as_path)
    }

    pub(super) fn root(&self, wanted: CgroupHierarchy) -> Result<PathBuf> {
        let root = match wanted {
            CgroupHierarchy::Unified => &self.unified,
            CgroupHierarchy::Legacy => &self.memory,
        };
        match (root, wanted) {
            (Some(root), _) => Ok(root.clone()),
            (None, CgroupHierarchy::Unified) => bail!(
                "no cgroup2 file system is mounted here; \
                 try: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified"
            ),
            (None, CgroupHierarchy::Legacy) => {
                bail!("this machine has no cgroup v1 memory hierarchy")
            }
        }
    }
}

/// A proc file system in the node's /run of which nothing is covered. Without one the kernel refuses a pod with a user
/// namespace its own (`mount_too_revealing`, fs/namespace.c).
const PROC: &CStr = c"/run/proc";

/// One mount, ready for the moment between fork and exec, when nothing may be allocated.
#[derive(Debug)]
pub(super) struct Bind {
    source: CString,
    target: CString,
    read_only: bool,
}

/// Lets the groups below have a memory controller, unless they do already. Refused where a task
/// sits in the group itself: the limit then fails, and says so.
pub fn hand_memory_down(group: &Path) {
    let control = group.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    if !enabled.split_whitespace().any(|name| name == "memory") {
        let _ = fs::write(control, "+memory");
    }
}

/// What is mounted over what, in order. `root`: the node's own root of the hierarchy, if it is not the machine's.
pub(super) fn plan(
    work: &Path,
    wanted: CgroupHierarchy,
    machine: &Hierarchies,
    root: Option<&Path>,
) -> Result<Vec<Bind>> {
    let mut binds = vec![
        bind(&work.join("run"), "/run", false)?,
        bind(&work.join("lib"), "/var/lib", false)?,
        // CNI plugins and node components set sysctls, and those are the machine's own.
        bind(Path::new("/proc/sys"), "/proc/sys", true)?,
    ];
    // A bind, not a mount of its own: mounting cgroup2 anew would set its flags (nsdelegate and
    // others) for the whole machine. runc takes the type of /sys/fs/cgroup for the mode.
    let unified = machine.unified.as_deref().filter(|_| wanted == CgroupHierarchy::Unified);
    match root.or(unified) {
        Some(root) if root != Path::new("/sys/fs/cgroup") => {
            binds.push(bind(root, "/sys/fs/cgroup", false)?);
        }
        _ => {}
    }
    Ok(binds)
}

fn bind(source: &Path, target: &str, read_only: bool) -> Result<Bind> {
    Ok(Bind {
        source: CString::new(source.as_os_str().as_bytes())?,
        target: CString::new(target)?,
        read_only,
    })
}

/// Makes the command's child the first member of a mount namespace with these mounts and of a network
/// namespace, both of its own, and, with a `root` of the cgroup hierarchy, of a cgroup namespace. It dies
/// with the thread which starts it, and is in a process group that a Ctrl-C does not reach.
pub(super) fn make_on_exec(
    command: &mut Command,
    binds: Vec<Bind>,
    root: Option<&Path>,
) -> Result<()> {
    command.process_group(0);
    let members = root.map(members).transpose()?;
    let of_cgroups = if root.is_some() { UnshareFlags::NEWCGROUP } else { UnshareFlags::empty() };
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            die_with_parent()?;
            enter(members.as_ref())?;
            rustix::thread::unshare_unsafe(
                UnshareFlags::NEWNS | UnshareFlags::NEWNET | of_cgroups,
            )?;
            propagate(MountPropagationFlags::PRIVATE)?;
            for bind in &binds {
                mount(bind)?;
            }
            rustix::mount::mount(c"proc", PROC, c"proc", MountFlags::empty(), None)?;
            // Containers' mounts have to be seen by the shims and the other way round.
            propagate(MountPropagationFlags::SHARED)
        });
    }
    Ok(())
}

/// The namespaces that make up the node.
#[derive(Debug)]
pub(super) struct NodeNamespaces {
    pub(super) mounts: File,
    cgroups: File,
}

impl NodeNamespaces {
    /// Those of a process.
    pub(super) fn of(process: Pid) -> Result<Self> {
        let open = |name| {
            let path = format!("/proc/{}/ns/{name}", process.as_raw_pid());
            File::open(&path)
                .with_context(|| format!("cannot open {path}: the lab's namespace is gone"))
        };
        Ok(Self { mounts: open("mnt")?, cgroups: open("cgroup")? })
    }
}

/// Makes the command's child a member of these namespaces, otherwise as [`make_on_exec`], and of that cgroup.
pub(super) fn join_on_exec(
    command: &mut Command,
    node: NodeNamespaces,
    cgroup: Option<&Path>,
) -> Result<()> {
    command.process_group(0);
    let members = cgroup.map(members).transpose()?;
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            die_with_parent()?;
            enter(members.as_ref())?;
            move_into_link_name_space(node.cgroups.as_fd(), Some(LinkNameSpaceType::ControlGroup))?;
            Ok(move_into_link_name_space(node.mounts.as_fd(), Some(LinkNameSpaceType::Mount))?)
        });
    }
    Ok(())
}

/// The list of a cgroup's processes, to be written.
fn members(cgroup: &Path) -> Result<File> {
    let path = cgroup.join("cgroup.procs");
    File::options()
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Makes this process one of them.
fn enter(members: Option<&File>) -> io::Result<()> {
    members.map_or(Ok(()), |members| rustix::io::write(members, b"0").map(drop).map_err(Into::into))
}

fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

fn propagate(how: MountPropagationFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_change(c"/", how | MountPropagationFlags::REC)?)
}

fn mount(bind: &Bind) -> io::Result<()> {
    rustix::mount::mount_bind(&bind.source, &bind.target)?;
    if bind.read_only {
        rustix::mount::mount_remount(&bind.target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755
34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
35 30 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
39 30 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
a line that is none";

    const UNIFIED: &str = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn a_hybrid_machine_has_both() {
        let machine = Hierarchies::read(HYBRID);
        assert_eq!(
            machine.root(CgroupHierarchy::Unified).unwrap(),
            Path::new("/sys/fs/cgroup/unified")
        );
        assert_eq!(
            machine.root(CgroupHierarchy::Legacy).unwrap(),
            Path::new("/sys/fs/cgroup/memory")
        );
        assert_eq!(machine.all().count(), 3);
        let binds = plan(Path::new("/w"), CgroupHierarchy::Unified, &machine, None).unwrap();
        assert!(binds.iter().any(|bind| bind.target.as_c_str() == c"/sys/fs/cgroup"));
    }

    #[test]
    fn a_unified_machine_keeps_its_cgroup_mount() {
        let machine = Hierarchies::read(UNIFIED);
        assert_eq!(machine.root(CgroupHierarchy::Unified).unwrap(), Path::new("/sys/fs/cgroup"));
        assert!(machine.root(CgroupHierarchy::Legacy).is_err());
        let binds = plan(Path::new("/w"), CgroupHierarchy::Unified, &machine, None).unwrap();
        assert!(binds.iter().all(|bind| bind.target.as_c_str() != c"/sys/fs/cgroup"));
    }
}
