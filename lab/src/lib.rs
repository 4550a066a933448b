//! A one-node cluster on this machine: a real, private containerd and runc, a small apiserver and a
//! small kubelet, an image whose only binary is the lab's own workload, and a catalogue of
//! scenarios that the tour plays while the real agent watches.

pub mod agent;
pub mod apiserver;
pub mod bench;
pub mod chaos;
pub mod containerd;
pub mod controlplane;
pub mod daemonset;
pub mod delay;
pub mod failed;
mod ground_truth;
pub mod image;
pub mod kubelet;
pub mod manifest;
pub mod network;
mod pages;
pub mod port;
pub mod run;
pub mod scenario;
pub mod tools;
pub mod tour;
pub mod traffic;
pub mod wait;
