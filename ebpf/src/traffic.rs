//! What is counted of the TCP connections in a marked network namespace: the cells of one entry of
//! [`maps::TRAFFIC`](crate::maps::TRAFFIC), by who is at the other end and what happens. The numbers of
//! both are those of the core's closed sets, in their order.

/// Who is at the other end: a row of the cells.
pub const CLIENT: u32 = 0;
/// One of the node's own addresses.
pub const NODE: u32 = 1;
/// A pod that is terminating, too.
pub const TERMINATING: u32 = 2;
/// Whoever the pod connects to.
pub const OUTBOUND: u32 = 3;
/// The pod itself.
pub const INTERNAL: u32 = 4;
/// How many rows there are.
pub const PEERS: usize = 5;

/// A handshake was completed.
pub const OPENED: u32 = 0;
/// The same after the stop signal.
pub const OPENED_AFTER_STOP: u32 = 1;
/// RST to a SYN.
pub const REFUSED: u32 = 2;
/// The same after the stop signal.
pub const REFUSED_AFTER_STOP: u32 = 3;
/// RST to something else.
pub const RESET_AFTER_END: u32 = 4;
/// Closed by a process that is not exiting.
pub const CLOSED: u32 = 5;
/// The peer closed first.
pub const PEER_CLOSED: u32 = 6;
/// Reset by a process that is not exiting.
pub const RESET: u32 = 7;
/// The peer reset it.
pub const PEER_RESET: u32 = 8;
/// Another error.
pub const TIMED_OUT: u32 = 9;
/// No process had accepted it.
pub const UNACCEPTED: u32 = 10;
/// By exit, with nothing outstanding.
pub const CUT_IDLE: u32 = 11;
/// By exit, with data after the last that was sent.
pub const CUT_REQUEST: u32 = 12;
/// By exit, with data that was not acknowledged.
pub const CUT_SENDING: u32 = 13;
/// By exit, with unread data.
pub const CUT_UNREAD: u32 = 14;
/// By exit, after the peer had half-closed, with data after the last that was sent.
pub const CUT_HALF_CLOSED: u32 = 15;
/// By exit, after the peer had half-closed, with unread data.
pub const CUT_HALF_CLOSED_UNREAD: u32 = 16;
/// Reset after the peer had closed or half-closed, not by exit; or nobody had accepted it.
pub const RESET_HALF_CLOSED: u32 = 17;
/// A listener, by a process that is not exiting.
pub const LISTENER_CLOSED: u32 = 18;
/// A listener, by exit.
pub const LISTENER_CUT: u32 = 19;
/// Any end.
pub const ENDED: u32 = 20;
/// How many events there are.
pub const EVENTS: usize = 21;

/// Where the programs look a cell up: [`cell_of`] by `peer << 5 | event`.
pub const TABLE: [u8; 256] = table();
/// Not counted.
pub const NO_CELL: u8 = u8::MAX;

/// The pairs that have a cell of their own, in the order of the cells.
pub const PAIRS: [(u32, u32); CELLS] = [
    (CLIENT, OPENED),
    (CLIENT, OPENED_AFTER_STOP),
    (CLIENT, REFUSED),
    (CLIENT, REFUSED_AFTER_STOP),
    (CLIENT, RESET_AFTER_END),
    (CLIENT, CLOSED),
    (CLIENT, PEER_CLOSED),
    (CLIENT, RESET),
    (CLIENT, PEER_RESET),
    (CLIENT, TIMED_OUT),
    (CLIENT, UNACCEPTED),
    (CLIENT, CUT_IDLE),
    (CLIENT, CUT_REQUEST),
    (CLIENT, CUT_SENDING),
    (CLIENT, CUT_UNREAD),
    (CLIENT, CUT_HALF_CLOSED),
    (CLIENT, CUT_HALF_CLOSED_UNREAD),
    (CLIENT, RESET_HALF_CLOSED),
    // A listener has no peer.
    (CLIENT, LISTENER_CLOSED),
    (CLIENT, LISTENER_CUT),
    (NODE, OPENED),
    (NODE, OPENED_AFTER_STOP),
    (NODE, REFUSED),
    (NODE, REFUSED_AFTER_STOP),
    (NODE, RESET_AFTER_END),
    (NODE, CLOSED),
    (NODE, PEER_CLOSED),
    (NODE, RESET),
    (NODE, PEER_RESET),
    (NODE, TIMED_OUT),
    (NODE, UNACCEPTED),
    (NODE, CUT_IDLE),
    (NODE, CUT_REQUEST),
    (NODE, CUT_SENDING),
    (NODE, CUT_UNREAD),
    (NODE, CUT_HALF_CLOSED),
    (NODE, CUT_HALF_CLOSED_UNREAD),
    (NODE, RESET_HALF_CLOSED),
    (OUTBOUND, OPENED),
    (OUTBOUND, CLOSED),
    (OUTBOUND, PEER_CLOSED),
    (OUTBOUND, RESET),
    (OUTBOUND, PEER_RESET),
    (OUTBOUND, TIMED_OUT),
    (OUTBOUND, CUT_IDLE),
    (OUTBOUND, CUT_REQUEST),
    (OUTBOUND, CUT_SENDING),
    (OUTBOUND, CUT_UNREAD),
    (TERMINATING, OPENED),
    (TERMINATING, REFUSED),
    (TERMINATING, ENDED),
    (INTERNAL, OPENED),
    (INTERNAL, ENDED),
];

/// How many cells an entry has.
pub const CELLS: usize = 53;

/// How often something happened, and when, ns of CLOCK_BOOTTIME; all 0: never.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// How often.
    pub count: u64,
    /// The first time. Two CPUs may both write it: then it is the one's or the other's.
    pub first: u64,
    /// The last time, likewise.
    pub last: u64,
}

/// Key of [`maps::TRAFFIC`](crate::maps::TRAFFIC).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// The network namespace: `net->ns.inum`, the inode of /proc/PID/ns/net.
    pub netns: u32,
    /// 0.
    pub reserved: u32,
    /// A container's own cgroup; 0: the pod's entry, which marks the namespace.
    pub cgroup: u64,
}

/// So many listening ports of a pod are known; of more, connections count as outbound.
pub const PORTS: usize = 16;

/// [`Traffic::flags`]: the self-test's, in a namespace that is no pod's. Only what has the one port in
/// `ports` at either end is counted, and loopback counts as outside.
pub const TRIAL: u16 = 1;

/// What was counted. Value of [`maps::TRAFFIC`](crate::maps::TRAFFIC): that there is one is the mark.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Of the pod's entry only: ports on which it listens or has listened, by user space and program. A
    /// port that two CPUs learn at once may be lost, until it is seen again.
    pub ports: [u16; PORTS],
    /// How many ports there are.
    pub known: u16,
    /// [`TRIAL`].
    pub flags: u16,
    /// `net->hash_mix` of the namespace, which is random; 0: not seen yet. The kernel gives the number of a namespace
    /// that is gone to the next one.
    pub identity: u32,
    /// By [`cell_of`].
    pub cells: [Cell; CELLS],
}

impl Traffic {
    /// Nothing yet.
    pub const NOTHING: Self = Self {
        ports: [0; PORTS],
        known: 0,
        flags: 0,
        identity: 0,
        cells: [Cell { count: 0, first: 0, last: 0 }; CELLS],
    };
}

/// What an address is. Value of [`maps::ADDRESSES`](crate::maps::ADDRESSES), whose key is the address as
/// IPv6 has it, IPv4 mapped: one of the node's own.
pub const OF_NODE: u32 = 1;
/// Of a pod that is terminating.
pub const OF_TERMINATING: u32 = 2;

/// The cell in which an event counts. Where a pair has none of its own, what happened after the stop
/// counts with what happened before, and any end as [`ENDED`], if there are such cells.
pub const fn cell_of(peer: u32, event: u32) -> u8 {
    let found = find(peer, event);
    if found != NO_CELL {
        return found;
    }
    match event {
        OPENED_AFTER_STOP => find(peer, OPENED),
        REFUSED_AFTER_STOP => find(peer, REFUSED),
        CLOSED..=CUT_UNREAD => find(peer, ENDED),
        _ => NO_CELL,
    }
}

const fn find(peer: u32, event: u32) -> u8 {
    let mut cell = 0;
    while cell < CELLS {
        if PAIRS[cell].0 == peer && PAIRS[cell].1 == event {
            return cell as u8;
        }
        cell += 1;
    }
    NO_CELL
}

const fn table() -> [u8; 256] {
    let mut table = [NO_CELL; 256];
    let mut peer = 0;
    while peer < PEERS {
        let mut event = 0;
        while event < EVENTS {
            table[peer << 5 | event] = cell_of(peer as u32, event as u32);
            event += 1;
        }
        peer += 1;
    }
    table
}

const _: () = assert!(size_of::<Marked>() == 16 && align_of::<Marked>() == 8);
const _: () = assert!(size_of::<Traffic>() == 40 + 24 * CELLS && align_of::<Traffic>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_cell_of_its_own() {
        for (cell, (peer, event)) in PAIRS.iter().enumerate() {
            assert_eq!(usize::from(cell_of(*peer, *event)), cell, "a pair that is there twice");
            assert_eq!(TABLE[(*peer << 5 | *event) as usize], cell as u8);
        }
    }

    /// What was opened less what has ended is open: no end may get lost.
    #[test]
    fn every_connection_that_is_counted_is_counted_again_when_it_ends() {
        for peer in 0..PEERS as u32 {
            assert_ne!(cell_of(peer, OPENED), NO_CELL);
            assert_ne!(cell_of(peer, OPENED_AFTER_STOP), NO_CELL);
            for end in CLOSED..=CUT_UNREAD {
                // What the pod opens itself is not in a listener's queue.
                if (peer, end) != (OUTBOUND, UNACCEPTED) {
                    assert_ne!(cell_of(peer, end), NO_CELL, "{peer} {end}");
                }
            }
        }
        // An RST that nothing counts is one that nothing explains.
        for peer in [CLIENT, NODE] {
            for event in [REFUSED, REFUSED_AFTER_STOP, RESET_AFTER_END, RESET_HALF_CLOSED] {
                assert_ne!(cell_of(peer, event), NO_CELL, "{peer} {event}");
            }
        }
        assert_eq!(cell_of(INTERNAL, CUT_REQUEST), cell_of(INTERNAL, ENDED));
        assert_eq!(cell_of(INTERNAL, REFUSED_AFTER_STOP), NO_CELL);
        assert_eq!(cell_of(OUTBOUND, OPENED_AFTER_STOP), cell_of(OUTBOUND, OPENED));
    }
}
