//! A one-node cluster on this machine: a real, private containerd and runc, a small apiserver, a small kubelet
//! and a network of its own. It knows no scenario and no agent.
#![allow(missing_docs)] // a name that says it need not say it twice

pub mod apiserver;
pub mod cluster;
pub mod containerd;
pub mod controlplane;
pub mod daemonset;
pub mod delay;
mod freezer;
pub mod image;
pub mod kubelet;
pub mod network;
pub mod pages;
pub mod port;
pub mod remnants;
pub mod traffic;
pub mod wait;

pub use cluster::{Cluster, OTHER_NODE, tidy};
pub use remnants::container_of;
