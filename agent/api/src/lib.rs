//! The HTTP API of coroner, version 1: its types on the wire, their OpenAPI document, and a client.
//!
//! The types are a dialect of their own: fields are camelCase, and each time is a [`Moment`]. Only closed sets and
//! types without a time are the core's, whose form is the documented one already. `docs/api.md` promises that they
//! only ever grow: [`Open`] reads what a newer agent adds.

pub mod client;
mod convert;
pub mod leaks;
mod moment;
mod open;
pub mod openapi;
pub mod printable;
pub mod query;
pub mod terminations;
pub mod traffic;

pub use convert::Sentences;
pub use moment::{Moment, rfc3339};
pub use open::Open;
pub use query::{Event, Heartbeat, List, ListQuery};

/// Where `coroner run` listens for people on the node, and where the command line asks.
pub const DEFAULT_SOCKET: &str = "/run/coroner/coroner.sock";
