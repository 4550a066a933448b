//! The agent under chaos: killed, started again, and asked all the time for all that it tells.

use super::vitals::Vitals;
use anyhow::Context as _;
use coroner_core::{
    leak::{Leak, LeakKey},
    report::ContainerDeath,
    time::WallTime,
    types::Verdict,
};
use coroner_lab_harness::{
    agent::{self, Agent, Http},
    ground_truth::GroundTruth,
};
use coroner_workload::page::boot_now;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinHandle};

/// How often it is asked.
const POLL: Duration = Duration::from_millis(400);
/// Accounts that it keeps: more than come between two questions, and few enough that memory which
/// they fill is full soon.
const HISTORY: usize = 64;
/// How long something must have been left behind before it tells of it.
pub(super) const THRESHOLD: Duration = Duration::from_secs(4);
/// How long it waits for the sources' last words.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// What it has said of one container's death, over all that it has said.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct ToldDeath {
    /// Each verdict that it ever gave.
    pub(super) verdicts: BTreeSet<Verdict>,
    /// The last proof.
    pub(super) sentence: String,
    /// It was said that something of it was not seen, or may be lost.
    pub(super) marked: bool,
}

/// All that it has told since this was last taken.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By the pod's UID, then by the container's id.
    pub(super) deaths: HashMap<String, BTreeMap<String, ToldDeath>>,
    /// Each report of a leak as it first was: what it is, and when the agent was certain. Over a
    /// restart of the agent the same thing is reported twice.
    pub(super) leaks: BTreeMap<(LeakKey, WallTime), Leak>,
    /// What it reports as leaked now.
    pub(super) left: BTreeMap<LeakKey, Arc<Leak>>,
}

impl Told {
    fn learn(&mut self, death: &ContainerDeath, uid: &str) {
        let of_pod = self.deaths.entry(uid.to_owned()).or_default();
        let known = of_pod.entry(death.id.as_str().to_owned()).or_default();
        known.verdicts.insert(death.verdict);
        known.sentence.clone_from(&death.proof.message);
        known.marked |= death.truncated || !death.incomplete.is_empty();
    }
}

/// The agent and what it tells.
pub(super) struct Watched {
    options: agent::Options,
    running: tokio::sync::Mutex<Option<Agent>>,
    whom: watch::Sender<Option<Http>>,
    told: Arc<Mutex<Told>>,
    /// When nobody looked: from, to; ns of CLOCK_BOOTTIME.
    absences: Mutex<Vec<(u64, u64)>>,
    truth: Arc<GroundTruth>,
    polling: JoinHandle<()>,
}

impl Watched {
    /// Starts it and asks it from then on. `lab` is the name of the lab's own cgroup.
    pub(super) async fn start(
        options: agent::Options,
        lab: String,
        truth: Arc<GroundTruth>,
    ) -> anyhow::Result<Self> {
        let (whom, asked) = watch::channel(None);
        let told = Arc::default();
        let polling = tokio::spawn(poll(asked, Arc::clone(&told), lab));
        let watched = Self {
            options,
            running: tokio::sync::Mutex::default(),
            whom,
            told,
            absences: Mutex::default(),
            truth,
            polling,
        };
        watched.run(&[]).await?;
        Ok(watched)
    }

    async fn run(&self, flags: &[&str]) -> anyhow::Result<Duration> {
        let flags: Vec<String> =
            flags.iter().map(|flag| (*flag).to_owned()).chain(own_flags()).collect();
        self.truth.agent_starts();
        let agent = Agent::start_with(&self.options, &flags).await?;
        let ready = agent.ready_after();
        self.whom.send_replace(Some(agent.http()));
        *self.running.lock().await = Some(agent);
        Ok(ready)
    }

    /// SIGKILL, and started again with more flags after `pause`. How long it took to be ready.
    pub(super) async fn kill(&self, flags: &[&str], pause: Duration) -> anyhow::Result<Duration> {
        let agent = self.running.lock().await.take();
        self.whom.send_replace(None);
        let from = boot_now();
        if let Some(agent) = agent {
            agent.kill().await;
        }
        tokio::time::sleep(pause).await;
        let ready = self.run(flags).await;
        lock(&self.absences).push((from, boot_now()));
        ready
    }

    /// Whether it still runs; the error carries the end of its log.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        // Whoever starts it anew has it.
        let Ok(mut running) = self.running.try_lock() else { return Ok(()) };
        running.as_mut().map_or(Ok(()), Agent::check)
    }

    /// Waits until /readyz says so; `None`: not within this time.
    pub(super) async fn ready_within(&self, most: Duration) -> Option<Duration> {
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

    /// What it takes now.
    pub(super) async fn vitals(&self) -> anyhow::Result<Vitals> {
        let pid = self.running.lock().await.as_ref().and_then(Agent::pid);
        let http = self.http();
        let (Some(pid), Some(http)) = (pid, http) else {
            anyhow::bail!("the agent does not run");
        };
        Vitals::of(&http, pid).await.context("the agent's vitals")
    }

    /// Where it answers; `None`: it does not run.
    pub(super) fn http(&self) -> Option<Http> {
        self.whom.borrow().clone()
    }

    /// What it has told so far.
    pub(super) fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }

    /// When nobody looked.
    pub(super) fn absences(&self) -> Vec<(u64, u64)> {
        lock(&self.absences).clone()
    }

    /// Stops it.
    pub(super) async fn stop(self) {
        self.polling.abort();
        if let Some(agent) = self.running.into_inner() {
            agent.stop().await;
        }
    }
}

/// Of every agent here.
fn own_flags() -> [String; 2] {
    [format!("--history-limit={HISTORY}"), format!("--settle-window={}ms", SETTLE.as_millis())]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is of this lab. The agent sees all cgroups of the machine, on which there may be other
/// labs and benchmarks, with pods of their own.
fn is_of(leak: &Leak, lab: &str) -> bool {
    let path = leak.resources.cgroup.as_deref().unwrap_or_default();
    !matches!(leak.key, LeakKey::PodCgroup { .. }) || path.split('/').any(|part| part == lab)
}

/// Asks for ever. An answer that fails is asked for again: an agent that died is noticed elsewhere.
async fn poll(whom: watch::Receiver<Option<Http>>, told: Arc<Mutex<Told>>, lab: String) {
    loop {
        let http = whom.borrow().clone();
        if let Some(agent) = http
            && let (Ok(terminations), Ok(deaths), Ok(leaks)) =
                (agent.terminations().await, agent.deaths().await, agent.leaks().await)
        {
            let mut told = lock(&told);
            for account in &terminations {
                for death in &account.containers {
                    told.learn(death, account.pod.uid.as_str());
                }
            }
            for death in &deaths {
                if let Some(pod) = &death.pod {
                    told.learn(death, pod.uid.as_str());
                }
            }
            let own = leaks.leaks.into_iter().filter(|leak| is_of(leak, &lab));
            told.left = own.map(|leak| (leak.key.clone(), leak)).collect();
            for leak in told.left.values().cloned().collect::<Vec<_>>() {
                let report = (leak.key.clone(), leak.confirmed);
                told.leaks.entry(report).or_insert_with(|| Leak::clone(&leak));
            }
        }
        tokio::time::sleep(POLL).await;
    }
}
