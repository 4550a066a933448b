//! The lab in PID, mount and cgroup namespaces of its own, as a node of kind, minikube or k3d is: processes have other
//! ids there than for the kernel, and paths of cgroups begin elsewhere.

use anyhow::{Context as _, Result};
use coroner_lab_cluster::containerd::{cgroup_parent, end_cgroup, unified_hierarchy};
use coroner_lab_harness::environment::{interrupted, work_directory};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait},
    thread::{UnshareFlags, unshare_unsafe},
};
use std::{
    ffi::{CString, OsString},
    fs::{self, File},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, ExitCode},
    sync::mpsc,
    thread,
};

/// The command line's word for this.
const FLAG: &str = "--nested";
/// The command that is process 1 there.
pub(crate) const INIT: &str = "init";

/// This command line without the flag, in namespaces of its own.
pub(crate) fn run(work: &Path) -> Result<ExitCode> {
    let hierarchy = unified_hierarchy()?;
    let name = format!("{}-node", cgroup_parent(&work_directory(work)?));
    let cgroup = hierarchy.join(name.trim_start_matches('/'));
    fs::create_dir_all(&cgroup)
        .with_context(|| format!("cannot make cgroup {}", cgroup.display()))?;
    let members = File::options().write(true).open(cgroup.join("cgroup.procs"))?;
    let [from, to] = [&cgroup, &hierarchy].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    let mut command = Command::new(std::env::current_exe()?);
    command.args([INIT, "--"]).args(std::env::args_os().skip(1).filter(|word| word != FLAG));
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            rustix::io::write(&members, b"0")?;
            unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)?;
            mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            mount(c"proc", c"/proc", c"proc", MountFlags::empty(), None)?;
            Ok(mount_bind(&from, &to)?)
        });
    }
    let code = wait_for(move || {
        // SAFETY: for children only; this process stays where it is.
        unsafe { unshare_unsafe(UnshareFlags::NEWPID) }.context("cannot make a PID namespace")?;
        command.spawn().context("cannot start the lab in namespaces of its own")
    });
    end_cgroup(&cgroup)?;
    code
}

/// Process 1: runs the rest of the command line, and waits for all that nobody else waits for.
pub(crate) fn init(words: &[OsString]) -> Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words);
    wait_for(move || Ok(command.spawn()?))
}

/// Starts a child and waits for its end; it gets to know of a Ctrl-C or SIGTERM. Other children may end before.
fn wait_for(start: impl FnOnce() -> Result<Child>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (started, child) = mpsc::channel();
    // A process whose children are to be in another PID namespace makes no more threads.
    thread::spawn(move || {
        let Ok(child) = child.recv() else { return };
        runtime.block_on(async {
            loop {
                interrupted().await;
                let _ = kill_process(child, Signal::TERM);
            }
        })
    });
    let child = Pid::from_child(&start()?);
    started.send(child)?;
    loop {
        let ended = wait(WaitOptions::empty())?;
        if let Some((_, status)) = ended.filter(|(pid, _)| *pid == child) {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
}
