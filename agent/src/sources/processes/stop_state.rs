//! What /proc shows of a main process with regard to its stop signal. Reads no argument, environment or memory.

use crate::linux::procfs::{
    parse::{self, SignalState, Stat},
    read_stat,
};
use coroner_core::{
    input::{OtherThreads, StopState, TaskState},
    output::ReadStopState,
};
use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

/// Threads, file descriptors and children of one process that are looked at. Beyond that, the answer is not certain.
const MAX_THREADS: usize = 256;
const MAX_FDS: usize = 1024;
const MAX_CHILDREN: usize = 16;
/// Attempts to read mask and wait of a thread while it does not run.
const ATTEMPTS: usize = 3;
/// Longest name of a program.
const MAX_NAME: usize = 64;

/// `rt_sigtimedwait`, in /proc/PID/syscall: 128 on x86_64, 137 on arm64.
const RT_SIGTIMEDWAIT: libc::c_long = libc::SYS_rt_sigtimedwait;

/// What was read, and what could not be read.
pub(super) fn read(proc: &Path, wanted: &ReadStopState) -> (Option<StopState>, Vec<String>) {
    let mut unread = Unread(Vec::new());
    let state = process(proc, wanted, &mut unread);
    (state, unread.0)
}

/// Bounded, because a reader names each file once.
struct Unread(Vec<String>);

impl Unread {
    fn take<T>(&mut self, path: &Path, result: io::Result<T>) -> Option<T> {
        result.map_err(|error| self.note(path, &error.to_string())).ok()
    }

    fn note(&mut self, path: &Path, why: &str) {
        if self.0.len() < 4 {
            self.0.push(format!("{}: {why}", path.display()));
        }
    }
}

fn process(proc: &Path, wanted: &ReadStopState, unread: &mut Unread) -> Option<StopState> {
    let pid = wanted.main.0;
    let folder = proc.join(pid.to_string());
    let leader = thread(&folder, unread)?;
    let Some(stat) = read_stat(&folder) else {
        unread.note(&folder.join("stat"), "cannot be read");
        return None;
    };
    let exe = fs::read_link(folder.join("exe")).ok();
    let exe = exe.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let exe: String = exe.unwrap_or_default().chars().take(MAX_NAME).collect();
    let has = |mask: u64| mask >> (u32::from(wanted.signal) - 1) & 1 == 1;
    let Thread { signals, waits, settled } = leader;
    // The kernel gives no signal to a thread that is stopped or has exited.
    let takes_none = match signals.state {
        TaskState::Zombie => Some("the leading thread has exited"),
        TaskState::Stopped => Some("the leading thread is stopped"),
        _ => None,
    };
    takes_none.inspect(|why| unread.note(&folder, why));
    let mut state = StopState {
        started: stat.started_ns(),
        comm: stat.comm,
        exe,
        ns_pid: signals.ns_pid,
        caught: has(signals.caught),
        ignored: has(signals.ignored),
        blocked: has(signals.blocked),
        waits,
        settled: settled && takes_none.is_none(),
        ..StopState::default()
    };
    if state.blocked && !state.caught {
        state.others = others(&folder, pid, has, unread);
        state.signalfd = signalfd(&folder, has, unread);
    } else {
        (state.children, state.child) = children(proc, &folder.join(format!("task/{pid}")));
    }
    Some(state)
}

struct Thread {
    signals: SignalState,
    waits: Option<bool>,
    /// Mask and wait are of the same moment.
    settled: bool,
}

/// Mask and wait of a thread. Both change when it runs: they are of one moment if it was switched to no more often
/// after the reading than before.
fn thread(folder: &Path, unread: &mut Unread) -> Option<Thread> {
    let path = folder.join("status");
    let status = |unread: &mut Unread| {
        let text = unread.take(&path, fs::read(&path))?;
        parse::signals(&String::from_utf8_lossy(&text))
    };
    let mut before = status(unread)?;
    for _ in 0..ATTEMPTS {
        let waits = waits(folder, before.state, unread);
        let after = status(unread)?;
        if after == before && after.state != TaskState::Running {
            return Some(Thread { signals: after, waits, settled: true });
        }
        before = after;
    }
    Some(Thread { signals: before, waits: Some(false), settled: false })
}

/// Whether a thread is in rt_sigtimedwait, by the kernel function in which it sleeps; where that has no name, by its
/// system call, which the kernel shows only to a process that may trace it.
fn waits(folder: &Path, state: TaskState, unread: &mut Unread) -> Option<bool> {
    if state == TaskState::Running || state == TaskState::Zombie {
        return Some(false);
    }
    if let Some(function) =
        parse::wchan(&fs::read_to_string(folder.join("wchan")).unwrap_or_default())
    {
        // A frozen thread was taken out of its wait, and will go back to it.
        if function.contains("freez") || function.contains("refrigerator") {
            unread.note(folder, "it is frozen");
            return None;
        }
        return Some(function.contains("sigtimedwait"));
    }
    let path = folder.join("syscall");
    let text = unread.take(&path, fs::read_to_string(&path))?;
    let number = text.split_ascii_whitespace().next()?.parse();
    Some(number.is_ok_and(|number: libc::c_long| number == RT_SIGTIMEDWAIT))
}

/// The threads beside the leading one; `None`: not all could be read.
fn others(
    folder: &Path,
    leader: u32,
    has: impl Fn(u64) -> bool,
    unread: &mut Unread,
) -> Option<OtherThreads> {
    let path = folder.join("task");
    let listed = unread.take(&path, fs::read_dir(&path))?;
    let mut found = OtherThreads { all_block: true, waits: false, settled: true };
    for (number, entry) in listed.flatten().enumerate() {
        if number >= MAX_THREADS {
            unread.note(&path, &format!("more than {MAX_THREADS} threads"));
            return None;
        }
        if entry.file_name().to_str() == Some(&*leader.to_string()) {
            continue;
        }
        // One that has exited meanwhile decides nothing.
        let Some(one) = thread(&entry.path(), &mut Unread(Vec::new())) else { continue };
        let is_alive = one.signals.state != TaskState::Zombie;
        found.all_block &= has(one.signals.blocked) || one.waits == Some(true) || !is_alive;
        found.waits |= one.waits == Some(true);
        found.settled &= one.settled && one.waits.is_some();
    }
    Some(found)
}

/// Whether a signalfd of the process has the signal; `None`: not all could be read.
fn signalfd(folder: &Path, has: impl Fn(u64) -> bool, unread: &mut Unread) -> Option<bool> {
    let path = folder.join("fdinfo");
    let listed = unread.take(&path, fs::read_dir(&path))?;
    for (number, entry) in listed.flatten().enumerate() {
        if number >= MAX_FDS {
            unread.note(&path, &format!("more than {MAX_FDS} file descriptors"));
            return None;
        }
        let text = match fs::read(entry.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => unread.take(&entry.path(), text)?,
        };
        if parse::sigmask(&String::from_utf8_lossy(&text)).is_some_and(&has) {
            return Some(true);
        }
    }
    Some(false)
}

/// The children that the leading thread has forked, at least so many, and the name of the first. Kernels without
/// CONFIG_PROC_CHILDREN show none.
fn children(proc: &Path, leader: &Path) -> (u32, String) {
    let mut pids = String::new();
    // There may be very many: the last number may be cut, and is not looked at.
    let file = fs::File::open(leader.join("children"));
    let _ = file.and_then(|file| file.take(256).read_to_string(&mut pids));
    let pids = pids.split_ascii_whitespace().take(MAX_CHILDREN);
    let children = pids.filter_map(|pid| read_stat(&proc.join(pid))).filter(Stat::lives);
    let names: Vec<String> = children.map(|child| child.comm).collect();
    (u32::try_from(names.len()).unwrap_or(u32::MAX), names.into_iter().next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
