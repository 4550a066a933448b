//! Records into the rings, losses into the counters.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::generated::bpf_ktime_get_boot_ns,
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use core::arch::asm;
use coroner_ebpf::{
    maps::{
        LOST_COUNT, LOST_DECIDING, LOST_DETAIL, READ_PAUSE, RING_BYTES, SIGNAL_WAKE_PAUSE,
        WAKE_PAUSE,
    },
    record::Header,
};

#[map]
static DECIDING: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

#[map]
static DETAIL: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

#[map]
pub(super) static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOST_COUNT, 0);

/// When the reader was woken last for a record that ends something, and for one that does not, ns
/// since boot. All CPUs write them, without a lock: what a race can bring is one wake-up too many, or
/// too few for a record that another one has just woken the reader for. Two, for what the reader found
/// decides when it comes again.
static mut WOKEN: u64 = 0;
static mut WOKEN_IDLY: u64 = 0;

/// Past each quarter of a ring, so many bytes of records wake the reader, not just the one that
/// crosses it: another CPU may have reserved room between a record's reservation and its look.
const MARGIN: u64 = 1024;

/// Which ring a record goes into, and whether the reader is to look at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// It ends something: deciding ring, reader woken, unless it was within the last
    /// [`WAKE_PAUSE`]: it comes again by itself after that. By force: the kernel's own rule wakes only
    /// a reader that has caught up, and records before this one may lie unread on purpose.
    DecidingNow,
    /// It may end something, and any number of them may come: the same with a longer pause,
    /// [`SIGNAL_WAKE_PAUSE`].
    DecidingSoon,
    /// Deciding ring; read soon after [`READ_PAUSE`].
    Deciding,
    /// Detail ring; read soon after [`READ_PAUSE`].
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

/// Reserves room, lets `fill` make the record of this time, submits it. Counts it as lost if there is
/// no room. For programs that cannot be preempted: what is reserved hides the records behind it.
#[inline(always)]
pub(super) fn emit<T: 'static>(to: To, time: u64, fill: impl FnOnce() -> T) {
    let (ring, lost) = to.ring();
    match ring.reserve::<T>(0) {
        Some(mut record) => {
            record.write(fill());
            record.submit(wake(to, time));
        }
        None => count(&LOST, lost),
    }
}

/// Submits a record that is complete. Between its time and now the program may have been preempted.
#[inline(always)]
pub(super) fn copy<T>(to: To, record: &T) {
    let (ring, lost) = to.ring();
    if ring.output::<T>(record, wake(to, now())).is_err() {
        count(&LOST, lost);
    }
}

impl To {
    #[inline(always)]
    fn ring(self) -> (&'static RingBuf, u32) {
        match self {
            Self::DecidingNow | Self::DecidingSoon | Self::Deciding => (&DECIDING, LOST_DECIDING),
            Self::Detail => (&DETAIL, LOST_DETAIL),
        }
    }
}

/// Whether a record that is submitted now is to wake the reader, as a flag.
#[inline(always)]
fn wake(to: To, now: u64) -> u64 {
    let wakes = match to {
        To::DecidingNow => is_time_to_wake(&raw mut WOKEN, now, WAKE_PAUSE),
        To::DecidingSoon => is_time_to_wake(&raw mut WOKEN, now, SIGNAL_WAKE_PAUSE),
        To::Deciding | To::Detail => is_time_to_wake(&raw mut WOKEN_IDLY, now, READ_PAUSE),
    } || is_filling(to.ring().0);
    u64::from(if wakes { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP })
}

/// A wake-up is an interrupt that this CPU sends itself, a few microseconds each. `time` is a moment
/// before the wake-up.
#[inline(always)]
fn is_time_to_wake(last: *mut u64, time: u64, pause: u64) -> bool {
    // SAFETY: an aligned word of .bss, which any CPU may write at any time.
    let woken = unsafe { core::ptr::read_volatile(last) };
    let wakes = time.wrapping_sub(woken) > pause;
    if wakes {
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(last, time) };
    }
    wakes
}

/// The records that wait fill one more quarter of the ring: a reader that is woken now has time for
/// them before there is no room.
#[inline(always)]
fn is_filling(ring: &RingBuf) -> bool {
    let quarter = ring.query(u64::from(BPF_RB_RING_SIZE)) / 4;
    let waiting = ring.query(u64::from(BPF_RB_AVAIL_DATA));
    // A ring's size is a power of two.
    waiting >= quarter && waiting & quarter.wrapping_sub(1) < MARGIN
}

#[inline(always)]
pub(super) fn count(counters: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = counters.get_ptr_mut(index) {
        // SAFETY: an aligned word of the map.
        unsafe { add_one(counter) };
    }
}

/// Adds 1, whatever happens at the same time. BPF_XADD, which Linux 5.10 has, and the compiler's own
/// atomics are not for this target.
///
/// # Safety
/// The pointer is to an aligned word of a map's value.
#[inline(always)]
pub(super) unsafe fn add_one(counter: *mut u64) {
    // SAFETY: the caller's.
    unsafe {
        asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1u64);
    }
}
