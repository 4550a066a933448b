//! The agent that observes the lab, over its restarts, and all that it has reported.

use crate::{
    agent::{Agent, AgentOptions, Http},
    lab::Lab,
    wait,
};
use anyhow::{Context as _, Result};
use coroner_report::{Audit, ContainerDeath, DetectionState, Leak, LeakKey, List, PodTermination};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
};

/// How long something must have been leaked before the agent reports it: longer than the driver takes to remove a
/// sandbox on a machine that pauses.
pub const THRESHOLD: Duration = Duration::from_secs(8);
/// How often the agent asks an idle runtime: what it knows must be newer than what it takes to conclude something from it.
pub const ASKS_EVERY: Duration = Duration::from_secs(1);
/// How often the agent is polled.
const POLL: Duration = Duration::from_millis(300);

#[derive(Clone, PartialEq, Default)]
pub struct AgentReports {
    /// The terminations of each pod UID, newest first.
    pub pods: HashMap<String, Vec<PodTermination>>,
    /// Of each pod UID the deaths of its containers, newest first.
    pub deaths: HashMap<String, Vec<ContainerDeath>>,
    /// Of each container that ever ran, how it was to respond to its stop signal, by its id.
    pub audits: BTreeMap<String, Audit>,
    pub detection_state: DetectionState,
    /// For how many seconds the agent could detect leaks since it started.
    pub watched: u64,
    /// The current leaks.
    pub leaks: BTreeMap<LeakKey, Leak>,
    /// All leaks that were ever reported, as each was last reported.
    pub ever: BTreeMap<LeakKey, Leak>,
}

impl AgentReports {
    fn update(
        &mut self,
        terminations: Vec<PodTermination>,
        deaths: Vec<ContainerDeath>,
        leaks: List<Leak>,
        audits: Vec<Audit>,
    ) {
        self.audits.extend(audits.into_iter().map(|one| (one.id.as_str().to_owned(), one)));
        let detection = leaks.detection.unwrap_or_default();
        (self.detection_state, self.watched) = (detection.state, detection.watched_seconds);
        self.leaks = leaks.items.into_iter().map(|leak| (leak.key.clone(), leak)).collect();
        self.ever.extend(self.leaks.clone());
        self.pods.clear();
        for termination in terminations {
            let uid = termination.pod.uid.as_str().to_owned();
            self.pods.entry(uid).or_default().push(termination);
        }
        self.deaths.clear();
        for death in deaths {
            if let Some(uid) = death.pod.as_ref().map(|pod| pod.uid.as_str().to_owned()) {
                self.deaths.entry(uid).or_default().push(death);
            }
        }
    }
}

/// The agent, and what it reports. Dropped, it is killed.
pub struct AgentMonitor {
    /// `None`: it was started elsewhere.
    options: Option<AgentOptions>,
    agent: Mutex<Option<Agent>>,
    http: watch::Sender<Option<Http>>,
    reports: watch::Sender<AgentReports>,
    polling: JoinHandle<()>,
}

impl AgentMonitor {
    /// Starts the agent as scenarios need it, and waits until it detects leaks.
    pub async fn start(lab: &Lab, options: AgentOptions) -> Result<Self> {
        let mut options = options;
        options.flags.push(format!("--leak-threshold={}s", THRESHOLD.as_secs()));
        options.flags.push(format!("--cri-poll-interval={}s", ASKS_EVERY.as_secs()));
        options.flags.push(format!("--record={}", lab.work().join("agent.rec").display()));
        let mut monitor = Self::of(None, Some(lab.name().await));
        monitor.options = Some(options);
        monitor.restart(&[]).await?;
        Ok(monitor)
    }

    /// Of an agent that was started elsewhere; with the name of a lab, what is not of it is left out.
    pub fn of(agent: Option<Http>, lab: Option<String>) -> Self {
        let (http, polled) = watch::channel(agent);
        let (reports, _) = watch::channel(AgentReports::default());
        let polling = tokio::spawn(poll(polled, reports.clone(), lab));
        Self { options: None, agent: Mutex::default(), http, reports, polling }
    }

    /// What it reports, as it comes.
    pub fn reports(&self) -> watch::Receiver<AgentReports> {
        self.reports.subscribe()
    }

    /// Stops the agent and starts it with these flags in addition; waits until it has seen everything once.
    pub async fn restart(&self, flags: &[&str]) -> Result<()> {
        let mut options = self.options.clone().context("this agent was started elsewhere")?;
        options.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.http.send_replace(None);
        let mut running = self.agent.lock().await;
        if let Some(agent) = running.take() {
            agent.stop().await;
        }
        let agent = Agent::start(&options).await?;
        self.reports.send_modify(|reports| reports.detection_state = DetectionState::default());
        self.http.send_replace(Some(agent.http()));
        *running = Some(agent);
        drop(running);
        self.detects().await
    }

    /// Waits until it detects leaks: what was there before counts as there since the start.
    pub async fn detects(&self) -> Result<()> {
        let possible = |now: &AgentReports| now.detection_state == DetectionState::Possible;
        self.wait("the agent detects leaks", possible).await
    }

    /// Waits until it has reported that.
    pub async fn wait(&self, what: &str, holds: impl FnMut(&AgentReports) -> bool) -> Result<()> {
        let mut reports = self.reports();
        let holds = wait::event(what, reports.wait_for(holds)).await?;
        holds.map(drop).context("the agent is not polled any more")
    }

    pub fn http(&self) -> Option<Http> {
        self.http.borrow().clone()
    }

    /// Whether it still runs; the error has the end of its log.
    pub fn check(&self) -> Result<()> {
        // While it is restarted there is nothing to check.
        let Ok(mut agent) = self.agent.try_lock() else { return Ok(()) };
        agent.as_mut().map_or(Ok(()), Agent::check)
    }

    /// Something of the running agent.
    pub async fn of_agent<T>(&self, what: impl FnOnce(&Agent) -> T) -> Result<T> {
        self.agent.lock().await.as_ref().map(what).context("the agent does not run")
    }

    pub async fn stop(self) {
        if let Some(agent) = self.agent.lock().await.take() {
            agent.stop().await;
        }
    }
}

impl Drop for AgentMonitor {
    fn drop(&mut self) {
        self.polling.abort();
    }
}

/// Whether it is of this lab. The agent sees all cgroups of the machine, on which there may be other labs.
fn is_of(leak: &Leak, lab: &str) -> bool {
    let path = leak.resources.cgroup.as_deref().unwrap_or_default();
    !matches!(leak.key, LeakKey::PodCgroup { .. }) || path.split('/').any(|part| part == lab)
}

/// Polls the agent forever. A failed poll is tried again: an agent that died is noticed elsewhere.
async fn poll(
    mut http: watch::Receiver<Option<Http>>,
    to: watch::Sender<AgentReports>,
    lab: Option<String>,
) {
    loop {
        let agent = http.borrow_and_update().clone();
        if let Some(agent) = agent
            // The deaths after the terminations: then none of these is missing.
            && let (Ok(all), Ok(deaths), Ok(mut leaks), Ok(audits)) = (
                agent.terminations().await,
                agent.deaths().await,
                agent.leaks().await,
                agent.audits().await,
            )
            // Not of an agent that was stopped meanwhile.
            && !http.has_changed().unwrap_or(true)
        {
            leaks.items.retain(|leak| lab.as_ref().is_none_or(|lab| is_of(leak, lab)));
            to.send_if_modified(|known| {
                let mut newest = known.clone();
                newest.update(all, deaths, leaks, audits);
                let has_changed = *known != newest;
                *known = newest;
                has_changed
            });
        }
        tokio::time::sleep(POLL).await;
    }
}
