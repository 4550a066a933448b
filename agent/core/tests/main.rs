//! The tests of the core: one binary, so that the core's tests are linked once.

mod audit;
mod engine;
mod purity;
mod random;
mod simulation;
mod verdicts;
