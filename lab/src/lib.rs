//! The lab: a one-node cluster on this machine (real containerd and runc, a small apiserver, a driver that follows a
//! kubelet's order), in which real containers terminate while the real agent observes; the scenarios; and the comparison
//! of what the agent reports with what a scenario expects.
#![allow(missing_docs)] // a name that states it need not state it twice

pub mod agent;
pub mod apiserver;
pub mod bench;
pub mod clients;
pub mod compare;
pub mod console;
pub mod containerd;
pub mod driver;
pub mod failures;
mod freezer;
pub mod image;
pub mod lab;
pub mod leftovers;
pub mod monitor;
pub mod play;
pub mod port;
pub mod run;
pub mod scenarios;
pub mod soak;
pub mod wait;

/// CLOCK_BOOTTIME now, ns: the clock of the kernel's own records.
pub fn boot_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
