//! What a process has used, by the kernel's accounts.

use anyhow::{Context as _, bail};
use std::{fs, time::Duration};

/// CPU time of all threads, those that have ended too. `clock_getcpuclockid(3)` counts ns; /proc/PID/stat counts ticks of
/// 10 ms.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both pointers are to variables of this function.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut time) != 0
    };
    if failed {
        bail!("process {pid} has exited");
    }
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

/// Bytes that it had written to disks; on a tmpfs none are.
pub(crate) fn written(pid: u32) -> anyhow::Result<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io"))
        .with_context(|| format!("process {pid} has exited"))?;
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(written.context("no write_bytes")?.parse()?)
}

/// Resident memory, bytes: all of it, and the part without a file (heap and stacks).
pub(crate) fn memory(pid: u32) -> anyhow::Result<[u64; 2]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} has exited"))?;
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    Ok([bytes("VmRSS:").context("no VmRSS")?, bytes("RssAnon:").context("no RssAnon")?])
}
