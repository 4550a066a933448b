//! The alert and recording rules of `dashboards/rules`: Prometheus' own tool runs their unit tests, and
//! whatever could be forgotten beside them is looked for.

mod completeness;
mod day_one;
mod expressions;
pub(crate) mod files;
mod generated;
mod promtool;
mod settings;
