//! Whether a cgroup may be watched, without a lookup: `coroner_ebpf::filter` says how, and why none
//! is missed.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use core::cell::UnsafeCell;
use coroner_ebpf::filter::{SLOTS, slot};

/// Of a counter that no longer counts.
const FULL: u8 = u8::MAX;

/// Of each slot the counter and the mark.
static SLOT_WORDS: Words = Words(UnsafeCell::new([0; SLOTS]));

/// The chatter that some container has for its stop signal.
static mut UNMUTED: u64 = 0;

struct Words(UnsafeCell<[u16; SLOTS]>);

// SAFETY: words that are read whole, and written by the byte; each byte has one writer at a time.
unsafe impl Sync for Words {}

/// A cgroup's slot. In bounds; the verifier knows it by the shift that makes one.
#[inline(always)]
fn word(cgroup: u64) -> *mut u16 {
    SLOT_WORDS.0.get().cast::<u16>().wrapping_add(slot(cgroup))
}

/// False: this cgroup is not in the map.
#[inline(always)]
pub(super) fn may_hold(cgroup: u64) -> bool {
    // SAFETY: in bounds. Volatile: other CPUs write it.
    unsafe { core::ptr::read_volatile(word(cgroup)) != 0 }
}

/// The chatter that some container has for its stop signal.
#[inline(always)]
pub(super) fn unmuted() -> u64 {
    // SAFETY: a static of this very object. Volatile: `tell` writes it.
    unsafe { core::ptr::read_volatile(&raw const UNMUTED) }
}

/// Run by the agent alone, one call after the other: see `coroner_ebpf::maps::TELL`.
#[raw_tracepoint]
pub fn tell(ctx: RawTracePointContext) -> i32 {
    let (cgroup, chatter): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    // SAFETY: in bounds; the second byte is the mark.
    unsafe {
        if cgroup != 0 {
            core::ptr::write_volatile(word(cgroup).cast::<u8>().wrapping_add(1), 1);
        }
        core::ptr::write_volatile(&raw mut UNMUTED, unmuted() | chatter);
    }
    0
}

/// Sets a slot's counter by what it is now.
#[inline(always)]
fn change(cgroup: u64, by: impl Fn(u8) -> u8) {
    let counter = word(cgroup).cast::<u8>();
    // SAFETY: in bounds; the first byte is the counter, and there is no other writer.
    unsafe {
        let count = core::ptr::read_volatile(counter);
        if count != FULL {
            core::ptr::write_volatile(counter, by(count));
        }
    }
}

/// The caller is about to put this cgroup into the map, and holds `cgroup_mutex`.
#[inline(always)]
pub(super) fn raise(cgroup: u64) {
    change(cgroup, |count| count + 1);
}

/// The caller has taken this cgroup, for which it was raised, out of the map, and holds
/// `cgroup_mutex`.
#[inline(always)]
pub(super) fn lower(cgroup: u64) {
    change(cgroup, |count| count.saturating_sub(1));
}
