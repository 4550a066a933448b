//! The records that cross the ring buffers. Each begins with a [`Header`] whose `kind` says which
//! it is; a reader checks kind *and* length.

/// [`Header::kind`]s, named after their records. RMDIR, EMPTY (a cgroup's last task has left), FROZEN (`value` 1; thawed:
/// 0) and SPENT are [`Moment`]s.
pub const MKDIR: u32 = 1;
pub const RMDIR: u32 = 2;
pub const EMPTY: u32 = 3;
pub const FROZEN: u32 = 4;
pub const GENERATE: u32 = 5;
pub const DELIVER: u32 = 6;
pub const EXEC: u32 = 7;
pub const EXIT: u32 = 8;
pub const VICTIM: u32 = 9;
/// The container's budget of detail records is spent, and those that
/// come before `value` (ns since boot) are dropped.
pub const SPENT: u32 = 10;
pub const ZAPPED: u32 = 11;

/// `TASK_COMM_LEN`.
pub const COMM_LEN: usize = 16;
/// Signals are numbered from 1 to this (`_NSIG`).
pub const SIGNALS: usize = 64;
/// Processes of which [`Zapped`] has the name: half of them were sent nothing, half of them something.
pub const EXAMPLES: usize = 16;
/// Room for a cgroup's name. The longest that a runtime makes has 153 characters.
pub const NAME_LEN: usize = 192;

/// The beginning of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Which record this is.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// `bpf_ktime_get_boot_ns`.
    pub time: u64,
    /// The cgroup that it is about; 0: unknown.
    pub cgroup: u64,
}

/// A task of a container.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// `group_leader->start_boottime`, ns; 0: unknown.
    pub started: u64,
    /// Thread group in the agent's PID namespace; 0: it has no number there.
    pub tgid: u32,
    /// Thread in the agent's PID namespace.
    pub tid: u32,
    /// Thread group in its innermost PID namespace; 0: unknown.
    pub ns_pid: u32,
    /// `signal->flags`.
    pub signal_flags: u32,
    /// `comm`.
    pub comm: [u8; COMM_LEN],
}

impl Task {
    /// A process of runc that is not to become a container's program, under the name that it gives itself. A container's
    /// process may take it, too.
    #[inline(always)]
    pub fn is_helper(&self) -> bool {
        self.comm.starts_with(b"runc:[0:") || self.comm.starts_with(b"runc:[1:")
    }
}

/// A sender or a parent: any process of the machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its cgroup; 0: unknown.
    pub cgroup: u64,
    /// Thread group in the agent's PID namespace; 0: the kernel, or a process outside of that namespace.
    pub tgid: u32,
    /// 1: it is in a container.
    pub in_container: u32,
    /// `comm`.
    pub comm: [u8; COMM_LEN],
}

/// `cgroup_mkdir` of a cgroup that is watched from now on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkdir {
    /// Kind [`MKDIR`].
    pub header: Header,
    /// Its parent's id.
    pub parent: u64,
    /// `cgroup.level`.
    pub level: u32,
    /// Length of the name, without the NUL.
    pub name_len: u32,
    /// `kn->name`, NUL-terminated; what follows the NUL is 0.
    pub name: [u8; NAME_LEN],
}

/// Something about a cgroup that needs no more than a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Kind [`RMDIR`], [`EMPTY`], [`FROZEN`] or [`SPENT`].
    pub header: Header,
    /// By kind.
    pub value: u64,
}

/// `signal_generate` for a task of a container.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generate {
    /// Kind [`GENERATE`]; the cgroup is the target's.
    pub header: Header,
    /// The target.
    pub target: Task,
    /// `current`.
    pub sender: Peer,
    /// `si_code`.
    pub code: i32,
    /// The signal's number.
    pub signal: u8,
    /// `TRACE_SIGNAL_*`.
    pub result: u8,
    /// 1: to the whole thread group.
    pub group: u8,
    /// 1: the target thread blocks this signal.
    pub blocked: u8,
    /// `signal->shared_pending | task->pending`, this signal perhaps already in it.
    pub pending: u64,
    /// `sighand->action[signal−1].sa.sa_handler`: 0 SIG_DFL, 1 SIG_IGN, else an address.
    pub handler: u64,
    /// 1: `sighand` was there to be read (it goes when a task is reaped).
    pub state_known: u64,
}

/// `signal_deliver` in a task of a container.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deliver {
    /// Kind [`DELIVER`].
    pub header: Header,
    /// The target, which is `current`.
    pub task: Task,
    /// `k_sigaction.sa.sa_handler`.
    pub handler: u64,
    /// The signal's number.
    pub signal: u64,
}

/// `sched_process_exec` in a container by a process whose parent is outside.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exec {
    /// Kind [`EXEC`].
    pub header: Header,
    /// The task, with its new name.
    pub task: Task,
    /// `real_parent`.
    pub parent: Peer,
    /// 1: the container's main process.
    pub main: u64,
}

/// `sched_process_exit` of a thread group's last thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Kind [`EXIT`].
    pub header: Header,
    /// The dying task.
    pub task: Task,
    /// `real_parent`.
    pub parent: Peer,
    /// `signal->group_exit_code`: the status if the group exits as one (`SIGNAL_GROUP_EXIT`).
    pub group_exit_code: u32,
    /// `group_leader->exit_code`: the status otherwise.
    pub leader_exit_code: u32,
    /// 1: the container's main process.
    pub main: u64,
}

/// `mark_victim`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Victim {
    /// Kind [`VICTIM`]; the cgroup is 0 on kernels that give a pid only.
    pub header: Header,
    /// Thread in the agent's PID namespace; in the kernel's first one on kernels that give a pid only.
    pub pid: u64,
}

/// What the kernel killed when a container's PID 1 exited (`zap_pid_ns_processes`,
/// kernel/pid_namespace.c): thread groups, each counted when it is sent SIGKILL. One record, when the
/// container's cgroup has become empty. No record if there was nothing to kill.
///
/// A process that was dying already is not counted: one that has SIGKILL pending is skipped by the
/// kernel, one without a living thread by the program. No process is missed: before the kernel looks
/// for what is left, it lets nobody fork into the namespace (`disable_pid_allocation`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zapped {
    /// Kind [`ZAPPED`]; the cgroup is the container's own.
    pub header: Header,
    /// The PID 1, by its thread group in the agent's PID namespace.
    pub init: u32,
    /// How many were killed, whichever PID namespace within they were in.
    pub killed: u32,
    /// Of these, how many had a parent outside of any container: hooks, probes, `kubectl exec`. All
    /// that follows is about the others.
    pub entered: u32,
    /// How many had been sent no signal that is reported ([`Notified`](crate::Notified)).
    pub silent: u32,
    /// Besides `killed`: how many the PID 1 of a namespace within has killed, dying of the same
    /// SIGKILL. Of these nothing else is known. Perhaps too low, if there were several such.
    pub nested: u32,
    /// 1: signals to some process of this container were not counted: `silent` may be too high and
    /// `sent` too low.
    pub uncertain: u32,
    /// How many had been sent signal n (at n−1) while they lived.
    pub sent: [u32; SIGNALS],
    /// The first of those that were sent nothing, then, from the middle on, the first of the others.
    pub examples: [Example; EXAMPLES],
}

/// A process that was killed with its PID namespace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// `comm`.
    pub comm: [u8; COMM_LEN],
    /// The signals that it had been sent (bit n−1).
    pub sent: u64,
}

impl Zapped {
    /// Nothing was killed.
    pub const NOTHING: Self = Self {
        header: Header { kind: ZAPPED, reserved: 0, time: 0, cgroup: 0 },
        init: 0,
        killed: 0,
        entered: 0,
        silent: 0,
        nested: 0,
        uncertain: 0,
        sent: [0; SIGNALS],
        examples: [Example { comm: [0; COMM_LEN], sent: 0 }; EXAMPLES],
    };
}

/// `SIGNAL_GROUP_EXIT` in [`Task::signal_flags`] (`include/linux/sched/signal.h`).
pub const SIGNAL_GROUP_EXIT: u32 = 0x4;
/// `SIGNAL_UNKILLABLE`: init of a PID namespace.
pub const SIGNAL_UNKILLABLE: u32 = 0x40;

// No record but the one with a name, and the one that is made in a map, exceeds 128 bytes, and the parts sum to the whole: there is no
// hidden padding whose old contents would leak out of the kernel.
const _: () = assert!(size_of::<Header>() == 24);
const _: () = assert!(size_of::<Task>() == 40);
const _: () = assert!(size_of::<Peer>() == 32);
const _: () = assert!(size_of::<Mkdir>() == 24 + 16 + NAME_LEN);
const _: () = assert!(size_of::<Moment>() == 24 + 8);
const _: () = assert!(size_of::<Generate>() == 24 + 40 + 32 + 8 + 24);
const _: () = assert!(size_of::<Deliver>() == 24 + 40 + 16);
const _: () = assert!(size_of::<Exec>() == 24 + 40 + 32 + 8);
const _: () = assert!(size_of::<Exit>() == 24 + 40 + 32 + 16);
const _: () = assert!(size_of::<Victim>() == 24 + 8);
const _: () = assert!(size_of::<Example>() == COMM_LEN + 8);
const _: () = assert!(size_of::<Zapped>() == 24 + 24 + 4 * SIGNALS + 24 * EXAMPLES);
const _: () = assert!(size_of::<Generate>() <= 128);
