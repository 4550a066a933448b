//! What is counted of the TCP connections between a marked network namespace and its clients: an entry of
//! [`maps::TRAFFIC`](crate::maps::TRAFFIC).

/// Row of [`Traffic::cells`]: any client but the next ones.
pub const CLIENT: u32 = 0;
/// A client with one of the node's own addresses.
pub const NODE: u32 = 1;
/// How many rows there are.
pub const PEERS: usize = 2;

/// A handshake was completed. The numbers are the core's, in its order.
pub const OPENED: u32 = 0;
/// The same after the stop signal.
pub const OPENED_AFTER_STOP: u32 = 1;
/// RST to a SYN.
pub const REFUSED: u32 = 2;
/// The same after the stop signal.
pub const REFUSED_AFTER_STOP: u32 = 3;
/// By exit, with a request unanswered or unread.
pub const CUT: u32 = 4;
/// By exit otherwise.
pub const CUT_IDLE: u32 = 5;
/// A listener, by a process that is not exiting.
pub const LISTENER_CLOSED: u32 = 6;
/// A listener, by exit.
pub const LISTENER_CUT: u32 = 7;
/// How many events there are.
pub const EVENTS: usize = 8;

/// How often something happened, and when, ns of CLOCK_BOOTTIME; all 0: never.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub count: u64,
    /// Two CPUs may both write it: then it is the one's or the other's.
    pub first: u64,
    /// Likewise.
    pub last: u64,
}

/// So many listening ports of a pod are known; connections to more are not counted.
pub const PORTS: usize = 16;

/// [`Traffic::flags`]: the self-test's, in a namespace that is no pod's. Only what has the one port in
/// `ports` at either end is counted, and loopback counts as outside.
pub const TRIAL: u16 = 1;

/// What was counted in a network namespace. Value of [`maps::TRAFFIC`](crate::maps::TRAFFIC), whose key is
/// `net->ns.inum`, the inode of /proc/PID/ns/net: that there is one is the mark.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Ports on which it listens or has listened, by user space and program. A port that two CPUs learn
    /// at once may be lost, until it is seen again.
    pub ports: [u16; PORTS],
    /// How many ports there are.
    pub known: u16,
    /// [`TRIAL`].
    pub flags: u16,
    /// `net->hash_mix` of the namespace, which is random; 0: not seen yet. The kernel gives the number of a namespace
    /// that is gone to the next one.
    pub identity: u32,
    /// When the first of the pod's containers was sent a stop signal from outside, ns of CLOCK_BOOTTIME; 0: not yet.
    pub stopped: u64,
    /// By peer and event.
    pub cells: [[Cell; EVENTS]; PEERS],
}

const _: () =
    assert!(size_of::<Traffic>() == 48 + 24 * EVENTS * PEERS && align_of::<Traffic>() == 8);
