//! Reading kernel memory at the offsets of the frozen `LAYOUT`.

use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_task, generated::bpf_probe_read_kernel,
};
use core::mem::MaybeUninit;
use coroner_ebpf::{
    Layout,
    record::{COMM_LEN, Task},
};

/// Patched by the agent before loading, then frozen: the verifier knows every member's value.
#[unsafe(no_mangle)]
pub(super) static LAYOUT: Layout = unsafe { core::mem::zeroed() };

/// One member of `LAYOUT`. Read by itself and volatile: the compiler must not fold the zeroes that
/// stand in the object, and the verifier prunes the branches that a member's value rules out.
macro_rules! layout {
    ($($member:ident).+) => {
        // SAFETY: a static of this very object, readable for as long as the program runs.
        unsafe { core::ptr::read_volatile(&raw const $crate::programs::read::LAYOUT.$($member).+) }
    };
}
pub(super) use layout;

/// An address in the kernel, not to be dereferenced: perhaps null, perhaps stale.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) u64);

impl Address {
    /// Copies what lies at an offset. Zeroes if it cannot be read: the helper clears its
    /// destination then, which makes a chain of reads from a null pointer end in 0.
    #[inline(always)]
    pub(super) fn read<T: Plain>(self, offset: u32) -> T {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes all of the destination, whatever the source is, and any bytes
        // are a `Plain`.
        unsafe {
            bpf_probe_read_kernel(
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
                self.at(offset).0 as *const _,
            );
            value.assume_init()
        }
    }

    #[inline(always)]
    pub(super) fn at(self, offset: u32) -> Self {
        Self(self.0.wrapping_add(u64::from(offset)))
    }

    #[inline(always)]
    pub(super) fn pointer(self, offset: u32) -> Self {
        Self(self.read(offset))
    }
}

/// Types of which any bytes are a value.
///
/// # Safety
/// That.
pub(super) unsafe trait Plain: Copy {}
unsafe impl Plain for u8 {}
unsafe impl Plain for u16 {}
unsafe impl Plain for u32 {}
unsafe impl Plain for i32 {}
unsafe impl Plain for u64 {}
unsafe impl Plain for [u64; 2] {}
unsafe impl Plain for [u8; COMM_LEN] {}

/// `current`.
#[inline(always)]
pub(super) fn current() -> Address {
    // SAFETY: no arguments, cannot fail.
    Address(unsafe { bpf_get_current_task() })
}

/// Id of `current`'s cgroup.
#[inline(always)]
pub(super) fn current_cgroup() -> u64 {
    // SAFETY: no arguments, cannot fail.
    unsafe { bpf_get_current_cgroup_id() }
}

/// Id of a task's cgroup; 0 if it cannot be read. Holds for zombies too:
/// `task->cgroups` stays until the task is freed.
#[inline(always)]
pub(super) fn cgroup_of(task: Address) -> u64 {
    cgroup_id(task.pointer(layout!(task_cgroups)).pointer(layout!(css_set_dfl_cgrp)))
}

/// A cgroup's id.
#[inline(always)]
pub(super) fn cgroup_id(cgroup: Address) -> u64 {
    cgroup.pointer(layout!(cgroup_kn)).read(layout!(kn_id))
}

/// Number of a task's thread group in the agent's PID namespace; 0: it has none there.
#[inline(always)]
pub(super) fn tgid(task: Address) -> u32 {
    if layout!(own_pid_namespace) == 0 {
        return task.read(layout!(task_tgid));
    }
    number(task.pointer(layout!(task_signal)).pointer(layout!(signal_pids_tgid)))
}

/// Number of a thread in the agent's PID namespace; 0: it has none there.
#[inline(always)]
pub(super) fn tid(task: Address) -> u32 {
    if layout!(own_pid_namespace) == 0 {
        return task.read(layout!(task_pid));
    }
    number(task.pointer(layout!(task_thread_pid)))
}

/// A task that the agent has no number for: of another node on this machine.
#[inline(always)]
pub(super) fn is_foreign(tgid: u32) -> bool {
    layout!(own_pid_namespace) != 0 && tgid == 0
}

/// Levels of PID namespaces below the agent's in which processes are found: a container's own, and some more.
const NESTED: u32 = 8;

/// Number of a `struct pid` in the agent's PID namespace, found from the innermost one outwards; 0: it has none there.
#[inline(never)]
fn number(pid: Address) -> u32 {
    if pid.0 == 0 {
        return 0;
    }
    let mut level: u32 = pid.read(layout!(pid_level));
    for _ in 0..NESTED {
        // MAX_PID_NS_LEVEL is 32.
        let upid = pid.at(layout!(pid_numbers)).at((level & 63) * layout!(upid_size));
        let inum: u32 = upid.pointer(layout!(upid_ns)).read(layout!(pid_namespace_inum));
        if inum == layout!(own_pid_namespace) {
            return upid.read(layout!(upid_nr));
        }
        if level == 0 {
            return 0;
        }
        level -= 1;
    }
    0
}

/// Who a task is. `signal` is its `task->signal`, which the caller has read already.
#[inline(always)]
pub(super) fn identify(task: Address, signal: Address) -> Task {
    let leader = task.pointer(layout!(task_group_leader));
    // pids[PIDTYPE_TGID] outlives the leader's exit; detached once the group is reaped.
    let pid = signal.pointer(layout!(signal_pids_tgid));
    let ns_pid = if pid.0 == 0 {
        0
    } else {
        let level: u32 = pid.read(layout!(pid_level));
        // MAX_PID_NS_LEVEL is 32.
        pid.at(layout!(pid_numbers)).at((level & 63) * layout!(upid_size)).read(layout!(upid_nr))
    };
    Task {
        started: leader.read(layout!(task_start_boottime)),
        tgid: tgid(task),
        tid: tid(task),
        ns_pid,
        signal_flags: signal.read(layout!(signal_flags)),
        comm: task.read(layout!(task_comm)),
    }
}
