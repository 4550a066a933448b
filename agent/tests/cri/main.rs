//! The CRI adapter against a runtime on a real unix socket.

mod bench;
mod candidates;
mod containers;
mod discovery;
mod lateness;
mod outages;
mod polling;
pub(crate) mod runtime;
mod scale;
mod sizes;
mod surface;
pub(crate) mod things;
