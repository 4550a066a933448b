//! The report of coroner: the core makes these types, the HTTP API sends them as JSON, and the command line shows them.
//!
//! No I/O, no clock, nothing of one platform. A reader of JSON ignores fields, and leaves out list items, that a newer
//! agent added.

pub mod audit;
pub mod ids;
mod labels;
pub mod leak;
pub mod list;
#[cfg(feature = "openapi")]
pub mod openapi;
#[cfg(feature = "text")]
pub mod printable;
pub mod process;
mod serialize;
pub mod signal;
pub mod termination;
#[cfg(feature = "text")]
pub mod text;
pub mod time;
pub mod traffic;
pub mod types;

pub use audit::{Audit, StopResponse};
pub use ids::*;
pub use leak::*;
pub use list::*;
pub use process::*;
pub use termination::*;
pub use time::*;
pub use traffic::*;
pub use types::*;
#[cfg(feature = "openapi")]
#[doc(hidden)]
pub use utoipa;
