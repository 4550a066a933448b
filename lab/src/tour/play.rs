//! Plays scenarios: makes the pod, does what is to be done, waits for the agent's account.

use super::{Outcome, clock, lab::Lab};
use crate::{
    agent::Http,
    kubelet::{START_FAILED, translate::PodId},
    scenario::{
        Act, NAMESPACE, Scenario,
        judge::{self, Observed},
    },
};
use anyhow::{Context as _, bail};
use coroner::domain::observation::{MilestoneKind, PodTermination};
use k8s_openapi::api::core::v1::Pod;
use std::{collections::HashMap, time::Duration};
use tokio::sync::watch;

/// From the pod's creation to Running; a postStart hook may take its time.
const TO_START: Duration = Duration::from_secs(45);
/// From the act to the agent's account, beyond the grace: kubelet, runtime, settle window.
const TO_SETTLE: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(300);

/// The agent's settled accounts, by pod UID, as they come.
pub(super) type Accounts = watch::Receiver<HashMap<String, PodTermination>>;

/// Polls the agent for ever. A failed poll is tried again: an agent that died is noticed elsewhere.
pub(super) async fn poll(agent: Http, to: watch::Sender<HashMap<String, PodTermination>>) {
    loop {
        if let Ok(all) = agent.terminations().await {
            // Newest first: of a pod that lived twice the last life is kept.
            let mut newest = HashMap::with_capacity(all.len());
            for account in all {
                newest.entry(account.pod.uid.as_str().to_owned()).or_insert(account);
            }
            to.send_if_modified(|known| {
                let changed = *known != newest;
                if changed {
                    *known = newest;
                }
                changed
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Makes the scenario's pod and waits until it runs (or has run).
pub(super) async fn begin(scenario: &Scenario, lab: &Lab) -> anyhow::Result<PodId> {
    let pod = lab.create(scenario.pod(lab.image(), lab.node()))?;
    let id = PodId::of(&pod).context("the apiserver gave the pod no UID")?;
    let started = async {
        loop {
            if let Some(pod) = lab.pod(NAMESPACE, scenario.name)
                && has_started(&pod)?
            {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(TO_START, started).await {
        Ok(started) => started?,
        Err(_) => bail!("the pod does not run after {TO_START:?}"),
    }
    Ok(id)
}

fn has_started(pod: &Pod) -> anyhow::Result<bool> {
    let Some(status) = &pod.status else { return Ok(false) };
    if status.reason.as_deref() == Some(START_FAILED) {
        bail!("the pod did not start: {}", status.message.as_deref().unwrap_or_default());
    }
    Ok(!matches!(status.phase.as_deref(), None | Some("Pending")))
}

/// Does to the running pod what the scenario says, and waits for its account.
pub(super) async fn act(
    scenario: &Scenario,
    lab: &Lab,
    id: &PodId,
    mut accounts: Accounts,
) -> anyhow::Result<PodTermination> {
    match scenario.act {
        Act::Delete { after } => {
            tokio::time::sleep(after).await;
            lab.delete(NAMESPACE, scenario.name, None)?;
        }
        Act::ForceDelete { after } => {
            tokio::time::sleep(after).await;
            lab.delete(NAMESPACE, scenario.name, Some(0))?;
        }
        Act::Nothing => {}
    }
    let grace = scenario.grace();
    let settled = accounts.wait_for(|known| known.contains_key(&id.uid));
    match tokio::time::timeout(grace + TO_SETTLE, settled).await {
        Ok(Ok(known)) => known.get(&id.uid).cloned().context("the account went away"),
        Ok(Err(_)) => bail!("nobody asks the agent any more"),
        Err(_) => bail!("the agent gave no account within {:?} of the act", grace + TO_SETTLE),
    }
}

/// Compares an account with what was expected.
pub(super) fn outcome(scenario: &Scenario, account: anyhow::Result<PodTermination>) -> Outcome {
    let (timeline, observed, disagreements) = match account {
        Ok(timeline) => {
            let observed = Observed::of(&timeline);
            let points = judge::disagreements(&scenario.expected, &observed);
            (Some(timeline), Some(observed), points)
        }
        Err(error) => (None, None, vec![format!("{error:#}")]),
    };
    Outcome {
        scenario: scenario.name,
        group: scenario.group,
        expected: scenario.expected.clone(),
        observed,
        ok: disagreements.is_empty(),
        disagreements,
        timeline,
    }
}

/// How far the agent's times are from the workload's own, ns.
pub(super) fn clock_differences(lab: &Lab, timeline: &PodTermination) -> Vec<(MilestoneKind, i64)> {
    let id = PodId {
        namespace: timeline.pod.namespace.clone(),
        name: timeline.pod.name.clone(),
        uid: timeline.pod.uid.as_str().into(),
    };
    timeline
        .containers
        .iter()
        .flat_map(|death| {
            let log = std::fs::read_to_string(id.log_file(lab.logs(), &death.name));
            clock::differences(death, &clock::lines(&log.unwrap_or_default()))
        })
        .collect()
}
