//! The kernel's records of one container's processes, kept so that the order in which the sources arrive does
//! not matter. The rules that evaluate them are in [`super::verdict`].

mod exits;
mod inspections;
mod origin;
mod queries;

pub use inspections::{Freeze, Inspections};
pub use origin::{discarded, is_of_the_node, is_runtime, queued_for_sigwait};

use super::{gaps::Gaps, table::push_latest};
use crate::{ids::*, input::*, time::*};
use exits::ExitTable;
use origin::{is_helper, is_runtime_tool, outside};
use std::collections::{BTreeMap, VecDeque};

/// Bounds on the records of one container, however many events it causes.
const MAX_EXEC_PROCESSES: usize = 64;
const MAX_CHILDREN: usize = 16;
const MAX_TRACKED: usize = 1024;
const MAX_SIGNALS: usize = 64;

/// TASK_COMM_LEN without the final NUL: the kernel keeps this much of a file name.
const COMM_LEN: usize = 15;

/// `si_code` of a signal sent by the kernel itself (SI_KERNEL).
pub const SI_KERNEL: i32 = 0x80;
pub const SIGKILL: u8 = 9;
pub const SIGTERM: u8 = 15;

/// A signal sent to the container's init.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentSignal {
    pub at: BootTime,
    pub signal: SignalGenerated,
    /// Where the sender came from.
    pub origin: Origin,
}

impl SentSignal {
    /// The sender is not a process that the container's own program started.
    pub fn from_outside(&self) -> bool {
        self.origin != Origin::Inside
    }
}

/// Where the sender of a signal came from, as opposed to its current cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A process started by the container's own program.
    Inside,
    /// A process that entered the container (hook, probe, `kubectl exec`), or its descendant.
    Entered,
    /// A process outside the container.
    Outside,
}

/// A signal delivered to the container's init.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenSignal {
    pub at: BootTime,
    pub target: Tgid,
    pub signal: u8,
    pub disposition: Disposition,
}

/// A process that entered the container: a lifecycle hook, an exec probe, `kubectl exec`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecProcess {
    pub tgid: Tgid,
    /// `comm` after the last exec.
    pub comm: String,
    /// `comm` after the first exec: `sh -c 'exec drain'` begins as sh.
    pub first: String,
    /// When it executed its program.
    pub began: BootTime,
    pub ended: Option<(BootTime, ExitStatus)>,
}

impl ExecProcess {
    /// The process executed this binary, as far as the kernel keeps the name.
    pub fn is_named(&self, binary: &str) -> bool {
        let name: String = binary.chars().take(COMM_LEN).collect();
        self.first == name || self.comm == name
    }
}

/// A descendant of a process that entered the container.
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
    pub tgid: Tgid,
    pub comm: String,
    /// Start time, ns since boot; `None`: it is older than the agent.
    pub started: Option<u64>,
    /// The kernel reported it as PID 1 of its namespace; otherwise it is only the first process from outside.
    pub is_pid_one: bool,
}

/// A process that the kernel killed with its PID namespace, from the single record: the kernel programs count
/// these only if they know the main process.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NamespaceKill {
    at: BootTime,
    by: Tgid,
    tgid: Tgid,
    /// The thread that the record names.
    tid: u32,
    comm: String,
}

/// The processes killed with the PID namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Children {
    pub killed: u32,
    /// How many of them were never sent the stop signal, hooks and probes excluded.
    pub unsignalled: u32,
    /// Names of the first few of these.
    pub names: Vec<String>,
    /// The kernel programs counted them, so lost records of single processes do not matter.
    pub are_counted: bool,
}

/// All records of one container's cgroup.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ContainerProcesses {
    /// The tick before which its pod was last marked as changed.
    pub marked_in: Option<u64>,
    /// When the cgroup was created; `None`: before the agent started.
    pub created: Option<BootTime>,
    /// When the agent found it, if it is older than the agent: earlier signals are unknown.
    pub found: Option<BootTime>,
    /// The main process, where known.
    pub init: Option<Init>,
    /// Signals to the container's processes; the init may become known later.
    sent: Vec<SentSignal>,
    taken: Vec<TakenSignal>,
    /// Processes from outside, including the init's first exec.
    exec_processes: Vec<ExecProcess>,
    /// Descendants of these that executed a program, oldest first.
    entered: VecDeque<Descendant>,
    exits: ExitTable,
    /// Killed with the PID namespace, on behalf of the exiting init.
    killed_with_namespace: Vec<NamespaceKill>,
    /// How many more there were.
    unlisted_kills: u32,
    /// The kernel programs' count of the same.
    namespace_killed: Option<NamespaceKilled>,
    /// The last time that each process was sent each signal, except SIGKILL.
    signalled: BTreeMap<(Tgid, u8), BootTime>,
    /// The runtime's init exited before it became the container's program.
    never_started: Option<(BootTime, ExitStatus)>,
    /// OOM victims: always the main process; of the others the first and the latest.
    pub oom: Vec<(BootTime, u32)>,
    /// When the cgroup last became empty, unless the main process ran in it later.
    pub empty: Option<BootTime>,
    /// When the main process was last seen running.
    main_ran: BootTime,
    pub removed: Option<BootTime>,
    pub last_event: BootTime,
    pub gaps: Gaps<LossKind>,
    pub inspections: Inspections,
}

impl ContainerProcesses {
    /// Applies a record of this container. `inside`: whether a cgroup belongs to the container.
    pub fn apply(&mut self, at: BootTime, fact: KernelFact, inside: impl Fn(CgroupId) -> bool) {
        self.last_event = self.last_event.max(at);
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
                    let taken = TakenSignal { at, target: task.tgid, signal, disposition };
                    let kind = |t: &TakenSignal| (t.at, (t.target, t.signal, t.disposition));
                    if let Some(lost) = push_bounded(&mut self.taken, taken, main, kind) {
                        self.record_gap(lost, LossKind::EngineFull);
                    }
                }
            }
            KernelFact::Exit { task, status, parent, .. } => {
                self.exited(at, &task, status, parent.as_ref(), inside);
            }
            KernelFact::OomVictim { pid, .. } => self.marked_by_oom(at, pid),
            // The two rings are drained in turns: a later record may have been applied already.
            KernelFact::CgroupEmpty { .. } if at < self.main_ran => {}
            KernelFact::CgroupEmpty { .. } => self.empty = self.empty.max(Some(at)),
            KernelFact::CgroupRemoved { .. } => {
                self.removed.get_or_insert(at);
            }
            KernelFact::CgroupCreated { scanned, .. } => {
                let since = if scanned { &mut self.found } else { &mut self.created };
                since.get_or_insert(at);
            }
            KernelFact::CgroupFrozen { frozen, .. } => self.inspections.apply_frozen(at, frozen),
            KernelFact::BudgetSpent { until, .. } => self.record_gap(until, LossKind::BudgetSpent),
            KernelFact::NamespaceKilled(killed) => {
                if killed.uncertain {
                    self.record_gap(at, LossKind::BudgetSpent);
                }
                self.namespace_killed = Some(killed);
            }
        }
    }

    fn exited(
        &mut self,
        at: BootTime,
        task: &Task,
        status: ExitStatus,
        parent: Option<&ProcessRef>,
        inside: impl Fn(CgroupId) -> bool,
    ) {
        if self.is_of_runtime(task, parent) {
            // A runc process that never became the container's program, or a hook's.
            self.init.take_if(|init| init.tgid == task.tgid);
            self.exec_processes.retain(|known| known.tgid != task.tgid);
            if self.may_be_unstarted(task) {
                self.never_started.get_or_insert((at, status));
            }
            return;
        }
        let left = self.entered.iter_mut().filter(|known| known.tgid == task.tgid);
        left.for_each(|known| known.ended = known.ended.or(Some(at)));
        self.guess_init(task);
        let (main, exec_processes) = (self.main(), &self.exec_processes);
        let is_kept = |tgid| Some(tgid) == main || exec_processes.iter().any(|i| i.tgid == tgid);
        let from_outside = parent.is_none_or(|parent| outside(parent, &inside));
        self.exits.record(at, task, status, from_outside, is_kept);
    }

    /// A process of the runtime that is not to become the container's program. runc may be in the cgroup when it
    /// executes itself (libcontainer/nsenter/cloned_binary.c, up to 1.1): what seemed to be the main process, or one that
    /// entered, ends under a name that runc gives itself. A container's process may take that name, too, but is no child of
    /// runc, because `runc create` has ended before it was executed.
    fn is_of_runtime(&self, task: &Task, parent: Option<&ProcessRef>) -> bool {
        let by_runtime = parent.is_none_or(|parent| is_runtime_tool(&parent.comm));
        let is_helper = by_runtime && is_helper(&task.comm);
        let entered = self.exec_processes.iter().any(|known| known.tgid == task.tgid);
        match &self.init {
            Some(init) if init.tgid == task.tgid => is_helper && !init.is_pid_one,
            _ if entered => is_helper && self.exits.get(task.tgid).is_none(),
            // The init of a container that was created and not started is the shim's.
            _ => is_runtime(&task.comm) && (by_runtime || self.may_be_unstarted(task)),
        }
    }

    /// The runtime's init, which is the main process of a container that did not start.
    fn may_be_unstarted(&self, task: &Task) -> bool {
        self.created.is_some() && task.comm.ends_with(":INIT]")
    }

    /// A cgroup that became empty before its main process was moved into it does not end the container.
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
        parent: &ProcessRef,
        inside: impl Fn(CgroupId) -> bool,
    ) {
        // runc joins the cgroup before it executes the container's program.
        let is_pid_one = task.ns_pid == Some(1);
        let by_runtime = is_runtime(&task.comm) && is_runtime_tool(&parent.comm);
        if by_runtime && !is_pid_one && (self.init.is_none() || task.comm.contains(':')) {
            return;
        }
        if !outside(parent, &inside) {
            // The PID was reused, or the process executes another program.
            self.entered.retain(|known| known.tgid != task.tgid);
            if let Some(root) = self.root(parent.tgid, at) {
                let descendant = Descendant { tgid: task.tgid, root, ended: None };
                push_latest(&mut self.entered, descendant, MAX_EXEC_PROCESSES);
                self.note_entered(at, task.tgid);
            }
            return;
        }
        // Not PID 1: a hook or a probe. If the container has no PID namespace of its own, the first one is the main
        // process; also in a cgroup that was found and has been empty since, if nothing else was ever seen of it.
        let is_unused = self.exits.is_empty()
            && self.exec_processes.is_empty()
            && self.sent.is_empty()
            && self.gaps.is_complete_since(BootTime(0));
        let was_empty = self.empty.is_some_and(|empty| empty < at);
        let is_new = self.created.is_some() || is_unused && was_empty;
        if is_pid_one || (self.init.is_none() && is_new) {
            return self.set_init(&task, is_pid_one);
        }
        if self.is_init(task.tgid) {
            return; // the main process executes another program
        }
        if let Some(known) = self.exec_processes.iter_mut().find(|i| i.tgid == task.tgid) {
            known.comm = task.comm;
            return;
        }
        if self.exec_processes.len() >= MAX_EXEC_PROCESSES {
            // Probes run forever: evict the oldest one that has ended.
            let has_ended = |i: &ExecProcess| self.exits.get(i.tgid).is_some();
            let old = self.exec_processes.iter().position(has_ended).unwrap_or(0);
            let gone = self.exec_processes.remove(old);
            self.exits.evict(gone.tgid);
        }
        // The PID was reused. The two rings are drained in turns, so this process's own exit may be stored
        // already.
        if self.exits.get(task.tgid).is_some_and(|(ended, _)| ended < at) {
            self.exits.evict(task.tgid);
        }
        let (tgid, comm, first) = (task.tgid, task.comm.clone(), task.comm);
        self.exec_processes.push(ExecProcess { tgid, comm, first, began: at, ended: None });
        self.note_entered(at, tgid);
    }

    /// The process that entered the container and is `tgid`, or its ancestor, if `tgid` was alive at `at`.
    pub fn root(&self, tgid: Tgid, at: BootTime) -> Option<Tgid> {
        let lived = |ended: Option<BootTime>| ended.is_none_or(|ended| at <= ended);
        let own = self.exec_processes.iter().find(|i| i.tgid == tgid);
        if let Some(own) = own {
            return lived(self.exits.get(tgid).map(|(ended, _)| ended)).then_some(own.tgid);
        }
        let descendant = self.entered.iter().find(|known| known.tgid == tgid);
        descendant.filter(|known| lived(known.ended)).map(|known| known.root)
    }

    /// The two rings are drained in turns: signals that this process sent may be stored already.
    fn note_entered(&mut self, at: BootTime, tgid: Tgid) {
        let its = |s: &&mut SentSignal| s.signal.sender.tgid == tgid && s.at >= at;
        for sent in self.sent.iter_mut().filter(its).filter(|s| s.origin == Origin::Inside) {
            sent.origin = Origin::Entered;
        }
    }

    fn signal(&mut self, at: BootTime, signal: SignalGenerated, inside: impl Fn(CgroupId) -> bool) {
        let target = signal.target.tgid;
        let killed_with_namespace = signal.signal == SIGKILL
            && signal.code == SI_KERNEL
            && signal.sender.tgid != target
            && self.init.as_ref().is_none_or(|init| init.tgid == signal.sender.tgid)
            && !outside(&signal.sender, &inside);
        if killed_with_namespace {
            // The target was a zombie or exiting already, so the kernel's kill has no effect
            // (`prepare_signal`, kernel/signal.c).
            if signal.result == SignalResult::Ignored {
                return;
            }
            if self.killed_with_namespace.len() < MAX_TRACKED {
                let (by, comm) = (signal.sender.tgid, signal.target.comm);
                let tid = signal.target.tid;
                self.killed_with_namespace.push(NamespaceKill { at, by, tgid: target, tid, comm });
            } else {
                self.unlisted_kills = self.unlisted_kills.saturating_add(1);
            }
            return;
        }
        self.guess_init(&signal.target);
        if signal.signal != SIGKILL {
            self.signalled.insert((target, signal.signal), at);
            if self.signalled.len() > MAX_TRACKED
                && let Some(oldest) = self.signalled.iter().min_by_key(|(_, at)| **at)
            {
                let oldest = *oldest.0;
                self.signalled.remove(&oldest);
            }
        }
        let origin = match outside(&signal.sender, &inside) {
            true => Origin::Outside,
            // The kernel sends its own signals with the current task as the sender.
            false if signal.code != SI_KERNEL && self.root(signal.sender.tgid, at).is_some() => {
                Origin::Entered
            }
            false => Origin::Inside,
        };
        // Signals of a container to its own children decide nothing, and there may be any number.
        let main = self.main();
        if origin != Origin::Outside && signal.code != SI_KERNEL && main != Some(target) {
            return;
        }
        let sent = SentSignal { at, signal, origin };
        let kind = |s: &SentSignal| (s.at, (s.signal.target.tgid, s.signal.signal, s.origin));
        if let Some(lost) = push_bounded(&mut self.sent, sent, main, kind) {
            self.record_gap(lost, LossKind::EngineFull);
        }
    }

    /// With memory.oom.group the kernel marks every process, and the main one is not the last.
    fn marked_by_oom(&mut self, at: BootTime, pid: u32) {
        if self.oom.len() >= MAX_CHILDREN {
            let is_main = |pid: u32| {
                let main = self.main();
                main == Some(Tgid(pid)) || self.sent().any(|s| s.signal.target.tid == pid)
            };
            let latter = self.oom.iter().skip(MAX_CHILDREN / 2);
            let other = latter.take_while(|(_, pid)| is_main(*pid)).count() + MAX_CHILDREN / 2;
            self.oom.remove(other.min(self.oom.len() - 1));
        }
        self.oom.push((at, pid));
    }

    /// When the kernel itself last sent SIGKILL to this process or thread.
    pub fn killed_by_kernel(&self, pid: u32) -> Option<BootTime> {
        let by_kernel = |s: &&SentSignal| s.signal.signal == SIGKILL && s.signal.code == SI_KERNEL;
        let sent = self.sent.iter().filter(by_kernel).filter(|s| s.signal.target.tid == pid);
        let killed_with_namespace = self.killed_with_namespace.iter().filter(|t| t.tid == pid);
        sent.map(|s| s.at).chain(killed_with_namespace.map(|t| t.at)).max()
    }

    /// Records were lost at `at`, or shortly before.
    pub fn record_gap(&mut self, at: BootTime, kind: LossKind) {
        // The scan finds an older container with its main process (or the container has no PID 1), and a lost
        // detail record never holds a main process.
        let main_is_known = self.init.is_some() || self.found.is_some() || kind.is_detail_only();
        // Otherwise another process may be taken for it later.
        self.gaps.note(kind, main_is_known.then_some(at));
    }

    /// The cgroup was created and removed without any process in it and without a loss: nothing can have died
    /// there.
    pub fn was_never_populated(&self) -> bool {
        let nothing = self.empty.is_none() && self.never_started.is_none() && self.init.is_none();
        let nobody = self.exits.is_empty() && self.exec_processes.is_empty() && self.oom.is_empty();
        let no_signal = self.sent.is_empty() && self.taken.is_empty();
        let nothing_lost = self.created.is_some_and(|at| self.gaps.is_complete_since(at));
        nothing_lost && self.removed.is_some() && nothing && nobody && no_signal
    }

    /// Takes a PID 1 as the init only if none is known: a container may create PID namespaces of its own.
    fn guess_init(&mut self, task: &Task) {
        if task.ns_pid == Some(1) && self.init.is_none() {
            self.set_init(task, true);
        }
    }

    fn set_init(&mut self, task: &Task, is_pid_one: bool) {
        match &mut self.init {
            Some(init) if init.tgid == task.tgid => {
                init.comm.clone_from(&task.comm);
                init.started = init.started.or(task.started);
                init.is_pid_one |= is_pid_one;
            }
            Some(init) if init.is_pid_one || !is_pid_one => {}
            init => {
                let Task { tgid, started, .. } = *task;
                *init = Some(Init { tgid, comm: task.comm.clone(), started, is_pid_one });
                self.exec_processes.retain(|i| i.tgid != task.tgid);
            }
        }
    }
}

/// Appends to a bounded list. A full list drops a record of another process first; then, of a signal that is
/// sent again and again (a reload), the oldest but the first; then the middle. Returns the time of the
/// dropped record if that may decide something. `key`: the record's time; its target, signal and other
/// particulars.
fn push_bounded<T, K: PartialEq>(
    list: &mut Vec<T>,
    item: T,
    main: Option<Tgid>,
    key: impl Fn(&T) -> (BootTime, (Tgid, u8, K)),
) -> Option<BootTime> {
    let mut lost = None;
    if list.len() >= MAX_SIGNALS {
        let kind = |record: &T| key(record).1;
        let of_another = || list.iter().position(|known| Some(kind(known).0) != main);
        let repeated = || {
            list.iter().enumerate().position(|(n, known)| {
                !matches!(kind(known).1, SIGKILL | SIGTERM)
                    && list.iter().take(n).any(|earlier| kind(earlier) == kind(known))
            })
        };
        let spare = of_another().or_else(repeated);
        let dropped = list.remove(spare.unwrap_or(MAX_SIGNALS / 2));
        lost = spare.is_none().then(|| key(&dropped).0);
    }
    list.push(item);
    lost
}
