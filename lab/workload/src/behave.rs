//! The behaviours themselves. Plain system calls: what the kernel is to report must not depend on
//! what a runtime does behind the program's back.

use crate::{
    args::{Behaviour, Work},
    http,
    log::{Event, line},
    process::{
        block, check, dispose, fault, handle, handle_term, leave, leave_after, map, retry,
        sleep_forever, wait_for, wait_for_wake, work_after,
    },
    serve::{self, Service},
};
use std::{
    convert::Infallible,
    io::{self, Error},
    mem::MaybeUninit,
    ptr, thread,
    time::Duration,
};

/// Behaves like that; returns only where it could not begin.
pub(crate) fn run(behaviour: Behaviour) -> io::Result<Infallible> {
    match behaviour {
        Behaviour::Pause => pause(),
        Behaviour::Handle { on, work } => {
            let woken = handle(on)?;
            line(Event::Start);
            work_after(woken, work)
        }
        Behaviour::Overrun => {
            handle_term()?;
            idle()
        }
        Behaviour::Default => idle(),
        Behaviour::SigIgn => {
            dispose(libc::SIGTERM, libc::SIG_IGN)?;
            idle()
        }
        Behaviour::Block => {
            block(&[libc::SIGTERM])?;
            idle()
        }
        Behaviour::BlockLeader => {
            let ready = std::sync::Arc::new(std::sync::Barrier::new(2));
            let other = std::sync::Arc::clone(&ready);
            thread::Builder::new().spawn(move || {
                other.wait();
                sleep_forever()
            })?;
            ready.wait();
            block(&[libc::SIGTERM])?;
            idle()
        }
        Behaviour::Sigwait(work) => {
            let set = block(&[libc::SIGTERM])?;
            line(Event::Start);
            wait_for(&set)?;
            line(Event::Term);
            leave_after(work)
        }
        Behaviour::Signalfd(work) => signalfd(work),
        Behaviour::GoStyle(work) => go_style(work.time),
        Behaviour::LeaderExits(work) => leader_exits(work),
        Behaviour::Serve { port, work } => {
            let woken = handle_term()?;
            http::serve(port, work.time)?;
            line(Event::Start);
            wait_for_wake(woken)?;
            leave(work.exit)
        }
        Behaviour::Listen { door, work, stop } => serve::run(&door, Service::Lines(work), stop),
        Behaviour::Relay { door, to, stop } => serve::run(&door, Service::Relay(to), stop),
        Behaviour::Call { every } => {
            let woken = handle_term()?;
            line(Event::Start);
            wait_for_wake(woken)?;
            http::call_forever(every)
        }
        Behaviour::Spawn { children, work } => spawn(children, work),
        Behaviour::Shell { child } => shell(&child),
        Behaviour::Crash { after } => crash(after),
        Behaviour::Flood => flood(),
        Behaviour::Oom { after, mib } => oom(after, mib),
        Behaviour::Job(work) => {
            line(Event::Start);
            leave_after(work)
        }
        Behaviour::Kill { pid, on, work } => {
            line(Event::Start);
            // SAFETY: kill touches no memory.
            check(unsafe { libc::kill(pid, on) })?;
            leave_after(work)
        }
    }
}

fn idle() -> ! {
    line(Event::Start);
    sleep_forever()
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

fn signalfd(work: Work) -> io::Result<Infallible> {
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
    leave_after(work)
}

/// What Go's runtime does with a SIGTERM that the program did not ask for (`dieFromSignal` in
/// runtime/signal_unix.go): default action, raise, and exit 2 if that did not kill, which it does
/// not for the init of a PID namespace.
fn go_style(work: Duration) -> io::Result<Infallible> {
    let woken = handle_term()?;
    line(Event::Start);
    wait_for_wake(woken)?;
    thread::sleep(work);
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
fn leader_exits(work: Work) -> io::Result<Infallible> {
    let woken = handle_term()?;
    line(Event::Start);
    wait_for_wake(woken)?;
    thread::Builder::new().name("successor".into()).spawn(move || leave_after(work))?;
    // exit(2), not exit_group(2): only the leading thread ends. It stays a zombie until the others
    // are gone, which is what confuses tools that look for pid == tid.
    // SAFETY: the thread owns nothing that anybody else uses.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Err(Error::other("the leading thread could not leave"))
}

fn spawn(children: u32, work: Work) -> io::Result<Infallible> {
    for _ in 0..children {
        // SAFETY: this process has one thread; the child only sleeps.
        if check(unsafe { libc::fork() })? == 0 {
            sleep_forever()
        }
    }
    let woken = handle_term()?;
    line(Event::Start);
    work_after(woken, work)
}

/// As `sh -c 'app; true'`: not replaced by its child, without a handler, passing nothing on.
fn shell(child: &[String]) -> io::Result<Infallible> {
    let mut child = std::process::Command::new("/proc/self/exe").args(child).spawn()?;
    let status = child.wait()?;
    leave(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

/// Its name also tells a terminal to clear itself. It leaves some of the processor to others.
fn flood() -> io::Result<Infallible> {
    dispose(libc::SIGHUP, libc::SIG_IGN)?;
    // SAFETY: a string that ends, and lasts.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, c"\xff\x1b[2J\xe2\x80".as_ptr()) })?;
    line(Event::Start);
    loop {
        for _ in 0..1000 {
            // SAFETY: kill touches no memory.
            check(unsafe { libc::kill(libc::getpid(), libc::SIGHUP) })?;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn crash(after: Duration) -> io::Result<Infallible> {
    // Rust's own handler for stack overflows would run first.
    dispose(libc::SIGSEGV, libc::SIG_DFL)?;
    line(Event::Start);
    thread::sleep(after);
    fault()
}

fn oom(after: Duration, mib: usize) -> io::Result<Infallible> {
    line(Event::Start);
    thread::sleep(after);
    let bytes = mib.checked_mul(1 << 20).ok_or_else(|| Error::other("--mib is out of range"))?;
    let memory = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    for offset in (0..bytes).step_by(4096) {
        // SAFETY: within the mapping of `bytes` bytes.
        unsafe { ptr::write_volatile(memory.add(offset), 1) };
    }
    sleep_forever()
}
