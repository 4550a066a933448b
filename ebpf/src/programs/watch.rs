//! What is watched: the map of cgroups.

use super::{
    emit::{LOST, To, copy, count, header},
    filter,
    read::{Address, cgroup_of, layout, tgid},
};
use aya_ebpf::{macros::map, maps::HashMap};
use coroner_ebpf::{
    CONTAINER_COUNTED, CONTAINER_DYING, CONTAINER_NOTED, CONTAINER_PID_ONE, CONTAINER_UNNOTED,
    Container, WINDOW_SHIFT,
    maps::{CONTAINERS_MAX, LOST_BUDGET},
    record::{COMM_LEN, Moment, Peer, SPENT},
    signal_bit,
};

#[map]
pub(super) static CONTAINERS: HashMap<u64, Container> =
    HashMap::with_max_entries(CONTAINERS_MAX, 0);

/// A watched cgroup: a value of `CONTAINERS`, shared with all CPUs. Its words are read and written
/// one by one and without locks: what a race can lose is a count, never an entry.
#[derive(Clone, Copy)]
pub(super) struct WatchedCgroup(*mut Container);

macro_rules! get {
    ($this:expr, $member:ident) => {
        // SAFETY: the pointer came from a lookup in this run of the program, during which a
        // value's memory stays a value of this map.
        unsafe { core::ptr::read_volatile(&raw const (*$this.0).$member) }
    };
}

macro_rules! set {
    ($this:expr, $member:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(&raw mut (*$this.0).$member, value) }
    }};
}

impl WatchedCgroup {
    /// The one lookup, and for what is not watched hardly ever one.
    #[inline(always)]
    pub(super) fn find(cgroup: u64) -> Option<Self> {
        if filter::may_hold(cgroup) { Self::look_up(cgroup) } else { None }
    }

    /// The lookup, for a cgroup that has passed the filter.
    #[inline(always)]
    pub(super) fn look_up(cgroup: u64) -> Option<Self> {
        CONTAINERS.get_ptr_mut(cgroup).map(Self)
    }

    /// The container that this cgroup belongs to, itself if it is one (or is above containers).
    #[inline(always)]
    pub(super) fn owner(self, cgroup: u64) -> Self {
        let owner = get!(self, owner);
        if owner == 0 || owner == cgroup { self } else { Self::look_up(owner).unwrap_or(self) }
    }

    /// Id of the container that this cgroup belongs to; 0 above containers.
    #[inline(always)]
    pub(super) fn owner_id(self) -> u64 {
        get!(self, owner)
    }

    #[inline(always)]
    pub(super) fn depth(self) -> u32 {
        get!(self, depth)
    }

    #[inline(always)]
    pub(super) fn wants(self, signal: u32) -> bool {
        (layout!(signal_mask) | get!(self, signal_mask)) & signal_bit(signal) != 0
    }

    /// This signal is learned to be the container's stop signal.
    #[inline(always)]
    pub(super) fn stopped_by(self, signal: u32) -> bool {
        get!(self, signal_mask) & signal_bit(signal) != 0
    }

    #[inline(always)]
    fn is(self, flag: u32) -> bool {
        get!(self, flags) & flag != 0
    }

    #[inline(always)]
    fn mark(self, flag: u32) {
        set!(self, flags, get!(self, flags) | flag);
    }

    #[inline(always)]
    pub(super) fn is_dying(self) -> bool {
        self.is(CONTAINER_DYING)
    }

    #[inline(always)]
    pub(super) fn set_dying(self) {
        self.mark(CONTAINER_DYING);
    }

    /// The kernel side has made this entry.
    #[inline(always)]
    pub(super) fn is_counted(self) -> bool {
        self.is(CONTAINER_COUNTED)
    }

    /// The main process is PID 1 of a PID namespace.
    #[inline(always)]
    pub(super) fn is_pid_one(self) -> bool {
        self.is(CONTAINER_PID_ONE)
    }

    #[inline(always)]
    pub(super) fn set_pid_one(self) {
        self.mark(CONTAINER_PID_ONE);
    }

    /// Some process of it has had an entry in `NOTIFIED`.
    #[inline(always)]
    pub(super) fn has_noted(self) -> bool {
        self.is(CONTAINER_NOTED)
    }

    /// Some process of it could have none.
    #[inline(always)]
    pub(super) fn is_unnoted(self) -> bool {
        self.is(CONTAINER_UNNOTED)
    }

    #[inline(always)]
    pub(super) fn set_unnoted(self) {
        self.mark(CONTAINER_UNNOTED);
    }

    /// Entries that it has in `NOTIFIED`.
    #[inline(always)]
    pub(super) fn notified(self) -> u32 {
        get!(self, notified)
    }

    /// It has one more.
    #[inline(always)]
    pub(super) fn add_notified(self) {
        set!(self, notified, self.notified() + 1);
        if !self.has_noted() {
            self.mark(CONTAINER_NOTED);
        }
    }

    /// It has one less.
    #[inline(always)]
    pub(super) fn take_notified(self) {
        let notified = self.notified();
        if notified > 0 {
            set!(self, notified, notified - 1);
        }
    }

    /// Cgroups below it that `cgroup_mkdir` has put into the map.
    #[inline(always)]
    pub(super) fn nested(self) -> u32 {
        get!(self, nested)
    }

    #[inline(always)]
    pub(super) fn set_nested(self, nested: u32) {
        set!(self, nested, nested);
    }

    /// The main process' thread group, 0 while none is known.
    #[inline(always)]
    pub(super) fn main(self) -> u32 {
        get!(self, main)
    }

    /// This process is the main one, or may be for all that is known.
    #[inline(always)]
    pub(super) fn may_be_main(self, tgid: u32) -> bool {
        let main = self.main();
        main == 0 || main == tgid
    }

    #[inline(always)]
    pub(super) fn set_main(self, tgid: u32) {
        set!(self, main, tgid);
    }

    /// Takes one detail record, about this cgroup of the container, off the budget. If there is none
    /// left, the record is counted as dropped, and the first one in a window is told of.
    #[inline(always)]
    pub(super) fn spend(self, now: u64, cgroup: u64) -> bool {
        let window = now >> WINDOW_SHIFT;
        let spent = if get!(self, window) == window {
            get!(self, spent)
        } else {
            set!(self, spent, 0);
            set!(self, window, window);
            0
        };
        let budget = layout!(budget);
        // Not into a new window's, if this program was preempted since.
        if spent <= budget && get!(self, window) == window {
            set!(self, spent, spent + 1);
        }
        if spent >= budget {
            count(&LOST, LOST_BUDGET);
            if spent == budget {
                tell_spent(now, cgroup);
            }
            return false;
        }
        true
    }
}

/// The container's own affairs can no longer be told whole: as if its budget were spent.
#[inline(always)]
pub(super) fn run_out(now: u64, cgroup: u64) {
    count(&LOST, LOST_BUDGET);
    tell_spent(now, cgroup);
}

/// Whose evidence is missing from now on, as nobody else's is.
#[inline(never)]
fn tell_spent(now: u64, cgroup: u64) {
    let window = now >> WINDOW_SHIFT;
    let value = window.wrapping_add(1) << WINDOW_SHIFT;
    copy(To::Deciding, &Moment { header: header(SPENT, now, cgroup), value });
}

/// Chatter is dropped before anything is looked up. The exception, a container whose stop signal
/// is chatter, costs one more read.
#[inline(always)]
pub(super) fn is_chatter(signal: u32) -> bool {
    layout!(chatter_mask) & signal_bit(signal) != 0 && filter::unmuted() & signal_bit(signal) == 0
}

/// A sender or a parent, of which most events need no more than whose it is.
#[derive(Clone, Copy)]
pub(super) struct Other {
    /// Any task of it.
    task: Address,
    cgroup: u64,
    /// Its container; 0: none.
    pub(super) owner: u64,
}

impl Other {
    #[inline(always)]
    pub(super) fn new(task: Address, cgroup: u64) -> Self {
        let owner = WatchedCgroup::find(cgroup).map_or(0, WatchedCgroup::owner_id);
        Self { task, cgroup, owner }
    }

    #[inline(always)]
    pub(super) fn parent(task: Address) -> Self {
        let parent = task.pointer(layout!(task_real_parent));
        Self::new(parent, cgroup_of(parent))
    }

    #[inline(always)]
    pub(super) fn tgid(self) -> u32 {
        tgid(self.task)
    }

    #[inline(always)]
    pub(super) fn peer(self) -> Peer {
        let comm: [u8; COMM_LEN] = self.task.read(layout!(task_comm));
        let in_container = u32::from(self.owner != 0);
        Peer { cgroup: self.cgroup, tgid: self.tgid(), in_container, comm }
    }
}
