//! A process of one thread that makes events to order: in a cgroup of the benchmark's, and with
//! nothing else going on in it.

use anyhow::{Context as _, bail};
use coroner::sources::kernel::tiny::Executable;
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};
use std::{
    ffi::c_int,
    fs,
    io::{self, BufRead as _, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    ptr,
    time::Duration,
};

/// The sub-command of `coroner-lab` that [`play`]s.
pub const COMMAND: &str = "events";

/// `include/uapi/linux/sched.h`; libc's own constant overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What is to be done: a line of JSON on stdin. The answer is a number on a line of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EventOrder {
    /// Fork so many children, one after the other, that leave at once. The answer: how many.
    Exits(u32),
    /// Send a signal so often, with a pause after each. The answer: how often.
    Send { to: i32, signal: i32, times: u32, pause_us: u64 },
    /// Send a signal to itself, which has a handler for it that does nothing. The answer: how often.
    Raise { signal: i32, times: u32 },
    /// Start a child that ignores SIGTERM and waits. The answer: its pid.
    Ignorer,
    /// Start a child that leaves, and leave it a zombie. The answer: its pid.
    Zombie,
    /// Make a cgroup of this name, start a child in it that executes something small, wait for it,
    /// remove the cgroup: so often. The answer: how often.
    Lives { cgroup: PathBuf, times: u32 },
}

/// Does as it is told until nobody tells it anything any more.
pub fn play() -> anyhow::Result<()> {
    stay_on_one_cpu().context("cannot stay on one CPU")?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let order: EventOrder =
            serde_json::from_str(&line.context("stdin")?).context("an order")?;
        let answer = obey(&order).with_context(|| format!("{order:?}"))?;
        writeln!(out, "{answer}").and_then(|()| out.flush()).context("stdout")?;
    }
    Ok(())
}

/// A process that is moved to another CPU finds nothing in its caches: that would be measured, and not
/// the programs. Children stay as well.
pub(super) fn stay_on_one_cpu() -> io::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut one = rustix::thread::CpuSet::new();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    one.set(last.ok_or(io::ErrorKind::NotFound)?);
    Ok(rustix::thread::sched_setaffinity(None, &one)?)
}

fn obey(order: &EventOrder) -> anyhow::Result<i64> {
    match order {
        EventOrder::Exits(times) => {
            for _ in 0..*times {
                reap(fork(|| {})?)?;
            }
            Ok(i64::from(*times))
        }
        EventOrder::Send { to, signal, times, pause_us } => {
            for _ in 0..*times {
                send(*to, *signal)?;
                if *pause_us > 0 {
                    std::thread::sleep(Duration::from_micros(*pause_us));
                }
            }
            Ok(i64::from(*times))
        }
        EventOrder::Raise { signal, times } => {
            handle(*signal)?;
            let own = rustix::process::getpid().as_raw_nonzero().get();
            for _ in 0..*times {
                send(own, *signal)?;
            }
            Ok(i64::from(*times))
        }
        EventOrder::Ignorer => {
            let child = fork(|| {
                // SAFETY: plain system calls, in a process of one thread.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::signal(libc::SIGTERM, libc::SIG_IGN);
                    loop {
                        libc::pause();
                    }
                }
            })?;
            wait_until_ignored(child)?;
            Ok(i64::from(child.as_raw_nonzero().get()))
        }
        EventOrder::Zombie => {
            let child = fork(|| {})?;
            let options =
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            rustix::process::waitid(rustix::process::WaitId::Pid(child), options)?;
            Ok(i64::from(child.as_raw_nonzero().get()))
        }
        EventOrder::Lives { cgroup, times } => {
            let program = Executable::new(0).context("the smallest program")?;
            for _ in 0..*times {
                live(cgroup, &program)?;
            }
            Ok(i64::from(*times))
        }
    }
}

/// One life, from the cgroup's making to its removal.
fn live(cgroup: &Path, program: &Executable) -> anyhow::Result<()> {
    fs::create_dir(cgroup)?;
    let directory = fs::File::open(cgroup)?;
    // SAFETY: all zeroes are such arguments.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = u64::try_from(directory.as_raw_fd())?;
    let none = ptr::null::<*const libc::c_char>();
    // SAFETY: a fork, in a process of one thread; the child calls nothing but the kernel.
    let child = unsafe {
        let size = size_of::<libc::clone_args>();
        let child = libc::syscall(libc::SYS_clone3, &raw mut arguments, size);
        if child == 0 {
            let arguments = [program.path().as_ptr(), ptr::null()];
            libc::execve(program.path().as_ptr(), arguments.as_ptr(), none);
            libc::_exit(127);
        }
        child
    };
    let child = i32::try_from(child).ok().and_then(Pid::from_raw);
    reap(child.filter(|pid| pid.as_raw_nonzero().get() > 0).ok_or_else(io::Error::last_os_error)?)?;
    // Busy until the last switch away from it.
    for _ in 0..1000 {
        match fs::remove_dir(cgroup) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done.context("cannot remove the cgroup"),
        }
    }
    bail!("the cgroup stays busy")
}

/// A child that does this and leaves with 0.
fn fork(act: impl FnOnce()) -> anyhow::Result<Pid> {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        act();
        // SAFETY: ends the child, without what is to be done at the parent's end.
        unsafe { libc::_exit(0) }
    }
    Pid::from_raw(child).filter(|_| child > 0).context(io::Error::last_os_error())
}

fn reap(child: Pid) -> anyhow::Result<()> {
    let ended = rustix::process::waitpid(Some(child), WaitOptions::empty())?;
    let code = ended.and_then(|(_, status)| status.exit_status());
    if code == Some(0) {
        Ok(())
    } else {
        bail!("a child ended otherwise than it was told to: {ended:?}")
    }
}

fn send(to: i32, signal: c_int) -> anyhow::Result<()> {
    let (Some(to), Some(signal)) = (Pid::from_raw(to), Signal::from_named_raw(signal)) else {
        bail!("signal {signal} to {to}");
    };
    Ok(rustix::process::kill_process(to, signal)?)
}

/// Installs a handler that does nothing.
fn handle(signal: c_int) -> anyhow::Result<()> {
    extern "C" fn nothing(_signal: c_int) {}
    let handler = nothing as extern "C" fn(c_int);
    // SAFETY: a handler that does nothing.
    let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error().into()) } else { Ok(()) }
}

/// The child is told apart from one that would die of SIGTERM by its SigIgn.
fn wait_until_ignored(child: Pid) -> anyhow::Result<()> {
    let path = format!("/proc/{}/status", child.as_raw_nonzero());
    for _ in 0..1000 {
        let status = fs::read_to_string(&path)?;
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if mask.is_some_and(|mask| mask & (1 << (libc::SIGTERM - 1)) != 0) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("the child does not ignore SIGTERM")
}
