//! The CRI adapter against a runtime on a real unix socket.

mod bench;
mod containers;
mod discovery;
mod events;
mod lateness;
mod outages;
mod polling;
mod runtime;
#[path = "../rust_files/mod.rs"]
mod rust_files;
mod scale;
mod sizes;
mod streams;
mod surface;
mod suspects;
mod things;
mod versions;
