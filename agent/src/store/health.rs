//! Health of the agent, derived from its inputs: the checks of `/readyz`, `doctor`, the metrics and the log. Pure: the
//! inputs carry the time.

use crate::{
    linux::{privileges::MissingCapability, procfs::Hidden, restrictions::Restrictions},
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
/// Duration of a call after which the runtime counts as slow: the settle window.
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
    restrictions: Restrictions,
    /// The sources are asked: not before the kernel side is up.
    asks: bool,
    cri: SourceHealth,
    /// The longest recent call to the runtime, if at least [`SLOW`].
    cri_takes: Option<Duration>,
    /// Sandboxes of the runtime's list.
    unreadable: u32,
    /// Whether it was slow, and what was unreadable, when that was logged.
    runtime_told: (bool, u32),
    api: Option<SourceHealth>,
    losses: BTreeMap<LossKind, LossState>,
    detection_state: DetectionState,
    /// Why the Node object could not be read.
    node_error: Option<String>,
    ticked: BootTime,
}

#[derive(Debug)]
enum KernelSide {
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

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Works.
    Ok,
    /// Works with restrictions; does not make the agent unready.
    Degraded,
    /// Does not work: the agent is not ready.
    Failing,
}

/// One check of the agent, its sources or its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// `privileges`, `lockdown`, `confinement`, `kernel`, `host`, `cri`, `api`, `traffic`, `leaks`, `losses`.
    pub name: &'static str,
    /// The result.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// The remedy; empty if there is nothing to do.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub todo: Cow<'static, str>,
}

/// All checks: the answer of /readyz and of `doctor`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checks {
    /// No check fails.
    pub ready: bool,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

impl Health {
    /// Health before the first input. `with_api`: the apiserver is one of the sources.
    pub fn new(with_api: bool, now: BootTime) -> Self {
        Self {
            lacks: Vec::new(),
            confinement: BTreeMap::new(),
            kernel: KernelSide::Starting,
            restrictions: Restrictions::default(),
            asks: false,
            cri: SourceHealth::Waiting,
            cri_takes: None,
            unreadable: 0,
            runtime_told: (false, 0),
            api: with_api.then_some(SourceHealth::Waiting),
            losses: BTreeMap::new(),
            detection_state: DetectionState::default(),
            node_error: None,
            ticked: now,
        }
    }

    /// The sources are asked, with or without a kernel side.
    pub fn set_asking(&mut self) {
        self.asks = true;
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
        self.asks = true;
    }

    /// The kernel side cannot start, and why.
    pub fn kernel_failed(&mut self, why: String) {
        self.kernel = KernelSide::Failed(why);
    }

    /// What of the node restricts the agent.
    pub fn restricted(&mut self, restrictions: Restrictions) {
        self.restrictions = restrictions;
    }

    /// Sets the longest recent call to the runtime. True if the check of the runtime has another reason since the last
    /// call.
    pub fn runtime_takes(&mut self, longest: Duration) -> bool {
        self.cri_takes = (longest >= SLOW).then_some(longest);
        let now = (self.cri_takes.is_some(), self.unreadable);
        std::mem::replace(&mut self.runtime_told, now) != now
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
            Input::Cri(CriEvent::UnreadableSandboxes { count }) => self.unreadable = *count,
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

    /// Whether every source of evidence works.
    pub fn checks(&self, now: BootTime) -> Checks {
        let mut checks = self.node_checks();
        checks.push(self.kernel_check());
        if self.asks {
            checks.push(self.runtime_check(now));
            checks.push(match &self.api {
                Some(api) => source_check("api", api, now),
                None => Check::ok("api", "not used (--no-api)"),
            });
        }
        if let KernelSide::Started(report) = &self.kernel {
            checks.push(traffic_check(report));
        }
        checks.extend([self.leak_check(), self.loss_check(now)]);
        Checks { ready: checks.iter().all(|check| check.severity != Severity::Failing), checks }
    }

    /// The checks of what does not change.
    pub(crate) fn node_checks(&self) -> Vec<Check> {
        let mut checks = vec![self.privileges_check()];
        checks.extend(self.restrictions.lockdown.as_deref().and_then(lockdown_check));
        checks.extend(self.restrictions.label.as_deref().and_then(confinement_check));
        checks.push(self.host_check());
        checks
    }

    fn privileges_check(&self) -> Check {
        const NAME: &str = "privileges";
        if !self.lacks.is_empty() {
            let lacks = self.lacks.iter();
            let lacks =
                lacks.map(|lack| format!("{} is missing: {}", lack.capability, lack.purpose));
            let new = match self.lacks.iter().any(|lack| lack.essential) {
                true => Check::failing,
                false => Check::degraded,
            };
            return new(
                NAME,
                lacks.collect::<Vec<_>>().join("; "),
                "run as root, or add the capabilities listed in deploy/coroner.yaml to the container's \
                 securityContext (CAP_SYS_RESOURCE: the chart's extraCapabilities)",
            );
        }
        let confinement = self.confinement.iter().map(|(by, how)| match how {
            Ok(()) => format!("; confined by {by}"),
            Err(why) => format!("; not confined by {by}: {why}"),
        });
        let found = "all required capabilities".to_owned() + &confinement.collect::<String>();
        // Landlock is newer than the oldest kernel that the agent runs on.
        match self.confinement.get("seccomp").is_none_or(Result::is_ok) {
            true => Check::ok(NAME, found),
            false => Check::degraded(NAME, found, "use a kernel with CONFIG_SECCOMP_FILTER"),
        }
    }

    /// A slow runtime is used, because its answers are valid as of their requests.
    pub(crate) fn runtime_check(&self, now: BootTime) -> Check {
        let check = source_check("cri", &self.cri, now);
        let slow = self.cri_takes.map(|longest| {
            (
                format!("slow: a call takes {} s", longest.as_secs()),
                "check the runtime's log and the node's load; terminations may be reported without \
                 the runtime's exit codes and times",
            )
        });
        let unreadable = (self.unreadable > 0).then(|| {
            (
                format!("{} sandbox(es) of its list cannot be read", self.unreadable),
                "see the log's debug lines; meanwhile no shim, network namespace or pod cgroup is reported as a leak",
            )
        });
        let (found, todo): (Vec<_>, Vec<_>) = slow.into_iter().chain(unreadable).unzip();
        if check.severity != Severity::Ok || found.is_empty() {
            return check;
        }
        Check::degraded("cri", format!("{}; {}", check.found, found.join("; ")), todo.join(". "))
    }

    /// Degraded at most: without the host's processes terminations are still measured correctly.
    fn host_check(&self) -> Check {
        let Some(visibility) = self.restrictions.visibility else {
            return Check::ok("host", "not probed yet");
        };
        let hidden = visibility.hidden();
        if hidden.is_empty() {
            return Check::ok("host", "processes and files are readable");
        }
        let all =
            |what: fn(&Hidden) -> &str| hidden.iter().map(what).collect::<Vec<_>>().join("; ");
        Check::degraded("host", all(|hidden| hidden.cost), all(|hidden| hidden.todo))
    }

    pub(crate) fn kernel_check(&self) -> Check {
        const NAME: &str = "kernel";
        let report = match &self.kernel {
            KernelSide::Started(report) => report,
            KernelSide::Starting => {
                return Check::failing(NAME, "loading the kernel programs", "wait");
            }
            // The error has the remedy.
            KernelSide::Failed(why) => return Check::failing(NAME, why, ""),
        };
        if report.is_refused() {
            return Check::failing(
                NAME,
                format!("hooks refused: {}", report.refusals()),
                "if `lockdown` and `privileges` are ok, this kernel does not support these hooks: \
                 please report it with the output of `uname -a`",
            );
        }
        let attached = format!("{} hooks on {}", report.hooks.len(), report.cgroup_root.display());
        match &report.unproven {
            None => Check::ok(NAME, attached),
            Some(unproven) if unproven.is_harmless() => {
                Check::ok(NAME, format!("{attached}; {unproven}"))
            }
            Some(unproven) => Check::degraded(
                NAME,
                format!("{attached}; {unproven}"),
                "the self-test must find its own process in the host's cgroups; mount \
                 /sys/fs/cgroup of the host and set hostPID: true",
            ),
        }
    }

    /// Suspended leak detection makes the agent unready only for a configuration error, because outages have their
    /// own parts.
    pub(crate) fn leak_check(&self) -> Check {
        const NAME: &str = "leaks";
        let new = match self.detection_state {
            DetectionState::Possible => return Check::ok(NAME, "detection is active"),
            DetectionState::NoApi => return Check::ok(NAME, "detection is inactive (--no-api)"),
            DetectionState::NodeMissing | DetectionState::NodeForeign => Check::failing,
            _ => Check::degraded,
        };
        let (why, todo) = why_suspended(self.detection_state);
        let is_nodes = matches!(
            self.detection_state,
            DetectionState::Starting | DetectionState::NodeUnknown | DetectionState::NodeMissing
        );
        let error = self.node_error.as_ref().filter(|_| is_nodes);
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        new(NAME, format!("detection is suspended: {why}{error}"), todo)
    }

    /// Why leak detection is suspended or incomplete, and the remedy, of each part that is in its way; empty: it is
    /// neither.
    pub fn suspension(&self, now: BootTime) -> String {
        let is_possible = self.detection_state == DetectionState::Possible;
        let mut checks = self.checks(now).checks;
        checks.retain(|check| match check.name {
            "cri" if self.unreadable > 0 => true,
            "cri" | "api" => !is_possible && check.severity == Severity::Failing,
            name => !is_possible && name == "leaks",
        });
        if checks.len() > 1 {
            checks.retain(|check| !check.todo.is_empty());
        }
        let lines = checks.iter().map(|Check { name, found, todo, .. }| match *name {
            "leaks" => {
                format!("{}\n  → {todo}", found.trim_start_matches("detection is suspended: "))
            }
            name => format!("{name}: {found}\n  → {todo}"),
        });
        let lines: Vec<_> = lines.collect();
        lines.join("\n").trim_end_matches("\n  → ").to_owned()
    }

    fn loss_check(&self, now: BootTime) -> Check {
        const NAME: &str = "losses";
        let recent: Vec<_> =
            self.losses.iter().filter(|(_, loss)| now.since(loss.last) < LOSS_MEMORY).collect();
        if recent.is_empty() {
            return Check::ok(NAME, "none in the last 10 minutes");
        }
        let found = recent.iter().map(|(kind, loss)| {
            format!("{kind}: {} ({} s ago)", loss.count, now.since(loss.last).as_secs())
        });
        let found = found.collect::<Vec<_>>().join(", ");
        // Other losses mark the affected reports; this one hides containers.
        match recent.iter().any(|(kind, _)| **kind == LossKind::CgroupMapFull) {
            true => Check::failing(
                NAME,
                found,
                "the map of watched cgroups is full, so new containers are not observed; remove \
                 unused cgroups (see coroner_watched_cgroups)",
            ),
            false => Check::degraded(
                NAME,
                found,
                "affected reports are marked incomplete; if losses continue, raise --ring-bytes",
            ),
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
fn traffic_check(report: &StartReport) -> Check {
    const NAME: &str = "traffic";
    if report.traffic.is_empty() {
        return Check::ok(NAME, "not used (--traffic off)");
    }
    let losses = report.traffic_losses();
    let counted = "connections of terminating pods are counted";
    let todo =
        "please report it with the output of `uname -a`, or use --traffic off; all else works";
    match &report.traffic_unproven {
        _ if !report.counts_traffic() => Check::degraded(NAME, losses, todo),
        Some(why) => Check::degraded(NAME, format!("not verified by the self-test: {why}"), todo),
        None if losses.is_empty() => Check::ok(NAME, counted),
        // Kernels before 6.10 do not show refused connections.
        None => Check::ok(NAME, format!("{counted}; {losses}")),
    }
}

/// Whether programs may read kernel memory (`LOCKDOWN_BPF_READ_KERNEL`). `modes`: the kernel's list, such as
/// `none [integrity] confidentiality` (`security/lockdown/lockdown.c`).
fn lockdown_check(modes: &str) -> Option<Check> {
    const NAME: &str = "lockdown";
    let chosen = |mode: &str| mode.strip_prefix('[')?.strip_suffix(']').map(str::to_owned);
    Some(match modes.split_whitespace().find_map(chosen)? {
        mode if mode == "confidentiality" => Check::failing(
            NAME,
            "confidentiality: no program may read kernel memory",
            "boot with lockdown=integrity (Talos: a kernel argument; Bottlerocket: \
             settings.kernel.lockdown), which suffices for Secure Boot",
        ),
        mode => Check::ok(NAME, mode),
    })
}

/// Types of SELinux that may look at other processes: of container-selinux, of Bottlerocket, of processes on the host.
const UNCONFINED_TYPES: [&str; 6] =
    ["spc_t", "super_t", "control_t", "unconfined_t", "unconfined_service_t", "kernel_t"];

/// Whether a security module confines the agent, by its label: an AppArmor profile, or an SELinux context. `None`: there
/// is no such module.
fn confinement_check(label: &str) -> Option<Check> {
    const NAME: &str = "confinement";
    let label = label.trim_matches(['\0', '\n', ' ']);
    let closed = "other processes and the host's files may be closed to the agent";
    let parts: Vec<&str> = label.split(':').collect();
    Some(match parts.as_slice() {
        [""] => return None,
        ["unconfined"] => Check::ok(NAME, "no AppArmor profile"),
        [_, _, kind, _, ..] if UNCONFINED_TYPES.contains(kind) => {
            Check::ok(NAME, format!("SELinux type {kind}"))
        }
        [_, _, kind, _, ..] => Check::degraded(
            NAME,
            format!("SELinux type {kind}: {closed}"),
            "run the container with seLinuxOptions.type spc_t (the chart's seLinuxOptions), on \
             Bottlerocket super_t",
        ),
        // The one that deploy/apparmor ships.
        ["coroner (enforce)"] => Check::ok(NAME, "AppArmor profile coroner"),
        _ if label.ends_with("(complain)") => {
            Check::ok(NAME, format!("AppArmor profile {label} denies nothing"))
        }
        _ => Check::degraded(
            NAME,
            format!("AppArmor profile {label}: {closed}"),
            "run the container with appArmorProfile: Unconfined, as the chart does, or with the \
             profile in deploy/apparmor",
        ),
    })
}

/// Why leak detection is suspended in this state, and the remedy.
fn why_suspended(state: DetectionState) -> (&'static str, &'static str) {
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

fn source_check(name: &'static str, source: &SourceHealth, now: BootTime) -> Check {
    let todo = match name {
        "cri" => {
            "start the container runtime, or set --runtime-endpoint if it uses a socket that is not known"
        }
        _ => {
            "check that the apiserver is reachable and that the agent may list and watch pods (RBAC)"
        }
    };
    match source {
        SourceHealth::Up(found) => Check::ok(name, found),
        SourceHealth::Waiting => Check::failing(name, "no answer yet", todo),
        SourceHealth::Down { since, error } => {
            let found = format!("unreachable for {} s: {error}", now.since(*since).as_secs());
            Check::failing(name, found, todo)
        }
    }
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, severity: Severity::Ok, found: found.into(), todo: "".into() }
    }

    fn degraded(
        name: &'static str,
        found: impl Into<String>,
        todo: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name, severity: Severity::Degraded, found: found.into(), todo: todo.into() }
    }

    pub(crate) fn failing(
        name: &'static str,
        found: impl Into<String>,
        todo: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name, severity: Severity::Failing, found: found.into(), todo: todo.into() }
    }
}

impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", if self.ready { "ready" } else { "not ready" })?;
        for check in &self.checks {
            let mark = match check.severity {
                Severity::Ok => "ok",
                Severity::Degraded => "degraded",
                Severity::Failing => "FAILING",
            };
            writeln!(f, "{:<11} {mark:<8} {}", check.name, check.found)?;
            if !check.todo.is_empty() {
                writeln!(f, "{:20} → {}", "", check.todo)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{linux::procfs::ProcVisibility, sources::kernel::Unproven};
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
        let Checks { ready, checks } = health.checks(secs_boot(now));
        let failing = checks.iter().filter(|check| check.severity == Severity::Failing);
        let failing: Vec<_> = failing.map(|check| check.name).collect();
        assert_eq!(ready, failing.is_empty());
        failing
    }

    fn check(health: &Health, name: &str) -> Check {
        let mut checks = health.checks(secs_boot(11)).checks.into_iter();
        checks.find(|check| check.name == name).expect(name)
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
        let mut without = Health::new(true, secs_boot(0));
        without.kernel_failed("no BTF".into());
        without.set_asking();
        assert_eq!(failing(&without, 1), ["kernel", "cri", "api"]);
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
        let text = health.checks(secs_boot(15)).to_string();
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
        let cri = |health: &Health| check(health, "cri");
        let seconds = Duration::from_secs;
        for (longest, change, state) in [
            (seconds(4), false, Severity::Ok),
            (seconds(15), true, Severity::Degraded),
            (seconds(16), false, Severity::Degraded),
            (seconds(1), true, Severity::Ok),
        ] {
            assert_eq!(health.runtime_takes(longest), change, "{longest:?}");
            assert_eq!(cri(&health).severity, state, "{longest:?}");
            assert_eq!(failing(&health, 2), [""; 0]);
        }
        health.note(&at(2, Input::Cri(CriEvent::UnreadableSandboxes { count: 1 })));
        assert!(health.runtime_takes(seconds(1)), "reported once");
        assert_eq!(cri(&health).severity, Severity::Degraded);
        assert!(!health.runtime_takes(seconds(1)));
        health.runtime_takes(seconds(15));
        assert!(cri(&health).found.contains("containerd 1.7; slow: a call takes 15 s"));
        let error = "no answer within 60s".into();
        health.note(&at(2, Input::Cri(CriEvent::Unreachable { error, code: None })));
        assert_eq!(cri(&health).severity, Severity::Failing, "an outage says more");
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
        let text = health.checks(secs_boot(2)).to_string();
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
        assert!(health.checks(secs_boot(2)).to_string().contains("CAP_SYS_PTRACE is missing"));
        health.lacking(vec![lack("CAP_SYS_PTRACE", false), lack("CAP_BPF", true)]);
        assert_eq!(failing(&health, 2), ["privileges"]);
    }

    #[test]
    fn what_of_the_host_is_hidden_is_told() {
        let mut health = well();
        let visibility =
            ProcVisibility { root: false, host: false, namespaces: true, wait_channels: true };
        health.restricted(Restrictions { visibility: Some(visibility), ..Default::default() });
        let host = check(&health, "host");
        assert_eq!(host.severity, Severity::Degraded);
        for word in ["cannot enter", "not visible"] {
            assert!(host.found.contains(word), "{}", host.found);
        }
    }

    #[test]
    fn lockdown_is_in_the_way_in_confidentiality_mode_only() {
        for (modes, expected) in [
            ("[none] integrity confidentiality\n", Some(Severity::Ok)),
            ("none [integrity] confidentiality\n", Some(Severity::Ok)),
            ("none integrity [confidentiality]\n", Some(Severity::Failing)),
            ("", None),
        ] {
            assert_eq!(lockdown_check(modes).map(|check| check.severity), expected, "{modes}");
        }
    }

    #[test]
    fn what_confines_the_agent_is_named_with_the_remedy() {
        for (label, expected, word) in [
            ("unconfined\n", Severity::Ok, "no AppArmor"),
            ("cri-containerd.apparmor.d (enforce)\n", Severity::Degraded, "Unconfined"),
            ("coroner (enforce)\n", Severity::Ok, "coroner"),
            ("crio-default (complain)\n", Severity::Ok, "denies nothing"),
            ("system_u:system_r:container_t:s0:c1,c2\0", Severity::Degraded, "spc_t"),
            ("system_u:system_r:spc_t:s0", Severity::Ok, "spc_t"),
            ("system_u:system_r:super_t:s0", Severity::Ok, "super_t"),
            ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", Severity::Ok, "_t"),
        ] {
            let check = confinement_check(label).unwrap();
            assert_eq!(check.severity, expected, "{label:?}");
            let said = format!("{} {}", check.found, check.todo);
            assert!(said.contains(word), "{label:?}: {said}");
        }
        assert_eq!(confinement_check("\n"), None);
    }

    #[test]
    fn a_kernel_side_that_cannot_start_says_why() {
        let mut health = well();
        health.kernel_failed("no BTF".into());
        assert_eq!(failing(&health, 2), ["kernel"]);
        assert!(health.hooks().iter().all(|(_, attached)| !attached));
        assert_eq!(health.hooks().len(), HOOKS.len());
        assert!(health.checks(secs_boot(2)).to_string().contains("no BTF"));
    }

    #[test]
    fn what_is_not_proven_still_works() {
        let mut health = well();
        for (hook, state) in
            [("cgroup_mkdir", Severity::Ok), ("signal_generate", Severity::Degraded)]
        {
            let unproven = Unproven { hooks: vec![hook], why: "read-only".into() };
            let unproven = Some(unproven);
            health.kernel_started(StartReport { unproven, ..StartReport::default() });
            assert_eq!(failing(&health, 2), [""; 0]);
            let kernel = check(&health, "kernel");
            assert_eq!(kernel.severity, state);
            assert!(kernel.found.contains("read-only"), "{}", kernel.found);
        }
    }

    #[test]
    fn losses_degrade_and_only_unseen_containers_fail() {
        let mut health = well();
        let lost = |kind| Input::Lost(Loss::new(kind, 3));
        health.note(&at(10, lost(LossKind::DetailRingFull)));
        assert_eq!(failing(&health, 11), [""; 0]);
        assert_eq!(check(&health, "losses").severity, Severity::Degraded);
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
