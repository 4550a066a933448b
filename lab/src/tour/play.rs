//! Plays scenarios: makes the pod, does what is to be done, waits for the agent's account.

use super::{
    Outcome, clock,
    lab::{Lab, container_of},
};
use crate::{
    agent::{self, Http},
    apiserver::Fault,
    kubelet::{START_FAILED, translate::PodId},
    scenario::{
        Act, Expected, NAMESPACE, Scenario, Site, Step, When,
        judge::{self, Observed},
    },
};
use anyhow::{Context as _, bail};
use coroner::domain::observation::{ContainerDeath, MilestoneKind, PodTermination};
use k8s_openapi::api::core::v1::Pod;
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    time::Duration,
};
use tokio::sync::watch;

/// From the pod's creation to Running, or to what a step waits for; a postStart hook may take its
/// time.
const TO_HAPPEN: Duration = Duration::from_secs(45);
/// From the act to the agent's account, beyond the grace: kubelet, runtime, settle window.
const TO_SETTLE: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(50);

/// What the agent has told, by pod UID, as it comes.
pub(super) type Accounts = watch::Receiver<Told>;

/// What the agent has told.
#[derive(PartialEq, Default)]
pub(super) struct Told {
    /// Of each pod the lives that have ended, newest first.
    pub(super) pods: HashMap<String, Vec<PodTermination>>,
    /// Of each pod the deaths of its containers, newest first.
    deaths: HashMap<String, Vec<ContainerDeath>>,
}

impl Told {
    fn of(terminations: Vec<PodTermination>, deaths: Vec<ContainerDeath>) -> Self {
        let mut told = Self::default();
        for account in terminations {
            told.pods.entry(account.pod.uid.as_str().to_owned()).or_default().push(account);
        }
        for death in deaths {
            if let Some(pod) = &death.pod {
                told.deaths.entry(pod.uid.as_str().to_owned()).or_default().push(death);
            }
        }
        told
    }
}

/// Polls the agent for ever. A failed poll is tried again: an agent that died is noticed elsewhere.
pub(super) async fn poll(agent: Http, to: watch::Sender<Told>) {
    loop {
        // The deaths after the terminations: then none of these is missing.
        if let (Ok(all), Ok(deaths)) = (agent.terminations().await, agent.deaths().await) {
            let newest = Told::of(all, deaths);
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

/// A scenario's pod while it is played.
#[derive(Clone)]
pub(super) struct Playing<'a> {
    scenario: &'a Scenario,
    lab: &'a Lab,
    /// As the runtime knows it.
    pod: PodId,
    /// The container ids that were seen, by name: another one is another life.
    lives: HashMap<&'static str, String>,
}

/// All that the agent said about a pod.
pub(super) struct Account {
    /// Its lives, the oldest first.
    lives: Vec<PodTermination>,
    /// The deaths that belong to the end of none of them, the oldest first.
    earlier: Vec<ContainerDeath>,
}

impl<'a> Playing<'a> {
    /// Makes the scenario's pod and waits until it runs (or has run).
    pub(super) async fn begin(scenario: &'a Scenario, lab: &'a Lab) -> anyhow::Result<Self> {
        let site = Site { node: lab.node(), port: agent::free_address()?.port() };
        let pod = scenario.pod(site);
        let pod =
            if scenario.is_static() { lab.kubelet().add_static(&pod) } else { lab.create(pod)? };
        let pod = PodId::of(&pod).context("the apiserver gave the pod no UID")?;
        let mut playing = Self { scenario, lab, pod, lives: HashMap::new() };
        playing
            .happens("the pod runs", |of| of.object().map_or(Ok(false), |pod| has_started(&pod)))
            .await?;
        playing.note_lives();
        Ok(playing)
    }

    /// Does what is to be done, each step in its time.
    pub(super) async fn act(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        for step in steps {
            match step.when {
                When::After(time) => tokio::time::sleep(time).await,
                When::Handled(container) => {
                    let log = self.pod.log_file(self.lab.logs(), container);
                    self.happens("the stop signal is handled", |_| {
                        Ok(lines(&log).iter().any(|line| line.event == "term"))
                    })
                    .await?;
                }
                When::Anew(container, time) => {
                    self.happens("the container runs anew", |of| Ok(of.runs_anew(container)))
                        .await?;
                    self.note_lives();
                    tokio::time::sleep(time).await;
                }
            }
            self.perform(step.act).await.with_context(|| format!("{:?}", step.act))?;
        }
        Ok(())
    }

    /// Waits for the agent's account of the pod's end.
    pub(super) async fn account(self, accounts: &mut Accounts) -> anyhow::Result<Account> {
        let patience = self.scenario.grace() + TO_SETTLE;
        let uid = &self.pod.uid;
        let lives = self.scenario.expected.lives as usize;
        let settled =
            accounts.wait_for(|told| told.pods.get(uid).is_some_and(|of| of.len() >= lives));
        let told = match tokio::time::timeout(patience, settled).await {
            Ok(Ok(told)) => told,
            Ok(Err(_)) => bail!("nobody asks the agent any more"),
            Err(_) => bail!("the agent gave no account within {patience:?} of the act"),
        };
        let oldest_first = |all: &Vec<PodTermination>| all.iter().rev().cloned().collect();
        let lives: Vec<PodTermination> = told.pods.get(uid).map(oldest_first).unwrap_or_default();
        let own: BTreeSet<_> =
            lives.iter().flat_map(|life| &life.containers).map(|c| &c.id).collect();
        let deaths = told.deaths.get(uid).into_iter().flatten().rev();
        let earlier = deaths.filter(|death| !own.contains(&death.id)).cloned().collect();
        Ok(Account { lives, earlier })
    }

    async fn perform(&self, act: Act) -> anyhow::Result<()> {
        let (lab, name) = (self.lab, self.pod.name.as_str());
        let object = || self.object().context("the pod's object is gone");
        match act {
            // Done by whoever plays this.
            Act::StartAgent => Ok(()),
            Act::Delete { grace } => lab.delete(NAMESPACE, name, grace),
            Act::Disrupt(disruption) => lab.disrupt(NAMESPACE, name, disruption),
            Act::End(ending) => {
                lab.kubelet().end(&self.pod.uid, ending);
                Ok(())
            }
            Act::Kill { container, signal } => lab.kill(&object()?, container, signal),
            Act::Freeze { container } => lab.freeze(&object()?, container),
            Act::ChangeImage { container, image } => {
                lab.change_image(NAMESPACE, name, container, image)
            }
            Act::RemoveManifest => {
                lab.kubelet().remove_static(&self.pod.uid);
                Ok(())
            }
            Act::ReturnManifest => {
                let site = Site { node: lab.node(), port: agent::free_address()?.port() };
                lab.kubelet().add_static(&self.scenario.pod(site));
                Ok(())
            }
            Act::KillRuntime => lab.kill_runtime().await,
            Act::StartRuntime => lab.start_runtime().await,
            Act::StopApiserver => {
                lab.set_apiserver(Fault::Unavailable);
                Ok(())
            }
            Act::StartApiserver => {
                lab.set_apiserver(Fault::None);
                Ok(())
            }
        }
    }

    /// The object, if it exists; of a static pod its mirror.
    fn object(&self) -> Option<Pod> {
        self.lab.pod(NAMESPACE, &self.pod.name)
    }

    fn note_lives(&mut self) {
        let Some(pod) = self.object() else { return };
        for name in self.scenario.expected.containers.keys().copied() {
            if let Some((id, _)) = container_of(&pod, name) {
                self.lives.insert(name, id);
            }
        }
    }

    fn runs_anew(&self, container: &str) -> bool {
        let now = self.object().and_then(|pod| container_of(&pod, container));
        now.is_some_and(|(id, runs)| runs && self.lives.get(container) != Some(&id))
    }

    async fn happens(
        &self,
        what: &str,
        mut holds: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let waiting = async {
            while !holds(self)? {
                tokio::time::sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(TO_HAPPEN, waiting).await {
            Ok(happened) => happened,
            Err(_) => bail!("waited {TO_HAPPEN:?} in vain: {what}"),
        }
    }
}

fn has_started(pod: &Pod) -> anyhow::Result<bool> {
    let Some(status) = &pod.status else { return Ok(false) };
    if status.reason.as_deref() == Some(START_FAILED) {
        bail!("the pod did not start: {}", status.message.as_deref().unwrap_or_default());
    }
    Ok(!matches!(status.phase.as_deref(), None | Some("Pending")))
}

/// Compares an account with what was expected.
pub(super) fn outcome(scenario: &Scenario, lab: &Lab, account: anyhow::Result<Account>) -> Outcome {
    let expected = &scenario.expected;
    let (timeline, observed, disagreements) = match account {
        Ok(mut account) => {
            let mut points = Vec::new();
            let mut observed = None;
            for life in &account.lives {
                let seen = Observed::of(life, &account.earlier);
                points.extend(judge::disagreements(expected, &seen));
                points.extend(too_few_calls(expected, lab, life));
                observed = Some(seen);
            }
            (account.lives.pop(), observed, points)
        }
        Err(error) => (None, None, vec![format!("{error:#}")]),
    };
    Outcome {
        scenario: scenario.name,
        group: scenario.group,
        shows: scenario.shows,
        expected: expected.clone(),
        observed,
        ok: disagreements.is_empty(),
        disagreements,
        timeline,
    }
}

fn too_few_calls(expected: &Expected, lab: &Lab, timeline: &PodTermination) -> Option<String> {
    let wanted = expected.calls?;
    let id = pod_id(timeline);
    let calls: usize = timeline
        .containers
        .iter()
        .map(|death| clock::calls(death, &lines(&id.log_file(lab.logs(), &death.name))))
        .sum();
    (calls < wanted).then(|| {
        format!(
            "{calls} calls to the apiserver between handler and end, expected {wanted} at least"
        )
    })
}

/// How far the agent's times are from the workload's own, ns.
pub(super) fn clock_differences(lab: &Lab, timeline: &PodTermination) -> Vec<(MilestoneKind, i64)> {
    let id = pod_id(timeline);
    timeline
        .containers
        .iter()
        .flat_map(|death| clock::differences(death, &lines(&id.log_file(lab.logs(), &death.name))))
        .collect()
}

fn pod_id(timeline: &PodTermination) -> PodId {
    PodId {
        namespace: timeline.pod.namespace.clone(),
        name: timeline.pod.name.clone(),
        uid: timeline.pod.uid.as_str().into(),
    }
}

/// What a workload has told on its log, if there is one yet.
fn lines(log: &Path) -> Vec<clock::Line> {
    clock::lines(&std::fs::read_to_string(log).unwrap_or_default())
}
