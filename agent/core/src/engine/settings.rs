//! The engine's settings and gauges.

use crate::input::{LossKind, TaskState};
use crate::leaks::LeakGauges;
use crate::report::Anchor;
use std::{collections::BTreeMap, time::Duration};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
    /// How late a record may come and still count (design invariant 5).
    pub settle: Duration,
    /// How long a candidate must look like a leak, with all sources in sync, before it is reported.
    pub leak_threshold: Duration,
    /// The apiserver is one of the sources.
    pub uses_api: bool,
    /// How often the main process of a running container is read, for the audit. Zero: never.
    pub audit_interval: Duration,
    /// How old the container must be.
    pub audit_age: Duration,
}

impl Settings {
    /// The defaults: a settle window of 5 s, leaks after 5 min, with an apiserver, an audit every 5 min.
    pub fn new(anchor: Anchor) -> Self {
        Self {
            anchor,
            settle: Duration::from_secs(5),
            leak_threshold: Duration::from_secs(300),
            uses_api: true,
            audit_interval: Duration::from_secs(300),
            audit_age: Duration::from_secs(10),
        }
    }
}

/// Store sizes and losses, for the metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gauges {
    pub cgroups: usize,
    /// Containers with process records.
    pub containers: usize,
    pub sandboxes: usize,
    /// Pods that the apiserver has reported.
    pub objects: usize,
    /// Pods that are terminating, have reported containers, or have a report that is still open.
    pub pods: usize,
    pub terminating: usize,
    /// Containers that SIGKILL does not end, by the state of the process that is left.
    pub unkillable: BTreeMap<TaskState, usize>,
    pub losses: BTreeMap<LossKind, u64>,
    pub leaks: LeakGauges,
}
