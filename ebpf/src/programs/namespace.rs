//! Processes that end with their PID namespace: counted, and reported as one record. Only of
//! containers whose main process is known to be PID 1 of a PID namespace.

use super::{
    emit::{LOST, To, copy, count as count_lost, now},
    read::{Address, layout},
    watch::{Other, WatchedCgroup, run_out},
};
use aya_ebpf::{bindings::BPF_NOEXIST, macros::map, maps::HashMap};
use coroner_ebpf::{
    Notified,
    maps::{LOST_BUDGET, NOTIFIED_MAX, NOTIFIED_SHARE, ZAPPED_MAX},
    record::{COMM_LEN, EXAMPLES, Example, SIGNALS, Zapped},
    signal_bit,
};

#[map]
static NOTIFIED: HashMap<u32, Notified> = HashMap::with_max_entries(NOTIFIED_MAX, 0);

#[map]
static ZAPPED: HashMap<u64, Zapped> = HashMap::with_max_entries(ZAPPED_MAX, 0);

/// What an entry of `ZAPPED` is made from: too large for the stack.
static NOTHING: Zapped = Zapped::NOTHING;

/// Examples of either sort.
const HALF: u32 = EXAMPLES as u32 / 2;

macro_rules! get {
    ($this:expr, $member:ident) => {
        // SAFETY: the pointer came from a lookup in this run of the program, during which a
        // value's memory stays a value of its map.
        unsafe { core::ptr::read_volatile(&raw const (*$this).$member) }
    };
}

macro_rules! set {
    ($this:expr, $member:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(&raw mut (*$this).$member, value) }
    }};
}

/// `sched_process_exit` counts on nothing that comes after it: no living thread is left.
#[inline(always)]
fn has_ended(shared: Address) -> bool {
    shared.read::<u32>(layout!(signal_live)) == 0
}

/// A process other than the main one is sent a signal. The target's `siglock` is held, so one sender
/// at a time comes here for it.
#[inline(always)]
pub(super) fn note(owner: WatchedCgroup, task: Address, shared: Address, tgid: u32, signal: u32) {
    // Nobody would take its entry out.
    if has_ended(shared) {
        return;
    }
    let sent = signal_bit(signal);
    let started = task.pointer(layout!(task_group_leader)).read(layout!(task_start_boottime));
    if let Some(known) = NOTIFIED.get_ptr_mut(tgid) {
        // Of one that left its container before it ended, the entry stays until its number is used again.
        let before = if get!(known, started) == started { get!(known, sent) } else { 0 };
        set!(known, started, started);
        set!(known, sent, before | sent);
        return;
    }
    let room = owner.notified() < NOTIFIED_SHARE;
    if !room || NOTIFIED.insert(tgid, Notified { started, sent }, 0).is_err() {
        count_lost(&LOST, LOST_BUDGET);
        owner.set_unnoted();
        return;
    }
    owner.add_notified();
    // Its last thread may have exited in between. If not by now, then that finds the entry.
    if has_ended(shared) {
        forget(owner, tgid);
    }
}

/// A process has ended.
#[inline(always)]
pub(super) fn forget(owner: WatchedCgroup, tgid: u32) {
    if owner.has_noted() && NOTIFIED.remove(tgid).is_ok() {
        owner.take_notified();
    }
}

/// The container's PID 1 exits. If there is no room to count what it leaves, that is told.
#[inline(always)]
pub(super) fn ends(owner: WatchedCgroup, init: u32, time: u64, cgroup: u64) {
    let id = owner.owner_id();
    // Where the tracepoint has no `group_dead`, two threads may both come here, and what was counted
    // after the first must stay.
    #[expect(
        clippy::needless_borrows_for_generic_args,
        reason = "a copy is too large for the stack"
    )]
    let made = ZAPPED.insert(id, &NOTHING, u64::from(BPF_NOEXIST)).is_ok();
    match ZAPPED.get_ptr_mut(id) {
        Some(zapped) if made => set!(zapped, init, init),
        Some(_) => {}
        None => run_out(time, cgroup),
    }
}

/// A process that the kernel sends SIGKILL, of its own accord and in the name of a process of the same
/// container.
pub(super) struct Killed {
    pub(super) task: Address,
    pub(super) shared: Address,
    /// In whose name.
    pub(super) by: u32,
    /// `TRACE_SIGNAL_DELIVERED`: not its second SIGKILL, which is `TRACE_SIGNAL_IGNORED` or (before
    /// 6.1) `TRACE_SIGNAL_ALREADY_PENDING`.
    pub(super) took: bool,
}

/// Counts it, if the container's PID 1 has exited: then it is `zap_pid_ns_processes` that kills, of the
/// container's PID namespace, or of one within whose PID 1 is dying of that. False: PID 1 lives (or
/// there was no room).
///
/// Once for each thread group: the kernel skips threads that have SIGKILL pending, as all of a group
/// have after the first. Two CPUs never write one count: the PID 1 kills in a loop, on behalf of one
/// of its threads; what others count is a word of its own.
#[inline(always)]
pub(super) fn count(owner: WatchedCgroup, tgid: u32, killed: Killed) -> bool {
    let Some(zapped) = ZAPPED.get_ptr_mut(owner.owner_id()) else { return false };
    let Killed { task, shared, by, took } = killed;
    // PID 1 may not reap: the kernel kills zombies too, to no effect.
    if !took || has_ended(shared) {
        return true;
    }
    if by != get!(zapped, init) {
        set!(zapped, nested, get!(zapped, nested) + 1);
        return true;
    }
    let count = get!(zapped, killed);
    set!(zapped, killed, count + 1);
    if owner.is_unnoted() {
        set!(zapped, uncertain, 1);
    }
    if Other::parent(task).owner == 0 {
        set!(zapped, entered, get!(zapped, entered) + 1);
        return true;
    }
    let started: u64 = task.pointer(layout!(task_group_leader)).read(layout!(task_start_boottime));
    let sent = match NOTIFIED.get_ptr_mut(tgid) {
        Some(known) if get!(known, started) == started => get!(known, sent),
        _ => 0,
    };
    let silent = get!(zapped, silent);
    let (nth, first) = if sent == 0 {
        set!(zapped, silent, silent + 1);
        (silent, 0)
    } else {
        for n in 0..SIGNALS {
            // SAFETY: in bounds, and as above. Without a branch: the verifier follows all of them.
            unsafe {
                let counter = (&raw mut (*zapped).sent).cast::<u32>().wrapping_add(n);
                let before = core::ptr::read_volatile(counter);
                core::ptr::write_volatile(counter, before + (sent >> n & 1) as u32);
            }
        }
        (count.wrapping_sub(get!(zapped, entered)).wrapping_sub(silent), HALF)
    };
    if nth < HALF {
        let comm: [u8; COMM_LEN] = task.read(layout!(task_comm));
        let slot = (first + nth) as usize % EXAMPLES;
        // SAFETY: in bounds, and as above.
        unsafe {
            let example = (&raw mut (*zapped).examples).cast::<Example>().wrapping_add(slot);
            core::ptr::write_volatile(example, Example { comm, sent });
        }
    }
    true
}

/// A cgroup is empty, or removed: reports what was killed, if it is a container's whose PID 1 has
/// exited.
#[inline(always)]
pub(super) fn report(cgroup: u64) {
    let Some(zapped) = ZAPPED.get_ptr_mut(cgroup) else { return };
    if get!(zapped, killed) | get!(zapped, nested) != 0 {
        let time = now();
        // SAFETY: as above. Nobody is left who would write to it.
        let record = unsafe { &mut *zapped };
        record.header.time = time;
        record.header.cgroup = cgroup;
        // What ends something comes after it.
        copy(To::Deciding, record);
    }
    // Gone already: then it was reported.
    let _ = ZAPPED.remove(cgroup);
}
