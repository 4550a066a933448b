//! What the event loop writes and the outputs read, and what outlives the agent.

pub mod entry;
pub mod health;
pub mod leaks;
pub mod persistence;
pub mod terminations;
