//! coroner as a library: adapters around a pure core. The binary is a thin shell over [`cli`];
//! the lab uses the types of [`domain`] and the text of [`report`].

mod accept;
mod adapters;
pub mod app;
pub mod cgroupfs;
pub mod cli;
pub mod clock;
pub mod config;
pub mod cri;
pub mod cut;
pub mod doctor;
pub mod health;
pub mod history;
pub mod host;
pub mod http;
mod json;
pub mod kernel;
pub mod kube;
pub mod leaks;
pub mod logging;
mod memory;
pub mod metrics;
mod patience;
mod peak;
pub mod privileges;
pub mod procfs;
#[cfg(test)]
#[path = "../core/tests/random/mod.rs"]
mod random;
pub mod recording;
pub mod replay;
pub mod report;
pub mod shown;
pub mod socket;
mod spec;
pub mod state;
pub mod tls;
