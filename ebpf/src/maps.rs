//! The maps' names and bounds, and what the counters count.

/// Hash map from a cgroup's id to [`Container`](crate::Container): what is watched.
pub const CONTAINERS: &str = "CONTAINERS";
/// Capacity of [`CONTAINERS`]: pods of a full node with all their levels many times over.
pub const CONTAINERS_MAX: u32 = 16_384;
/// Hash map from a thread group to [`Notified`](crate::Notified): processes of containers that were
/// sent a signal and live.
pub const NOTIFIED: &str = "NOTIFIED";
/// Capacity of [`NOTIFIED`]. What does not fit is counted as [`LOST_BUDGET`], and its container is
/// [marked](crate::CONTAINER_UNNOTED).
pub const NOTIFIED_MAX: u32 = 16_384;
/// How many entries of [`NOTIFIED`] one container may have, about.
pub const NOTIFIED_SHARE: u32 = 4_096;
/// Hash map from a container's own cgroup to [`Zapped`](crate::record::Zapped), which is made there:
/// from the exit of its PID 1 until the cgroup is empty or removed.
pub const ZAPPED: &str = "ZAPPED";
/// Capacity of [`ZAPPED`]. A container that does not fit is treated as one whose budget is spent.
pub const ZAPPED_MAX: u32 = 512;
/// Hash map from a network namespace to [`Traffic`](crate::traffic::Traffic): those whose connections are
/// counted. User space inserts and removes.
pub const TRAFFIC: &str = "TRAFFIC";
/// Capacity of [`TRAFFIC`]: more pods than a node has.
pub const TRAFFIC_MAX: u32 = 512;
/// Hash map from an address (16 bytes, IPv4 mapped) of the node to 1. User space inserts and removes.
pub const NODE_ADDRESSES: &str = "NODE_ADDRESSES";
/// Capacity of [`NODE_ADDRESSES`]. What does not fit counts as another client's.
pub const NODE_ADDRESSES_MAX: u32 = 1_024;
/// Ring buffer of what decides: exits of main processes, emptied and made and removed cgroups,
/// signals from outside, OOM victims.
pub const DECIDING: &str = "DECIDING";
/// Ring buffer of the rest; a container may write no more than its budget.
pub const DETAIL: &str = "DETAIL";
/// Size of each ring unless the agent says otherwise.
pub const RING_BYTES: u32 = 1 << 20;
/// What ends something wakes the reader, but not again within this time, ns: whoever is woken comes
/// again after twice as long, for what was written meanwhile.
pub const WAKE_PAUSE: u64 = 1_000_000;
/// A signal from outside wakes the reader if nothing that ends something has within this time, ns:
/// there may be any number of them, and whoever found one looks again after [`READ_PAUSE`].
pub const SIGNAL_WAKE_PAUSE: u64 = 10_000_000;
/// Any other record wakes the reader if none of its like has within this time, ns: whoever was woken
/// comes again a little later than that, for what was written meanwhile.
pub const READ_PAUSE: u64 = 90_000_000;
/// Per-CPU array of counters: see the `LOST_*` indices.
pub const LOST: &str = "LOST";
/// A program that is attached nowhere. User space runs it (`BPF_PROG_TEST_RUN`) with a cgroup to mark in the
/// [filter](crate::filter), or 0, and a mask of chatter that some container has for its stop signal (bit n−1 is signal n).
pub const TELL: &str = "tell";

/// A record for [`DECIDING`] found no room.
pub const LOST_DECIDING: u32 = 0;
/// A record for [`DETAIL`] found no room.
pub const LOST_DETAIL: u32 = 1;
/// A container's budget was spent, or its share of [`NOTIFIED`], or there was no room for it in
/// [`ZAPPED`].
pub const LOST_BUDGET: u32 = 2;
/// [`CONTAINERS`] was full.
pub const LOST_MAP_FULL: u32 = 3;
/// A cgroup lay too many levels below a container's own, or was one of too many: not followed. Not a loss of evidence by
/// itself, the container's own cgroup empties all the same.
pub const LOST_NESTING: u32 = 4;
/// How many counters there are.
pub const LOST_COUNT: u32 = 5;
