//! What a process costs, by the kernel's books.

use super::figures::{Usage, Weight};
use anyhow::{Context as _, bail};
use std::{fs, mem::MaybeUninit, path::PathBuf, time::Duration};

/// A process whose costs are watched from outside.
#[derive(Clone, Debug)]
pub(super) struct MeasuredProcess {
    pid: u32,
}

impl MeasuredProcess {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid }
    }

    /// What it has used so far.
    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        Ok(Usage { cpu: self.cpu()?, switches: self.switches()? })
    }

    /// CPU time of all its threads, those that have ended too: `clock_getcpuclockid(3)`, whose
    /// clock counts ns where /proc/PID/stat counts ticks of 10 ms.
    fn cpu(&self) -> anyhow::Result<Duration> {
        let pid = libc::pid_t::try_from(self.pid)?;
        let mut clock: libc::clockid_t = 0;
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: both write to what they are given, and the second only if the first succeeded.
        let time = unsafe {
            if libc::clock_getcpuclockid(pid, &mut clock) != 0
                || libc::clock_gettime(clock, time.as_mut_ptr()) != 0
            {
                bail!("process {pid} has no CPU clock: it has ended");
            }
            time.assume_init()
        };
        Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
    }

    /// How often its threads went to sleep, those that live.
    fn switches(&self) -> anyhow::Result<u64> {
        let tasks = self.proc("task");
        let mut all = 0;
        for task in fs::read_dir(&tasks).with_context(|| tasks.display().to_string())? {
            // One that ends meanwhile counts no more.
            let Ok(text) = fs::read_to_string(task?.path().join("status")) else { continue };
            all += number(&text, "voluntary_ctxt_switches:").unwrap_or(0);
        }
        Ok(all)
    }

    /// What it holds.
    pub(super) fn weight(&self) -> anyhow::Result<Weight> {
        let file = self.proc("status");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        weight(&text).with_context(|| format!("{} tells no memory", file.display()))
    }

    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.pid).into()
    }
}

/// Out of /proc/PID/status.
fn weight(status: &str) -> Option<Weight> {
    let bytes = |key| number(status, key).map(|kib| kib << 10);
    Some(Weight {
        resident: bytes("VmRSS:")?,
        anonymous: bytes("RssAnon:")?,
        peak: bytes("VmHWM:")?,
    })
}

/// The number behind a key at the beginning of a line.
fn number(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_switches_stand_in_status() {
        let status = "Name:\tx\nVmHWM:\t  30 kB\nVmRSS:\t  20 kB\nRssAnon:\t  8 kB\n\
                      voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\n";
        let expected = Weight { resident: 20 << 10, anonymous: 8 << 10, peak: 30 << 10 };
        assert_eq!(weight(status), Some(expected));
        assert_eq!(weight("Name:\tkthreadd\n"), None);
        assert_eq!(number(status, "voluntary_ctxt_switches:"), Some(7));
    }

    #[test]
    fn this_process_has_costs_and_one_that_is_not_there_has_none() {
        let own = MeasuredProcess::new(std::process::id());
        let (before, weight) = (own.usage().expect("a clock"), own.weight().expect("memory"));
        assert!(weight.peak >= weight.resident && weight.resident >= weight.anonymous);
        let mut n = 0u64;
        while own.usage().expect("a clock").cpu == before.cpu {
            n = std::hint::black_box(n + 1);
        }
        assert!(MeasuredProcess::new(u32::MAX).usage().is_err());
        assert!(MeasuredProcess::new(4_194_305).usage().is_err(), "more than there can be");
    }
}
