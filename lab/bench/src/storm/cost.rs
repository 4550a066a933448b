//! What a tool has cost so far: its kernel programs' run time and its processes' CPU.

use anyhow::Context as _;
use aya::programs::loaded_programs;
use std::{collections::BTreeSet, fs, io, time::Duration};

/// Time used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CpuCost {
    /// In its programs, on whatever CPU and in whatever process they ran.
    pub(super) kernel: Duration,
    /// By its processes, in user space and in system calls.
    pub(super) user: Duration,
}

impl CpuCost {
    /// Both together.
    pub(super) fn total(self) -> Duration {
        self.kernel + self.user
    }

    /// What came since then.
    pub(super) fn since(self, then: Self) -> Self {
        Self {
            kernel: self.kernel.saturating_sub(then.kernel),
            user: self.user.saturating_sub(then.user),
        }
    }
}

/// The processes and the kernel programs of one tool.
#[derive(Debug, Default)]
pub(super) struct Parts {
    processes: Vec<u32>,
    programs: BTreeSet<u32>,
}

impl Parts {
    /// Of these processes: their programs are those that they hold open, of whatever type.
    pub(super) fn of(processes: &[u32]) -> Self {
        let programs = processes.iter().flat_map(|pid| programs(*pid)).collect();
        Self { processes: processes.to_vec(), programs }
    }

    /// How many programs there are, and how many of them have ever run.
    pub(super) fn running(&self) -> anyhow::Result<(usize, usize)> {
        let runs = self.infos()?;
        Ok((self.programs.len(), runs.iter().filter(|(_, runs)| *runs > 0).count()))
    }

    /// Up to now.
    pub(super) fn cost(&self) -> anyhow::Result<CpuCost> {
        let kernel = self.infos()?.into_iter().map(|(time, _)| time).sum();
        let user = self.processes.iter().map(|pid| cpu_time(*pid)).sum::<anyhow::Result<_>>()?;
        Ok(CpuCost { kernel, user })
    }

    /// Of each program: for how long, and how often it ran.
    fn infos(&self) -> anyhow::Result<Vec<(Duration, u64)>> {
        if self.programs.is_empty() {
            return Ok(Vec::new());
        }
        let infos = loaded_programs().filter_map(|info| match info {
            Ok(info) => {
                self.programs.contains(&info.id()).then(|| Ok((info.run_time(), info.run_count())))
            }
            // Somebody else's that went while they were listed: ours would be missed below.
            Err(_) => None,
        });
        let infos = infos.collect::<anyhow::Result<Vec<_>>>()?;
        anyhow::ensure!(infos.len() == self.programs.len(), "the tool's programs have gone");
        Ok(infos)
    }
}

/// The programs that a process has open, by /proc/PID/fdinfo.
fn programs(pid: u32) -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return BTreeSet::new() };
    let texts = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.filter_map(|text| program(&text)).collect()
}

/// The program of a program's or a link's descriptor.
fn program(fdinfo: &str) -> Option<u32> {
    let field = fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"))?;
    field.trim().parse().ok()
}

/// All that a process' threads have used, to the nanosecond.
fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let gone = || format!("process {pid} has gone");
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both pointers are to our own variables.
    unsafe {
        if libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) != 0 {
            anyhow::bail!(gone());
        }
        if libc::clock_gettime(clock, &raw mut time) != 0 {
            return Err(io::Error::last_os_error()).with_context(gone);
        }
    }
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_own_and_by_their_links_descriptors() {
        assert_eq!(program("pos:\t0\nprog_type:\t5\nprog_jited:\t1\nprog_id:\t17\n"), Some(17));
        assert_eq!(program("link_type:\traw_tracepoint\nprog_id:\t8\ntp_name:\tx\n"), Some(8));
        assert_eq!(program("pos:\t0\nmap_type:\t27\n"), None);
    }

    #[test]
    fn a_process_cpu_time_grows() {
        let own = std::process::id();
        let before = cpu_time(own).unwrap();
        while cpu_time(own).unwrap() == before {
            std::hint::spin_loop();
        }
        assert!(cpu_time(1 << 23).is_err(), "no pid is so large");
    }

    #[test]
    fn costs_are_differences() {
        let ms = Duration::from_millis;
        let cost = |kernel, user| CpuCost { kernel: ms(kernel), user: ms(user) };
        assert_eq!(cost(5, 7).since(cost(1, 2)), cost(4, 5));
        assert_eq!(cost(4, 5).total(), ms(9));
    }
}
