//! What is deployed: chart, image, alert rules, dashboards, and the agent as the pod of the chart. Needs root, and what
//! `cargo xtask test deploy` makes and names.

mod chart;
mod daemonset;
mod dashboards;
mod export;
mod image;
mod rules;
mod tls;
mod tools;
