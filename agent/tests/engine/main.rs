//! The engine, told stories.

mod bounds;
mod lives;
mod phases;
mod polling;
mod processes;
mod static_pods;
mod world;
