//! The wire ABI between the kernel programs and the agent: map values, ring records, the frozen
//! layout. `no_std`, no dependencies, testable on the host.
//!
//! **Architecture invariant.** Every type is `repr(C)`, made of integers and arrays of them, with
//! no implicit padding; enums never cross the ring, only their numbers do.
#![no_std]

/// The frozen `.rodata` of the programs: offsets taken from the running kernel's BTF, and what is
/// asked of the programs. Every member is read by itself, volatile, so that the verifier knows it
/// and prunes the branches that it rules out. 0 for an offset that this kernel does not have,
/// unless said otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bit n−1: signal n is chatter and dropped first (unless a cgroup's own mask asks for it).
    pub chatter_mask: u64,
    /// Bit n−1: signal n is reported for every container (KILL, TERM, INT, QUIT, HUP, ABRT, SEGV…).
    pub signal_mask: u64,
    /// Id of the hierarchy that is watched: 0 is cgroup v2; v1: first field of /proc/self/cgroup.
    pub hierarchy_id: u32,
    /// 1: cgroup v2 (follow `css_set.dfl_cgrp`), 0: v1 (follow `css_set.subsys[n]`).
    pub unified: u32,
    /// `task_struct.cgroups`.
    pub task_cgroups: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// `task_struct.comm`.
    pub task_comm: u32,
    /// `task_struct.real_parent`.
    pub task_real_parent: u32,
    /// `task_struct.group_leader`.
    pub task_group_leader: u32,
    /// `task_struct.start_boottime` (5.10: `start_boottime` too).
    pub task_start_boottime: u32,
    /// `task_struct.signal`.
    pub task_signal: u32,
    /// `task_struct.sighand`.
    pub task_sighand: u32,
    /// `task_struct.blocked`.
    pub task_blocked: u32,
    /// `task_struct.pending` + `sigpending.signal`.
    pub task_pending: u32,
    /// `task_struct.exit_code`.
    pub task_exit_code: u32,
    /// `task_struct.thread_pid`.
    pub task_thread_pid: u32,
    /// `signal_struct.flags`.
    pub signal_flags: u32,
    /// `signal_struct.live`.
    pub signal_live: u32,
    /// `signal_struct.group_exit_code`.
    pub signal_group_exit_code: u32,
    /// `signal_struct.shared_pending` + `sigpending.signal`.
    pub signal_shared_pending: u32,
    /// `signal_struct.pids[PIDTYPE_TGID]`.
    pub signal_pids_tgid: u32,
    /// `sighand_struct.action`.
    pub sighand_action: u32,
    /// Size of one `k_sigaction`.
    pub sigaction_size: u32,
    /// `k_sigaction.sa.sa_handler`.
    pub sigaction_handler: u32,
    /// `pid.level`.
    pub pid_level: u32,
    /// `pid.numbers`.
    pub pid_numbers: u32,
    /// Size of one `upid`.
    pub upid_size: u32,
    /// `upid.nr` (0 on all known kernels: a real offset).
    pub upid_nr: u32,
    /// `css_set.dfl_cgrp`.
    pub css_set_dfl_cgrp: u32,
    /// `css_set.subsys[n]` of the watched v1 controller.
    pub css_set_subsys: u32,
    /// `cgroup_subsys_state.cgroup` (0 on all known kernels: a real offset).
    pub css_cgroup: u32,
    /// `cgroup_subsys_state.parent`.
    pub css_parent: u32,
    /// `cgroup.self` (0 on all known kernels: a real offset).
    pub cgroup_self: u32,
    /// `cgroup.kn`.
    pub cgroup_kn: u32,
    /// `cgroup.root`.
    pub cgroup_root: u32,
    /// `cgroup.level`.
    pub cgroup_level: u32,
    /// `cgroup_root.hierarchy_id`.
    pub root_hierarchy_id: u32,
    /// `kernfs_node.id`.
    pub kn_id: u32,
    /// `kernfs_node.name`.
    pub kn_name: u32,
    /// `kernel_siginfo.si_code`.
    pub siginfo_code: u32,
    /// 1: `sched_process_exit` has its second argument, `group_dead`.
    pub exit_has_group_dead: u32,
    /// 1: `mark_victim`'s first argument is a task, 0: a pid.
    pub mark_victim_is_task: u32,
    /// Levels below a container's cgroup that are still followed.
    pub max_nesting: u32,
    /// `kubepods` as eight bytes, or what else names a root that is known by its name.
    pub root_needle: u64,
}

/// What a watched cgroup is. Value of the `CONTAINERS` map; the key is the cgroup's id (`u64`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Bit n−1: signal n is reported for this cgroup too (a stop signal learned at run time).
    pub signal_mask: u64,
    /// [`CONTAINER_DYING`] and the like.
    pub flags: u32,
    /// Depth below the cgroup whose own name or insertion made it known.
    pub depth: u32,
    /// Detail records that it may still write.
    pub budget: u32,
    /// Detail records dropped for want of budget.
    pub dropped: u32,
    /// Nearest ancestor-or-self that is a container's own cgroup, 0: not known to the kernel.
    pub owner: u64,
}

/// [`Container::flags`]: a stop or kill came from outside, or its init has exited: deaths of its
/// other processes are reported too.
pub const CONTAINER_DYING: u32 = 1;
