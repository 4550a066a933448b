//! Whether a cgroup may be watched, without a lookup: `coroner_ebpf::filter` says how, and why none
//! is missed.

use core::cell::UnsafeCell;
use coroner_ebpf::{
    FilterWords,
    filter::{SLOTS, WORDS, mark, slot},
};

/// Of a counter that no longer counts.
const FULL: u8 = u8::MAX;

/// How many cgroups of each slot the kernel side has put into the map.
static MADE: Counters = Counters(UnsafeCell::new([0; SLOTS]));

/// Written by user space. Not in a constant section: the compiler must not fold the zeroes.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".data.told")]
static mut TOLD: FilterWords = FilterWords { unmuted: 0, marks: [0; WORDS] };

struct Counters(UnsafeCell<[u8; SLOTS]>);

// SAFETY: single bytes, read and written whole; there is one writer at a time.
unsafe impl Sync for Counters {}

impl Counters {
    /// In bounds, as every slot is; the verifier knows it by the shift that makes one.
    #[inline(always)]
    fn at(&self, slot: usize) -> *mut u8 {
        self.0.get().cast::<u8>().wrapping_add(slot)
    }

    #[inline(always)]
    fn get(&self, slot: usize) -> u8 {
        // SAFETY: in bounds. Volatile: other CPUs write it.
        unsafe { core::ptr::read_volatile(self.at(slot)) }
    }

    #[inline(always)]
    fn set(&self, slot: usize, count: u8) {
        // SAFETY: in bounds, and there is no other writer.
        unsafe { core::ptr::write_volatile(self.at(slot), count) }
    }
}

/// False: this cgroup is not in the map.
#[inline(always)]
pub(super) fn may_hold(cgroup: u64) -> bool {
    let slot = slot(cgroup);
    let (word, bit) = mark(slot);
    MADE.get(slot) != 0 || marks(word) & bit != 0
}

#[inline(always)]
fn marks(word: usize) -> u64 {
    // SAFETY: in bounds, as every slot's word is. Volatile: user space writes it.
    unsafe { core::ptr::read_volatile((&raw const TOLD.marks).cast::<u64>().wrapping_add(word)) }
}

/// The chatter that some container has for its stop signal.
#[inline(always)]
pub(super) fn unmuted() -> u64 {
    // SAFETY: a static of this very object. Volatile: user space writes it.
    unsafe { core::ptr::read_volatile(&raw const TOLD.unmuted) }
}

/// The caller is about to put this cgroup into the map, and holds `cgroup_mutex`.
#[inline(always)]
pub(super) fn raise(cgroup: u64) {
    let slot = slot(cgroup);
    let count = MADE.get(slot);
    if count != FULL {
        MADE.set(slot, count + 1);
    }
}

/// The caller has taken this cgroup, for which it was raised, out of the map, and holds
/// `cgroup_mutex`.
#[inline(always)]
pub(super) fn lower(cgroup: u64) {
    let slot = slot(cgroup);
    let count = MADE.get(slot);
    if count != FULL && count != 0 {
        MADE.set(slot, count - 1);
    }
}
