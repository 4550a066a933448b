//! A bounded list of the ends of one container's processes: the main one's and those of processes from
//! outside are asked for, its own children's are not, and there may be any number of them.

use crate::{
    ids::Tgid,
    input::{ExitStatus, Task},
    time::BootTime,
};
use std::collections::BTreeMap;

/// Bound: room for the main process and all from outside that are remembered
/// ([`MAX_INJECTED`](super::MAX_INJECTED)) several times over, for who they are may be learned after
/// they have ended.
const MAX_ENDS: usize = 256;

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    at: BootTime,
    status: ExitStatus,
    /// Its leading thread was the one that told.
    by_leader: bool,
    /// When the process began, clock ticks: its number may be used again.
    started: Option<u64>,
    /// Its parent was not of the container, or is not known: the main process, a hook, a probe.
    from_outside: bool,
}

/// Ends of processes: the first report of each counts.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Ends(BTreeMap<Tgid, End>);

impl Ends {
    /// Takes one. Where there is no room, the oldest end of a child of the container's own goes, then
    /// the oldest of one from outside: never that of a process that is to be kept.
    pub(super) fn learn(
        &mut self,
        at: BootTime,
        task: &Task,
        status: ExitStatus,
        from_outside: bool,
        is_kept: impl Fn(Tgid) -> bool,
    ) {
        let by_leader = task.tid == task.tgid.0;
        let told = End { at, status, by_leader, started: task.started, from_outside };
        let end = self.0.entry(task.tgid).or_insert(told);
        // Where the tracepoint has no `group_dead`, threads that leave at once may each find themselves
        // the last. On older kernels the status is the leader's alone, and it may not have one yet
        // (`do_exit`, kernel/exit.c: `live` is counted down first).
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

    /// When and how a process ended.
    pub(super) fn of(&self, process: Tgid) -> Option<(BootTime, ExitStatus)> {
        self.0.get(&process).map(|end| (end.at, end.status))
    }

    pub(super) fn forget(&mut self, process: Tgid) {
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

    fn end(ends: &mut Ends, pid: u32, from_outside: bool, kept: &[u32]) {
        let at = BootTime(u64::from(pid));
        ends.learn(at, &task(pid), CODE, from_outside, |tgid| kept.contains(&tgid.0));
    }

    #[test]
    fn the_oldest_child_goes_first_and_what_is_kept_never() {
        let mut ends = Ends::default();
        // Child, probe, and a main process that was taken for a child.
        for (pid, from_outside) in [(1, false), (2, true), (3, false)] {
            end(&mut ends, pid, from_outside, &[3]);
        }
        let ended = |ends: &Ends| [1, 2, 3].map(|pid| ends.of(Tgid(pid)).is_some());
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
        assert!(ends.of(Tgid(19_999)).is_some(), "the latest");
    }
}
