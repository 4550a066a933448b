//! What a process does to itself: handlers, masks, sleeps, exits. Plain system calls.

use crate::{
    args::Work,
    log::{Event, line},
};
use std::{
    convert::Infallible,
    ffi::c_int,
    io::{self, Error},
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// The writing end of the pipe through which the handler wakes the main thread. A pipe and not
/// sigsuspend: the stop signal is then never blocked, not even for a moment.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// A write to memory that may not be written to.
pub(crate) fn fault() -> io::Result<Infallible> {
    let page = map(4096, libc::PROT_NONE)?;
    // SAFETY: the page is ours and may not be written: that is the point.
    unsafe { ptr::write_volatile(page, 1) };
    Err(Error::other("wrote to a page without permission and survived"))
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
pub(crate) fn handle(signal: c_int) -> io::Result<c_int> {
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

pub(crate) fn work_after(woken: c_int, work: Work) -> io::Result<Infallible> {
    wait_for_wake(woken)?;
    leave_after(work)
}

pub(crate) fn wait_for_wake(woken: c_int) -> io::Result<()> {
    let mut byte = 0u8;
    // SAFETY: room for the one byte.
    retry(|| unsafe { libc::read(woken, (&raw mut byte).cast(), 1) }).map(drop)
}

pub(crate) fn leave_after(work: Work) -> ! {
    // std continues after interruptions: a second signal does not shorten the work.
    std::thread::sleep(work.time);
    leave(work.exit)
}

pub(crate) fn leave(exit: u8) -> ! {
    line(Event::Exit);
    // SAFETY: ends the process; nothing is left to flush.
    unsafe { libc::_exit(c_int::from(exit)) }
}

pub(crate) fn sleep_forever() -> ! {
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

pub(crate) fn wait_for(set: &libc::sigset_t) -> io::Result<c_int> {
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

pub(crate) fn retry(mut call: impl FnMut() -> isize) -> io::Result<isize> {
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
