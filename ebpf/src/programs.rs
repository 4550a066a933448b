//! The programs: raw tracepoints that filter, copy and count. What a record means is decided in the
//! agent's core.
//!
//! The order in each is by cost: what the arguments and `LAYOUT` rule out first, then one lookup
//! of the cgroup (behind a filter that spares it to most), and only for what will be reported the reads that fill a record. Nothing is
//! reserved in a ring for what will be dropped.

mod backup;
mod cgroup;
mod emit;
mod filter;
mod namespace;
mod oom;
mod process;
mod read;
mod signal;
mod traffic;
mod watch;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier refuses a program that could loop for ever.
    loop {}
}

/// Most of the helpers are for programs under a GPL-compatible licence only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// A diagnostic through aya-log, in builds with `debug-log` only.
macro_rules! debug_log {
    ($($arg:tt)*) => {{
        #[cfg(feature = "debug-log")]
        aya_log_ebpf::debug!($($arg)*);
    }};
}
use debug_log;
