//! The pure core: stores, engine, verdicts. Its reports are the types of `coroner-report`.
//!
//! **Architecture invariant.** No I/O, no clock, no failure; memory is bounded. All inputs are
//! [`input::Input`], all outputs [`output::Outputs`]. `Cargo.toml` and `tests/purity.rs` enforce it.
//!
//! A module that uses more than a few names of the vocabulary (`ids`, `input`, `report`, `time`, `types`) imports it whole.

pub mod api;
pub mod audit;
pub mod cause;
pub mod cgroup_path;
pub mod cgroup_tree;
pub mod cri;
pub mod dirty;
pub mod engine;
pub mod events;
pub mod exit_blockers;
pub mod gaps;
pub mod input;
pub mod isolation;
pub mod leaks;
pub mod node;
pub mod output;
pub mod phases;
pub mod pod_view;
pub mod process;
pub mod table;
#[cfg(feature = "testkit")]
#[path = "../testkit/mod.rs"]
pub mod testkit;
pub mod traffic;
pub mod unkillable;
pub mod verdict;

pub use coroner_report::{self as report, ids, labels, leak, signal, time, types};
