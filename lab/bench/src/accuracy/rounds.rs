//! Makes the deaths: rounds of pods that are started together and die one after the other.

use super::{
    death::{Account, CpuLoad, Death},
    interval::Interval,
    observer::{ObservedMoment, Observer},
    witness::{self, Witness},
};
use anyhow::{Context as _, bail};
use coroner_lab_cluster::{
    Cluster,
    kubelet::{Cri, main_pid, translate::PodId},
};
use coroner_lab_harness::{
    agent::{Agent, Http},
    console::Console,
};
use coroner_lab_scenarios::NAMESPACE;
use coroner_lab_scenarios::death_mode::{CONTAINER, DeathMode, DeathTrigger};
use coroner_workload::page::{Mapping, boot_now};
use futures::future::join_all;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::oneshot;

/// Pods of one round.
const ROUND: usize = 20;
/// From one act to the next within a round; as much again at random.
const STAGGER: Duration = Duration::from_millis(60);
/// From the last start to the first act: the starts' own noise dies down.
const QUIET: Duration = Duration::from_millis(500);
/// How long the heart beats fast before a death that the benchmark itself makes.
const NOTICE: Duration = Duration::from_millis(20);
/// From a pod's creation to its running. Generous: under load everything takes its time.
const TO_START: Duration = Duration::from_secs(90);
/// From an act to the death: grace, floor, and a busy machine.
const TO_DIE: Duration = Duration::from_secs(30);
/// From the last death to the last account: sandbox stop, relist, settle window.
const TO_SETTLE: Duration = Duration::from_secs(60);
/// Rounds that a pod which ended by itself is kept for, so that its account is settled before
/// somebody deletes it.
const KEPT: usize = 2;

/// What the rounds are played on.
pub(super) struct DeathRounds<'a> {
    pub(super) lab: &'a Cluster,
    pub(super) agent: &'a mut Agent,
    pub(super) cri: Cri,
    pub(super) observer: &'a Observer,
    pub(super) witness: &'a Witness,
    /// A directory on tmpfs.
    pub(super) pages: &'a Path,
    pub(super) console: Console,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct RoundsOutcome {
    pub(super) deaths: Vec<Death>,
    /// Deaths that could not be made or observed, as sentences.
    pub(super) failures: Vec<String>,
}

/// A pod that runs, observed.
struct Living {
    way: DeathMode,
    id: PodId,
    container: String,
    page: Mapping,
    process: Arc<OwnedFd>,
    died: oneshot::Receiver<ObservedMoment>,
}

/// A pod that has died; what others say of it is still to come.
struct Dead {
    death: Death,
    id: PodId,
    container: String,
    moment: ObservedMoment,
}

impl DeathRounds<'_> {
    /// Plays all `ways` under the given load and waits for the agent's accounts.
    pub(super) async fn play(
        &mut self,
        ways: &[DeathMode],
        load: CpuLoad,
        random: &mut fastrand::Rng,
    ) -> anyhow::Result<RoundsOutcome> {
        let mut dead: Vec<Dead> = Vec::with_capacity(ways.len());
        let mut outcome = RoundsOutcome::default();
        let mut accounts = HashMap::new();
        let mut ended: VecDeque<Vec<PodId>> = VecDeque::new();
        for round in ways.chunks(ROUND) {
            if ended.len() >= KEPT {
                self.delete(ended.pop_front().unwrap_or_default());
            }
            let prefix = format!("{}-{:04x}", load.name(), random.u16(..));
            let mut living = Vec::new();
            let begun = round
                .iter()
                .enumerate()
                .map(|(index, way)| self.begin(*way, format!("{prefix}-{index}-{}", way.name())));
            for begun in join_all(begun).await {
                match begun {
                    Ok(one) => living.push(one),
                    Err(error) => outcome.failures.push(format!("{error:#}")),
                }
            }
            tokio::time::sleep(QUIET).await;
            let mut turn = Duration::ZERO;
            let acts = living.into_iter().map(|one| {
                turn += STAGGER + STAGGER.mul_f64(random.f64());
                self.end(one, load, turn)
            });
            let mut by_themselves = Vec::new();
            for died in join_all(acts.collect::<Vec<_>>()).await {
                match died {
                    Ok(one) => {
                        if !matches!(one.death.way.act(), DeathTrigger::Delete { .. }) {
                            by_themselves.push(one.id.clone());
                        }
                        dead.push(one);
                    }
                    Err(error) => outcome.failures.push(format!("{error:#}")),
                }
            }
            ended.push_back(by_themselves);
            self.agent.check()?;
            collect(&self.agent.http(), &mut accounts).await?;
            self.console.step(&format!(
                "{}: {} of {} deaths{}",
                load.name(),
                dead.len(),
                ways.len(),
                match outcome.failures.len() {
                    0 => String::new(),
                    failures => format!(", {failures} failed: {}", outcome.failures[0]),
                }
            ));
        }
        self.settle(&dead, &mut accounts).await?;
        ended.into_iter().for_each(|pods| self.delete(pods));
        outcome.deaths.extend(dead.into_iter().map(|one| self.complete(one, &accounts)));
        Ok(outcome)
    }

    /// Makes the pod and waits until its heart beats and the observer watches it.
    async fn begin(&self, way: DeathMode, name: String) -> anyhow::Result<Living> {
        let started = async {
            let file: PathBuf = self.pages.join(&name);
            let page = Mapping::create(&file)
                .with_context(|| format!("cannot make the page {}", file.display()))?;
            let pod = self.lab.create(way.pod(&name, self.lab.node(), &file))?;
            let id = PodId::of(&pod).context("the apiserver gave the pod no UID")?;
            let container = loop {
                let seen = self.witness.pod(&id.uid);
                if let Some(why) = seen.failure {
                    bail!("it did not start: {why}");
                }
                match seen.container {
                    Some(container) if page.ready.load(Relaxed) != 0 => break container,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            let status = witness::status(&self.cri, &container).await?;
            let pid = main_pid(&status.info).and_then(Pid::from_raw);
            let pid = pid.context("the runtime does not tell its pid")?;
            let process = Arc::new(pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?);
            // A heart that beats now proves that the number was not somebody else's meanwhile.
            let beat = page.beat.load(Relaxed);
            while page.beat.load(Relaxed) == beat {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            first_come(pid);
            let died = self.observer.watch(process.clone())?;
            // The mappings stay; the name is no longer needed.
            std::fs::remove_file(&file).context("cannot remove the page's name")?;
            anyhow::Ok(Living { way, id, container, page, process, died })
        };
        match tokio::time::timeout(TO_START, started).await {
            Ok(started) => started.with_context(|| name.clone()),
            Err(_) => bail!("{name}: does not run after {TO_START:?}"),
        }
    }

    /// Ends its life when it is its turn, and collects what has to be collected at once.
    async fn end(&self, living: Living, load: CpuLoad, turn: Duration) -> anyhow::Result<Dead> {
        tokio::time::sleep(turn).await;
        let Living { way, id, container, page, process, died } = living;
        let (mut deleted, mut sent) = (None, None);
        match way.act() {
            DeathTrigger::Delete { term_after, kill_after } => {
                let before = boot_now();
                page.fast_from.store(later(before, term_after), Relaxed);
                self.lab.delete(&id.namespace, &id.name, None)?;
                deleted = Some(Interval::new(before, boot_now()));
                if let Some(after) = kill_after {
                    tokio::time::sleep(after / 2).await;
                    page.fast_from.store(later(before, after), Relaxed);
                }
            }
            DeathTrigger::Send(signal) => {
                page.fast_from.store(boot_now(), Relaxed);
                tokio::time::sleep(NOTICE).await;
                sent = Some(send(&process, signal)?);
            }
            DeathTrigger::Itself => {
                let now = boot_now();
                page.end_at.store(later(now, NOTICE), Relaxed);
                page.fast_from.store(now, Relaxed);
            }
        }
        let moment = match tokio::time::timeout(TO_DIE, died).await {
            Ok(Ok(moment)) => moment,
            Ok(Err(_)) => bail!("{}: the observer has gone", id.name),
            Err(_) => bail!("{}: still alive {TO_DIE:?} after its end was asked for", id.name),
        };
        let cri_finished =
            tokio::time::timeout(TO_DIE, witness::finished(&self.cri, &container, moment));
        let cri_finished = cri_finished.await.ok().flatten();
        // It lived when it last said so, and when a SIGKILL of ours was not yet sent; and that was
        // sent before it died.
        let mut truth = Interval::new(page.beat.load(Relaxed), moment.boot);
        if let Some(sent) = sent.as_mut().filter(|_| way.act() == DeathTrigger::Send(Signal::KILL))
        {
            truth = Interval::new(truth.from.max(sent.from), truth.to);
            *sent = Interval::new(sent.from, sent.to.min(truth.to));
        }
        let handler = page.term.load(Relaxed);
        let handled = Interval::new(page.before_term.load(Relaxed), handler);
        let death = Death {
            way,
            load,
            truth,
            deleted,
            sent,
            handled: (handler != 0).then_some(handled),
            account: None,
            cri_finished,
            relist: None,
            api_finished: None,
            api_gone: None,
        };
        Ok(Dead { death, id, container, moment })
    }

    /// Waits until the agent and the others have said all that they will say.
    async fn settle(
        &mut self,
        dead: &[Dead],
        accounts: &mut HashMap<String, Account>,
    ) -> anyhow::Result<()> {
        self.console.step("waiting for the last accounts");
        let settled = async {
            loop {
                self.agent.check()?;
                collect(&self.agent.http(), accounts).await?;
                let told = |one: &Dead| {
                    accounts.contains_key(&one.id.uid)
                        && self.witness.relisted(&one.container, one.death.truth.from).is_some()
                        && self.witness.pod(&one.id.uid).finished_wall.is_some()
                };
                if dead.iter().all(told) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        // What is missing then is counted, not waited for.
        tokio::time::timeout(TO_SETTLE, settled).await.unwrap_or(Ok(()))
    }

    fn complete(&self, dead: Dead, accounts: &HashMap<String, Account>) -> Death {
        let api = self.witness.pod(&dead.id.uid);
        let deleted = dead.death.deleted.is_some();
        Death {
            account: accounts.get(&dead.id.uid).copied(),
            relist: self.witness.relisted(&dead.container, dead.death.truth.from),
            api_finished: api.finished_wall.and_then(|wall| dead.moment.boot_at(wall)),
            api_gone: api.gone.filter(|_| deleted),
            ..dead.death
        }
    }

    /// Clears away what ended by itself.
    fn delete(&self, pods: Vec<PodId>) {
        for pod in pods {
            // Gone already is as good.
            let _ = self.lab.delete(NAMESPACE, &pod.name, None);
        }
    }
}

/// The agent's newest accounts, added to those known. It keeps the last 256: asked once a round,
/// none is missed.
async fn collect(agent: &Http, accounts: &mut HashMap<String, Account>) -> anyhow::Result<()> {
    for account in agent.terminations().await? {
        let container = account.containers.iter().find(|death| death.name == CONTAINER);
        if let Some(death) = container {
            accounts.insert(account.pod.uid.as_str().into(), Account::of(death));
        }
    }
    Ok(())
}

/// Has the process scheduled before ordinary ones: on a busy machine it would otherwise wait for a
/// CPU with its last heartbeat, and again with its death, and the truth would be as wide. It sleeps
/// nearly always and takes the CPU from nobody. All that is measured stays at ordinary priority.
fn first_come(pid: Pid) {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are valid. Where it is refused (a cgroup without a real-time share) the
    // truth is wider, and the table says how wide.
    unsafe {
        libc::sched_setscheduler(pid.as_raw_nonzero().get(), libc::SCHED_FIFO, &parameters);
    }
}

/// Sends the signal; the interval is that of the call.
fn send(process: &OwnedFd, signal: Signal) -> anyhow::Result<Interval> {
    let before = boot_now();
    pidfd_send_signal(process, signal).context("pidfd_send_signal")?;
    Ok(Interval::new(before, boot_now()))
}

fn later(at: u64, by: Duration) -> u64 {
    at.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX))
}
