//! What the event loop writes and the outputs read, and what outlives the agent.

pub mod audits;
pub mod entry;
pub mod health;
pub mod history;
pub mod leaks;
