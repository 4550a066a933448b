//! The engine, told stories.

mod bounds;
mod causes;
mod contradictions;
mod isolation;
mod lingering;
mod lives;
mod phases;
mod polling;
mod processes;
mod static_pods;
mod world;
