//! The sources, which fetch and convert, and decide nothing: the kernel, the container runtime, the apiserver
//! and the host.

pub(crate) mod backoff;
pub(crate) mod bucket;
pub mod cri;
pub mod cut;
pub mod host;
pub mod kernel;
pub mod kube;
pub mod processes;
mod spec;
pub(crate) mod tasks;
pub mod traffic;
pub(crate) mod windowed_max;

/// The channel to the core, or from it, is closed: nobody listens any more.
struct Closed;
