//! The Kubernetes container runtime interface (CRI): messages and clients, generated from upstream's
//! protos by tonic and committed, so that a build needs no generator.
//!
//! `proto/v1.proto` is `pkg/apis/runtime/v1/api.proto` of kubernetes/cri-api v0.32, `proto/v1alpha2.proto`
//! is `v1alpha2/api.proto` of v0.25, the last release that has it. Servers are not
//! generated: nothing uses them, and they would be a third of the code. `cargo xtask docs`
//! generates the code again; `tests/generated.rs` fails while it is stale.

/// CRI v1: <https://github.com/kubernetes/cri-api/blob/v0.32.0/pkg/apis/runtime/v1/api.proto>.
#[rustfmt::skip]
#[allow(missing_docs, clippy::all, rustdoc::all)] // the comments are upstream's, the code is tonic's
pub mod v1;
