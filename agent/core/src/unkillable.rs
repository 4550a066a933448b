//! Decides when to look into /proc for containers that do not end after they were stopped or killed.

use super::{
    exit_blockers::{AFTER, survivor},
    output::{InspectProcesses, Outputs, Request},
    process::ContainerProcesses,
    table::Table,
};
use crate::input::{ProcProcess, TaskState};
use crate::report::{BootTime, CgroupId, secs};
use std::{collections::BTreeMap, time::Duration};

/// A container that only leaves a stop signal unanswered is looked at for this long.
const UNANSWERED: Duration = Duration::from_secs(3600);

/// Containers that were sent a signal, or whose main process exited, and that have not ended.
#[derive(Debug, Default)]
pub struct UnkillableWatch {
    late: BTreeMap<CgroupId, WatchedExit>,
}

#[derive(Debug, Default)]
struct WatchedExit {
    asked: Option<BootTime>,
    /// The blocking process, as last reported, and when it was killed.
    reported: Option<(ProcProcess, BootTime)>,
}

impl UnkillableWatch {
    /// Watches a container: one of its processes was sent a signal, or its main process exited.
    pub fn note(&mut self, container: CgroupId) {
        self.late.entry(container).or_default();
    }

    /// Requests the looks that are due now, and drops containers that have ended or were not stopped. Returns those
    /// that survived SIGKILL and have ended now, with the message.
    pub fn due(
        &mut self,
        now: BootTime,
        processes: &Table<CgroupId, ContainerProcesses>,
        out: &mut Outputs,
    ) -> Vec<(CgroupId, String)> {
        let mut over = Vec::new();
        self.late.retain(|cgroup, late| {
            let known = processes.get(cgroup).filter(|p| !p.is_over());
            let since = known.and_then(|p| p.killed_since().or(p.unanswered_since()));
            let (Some(known), Some(since)) = (known, since) else {
                let ended = processes.get(cgroup).and_then(ContainerProcesses::ended);
                over.extend(late.ended(*cgroup, ended));
                return false;
            };
            let given_up = known.killed_since().is_none() && now >= since + UNANSWERED;
            if given_up || known.inspections.is_gone(since) {
                over.extend(late.ended(*cgroup, None));
                return false;
            }
            let age = now.since(since);
            if age >= AFTER && late.asked.is_none_or(|asked| now >= asked + interval(age)) {
                late.asked = Some(now);
                let main = known.main();
                let started = main.and_then(|main| known.started(main));
                let look = InspectProcesses { cgroup: *cgroup, main, started };
                out.requests.push(Request::InspectProcesses(look));
            }
            true
        });
        over
    }

    /// Applies a look into /proc. Returns a message if a process survives SIGKILL and differs from the last
    /// report.
    pub fn inspected(
        &mut self,
        cgroup: CgroupId,
        processes: &ContainerProcesses,
    ) -> Option<String> {
        let late = self.late.get_mut(&cgroup)?;
        let survivor = survivor(processes)?;
        let held = |p: &ProcProcess, killed| (p.comm.clone(), p.state, p.wchan.clone(), killed);
        let before = late.reported.as_ref().map(|(process, killed)| held(process, *killed));
        if before == Some(held(survivor.process, survivor.killed)) {
            return None;
        }
        late.reported = Some((survivor.process.clone(), survivor.killed));
        Some(survivor.still_alive())
    }

    /// Number of containers that survive SIGKILL, by the state of the process that is left.
    pub fn unkillable(&self) -> BTreeMap<TaskState, usize> {
        let mut count = BTreeMap::new();
        for (process, _) in self.late.values().filter_map(|late| late.reported.as_ref()) {
            *count.entry(process.state).or_default() += 1;
        }
        count
    }
}

impl WatchedExit {
    fn ended(&self, cgroup: CgroupId, at: Option<BootTime>) -> Option<(CgroupId, String)> {
        let (held, killed) = self.reported.as_ref()?;
        let function = held.wchan.as_deref().map(|f| format!(" in {f}")).unwrap_or_default();
        let hung = format!("{} had been in state {}{function}", held.comm, held.state.letter());
        let message = match at {
            Some(at) => format!("It ended {} after SIGKILL: {hung}.", secs(at.since(*killed))),
            None => format!("It has ended at an unknown time: {hung}."),
        };
        Some((cgroup, message))
    }
}

/// Looks once a second at first, when the container is about to end; then less often, because a process that
/// hangs for minutes hangs for hours.
fn interval(age: Duration) -> Duration {
    match age.as_secs() {
        0..10 => Duration::from_secs(1),
        10..120 => Duration::from_secs(10),
        _ => Duration::from_secs(60),
    }
}
