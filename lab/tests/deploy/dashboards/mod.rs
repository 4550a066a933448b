//! The Grafana dashboards: the JSON is what the code makes, they name only metrics that there are, and every query of every panel gives what it should, asked of a real Prometheus
//! that has scraped the real agent. Needs root, and what `cargo xtask setup` and `cargo xtask build`
//! bring.

mod configmaps;
mod docs;
mod expressions;
pub(crate) mod fleet;
mod generated;
pub(crate) mod model;
pub(crate) mod prometheus;
mod quiet;
mod run;
mod structure;
