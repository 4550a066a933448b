//! A process of a number that somebody else has just had, in a cgroup of our choice.

use anyhow::{Context as _, bail};
use std::{fs::File, io, mem, os::fd::AsRawFd as _, path::Path};

/// What it ends with: no life of the churn does.
pub(super) const CODE: i32 = 66;

/// How long it lives, ns.
const LIVES: libc::c_long = 30_000_000;

/// clone3(2)'s arguments, as of Linux 5.7 (`struct clone_args`, include/uapi/linux/sched.h).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Starts a process that has this number, in this cgroup, and waits for its end. False: the number
/// is not free any more, or not yet.
pub(super) fn run(pid: i32, cgroup: &Path) -> anyhow::Result<bool> {
    let group = File::open(cgroup).with_context(|| cgroup.display().to_string())?;
    let tid = [pid];
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD as u64,
        set_tid: tid.as_ptr() as u64,
        set_tid_size: 1,
        cgroup: u64::try_from(group.as_raw_fd()).unwrap_or_default(),
        ..Default::default()
    };
    // SAFETY: the arguments outlive the call. Without CLONE_VM the child has its own copy of all
    // memory and runs on the same stack; it makes only system calls, which allocate nothing and
    // take no lock that another thread may have held.
    let child =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const args, mem::size_of_val(&args)) };
    match child {
        0 => {
            let nap = libc::timespec { tv_sec: 0, tv_nsec: LIVES };
            // SAFETY: as above.
            unsafe {
                libc::nanosleep(&nap, std::ptr::null_mut());
                libc::_exit(CODE)
            }
        }
        -1 => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // Its zombie is not reaped yet, or somebody was quicker.
                Some(libc::EEXIST) => Ok(false),
                _ => Err(error).context("clone3 with a number of our choice"),
            }
        }
        child => {
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            let waited = unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
            if waited != pid {
                bail!("waited for {pid}, got {waited}: {}", io::Error::last_os_error());
            }
            Ok(true)
        }
    }
}
