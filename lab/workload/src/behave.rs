//! The behaviours themselves. Plain system calls: what the kernel is to report must not depend on
//! what a runtime does behind the program's back.

use crate::{
    args::Behaviour,
    beat, http, listen,
    log::{Event, line},
};
use std::{
    convert::Infallible,
    ffi::c_int,
    io::{self, Error},
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
    time::Duration,
};

/// The writing end of the pipe through which the handler wakes the main thread. A pipe and not
/// sigsuspend: the stop signal is then never blocked, not even for a moment.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Lives the given life; returns only where it could not begin.
pub(crate) fn run(behaviour: Behaviour) -> io::Result<Infallible> {
    match behaviour {
        Behaviour::Pause => pause(),
        Behaviour::Handle { signal, work, exit } => {
            let woken = handle(c_int::from(signal))?;
            line(Event::Start);
            work_after(woken, work, exit)
        }
        Behaviour::Overrun => {
            handle_term()?;
            line(Event::Start);
            sleep_for_ever()
        }
        Behaviour::Default => {
            line(Event::Start);
            sleep_for_ever()
        }
        Behaviour::SigIgn => {
            dispose(libc::SIGTERM, libc::SIG_IGN)?;
            line(Event::Start);
            sleep_for_ever()
        }
        Behaviour::Block => {
            block(&[libc::SIGTERM])?;
            line(Event::Start);
            sleep_for_ever()
        }
        Behaviour::Sigwait { work, exit } => {
            let set = block(&[libc::SIGTERM])?;
            line(Event::Start);
            wait_for(&set)?;
            line(Event::Term);
            leave_after(work, exit)
        }
        Behaviour::Signalfd { work, exit } => signalfd(work, exit),
        Behaviour::GoStyle { work } => go_style(work),
        Behaviour::LeaderExits { work, exit } => leader_exits(work, exit),
        Behaviour::Serve { at, port, work, good, exit } => {
            let woken = handle_term()?;
            http::serve(at, port, work, good)?;
            line(Event::Start);
            work_after(woken, Duration::ZERO, exit)
        }
        Behaviour::Listen { door, manner, stop } => listen::run(&door, manner, stop),
        Behaviour::Relay { door, to, stop } => listen::relay::run(&door, to, stop),
        Behaviour::Call { every } => {
            let woken = handle_term()?;
            line(Event::Start);
            wait_for_wake(woken)?;
            http::call_for_ever(every)
        }
        Behaviour::Spawn { children, work, exit } => spawn(children, work, exit),
        Behaviour::Shell { child } => shell(&child),
        Behaviour::Crash { after } => crash(after),
        Behaviour::Oom { after, mib } => oom(after, mib),
        Behaviour::Job { work, exit } => {
            line(Event::Start);
            leave_after(work, exit)
        }
        Behaviour::Kill { pid, signal, work, exit } => {
            line(Event::Start);
            // SAFETY: kill touches no memory.
            check(unsafe { libc::kill(pid, c_int::from(signal)) })?;
            leave_after(work, exit)
        }
        Behaviour::KillNeighbour { behaviour, signal } => {
            let set = block(&[libc::SIGUSR1])?;
            line(Event::Start);
            wait_for(&set)?;
            let neighbour = process_with(&behaviour)?;
            // SAFETY: kill touches no memory.
            check(unsafe { libc::kill(neighbour, c_int::from(signal)) })?;
            sleep_for_ever()
        }
        Behaviour::Beat { page, term, end } => beat::run(&page, term, end),
    }
}

/// The process of this PID namespace that runs this program with this behaviour.
fn process_with(behaviour: &str) -> io::Result<libc::pid_t> {
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if command.split(|byte| *byte == 0).nth(1) == Some(behaviour.as_bytes()) {
            return Ok(pid);
        }
    }
    Err(Error::other(format!("no process runs {behaviour:?}")))
}

fn pause() -> io::Result<Infallible> {
    let set = block(&[libc::SIGTERM, libc::SIGINT, libc::SIGCHLD])?;
    line(Event::Start);
    loop {
        if wait_for(&set)? == libc::SIGCHLD {
            // One SIGCHLD may stand for many children.
            // SAFETY: waitpid accepts a null status.
            while unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) } > 0 {}
        } else {
            line(Event::Term);
            leave(0)
        }
    }
}

fn signalfd(work: Duration, exit: u8) -> io::Result<Infallible> {
    let set = block(&[libc::SIGTERM])?;
    // SAFETY: the set is initialised.
    let descriptor = check(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) })?;
    line(Event::Start);
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer is as long as said.
    let read = retry(|| unsafe { libc::read(descriptor, info.as_mut_ptr().cast(), size) })?;
    if read as usize != size {
        return Err(Error::other("signalfd gave a short record"));
    }
    line(Event::Term);
    leave_after(work, exit)
}

/// What Go's runtime does with a SIGTERM that the program did not ask for (`dieFromSignal` in
/// runtime/signal_unix.go): default action, raise, and exit 2 if that did not kill, which it does
/// not for the init of a PID namespace.
fn go_style(work: Duration) -> io::Result<Infallible> {
    let woken = handle_term()?;
    line(Event::Start);
    wait_for_wake(woken)?;
    sleep(work);
    line(Event::Exit);
    dispose(libc::SIGTERM, libc::SIG_DFL)?;
    // SAFETY: raising a signal on this thread and leaving touch no memory.
    unsafe {
        libc::raise(libc::SIGTERM);
        libc::sched_yield();
        libc::_exit(2)
    }
}

/// The leading thread takes the stop signal and leaves the work to another one. It does not leave
/// earlier: runc takes a zombie leader for a container that has stopped, and sends it nothing.
fn leader_exits(work: Duration, exit: u8) -> io::Result<Infallible> {
    let woken = handle_term()?;
    line(Event::Start);
    wait_for_wake(woken)?;
    std::thread::Builder::new().name("successor".into()).spawn(move || leave_after(work, exit))?;
    // exit(2), not exit_group(2): only the leading thread ends. It stays a zombie until the others
    // are gone, which is what confuses tools that look for pid == tid.
    // SAFETY: the thread owns nothing that anybody else uses.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Err(Error::other("the leading thread could not leave"))
}

fn spawn(children: u32, work: Duration, exit: u8) -> io::Result<Infallible> {
    for _ in 0..children {
        // SAFETY: this process has one thread; the child only sleeps.
        if check(unsafe { libc::fork() })? == 0 {
            sleep_for_ever()
        }
    }
    let woken = handle_term()?;
    line(Event::Start);
    work_after(woken, work, exit)
}

/// As `sh -c 'app; true'`: not replaced by its child, without a handler, passing nothing on.
fn shell(child: &[String]) -> io::Result<Infallible> {
    let mut child = std::process::Command::new("/proc/self/exe").args(child).spawn()?;
    let status = child.wait()?;
    leave(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

fn crash(after: Duration) -> io::Result<Infallible> {
    // Rust's own handler for stack overflows would run first.
    dispose(libc::SIGSEGV, libc::SIG_DFL)?;
    line(Event::Start);
    sleep(after);
    fault()
}

/// A write to memory that may not be written to.
pub(crate) fn fault() -> io::Result<Infallible> {
    let page = map(4096, libc::PROT_NONE)?;
    // SAFETY: the page is ours and may not be written: that is the point.
    unsafe { ptr::write_volatile(page, 1) };
    Err(Error::other("wrote to a page without permission and survived"))
}

fn oom(after: Duration, mib: usize) -> io::Result<Infallible> {
    line(Event::Start);
    sleep(after);
    let bytes = mib.checked_mul(1 << 20).ok_or_else(|| Error::other("--mib is out of range"))?;
    let memory = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    for offset in (0..bytes).step_by(4096) {
        // SAFETY: within the mapping of `bytes` bytes.
        unsafe { ptr::write_volatile(memory.add(offset), 1) };
    }
    sleep_for_ever()
}

extern "C" fn on_term(_: c_int) {
    line(Event::Term);
    let descriptor = WAKE.load(Ordering::Relaxed);
    // SAFETY: write is async-signal-safe; the byte is static.
    unsafe { libc::write(descriptor, b"t".as_ptr().cast(), 1) };
}

pub(crate) fn handle_term() -> io::Result<c_int> {
    handle(libc::SIGTERM)
}

/// Installs the handler; the returned descriptor becomes readable once it has run.
fn handle(signal: c_int) -> io::Result<c_int> {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // Non-blocking at the writing end: no number of signals may stop the handler.
    // SAFETY: plain flag on a descriptor of our own.
    check(unsafe { libc::fcntl(ends[1], libc::F_SETFL, libc::O_NONBLOCK) })?;
    WAKE.store(ends[1], Ordering::Relaxed);
    dispose(signal, on_term as extern "C" fn(c_int) as libc::sighandler_t)?;
    Ok(ends[0])
}

fn work_after(woken: c_int, work: Duration, exit: u8) -> io::Result<Infallible> {
    wait_for_wake(woken)?;
    leave_after(work, exit)
}

fn wait_for_wake(woken: c_int) -> io::Result<()> {
    let mut byte = 0u8;
    // SAFETY: room for the one byte.
    retry(|| unsafe { libc::read(woken, (&raw mut byte).cast(), 1) }).map(drop)
}

fn leave_after(work: Duration, exit: u8) -> ! {
    sleep(work);
    leave(exit)
}

pub(crate) fn leave(exit: u8) -> ! {
    line(Event::Exit);
    // SAFETY: ends the process; nothing is left to flush.
    unsafe { libc::_exit(c_int::from(exit)) }
}

fn sleep(time: Duration) {
    // std continues after interruptions: a second signal does not shorten the work.
    std::thread::sleep(time);
}

fn sleep_for_ever() -> ! {
    loop {
        // SAFETY: no memory is involved.
        unsafe { libc::pause() };
    }
}

pub(crate) fn dispose(signal: c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid; the handler is a function of the right type or a
    // constant of libc.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler;
        libc::sigemptyset(&mut action.sa_mask);
        check(libc::sigaction(signal, &action, ptr::null_mut())).map(drop)
    }
}

pub(crate) fn block(signals: &[c_int]) -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()))?;
        Ok(set)
    }
}

fn wait_for(set: &libc::sigset_t) -> io::Result<c_int> {
    let mut signal = 0;
    // SAFETY: both pointers are valid.
    match unsafe { libc::sigwait(set, &mut signal) } {
        0 => Ok(signal),
        error => Err(Error::from_raw_os_error(error)),
    }
}

pub(crate) fn map(bytes: usize, protection: c_int) -> io::Result<*mut u8> {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(address.cast()) }
}

pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<isize> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result);
        }
        let error = Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
