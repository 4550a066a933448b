//! The wire ABI between the kernel programs and the agent: map values, ring records, the frozen
//! layout. `no_std`, no dependencies, testable on the host.
//!
//! **Architecture invariant.** Every type is `repr(C)`, made of integers and arrays of them, with
//! no implicit padding; enums never cross the ring, only their numbers do.
#![no_std]

pub mod backup;
pub mod filter;
pub mod maps;
pub mod record;
pub mod traffic;

/// Levels below a container's cgroup, or below the root that made a cgroup known, that are followed.
pub const MAX_NESTING: u32 = 8;
/// Cgroups below a container that are followed, about: a container that delegates cgroups to itself may make any number,
/// and the map is everybody's. The engine keeps no more of one container.
pub const NESTED_SHARE: u32 = 256;

/// The frozen `.rodata` of the programs: offsets taken from the running kernel's BTF, and what is
/// asked of the programs. Every member is read by itself, volatile, so that the verifier knows it
/// and prunes the branches that it rules out. Most are offsets of a struct's member; `layout.rs` of the agent
/// has the names.
///
/// What every run of a program reads comes first, in one line of the processor's cache.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bit n−1: signal n is chatter and dropped before anything is looked up, unless
    /// some container has it for its stop signal.
    pub chatter_mask: u64,
    /// Bit n−1: signal n is reported for every container (KILL, TERM, INT, QUIT, HUP, ABRT, SEGV…).
    pub signal_mask: u64,
    /// 1: `sched_process_exit` has its second argument, `group_dead`.
    pub exit_has_group_dead: u16,
    /// 1: tracepoints may be preempted, so hooks outside interrupts have a second program, too (Linux 7.0).
    pub is_preemptible: u16,
    pub task_cgroups: u32,
    pub css_set_dfl_cgrp: u32,
    pub cgroup_kn: u32,
    pub kn_id: u32,
    pub task_tgid: u32,
    pub task_pid: u32,
    pub task_comm: u32,
    pub task_real_parent: u32,
    pub task_group_leader: u32,
    /// `task_struct.start_boottime` (5.10: `start_boottime` too).
    pub task_start_boottime: u32,
    pub task_signal: u32,
    pub task_sighand: u32,
    pub task_blocked: u32,
    pub task_pending: u32,
    pub task_exit_code: u32,
    pub signal_flags: u32,
    pub signal_live: u32,
    pub signal_group_exit_code: u32,
    pub signal_shared_pending: u32,
    pub signal_pids_tgid: u32,
    pub sighand_action: u32,
    pub sigaction_size: u32,
    pub sigaction_handler: u32,
    pub pid_level: u32,
    pub pid_numbers: u32,
    pub upid_size: u32,
    /// `upid.nr` (0 on all known kernels: a real offset).
    pub upid_nr: u32,
    pub upid_ns: u32,
    pub pid_namespace_inum: u32,
    pub task_thread_pid: u32,
    /// Inode of the agent's own PID namespace, in whose numbers processes are told. 0: it is the kernel's first one,
    /// whose numbers are in the task itself.
    pub own_pid_namespace: u32,
    pub css_parent: u32,
    /// `cgroup.self` (0 on all known kernels: a real offset).
    pub cgroup_self: u32,
    pub cgroup_root: u32,
    pub cgroup_level: u32,
    pub root_hierarchy_id: u32,
    pub kn_name: u32,
    pub siginfo_code: u32,
    /// 1: `mark_victim`'s first argument is a task, 0: a pid.
    pub mark_victim_is_task: u32,
    /// Detail records that one container may write in one [`WINDOW_SHIFT`] of time.
    pub budget: u32,
    /// For the connections of terminating pods.
    pub traffic: TrafficLayout,
    /// Eight bytes that mark a root in a cgroup's name: `kubepods`, the first byte lowest.
    pub root_needle: u64,
    /// Eight bytes that mark a cgroup to be left out: `-conmon-`, CRI-O's monitor, which is the
    /// parent of a container's init and thus must count as outside.
    pub skip_needle: u64,
}

/// Where the programs that count connections find what they need. All 0: those are not loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficLayout {
    pub sock_net: u32,
    pub net_inum: u32,
    pub net_hash_mix: u32,
    pub sock_family: u32,
    pub sock_saddr: u32,
    /// `sock_common.skc_daddr` (0 on all known kernels: a real offset).
    pub sock_daddr: u32,
    pub sock_saddr6: u32,
    pub sock_daddr6: u32,
    pub sock_protocol: u32,
    pub sock_err: u32,
    pub sock_socket: u32,
    pub inet_sport: u32,
    pub tcp_sent_at: u32,
    pub tcp_received_at: u32,
    pub tcp_write_seq: u32,
    pub tcp_snd_una: u32,
    pub tcp_bytes_sent: u32,
    pub tcp_bytes_received: u32,
    pub tcp_rcv_nxt: u32,
    pub tcp_copied_seq: u32,
    pub task_flags: u32,
    pub task_nsproxy: u32,
    pub nsproxy_net: u32,
    pub skb_dev: u32,
    pub skb_head: u32,
    pub skb_transport: u32,
    pub skb_network: u32,
    pub dev_net: u32,
    pub dev_ifindex: u32,
}

/// What a watched cgroup is. Value of [`maps::CONTAINERS`]; the key is the cgroup's id (`u64`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Bit n−1: signal n is reported for this cgroup too (a stop signal learned at run time).
    pub signal_mask: u64,
    /// Nearest ancestor-or-self that is a container's own cgroup. 0: this is a level above the
    /// containers (root, QoS class, pod), whose processes count as outside of any container.
    pub owner: u64,
    /// [`CONTAINER_DYING`] and the like.
    pub flags: u32,
    /// Levels below the container's own cgroup; above containers, below the root.
    pub depth: u32,
    /// Thread group of the container's main process, 0: not known.
    pub main: u32,
    /// Detail records written in this window; one more than the budget: that it is spent was told.
    pub spent: u32,
    /// The stretch of time that `budget` is for: nanoseconds since boot >> [`WINDOW_SHIFT`].
    pub window: u64,
    /// Its processes in [`maps::NOTIFIED`], about: what a race may lose is a count.
    pub notified: u32,
    /// Of a container's own cgroup: the cgroups below it that the kernel side has put into the map, about.
    pub nested: u32,
}

/// What a living process of a container was sent. Value of [`maps::NOTIFIED`]; the key is its thread
/// group in the agent's PID namespace (`u32`). Only of containers whose main process is PID 1 of a PID
/// namespace ([`CONTAINER_PID_ONE`]), and not of that main process.
///
/// Signals are counted where `signal_generate` is called (`__send_signal_locked`, kernel/signal.c),
/// whether they are thrown away or not, to whichever thread of the process they are sent, and from
/// wherever. The entry goes when the process' last thread exits (`sched_process_exit`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notified {
    /// `group_leader->start_boottime`, ns: a number is used again.
    pub started: u64,
    /// Signals that are reported for its container (bit n−1), but SIGKILL.
    pub sent: u64,
}

/// [`Container::flags`]: a stop or kill came to its main process from outside, or the OOM killer chose
/// that, or it has exited: deaths of its other processes are reported too. Never taken back, so what
/// happens to others than the main process does not set it, unless none is known.
pub const CONTAINER_DYING: u32 = 1;

/// [`Container::flags`]: the kernel side has put this entry into the map, and counted it
/// ([`filter`]).
pub const CONTAINER_COUNTED: u32 = 2;

/// [`Container::flags`]: its main process is PID 1 of a PID namespace, with which all others end. So
/// what happens among these decides nothing, and is counted ([`maps::NOTIFIED`], [`maps::ZAPPED`])
/// instead of reported.
pub const CONTAINER_PID_ONE: u32 = 4;

/// [`Container::flags`]: some process of it has had an entry in [`maps::NOTIFIED`].
pub const CONTAINER_NOTED: u32 = 8;

/// [`Container::flags`]: some signal to a process of it found no room in [`maps::NOTIFIED`].
pub const CONTAINER_UNNOTED: u32 = 16;

/// Length of a budget's window: 2^30 ns, a little over a second.
pub const WINDOW_SHIFT: u32 = 30;

/// Longest name of a QoS or pod level that can hold `kubepods`, plus one: a longer one is a
/// container's (`…-pod<uid>.slice:cri-containerd:<id>`, where two cgroup drivers disagree).
pub const LONGEST_POD_NAME: usize = 100;

/// Length of a container's id in hex digits, as all runtimes make them.
pub const ID_LEN: usize = 64;

/// Whether a cgroup with a name of this length is a container's own. Pods and QoS levels have
/// short names, or (systemd) long ones with `kubepods` in them; names of containers end in an id.
#[inline(always)]
pub const fn is_container_name(len: usize, holds_root_needle: bool) -> bool {
    len >= LONGEST_POD_NAME || (len >= ID_LEN && !holds_root_needle)
}

/// A signal's bit in a mask. Out of range wraps: the programs must not branch on it.
#[inline(always)]
pub const fn signal_bit(signal: u32) -> u64 {
    1 << (signal.wrapping_sub(1) & 63)
}

// Every value crosses as bytes: no size may change by accident, none may end in padding.
const _: () =
    assert!(size_of::<Layout>() == 196 + size_of::<TrafficLayout>() && align_of::<Layout>() == 8);
const _: () = assert!(size_of::<TrafficLayout>() == 116);
const _: () = assert!(size_of::<Container>() == 48 && align_of::<Container>() == 8);
const _: () = assert!(size_of::<Notified>() == 16 && align_of::<Notified>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_bits_count_from_one() {
        assert_eq!(signal_bit(1), 1);
        assert_eq!(signal_bit(9), 0x100);
        assert_eq!(signal_bit(64), 1 << 63);
        assert_eq!(signal_bit(0), 1 << 63, "wraps, never panics");
    }

    #[test]
    fn containers_are_told_from_pods_by_the_length_of_their_names() {
        let container = |name: &str| is_container_name(name.len(), name.contains("kubepods"));
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let uid = "8dbc5577_d0e2_4706_8787_57d52c03ddf2";
        extern crate std;
        use std::format;
        assert!(container(id));
        assert!(container(&format!("cri-containerd-{id}.scope")));
        assert!(container(&format!("crio-{id}")));
        assert!(container(&format!("kubepods-pod{uid}.slice:cri-containerd:{id}")));
        assert!(!container("kubepods"));
        assert!(!container("besteffort"));
        assert!(!container(&format!("pod{uid}")));
        assert!(!container(&format!("kubelet-kubepods-besteffort-pod{uid}.slice")));
    }
}
