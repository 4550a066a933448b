//! The CRI adapter against a runtime on a real unix socket.

mod bench;
mod candidates;
mod containers;
mod lists;
mod outages;
pub(crate) mod runtime;
mod surface;
