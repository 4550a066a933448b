//! A finished termination as the fields of one log line.

use super::{container_name, printable};
use coroner_core::{
    report::{ContainerDeath, Finding, PodTermination},
    types::PhaseKind,
};
use std::collections::BTreeMap;

/// The fields of the line; lists are `name=value` separated by spaces, so that both a person and
/// a log query can take them apart.
#[derive(Clone, PartialEq, Debug)]
pub struct LogLine {
    /// Name.
    pub pod: String,
    pub namespace: String,
    /// UID as the runtime knows it.
    pub uid: String,
    /// What the pod is a replica of: `Deployment/web`.
    pub workload: Option<String>,
    /// Number of the report: 1 for the first.
    pub revision: u32,
    /// No other revision follows.
    pub is_final: bool,
    /// Why it ended.
    pub cause: &'static str,
    /// How sure that is.
    pub cause_certainty: &'static str,
    /// The whole, seconds.
    pub seconds: f64,
    /// Seconds by phase.
    pub phases: BTreeMap<PhaseKind, f64>,
    /// Verdicts by container: `app=graceful proxy=stop_signal_ignored`.
    pub verdicts: String,
    /// Findings by container, those of the pod without one: `app:children_not_signalled`.
    pub findings: String,
    /// The beginning was not seen.
    pub truncated: bool,
    /// Kinds of evidence that was lost.
    pub incomplete: String,
}

/// The fields of a finished termination.
pub fn log_line(account: &PodTermination) -> LogLine {
    let mut phases: BTreeMap<PhaseKind, f64> = BTreeMap::new();
    for phase in &account.phases {
        *phases.entry(phase.kind).or_default() += phase.to.since(phase.from).as_secs_f64();
    }
    phases.values_mut().for_each(|seconds| *seconds = (*seconds * 1e6).round() / 1e6);
    let mut findings: Vec<String> =
        account.findings.iter().map(|finding| finding.kind.to_string()).collect();
    for death in &account.containers {
        let of = |finding: &Finding| format!("{}:{}", label(death), finding.kind);
        findings.extend(death.findings.iter().map(of));
    }
    LogLine {
        pod: printable(&account.pod.name),
        namespace: printable(&account.pod.namespace),
        uid: printable(account.pod.uid.as_str()),
        workload: account.workload.as_ref().map(|workload| printable(&workload.to_string())),
        revision: account.revision,
        is_final: account.is_final,
        cause: account.cause.as_str(),
        cause_certainty: account.cause_certainty.as_str(),
        seconds: (account.total().as_secs_f64() * 1e6).round() / 1e6,
        phases,
        verdicts: join(
            account.containers.iter().map(|death| format!("{}={}", label(death), death.verdict)),
        ),
        findings: findings.join(" "),
        truncated: account.truncated,
        incomplete: join(account.incomplete.iter().map(ToString::to_string)),
    }
}

fn label(death: &ContainerDeath) -> String {
    printable(container_name(death))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}
