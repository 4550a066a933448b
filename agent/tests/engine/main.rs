//! The engine, told stories.

mod bounds;
mod lives;
mod phases;
mod world;
