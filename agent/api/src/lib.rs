//! The HTTP API of coroner, version 1: its types on the wire, their OpenAPI document, and a client.
//!
//! The types differ from those of the core: fields are camelCase, and each time is a [`Moment`]. Only closed sets and
//! types without a time are the core's, because they already have the documented form. `docs/api.md` promises that
//! types only grow: [`Open`] reads values that a newer agent adds.

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
pub use query::{List, ListQuery};

/// The socket on which `coroner run` serves the API on the node, and which the command line queries.
pub const DEFAULT_SOCKET: &str = "/run/coroner/coroner.sock";

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}
