//! The log's lines about what was observed.

use crate::report;
use coroner_core::{
    leak::{Judgement, Leak},
    observation::{Change, ContainerDeath, Holdout, PodTermination},
    time::WallTime,
};
use std::time::Duration;
use tracing::{debug, error, info, warn};

/// The one line that is needed while it still hangs: its account comes when it has ended.
pub(super) fn holdout(holdout: &Holdout) {
    let pod = holdout.pod.as_ref();
    warn!(
        target: "coroner::unkillable",
        namespace = pod.map(|pod| pod.namespace.as_str()),
        pod = pod.map(|pod| pod.name.as_str()),
        container = holdout.container.as_ref().map(|id| id.as_str()),
        over = holdout.over,
        detail = holdout.detail,
        "a container that SIGKILL did not end"
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
            revision = line.revision,
            final = line.is_final,
            change = change.map(|change| change.as_str()),
            cause = line.cause,
            cause_certainty = line.cause_certainty,
            seconds = line.seconds,
            verdicts = line.verdicts,
            phases = line.phases,
            findings = line.findings,
            truncated = line.truncated,
            incomplete = line.incomplete,
            $words
        );
    }};
}

pub(super) fn termination(account: &PodTermination) {
    termination!(info, account, None, "terminated");
}

/// One line for each later revision; the rest changes nothing that a line shows but `final`.
pub(super) fn update(account: &PodTermination, change: Change) {
    if change.is_revision() {
        termination!(info, account, Some(change), "termination updated");
    } else {
        termination!(debug, account, Some(change), "termination updated");
    }
}

/// The runtime has become slow, or has ceased to be.
pub(super) fn runtime_speed(slow: bool, longest: Duration) {
    if slow {
        warn!(
            seconds = longest.as_secs(),
            "the container runtime is slow: its answers are used until 60 s after the request, and \
             a termination may be reported without them; see its log and the node's load"
        );
    } else {
        info!("the container runtime is no longer slow");
    }
}

/// Only for debugging: the pod's line tells its containers' verdicts.
pub(super) fn death(death: &ContainerDeath) {
    debug!(
        target: "coroner::death",
        container = death.name,
        id = death.id.as_str(),
        verdict = %death.verdict,
        cause = %death.cause,
        cause_certainty = %death.cause_certainty,
        cause_proof = death.cause_proof,
        proof = death.proof.sentence,
        "died"
    );
}

/// A leak that is certain, or gone, as of `now`: the one line of each.
pub(super) fn leak(leak: &Leak, gone: bool, now: WallTime) {
    let pod = leak.pod.as_ref();
    let thing = report::thing(&leak.key);
    let age = report::seconds_between(crate::leaks::since(leak), now);
    macro_rules! line {
        ($level:ident, $words:literal) => {
            $level!(
                target: "coroner::leak",
                class = %leak.class,
                namespace = pod.map(|pod| pod.namespace.as_str()),
                pod = pod.map(|pod| pod.name.as_str()),
                uid = pod.map(|pod| pod.uid.as_str()),
                thing,
                age_seconds = age,
                stuck = leak.stuck.map(|reason| reason.as_str()),
                cause = %leak.cause.kind,
                why = leak.cause.sentence,
                ips = leak.holds.ips.join(" "),
                $words
            )
        };
    }
    if gone {
        line!(info, "no longer left behind");
    } else {
        line!(warn, "left behind");
    }
}

/// Lines that were left out, so that a node full of leaks does not fill the log as well.
pub(super) fn more_leaks(count: usize) {
    warn!(target: "coroner::leak", count, "more leaks came or went at the same time; \
           `coroner leaks` lists all");
}

/// Leaks can be judged again, or no longer.
pub(super) fn judgement(judgement: Judgement) {
    match judgement {
        Judgement::Possible => info!("leaks are judged: all sources are in sync"),
        Judgement::Starting | Judgement::NoApi => {
            debug!(state = %judgement, "leaks are not judged");
        }
        Judgement::NodeMissing => error!(
            "leaks are not judged: there is no Node object of this name; check --node (NODE_NAME)"
        ),
        Judgement::NodeForeign => error!(
            "leaks are not judged: the Node object of this name is another machine's, or its \
             kubelet has not reported since this machine booted; check --node (NODE_NAME)"
        ),
        Judgement::ApiOutOfSync | Judgement::CriUnreachable | Judgement::NodeUnknown => {
            warn!(state = %judgement, "leaks are not judged meanwhile");
        }
    }
}
