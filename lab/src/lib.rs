//! A one-node cluster on this machine: a real, private containerd and runc, a small apiserver, and
//! an image whose only binary is the lab's own workload.

pub mod apiserver;
pub mod containerd;
pub mod image;
