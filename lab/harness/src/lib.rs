//! What plays in the lab's cluster stands on this: one environment, one agent monitor, one ground truth, one
//! console.
#![allow(missing_docs)] // a name that says it need not say it twice

pub mod agent;
pub mod console;
pub mod environment;
pub mod failures;
pub mod ground_truth;
pub mod monitor;
pub mod run;
