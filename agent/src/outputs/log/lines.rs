//! Log lines about observations.

use crate::{
    outputs::report,
    store::health::{Check, Severity},
};
use coroner_core::{
    input::LossKind,
    leak::Leak,
    output::UnkillableContainer,
    report::{ContainerDeath, ExitStatus, PodTermination},
    time::WallTime,
    types::{Change, PhaseKind},
};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

/// Interval between two lines about losses of one kind, because a container can cause ten per second forever.
const LOSS_EVERY: Duration = Duration::from_secs(60);

/// Logs losses of evidence: the first of each kind at once, then one sum per minute.
#[derive(Debug, Default)]
pub(crate) struct Losses(Vec<(LossKind, u64, Instant)>);

impl Losses {
    pub(crate) fn note(&mut self, kind: LossKind, count: u64, now: Instant) {
        match self.0.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, sum, _)) => *sum += count,
            None => {
                self.0.push((kind, 0, now));
                lost(kind, count);
            }
        }
    }

    /// Logs the sums of the last minute. After a minute without losses, the next one is logged at once again.
    pub(crate) fn log_sums(&mut self, now: Instant) {
        self.0.retain_mut(|(kind, sum, since)| {
            if now.duration_since(*since) < LOSS_EVERY {
                return true;
            }
            let count = std::mem::take(sum);
            *since = now;
            if count > 0 {
                lost(*kind, count);
            }
            count > 0
        });
    }
}

fn lost(kind: LossKind, count: u64) {
    warn!(%kind, count, "evidence lost");
}

/// The only line while the container is stuck; its termination is reported after its exit.
pub(crate) fn holdout(holdout: &UnkillableContainer) {
    let pod = holdout.pod.as_ref();
    warn!(
        target: "coroner::unkillable",
        namespace = pod.map(|pod| pod.namespace.as_str()),
        pod = pod.map(|pod| pod.name.as_str()),
        container = holdout.container.as_ref().map(|id| id.as_str()),
        over = holdout.over,
        detail = holdout.detail,
        "container survived SIGKILL"
    );
}

macro_rules! termination {
    ($level:ident, $account:ident, $change:expr, $words:literal) => {{
        let line = report::log_line($account);
        let change: Option<Change> = $change;
        $level!(
            target: "coroner::termination",
            namespace = line.namespace,
            pod = line.pod,
            uid = line.uid,
            workload = line.workload,
            revision = line.revision,
            final = line.is_final,
            change = change.map(|change| change.as_str()),
            cause = line.cause,
            seconds = line.seconds,
            container = line.container,
            verdict = line.verdict,
            verdicts = line.verdicts,
            post_start_seconds = line.phases.get(&PhaseKind::PostStart),
            kubelet_reaction_seconds = line.phases.get(&PhaseKind::KubeletReaction),
            pre_stop_seconds = line.phases.get(&PhaseKind::PreStop),
            stop_call_seconds = line.phases.get(&PhaseKind::StopCall),
            sidecar_wait_seconds = line.phases.get(&PhaseKind::SidecarWait),
            shutdown_seconds = line.phases.get(&PhaseKind::Shutdown),
            kill_seconds = line.phases.get(&PhaseKind::Kill),
            reap_seconds = line.phases.get(&PhaseKind::Reap),
            runtime_notice_seconds = line.phases.get(&PhaseKind::RuntimeNotice),
            sandbox_stop_seconds = line.phases.get(&PhaseKind::SandboxStop),
            cleanup_seconds = line.phases.get(&PhaseKind::Cleanup),
            finalizers_seconds = line.phases.get(&PhaseKind::Finalizers),
            unattributed_seconds = line.phases.get(&PhaseKind::Unattributed),
            findings = line.findings,
            truncated = line.truncated,
            incomplete = line.incomplete,
            $words
        );
    }};
}

pub(crate) fn termination(account: &PodTermination) {
    termination!(info, account, None, "terminated");
}

/// Logs a revision of a report; other updates change nothing in the line except `final`, and are debug lines.
pub(crate) fn update(account: &PodTermination, change: Change) {
    if change.is_revision() {
        termination!(info, account, Some(change), "termination updated");
    } else {
        termination!(debug, account, Some(change), "termination updated");
    }
}

pub(crate) fn check(check: &Check) {
    let Check { name, severity, found, todo } = check;
    match severity {
        Severity::Ok => info!(check = name, found, "check ok"),
        Severity::Degraded => warn!(check = name, found, %todo, "check degraded"),
        Severity::Failing => error!(check = name, found, %todo, "check failing"),
    }
}

/// Of a death in a pod that lives on, or else a debug line, because the pod's line has the verdicts of its containers.
pub(crate) fn death(death: &ContainerDeath, is_of_termination: bool) {
    let pod = death.pod.as_ref();
    macro_rules! line {
        ($level:ident) => {
            $level!(
                target: "coroner::death",
                namespace = pod.map(|pod| pod.namespace.as_str()),
                pod = pod.map(|pod| pod.name.as_str()),
                uid = pod.map(|pod| pod.uid.as_str()),
                container = death.name,
                id = death.id.as_str(),
                workload = death.workload.as_ref().map(ToString::to_string),
                verdict = %death.verdict,
                cause = %death.cause,
                cause_message = death.cause_message,
                proof = death.proof.message,
                exit_code = death.exit.map(ExitStatus::runtime_code),
                grace_seconds = death.grace_seconds,
                "died"
            )
        };
    }
    if is_of_termination { line!(debug) } else { line!(info) }
}

pub(crate) fn leak(leak: &Leak, gone: bool, now: WallTime) {
    let pod = leak.pod.as_ref();
    let thing = report::thing(&leak.key);
    let age = report::seconds_between(leak.since(), now);
    macro_rules! line {
        ($level:ident, $words:literal) => {
            $level!(
                target: "coroner::leak",
                class = %leak.class,
                namespace = pod.map(|pod| pod.namespace.as_str()),
                pod = pod.map(|pod| pod.name.as_str()),
                uid = pod.map(|pod| pod.uid.as_str()),
                workload = leak.workload.as_ref().map(ToString::to_string),
                thing,
                age_seconds = age,
                cause = %leak.cause.kind,
                why = leak.cause.message,
                ips = leak.resources.ips.join(" "),
                $words
            )
        };
    }
    if gone {
        line!(info, "leak resolved");
    } else {
        line!(warn, "leak confirmed");
    }
}

/// Counts lines that were dropped, so that a node with many leaks does not fill the log.
pub(crate) fn more_leaks(count: usize) {
    warn!(target: "coroner::leak", count, "too many leaks changed at once to log each; run \
                                           `coroner leaks` for the full list");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::{
        log::{
            LogFormat,
            tests::{logged, logged_by},
        },
        report::samples,
    };
    use coroner_core::{
        input::{ContainerKind, Workload},
        report::Phase,
    };
    use serde_json::Value;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_flood_of_losses_is_a_line_a_minute() {
        let (kind, other) = (LossKind::ALL[0], LossKind::ALL[1]);
        let begun = Instant::now();
        let text = logged(|| {
            let mut losses = Losses::default();
            for tenth in 0..1_250_u32 {
                let now = begun + Duration::from_millis(100) * tenth;
                losses.note(kind, 5, now);
                if tenth % 10 == 0 {
                    losses.log_sums(now);
                }
                if tenth == 3 {
                    losses.note(other, 1, now);
                }
            }
        });
        let lines = |kind: LossKind| {
            let kind = format!("kind={kind} ");
            text.lines().filter(|line| line.contains(&kind)).collect::<Vec<_>>()
        };
        assert_eq!(lines(kind).len(), 3, "{text}");
        assert!(lines(kind)[0].contains("count=5"), "the first at once: {text}");
        assert!(lines(kind)[1].contains("count=3000"), "600 of a minute: {text}");
        assert_eq!(lines(other).len(), 1, "{text}");
    }

    /// The table in docs/api.md has the targets that are promised, and the fields of each: no more, no less.
    #[test]
    fn docs_api_md_has_every_field() {
        let log = || {
            let mut report = samples::two_containers();
            let workload = Workload { kind: "Deployment".into(), name: "web".into() };
            report.workload = Some(workload.clone());
            let phase = report.phases[0].clone();
            let phases = PhaseKind::ALL.iter().map(|kind| Phase { kind: *kind, ..phase.clone() });
            report.phases = phases.collect();
            report.containers[1].workload = Some(workload);
            termination(&report);
            update(&report, Change::Verdict);
            death(&report.containers[1], false);
            holdout(&UnkillableContainer {
                container: Some(report.containers[0].id.clone()),
                name: "web".into(),
                kind: ContainerKind::Main,
                pod: Some(report.pod.clone()),
                detail: "it hangs".into(),
                over: false,
            });
            for gone in [false, true] {
                leak(&samples::stuck(), gone, WallTime(0));
            }
            more_leaks(7);
        };
        let mut logged: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in logged_by("debug", LogFormat::Json, log).lines() {
            let line: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
            let general = ["timestamp", "level", "target", "message"];
            let fields = line.keys().filter(|name| !general.contains(&name.as_str())).cloned();
            logged.entry(line["target"].as_str().unwrap().to_owned()).or_default().extend(fields);
        }
        let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let page = include_str!("../../../../docs/api.md");
        for row in page.lines().filter(|line| line.starts_with("| `coroner::")) {
            let cells: Vec<&str> = row.split('|').collect();
            let names = |cell: &str| {
                let names = cell.split('`').skip(1).step_by(2).map(str::to_owned);
                names.collect::<Vec<_>>()
            };
            documented.entry(names(cells[1]).remove(0)).or_default().extend(names(cells[3]));
        }
        assert_eq!(logged, documented);
        for kind in PhaseKind::ALL {
            assert!(logged["coroner::termination"].contains(&format!("{kind}_seconds")), "{kind}");
        }
    }
}
