//! Children of our own that die on cue.
//!
//! They are forked from a process that may have threads: between the fork and its end a child
//! calls nothing but what is safe in a signal handler, and touches no memory that it would have
//! to allocate.

use crate::sources::kernel::tiny::Executable;
use rustix::{
    io::retry_on_intr,
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};
use std::{
    ffi::c_int,
    fs, io,
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicI32, Ordering},
};

/// A child in the test's cgroup. Killed and reaped when dropped.
pub(super) struct Actor {
    pid: Pid,
    reaped: bool,
}

/// What the handler exits with: set in the child before the handler is installed.
static CODE: AtomicI32 = AtomicI32::new(0);

extern "C" fn leave(_signal: c_int) {
    // SAFETY: safe in a handler; ends the process.
    unsafe { libc::_exit(CODE.load(Ordering::Relaxed)) }
}

impl Actor {
    /// One that installs a handler for SIGTERM, which exits with `code`. It is installed when this
    /// returns.
    pub(super) fn handler(code: u8, procs: Option<&Path>) -> io::Result<Self> {
        let (ready, is_ready) = rustix::pipe::pipe()?;
        let ready_fd = is_ready.as_raw_fd();
        let actor = Self::fork(procs, |go| {
            CODE.store(i32::from(code), Ordering::Relaxed);
            // SAFETY: only calls that are safe after a fork, on values that live on this stack.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = leave as *const () as libc::sighandler_t;
                libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut());
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                wait_for(go);
                libc::write(ready_fd, [0u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        })?;
        drop(is_ready);
        match rustix::io::read(&ready, &mut [0u8])? {
            0 => Err(io::Error::other("a child process exited too early")),
            _ => Ok(actor),
        }
    }

    /// One that execs a program that exits with `code`.
    pub(super) fn execer(code: u8, procs: Option<&Path>) -> io::Result<Self> {
        let program = Executable::new(code)?;
        let path = program.path().as_ptr();
        let argv = [c"coroner-tiny".as_ptr(), std::ptr::null()];
        let envp = [std::ptr::null()];
        Self::fork(procs, |go| {
            // SAFETY: only calls that are safe after a fork; the arrays were made before it.
            unsafe {
                wait_for(go);
                libc::execve(path, argv.as_ptr(), envp.as_ptr());
            }
        })
    }

    /// One that reads a byte from a descriptor of ours and exits, which closes its copy.
    pub(super) fn reader(of: &impl AsRawFd) -> io::Result<Self> {
        let of = of.as_raw_fd();
        Self::fork(None, |go| {
            let mut byte = 0u8;
            // SAFETY: only calls that are safe after a fork; reads at most one byte into one.
            unsafe {
                wait_for(go);
                libc::read(of, (&raw mut byte).cast(), 1);
            }
        })
    }

    /// Forks a child that waits for the end of a pipe, moves it into the cgroup (`None`: it stays in
    /// ours), gives the word.
    fn fork(procs: Option<&Path>, play: impl FnOnce(c_int)) -> io::Result<Self> {
        let (go, stay) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (go_fd, stay_fd) = (go.as_raw_fd(), stay.as_raw_fd());
        // SAFETY: the child runs `play`, which keeps to what is safe after a fork, and never
        // returns from here.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: as above. Otherwise the child itself would keep the pipe open, and it would
                // outlive an agent that is killed in the middle of the test.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::close(stay_fd);
                }
                play(go_fd);
                // SAFETY: as above.
                unsafe { libc::_exit(126) }
            }
            pid => pid,
        };
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let actor = Self { pid, reaped: false };
        if let Some(procs) = procs {
            fs::write(procs, pid.to_string())?;
        }
        drop(stay);
        Ok(actor)
    }

    /// Its pid in our namespace.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    pub(super) fn terminate(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::TERM)?)
    }

    pub(super) fn wait(&mut self) -> io::Result<i32> {
        let ended = retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))?;
        self.reaped = true;
        Ok(ended.map_or(0, |(_, status)| status.as_raw()))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.reaped {
            // Its end is all that is wanted.
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = self.wait();
        }
    }
}

/// Until the other end is closed.
///
/// # Safety
/// None is needed but to be in the child: it is a plain read.
unsafe fn wait_for(go: c_int) {
    let mut byte = 0u8;
    // SAFETY: reads at most one byte into one.
    while unsafe { libc::read(go, (&raw mut byte).cast(), 1) } > 0 {}
}
