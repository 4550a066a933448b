//! Events for which the kernel skips a program. While a program runs on a CPU, the kernel does not run it
//! there a second time (`__bpf_trace_run`, `kernel/trace/bpf_trace.c`), but another event may happen
//! there: in another process, since Linux 7.0 lets tracepoints be preempted
//! (`include/linux/tracepoint.h`), or in an interrupt. A hook for which this is possible has a second
//! program, which runs after the first one and does the same for an event that the first has not seen.
//! Where it has none, the first notes nothing in a map whose lines all CPUs share.

use super::{emit::count, read::layout};
use aya_ebpf::{
    helpers::generated::bpf_get_current_pid_tgid,
    macros::map,
    maps::{Array, PerCpuArray},
};
use coroner_ebpf::backup::{Hook, SLOTS};

/// The events that a first program has seen and the second has not. Shared by all CPUs: between the two
/// programs a process may be moved to another one.
#[map]
static BACKUP_SEEN: Array<u64> = Array::with_max_entries(SLOTS, 0);

#[map]
static BACKUP_RUNS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Hook::COUNT, 0);

/// The event of a thread.
#[inline(always)]
pub(super) fn thread() -> u64 {
    // SAFETY: no arguments, cannot fail.
    unsafe { bpf_get_current_pid_tgid() }
}

/// The first program sees this event of the thread, outside interrupts.
#[inline(always)]
pub(super) fn seen_in_thread(hook: Hook) {
    if layout!(is_preemptible) != 0 {
        seen(hook, thread());
    }
}

/// The first program sees this event.
#[inline(always)]
pub(super) fn seen(hook: Hook, event: u64) {
    if let Some(seen) = BACKUP_SEEN.get_ptr_mut(hook.slot(event)) {
        // SAFETY: an aligned word of the map, which any CPU may write at any time.
        unsafe { core::ptr::write_volatile(seen, event) };
    }
}

/// For the second program: the first one has not seen this event.
#[inline(always)]
pub(super) fn was_skipped(hook: Hook, event: u64) -> bool {
    let Some(seen) = BACKUP_SEEN.get_ptr_mut(hook.slot(event)) else { return false };
    // SAFETY: as above.
    let noted = unsafe { core::ptr::read_volatile(seen) };
    if noted == event {
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(seen, 0) };
        return false;
    }
    // Another event may have taken the place of one that the first program has seen.
    if noted == 0 {
        count(&BACKUP_RUNS, hook as u32);
    }
    true
}
