//! The CRI adapter against a runtime on a real unix socket.

mod bench;
mod candidates;
mod containers;
mod discovery;
mod lateness;
mod outages;
mod polling;
mod runtime;
#[path = "../rust_files/mod.rs"]
mod rust_files;
mod scale;
mod sizes;
mod surface;
mod things;
