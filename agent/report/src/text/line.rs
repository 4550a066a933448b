//! A finished termination as the fields of one log line.

use super::{container_name, headline, printable};
use crate::{ContainerDeath, Finding, PhaseKind, PodTermination};
use std::collections::BTreeMap;

/// The fields of the line; lists are `name=value` separated by spaces, so that both a person and
/// a log query can take them apart.
#[derive(Clone, PartialEq, Debug)]
pub struct LogLine {
    pub pod: String,
    pub namespace: String,
    pub uid: String,
    pub workload: Option<String>,
    pub revision: u32,
    pub is_final: bool,
    pub cause: &'static str,
    pub seconds: f64,
    pub phases: BTreeMap<PhaseKind, f64>,
    /// The container that decided how the termination went, and its verdict.
    pub container: Option<String>,
    pub verdict: Option<&'static str>,
    /// By container: `app=graceful proxy=stop_signal_ignored`.
    pub verdicts: String,
    /// By container, those of the pod without one: `app:children_not_signalled`.
    pub findings: String,
    pub truncated: bool,
    /// Kinds of evidence that was lost.
    pub incomplete: String,
}

pub fn log_line(account: &PodTermination) -> LogLine {
    let mut phases: BTreeMap<PhaseKind, f64> = BTreeMap::new();
    for phase in &account.phases {
        *phases.entry(phase.kind).or_default() += phase.took.as_secs_f64();
    }
    phases.values_mut().for_each(|seconds| *seconds = (*seconds * 1e6).round() / 1e6);
    let label = |death: &ContainerDeath| printable(container_name(death));
    let mut findings: Vec<String> =
        account.findings.iter().map(|finding| finding.kind.to_string()).collect();
    for death in &account.containers {
        let of = |finding: &Finding| format!("{}:{}", label(death), finding.kind);
        findings.extend(death.findings.iter().map(of));
    }
    let verdict = |death: &ContainerDeath| format!("{}={}", label(death), death.verdict);
    let verdicts: Vec<_> = account.containers.iter().map(verdict).collect();
    let lost: Vec<_> = account.incomplete.iter().map(|kind| kind.as_str()).collect();
    let (_, decided) = headline(account);
    LogLine {
        container: decided.map(label),
        verdict: decided.map(|death| death.verdict.as_str()),
        pod: printable(&account.pod.name),
        namespace: printable(&account.pod.namespace),
        uid: printable(account.pod.uid.as_str()),
        workload: account.workload.as_ref().map(|workload| printable(&workload.to_string())),
        revision: account.revision,
        is_final: account.is_final,
        cause: account.cause.as_str(),
        seconds: (account.took.as_secs_f64() * 1e6).round() / 1e6,
        phases,
        verdicts: verdicts.join(" "),
        findings: findings.join(" "),
        truncated: account.truncated,
        incomplete: lost.join(" "),
    }
}
