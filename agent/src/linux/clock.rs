//! The clocks: the only place outside adapters' timers where one is read.

use coroner_core::time::{Anchor, BootTime};
use rustix::time::{ClockId, clock_gettime};

pub fn boot_now() -> BootTime {
    let now = clock_gettime(ClockId::Boottime);
    BootTime(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// CLOCK_BOOTTIME and CLOCK_REALTIME read together: the wall clock between two readings of the
/// boot clock, so that the pair is as close as the machine allows.
pub fn anchor() -> Anchor {
    let before = boot_now().0;
    let wall = clock_gettime(ClockId::Realtime);
    let after = boot_now().0;
    Anchor {
        boot_ns: before + (after - before) / 2,
        wall_ns: wall.tv_sec * 1_000_000_000 + wall.tv_nsec,
    }
}
