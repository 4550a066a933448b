//! The node's mount namespace: everything that containerd, its shims and runc would change on the machine is theirs
//! alone. And the network namespace of the pods' bridge, in which the daemon is not: pods on the host's network are on
//! the machine's.

use super::{CgroupDriver, ContainerdOptions, process::Process};
use anyhow::{Context as _, Result};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount},
    process::{Pid, Signal},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
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
    process::{Command, Stdio},
};

/// A proc file system in the node's /run of which nothing is covered. Without one the kernel refuses a pod with a user
/// namespace its own (`mount_too_revealing`, fs/namespace.c).
const PROC: &CStr = c"/run/proc";

/// Where cgroup v2 is mounted on this machine.
pub fn unified_hierarchy() -> Result<PathBuf> {
    mount_point("cgroup2", "").context(
        "no cgroup2 file system is mounted here; \
         try: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
    )
}

/// Where a hierarchy is mounted: of v1, the one with this controller. proc_pid_mountinfo(5): the mount point is the
/// fifth field, the type and the super block's options stand after the dash.
pub(crate) fn mount_point(kind: &str, controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = after.split(' ');
        let is_kind = fields.next() == Some(kind);
        let options = fields.nth(1).unwrap_or_default();
        let is_it = controller.is_empty() || options.split(',').any(|option| option == controller);
        (is_kind && is_it).then(|| before.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Lets the groups below have a memory controller, unless they do already. Refused where a process is in the group
/// itself: the limit then fails, and says so.
pub fn hand_memory_down(group: &Path) {
    let control = group.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    if !enabled.split_whitespace().any(|name| name == "memory") {
        let _ = fs::write(control, "+memory");
    }
}

/// Makes the namespaces, with a process in them that does nothing else.
pub(super) fn hold(options: &ContainerdOptions, root: &Path, cgroup: &Path) -> Result<Process> {
    let mut command = sleep();
    command.process_group(0);
    let bind = |source: &Path, target: &str| {
        let source = CString::new(source.as_os_str().as_bytes())?;
        anyhow::Ok((source, CString::new(target)?))
    };
    let mut binds = vec![
        bind(&options.work.join("run"), "/run")?,
        bind(&options.work.join("lib"), "/var/lib")?,
    ];
    // A bind, not a mount of its own: mounting cgroup2 again would set its flags for the whole machine. runc takes the
    // type of /sys/fs/cgroup for the mode.
    if root != Path::new("/sys/fs/cgroup") {
        binds.push(bind(root, "/sys/fs/cgroup")?);
    }
    let cgroups = match options.driver {
        CgroupDriver::Systemd => UnshareFlags::NEWCGROUP,
        CgroupDriver::Cgroupfs => UnshareFlags::empty(),
    };
    let (members, of_root) = (members(cgroup)?, members(root)?);
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            die_with_parent()?;
            // A cgroup namespace begins where its maker is.
            enter_group(if cgroups.is_empty() { &members } else { &of_root })?;
            unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET | cgroups)?;
            enter_group(&members)?;
            propagate(MountPropagationFlags::PRIVATE)?;
            for (source, target) in &binds {
                mount_bind(source, target)?;
            }
            // CNI plugins set sysctls, and those are the machine's own.
            mount_bind(c"/proc/sys", c"/proc/sys")?;
            mount_remount(c"/proc/sys", MountFlags::BIND | MountFlags::RDONLY, c"")?;
            mount(c"proc", PROC, c"proc", MountFlags::empty(), None)?;
            // Containers' mounts have to be seen by the shims and the other way round.
            propagate(MountPropagationFlags::SHARED)
        });
    }
    Process::start("namespace", command)
        .context("cannot make the lab's mount and network namespaces")
}

/// A process in a network namespace of its own, and in a cgroup.
pub(super) fn hold_network(cgroup: &Path) -> Result<Process> {
    let mut command = sleep();
    command.process_group(0);
    let members = members(cgroup)?;
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            die_with_parent()?;
            enter_group(&members)?;
            Ok(unshare_unsafe(UnshareFlags::NEWNET)?)
        });
    }
    Process::start("network", command).context("cannot make a network namespace")
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Makes the command's child a member of the node's mount and cgroup namespaces and of that cgroup. The child dies with
/// the thread which starts it, and is in a process group that a Ctrl-C does not reach.
pub(super) fn join_on_exec(command: &mut Command, node: Pid, cgroup: &Path) -> Result<()> {
    command.process_group(0);
    let (members, mounts, cgroups) =
        (members(cgroup)?, namespace(node, "mnt")?, namespace(node, "cgroup")?);
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            die_with_parent()?;
            enter_group(&members)?;
            move_into_link_name_space(cgroups.as_fd(), Some(LinkNameSpaceType::ControlGroup))?;
            Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?)
        });
    }
    Ok(())
}

/// A namespace of a process.
pub(super) fn namespace(process: Pid, name: &str) -> Result<File> {
    let path = format!("/proc/{}/ns/{name}", process.as_raw_pid());
    File::open(&path).with_context(|| format!("cannot open {path}"))
}

/// The list of a cgroup's processes, to be written.
pub fn members(cgroup: &Path) -> Result<File> {
    let path = cgroup.join("cgroup.procs");
    let file = File::options().write(true).open(&path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

/// Moves this process into the cgroup of that list.
pub fn enter_group(members: &File) -> io::Result<()> {
    rustix::io::write(members, b"0").map(drop).map_err(Into::into)
}

fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

fn propagate(how: MountPropagationFlags) -> io::Result<()> {
    Ok(mount_change(c"/", how | MountPropagationFlags::REC)?)
}
