//! What the fuzz targets do with an input: one function each, of bytes, which panics if something is wrong. cargo-fuzz
//! feeds them (`fuzz/fuzz_targets`), and `tests/corpus.rs` replays the inputs that the repository keeps.

mod api;
mod checks;
mod cri;
mod engine;
mod mutate;
mod record;
mod recording;

pub use api::api;
pub use cri::cri;
pub use engine::{engine, outputs};
pub use mutate::mutated;
pub use record::record;
pub use recording::recording;
