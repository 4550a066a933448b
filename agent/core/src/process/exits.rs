//! A bounded table of the exits of one container's processes. The main process and processes from outside
//! matter; the container's own children do not, and there may be any number of them.

use crate::input::{ExitStatus, Task};
use crate::report::{BootTime, Tgid};
use std::collections::BTreeMap;

/// Bound: several times the processes from outside ([`MAX_EXEC_PROCESSES`](super::MAX_EXEC_PROCESSES)),
/// because a process may turn out to be one after its exit.
const MAX_ENDS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ExitRecord {
    at: BootTime,
    status: ExitStatus,
    /// The leading thread reported it.
    by_leader: bool,
    /// Start time of the process, clock ticks: its PID may be reused.
    started: Option<u64>,
    /// The parent was outside the container, or unknown: the main process, a hook or a probe.
    from_outside: bool,
}

/// Exits by process; the first record of each counts.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct ExitTable(BTreeMap<Tgid, ExitRecord>);

impl ExitTable {
    /// Records an exit. A full table evicts the oldest exit of a child of the container, then the oldest of a
    /// process from outside, and none that `is_kept`.
    pub(super) fn record(
        &mut self,
        at: BootTime,
        task: &Task,
        status: ExitStatus,
        from_outside: bool,
        is_kept: impl Fn(Tgid) -> bool,
    ) {
        let by_leader = task.tid == task.tgid.0;
        let record = ExitRecord { at, status, by_leader, started: task.started, from_outside };
        let end = self.0.entry(task.tgid).or_insert(record);
        // Without `group_dead` in the tracepoint, two threads that exit together may each look like the last
        // one. On older kernels the status is the leader's alone, and the leader may not have one yet
        // (`do_exit`, kernel/exit.c, counts `live` down first).
        if by_leader && !end.by_leader && end.started == task.started {
            (end.status, end.by_leader) = (status, true);
        }
        if self.0.len() > MAX_ENDS {
            let mut oldest: Option<((bool, BootTime), Tgid)> = None;
            for (tgid, end) in &self.0 {
                let rank = (end.from_outside, end.at);
                if oldest.is_none_or(|(least, _)| rank < least) && !is_kept(*tgid) {
                    oldest = Some((rank, *tgid));
                }
            }
            if let Some((_, tgid)) = oldest {
                self.0.remove(&tgid);
            }
        }
    }

    pub(super) fn get(&self, process: Tgid) -> Option<(BootTime, ExitStatus)> {
        self.0.get(&process).map(|end| (end.at, end.status))
    }

    pub(super) fn evict(&mut self, process: Tgid) {
        self.0.remove(&process);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: ExitStatus = ExitStatus::Code(0);

    fn task(pid: u32) -> Task {
        let comm = "sh".to_owned();
        Task { tgid: Tgid(pid), tid: pid, ns_pid: None, started: None, comm }
    }

    fn end(ends: &mut ExitTable, pid: u32, from_outside: bool, kept: &[u32]) {
        let at = BootTime(u64::from(pid));
        ends.record(at, &task(pid), CODE, from_outside, |tgid| kept.contains(&tgid.0));
    }

    #[test]
    fn the_oldest_child_goes_first_and_what_is_kept_never() {
        let mut ends = ExitTable::default();
        // Child, probe, and a main process that was taken for a child.
        for (pid, from_outside) in [(1, false), (2, true), (3, false)] {
            end(&mut ends, pid, from_outside, &[3]);
        }
        let ended = |ends: &ExitTable| [1, 2, 3].map(|pid| ends.get(Tgid(pid)).is_some());
        for pid in 4..=256 {
            end(&mut ends, pid, false, &[3]);
        }
        assert_eq!(ended(&ends), [true, true, true]);
        end(&mut ends, 257, false, &[3]);
        assert_eq!(ended(&ends), [false, true, true]);
        for pid in 258..10_000 {
            end(&mut ends, pid, false, &[3]);
        }
        assert_eq!(ended(&ends), [false, true, true]);
        assert_eq!(ends.0.len(), MAX_ENDS);
        // Only from outside by now, but for the one that is kept: the oldest of these.
        for pid in 10_000..20_000 {
            end(&mut ends, pid, true, &[3]);
        }
        assert_eq!(ended(&ends), [false, false, true]);
        assert_eq!(ends.0.len(), MAX_ENDS);
        assert!(ends.get(Tgid(19_999)).is_some(), "the latest");
    }
}
