//! What a scenario leaves behind: watched for longer than the agent's threshold, compared with what
//! was expected, and cleaned up.

use crate::ground_truth::GroundTruth;
use crate::{
    monitor::{AgentReports, NOBODY_ASKS, THRESHOLD},
    run::play::Playing,
};
use anyhow::Context as _;
use coroner_core::{
    leak::{DetectionState, Leak, LeakClass, LeakKey},
    time::WallTime,
};
use coroner_lab_cluster::{apiserver::ApiserverFault, wait};
use coroner_lab_scenarios::{
    Action, NAMESPACE,
    left::{self, SeenLeak, Things},
};
use serde_json::Value;
use std::{path::PathBuf, time::Duration};
use tokio::sync::watch::Receiver;

/// Where the agent keeps what it has told, in its state directory.
const KEPT: &str = "leaks.json";
/// How much longer than the threshold nothing may be told: some of the agent's looks.
const QUIET: Duration = Duration::from_secs(3);
/// How long what was told stays before it is cleaned up where others are played at the same time:
/// who looks once a second sees it too.
const HELD: Duration = Duration::from_secs(4);

/// What of a scenario the agent told as left behind.
#[derive(Default)]
pub struct ScenarioLeaks {
    pub leaks: Vec<Leak>,
    /// Where that disagrees with what was expected.
    pub points: Vec<String>,
}

impl ScenarioLeaks {
    /// The scenario was cleaned up, or could not be.
    pub fn note_end(
        &mut self,
        things: &Things,
        told: &AgentReports,
        truth: &GroundTruth,
        cleared: anyhow::Result<()>,
    ) {
        let own = |leak: &&Leak| things.own(leak) && !truth.was_leaked_for_a_while(leak);
        for leak in told.ever.values().filter(own) {
            if self.leaks.iter().all(|known| known.key != leak.key) {
                let (class, which) = (leak.class, left::which(&leak.key));
                self.points.push(format!("{class} of {which} was told while it was cleaned up"));
                self.leaks.push(leak.clone());
            }
        }
        if let Err(error) = cleared {
            self.points.push(format!("it was not cleaned up: {error:#}"));
        }
    }
}

impl Playing<'_> {
    /// Waits until the agent tells of something of the scenario's, and has kept it in its `state`
    /// if it keeps one: what comes next may end it.
    pub async fn leaked(
        &self,
        class: LeakClass,
        mut accounts: Receiver<AgentReports>,
        state: Option<PathBuf>,
    ) -> anyhow::Result<()> {
        let own = |leak: &&Leak| leak.class == class && self.things.own(leak);
        let told = accounts.wait_for(|told| told.leaks.values().any(|leak| own(&leak)));
        let told = wait::event(format!("the agent tells of {class}"), told).await?;
        let told = told.context(NOBODY_ASKS)?;
        let key = told.leaks.values().find(own).map(|leak| serde_json::to_value(&leak.key));
        drop(told);
        let (Some(directory), Some(key)) = (state, key.transpose()?) else { return Ok(()) };
        self.happens("the agent has kept what it told", |_| {
            // It is replaced, never written over.
            let Ok(text) = std::fs::read(directory.join(KEPT)) else { return Ok(false) };
            let kept: Value = serde_json::from_slice(&text)?;
            let mut leaks = kept["leaks"].as_array().into_iter().flatten();
            Ok(leaks.any(|leak| leak["key"] == key))
        })
        .await
    }

    /// Waits for what is expected, or until nothing has come, and compares.
    pub async fn watch(
        &self,
        accounts: &mut Receiver<AgentReports>,
        truth: &GroundTruth,
    ) -> ScenarioLeaks {
        let expected = &self.scenario.expected.leaks;
        if expected.is_empty() {
            self.has_had_time(accounts).await;
        } else {
            let all = accounts.wait_for(|told| {
                let classes: Vec<LeakClass> = self.told(told).map(|leak| leak.class).collect();
                expected.iter().all(|leak| classes.contains(&leak.class))
            });
            // What has not come by then is told as a disagreement.
            let _ = wait::event("the agent tells of all", all).await;
        }
        let created = self.lab.hand().created(&self.pod.uid).await;
        let wanted = |leak: &Leak| expected.iter().any(|one| one.class == leak.class);
        let told = accounts.borrow();
        let seen: Vec<SeenLeak> = self
            .told(&told)
            .filter(|leak| wanted(leak) || !truth.was_leaked_for_a_while(leak))
            .map(|leak| SeenLeak {
                leak: leak.clone(),
                observed_before: told.before.get(&leak.key).map(|before| before.first_observed),
                created: match &leak.key {
                    LeakKey::Sandbox { id } => created.get(id.as_str()).copied().map(WallTime),
                    _ => None,
                },
            })
            .collect();
        let points = left::disagreements(expected, &seen);
        ScenarioLeaks { leaks: seen.into_iter().map(|seen| seen.leak).collect(), points }
    }

    /// What the agent has told of the scenario's things. Of what was removed meanwhile it is what was
    /// told before: a sandbox goes step by step, and a look between two of them finds another class.
    fn told<'a>(&'a self, told: &'a AgentReports) -> impl Iterator<Item = &'a Leak> {
        let own = told.ever.values().filter(|leak| self.things.own(leak));
        own.map(|leak| self.removed.get(&leak.key).unwrap_or(leak))
    }

    /// What is told now is about to be removed.
    pub fn note_told(&mut self, told: &AgentReports) {
        let own = told.leaks.values().filter(|leak| self.things.own(leak));
        self.removed = own.map(|leak| (leak.key.clone(), leak.clone())).collect();
    }

    /// Removes all that is left of the scenario, and waits until the agent says so too.
    pub async fn clear(&mut self, accounts: &mut Receiver<AgentReports>) -> anyhow::Result<()> {
        if !self.scenario.alone && !self.scenario.expected.leaks.is_empty() {
            tokio::time::sleep(HELD).await;
        }
        // A scenario that failed half-way may not have mended what it broke.
        if self.scenario.alone {
            self.lab.set_apiserver(ApiserverFault::None);
            self.lab.mend_runtime().await?;
        }
        // Others that are played at the same time may not have done with a broken one.
        if self.scenario.steps.iter().any(|step| step.act == Action::BreakNetwork) {
            self.lab.set_network(&self.pod.name, true).await?;
        }
        self.undo().await?;
        if self.scenario.is_static() {
            self.lab.kubelet().remove_static(&self.pod.uid);
        } else if self.object().is_some() {
            self.lab.remove_finalizers(NAMESPACE, &self.pod.name)?;
            // It may have gone with them.
            let _ = self.lab.delete(NAMESPACE, &self.pod.name, Some(1));
        }
        self.happens("the object is gone", |of| Ok(of.object().is_none())).await?;
        self.lab.hand().remove_sandboxes(&self.pod.uid).await?;
        self.lab.hand().remove_cgroup(&self.pod.uid).await?;
        let gone = accounts.wait_for(|told| !told.leaks.values().any(|leak| self.things.own(leak)));
        wait::event("the agent does not tell of it any more", gone).await?.context(NOBODY_ASKS)?;
        Ok(())
    }

    /// Waits until the agent has had the time to tell of what there is now: by its own count of the
    /// time in which it could judge, which stands still where the machine does.
    async fn has_had_time(&self, accounts: &mut Receiver<AgentReports>) {
        let enough = THRESHOLD + QUIET;
        let (judges, now) = {
            let told = accounts.borrow();
            (told.detection_state == DetectionState::Possible, told.watched)
        };
        if judges {
            // One that does not count on is told as a disagreement by whoever expects something.
            let counted = accounts.wait_for(|told| told.watched >= now + enough.as_secs());
            let _ = wait::event("the agent judges on", counted).await;
        } else {
            // It says that it does not judge: there is nothing to wait for but that it goes on so.
            tokio::time::sleep(enough).await;
        }
    }
}
