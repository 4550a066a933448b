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
    input::{ConnectionEvent, TrafficCount, TrafficPeer},
    time::BootTime,
};
use coroner_ebpf::traffic::{PORTS, Traffic};
use parking_lot::Mutex;
use std::{net::IpAddr, sync::Arc};

/// The hook without which nothing is counted.
pub(super) const TRANSITIONS: &str = "inet_sock_set_state";
/// The hook that shows refused connections.
pub(super) const RESETS: &str = "tcp_send_reset";

/// `bpf(2)`: the key must not be there yet.
const BPF_NOEXIST: u64 = 1;

/// The programs that count connections, and their maps. Dropping it detaches them.
pub struct Counting {
    /// By the inode of /proc/PID/ns/net.
    entries: HashMap<MapData, u32, Value<Traffic>>,
    node_addresses: HashMap<MapData, [u8; 16], u32>,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the map of the programs is full")]
pub struct MapIsFull;

impl Counting {
    pub(super) fn new(
        entries: HashMap<MapData, u32, Value<Traffic>>,
        node_addresses: HashMap<MapData, [u8; 16], u32>,
        programs: Arc<Mutex<Ebpf>>,
        loaded: Vec<Hook>,
        skipped: Skipped,
    ) -> Self {
        let (attached, only_second) = (Vec::new(), false);
        Self { entries, node_addresses, programs, loaded, attached, skipped, only_second }
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

    /// Begins to count in a network namespace, with ports on which it listens.
    ///
    /// # Errors
    /// There is no room.
    pub fn insert(&mut self, netns: u32, listening: &[u16]) -> Result<(), MapIsFull> {
        let mut entry = Traffic::default();
        for (known, port) in entry.ports.iter_mut().zip(listening) {
            *known = *port;
        }
        entry.known = listening.len().min(PORTS) as u16;
        self.put(netns, entry)
    }

    pub(super) fn put(&mut self, netns: u32, entry: Traffic) -> Result<(), MapIsFull> {
        self.entries.insert(netns, Value(entry), BPF_NOEXIST).map_err(|_| MapIsFull)
    }

    /// What was counted; `None`: there is no such entry.
    pub fn read(&self, netns: u32) -> Option<Traffic> {
        self.entries.get(&netns, 0).ok().map(|Value(entry)| entry)
    }

    /// Counts no longer.
    pub fn remove(&mut self, netns: u32) {
        // Not being there is as good.
        let _ = self.entries.remove(&netns);
    }

    /// Clients with this address are the node.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_node_address(&mut self, address: IpAddr) -> Result<(), MapIsFull> {
        self.node_addresses.insert(mapped(address), 1, 0).map_err(|_| MapIsFull)
    }

    /// It is no longer the node's.
    pub fn remove_node_address(&mut self, address: IpAddr) {
        // Not being there is as good.
        let _ = self.node_addresses.remove(&mapped(address));
    }

    /// The calling thread can use the maps with the capabilities that it has.
    ///
    /// # Errors
    /// Why not.
    pub fn answers(&self) -> Result<(), MapError> {
        match self.entries.get(&0, 0) {
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
pub fn counts(entry: &Traffic) -> Vec<TrafficCount> {
    let mut counts = Vec::new();
    for (&peer, cells) in TrafficPeer::ALL.iter().zip(entry.cells) {
        let happened = ConnectionEvent::ALL.iter().zip(cells);
        counts.extend(happened.filter(|(_, cell)| cell.count > 0).map(|(&event, cell)| {
            // Counted, and its times not yet written: they are in a moment.
            let first = BootTime(if cell.first == 0 { cell.last } else { cell.first });
            let last = BootTime(cell.last.max(cell.first));
            TrafficCount { peer, event, count: cell.count, first, last }
        }));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_ebpf::traffic::{self, Cell, EVENTS, PEERS};

    #[test]
    fn the_numbers_of_the_programs_are_those_of_the_core() {
        use ConnectionEvent as E;
        use TrafficPeer as P;
        assert_eq!((P::ALL.len(), E::ALL.len()), (PEERS, EVENTS));
        assert_eq!(
            [traffic::CLIENT, traffic::NODE].map(|n| P::ALL[n as usize]),
            [P::Client, P::Node]
        );
        for (number, event) in [
            (traffic::OPENED, E::Opened),
            (traffic::OPENED_AFTER_STOP, E::OpenedAfterStop),
            (traffic::REFUSED, E::Refused),
            (traffic::REFUSED_AFTER_STOP, E::RefusedAfterStop),
            (traffic::CUT, E::Cut),
            (traffic::CUT_IDLE, E::CutIdle),
            (traffic::LISTENER_CLOSED, E::ListenerClosed),
            (traffic::LISTENER_CUT, E::ListenerCut),
        ] {
            assert_eq!(E::ALL[number as usize], event);
        }
    }

    #[test]
    fn what_never_happened_is_left_out() {
        let mut entry = Traffic::default();
        assert_eq!(counts(&entry), []);
        entry.cells[1][5] = Cell { count: 3, first: 0, last: 7 };
        let (peer, event) = (TrafficPeer::Node, ConnectionEvent::CutIdle);
        let (first, last) = (BootTime(7), BootTime(7));
        assert_eq!(counts(&entry), [TrafficCount { peer, event, count: 3, first, last }]);
    }
}
