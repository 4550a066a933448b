//! The fuzz target of the core, and the checked engine that the agent's targets feed, too. A crate of its own:
//! libFuzzer walks the counters of all code that is linked after each execution.

mod action;
mod checked;
mod engine;
mod made;
mod node;
mod odd;
mod story;

pub use checked::CheckedEngine;
pub use engine::engine;
pub use odd::{odd, odd_line};
