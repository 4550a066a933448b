//! The engine, told stories.

mod bounds;
mod causes;
mod contradictions;
mod lives;
mod phases;
mod polling;
mod processes;
mod static_pods;
mod world;
