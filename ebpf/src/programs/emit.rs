//! Records into the rings, losses into the counters.

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::bpf_ktime_get_boot_ns,
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use coroner_ebpf::{
    maps::{LOST_COUNT, LOST_DECIDING, LOST_DETAIL, RING_BYTES},
    record::Header,
};

#[map]
static DECIDING: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

#[map]
static DETAIL: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

#[map]
pub(super) static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOST_COUNT, 0);

/// Which ring a record goes into, and whether the reader is to look at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// It ends something: deciding ring, reader woken. By force: the kernel's own rule wakes only
    /// a reader that has caught up, and records before this one may lie unread on purpose.
    DecidingNow,
    /// Deciding ring; the reader comes by.
    Deciding,
    /// Detail ring; the reader comes by.
    Detail,
}

#[inline(always)]
pub(super) fn now() -> u64 {
    // SAFETY: no arguments, cannot fail.
    unsafe { bpf_ktime_get_boot_ns() }
}

#[inline(always)]
pub(super) fn header(kind: u32, time: u64, cgroup: u64) -> Header {
    Header { kind, reserved: 0, time, cgroup }
}

/// Reserves room, lets `fill` make the record, submits it. Counts it as lost if there is no room.
#[inline(always)]
pub(super) fn emit<T: 'static>(to: To, fill: impl FnOnce() -> T) {
    let (ring, lost) = match to {
        To::DecidingNow | To::Deciding => (&DECIDING, LOST_DECIDING),
        To::Detail => (&DETAIL, LOST_DETAIL),
    };
    match ring.reserve::<T>(0) {
        Some(mut record) => {
            record.write(fill());
            let wake = if to == To::DecidingNow { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
            record.submit(u64::from(wake));
        }
        None => count(&LOST, lost),
    }
}

#[inline(always)]
pub(super) fn count(counters: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = counters.get_ptr_mut(index) {
        // SAFETY: this CPU's own value; a program that interrupts this one may lose a count.
        unsafe { *counter = (*counter).wrapping_add(1) };
    }
}
