//! The table of checks: of each name the first row in which something was found, with its severity and the remedy.

use super::{Health, KernelSide, SourceHealth};
use coroner_core::{input::LossKind, leak::DetectionState, time::BootTime};
use serde::Serialize;
use std::{borrow::Cow, fmt, time::Duration};

/// How long a loss is shown on /readyz.
const LOSS_MEMORY: Duration = Duration::from_secs(600);
/// Types of SELinux that may look at other processes: of container-selinux, of Bottlerocket, of processes on the host.
const UNCONFINED_TYPES: [&str; 6] =
    ["spc_t", "super_t", "control_t", "unconfined_t", "unconfined_service_t", "kernel_t"];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Ok,
    /// Works with restrictions; does not make the agent unready.
    Degraded,
    /// Does not work: the agent is not ready.
    Failing,
}

use Severity::{Degraded, Failing, Ok as Fine};

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// `privileges`, `lockdown`, `confinement`, `kernel`, `host`, `cri`, `api`, `traffic`, `leaks`, `losses`.
    pub name: &'static str,
    pub severity: Severity,
    pub found: String,
    /// The remedy; empty if there is nothing to do.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub todo: Cow<'static, str>,
}

/// All checks: the answer of /readyz and of `doctor`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checks {
    pub ready: bool,
    pub checks: Vec<Check>,
}

/// Severity, what is found if the row applies, and what to do.
type Row = (Severity, Option<String>, Cow<'static, str>);

fn row(severity: Severity, found: Option<String>, todo: &'static str) -> Row {
    (severity, found, todo.into())
}

fn fine(found: impl Into<String>) -> Row {
    row(Fine, Some(found.into()), "")
}

/// The first row that applies.
fn first(name: &'static str, rows: impl IntoIterator<Item = Row>) -> Option<Check> {
    let mut found = rows
        .into_iter()
        .filter_map(|(severity, found, todo)| Some(Check { name, severity, found: found?, todo }));
    found.next()
}

impl Health {
    /// Whether every source of evidence works.
    pub fn checks(&self, now: BootTime) -> Checks {
        let mut checks = self.node_checks();
        checks.push(self.kernel_check());
        if self.asks {
            checks.push(self.runtime_check(now));
            checks.push(self.api_check(now));
        }
        checks.extend(self.traffic_check());
        checks.extend([self.leak_check(), self.loss_check(now)]);
        Checks { ready: checks.iter().all(|check| check.severity != Failing), checks }
    }

    /// The checks of what does not change.
    pub(crate) fn node_checks(&self) -> Vec<Check> {
        let checks = [
            self.privileges_check(),
            self.lockdown_check(),
            self.confinement_check(),
            self.host_check(),
        ];
        checks.into_iter().flatten().collect()
    }

    fn privileges_check(&self) -> Option<Check> {
        let lacks = self.lacks.iter();
        let lacks = lacks.map(|lack| format!("{} is missing: {}", lack.capability, lack.purpose));
        let lacks = Some(lacks.collect::<Vec<_>>().join("; ")).filter(|lacks| !lacks.is_empty());
        let confinement = self.confinement.iter().map(|(by, how)| match how {
            Ok(()) => format!("; confined by {by}"),
            Err(why) => format!("; not confined by {by}: {why}"),
        });
        let all = "all required capabilities".to_owned() + &confinement.collect::<String>();
        // Landlock is newer than the oldest kernel that the agent runs on.
        let is_filtered = self.confinement.get("seccomp").is_none_or(Result::is_ok);
        let is_essential = self.lacks.iter().any(|lack| lack.essential);
        first(
            "privileges",
            [
                row(
                    if is_essential { Failing } else { Degraded },
                    lacks,
                    "run as root, or add the capabilities listed in deploy/coroner.yaml to the container's \
                     securityContext (CAP_SYS_RESOURCE: the chart's extraCapabilities)",
                ),
                row(
                    Degraded,
                    (!is_filtered).then(|| all.clone()),
                    "use a kernel with CONFIG_SECCOMP_FILTER",
                ),
                fine(all),
            ],
        )
    }

    /// Whether programs may read kernel memory (`LOCKDOWN_BPF_READ_KERNEL`), by the kernel's list, such as
    /// `none [integrity] confidentiality` (`security/lockdown/lockdown.c`).
    fn lockdown_check(&self) -> Option<Check> {
        let chosen = |mode: &str| mode.strip_prefix('[')?.strip_suffix(']').map(str::to_owned);
        let modes = self.restrictions.lockdown.as_deref()?;
        let mode = modes.split_whitespace().find_map(chosen)?;
        let closed = "confidentiality: no program may read kernel memory";
        first(
            "lockdown",
            [
                row(
                    Failing,
                    (mode == "confidentiality").then(|| closed.to_owned()),
                    "boot with lockdown=integrity (Talos: a kernel argument; Bottlerocket: \
                     settings.kernel.lockdown), which suffices for Secure Boot",
                ),
                fine(mode),
            ],
        )
    }

    /// Whether a security module confines the agent, by its label: an AppArmor profile, or an SELinux context. `None`: there
    /// is no such module.
    fn confinement_check(&self) -> Option<Check> {
        let label = self.restrictions.label.as_deref()?.trim_matches(['\0', '\n', ' ']);
        let parts: Vec<&str> = label.split(':').collect();
        let closed = "other processes and the host's files may be closed to the agent";
        let found = match parts.as_slice() {
            [""] => return None,
            ["unconfined"] => fine("no AppArmor profile"),
            [_, _, kind, _, ..] if UNCONFINED_TYPES.contains(kind) => {
                fine(format!("SELinux type {kind}"))
            }
            [_, _, kind, _, ..] => row(
                Degraded,
                Some(format!("SELinux type {kind}: {closed}")),
                "run the container with seLinuxOptions.type spc_t (the chart's seLinuxOptions), on \
                 Bottlerocket super_t",
            ),
            // The one that deploy/apparmor ships.
            ["coroner (enforce)"] => fine("AppArmor profile coroner"),
            _ if label.ends_with("(complain)") => {
                fine(format!("AppArmor profile {label} denies nothing"))
            }
            _ => row(
                Degraded,
                Some(format!("AppArmor profile {label}: {closed}")),
                "run the container with appArmorProfile: Unconfined, as the chart does, or with the \
                 profile in deploy/apparmor",
            ),
        };
        first("confinement", [found])
    }

    /// Degraded at most: without the host's processes terminations are still measured correctly.
    fn host_check(&self) -> Option<Check> {
        let hidden = self.restrictions.visibility.map(|visibility| visibility.hidden());
        let (cost, todo): (Vec<_>, Vec<_>) = hidden.iter().flatten().copied().unzip();
        first(
            "host",
            [
                (Degraded, (!cost.is_empty()).then(|| cost.join("; ")), todo.join("; ").into()),
                row(Fine, hidden.map(|_| "processes and files are readable".to_owned()), ""),
                fine("not probed yet"),
            ],
        )
    }

    pub(crate) fn kernel_check(&self) -> Check {
        let rows = match &self.kernel {
            KernelSide::Starting => {
                vec![row(Failing, Some("loading the kernel programs".to_owned()), "wait")]
            }
            // The error has the remedy.
            KernelSide::Failed(why) => vec![row(Failing, Some(why.clone()), "")],
            KernelSide::Started(report) => {
                let attached =
                    format!("{} hooks on {}", report.hooks.len(), report.cgroup_root.display());
                let unproven = |is_harmless: bool| {
                    let unproven = report.unproven.as_ref();
                    let unproven = unproven.filter(|one| one.is_harmless() == is_harmless)?;
                    Some(format!("{attached}; {unproven}"))
                };
                vec![
                    row(
                        Failing,
                        report
                            .is_refused()
                            .then(|| format!("hooks refused: {}", report.refusals())),
                        "if `lockdown` and `privileges` are ok, this kernel does not support these hooks: \
                         please report it with the output of `uname -a`",
                    ),
                    row(
                        Degraded,
                        unproven(false),
                        "the self-test must find its own process in the host's cgroups; mount \
                         /sys/fs/cgroup of the host and set hostPID: true",
                    ),
                    row(Fine, unproven(true), ""),
                    fine(attached),
                ]
            }
        };
        first("kernel", rows).expect("the last row applies")
    }

    /// A slow runtime is used, because its answers are valid as of their requests.
    pub(crate) fn runtime_check(&self, now: BootTime) -> Check {
        const NAME: &str = "cri";
        let todo = "start the container runtime, or set --runtime-endpoint if it uses a socket that is not known";
        let check = self.cri.check(NAME, todo, now);
        let slow = self.cri_takes.map(|longest| {
            (
                format!("slow: a call takes {} s", longest.as_secs()),
                "check the runtime's log and the node's load; terminations may be reported without \
                 the runtime's exit codes and times",
            )
        });
        let unreadable = (self.unreadable > 0).then(|| {
            (
                format!("{} object(s) of its lists cannot be read", self.unreadable),
                "see the log's debug lines; meanwhile no shim, network namespace or pod cgroup is reported as a leak",
            )
        });
        let (found, todo): (Vec<_>, Vec<_>) = slow.into_iter().chain(unreadable).unzip();
        if check.severity != Fine || found.is_empty() {
            return check;
        }
        let found = format!("{}; {}", check.found, found.join("; "));
        Check { name: NAME, severity: Degraded, found, todo: todo.join(". ").into() }
    }

    fn api_check(&self, now: BootTime) -> Check {
        let todo = "check that the apiserver is reachable and that the agent may list and watch pods (RBAC)";
        match &self.api {
            Some(api) => api.check("api", todo, now),
            None => Check {
                name: "api",
                severity: Fine,
                found: "not used (--no-api)".to_owned(),
                todo: "".into(),
            },
        }
    }

    /// Whether the connections of terminating pods can be counted. Degraded at most: no verdict needs them.
    fn traffic_check(&self) -> Option<Check> {
        let KernelSide::Started(report) = &self.kernel else { return None };
        let (losses, counted) =
            (report.traffic_losses(), "connections of terminating pods are counted");
        let todo =
            "please report it with the output of `uname -a`, or use --traffic off; all else works";
        let is_off = report.traffic.is_empty();
        let unproven = report.traffic_unproven.as_ref();
        first(
            "traffic",
            [
                row(Fine, is_off.then(|| "not used (--traffic off)".to_owned()), ""),
                row(Degraded, (!report.counts_traffic()).then(|| losses.clone()), todo),
                row(
                    Degraded,
                    unproven.map(|why| format!("not verified by the self-test: {why}")),
                    todo,
                ),
                // Kernels before 6.10 do not show refused connections.
                row(Fine, (!losses.is_empty()).then(|| format!("{counted}; {losses}")), ""),
                fine(counted),
            ],
        )
    }

    /// Suspended leak detection makes the agent unready only for a configuration error, because outages have their
    /// own checks.
    pub(crate) fn leak_check(&self) -> Check {
        let suspended = |severity, why: &str, with_error: bool, todo| {
            let error = self.node_error.as_ref().filter(|_| with_error);
            let error = error.map(|error| format!(": {error}")).unwrap_or_default();
            row(severity, Some(format!("detection is suspended: {why}{error}")), todo)
        };
        let found = match self.detection_state {
            DetectionState::Possible => fine("detection is active"),
            DetectionState::NoApi => fine("detection is inactive (--no-api)"),
            DetectionState::Starting => {
                suspended(Degraded, "waiting for all sources and a survey of the host", true, "")
            }
            DetectionState::ApiOutOfSync => {
                suspended(Degraded, "the pod watch is out of sync", false, "")
            }
            DetectionState::CriUnreachable => {
                suspended(Degraded, "the container runtime does not answer", false, "")
            }
            DetectionState::NodeUnknown => suspended(
                Degraded,
                "cannot read the Node object or this machine's boot id",
                true,
                "grant the agent `get` on nodes (RBAC), and mount /proc into its container",
            ),
            DetectionState::NodeMissing => suspended(
                Failing,
                "there is no Node object with this name",
                true,
                "check --node (NODE_NAME); with a wrong name every sandbox would look leaked",
            ),
            DetectionState::NodeForeign => suspended(
                Failing,
                "the Node object with this name belongs to another machine, or its kubelet has not \
                 reported since this machine booted",
                false,
                "check --node (NODE_NAME) and that the kubelet runs; the Node's bootID must be this \
                 machine's",
            ),
        };
        first("leaks", [found]).expect("the row applies")
    }

    /// Why leak detection is suspended or incomplete, and the remedy, of each part that is in its way; empty: it is
    /// neither.
    pub fn suspension(&self, now: BootTime) -> String {
        let is_possible = self.detection_state == DetectionState::Possible;
        let mut checks = self.checks(now).checks;
        checks.retain(|check| match check.name {
            "cri" if self.unreadable > 0 => true,
            "cri" | "api" => !is_possible && check.severity == Failing,
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

    /// Most losses mark the affected reports; a full map hides containers.
    fn loss_check(&self, now: BootTime) -> Check {
        let recent = self.losses.iter().filter(|(_, (_, last))| now.since(*last) < LOSS_MEMORY);
        let found = recent.clone().map(|(kind, (count, last))| {
            format!("{kind}: {count} ({} s ago)", now.since(*last).as_secs())
        });
        let found = Some(found.collect::<Vec<_>>().join(", ")).filter(|found| !found.is_empty());
        let is_full = recent.clone().any(|(kind, _)| *kind == LossKind::CgroupMapFull);
        let rows = [
            row(
                Failing,
                found.clone().filter(|_| is_full),
                "the map of watched cgroups is full, so new containers are not observed; remove \
                 unused cgroups (see coroner_watched_cgroups)",
            ),
            row(
                Degraded,
                found,
                "affected reports are marked incomplete; if losses continue, raise --ring-bytes",
            ),
            fine("none in the last 10 minutes"),
        ];
        first("losses", rows).expect("the last row applies")
    }
}

impl SourceHealth {
    fn check(&self, name: &'static str, todo: &'static str, now: BootTime) -> Check {
        let (severity, found, todo) = match self {
            Self::Up(found) => (Fine, found.clone(), ""),
            Self::Waiting => (Failing, "no answer yet".to_owned(), todo),
            Self::Down { since, error } => {
                let silent = now.since(*since).as_secs();
                (Failing, format!("unreachable for {silent} s: {error}"), todo)
            }
        };
        Check { name, severity, found, todo: todo.into() }
    }
}

impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", if self.ready { "ready" } else { "not ready" })?;
        for check in &self.checks {
            let mark = match check.severity {
                Fine => "ok",
                Degraded => "degraded",
                Failing => "FAILING",
            };
            writeln!(f, "{:<11} {mark:<8} {}", check.name, check.found)?;
            if !check.todo.is_empty() {
                writeln!(f, "{:20} → {}", "", check.todo)?;
            }
        }
        Ok(())
    }
}
