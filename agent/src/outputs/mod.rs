//! The outputs: metrics, HTTP, Events, the log, OTLP, recordings, and text for people.

pub mod events;
pub mod http;
pub mod log;
pub mod metrics;
pub mod otlp;
pub mod recording;
pub mod report;
