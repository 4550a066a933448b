//! What the kernel told of one container's processes: facts only, kept so that the order in which
//! the three sources arrive does not matter. The rules are in [`super::verdict`].

mod ends;
mod records;

use super::{
    ids::{CgroupId, Tgid},
    input::{
        Disposition, ExitStatus, KernelFact, LossKind, NamespaceKilled, Sender, SignalGenerated,
        SignalResult, Task,
    },
    lingering::Lingering,
    losses::Losses,
    time::BootTime,
};
use ends::Ends;
use records::keep;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Bounds: a container's account never grows past them, however noisy it is.
const MAX_INJECTED: usize = 64;
const MAX_CHILDREN: usize = 16;
const MAX_TRACKED: usize = 1024;

/// Probes further back have nothing to do with a stop (default: 3 failures, 10 s apart).
const PROBES: Duration = Duration::from_secs(120);

/// TASK_COMM_LEN less its end: of a longer file name the kernel keeps so much.
const COMM_LEN: usize = 15;

/// `si_code` of a signal that the kernel sends by itself (SI_KERNEL).
pub const SI_KERNEL: i32 = 0x80;
/// SIGKILL.
pub const SIGKILL: u8 = 9;
/// SIGTERM.
pub const SIGTERM: u8 = 15;

/// A signal to the container's init, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// When it was generated.
    pub at: BootTime,
    /// The whole event.
    pub signal: SignalGenerated,
    /// Where its sender came from.
    pub origin: Origin,
}

impl Sent {
    /// The sender is not a process that the container's own program started.
    pub fn from_outside(&self) -> bool {
        self.origin != Origin::Inside
    }
}

/// Where the sender of a signal came from, which is not where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The container's own program started it.
    Inside,
    /// It entered the container: a hook, a probe, `kubectl exec`, or what these started.
    Entered,
    /// It is not in the container.
    Outside,
}

/// A signal taken by the container's init, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// When it was delivered.
    pub at: BootTime,
    /// Which.
    pub signal: u8,
    /// What was installed for it.
    pub disposition: Disposition,
}

/// A process that came from outside: a lifecycle hook, an exec probe, `kubectl exec`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injected {
    /// The process.
    pub tgid: Tgid,
    /// Its name after the last exec.
    pub comm: String,
    /// Its name after the first one: `sh -c 'exec drain'` begins as sh.
    pub first: String,
    /// Its exec.
    pub began: BootTime,
    /// Its exit.
    pub ended: Option<(BootTime, ExitStatus)>,
}

impl Injected {
    /// It executed this binary, as far as its name is kept.
    pub fn is_named(&self, binary: &str) -> bool {
        let name: String = binary.chars().take(COMM_LEN).collect();
        self.first == name || self.comm == name
    }
}

/// A process that a process from outside started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Descendant {
    tgid: Tgid,
    /// The process that entered the container.
    root: Tgid,
    ended: Option<BootTime>,
}

/// The container's main process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Init {
    /// Thread group.
    pub tgid: Tgid,
    /// Its name.
    pub comm: String,
    /// The kernel said that it is PID 1 of its namespace; otherwise it is only the first process
    /// that came from outside.
    pub is_pid_one: bool,
}

/// A process that the kernel killed on behalf of an init, as it is told where the programs do not
/// know that this is the main process.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TornDown {
    at: BootTime,
    by: Tgid,
    tgid: Tgid,
    /// The thread that the kernel named.
    tid: u32,
    comm: String,
}

/// What was killed with the PID namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Children {
    /// How many.
    pub killed: u32,
    /// How many of these were never sent the stop signal, hooks and probes left out.
    pub unsignalled: u32,
    /// Names of the first few of the latter.
    pub names: Vec<String>,
    /// The kernel side has counted them: that none was missed does not rest on records of single
    /// processes, of which some may have been lost.
    pub are_counted: bool,
}

/// All that the kernel told of one container's cgroup.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Processes {
    /// When its cgroup was made; `None`: it is older than the agent.
    pub created: Option<BootTime>,
    /// When the agent found it, if it is older than the agent: what was sent to it before is not
    /// known.
    pub found: Option<BootTime>,
    /// The main process, as far as known.
    pub init: Option<Init>,
    /// Signals to processes of this container; who the init is may be learned later.
    sent: Vec<Sent>,
    /// Signals taken.
    taken: Vec<(Tgid, Taken)>,
    /// Processes from outside, the init's first exec among them.
    injected: Vec<Injected>,
    /// What those started, as far as it executed a program of its own. The oldest first.
    entered: Vec<Descendant>,
    /// Ends of processes.
    ends: Ends,
    /// Killed by the kernel together with their PID namespace, by the dead init.
    torn_down: Vec<TornDown>,
    /// How many more of those there were than could be kept.
    torn_down_more: u32,
    /// The same, counted by the kernel side.
    namespace_killed: Option<NamespaceKilled>,
    /// Processes that were sent a signal other than SIGKILL, with the signal, and when last.
    notified: BTreeMap<(Tgid, u8), BootTime>,
    /// The runtime's own init left before it became the container's program.
    never_started: Option<(BootTime, ExitStatus)>,
    /// Marked by the OOM killer: the main process always, of the others the first and the latest.
    pub oom: Vec<(BootTime, u32)>,
    /// Last time the cgroup ran empty, if the main process was not seen running in it since.
    pub empty: Option<BootTime>,
    /// The last time that the main process was seen running.
    main_ran: BootTime,
    /// The cgroup was removed.
    pub removed: Option<BootTime>,
    /// The last time that the kernel told anything.
    pub last_heard: BootTime,
    /// Losses while it lived.
    pub losses: Losses,
    /// What keeps it from ending.
    pub lingering: Lingering,
}

impl Processes {
    /// Takes a fact of this container. `inside` tells whether a cgroup belongs to the container.
    pub fn learn(&mut self, at: BootTime, fact: KernelFact, inside: impl Fn(CgroupId) -> bool) {
        self.last_heard = self.last_heard.max(at);
        match fact {
            KernelFact::Running { task, .. } => {
                self.guess_init(&task);
                self.note_ran(at, task.tgid);
            }
            KernelFact::Exec { task, parent, .. } => {
                let process = task.tgid;
                self.exec(at, task, &parent, inside);
                self.note_ran(at, process);
            }
            KernelFact::SignalGenerated(signal) => self.signal(at, signal, inside),
            KernelFact::SignalDelivered { task, signal, disposition, .. } => {
                self.guess_init(&task);
                self.note_ran(at, task.tgid);
                if self.init.is_none() || self.is_init(task.tgid) {
                    let main = self.main();
                    let taken = (task.tgid, Taken { at, signal, disposition });
                    let lost = keep(&mut self.taken, taken, main);
                    self.note_dropped(lost);
                }
            }
            KernelFact::Exit { task, status, parent, .. } => {
                if is_runtime(&task.comm) && !self.is_init(task.tgid) {
                    // A process of runc's that never became the container's own.
                    if task.comm.ends_with(":INIT]") {
                        self.never_started.get_or_insert((at, status));
                    }
                    return;
                }
                let left = self.entered.iter_mut().filter(|known| known.tgid == task.tgid);
                left.for_each(|known| known.ended = known.ended.or(Some(at)));
                self.guess_init(&task);
                let (main, injected) = (self.main(), &self.injected);
                let is_kept = |tgid| Some(tgid) == main || injected.iter().any(|i| i.tgid == tgid);
                let from_outside = parent.is_none_or(|parent| outside(&parent, &inside));
                self.ends.learn(at, &task, status, from_outside, is_kept);
            }
            KernelFact::OomVictim { pid, .. } => self.marked_by_oom(at, pid),
            // The rings are drained in turns: what came after it may be here already.
            KernelFact::CgroupEmpty { .. } if at < self.main_ran => {}
            KernelFact::CgroupEmpty { .. } => self.empty = self.empty.max(Some(at)),
            KernelFact::CgroupRemoved { .. } => {
                self.removed.get_or_insert(at);
            }
            KernelFact::CgroupCreated { scanned, .. } => {
                if scanned {
                    self.found.get_or_insert(at);
                } else {
                    self.created.get_or_insert(at);
                }
            }
            KernelFact::CgroupFrozen { frozen, .. } => self.lingering.learn_frozen(at, frozen),
            KernelFact::BudgetSpent { until, .. } => self.lose(until, LossKind::BudgetSpent),
            KernelFact::NamespaceKilled(killed) => {
                if killed.uncertain {
                    self.lose(at, LossKind::BudgetSpent);
                }
                self.namespace_killed = Some(killed);
            }
        }
    }

    /// A cgroup that ran empty before its main process was moved into it does not end the container.
    fn note_ran(&mut self, at: BootTime, process: Tgid) {
        if self.is_init(process) {
            self.main_ran = self.main_ran.max(at);
            self.empty = self.empty.filter(|empty| *empty >= self.main_ran);
        }
    }

    fn exec(
        &mut self,
        at: BootTime,
        task: Task,
        parent: &Sender,
        inside: impl Fn(CgroupId) -> bool,
    ) {
        // runc joins the cgroup before it becomes the container's program.
        if is_runtime(&task.comm) && (self.init.is_none() || task.comm.contains(':')) {
            return;
        }
        if !outside(parent, &inside) {
            // A number that is used again, or another program of the same process.
            self.entered.retain(|known| known.tgid != task.tgid);
            if let Some(root) = self.root(parent.tgid, at) {
                if self.entered.len() >= MAX_INJECTED {
                    self.entered.remove(0);
                }
                self.entered.push(Descendant { tgid: task.tgid, root, ended: None });
                self.note_entered(at, task.tgid);
            }
            return;
        }
        match task.ns_pid {
            Some(1) => return self.set_init(&task, true),
            // Not PID 1: a hook or a probe, unless the container has no namespace of its own;
            // then the first one is the main process.
            _ if self.init.is_none() && self.created.is_some() => {
                return self.set_init(&task, false);
            }
            _ => {}
        }
        if self.is_init(task.tgid) {
            return; // the main process executes another program
        }
        if let Some(known) = self.injected.iter_mut().find(|i| i.tgid == task.tgid) {
            known.comm = task.comm;
            return;
        }
        if self.injected.len() >= MAX_INJECTED {
            // Probes run for ever: forget the oldest that has ended.
            let has_ended = |i: &Injected| self.ends.of(i.tgid).is_some();
            let old = self.injected.iter().position(has_ended).unwrap_or(0);
            let gone = self.injected.remove(old);
            self.ends.forget(gone.tgid);
        }
        // A pid used again. The two rings are drained in turns: its own end may be here already.
        if self.ends.of(task.tgid).is_some_and(|(ended, _)| ended < at) {
            self.ends.forget(task.tgid);
        }
        let (tgid, comm, first) = (task.tgid, task.comm.clone(), task.comm);
        self.injected.push(Injected { tgid, comm, first, began: at, ended: None });
        self.note_entered(at, tgid);
    }

    /// The process that entered the container and is, or started, this one, which lived at this moment.
    pub fn root(&self, tgid: Tgid, at: BootTime) -> Option<Tgid> {
        let lived = |ended: Option<BootTime>| ended.is_none_or(|ended| at <= ended);
        let own = self.injected.iter().find(|i| i.tgid == tgid);
        if let Some(own) = own {
            return lived(self.ends.of(tgid).map(|(ended, _)| ended)).then_some(own.tgid);
        }
        let descendant = self.entered.iter().find(|known| known.tgid == tgid);
        descendant.filter(|known| lived(known.ended)).map(|known| known.root)
    }

    /// The two rings are drained in turns: what it sent may be here already.
    fn note_entered(&mut self, at: BootTime, tgid: Tgid) {
        let its = |s: &&mut Sent| s.signal.sender.tgid == tgid && s.at >= at;
        for sent in self.sent.iter_mut().filter(its).filter(|s| s.origin == Origin::Inside) {
            sent.origin = Origin::Entered;
        }
    }

    fn signal(&mut self, at: BootTime, signal: SignalGenerated, inside: impl Fn(CgroupId) -> bool) {
        let target = signal.target.tgid;
        let torn_down = signal.signal == SIGKILL
            && signal.code == SI_KERNEL
            && signal.sender.tgid != target
            && self.init.as_ref().is_none_or(|init| init.tgid == signal.sender.tgid)
            && !outside(&signal.sender, &inside);
        if torn_down {
            // A zombie, or one that is on its way out already, which the kernel kills to no effect
            // (`prepare_signal`, kernel/signal.c).
            if signal.result == SignalResult::Ignored {
                return;
            }
            if self.torn_down.len() < MAX_TRACKED {
                let (by, comm) = (signal.sender.tgid, signal.target.comm);
                let tid = signal.target.tid;
                self.torn_down.push(TornDown { at, by, tgid: target, tid, comm });
            } else {
                self.torn_down_more = self.torn_down_more.saturating_add(1);
            }
            return;
        }
        self.guess_init(&signal.target);
        if signal.signal != SIGKILL {
            self.notified.insert((target, signal.signal), at);
            if self.notified.len() > MAX_TRACKED
                && let Some(oldest) = self.notified.iter().min_by_key(|(_, at)| **at)
            {
                let oldest = *oldest.0;
                self.notified.remove(&oldest);
            }
        }
        let origin = match outside(&signal.sender, &inside) {
            true => Origin::Outside,
            // The kernel acts in the name of whoever was running.
            false if signal.code != SI_KERNEL && self.root(signal.sender.tgid, at).is_some() => {
                Origin::Entered
            }
            false => Origin::Inside,
        };
        // What a container sends to its own children decides nothing, and may be any number.
        let main = self.main();
        if origin != Origin::Outside && signal.code != SI_KERNEL && main != Some(target) {
            return;
        }
        let sent = Sent { at, signal, origin };
        let lost = keep(&mut self.sent, sent, main);
        self.note_dropped(lost);
    }

    /// With memory.oom.group the kernel marks every process, the main one not last.
    fn marked_by_oom(&mut self, at: BootTime, pid: u32) {
        if self.oom.len() >= MAX_CHILDREN {
            let of_main = |pid: u32| {
                let main = self.main();
                main == Some(Tgid(pid)) || self.sent().any(|s| s.signal.target.tid == pid)
            };
            let latter = self.oom.iter().skip(MAX_CHILDREN / 2);
            let other = latter.take_while(|(_, pid)| of_main(*pid)).count() + MAX_CHILDREN / 2;
            self.oom.remove(other.min(self.oom.len() - 1));
        }
        self.oom.push((at, pid));
    }

    /// When the kernel last sent SIGKILL by itself to this process or thread of the container.
    pub fn killed_by_kernel(&self, pid: u32) -> Option<BootTime> {
        let by_kernel = |s: &&Sent| s.signal.signal == SIGKILL && s.signal.code == SI_KERNEL;
        let sent = self.sent.iter().filter(by_kernel).filter(|s| s.signal.target.tid == pid);
        let torn_down = self.torn_down.iter().filter(|t| t.tid == pid);
        sent.map(|s| s.at).chain(torn_down.map(|t| t.at)).max()
    }

    /// Records of it were lost, at this moment or shortly before it.
    pub fn lose(&mut self, at: BootTime, kind: LossKind) {
        // One that is older than the agent was found with its main process, or that is not PID 1;
        // and what tells of a main process is no detail.
        let main_is_known =
            self.init.is_some() || self.found.is_some() || kind.spares_what_decides();
        self.losses.note(at, kind, main_is_known);
    }

    /// Its cgroup was made and removed while the agent looked on and lost nothing, and nobody was ever
    /// seen in it: nothing can have died there.
    pub fn saw_nobody(&self) -> bool {
        let nothing = self.empty.is_none() && self.never_started.is_none() && self.init.is_none();
        let nobody = self.ends.is_empty() && self.injected.is_empty() && self.oom.is_empty();
        let no_signal = self.sent.is_empty() && self.taken.is_empty();
        let nothing_lost = self.created.is_some_and(|at| self.losses.spare(at));
        nothing_lost && self.removed.is_some() && nothing && nobody && no_signal
    }

    fn note_dropped(&mut self, dropped: Option<BootTime>) {
        if let Some(at) = dropped {
            self.lose(at, LossKind::EngineFull);
        }
    }

    /// A process that is PID 1 of its own namespace is the container's init only if none is known:
    /// a container may make namespaces of its own.
    fn guess_init(&mut self, task: &Task) {
        if task.ns_pid == Some(1) && self.init.is_none() {
            self.set_init(task, true);
        }
    }

    fn set_init(&mut self, task: &Task, is_pid_one: bool) {
        match &mut self.init {
            Some(init) if init.tgid == task.tgid => {
                init.comm.clone_from(&task.comm);
                init.is_pid_one |= is_pid_one;
            }
            Some(init) if init.is_pid_one || !is_pid_one => {}
            init => {
                *init = Some(Init { tgid: task.tgid, comm: task.comm.clone(), is_pid_one });
                self.injected.retain(|i| i.tgid != task.tgid);
            }
        }
    }

    /// The main process: known, or for a container older than the agent the one that the first
    /// signal from outside was sent to.
    pub fn main(&self) -> Option<Tgid> {
        match &self.init {
            Some(init) => Some(init.tgid),
            None => self
                .sent
                .iter()
                .find(|s| s.origin == Origin::Outside && s.signal.signal != SIGKILL)
                .or_else(|| self.sent.iter().find(|s| s.origin == Origin::Outside))
                .map(|s| s.signal.target.tgid),
        }
    }

    fn is_init(&self, tgid: Tgid) -> bool {
        self.init.as_ref().is_some_and(|init| init.tgid == tgid)
    }

    /// Signals sent to the main process, in order.
    pub fn sent(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        let main = self.main();
        self.sent.iter().filter(move |s| Some(s.signal.target.tgid) == main)
    }

    /// Signals taken by the main process, in order.
    pub fn taken(&self) -> impl Iterator<Item = Taken> {
        let main = self.main();
        self.taken.iter().filter(move |(tgid, _)| Some(*tgid) == main).map(|(_, taken)| *taken)
    }

    /// The signal with which the runtime's tool told it to stop: SIGTERM if that was among them,
    /// else the last but SIGKILL.
    pub fn sent_by_runtime(&self) -> Option<u8> {
        // A neighbour in a shared PID namespace may bear any name.
        let by_runtime = |s: &&Sent| {
            let sender = &s.signal.sender;
            let in_container = sender.in_container == Some(true);
            s.origin == Origin::Outside && !in_container && is_runtime(&sender.comm)
        };
        let mut signals = self.sent().filter(by_runtime).map(|s| s.signal.signal);
        let mut last = None;
        signals
            .find(|signal| {
                last = Some(*signal).filter(|s| *s != SIGKILL).or(last);
                *signal == SIGTERM
            })
            .or(last)
    }

    /// How the main process ended.
    pub fn exit(&self) -> Option<(BootTime, ExitStatus)> {
        self.end_of(self.main()?)
    }

    fn end_of(&self, process: Tgid) -> Option<(BootTime, ExitStatus)> {
        self.ends.of(process)
    }

    /// The runtime's own init left before it became the container's program, and nothing else of
    /// the container ever ran.
    pub fn never_started(&self) -> Option<(BootTime, ExitStatus)> {
        self.never_started.filter(|_| self.init.is_none())
    }

    /// Processes from outside, with their ends.
    pub fn injected(&self) -> impl Iterator<Item = Injected> {
        // Who that is may have been learned since.
        let main = self.main();
        self.injected
            .iter()
            .filter(move |i| Some(i.tgid) != main)
            .map(|i| Injected { ended: self.end_of(i.tgid), ..i.clone() })
    }

    /// How many runs of this exec probe failed in a row, the last of them just before this moment.
    pub fn failed_probes(&self, binary: &str, before: BootTime) -> usize {
        let mut ends: Vec<_> = self
            .injected()
            .filter(|i| i.is_named(binary))
            .filter_map(|i| i.ended)
            .filter(|(at, _)| *at <= before && before.since(*at) <= PROBES)
            .collect();
        ends.sort_by_key(|(at, _)| *at);
        ends.iter().rev().take_while(|(_, status)| *status != ExitStatus::Code(0)).count()
    }

    /// Killed by the kernel together with their PID namespace: how many, and how many of those were
    /// never sent `stop_signal` since `stopping`.
    pub fn torn_down(&self, stop_signal: u8, stopping: Option<BootTime>) -> Children {
        // An init that is alive kills nobody this way: there it was the OOM killer, called by it.
        let Some((main, (dead, _))) = self.main().zip(self.exit()) else {
            return Children::default();
        };
        let mut seen = BTreeSet::new();
        let (mut unsignalled, mut names) = (0_u32, Vec::new());
        let since = |at: &BootTime| stopping.is_none_or(|since| *at >= since);
        for TornDown { at, by, tgid, comm, .. } in &self.torn_down {
            if *by != main || *at < dead || !seen.insert(*tgid) {
                continue;
            }
            let hook = self.injected.iter().any(|i| i.tgid == *tgid);
            let notified = self.notified.get(&(*tgid, stop_signal)).is_some_and(since);
            if !hook && !notified {
                unsignalled += 1;
                if names.len() < MAX_CHILDREN {
                    names.push(comm.clone());
                }
            }
        }
        let mut killed = u32::try_from(seen.len()).unwrap_or(u32::MAX);
        killed = killed.saturating_add(self.torn_down_more);
        let are_counted = unsignalled == 0;
        if let Some(counted) = self.namespace_killed.as_ref().filter(|k| k.init == main) {
            killed = killed.saturating_add(counted.killed).saturating_add(counted.nested);
            if !counted.uncertain {
                // Before the programs knew the main process, signals were told and not counted. Who of
                // those processes is among the killed is not known: all of them, at worst.
                let told = self.notified.iter().filter(|((tgid, signal), at)| {
                    *tgid != main && *signal == stop_signal && since(at)
                });
                let told = u32::try_from(told.count()).unwrap_or(u32::MAX);
                let without = counted.without(stop_signal).saturating_sub(told);
                let examples = counted.examples.iter().filter(|e| !e.was_sent(stop_signal));
                let room = (without as usize).min(MAX_CHILDREN.saturating_sub(names.len()));
                names.extend(examples.take(room).map(|example| example.comm.clone()));
                unsignalled = unsignalled.saturating_add(without);
            }
        }
        Children { killed, unsignalled, names, are_counted }
    }

    /// When a process of it began, ns since boot: as it was when it was sent a signal.
    pub fn started(&self, tgid: Tgid) -> Option<u64> {
        self.sent.iter().find_map(|s| {
            let target = &s.signal.target;
            (target.tgid == tgid).then_some(target.started).flatten()
        })
    }

    /// When a process of it should have ended: its first SIGKILL, or the end of the init whose
    /// PID namespace it lives in.
    pub fn killed(&self, tgid: Tgid) -> Option<BootTime> {
        let sent = self.killed_by_signal().find(|s| s.signal.target.tgid == tgid).map(|s| s.at);
        sent.or_else(|| self.namespace_ended())
    }

    /// A PID namespace does not let its init be killed from within.
    fn killed_by_signal(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().filter(|s| s.signal.signal == SIGKILL && !thrown_away(&s.signal))
    }

    /// When the init of its PID namespace ended: the kernel kills all others then. With records
    /// missing, another namespace's may have been taken for it.
    pub fn namespace_ended(&self) -> Option<BootTime> {
        self.init.as_ref().filter(|init| init.is_pid_one)?;
        self.exit().map(|(at, _)| at).filter(|at| self.losses.spare(*at))
    }

    /// When nothing of it should have been left: SIGKILL to its main process, or where that has
    /// ended, its end as an init, or SIGKILL to another.
    pub fn killed_since(&self) -> Option<BootTime> {
        let main = self.main()?;
        let rest = || {
            let (exit, _) = self.exit()?;
            self.killed_by_signal().map(|s| s.at.max(exit)).min()
        };
        self.killed(main).or_else(rest)
    }

    /// When its main process was sent a signal from outside that it has neither taken nor thrown
    /// away, nor ended by.
    pub fn unanswered_since(&self) -> Option<BootTime> {
        if self.exit().is_some() {
            return None;
        }
        let told =
            |s: &&Sent| s.from_outside() && s.signal.signal != SIGKILL && !thrown_away(&s.signal);
        self.sent()
            .filter(told)
            .find(|s| !self.taken().any(|t| t.signal == s.signal.signal && t.at >= s.at))
            .map(|s| s.at)
    }

    /// The moment after which nothing of it runs any more, as far as the kernel told. A cgroup that is
    /// gone is as good as empty: since Linux 7 its removal may come first, and is then all that is told.
    pub fn ended(&self) -> Option<BootTime> {
        match (self.empty, self.removed, self.exit()) {
            (Some(empty), _, exit) if exit.is_none_or(|(at, _)| at <= empty) => Some(empty),
            (_, Some(removed), _) => Some(removed),
            _ => None,
        }
    }

    /// Its last task has left or its cgroup is gone.
    pub fn is_over(&self) -> bool {
        self.ended().is_some() || (self.empty.is_some() && self.exit().is_some())
    }
}

/// The signal was thrown away because its target does not want it, not because it was dying.
pub fn thrown_away(signal: &SignalGenerated) -> bool {
    signal.result == SignalResult::Ignored && !signal.state.is_some_and(|s| s.group_exit)
}

/// The signal waits for a target that takes it itself: it is blocked, or it is being waited for.
/// sigwait unblocks what it waits for meanwhile, and only `real_blocked` still holds it; that it
/// was queued, neither fatal nor thrown away, with the default action and not blocked, says the
/// same (`sig_ignored` and `complete_signal`, kernel/signal.c).
pub fn kept(signal: &SignalGenerated) -> bool {
    let queued = signal.result == SignalResult::Delivered;
    !thrown_away(signal)
        && signal.state.is_some_and(|s| {
            s.blocked || (queued && s.disposition == Disposition::Default && !s.group_exit)
        })
}

/// Processes of the runtime inside the container's cgroup, before the container's own program.
pub fn is_runtime(comm: &str) -> bool {
    matches!(comm, "runc" | "crun")
        || ["runc:[", "crun:[", "memfd:runc", "memfd:crun"].iter().any(|p| comm.starts_with(p))
}

/// Who ends containers at the kubelet's request, and the kubelet itself, which ends what is left in a
/// pod's cgroup (pod_container_manager_linux.go).
pub fn is_of_the_node(comm: &str) -> bool {
    // sysbox-runc, nvidia-container-runtime; k3s and microk8s have the kubelet in a process of theirs.
    const NAMES: [&str; 7] =
        ["youki", "crio", "conmon", "conmonrs", "dockerd", "kubelet", "kubelite"];
    is_runtime(comm)
        || NAMES.contains(&comm)
        || ["runc", "crun"].iter().any(|part| comm.contains(part))
        || ["containerd", "nvidia-contain", "k3s", "rke2"].iter().any(|p| comm.starts_with(p))
}

fn outside(process: &Sender, inside: &impl Fn(CgroupId) -> bool) -> bool {
    match (process.cgroup, process.in_container) {
        (Some(cgroup), _) => !inside(cgroup),
        (None, Some(known)) => !known,
        (None, None) => true,
    }
}
