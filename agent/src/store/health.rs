//! Health of the agent, derived from its inputs: the checks of `/readyz`, `doctor`, the metrics and the log. Pure: the
//! inputs carry the time.

mod checks;

pub use checks::{Check, Checks, Severity};

use crate::{
    linux::{privileges::MissingCapability, restrictions::Restrictions},
    sources::kernel::{StartReport, plan::HOOKS},
};
use coroner_core::{
    input::{ApiEvent, CriEvent, Input, LossKind, Received},
    leak::DetectionState,
    time::BootTime,
};
use std::{collections::BTreeMap, time::Duration};

/// Time without a tick after which the event loop counts as stalled; it ticks every second.
const STALLED: Duration = Duration::from_secs(10);
/// Duration of a call after which the runtime counts as slow: the settle window.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Health {
    pub lacks: Vec<MissingCapability>,
    /// What of the kernel confines the agent, or why it does not.
    pub confinement: BTreeMap<&'static str, Result<(), String>>,
    kernel: KernelSide,
    pub restrictions: Restrictions,
    /// The sources are asked: not before the kernel side is up.
    pub asks: bool,
    cri: SourceHealth,
    /// The longest recent call to the runtime, if at least [`SLOW`].
    cri_takes: Option<Duration>,
    /// Sandboxes of the runtime's list.
    unreadable: u32,
    /// Whether it was slow, and what was unreadable, when that was logged.
    runtime_told: (bool, u32),
    api: Option<SourceHealth>,
    /// How many of each kind, and when the last one was.
    losses: BTreeMap<LossKind, (u64, BootTime)>,
    pub detection_state: DetectionState,
    /// Why the Node object could not be read.
    node_error: Option<String>,
    ticked: BootTime,
}

#[derive(Debug, Default)]
enum KernelSide {
    #[default]
    Starting,
    Failed(String),
    Started(StartReport),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum SourceHealth {
    #[default]
    Waiting,
    Up(String),
    Down {
        since: BootTime,
        error: String,
    },
}

impl Health {
    /// Health before the first input. `with_api`: the apiserver is one of the sources.
    pub fn new(with_api: bool, now: BootTime) -> Self {
        let api = with_api.then_some(SourceHealth::Waiting);
        Self { api, ticked: now, ..Self::default() }
    }

    pub fn kernel_started(&mut self, report: StartReport) {
        self.kernel = KernelSide::Started(report);
        self.asks = true;
    }

    pub fn kernel_failed(&mut self, why: String) {
        self.kernel = KernelSide::Failed(why);
    }

    /// Sets the longest recent call to the runtime. True if the check of the runtime has another reason since the last
    /// call.
    pub fn runtime_takes(&mut self, longest: Duration) -> bool {
        self.cri_takes = (longest >= SLOW).then_some(longest);
        let now = (self.cri_takes.is_some(), self.unreadable);
        std::mem::replace(&mut self.runtime_told, now) != now
    }

    pub fn note(&mut self, received: &Received) {
        let at = received.at;
        match &received.input {
            Input::Cri(CriEvent::Connected { runtime, .. }) => {
                self.cri = SourceHealth::Up(runtime.clone())
            }
            Input::Cri(CriEvent::Unreachable { error, .. }) => self.cri.fail(at, error),
            Input::Cri(CriEvent::UnreadableSandboxes { count }) => self.unreadable = *count,
            // An answer after a failed call: the connection works.
            Input::Cri(_) => self.cri.recover("the runtime"),
            Input::Api(ApiEvent::OutOfSync { error }) => {
                self.api.get_or_insert(SourceHealth::Waiting).fail(at, error);
            }
            Input::Api(ApiEvent::Snapshot { .. } | ApiEvent::Resumed) => {
                self.api = Some(SourceHealth::Up("in sync".into()));
            }
            // Answers to direct queries say nothing about the watch; nor does an event, which may be part of a list that is
            // not complete yet.
            Input::Api(ApiEvent::NodeUnknown { error, .. }) => {
                self.node_error = Some(error.clone());
            }
            Input::Api(ApiEvent::Node(_)) => self.node_error = None,
            Input::Lost(loss) => {
                let (count, last) = self.losses.entry(loss.kind).or_insert((0, at));
                *count = count.saturating_add(loss.count);
                *last = at;
            }
            Input::Tick => self.ticked = at,
            _ => {}
        }
    }

    /// The runtime answers. `None`: not queried before the kernel side is up.
    pub fn cri_connected(&self) -> Option<bool> {
        self.asks.then_some(matches!(self.cri, SourceHealth::Up(_)))
    }

    /// The pod watch is in sync. `None`: the agent runs without the apiserver, or the kernel side is not up yet.
    pub fn api_in_sync(&self) -> Option<bool> {
        self.api.as_ref().filter(|_| self.asks).map(|api| matches!(api, SourceHealth::Up(_)))
    }

    /// Each hook by name: attached or not. None, where the kernel side cannot start.
    pub fn hooks(&self) -> Vec<(&'static str, bool)> {
        match &self.kernel {
            KernelSide::Started(report) => {
                report.hooks.iter().map(|(name, how)| (*name, how.is_ok())).collect()
            }
            KernelSide::Failed(_) => HOOKS.iter().map(|hook| (hook.name, false)).collect(),
            KernelSide::Starting => Vec::new(),
        }
    }

    /// Whether the event loop is alive; if not, the time since its last tick.
    pub fn alive(&self, now: BootTime) -> Result<(), Duration> {
        let silent = now.since(self.ticked);
        if silent < STALLED { Ok(()) } else { Err(silent) }
    }

    /// Every source has answered, and leak detection has its state if all of them work.
    pub(crate) fn is_settled(&self) -> bool {
        let mut sources = [Some(&self.cri), self.api.as_ref()].into_iter().flatten();
        let fails = sources.clone().any(|source| matches!(source, SourceHealth::Down { .. }));
        sources.all(|source| !matches!(source, SourceHealth::Waiting))
            && (fails || self.detection_state != DetectionState::Starting)
    }
}

impl SourceHealth {
    fn fail(&mut self, at: BootTime, error: &str) {
        let since = match self {
            Self::Down { since, .. } => *since,
            _ => at,
        };
        *self = Self::Down { since, error: error.to_owned() };
    }

    fn recover(&mut self, what: &str) {
        if !matches!(self, Self::Up(_)) {
            *self = Self::Up(what.to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
