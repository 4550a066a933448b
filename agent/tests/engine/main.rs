//! The engine, told stories.

mod bounds;
mod lives;
mod world;
