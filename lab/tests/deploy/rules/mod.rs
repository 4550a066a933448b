//! The alert and recording rules of `dashboards/rules`: Prometheus' own tool runs their unit tests, and
//! whatever could be forgotten beside them is looked for.

mod completeness;
mod expressions;
mod files;
mod generated;
mod promtool;
