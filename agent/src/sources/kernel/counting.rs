//! The programs that count connections, and what they have counted. Loaded at the start, attached on demand:
//! while they are not, they cost nothing.

use super::{
    object::{Value, raw_tracepoint},
    plan::Hook,
    skipped::Skipped,
};
use aya::{
    Ebpf,
    maps::{HashMap, MapData, MapError},
    programs::{ProgramError, raw_trace_point::RawTracePointLink},
};
use coroner_core::{
    ids::CgroupId,
    input::{ConnectionEvent, TrafficCount, TrafficPeer},
    time::BootTime,
};
use coroner_ebpf::traffic::{CELLS, Cell, Marked, OF_NODE, OF_TERMINATING, PAIRS, PORTS, Traffic};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    net::IpAddr,
    sync::Arc,
};

/// The hook without which nothing is counted.
pub(super) const TRANSITIONS: &str = "inet_sock_set_state";
/// The hook that shows refused connections.
pub(super) const RESETS: &str = "tcp_send_reset";

/// `bpf(2)`: the key must not be there yet.
const BPF_NOEXIST: u64 = 1;
/// `bpf(2)`: the key must be there.
const BPF_EXIST: u64 = 2;

/// The programs that count connections, and their maps. Dropping it detaches them.
pub struct Counting {
    entries: HashMap<MapData, Value<Marked>, Value<Traffic>>,
    stops: HashMap<MapData, Value<Marked>, u64>,
    addresses: HashMap<MapData, [u8; 16], u32>,
    /// How many owners an address has, by kind.
    owners: BTreeMap<([u8; 16], AddressKind), u32>,
    programs: Arc<Mutex<Ebpf>>,
    /// The hooks whose programs the kernel has accepted.
    loaded: Vec<Hook>,
    attached: Vec<Attached>,
    skipped: Skipped,
    /// See [`KernelOptions::only_second`](super::KernelOptions::only_second).
    pub(super) only_second: bool,
}

/// A hook whose programs are attached, in the order in which they run.
struct Attached {
    hook: &'static str,
    links: Vec<RawTracePointLink>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // The second one first: alone it would take every event for one that was skipped.
        while self.links.pop().is_some() {}
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

/// A map of the programs is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the map of the programs is full")]
pub struct MapIsFull;

/// What an address is. If it has several owners, the first kind counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AddressKind {
    /// One of the node's own.
    Node,
    /// Of a pod that is terminating.
    Terminating,
}

/// The entry of a network namespace, or (with a cgroup) of a container in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EntryKey {
    /// The inode of /proc/PID/ns/net.
    pub netns: u32,
    /// The container's own cgroup; `None`: the pod's entry, which marks the namespace.
    pub cgroup: Option<CgroupId>,
}

impl EntryKey {
    fn marked(self) -> Value<Marked> {
        let cgroup = self.cgroup.map_or(0, |cgroup| cgroup.0);
        Value(Marked { netns: self.netns, reserved: 0, cgroup })
    }
}

impl Counting {
    pub(super) fn new(
        entries: HashMap<MapData, Value<Marked>, Value<Traffic>>,
        stops: HashMap<MapData, Value<Marked>, u64>,
        addresses: HashMap<MapData, [u8; 16], u32>,
        programs: Arc<Mutex<Ebpf>>,
        loaded: Vec<Hook>,
        skipped: Skipped,
    ) -> Self {
        let owners = BTreeMap::new();
        Self {
            entries,
            stops,
            addresses,
            owners,
            programs,
            loaded,
            attached: Vec::new(),
            skipped,
            only_second: false,
        }
    }

    /// The self-test has refused this hook.
    pub(super) fn refuse(&mut self, hook: &str) {
        self.loaded.retain(|loaded| loaded.name != hook);
        self.attached.retain(|attached| attached.hook != hook);
    }

    /// Connections can be counted at all.
    pub fn is_usable(&self) -> bool {
        self.loads(TRANSITIONS)
    }

    /// Refused connections are visible once the programs are attached.
    pub fn shows_refusals(&self) -> bool {
        self.loads(RESETS)
    }

    /// How many events of connections, of any namespace, the programs have missed until now.
    pub fn lost(&mut self) -> u64 {
        self.skipped.lost()
    }

    fn loads(&self, hook: &str) -> bool {
        self.loaded.iter().any(|loaded| loaded.name == hook)
    }

    /// The programs are attached.
    pub fn is_attached(&self) -> bool {
        self.attached.iter().any(|attached| attached.hook == TRANSITIONS)
    }

    /// Refused connections are visible now.
    pub fn sees_refusals(&self) -> bool {
        self.attached.iter().any(|attached| attached.hook == RESETS)
    }

    /// Attaches the programs, unless they are. Takes up to 35 ms soon after they were detached (RCU).
    ///
    /// # Errors
    /// The text of the kernel's error, if the hook without which nothing is counted cannot be attached.
    pub fn attach(&mut self) -> Result<(), String> {
        let mut programs = self.programs.lock();
        for hook in &self.loaded {
            if self.attached.iter().any(|attached| attached.hook == hook.name) {
                continue;
            }
            let mut attach = |name: &String| {
                let program = raw_tracepoint(&mut programs, name)?;
                let id = program.attach(hook.name)?;
                program.take_link(id)
            };
            let links: Result<Vec<_>, ProgramError> =
                hook.attached(self.only_second).iter().map(&mut attach).collect();
            match links {
                Ok(links) => self.attached.push(Attached { hook: hook.name, links }),
                Err(error) if hook.name == TRANSITIONS => return Err(error.to_string()),
                Err(error) => {
                    tracing::warn!(hook = hook.name, %error, "refused connections are not visible")
                }
            }
        }
        Ok(())
    }

    /// Detaches the programs; what they have counted stays.
    pub fn detach(&mut self) {
        self.attached.clear();
    }

    /// Begins to count, with ports on which a pod listens. The programs record the pod's stop signal with
    /// its own entry.
    ///
    /// # Errors
    /// There is no room.
    pub fn insert(&mut self, key: EntryKey, listening: &[u16]) -> Result<(), MapIsFull> {
        if key.cgroup.is_none() {
            self.stops.insert(key.marked(), 0, BPF_NOEXIST).map_err(|_| MapIsFull)?;
        }
        let mut entry = Traffic::NOTHING;
        for (known, port) in entry.ports.iter_mut().zip(listening) {
            *known = *port;
        }
        entry.known = listening.len().min(PORTS) as u16;
        self.put(key, entry).inspect_err(|MapIsFull| self.remove(key))
    }

    pub(super) fn put(&mut self, key: EntryKey, entry: Traffic) -> Result<(), MapIsFull> {
        self.entries.insert(key.marked(), Value(entry), BPF_NOEXIST).map_err(|_| MapIsFull)
    }

    /// What was counted; `None`: there is no such entry.
    pub fn read(&self, key: EntryKey) -> Option<Traffic> {
        self.entries.get(&key.marked(), 0).ok().map(|Value(entry)| entry)
    }

    /// The program has seen a stop signal.
    pub fn is_stopped(&self, key: EntryKey) -> bool {
        self.stops.get(&key.marked(), 0).is_ok_and(|at| at != 0)
    }

    /// Forgets what was counted, but not the ports, the namespace's identity and the stop signal.
    pub fn reset(&mut self, key: EntryKey) {
        if let Some(entry) = self.read(key) {
            let entry = Traffic { cells: [Cell::default(); CELLS], ..entry };
            // Gone in the meantime is as good.
            let _ = self.entries.insert(key.marked(), Value(entry), BPF_EXIST);
        }
    }

    /// Counts no longer.
    pub fn remove(&mut self, key: EntryKey) {
        // Not being there is as good.
        let _ = self.entries.remove(&key.marked());
        if key.cgroup.is_none() {
            let _ = self.stops.remove(&key.marked());
        }
    }

    /// Adds an owner of this address. The same address may be of the node and of pods: anyone who may configure a
    /// pod's network can add any address to it.
    ///
    /// # Errors
    /// There is no room; the address has no owner more.
    pub fn name_address(&mut self, address: IpAddr, kind: AddressKind) -> Result<(), MapIsFull> {
        let key = mapped(address);
        *self.owners.entry((key, kind)).or_default() += 1;
        self.apply_owners(key).map_err(|_| {
            self.forget_address(address, kind);
            MapIsFull
        })
    }

    /// Removes an owner of this address.
    pub fn forget_address(&mut self, address: IpAddr, kind: AddressKind) {
        let key = mapped(address);
        if let Entry::Occupied(mut owners) = self.owners.entry((key, kind)) {
            *owners.get_mut() -= 1;
            if *owners.get() == 0 {
                owners.remove();
            }
        }
        // There is room for what is replaced, and not being there is as good as removed.
        let _ = self.apply_owners(key);
    }

    fn apply_owners(&mut self, key: [u8; 16]) -> Result<(), MapError> {
        let kinds = (key, AddressKind::Node)..=(key, AddressKind::Terminating);
        match self.owners.range(kinds).next() {
            Some(((_, AddressKind::Node), _)) => self.addresses.insert(key, OF_NODE, 0),
            Some(((_, AddressKind::Terminating), _)) => {
                self.addresses.insert(key, OF_TERMINATING, 0)
            }
            None => self.addresses.remove(&key),
        }
    }

    /// The calling thread can use the maps with the capabilities that it has.
    ///
    /// # Errors
    /// Why not.
    pub fn answers(&self) -> Result<(), MapError> {
        match self.entries.get(&Value(Marked::default()), 0) {
            Ok(_) | Err(MapError::KeyNotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// As the programs look it up.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// What an entry says, without what never happened.
pub fn counts(cgroup: Option<CgroupId>, entry: &Traffic) -> Vec<TrafficCount> {
    let happened = PAIRS.iter().zip(&entry.cells).filter(|(_, cell)| cell.count > 0);
    let count = |((peer, event), cell): (&(u32, u32), &Cell)| {
        Some(TrafficCount {
            cgroup,
            peer: *TrafficPeer::ALL.get(*peer as usize)?,
            event: *ConnectionEvent::ALL.get(*event as usize)?,
            count: cell.count,
            // Counted, and its times not yet written: they are in a moment.
            first: BootTime(if cell.first == 0 { cell.last } else { cell.first }),
            last: BootTime(cell.last.max(cell.first)),
        })
    };
    happened.filter_map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_ebpf::traffic::{self, EVENTS, PEERS};

    #[test]
    fn the_numbers_of_the_programs_are_those_of_the_core() {
        use ConnectionEvent as E;
        use TrafficPeer as P;
        assert_eq!((P::ALL.len(), E::ALL.len()), (PEERS, EVENTS));
        for (number, peer) in [
            (traffic::CLIENT, P::Client),
            (traffic::NODE, P::Node),
            (traffic::TERMINATING, P::Terminating),
            (traffic::OUTBOUND, P::Outbound),
            (traffic::INTERNAL, P::Internal),
        ] {
            assert_eq!(P::ALL[number as usize], peer);
        }
        for (number, event) in [
            (traffic::OPENED, E::Opened),
            (traffic::OPENED_AFTER_STOP, E::OpenedAfterStop),
            (traffic::REFUSED, E::Refused),
            (traffic::REFUSED_AFTER_STOP, E::RefusedAfterStop),
            (traffic::RESET_AFTER_END, E::ResetAfterEnd),
            (traffic::CLOSED, E::Closed),
            (traffic::PEER_CLOSED, E::PeerClosed),
            (traffic::RESET, E::Reset),
            (traffic::PEER_RESET, E::PeerReset),
            (traffic::TIMED_OUT, E::TimedOut),
            (traffic::UNACCEPTED, E::Unaccepted),
            (traffic::CUT_IDLE, E::CutIdle),
            (traffic::CUT_REQUEST, E::CutRequest),
            (traffic::CUT_SENDING, E::CutSending),
            (traffic::CUT_UNREAD, E::CutUnread),
            (traffic::CUT_HALF_CLOSED, E::CutHalfClosed),
            (traffic::CUT_HALF_CLOSED_UNREAD, E::CutHalfClosedUnread),
            (traffic::RESET_HALF_CLOSED, E::ResetHalfClosed),
            (traffic::LISTENER_CLOSED, E::ListenerClosed),
            (traffic::LISTENER_CUT, E::ListenerCut),
            (traffic::ENDED, E::Ended),
        ] {
            assert_eq!(E::ALL[number as usize], event);
        }
    }

    #[test]
    fn what_never_happened_is_left_out() {
        let mut entry = Traffic::NOTHING;
        assert_eq!(counts(None, &entry), []);
        let cell = traffic::cell_of(traffic::INTERNAL, traffic::CUT_IDLE);
        entry.cells[usize::from(cell)] = Cell { count: 3, first: 0, last: 7 };
        let expected = TrafficCount {
            cgroup: Some(CgroupId(5)),
            peer: TrafficPeer::Internal,
            event: ConnectionEvent::Ended,
            count: 3,
            first: BootTime(7),
            last: BootTime(7),
        };
        assert_eq!(counts(Some(CgroupId(5)), &entry), [expected]);
    }

    #[test]
    fn addresses_are_looked_up_as_ipv6_has_them() {
        let v4 = mapped("10.1.2.3".parse().unwrap());
        assert_eq!(v4, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(mapped("::1".parse().unwrap())[15], 1);
    }
}
