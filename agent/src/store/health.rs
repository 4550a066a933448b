//! Health of the agent, derived from its inputs. Pure: the inputs carry the time.

use crate::{
    linux::{privileges::MissingCapability, procfs::ProcVisibility},
    sources::kernel::{StartReport, plan::HOOKS},
};
use coroner_core::{
    input::{ApiEvent, CriEvent, Input, LossKind, Received},
    leak::DetectionState,
    time::BootTime,
};
use serde::Serialize;
use std::{borrow::Cow, collections::BTreeMap, fmt, time::Duration};

/// Time without a tick after which the event loop counts as stalled; it ticks every second.
const STALLED: Duration = Duration::from_secs(10);
/// Duration of a call after which the runtime counts as slow: the default of `--settle-window`.
const SLOW: Duration = Duration::from_secs(5);
/// How long a loss is shown on /readyz.
const LOSS_MEMORY: Duration = Duration::from_secs(600);

/// Health of the agent.
#[derive(Debug)]
pub struct Health {
    lacks: Vec<MissingCapability>,
    /// What of the kernel confines the agent, or why it does not.
    confinement: BTreeMap<&'static str, Result<(), String>>,
    kernel: KernelSide,
    visibility: Option<ProcVisibility>,
    cri: SourceHealth,
    /// The longest recent call to the runtime, if at least [`SLOW`].
    cri_takes: Option<Duration>,
    api: Option<SourceHealth>,
    losses: BTreeMap<LossKind, LossState>,
    detection_state: DetectionState,
    /// Why the Node object could not be read.
    node_error: Option<String>,
    ticked: BootTime,
}

#[derive(Debug)]
enum KernelSide {
    /// Not used (standalone scan).
    Unused,
    Starting,
    Failed(String),
    Started(StartReport),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum SourceHealth {
    Waiting,
    Up(String),
    Down { since: BootTime, error: String },
}

#[derive(Clone, Copy, Debug)]
struct LossState {
    count: u64,
    last: BootTime,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartState {
    /// Works.
    Ok,
    /// Works with restrictions; does not make the agent unready.
    Degraded,
    /// Does not work: the agent is not ready.
    Failing,
}

/// One part of the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Part {
    /// `privileges`, `kernel`, `host`, `cri`, `api`, `traffic`, `leaks`, `losses`.
    pub part: &'static str,
    pub state: PartState,
    pub detail: String,
    /// The remedy; empty if there is nothing to do.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub todo: Cow<'static, str>,
}

/// The answer of /readyz.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Readiness {
    /// No part fails.
    pub ready: bool,
    pub parts: Vec<Part>,
}

impl Health {
    /// Health before the first input. `with_api`: the apiserver is one of the sources.
    pub fn new(with_api: bool, now: BootTime) -> Self {
        Self {
            lacks: Vec::new(),
            confinement: BTreeMap::new(),
            kernel: KernelSide::Starting,
            visibility: None,
            cri: SourceHealth::Waiting,
            cri_takes: None,
            api: with_api.then_some(SourceHealth::Waiting),
            losses: BTreeMap::new(),
            detection_state: DetectionState::default(),
            node_error: None,
            ticked: now,
        }
    }

    /// Health of a standalone scan, which uses no kernel programs and needs no capabilities.
    pub fn without_kernel(now: BootTime) -> Self {
        Self { kernel: KernelSide::Unused, ..Self::new(true, now) }
    }

    /// Capabilities that are missing.
    pub fn lacking(&mut self, lacks: Vec<MissingCapability>) {
        self.lacks = lacks;
    }

    /// The agent is confined by this from now on, or why not.
    pub fn confined(&mut self, by: &'static str, how: Result<(), String>) {
        self.confinement.insert(by, how);
    }

    /// The kernel side has started.
    pub fn kernel_started(&mut self, report: StartReport) {
        self.kernel = KernelSide::Started(report);
    }

    /// The kernel side cannot start, and why.
    pub fn kernel_failed(&mut self, why: String) {
        self.kernel = KernelSide::Failed(why);
    }

    /// How much of the host can be seen.
    pub fn set_visibility(&mut self, visibility: ProcVisibility) {
        self.visibility = Some(visibility);
    }

    /// Sets the longest recent call to the runtime. Returns true if the runtime became slow, false if it is no
    /// longer slow, `None` if nothing changed.
    pub fn runtime_takes(&mut self, longest: Duration) -> Option<bool> {
        let was = self.cri_takes.is_some();
        self.cri_takes = (longest >= SLOW).then_some(longest);
        let is = self.cri_takes.is_some();
        (was != is).then_some(is)
    }

    /// Sets the state of leak detection.
    pub fn set_detection_state(&mut self, detection_state: DetectionState) {
        self.detection_state = detection_state;
    }

    /// Updates the health from an input.
    pub fn note(&mut self, received: &Received) {
        let at = received.at;
        match &received.input {
            Input::Kernel(_)
            | Input::Proc(_)
            | Input::Traffic(_)
            | Input::Host(_)
            | Input::Events(_)
            | Input::Clock(_)
            | Input::Recalled { .. } => {}
            Input::Cri(CriEvent::Connected { runtime, .. }) => {
                self.cri = SourceHealth::Up(runtime.clone())
            }
            Input::Cri(CriEvent::Unreachable { error, .. }) => self.cri.fail(at, error),
            // An answer after a failed call: the connection works.
            Input::Cri(_) => self.cri.recover("the runtime"),
            Input::Api(ApiEvent::OutOfSync { error }) => {
                self.api.get_or_insert(SourceHealth::Waiting).fail(at, error);
            }
            Input::Api(ApiEvent::Snapshot { .. } | ApiEvent::Resumed) => {
                self.api = Some(SourceHealth::Up("in sync".into()));
            }
            // Part of a list that is not complete yet, or a watch that never broke.
            Input::Api(ApiEvent::Applied(_) | ApiEvent::Deleted(_)) => {}
            // Answers to direct queries, which say nothing about the watch.
            Input::Api(ApiEvent::NodeUnknown { error, .. }) => {
                self.node_error = Some(error.clone());
            }
            Input::Api(ApiEvent::Node(_)) => self.node_error = None,
            Input::Api(ApiEvent::Checked { .. }) => {}
            Input::Lost(loss) => {
                let known =
                    self.losses.entry(loss.kind).or_insert(LossState { count: 0, last: at });
                known.count = known.count.saturating_add(loss.count);
                known.last = at;
            }
            Input::Tick => self.ticked = at,
        }
    }

    /// The runtime answers. `None`: not queried before the kernel side is up.
    pub fn cri_connected(&self) -> Option<bool> {
        self.asks().then_some(matches!(self.cri, SourceHealth::Up(_)))
    }

    /// The pod watch is in sync. `None`: the agent runs without the apiserver, or the kernel side is not up yet.
    pub fn api_in_sync(&self) -> Option<bool> {
        self.api.as_ref().filter(|_| self.asks()).map(|api| matches!(api, SourceHealth::Up(_)))
    }

    fn asks(&self) -> bool {
        matches!(self.kernel, KernelSide::Started(_) | KernelSide::Unused)
    }

    /// Each hook by name: attached or not. None, where the kernel side cannot start.
    pub fn hooks(&self) -> Vec<(&'static str, bool)> {
        match &self.kernel {
            KernelSide::Started(report) => {
                report.hooks.iter().map(|(name, how)| (*name, how.is_ok())).collect()
            }
            KernelSide::Failed(_) => HOOKS.iter().map(|hook| (hook.name, false)).collect(),
            KernelSide::Starting | KernelSide::Unused => Vec::new(),
        }
    }

    /// Whether the event loop is alive; if not, the time since its last tick.
    pub fn alive(&self, now: BootTime) -> Result<(), Duration> {
        let silent = now.since(self.ticked);
        if silent < STALLED { Ok(()) } else { Err(silent) }
    }

    /// Whether every source of evidence works.
    pub fn readiness(&self, now: BootTime) -> Readiness {
        let mut parts = vec![self.privileges_part(), self.kernel_part(), self.host_part()];
        if self.asks() {
            parts.push(self.runtime_part(now));
            match &self.api {
                Some(api) => parts.push(source_part("api", api, now)),
                None => parts.push(Part::ok("api", "not used (--no-api)")),
            }
        }
        if let KernelSide::Started(report) = &self.kernel {
            parts.push(traffic_part(report));
        }
        parts.push(self.leak_part());
        parts.push(self.loss_part(now));
        Readiness { ready: parts.iter().all(|part| part.state != PartState::Failing), parts }
    }

    fn privileges_part(&self) -> Part {
        if self.lacks.is_empty() {
            let confinement = self.confinement.iter().map(|(by, how)| match how {
                Ok(()) => format!("; confined by {by}"),
                Err(why) => format!("; not confined by {by}: {why}"),
            });
            let detail = "all required capabilities".to_owned() + &confinement.collect::<String>();
            // Landlock is newer than the oldest kernel that the agent runs on.
            if self.confinement.get("seccomp").is_none_or(Result::is_ok) {
                return Part::ok("privileges", detail);
            }
            return Part {
                part: "privileges",
                state: PartState::Degraded,
                detail,
                todo: "use a kernel with CONFIG_SECCOMP_FILTER".into(),
            };
        }
        let essential = self.lacks.iter().any(|lack| lack.essential);
        let lacks = self.lacks.iter();
        Part {
            part: "privileges",
            state: if essential { PartState::Failing } else { PartState::Degraded },
            detail: lacks
                .map(|lack| format!("{} is missing: {}", lack.capability, lack.purpose))
                .collect::<Vec<_>>()
                .join("; "),
            todo: "add the capabilities listed in deploy/coroner.yaml to the container's securityContext \
                   (CAP_SYS_RESOURCE: the chart's extraCapabilities)"
                .into(),
        }
    }

    /// A slow runtime is used, because its answers are valid as of their requests.
    fn runtime_part(&self, now: BootTime) -> Part {
        let part = source_part("cri", &self.cri, now);
        let Some(longest) = self.cri_takes.filter(|_| part.state == PartState::Ok) else {
            return part;
        };
        Part {
            state: PartState::Degraded,
            detail: format!("{}; slow: a call takes {} s", part.detail, longest.as_secs()),
            todo: "check the runtime's log and the node's load; terminations may be reported \
                   without the runtime's exit codes and times"
                .into(),
            ..part
        }
    }

    /// Degraded at most: without the host's processes terminations are still measured correctly.
    fn host_part(&self) -> Part {
        let Some(visibility) = self.visibility else { return Part::ok("host", "not probed yet") };
        let hidden = visibility.hidden();
        if hidden.is_empty() {
            return Part::ok("host", "processes and files are readable");
        }
        Part {
            part: "host",
            state: PartState::Degraded,
            detail: hidden.iter().map(|hidden| hidden.cost).collect::<Vec<_>>().join("; "),
            todo: hidden.iter().map(|hidden| hidden.todo).collect::<Vec<_>>().join("; ").into(),
        }
    }

    fn kernel_part(&self) -> Part {
        let report = match &self.kernel {
            KernelSide::Started(report) => report,
            KernelSide::Unused => return Part::ok("kernel", "not used"),
            KernelSide::Starting => {
                return Part {
                    part: "kernel",
                    state: PartState::Failing,
                    detail: "loading the kernel programs".into(),
                    todo: "wait; loading takes less than a second".into(),
                };
            }
            KernelSide::Failed(why) => {
                return Part {
                    part: "kernel",
                    state: PartState::Failing,
                    detail: why.clone(),
                    todo: "run `coroner doctor` to see what this node lacks; the agent retries \
                         every 30 s"
                        .into(),
                };
            }
        };
        let refused = report.refusals();
        let attached = format!("{} hooks on {}", report.hooks.len(), report.cgroup_root.display());
        if let (true, Some(unproven)) = (refused.is_empty(), &report.unproven) {
            if unproven.is_harmless() {
                return Part::ok("kernel", format!("{attached}; {unproven}"));
            }
            return Part {
                part: "kernel",
                state: PartState::Degraded,
                detail: format!("{attached}; {unproven}"),
                todo: "the self-test must find its own process in the host's cgroups; mount \
                       /sys/fs/cgroup of the host and set hostPID: true"
                    .into(),
            };
        }
        if refused.is_empty() {
            return Part::ok("kernel", &attached);
        }
        Part {
            part: "kernel",
            state: PartState::Failing,
            detail: format!("hooks refused: {}", refused),
            todo: "run `coroner doctor` on this node to see what the kernel or the agent's \
                   privileges lack"
                .into(),
        }
    }

    /// Suspended leak detection makes the agent unready only for a configuration error, because outages have their
    /// own parts.
    fn leak_part(&self) -> Part {
        let state = match self.detection_state {
            DetectionState::Possible => return Part::ok("leaks", "detection is active"),
            DetectionState::NoApi => return Part::ok("leaks", "detection is inactive (--no-api)"),
            DetectionState::NodeMissing | DetectionState::NodeForeign => PartState::Failing,
            _ => PartState::Degraded,
        };
        let (why, todo) = why_suspended(self.detection_state);
        let error = self.node_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let detail = format!("detection is suspended: {why}{error}");
        Part { part: "leaks", state, detail, todo: todo.into() }
    }

    /// Why leak detection is suspended, and the remedy, of each part that is in its way; empty: it is not.
    pub fn suspension(&self, now: BootTime) -> String {
        if self.detection_state == DetectionState::Possible {
            return String::new();
        }
        let mut parts = self.readiness(now).parts;
        parts.retain(|part| match part.part {
            "cri" | "api" => part.state == PartState::Failing,
            part => part == "leaks",
        });
        if parts.len() > 1 {
            parts.retain(|part| !part.todo.is_empty());
        }
        let lines = parts.iter().map(|Part { part, detail, todo, .. }| match *part {
            "leaks" => {
                format!("{}\n  → {todo}", detail.trim_start_matches("detection is suspended: "))
            }
            part => format!("{part}: {detail}\n  → {todo}"),
        });
        let lines: Vec<_> = lines.collect();
        lines.join("\n").trim_end_matches("\n  → ").to_owned()
    }

    fn loss_part(&self, now: BootTime) -> Part {
        let recent: Vec<_> =
            self.losses.iter().filter(|(_, loss)| now.since(loss.last) < LOSS_MEMORY).collect();
        if recent.is_empty() {
            return Part::ok("losses", "none in the last 10 minutes");
        }
        let detail = recent
            .iter()
            .map(|(kind, loss)| {
                format!("{kind}: {} ({} s ago)", loss.count, now.since(loss.last).as_secs())
            })
            .collect::<Vec<_>>()
            .join(", ");
        let unseen = recent.iter().any(|(kind, _)| **kind == LossKind::CgroupMapFull);
        if unseen {
            // Other losses mark the affected reports; this one hides containers.
            return Part {
                part: "losses",
                state: PartState::Failing,
                detail,
                todo: "the map of watched cgroups is full, so new containers are not observed; \
                       remove unused cgroups (see coroner_watched_cgroups)"
                    .into(),
            };
        }
        Part {
            part: "losses",
            state: PartState::Degraded,
            detail,
            todo: "affected reports are marked incomplete; if losses continue, raise --ring-bytes"
                .into(),
        }
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

/// Whether the connections of terminating pods can be counted. Degraded at most: no verdict needs them.
fn traffic_part(report: &StartReport) -> Part {
    const PART: &str = "traffic";
    if report.traffic.is_empty() {
        return Part::ok(PART, "not used (--traffic off)");
    }
    let losses = report.traffic_losses();
    let todo = "run `coroner doctor` to see what this kernel lacks, or use --traffic off";
    let degraded =
        |detail: String| Part { part: PART, state: PartState::Degraded, detail, todo: todo.into() };
    match &report.traffic_unproven {
        _ if !report.counts_traffic() => degraded(losses),
        Some(why) => degraded(format!("not verified by the self-test: {why}")),
        None if losses.is_empty() => Part::ok(PART, "connections of terminating pods are counted"),
        None => Part::ok(PART, format!("connections of terminating pods are counted; {losses}")),
    }
}

/// What of the states of leak detection `doctor`, /readyz, `leaks` and the log say, and the remedy.
pub(crate) fn why_suspended(state: DetectionState) -> (&'static str, &'static str) {
    match state {
        DetectionState::Possible | DetectionState::NoApi => ("", ""),
        DetectionState::Starting => ("waiting for all sources and a survey of the host", ""),
        DetectionState::ApiOutOfSync => ("the pod watch is out of sync", ""),
        DetectionState::CriUnreachable => ("the container runtime does not answer", ""),
        DetectionState::NodeUnknown => (
            "cannot read the Node object or this machine's boot id",
            "grant the agent `get` on nodes (RBAC), and mount /proc into its container",
        ),
        DetectionState::NodeMissing => (
            "there is no Node object with this name",
            "check --node (NODE_NAME); with a wrong name every sandbox would look leaked",
        ),
        DetectionState::NodeForeign => (
            "the Node object with this name belongs to another machine, or its kubelet has not \
             reported since this machine booted",
            "check --node (NODE_NAME) and that the kubelet runs; the Node's bootID must be this \
             machine's",
        ),
    }
}

fn source_part(part: &'static str, source: &SourceHealth, now: BootTime) -> Part {
    let todo = match part {
        "cri" => {
            "start the container runtime, or set --runtime-endpoint if it uses a socket that is not known"
        }
        _ => "check that the apiserver is reachable and that the agent may list and watch pods",
    };
    match source {
        SourceHealth::Up(detail) => Part::ok(part, detail),
        SourceHealth::Waiting => Part {
            part,
            state: PartState::Failing,
            detail: "no answer yet".into(),
            todo: todo.into(),
        },
        SourceHealth::Down { since, error } => Part {
            part,
            state: PartState::Failing,
            detail: format!("unreachable for {} s: {error}", now.since(*since).as_secs()),
            todo: todo.into(),
        },
    }
}

impl Part {
    fn ok(part: &'static str, detail: impl Into<String>) -> Self {
        Self { part, state: PartState::Ok, detail: detail.into(), todo: "".into() }
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", if self.ready { "ready" } else { "not ready" })?;
        for part in &self.parts {
            let mark = match part.state {
                PartState::Ok => "ok",
                PartState::Degraded => "degraded",
                PartState::Failing => "FAILING",
            };
            writeln!(f, "{:<10} {mark:<8} {}", part.part, part.detail)?;
            if !part.todo.is_empty() {
                writeln!(f, "{:19} → {}", "", part.todo)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kernel::Unproven;
    use coroner_core::input::Loss;

    fn at(secs: u64, input: Input) -> Received {
        Received { at: secs_boot(secs), input }
    }

    fn secs_boot(secs: u64) -> BootTime {
        BootTime(secs * 1_000_000_000)
    }

    fn connected() -> Input {
        Input::Cri(CriEvent::Connected { runtime: "containerd 1.7".into(), process: None })
    }

    /// Everything works at second 1.
    fn well() -> Health {
        let mut health = Health::new(true, secs_boot(0));
        let hooks = [("cgroup_mkdir", Ok(()))].into();
        health.kernel_started(StartReport {
            cgroup_root: "/sys/fs/cgroup".into(),
            hooks,
            ..StartReport::default()
        });
        health.note(&at(1, connected()));
        health.note(&at(1, Input::Api(ApiEvent::Snapshot { pods: vec![] })));
        health
    }

    fn failing(health: &Health, now: u64) -> Vec<&'static str> {
        let ready = health.readiness(secs_boot(now));
        let failing: Vec<_> =
            ready.parts.iter().filter(|p| p.state == PartState::Failing).map(|p| p.part).collect();
        assert_eq!(ready.ready, failing.is_empty());
        failing
    }

    #[test]
    fn nothing_is_ready_before_it_answered() {
        let mut health = Health::new(true, secs_boot(0));
        assert_eq!(failing(&health, 1), ["kernel"], "the others are not asked before it is up");
        health.kernel_started(StartReport::default());
        assert_eq!(failing(&health, 1), ["cri", "api"]);
        let mut health = Health::new(false, secs_boot(0));
        health.kernel_started(StartReport::default());
        assert_eq!(failing(&health, 1), ["cri"]);
        assert_eq!(failing(&Health::without_kernel(secs_boot(0)), 1), ["cri", "api"]);
        assert_eq!(failing(&well(), 1), [""; 0]);
    }

    #[test]
    fn a_source_that_fails_says_since_when_and_recovers() {
        let mut health = well();
        let down =
            |error: &str| Input::Cri(CriEvent::Unreachable { error: error.into(), code: None });
        health.note(&at(10, down("refused")));
        health.note(&at(12, down("reset")));
        assert_eq!(failing(&health, 15), ["cri"]);
        let text = health.readiness(secs_boot(15)).to_string();
        assert!(text.contains("unreachable for 5 s: reset"), "{text}");
        health.note(&at(16, connected()));
        assert_eq!(failing(&health, 16), [""; 0]);

        health.note(&at(20, Input::Api(ApiEvent::OutOfSync { error: "410".into() })));
        assert_eq!((failing(&health, 20), health.api_in_sync()), (vec!["api"], Some(false)));
        health.note(&at(21, Input::Api(ApiEvent::Applied(Default::default()))));
        assert_eq!(failing(&health, 21), ["api"], "an event of a list that is not complete");
        health.note(&at(22, Input::Api(ApiEvent::Resumed)));
        assert_eq!(failing(&health, 22), [""; 0]);
    }

    #[test]
    fn a_slow_runtime_is_degraded_and_not_unready() {
        let mut health = well();
        let cri = |health: &Health| health.readiness(secs_boot(2)).parts[3].clone();
        let seconds = Duration::from_secs;
        for (longest, change, state) in [
            (seconds(4), None, PartState::Ok),
            (seconds(15), Some(true), PartState::Degraded),
            (seconds(16), None, PartState::Degraded),
            (seconds(1), Some(false), PartState::Ok),
        ] {
            assert_eq!(health.runtime_takes(longest), change, "{longest:?}");
            assert_eq!((cri(&health).part, cri(&health).state), ("cri", state), "{longest:?}");
            assert_eq!(failing(&health, 2), [""; 0]);
        }
        health.runtime_takes(seconds(15));
        assert!(cri(&health).detail.contains("containerd 1.7; slow: a call takes 15 s"));
        let error = "no answer within 60s".into();
        health.note(&at(2, Input::Cri(CriEvent::Unreachable { error, code: None })));
        assert_eq!(cri(&health).state, PartState::Failing, "an outage says more");
    }

    #[test]
    fn a_refused_hook_is_named() {
        let mut health = well();
        let hooks = [("signal_generate", Err("self-test: wrong exit code".to_owned()))].into();
        health.kernel_started(StartReport {
            cgroup_root: "/sys/fs/cgroup".into(),
            hooks,
            ..StartReport::default()
        });
        assert_eq!(failing(&health, 2), ["kernel"]);
        let text = health.readiness(secs_boot(2)).to_string();
        assert!(text.contains("signal_generate: self-test: wrong exit code"), "{text}");
    }

    #[test]
    fn a_missing_capability_is_named() {
        let mut health = well();
        let lack = |capability, essential| MissingCapability {
            capability,
            purpose: "it matters",
            essential,
        };
        health.lacking(vec![lack("CAP_SYS_PTRACE", false)]);
        assert_eq!(failing(&health, 2), [""; 0], "it works without");
        assert!(health.readiness(secs_boot(2)).to_string().contains("CAP_SYS_PTRACE is missing"));
        health.lacking(vec![lack("CAP_SYS_PTRACE", false), lack("CAP_BPF", true)]);
        assert_eq!(failing(&health, 2), ["privileges"]);
    }

    #[test]
    fn what_of_the_host_is_hidden_is_told() {
        let mut health = well();
        let all = ProcVisibility {
            root: true,
            host: true,
            namespaces: true,
            wait_channels: true,
            stacks: false,
        };
        for (visibility, state, word) in [
            (all, PartState::Ok, "readable"),
            (ProcVisibility { root: false, ..all }, PartState::Degraded, "orphan_netns"),
            (ProcVisibility { host: false, ..all }, PartState::Degraded, "not visible"),
            (ProcVisibility { namespaces: false, ..all }, PartState::Degraded, "security module"),
        ] {
            health.set_visibility(visibility);
            let part = &health.readiness(secs_boot(2)).parts[2];
            assert_eq!((part.part, part.state), ("host", state), "{visibility:?}");
            assert!(part.detail.contains(word), "{}", part.detail);
        }
    }

    #[test]
    fn a_kernel_side_that_cannot_start_says_why() {
        let mut health = well();
        health.kernel_failed("no BTF".into());
        assert_eq!(failing(&health, 2), ["kernel"]);
        assert!(health.hooks().iter().all(|(_, attached)| !attached));
        assert_eq!(health.hooks().len(), HOOKS.len());
        assert!(health.readiness(secs_boot(2)).to_string().contains("no BTF"));
    }

    #[test]
    fn what_is_not_proven_still_works() {
        let mut health = well();
        for (hook, state) in
            [("cgroup_mkdir", PartState::Ok), ("signal_generate", PartState::Degraded)]
        {
            let unproven = Unproven { hooks: vec![hook], why: "read-only".into() };
            let unproven = Some(unproven);
            health.kernel_started(StartReport { unproven, ..StartReport::default() });
            assert_eq!(failing(&health, 2), [""; 0]);
            let part = &health.readiness(secs_boot(2)).parts[1];
            assert_eq!(part.state, state);
            assert!(part.detail.contains("read-only"), "{}", part.detail);
        }
    }

    #[test]
    fn losses_degrade_and_only_unseen_containers_fail() {
        let mut health = well();
        let lost = |kind| Input::Lost(Loss::new(kind, 3));
        health.note(&at(10, lost(LossKind::DetailRingFull)));
        assert_eq!(failing(&health, 11), [""; 0]);
        assert_eq!(health.readiness(secs_boot(11)).parts[6].state, PartState::Degraded);
        health.note(&at(10, lost(LossKind::CgroupMapFull)));
        assert_eq!(failing(&health, 11), ["losses"]);
        assert_eq!(failing(&health, 611), [""; 0], "forgotten after ten minutes");
    }

    #[test]
    fn a_silent_loop_is_not_alive() {
        let mut health = well();
        health.note(&at(100, Input::Tick));
        assert_eq!(health.alive(secs_boot(109)), Ok(()));
        assert_eq!(health.alive(secs_boot(110)), Err(Duration::from_secs(10)));
    }
}
