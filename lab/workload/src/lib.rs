//! What the workload shares with the lab: the page in which it leaves its heartbeat, and how network
//! namespaces get their interfaces.

pub mod loopback;
mod netlink;
pub mod network;
pub mod page;
