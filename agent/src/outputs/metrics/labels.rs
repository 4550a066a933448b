//! The values that the labels can have.

use super::{Adapter, ConnectionEnd, DropReason};
use crate::{
    outputs::{events, otlp},
    sources::{cut::Cut, kernel},
    store::history::Fault,
};
use coroner_core::{
    input::{LossKind, TaskState},
    leak::{DetectionState, LeakCause, LeakClass},
    report::StopResponse,
    types::{Cause, CauseClass, Contradiction, FindingKind, PhaseKind, Verdict},
};

#[derive(Clone, Copy, Debug)]
pub enum Values {
    Closed(fn() -> Vec<&'static str>),
    Open(&'static str),
}

impl Values {
    pub fn closed(self) -> Vec<&'static str> {
        match self {
            Self::Closed(values) => values(),
            Self::Open(_) => Vec::new(),
        }
    }
}

macro_rules! closed {
    ($($(#[$doc:meta])* $name:ident = $kind:ident $(, $is_value:expr)?;)*) => { $(
        $(#[$doc])*
        pub(super) const $name: Values = Values::Closed(|| {
            let values = $kind::ALL.iter()$(.filter(|value| ($is_value)(**value)))?;
            values.map(|value| value.as_str()).collect()
        });
    )* };
}

closed! {
    CAUSES = Cause;
    CAUSE_CLASSES = CauseClass;
    CONNECTION_EVENTS = ConnectionEnd;
    CUTS = Cut;
    VERDICTS = Verdict;
    RESPONSES = StopResponse;
    CONTRADICTIONS = Contradiction;
    PHASES = PhaseKind;
    CLASSES = LeakClass;
    LEAK_CAUSES = LeakCause;
    JUDGEMENTS = DetectionState;
    ADAPTERS = Adapter;
    DROPS = DropReason;
    HISTORY_FAULTS = Fault;
    POD_FINDINGS = FindingKind, FindingKind::is_of_the_pod;
    CONTAINER_FINDINGS = FindingKind, |kind: FindingKind| !kind.is_of_the_pod();
    /// What a recording lacks shows only in its replay.
    LOSSES = LossKind, |kind| kind != LossKind::Unrecorded;
    /// A zombie is dead: what hangs is whoever does not reap it.
    UNKILLABLE = TaskState, |state| state != TaskState::Zombie;
    SANDBOX_CLASSES = LeakClass, LeakClass::is_sandbox;
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

pub(super) const ORPHANS: Values =
    Values::Closed(|| LeakClass::ALL.iter().filter_map(|class| class.orphan()).collect());

pub(super) const SOURCES: Values = Values::Closed(|| vec!["cri", "api", "proc", "host"]);

pub(super) const SPEAKERS: Values = Values::Closed(|| vec!["cri", "api"]);

pub(super) const EVENT_OUTCOMES: Values =
    Values::Closed(|| events::EventCounters::default().all().map(|(outcome, _)| outcome).to_vec());

pub(super) const EXPORT_OUTCOMES: Values = Values::Closed(|| {
    otlp::ExportCounters::default().outcomes().map(|(outcome, _)| outcome).to_vec()
});

pub(super) const EXPORT_FAILURES: Values =
    Values::Closed(|| otlp::Failure::ALL.iter().map(|one| one.as_str()).collect());

pub(super) const HOOKS: Values =
    Values::Closed(|| kernel::plan::HOOKS.iter().map(|hook| hook.name).collect());

pub(super) const RINGS: Values = Values::Closed(|| vec!["deciding", "detail"]);

pub(super) const OF_POD: Values = Values::Open("of the leaked sandbox's pod");

pub(super) const SANDBOX: Values = Values::Open("CRI id of the sandbox");

pub(super) const VERSION: Values = Values::Open("of the agent");
