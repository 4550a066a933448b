//! The lab in PID, mount and cgroup namespaces of its own, as a node of kind, minikube or k3d is: processes have other
//! ids there than for the kernel, and paths of cgroups begin elsewhere.

use anyhow::{Context as _, Result};
use coroner_lab::containerd::{cleanup, enter_group, hand_memory_down, members, unified_hierarchy};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait},
    thread::{UnshareFlags, unshare_unsafe},
};
use std::{
    ffi::{CString, OsString},
    fs,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, ExitCode},
    sync::mpsc,
    thread,
};
use tokio::signal::unix::{SignalKind, signal};

/// The command line's word for this.
const FLAG: &str = "--nested";
/// The command that is process 1 there.
pub(crate) const INIT: &str = "init";

/// This command line without the flag, in namespaces of its own.
pub(crate) fn run(work: &Path) -> Result<ExitCode> {
    // What a lab that was killed has left is not seen from within.
    let work = cleanup::claim(work)?.work().to_owned();
    let hierarchy = unified_hierarchy()?;
    let cgroup = hierarchy.join(format!("{}-node", &cleanup::cgroup_name(&work)[1..]));
    cleanup::end_cgroup(&cgroup)?;
    hand_memory_down(&hierarchy);
    // No process may be where a controller is handed down.
    let init = cgroup.join("init");
    fs::create_dir_all(&init)?;
    let (node, init) = (members(&cgroup)?, members(&init)?);
    let [from, to] = [&cgroup, &hierarchy].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    let mut command = Command::new(std::env::current_exe()?);
    command.args([INIT, "--"]).args(std::env::args_os().skip(1).filter(|word| word != FLAG));
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A cgroup namespace begins where its maker is.
            enter_group(&node)?;
            unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)?;
            enter_group(&init)?;
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
    let removed = cleanup::end_cgroup(&cgroup);
    let code = code?;
    removed.map(|()| code)
}

/// Process 1: runs the rest of the command line, and waits for all that nothing else waits for.
pub(crate) fn init(words: &[OsString]) -> Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words);
    wait_for(move || Ok(command.spawn()?))
}

/// Starts a child and waits for its exit; a Ctrl-C or SIGTERM is passed on to it. Other children may exit before.
fn wait_for(start: impl FnOnce() -> Result<Child>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    drop(entered);
    let (started, child) = mpsc::channel();
    // A process whose children are to be in another PID namespace makes no more threads.
    thread::spawn(move || {
        let Ok(child) = child.recv() else { return };
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                let _ = kill_process(child, Signal::TERM);
            }
        })
    });
    let child = Pid::from_child(&start()?);
    started.send(child)?;
    loop {
        let exited = wait(WaitOptions::empty())?;
        if let Some((_, status)) = exited.filter(|(pid, _)| *pid == child) {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
}
