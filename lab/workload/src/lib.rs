//! What the workload shares with those who watch it: the page in which it leaves its heartbeat.

pub mod page;
