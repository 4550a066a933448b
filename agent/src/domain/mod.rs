//! The pure core: identities, evidence, engine, verdicts.
//!
//! **Architecture invariant.** No I/O, no clock, no tokio, aya, tonic or kube, no failure; memory
//! is bounded. All it knows comes in as [`input::Input`], all it says goes out as
//! [`observation::Observation`]. `tests/purity.rs` enforces it.

pub mod cgroup_path;
pub mod engine;
pub mod ids;
pub mod input;
pub mod observation;
pub mod signal;
pub mod time;
