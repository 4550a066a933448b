//! A life that leaves its heartbeat in a shared page, so that the moment of its death is known
//! from the inside: the accuracy benchmark's workload.

use crate::{
    args::{BeatEnd, Term},
    log::{Event, line},
    process::{block, dispose, fault, map},
};
use coroner_workload::page::{Mapping, Page, boot_now};
use std::{
    convert::Infallible,
    ffi::c_int,
    io::{self, Error},
    path::Path,
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Relaxed, SeqCst},
    },
};

/// From the handler to leaving, ns.
const FAREWELL: u64 = 20_000_000;
/// Between two heartbeats while nothing is going on, ns.
const SLOW: libc::c_long = 2_000_000;
/// Between two heartbeats when the end is near, ns. Not a spin: one that spins has used its share
/// of a busy CPU up just when it is to be killed, and is killed tens of milliseconds later; one that
/// slept is woken by its death.
const FAST: libc::c_long = 100_000;
/// More than its container may have.
const TOO_MUCH: usize = 64 << 20;

/// The page, for the handler.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// Lives until the page, SIGTERM or somebody else ends it.
pub(crate) fn run(file: &Path, term: Term, end: BeatEnd) -> io::Result<Infallible> {
    // Never unmapped: the handler may run at any time.
    let page: &'static Mapping = Box::leak(Box::new(Mapping::open(file)?));
    PAGE.store(ptr::from_ref::<Page>(page).cast_mut(), SeqCst);
    // A core dump would take its time between the last heartbeat and the end.
    // SAFETY: a flag of this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    match term {
        Term::Leave | Term::Stay => {
            dispose(libc::SIGTERM, on_term as extern "C" fn(c_int) as libc::sighandler_t)?;
        }
        Term::Block => drop(block(&[libc::SIGTERM])?),
        Term::None => {}
    }
    // Rust's own handler for stack overflows would run first.
    dispose(libc::SIGSEGV, libc::SIG_DFL)?;
    page.ready.store(boot_now(), SeqCst);
    line(Event::Start);
    loop {
        let now = boot_now();
        page.beat_before.store(page.beat.load(Relaxed), Relaxed);
        page.beat.store(now, Relaxed);
        let handled = page.term.load(Relaxed);
        let leaves = term == Term::Leave && handled != 0;
        if leaves && now >= handled.saturating_add(FAREWELL) {
            // No line in the log: the heartbeat is to be the last thing that it does.
            leave_at_once(page, 0)
        }
        if due(page.end_at.load(Relaxed), now) {
            return finish(page, end);
        }
        let near = leaves || due(page.fast_from.load(Relaxed), now);
        nap(if near { FAST } else { SLOW });
    }
}

fn due(at: u64, now: u64) -> bool {
    at != 0 && now >= at
}

fn finish(page: &'static Page, end: BeatEnd) -> io::Result<Infallible> {
    match end {
        BeatEnd::Exit(code) => leave_at_once(page, code),
        BeatEnd::Crash => {
            page.beat.store(boot_now(), Relaxed);
            fault()
        }
        BeatEnd::Oom => {
            // The kernel writes a long report, to a slow console maybe, before it kills: a thread
            // of its own beats until it does.
            std::thread::Builder::new().name("heart".into()).spawn(move || {
                loop {
                    page.beat.store(boot_now(), Relaxed);
                    nap(FAST);
                }
            })?;
            let memory = map(TOO_MUCH, libc::PROT_READ | libc::PROT_WRITE)?;
            for offset in (0..TOO_MUCH).step_by(4096) {
                // SAFETY: within the mapping of TOO_MUCH bytes.
                unsafe { ptr::write_volatile(memory.add(offset), 1) };
            }
            Err(Error::other("was given more memory than its container may have"))
        }
    }
}

fn leave_at_once(page: &Page, code: u8) -> ! {
    page.beat.store(boot_now(), Relaxed);
    // SAFETY: ends the process; nothing is left to flush.
    unsafe { libc::_exit(c_int::from(code)) }
}

extern "C" fn on_term(_: c_int) {
    let now = boot_now();
    let page = PAGE.load(Relaxed);
    // SAFETY: set before the handler was installed, and never unmapped.
    if let Some(page) = unsafe { page.as_ref() } {
        // Only the first one counts.
        if page.term.compare_exchange(0, now, SeqCst, SeqCst).is_ok() {
            // Not the last heartbeat: a signal may be sent after a sleep's end and before the beat
            // that follows it. But between the last two beats the process returned from a sleep to
            // user mode, where the kernel runs the handlers of all that is pending: nothing was.
            page.before_term.store(page.beat_before.load(Relaxed), Relaxed);
        }
    }
}

fn nap(ns: libc::c_long) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: the handler cuts it short, which is wanted; the rest need not be known.
    unsafe { libc::nanosleep(&time, ptr::null_mut()) };
}
