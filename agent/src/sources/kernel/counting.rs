//! The programs that count connections, and what they have counted. Loaded at the start, attached on demand:
//! while they are not, they cost nothing.

use super::{
    object::{BPF_NOEXIST, Value, raw_tracepoint},
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
pub const TRANSITIONS: &str = "inet_sock_set_state";
/// The hook that shows refused connections.
pub const RESETS: &str = "tcp_send_reset";

/// The programs that count connections, and their maps. Dropping it detaches them.
pub struct Counting {
    /// By the inode of /proc/PID/ns/net.
    pub(super) entries: HashMap<MapData, u32, Value<Traffic>>,
    pub(super) node_addresses: HashMap<MapData, [u8; 16], u32>,
    pub(super) programs: Arc<Mutex<Ebpf>>,
    /// The hooks whose programs the kernel has accepted.
    pub(super) loaded: Vec<Hook>,
    pub(super) attached: Vec<Attached>,
    pub(super) skipped: Skipped,
    /// See [`KernelOptions::only_second`](super::KernelOptions::only_second).
    pub(super) only_second: bool,
}

/// A hook whose programs are attached, in the order in which they run.
pub(super) struct Attached {
    hook: &'static str,
    links: Vec<RawTracePointLink>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // The second one first: alone it would take every event for one that was skipped.
        while self.links.pop().is_some() {}
    }
}

impl Counting {
    /// The self-test has refused this hook.
    pub(super) fn refuse(&mut self, hook: &str) {
        self.loaded.retain(|loaded| loaded.name != hook);
        self.attached.retain(|attached| attached.hook != hook);
    }

    /// The kernel has accepted the programs of this hook.
    pub fn loads(&self, hook: &str) -> bool {
        self.loaded.iter().any(|loaded| loaded.name == hook)
    }

    pub fn attaches(&self, hook: &str) -> bool {
        self.attached.iter().any(|attached| attached.hook == hook)
    }

    /// How many events of connections, of any namespace, the programs have missed until now.
    pub fn lost(&mut self) -> u64 {
        self.skipped.lost()
    }

    /// Attaches the programs, unless they are. Takes up to 35 ms soon after they were detached (RCU).
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
    pub fn insert(&mut self, netns: u32, listening: &[u16]) -> Result<(), MapError> {
        let mut entry = Traffic::default();
        for (known, port) in entry.ports.iter_mut().zip(listening) {
            *known = *port;
        }
        entry.known = listening.len().min(PORTS) as u16;
        self.put(netns, entry)
    }

    pub(super) fn put(&mut self, netns: u32, entry: Traffic) -> Result<(), MapError> {
        self.entries.insert(netns, Value(entry), BPF_NOEXIST)
    }

    pub fn read(&self, netns: u32) -> Option<Traffic> {
        self.entries.get(&netns, 0).ok().map(|Value(entry)| entry)
    }

    pub fn remove(&mut self, netns: u32) {
        // Not being there is as good.
        let _ = self.entries.remove(&netns);
    }

    /// Clients with this address are the node.
    pub fn add_node_address(&mut self, address: IpAddr) -> Result<(), MapError> {
        self.node_addresses.insert(mapped(address), 1, 0)
    }

    pub fn remove_node_address(&mut self, address: IpAddr) {
        // Not being there is as good.
        let _ = self.node_addresses.remove(&mapped(address));
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
