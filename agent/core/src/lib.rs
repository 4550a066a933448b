//! The pure core: identities, evidence, engine, verdicts.
//!
//!
//! **Architecture invariant.** No I/O, no clock, no failure; memory is bounded. All inputs are
//! [`input::Input`], all outputs [`output::Outputs`]. `Cargo.toml` and `tests/purity.rs` enforce it.
//!
//! Nearly every module uses the vocabulary (`ids`, `input`, `report`, `time`, `types`), and imports it whole.

pub mod api;
pub mod cause;
pub mod cgroup_path;
pub mod cgroup_tree;
pub mod cri;
pub mod dirty;
pub mod engine;
pub mod events;
pub mod evidence;
pub mod exit_blockers;
pub mod gaps;
pub mod ids;
pub mod input;
pub mod isolation;
mod labels;
pub mod leak;
pub mod leaks;
pub mod node;
pub mod output;
pub mod phases;
pub mod pod_view;
pub mod process;
pub mod report;
pub mod signal;
pub mod table;
pub mod time;
pub mod traffic;
pub mod types;
pub mod unkillable;
pub mod verdict;

#[cfg(feature = "openapi")]
#[doc(hidden)]
pub use labels::label_schema;
#[cfg(feature = "openapi")]
#[doc(hidden)]
pub use utoipa;
