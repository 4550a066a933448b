//! What the fuzz targets do with an input: one function each, of bytes, which panics where
//! something is wrong. cargo-fuzz feeds them (`fuzz/fuzz_targets`), and `tests/corpus.rs` replays
//! the inputs that the repository keeps.

mod api;
mod btf;
mod cgroup_path;
mod checks;
mod cri;
mod host;
mod http;
mod json;
mod kubelet;
mod record;
mod recording;
mod replay;
mod report;

pub use api::api;
pub use btf::btf;
pub use cgroup_path::cgroup_path;
pub use coroner_fuzz_core::{engine, mutated};
pub use cri::cri;
pub use host::host;
pub use http::http;
pub use json::json;
pub use kubelet::{journal, kubelet};
pub use record::record;
pub use recording::recording;
pub use replay::replay;
pub use report::report;

use arbitrary::{Arbitrary, Unstructured};

/// The value that libFuzzer's macro would make of these bytes: inputs that were found with it keep
/// their meaning.
fn value<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> Option<T> {
    T::arbitrary_take_rest(Unstructured::new(bytes)).ok()
}
