//! The values that the labels can have.

use super::{Adapter, DropReason};
use crate::{
    outputs::events,
    sources::{cut::Cut, kernel},
};
use coroner_core::{
    input::{LossKind, TaskState},
    leak::{BlockedOn, DetectionState, LeakCause, LeakClass},
    types::{Cause, CauseClass, Contradiction, FindingKind, PhaseKind, Verdict},
};

#[derive(Clone, Copy, Debug)]
pub enum Values {
    Closed(fn() -> Vec<&'static str>),
    Open(&'static str),
}

impl Values {
    /// All there are; none of a set that is open.
    pub fn closed(self) -> Vec<&'static str> {
        match self {
            Self::Closed(values) => values(),
            Self::Open(_) => Vec::new(),
        }
    }
}

macro_rules! closed {
    ($($(#[$doc:meta])* $name:ident = $kind:ty;)*) => { $(
        $(#[$doc])*
        pub(super) const $name: Values =
            Values::Closed(|| <$kind>::ALL.iter().map(|value| value.as_str()).collect());
    )* };
}

closed! {
    CAUSES = Cause;
    CAUSE_CLASSES = CauseClass;
    CONNECTION_EVENTS = super::ConnectionEnd;
    CUTS = Cut;
    VERDICTS = Verdict;
    CONTRADICTIONS = Contradiction;
    PHASES = PhaseKind;
    CLASSES = LeakClass;
    LEAK_CAUSES = LeakCause;
    REASONS = BlockedOn;
    JUDGEMENTS = DetectionState;
    ADAPTERS = Adapter;
    DROPS = DropReason;
}

pub(super) const NAMESPACE: Values =
    Values::Open("of the pod; `other` beyond [the bound](#cardinality), or if the pod is unknown");

pub(super) const TYPE: Values = Values::Open(
    "`deployment`, `statefulset`, `daemonset`, `cronjob`, `job`, … in lower case; empty for a pod without a controller",
);

pub(super) const OF_WORKLOAD: Values = Values::Open(
    "its name; empty if a run of the kind has a name of its own, as that of a Job which no CronJob made",
);

pub(super) const CONTAINER: Values = Values::Open("its name in the pod");

pub(super) const OF_NODE: Values =
    Values::Open("as the kernel, the runtime and the Node object say; empty until then");

pub(super) const BOOLEAN: Values = Values::Closed(|| vec!["true", "false"]);

pub(super) const POD_FINDINGS: Values = Values::Closed(|| {
    let of_pod = FindingKind::ALL.iter().filter(|kind| kind.is_of_the_pod());
    of_pod.map(|kind| kind.as_str()).collect()
});

pub(super) const CONTAINER_FINDINGS: Values = Values::Closed(|| {
    let of_container = FindingKind::ALL.iter().filter(|kind| !kind.is_of_the_pod());
    of_container.map(|kind| kind.as_str()).collect()
});

/// What a recording lacks shows only in its replay.
pub(super) const LOSSES: Values = Values::Closed(|| {
    let kinds = LossKind::ALL.iter().filter(|kind| **kind != LossKind::Unrecorded);
    kinds.map(|kind| kind.as_str()).collect()
});

/// A zombie is dead: what hangs is whoever does not reap it.
pub(super) const UNKILLABLE: Values = Values::Closed(|| {
    let alive = TaskState::ALL.iter().filter(|state| **state != TaskState::Zombie);
    alive.map(|state| state.as_str()).collect()
});

pub(super) const SANDBOX_CLASSES: Values = Values::Closed(|| {
    let classes = LeakClass::ALL.iter().filter(|class| class.is_sandbox());
    classes.map(|class| class.as_str()).collect()
});

pub(super) const ORPHANS: Values =
    Values::Closed(|| LeakClass::ALL.iter().filter_map(|class| class.orphan()).collect());

pub(super) const SOURCES: Values = Values::Closed(|| vec!["cri", "api", "proc", "host"]);

pub(super) const SPEAKERS: Values = Values::Closed(|| vec!["cri", "api"]);

pub(super) const RECORDS: Values = Values::Closed(|| kernel::decode::counted_kinds().collect());

pub(super) const EVENT_OUTCOMES: Values =
    Values::Closed(|| events::EventCounters::default().all().map(|(outcome, _)| outcome).to_vec());

pub(super) const HOOKS: Values =
    Values::Closed(|| kernel::plan::HOOKS.iter().map(|hook| hook.name).collect());

pub(super) const RINGS: Values = Values::Closed(|| vec!["deciding", "detail"]);

pub(super) const OF_POD: Values = Values::Open("of the leaked sandbox's pod");

pub(super) const SANDBOX: Values = Values::Open("CRI id of the sandbox");

pub(super) const VERSION: Values = Values::Open("of the agent");
