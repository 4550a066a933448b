//! The agent that watches the lab, over its restarts, and all that it has told.

use crate::agent::{self, Agent, Http};
use anyhow::Context as _;
use coroner::outputs::report::LeakList;
use coroner_core::{
    leak::{DetectionState, Leak, LeakKey},
    report::{ContainerDeath, PodTermination},
};
use coroner_lab_cluster::Cluster;
use coroner_lab_cluster::wait;
use coroner_lab_scenarios::AgentFlags;
use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
};

/// How long something must have been left behind before the agent tells of it: some rounds of the
/// lab's collector and housekeeping, which come every one and two seconds, on a machine that pauses
/// for some more.
pub const THRESHOLD: Duration = Duration::from_secs(8);

/// How often the agent asks an idle runtime: what it knows must be newer than what it takes to
/// conclude something from it.
pub const ASKS_EVERY: Duration = Duration::from_secs(1);

/// How often the agent is asked.
const POLL: Duration = Duration::from_millis(300);

/// The task that polls it has ended.
pub const NOBODY_ASKS: &str = "nobody asks the agent any more";

/// What the agent has told, as it comes.
pub type Accounts = watch::Receiver<Told>;

/// What the agent has told.
#[derive(PartialEq, Default)]
pub struct Told {
    /// Of each pod the lives that have ended, newest first.
    pub pods: HashMap<String, Vec<PodTermination>>,
    /// Of each pod the deaths of its containers, newest first.
    pub deaths: HashMap<String, Vec<ContainerDeath>>,
    /// What it says of the judgement of leaks.
    pub detection_state: DetectionState,
    /// For how many seconds it could judge since it started.
    pub watched: u64,
    /// What is left behind now.
    pub leaks: BTreeMap<LeakKey, Leak>,
    /// All that was ever told as left behind, as it was last told.
    pub ever: BTreeMap<LeakKey, Leak>,
    /// What was left behind when the agent was last stopped, as it was told then.
    pub before: BTreeMap<LeakKey, Leak>,
}

impl Told {
    /// What it has told now, in the light of what it had told before.
    fn next(
        &self,
        terminations: Vec<PodTermination>,
        deaths: Vec<ContainerDeath>,
        leaks: LeakList,
    ) -> Self {
        let now: BTreeMap<LeakKey, Leak> =
            leaks.leaks.into_iter().map(|leak| (leak.key.clone(), Leak::clone(&leak))).collect();
        let mut ever = self.ever.clone();
        ever.extend(now.clone());
        let mut told = Self {
            detection_state: leaks.progress.detection_state,
            watched: leaks.progress.watched_seconds,
            leaks: now,
            ever,
            before: self.before.clone(),
            ..Default::default()
        };
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

    /// Another agent begins.
    fn begin_anew(&mut self) {
        self.before = std::mem::take(&mut self.leaks);
        self.detection_state = DetectionState::default();
        self.watched = 0;
    }
}

/// How our own agent is started.
struct Own {
    options: agent::Options,
    /// Where an agent that is to keep its state does so.
    state: PathBuf,
    /// What it records, in case that something fails.
    record: String,
}

/// The agent, and what it tells.
pub struct Watcher {
    /// `None`: it is somebody else's, who started it.
    own: Option<Own>,
    running: Mutex<Option<(AgentFlags, Agent)>>,
    asked: watch::Sender<Option<Http>>,
    told: watch::Sender<Told>,
    polling: JoinHandle<()>,
    /// Its sources answer late: leak detection may have to wait for them for longer than anything here does.
    late: bool,
}

impl Watcher {
    /// Starts the agent for the lab's node, and asks it from then on.
    pub async fn start(
        lab: &Cluster,
        binary: PathBuf,
        listen: Option<SocketAddr>,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let options = agent::Options {
            listen,
            cri_idle: Some(ASKS_EVERY),
            leak_threshold: Some(THRESHOLD),
            ..agent::Options::on(lab, &binary, log)
        };
        let record = format!("--record={}", lab.recording().display());
        let own = Own { options, state: lab.state(), record };
        let mut watcher = Self::asking(None, Some(own), lab.name().await);
        watcher.late = lab.delays().any();
        watcher.run(AgentFlags::default()).await?;
        Ok(watcher)
    }

    /// Asks an agent that somebody else has started on the node of the lab of this name.
    pub fn onlooker(agent: Http, lab: String) -> Self {
        Self::asking(Some(agent), None, lab)
    }

    fn asking(agent: Option<Http>, own: Option<Own>, lab: String) -> Self {
        let (asked, whom) = watch::channel(agent);
        let (told, _) = watch::channel(Told::default());
        let polling = tokio::spawn(poll(whom, told.clone(), Some(lab)));
        Self { own, running: Mutex::default(), asked, told, polling, late: false }
    }

    /// What it tells, as it comes.
    pub fn accounts(&self) -> Accounts {
        self.told.subscribe()
    }

    /// Stops the agent and starts it with these flags.
    pub async fn run(&self, flags: AgentFlags) -> anyhow::Result<()> {
        let own = self.own.as_ref().context("this agent is not ours to restart")?;
        let mut running = self.running.lock().await;
        self.asked.send_replace(None);
        if let Some((_, agent)) = running.take() {
            agent.stop().await;
        }
        let mut options = own.options.clone();
        if let Some(node) = flags.node {
            options.node = node.into();
        }
        options.events = flags.makes_events;
        options.state_dir = flags.keeps_state.then(|| own.state.clone());
        let own_flags = std::slice::from_ref(&own.record);
        let agent = match flags.node {
            None => Agent::start_with(&options, own_flags).await?,
            // Not ready as soon as it has asked for the Node object; the scenario waits for that.
            Some(_) => Agent::start_unready(&options, own_flags).await?,
        };
        self.told.send_modify(Told::begin_anew);
        self.asked.send_replace(Some(agent.http()));
        *running = Some((flags, agent));
        if flags.node.is_none() && !self.late {
            self.judges().await?;
        }
        Ok(())
    }

    /// Where the agent that runs keeps its state, if it does.
    pub async fn state(&self) -> Option<PathBuf> {
        let running = self.running.lock().await;
        let keeps = running.as_ref().is_some_and(|(flags, _)| flags.keeps_state);
        self.own.as_ref().filter(|_| keeps).map(|own| own.state.clone())
    }

    /// Waits until it has looked at everything once: what comes from then on, it sees come.
    async fn judges(&self) -> anyhow::Result<()> {
        let mut accounts = self.accounts();
        let judges = accounts.wait_for(|told| told.detection_state == DetectionState::Possible);
        wait::event("the agent judges leaks", judges).await?.context(NOBODY_ASKS)?;
        Ok(())
    }

    /// Has it run as where nobody says otherwise.
    pub async fn run_plainly(&self) -> anyhow::Result<()> {
        let plain = AgentFlags::default();
        let running = self.running.lock().await.as_ref().map(|(flags, _)| *flags);
        if running == Some(plain) { Ok(()) } else { self.run(plain).await }
    }

    /// Whether it still runs; the error carries the end of its log.
    pub fn check(&self) -> anyhow::Result<()> {
        // Whoever restarts it just now may be polled by the task that asks: it must not wait.
        let Ok(mut running) = self.running.try_lock() else { return Ok(()) };
        running.as_mut().map_or(Ok(()), |(_, agent)| agent.check())
    }

    /// Something of the running agent.
    pub async fn of_agent<T>(&self, what: impl FnOnce(&Agent) -> T) -> anyhow::Result<T> {
        let running = self.running.lock().await;
        running.as_ref().map(|(_, agent)| what(agent)).context("the agent does not run")
    }

    /// Stops it.
    pub async fn stop(self) {
        self.polling.abort();
        if let Some((_, agent)) = self.running.into_inner() {
            agent.stop().await;
        }
    }
}

/// Whether it is of this lab. The agent sees all cgroups of the machine, on which there may be other
/// labs and benchmarks, with pods of their own.
fn is_of(leak: &Leak, lab: &str) -> bool {
    let path = leak.resources.cgroup.as_deref().unwrap_or_default();
    !matches!(leak.key, LeakKey::PodCgroup { .. }) || path.split('/').any(|part| part == lab)
}

/// Polls the agent for ever. A failed poll is tried again: an agent that died is noticed elsewhere.
/// With the name of a `lab`, what is not of it is left out.
pub async fn poll(
    mut whom: watch::Receiver<Option<Http>>,
    to: watch::Sender<Told>,
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
                let newest = known.next(all, deaths, leaks);
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
