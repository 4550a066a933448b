//! The pure core: identities, evidence, engine, verdicts.
//!
//! **Architecture invariant.** No I/O, no clock, no failure; memory is bounded. All it knows comes in as
//! [`input::Input`], all that follows goes out as [`output::Outputs`]. `Cargo.toml` and
//! `tests/purity.rs` enforce it.

pub mod account;
pub mod cause;
pub mod cgroup_path;
pub mod dirty;
pub mod engine;
pub mod evidence;
pub mod holdouts;
pub mod identity;
pub mod ids;
pub mod input;
pub mod isolation;
pub mod keepers;
mod labels;
pub mod leak;
pub mod leaks;
pub mod lingering;
pub mod losses;
pub mod object;
pub mod observation;
pub mod output;
pub mod phases;
pub mod pre_stop;
pub mod process;
pub mod runtime;
pub mod signal;
pub mod stop;
pub mod table;
pub mod time;
pub mod verdict;
