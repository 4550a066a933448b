//! Which containers are to be looked at in /proc, and when again: those that do not end as they
//! were told to.

use super::{
    ids::CgroupId,
    input::TaskState,
    lingering::{AFTER, survivor},
    output::InspectProcesses,
    process::Processes,
    table::Table,
    time::BootTime,
    verdict::secs,
};
use std::{collections::BTreeMap, time::Duration};

/// A container that only leaves a stop signal unanswered is no longer looked at after this.
const UNANSWERED: Duration = Duration::from_secs(3600);

/// The containers that have been told to end and have not.
#[derive(Debug, Default)]
pub struct Holdouts {
    late: BTreeMap<CgroupId, Late>,
}

#[derive(Debug, Default)]
struct Late {
    asked: Option<BootTime>,
    /// What holds it, as last said.
    said: Option<Held>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    comm: String,
    state: TaskState,
    function: Option<String>,
    killed: BootTime,
}

/// What follows from the passing of time.
#[derive(Debug, Default)]
pub struct Due {
    /// To be looked at now.
    pub wanted: Vec<InspectProcesses>,
    /// Those that SIGKILL did not end, and that have ended now: one sentence of each.
    pub over: Vec<(CgroupId, String)>,
}

impl Holdouts {
    /// A process of this container was sent a signal, or its main process ended. It is late in a
    /// moment, unless it ends.
    pub fn note(&mut self, container: CgroupId) {
        self.late.entry(container).or_default();
    }

    /// Who is to be looked at now. Lets go of those that ended, or were never told to.
    pub fn due(&mut self, now: BootTime, of: &Table<CgroupId, Processes>) -> Due {
        let mut due = Due::default();
        self.late.retain(|cgroup, late| {
            let processes = of.get(cgroup).filter(|p| !p.is_over());
            let told = processes.and_then(|p| p.killed_since().or(p.unanswered_since()));
            let (Some(processes), Some(since)) = (processes, told) else {
                due.over.extend(late.ended(*cgroup, of.get(cgroup).and_then(Processes::ended)));
                return false;
            };
            let given_up = processes.killed_since().is_none() && now >= since + UNANSWERED;
            if given_up || processes.lingering.is_gone(since) {
                due.over.extend(late.ended(*cgroup, None));
                return false;
            }
            let age = now.since(since);
            if age >= AFTER && late.asked.is_none_or(|asked| now >= asked + interval(age)) {
                late.asked = Some(now);
                let main = processes.main();
                let started = main.and_then(|main| processes.started(main));
                due.wanted.push(InspectProcesses { cgroup: *cgroup, main, started });
            }
            true
        });
        due
    }

    /// Somebody looked at this container: one sentence if SIGKILL does not end it and what holds
    /// it is new.
    pub fn looked(&mut self, cgroup: CgroupId, processes: &Processes) -> Option<String> {
        let late = self.late.get_mut(&cgroup)?;
        let survivor = survivor(processes)?;
        let process = survivor.process;
        let held = Held {
            comm: process.comm.clone(),
            state: process.state,
            function: process.wchan.clone(),
            killed: survivor.killed,
        };
        if late.said.as_ref() == Some(&held) {
            return None;
        }
        late.said = Some(held);
        Some(survivor.still_alive())
    }

    /// How many containers SIGKILL does not end now, by the state of what is left of them.
    pub fn unkillable(&self) -> BTreeMap<TaskState, usize> {
        let mut count = BTreeMap::new();
        for held in self.late.values().filter_map(|late| late.said.as_ref()) {
            *count.entry(held.state).or_default() += 1;
        }
        count
    }
}

impl Late {
    fn ended(&self, cgroup: CgroupId, at: Option<BootTime>) -> Option<(CgroupId, String)> {
        let held = self.said.as_ref()?;
        let function = held.function.as_deref().map(|f| format!(" in {f}")).unwrap_or_default();
        let hung = format!("{} had been in state {}{function}", held.comm, held.state.letter());
        let sentence = match at {
            Some(at) => format!("It ended {} after SIGKILL: {hung}.", secs(at.since(held.killed))),
            None => format!("It has ended, when is not known: {hung}."),
        };
        Some((cgroup, sentence))
    }
}

/// Each second at first, when it is about to end or its state is about to show; then ever more
/// rarely: what hangs for minutes hangs for hours.
fn interval(age: Duration) -> Duration {
    match age.as_secs() {
        0..10 => Duration::from_secs(1),
        10..120 => Duration::from_secs(10),
        _ => Duration::from_secs(60),
    }
}
