//! The agent that observes the cluster, over its restarts, and all that it has reported.

use crate::agent::{self, Agent, Http};
use anyhow::Context as _;
use coroner::outputs::report::LeakList;
use coroner_core::{
    leak::{DetectionState, Leak, LeakKey},
    report::{ContainerDeath, PodTermination},
    time::WallTime,
    types::Verdict,
};
use coroner_lab_cluster::{Cluster, apiserver::write_kubeconfig_without_events, wait};
use coroner_lab_scenarios::AgentFlags;
use coroner_workload::page::boot_now;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinHandle};

/// How long something must have been leaked before the agent reports it: some rounds of the lab's collector and
/// housekeeping, which come every one and two seconds, on a machine that pauses for some more.
pub const THRESHOLD: Duration = Duration::from_secs(8);

/// How often the agent asks an idle runtime: what it knows must be newer than what it takes to conclude something
/// from it.
pub const ASKS_EVERY: Duration = Duration::from_secs(1);

/// How often the agent is asked.
const POLL: Duration = Duration::from_millis(300);

/// The task that polls it has ended.
pub const NOBODY_ASKS: &str = "nobody asks the agent any more";

/// All that was ever reported of one container's death.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReportedDeath {
    pub verdicts: BTreeSet<Verdict>,
    /// The last proof.
    pub message: String,
    /// Something of it was not seen, or may be lost.
    pub marked: bool,
}

#[derive(Clone, PartialEq, Default)]
pub struct AgentReports {
    /// Of each pod the instances that have ended, newest first.
    pub pods: HashMap<String, Vec<PodTermination>>,
    /// Of each pod the deaths of its containers, newest first.
    pub deaths: HashMap<String, Vec<ContainerDeath>>,
    /// The same over all that the agent has said, also what it has dropped since: by the pod's UID, then by the
    /// container's id.
    pub death_history: HashMap<String, BTreeMap<String, ReportedDeath>>,
    pub detection_state: DetectionState,
    /// For how many seconds it could detect leaks since it started.
    pub watched: u64,
    /// What is leaked now.
    pub leaks: BTreeMap<LeakKey, Leak>,
    /// All leaks that were ever reported, as each was last reported.
    pub ever: BTreeMap<LeakKey, Leak>,
    /// Each report of a leak as it first was: over a restart of the agent the same thing is reported twice.
    pub first: BTreeMap<(LeakKey, WallTime), Leak>,
    /// What was leaked when the agent was last stopped, as it was reported then.
    pub before: BTreeMap<LeakKey, Leak>,
}

impl AgentReports {
    fn update(
        &mut self,
        terminations: Vec<PodTermination>,
        deaths: Vec<ContainerDeath>,
        leaks: LeakList,
    ) {
        self.detection_state = leaks.progress.detection_state;
        self.watched = leaks.progress.watched_seconds;
        self.leaks = leaks.leaks.iter().map(|leak| (leak.key.clone(), Leak::clone(leak))).collect();
        for (key, leak) in &self.leaks {
            self.ever.insert(key.clone(), leak.clone());
            self.first.entry((key.clone(), leak.confirmed)).or_insert_with(|| leak.clone());
        }
        self.pods.clear();
        for termination in terminations {
            let uid = termination.pod.uid.as_str().to_owned();
            termination.containers.iter().for_each(|death| self.note(death, &uid));
            self.pods.entry(uid).or_default().push(termination);
        }
        self.deaths.clear();
        for death in deaths {
            let Some(uid) = death.pod.as_ref().map(|pod| pod.uid.as_str().to_owned()) else {
                continue;
            };
            self.note(&death, &uid);
            self.deaths.entry(uid).or_default().push(death);
        }
    }

    fn note(&mut self, death: &ContainerDeath, uid: &str) {
        let of_pod = self.death_history.entry(uid.to_owned()).or_default();
        let known = of_pod.entry(death.id.as_str().to_owned()).or_default();
        known.verdicts.insert(death.verdict);
        known.message.clone_from(&death.proof.message);
        known.marked |= death.truncated || !death.incomplete.is_empty();
    }

    /// Another agent begins.
    fn begin_again(&mut self) {
        self.before = std::mem::take(&mut self.leaks);
        self.detection_state = DetectionState::default();
        self.watched = 0;
    }
}

/// How the lab's own agent is started.
pub struct OwnAgent {
    pub options: agent::AgentOptions,
    /// More flags, as they are.
    pub flags: Vec<String>,
    /// Where an agent that is to keep its state does so.
    pub state: PathBuf,
    /// Its sources answer late: leak detection may have to wait for them for longer than anything here does.
    pub late: bool,
}

/// The agent, and what it reports. Dropped, it is killed.
pub struct AgentMonitor {
    /// `None`: somebody else has started it.
    own: Option<OwnAgent>,
    running: tokio::sync::Mutex<Option<(AgentFlags, Agent)>>,
    asked: watch::Sender<Option<Http>>,
    reports: watch::Sender<AgentReports>,
    polling: JoinHandle<()>,
    history: Mutex<History>,
}

/// When agents ran, ns of CLOCK_BOOTTIME.
#[derive(Default)]
struct History {
    starts: Vec<u64>,
    absences: Vec<(u64, u64)>,
}

impl AgentMonitor {
    /// Starts the agent as scenarios need it, and waits until it detects leaks.
    pub async fn for_scenarios(
        cluster: &Cluster,
        options: agent::AgentOptions,
    ) -> anyhow::Result<Self> {
        let own = OwnAgent {
            options: agent::AgentOptions {
                cri_idle: Some(ASKS_EVERY),
                leak_threshold: Some(THRESHOLD),
                ..options
            },
            flags: vec![format!("--record={}", cluster.recording().display())],
            state: cluster.state(),
            late: cluster.delays().any(),
        };
        let monitor = Self::asking(None, Some(own), Some(cluster.name().await));
        monitor.restart(AgentFlags::PLAIN).await?;
        Ok(monitor)
    }

    /// Starts the agent; what is not of the lab of this name is left out.
    pub async fn start(own: OwnAgent, lab: String) -> anyhow::Result<Self> {
        let monitor = Self::asking(None, Some(own), Some(lab));
        monitor.launch(AgentFlags::PLAIN, &[]).await?;
        Ok(monitor)
    }

    /// Asks an agent that somebody else has started; with the name of a lab, what is not of it is left out.
    pub fn of_foreign(agent: Http, lab: Option<String>) -> Self {
        Self::asking(Some(agent), None, lab)
    }

    fn asking(agent: Option<Http>, own: Option<OwnAgent>, lab: Option<String>) -> Self {
        let (asked, whom) = watch::channel(agent);
        let (reports, _) = watch::channel(AgentReports::default());
        let polling = tokio::spawn(poll(whom, reports.clone(), lab));
        let (running, history) = Default::default();
        Self { own, running, asked, reports, polling, history }
    }

    /// What it reports, as it comes.
    pub fn reports(&self) -> watch::Receiver<AgentReports> {
        self.reports.subscribe()
    }

    /// Nothing was said of any death so far.
    pub fn clear_death_history(&self) {
        self.reports.send_modify(|reports| reports.death_history.clear());
    }

    /// When no agent ran: from, to; ns of CLOCK_BOOTTIME.
    pub fn absences(&self) -> Vec<(u64, u64)> {
        self.history().absences.clone()
    }

    /// When agents were started, ns of CLOCK_BOOTTIME, the oldest first.
    pub fn starts(&self) -> Vec<u64> {
        self.history().starts.clone()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it took to be ready.
    async fn launch(&self, flags: AgentFlags, more: &[&str]) -> anyhow::Result<Duration> {
        let own = self.own.as_ref().context("this agent is not ours to start")?;
        let mut options = own.options.clone();
        if let Some(node) = flags.node {
            options.node = node.into();
        }
        options.events |= flags.makes_events;
        if flags.lists_no_events {
            options.kubeconfig = write_kubeconfig_without_events(&options.kubeconfig)?;
        }
        if flags.keeps_state {
            options.state_dir = Some(own.state.clone());
        }
        let more: Vec<String> =
            own.flags.iter().cloned().chain(more.iter().map(|flag| (*flag).into())).collect();
        self.history().starts.push(boot_now());
        let agent = match flags.node {
            None => Agent::start_with(&options, &more).await?,
            // Not ready as soon as it has asked for the Node object; the scenario waits for that.
            Some(_) => Agent::start_unready(&options, &more).await?,
        };
        let ready = agent.ready_after();
        self.reports.send_modify(AgentReports::begin_again);
        self.asked.send_replace(Some(agent.http()));
        *self.running.lock().await = Some((flags, agent));
        Ok(ready)
    }

    /// Stops the agent and starts it with these flags; waits until it has seen everything once: what comes from then
    /// on, it sees come.
    pub async fn restart(&self, flags: AgentFlags) -> anyhow::Result<()> {
        self.asked.send_replace(None);
        if let Some((_, agent)) = self.running.lock().await.take() {
            agent.stop().await;
        }
        self.launch(flags, &[]).await?;
        if flags.node.is_none() && self.own.as_ref().is_some_and(|own| !own.late) {
            self.detects().await?;
        }
        Ok(())
    }

    /// Waits until it detects leaks: what was there before counts as there since the start.
    pub async fn detects(&self) -> anyhow::Result<()> {
        let mut reports = self.reports();
        let possible = |now: &AgentReports| now.detection_state == DetectionState::Possible;
        let detects = reports.wait_for(possible);
        wait::event("the agent detects leaks", detects).await?.context(NOBODY_ASKS)?;
        Ok(())
    }

    /// SIGKILL, and started again with more flags after `pause`. How long it took to be ready.
    pub async fn kill(&self, more: &[&str], pause: Duration) -> anyhow::Result<Duration> {
        let agent = self.running.lock().await.take();
        self.asked.send_replace(None);
        let from = boot_now();
        if let Some((_, agent)) = agent {
            agent.kill().await;
        }
        tokio::time::sleep(pause).await;
        let ready = self.launch(AgentFlags::PLAIN, more).await;
        self.history().absences.push((from, boot_now()));
        ready
    }

    /// Waits until /readyz says so; `None`: not within this time.
    pub async fn ready_within(&self, most: Duration) -> Option<Duration> {
        let began = Instant::now();
        let http = self.http()?;
        while began.elapsed() < most {
            if http.page("/readyz").await.is_ok_and(|(status, _)| status.is_success()) {
                return Some(began.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Where it answers; `None`: it does not run.
    pub fn http(&self) -> Option<Http> {
        self.asked.borrow().clone()
    }

    /// Where the agent that runs keeps its state, if it does.
    pub async fn state(&self) -> Option<PathBuf> {
        let running = self.running.lock().await;
        let keeps = running.as_ref().is_some_and(|(flags, _)| flags.keeps_state);
        self.own.as_ref().filter(|_| keeps).map(|own| own.state.clone())
    }

    /// Has it run without flags of a scenario.
    pub async fn run_plainly(&self) -> anyhow::Result<()> {
        let plain = AgentFlags::PLAIN;
        let running = self.running.lock().await.as_ref().map(|(flags, _)| *flags);
        if running == Some(plain) { Ok(()) } else { self.restart(plain).await }
    }

    /// Whether it still runs; the error carries the end of its log.
    pub fn check(&self) -> anyhow::Result<()> {
        // A task that restarts it just now may be polled by the one that asks, which must not wait.
        let Ok(mut running) = self.running.try_lock() else { return Ok(()) };
        running.as_mut().map_or(Ok(()), |(_, agent)| agent.check())
    }

    /// Something of the running agent.
    pub async fn of_agent<T>(&self, what: impl FnOnce(&Agent) -> T) -> anyhow::Result<T> {
        let running = self.running.lock().await;
        running.as_ref().map(|(_, agent)| what(agent)).context("the agent does not run")
    }

    pub async fn stop(self) {
        self.polling.abort();
        if let Some((_, agent)) = self.running.lock().await.take() {
            agent.stop().await;
        }
    }
}

impl Drop for AgentMonitor {
    fn drop(&mut self) {
        self.polling.abort();
    }
}

/// Whether it is of this lab. The agent sees all cgroups of the machine, on which there may be other labs and
/// benchmarks, with pods of their own.
fn is_of(leak: &Leak, lab: &str) -> bool {
    let path = leak.resources.cgroup.as_deref().unwrap_or_default();
    !matches!(leak.key, LeakKey::PodCgroup { .. }) || path.split('/').any(|part| part == lab)
}

/// Polls the agent for ever. A failed poll is tried again: an agent that died is noticed elsewhere.
async fn poll(
    mut whom: watch::Receiver<Option<Http>>,
    to: watch::Sender<AgentReports>,
    lab: Option<String>,
) {
    loop {
        let http = whom.borrow_and_update().clone();
        if let Some(agent) = http
            // The deaths after the terminations: then none of these is missing.
            && let (Ok(all), Ok(deaths), Ok(mut leaks)) =
                (agent.terminations().await, agent.deaths().await, agent.leaks().await)
            // Not of an agent that was stopped meanwhile.
            && whom.has_changed().is_ok_and(|changed| !changed)
        {
            leaks.leaks.retain(|leak| lab.as_ref().is_none_or(|lab| is_of(leak, lab)));
            to.send_if_modified(|known| {
                let mut newest = known.clone();
                newest.update(all, deaths, leaks);
                let changed = *known != newest;
                *known = newest;
                changed
            });
        }
        tokio::time::sleep(POLL).await;
    }
}
