//! The lab's own parts, for real: a private containerd, the small apiserver under a real client, faults while
//! pods come and go. Needs root, and what `cargo xtask build` makes.

mod apiserver;
#[path = "../shared/binaries.rs"]
mod binaries;
mod chaos;
mod containerd;
