//! Events that the kernel skips. While a program runs on a CPU, the kernel does not run it there a
//! second time (`__bpf_trace_run`, `kernel/trace/bpf_trace.c`), but something else may come in between:
//! another process, since Linux 7.0 lets tracepoints be preempted (`include/linux/tracepoint.h`), or
//! an interrupt. A hook for which that can be has a second program, which runs after the first and
//! does the same for an event that the first has not seen.

use super::emit::count;
use aya_ebpf::{helpers::generated::bpf_get_current_pid_tgid, macros::map, maps::PerCpuArray};
use coroner_ebpf::backup::{Hook, SLOTS};

/// The events that first programs have seen and second ones have not.
#[map]
static BACKUP_SEEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(SLOTS, 0);

/// The events that second programs were the first to see, by [`Hook`].
#[map]
static BACKUP_RUNS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Hook::COUNT, 0);

/// A thread's own event.
#[inline(always)]
pub(super) fn thread() -> u64 {
    // SAFETY: no arguments, cannot fail.
    unsafe { bpf_get_current_pid_tgid() }
}

/// The first program sees this event.
#[inline(always)]
pub(super) fn seen(hook: Hook, event: u64) {
    if let Some(seen) = BACKUP_SEEN.get_ptr_mut(hook.slot(event)) {
        // SAFETY: this CPU's own value, which no event that may come in between uses.
        unsafe { core::ptr::write_volatile(seen, event) };
    }
}

/// Asked by the second program: the first has not seen this event.
#[inline(always)]
pub(super) fn was_skipped(hook: Hook, event: u64) -> bool {
    let Some(seen) = BACKUP_SEEN.get_ptr_mut(hook.slot(event)) else { return false };
    // SAFETY: as above.
    unsafe {
        if core::ptr::read_volatile(seen) == event {
            core::ptr::write_volatile(seen, 0);
            return false;
        }
    }
    count(&BACKUP_RUNS, hook as u32);
    true
}
