//! What is deployed: manifests, image, alert rules, dashboards, Events, and the agent as the pod that its DaemonSet
//! asks for. Needs root, and what `cargo xtask test deploy` makes and names.

#[path = "../shared/binaries.rs"]
mod binaries;
mod chart;
mod daemonset;
mod dashboards;
mod events;
mod image;
mod manifest;
mod manifests;
mod promql;
mod release;
mod rules;
mod tls;
mod tools;
