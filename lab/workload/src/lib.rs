//! What the workload shares with the lab: the page in which it leaves its heartbeat, and how a network
//! namespace gets its loopback interface.

pub mod loopback;
pub mod page;
