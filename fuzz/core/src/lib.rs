//! The fuzz target of the core. A crate of its own: libFuzzer walks the counters of all code that is linked after
//! each execution.

mod action;
mod checked;
#[cfg(test)]
mod corpus;
mod engine;
mod made;
mod node;
mod odd;
mod story;

pub use engine::engine;
pub use odd::{mutated, odd};
