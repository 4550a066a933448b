//! Questions to the records of one container's processes.

use super::{
    Children, ContainerProcesses, ExecProcess, MAX_CHILDREN, NamespaceKill, Origin, SIGKILL,
    SIGTERM, SentSignal, TakenSignal, discarded, is_runtime,
};
use crate::{ids::Tgid, input::ExitStatus, time::BootTime};
use std::collections::BTreeSet;

impl ContainerProcesses {
    /// The main process; for a container older than the agent, the target of the first signal from outside.
    pub fn main(&self) -> Option<Tgid> {
        let outside = || self.sent.iter().filter(|s| s.origin == Origin::Outside);
        let target = || {
            let first = outside().find(|s| s.signal.signal != SIGKILL).or_else(|| outside().next());
            first.map(|s| s.signal.target.tgid)
        };
        self.init.as_ref().map(|init| init.tgid).or_else(target)
    }

    pub(super) fn is_init(&self, tgid: Tgid) -> bool {
        self.init.as_ref().is_some_and(|init| init.tgid == tgid)
    }

    /// Signals sent to the main process, in order.
    pub fn sent(&self) -> impl DoubleEndedIterator<Item = &SentSignal> {
        let main = self.main();
        self.sent.iter().filter(move |s| Some(s.signal.target.tgid) == main)
    }

    /// Signals taken by the main process, in order.
    pub fn taken(&self) -> impl Iterator<Item = TakenSignal> {
        let main = self.main();
        self.taken.iter().filter(move |taken| Some(taken.target) == main).copied()
    }

    /// The signal with which the runtime's tool stopped the container: SIGTERM if it was sent, else the last
    /// one except SIGKILL.
    pub fn sent_by_runtime(&self) -> Option<u8> {
        // A neighbour in a shared PID namespace may have any name.
        let by_runtime = |s: &&SentSignal| {
            let sender = &s.signal.sender;
            let in_container = sender.in_container == Some(true);
            s.origin == Origin::Outside && !in_container && is_runtime(&sender.comm)
        };
        let signals = || self.sent().filter(by_runtime).map(|s| s.signal.signal);
        signals().find(|s| *s == SIGTERM).or_else(|| signals().rfind(|s| *s != SIGKILL))
    }

    /// When and how the main process exited.
    pub fn exit(&self) -> Option<(BootTime, ExitStatus)> {
        self.exits.get(self.main()?)
    }

    /// The runtime's init exited before it became the container's program, and nothing else of the container
    /// ran.
    pub fn never_started(&self) -> Option<(BootTime, ExitStatus)> {
        self.never_started.filter(|_| self.init.is_none())
    }

    /// Processes from outside, with their exits.
    pub fn exec_processes(&self) -> impl Iterator<Item = ExecProcess> {
        // The main process may have become known since.
        let main = self.main();
        self.exec_processes
            .iter()
            .filter(move |i| Some(i.tgid) != main)
            .map(|i| ExecProcess { ended: self.exits.get(i.tgid), ..i.clone() })
    }

    /// How many runs of this exec probe failed in a row, up to this moment.
    pub fn failed_probes(&self, binary: &str, before: BootTime) -> usize {
        let mut ends: Vec<_> = self
            .exec_processes()
            .filter(|i| i.is_named(binary))
            .filter_map(|i| i.ended)
            .filter(|(at, _)| *at <= before)
            .collect();
        ends.sort_by_key(|(at, _)| *at);
        ends.iter().rev().take_while(|(_, status)| *status != ExitStatus::Code(0)).count()
    }

    /// The processes killed with the PID namespace, and how many of them were not sent `stop_signal` since
    /// `stopping`.
    pub fn killed_with_namespace(&self, stop_signal: u8, stopping: Option<BootTime>) -> Children {
        // A living init kills nothing this way: there the OOM killer ran in its context.
        let Some((main, (dead, _))) = self.main().zip(self.exit()) else {
            return Children::default();
        };
        let mut seen = BTreeSet::new();
        let (mut unsignalled, mut names) = (0_u32, Vec::new());
        let since = |at: &BootTime| stopping.is_none_or(|since| *at >= since);
        for NamespaceKill { at, by, tgid, comm, .. } in &self.killed_with_namespace {
            if *by != main || *at < dead || !seen.insert(*tgid) {
                continue;
            }
            let hook = self.exec_processes.iter().any(|i| i.tgid == *tgid);
            let was_sent = self.signalled.get(&(*tgid, stop_signal)).is_some_and(since);
            if !hook && !was_sent {
                unsignalled += 1;
                if names.len() < MAX_CHILDREN {
                    names.push(comm.clone());
                }
            }
        }
        let mut killed = u32::try_from(seen.len()).unwrap_or(u32::MAX);
        killed = killed.saturating_add(self.unlisted_kills);
        let are_counted = unsignalled == 0;
        if let Some(counted) = self.namespace_killed.as_ref().filter(|k| k.init == main) {
            killed = killed.saturating_add(counted.killed).saturating_add(counted.nested);
            if !counted.uncertain {
                // Signals sent before the kernel programs knew the main process were recorded, not counted.
                // Assume that all their targets are among the killed.
                let recorded = self.signalled.iter().filter(|((tgid, signal), at)| {
                    *tgid != main && *signal == stop_signal && since(at)
                });
                let recorded = u32::try_from(recorded.count()).unwrap_or(u32::MAX);
                let without = counted.without(stop_signal).saturating_sub(recorded);
                let examples = counted.examples.iter().filter(|e| !e.was_sent(stop_signal));
                let room = (without as usize).min(MAX_CHILDREN.saturating_sub(names.len()));
                names.extend(examples.take(room).map(|example| example.comm.clone()));
                unsignalled = unsignalled.saturating_add(without);
            }
        }
        Children { killed, unsignalled, names, are_counted }
    }

    /// The start time of a process, ns since boot, from the record of a signal to it.
    pub fn started(&self, tgid: Tgid) -> Option<u64> {
        self.sent.iter().find_map(|s| {
            let target = &s.signal.target;
            (target.tgid == tgid).then_some(target.started).flatten()
        })
    }

    /// When a process should have ended: its first SIGKILL, or the exit of its PID namespace's init.
    pub fn killed(&self, tgid: Tgid) -> Option<BootTime> {
        let sent = self.killed_by_signal().find(|s| s.signal.target.tgid == tgid).map(|s| s.at);
        sent.or_else(|| self.namespace_ended())
    }

    /// A PID namespace protects its init from signals from within.
    fn killed_by_signal(&self) -> impl Iterator<Item = &SentSignal> {
        self.sent.iter().filter(|s| s.signal.signal == SIGKILL && !discarded(&s.signal))
    }

    /// When the init exited, and the kernel killed the rest of its PID namespace. With records missing, the
    /// init may be another namespace's.
    pub fn namespace_ended(&self) -> Option<BootTime> {
        self.init.as_ref().filter(|init| init.is_pid_one)?;
        self.exit().map(|(at, _)| at).filter(|at| self.gaps.is_complete_since(*at))
    }

    /// When the whole container should have ended: SIGKILL to its main process; after that process, its exit
    /// as an init, or SIGKILL to another.
    pub fn killed_since(&self) -> Option<BootTime> {
        let main = self.main()?;
        let rest = || {
            let (exit, _) = self.exit()?;
            self.killed_by_signal().map(|s| s.at.max(exit)).min()
        };
        self.killed(main).or_else(rest)
    }

    /// When the main process was sent a signal from outside that was neither delivered nor discarded and did
    /// not end the process.
    pub fn unanswered_since(&self) -> Option<BootTime> {
        if self.exit().is_some() {
            return None;
        }
        let expects_answer = |s: &&SentSignal| {
            s.from_outside() && s.signal.signal != SIGKILL && !discarded(&s.signal)
        };
        self.sent()
            .filter(expects_answer)
            .find(|s| !self.taken().any(|t| t.signal == s.signal.signal && t.at >= s.at))
            .map(|s| s.at)
    }

    /// When nothing of the container ran any more. A removed cgroup counts as empty: since Linux 7 the
    /// removal may be the only record.
    pub fn ended(&self) -> Option<BootTime> {
        // The cgroup may have been empty before its main process, whose record was lost.
        let is_last = || {
            self.init.is_some()
                || self.gaps.since(BootTime(0)).all(|gap| gap.reason.is_detail_only())
        };
        match (self.empty, self.removed, self.exit()) {
            (Some(empty), _, exit) if exit.map_or_else(is_last, |(at, _)| at <= empty) => {
                Some(empty)
            }
            (_, Some(removed), _) => Some(removed),
            _ => None,
        }
    }

    /// The cgroup is empty or removed.
    pub fn is_over(&self) -> bool {
        self.ended().is_some() || (self.empty.is_some() && self.exit().is_some())
    }
}
