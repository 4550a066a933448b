//! Does the faults, and undoes them.

use super::{
    churn::{Churn, PodStage},
    fault::{Deed, Fault},
    reuse,
    wire::{Between, Wire},
};
use anyhow::{Context as _, ensure};
use coroner_lab_cluster::{Cluster, wait::LIMIT};
use coroner_lab_harness::monitor::AgentMonitor;
use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long containerd lives between two kills, and as much again at random: pods are then torn from
/// all stages of starting and stopping.
const RUNTIME_LIVES: Duration = Duration::from_millis(900);
/// How long it is dead: calls fail meanwhile.
const RUNTIME_DEAD: Duration = Duration::from_millis(300);
/// How long the agent is dead: shorter than a settle window, so that an end which began before it
/// died is still under way when it comes back.
const AGENT_DEAD: Duration = Duration::from_millis(300);
/// Pods, and containers in each.
const CGROUPS: (usize, usize) = (20, 100);
/// Crowds at once.
const CROWDS: usize = 3;
/// How often the lab looks where the pods are.
const LOOK: Duration = Duration::from_millis(5);
/// From one burst of cgroups to the next: the agent's map of them empties meanwhile.
const BETWEEN_BURSTS: Duration = Duration::from_millis(700);

/// What was done, for a person; and what the agent did meanwhile.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) what: String,
    /// The longest that a new agent took to be ready.
    pub(super) ready: Duration,
}

pub(super) struct Hands<'a> {
    pub(super) lab: &'a Cluster,
    pub(super) churn: &'a Churn<'a>,
    pub(super) agent: &'a AgentMonitor,
    pub(super) between: &'a Between,
}

impl Hands<'_> {
    /// Does it, and returns when it is over.
    pub(super) async fn inflict(
        &self,
        fault: &Fault,
        random: &mut fastrand::Rng,
    ) -> anyhow::Result<Done> {
        let began = Instant::now();
        let mut done = Done::default();
        let during = || began.elapsed() < fault.lasts;
        match fault.deed {
            Deed::Nothing => {}
            Deed::KillRuntime => {
                let mut times = 0;
                while during() {
                    self.lab.kill_runtime().await?;
                    tokio::time::sleep(RUNTIME_DEAD).await;
                    self.lab.start_runtime().await?;
                    times += 1;
                    tokio::time::sleep(RUNTIME_LIVES.mul_f64(1.0 + random.f64())).await;
                }
                done.what = format!("killed {times} times");
            }
            Deed::Wire(wire) => {
                self.between.set(wire);
                tokio::time::sleep(fault.lasts).await;
                self.between.set(Wire::Open);
            }
            Deed::KillAgent => done = self.kill_agent().await?,
            Deed::SmallRing => {
                done.ready = self.agent.kill(&["--ring-bytes=4KiB"], Duration::ZERO).await?;
                let root = self.kubepods();
                let burst = tokio::task::spawn_blocking(move || burst(&root));
                // Each of these is a record or two: what ends with its PID namespace is counted.
                let crowds = (0..CROWDS).map(|_| self.churn.crowd());
                futures::future::join_all(crowds).await;
                burst.await.context("it panicked")??;
                done.what = format!("{CROWDS} crowds and a burst of cgroups");
            }
            Deed::Cgroups => {
                let mut times = 0;
                while during() {
                    let root = self.kubepods();
                    let took = tokio::task::spawn_blocking(move || burst(&root))
                        .await
                        .context("it panicked")??;
                    times += 1;
                    done.what = format!("{times} bursts, the last in {:.2} s", took.as_secs_f64());
                    tokio::time::sleep(BETWEEN_BURSTS).await;
                }
            }
            Deed::ReusePids => done.what = self.reuse_pids(during).await?,
        }
        let left = fault.lasts.saturating_sub(began.elapsed());
        tokio::time::sleep(left).await;
        Ok(done)
    }

    /// Whatever was done is undone, also what was cut short.
    pub(super) async fn mend(&self) -> anyhow::Result<()> {
        self.between.set(Wire::Open);
        self.lab.mend_runtime().await
    }

    async fn kill_agent(&self) -> anyhow::Result<Done> {
        let mut done = Done::default();
        let stages = [
            (PodStage::Asked, "before SIGTERM"),
            (PodStage::Handled, "between SIGTERM and SIGKILL"),
            (PodStage::Dead, "after the exit"),
        ];
        for (stage, when) in stages {
            ensure!(self.until_one_is(stage).await, "no pod came to the moment {when}");
            done.ready = done.ready.max(self.agent.kill(&[], AGENT_DEAD).await?);
        }
        let last = "before the object's end";
        ensure!(self.until_one_waits_for_its_object().await, "no pod came to the moment {last}");
        done.ready = done.ready.max(self.agent.kill(&[], AGENT_DEAD).await?);
        // One that the last agent owes: what had died before it came may be lost with another.
        ensure!(self.until_one_is(PodStage::Dead).await, "no pod died when the agent was back");
        done.what = format!("killed {}, {last}", stages.map(|(_, when)| when).join(", "));
        Ok(done)
    }

    /// Waits until a pod comes to this stage; one that is there already does not count.
    async fn until_one_is(&self, stage: PodStage) -> bool {
        let there = |pods: Vec<super::churn::Pod1>| -> BTreeSet<String> {
            let there = pods.into_iter().filter(|pod| pod.stage >= stage);
            there.map(|pod| pod.name).collect()
        };
        let before = there(self.churn.pods());
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let now = self.churn.pods();
            if now.iter().any(|pod| pod.stage == stage && !before.contains(&pod.name)) {
                return true;
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Waits until the runtime's word of a death has reached the apiserver, and the object stands.
    async fn until_one_waits_for_its_object(&self) -> bool {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            for pod in self.churn.pods().into_iter().filter(|pod| pod.stage == PodStage::Dead) {
                let object = self.lab.pod(coroner_lab_scenarios::NAMESPACE, &pod.name);
                let ended = object.is_some_and(|object| {
                    let meta = &object.metadata;
                    let statuses =
                        object.status.as_ref().and_then(|s| s.container_statuses.as_ref());
                    let state = statuses.and_then(|all| all.first()?.state.as_ref());
                    meta.deletion_timestamp.is_some()
                        && state.is_some_and(|state| state.terminated.is_some())
                });
                if ended {
                    return true;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Where the kubelet makes its pods' cgroups.
    fn kubepods(&self) -> PathBuf {
        let pod = self.lab.hand().cgroups.pod("besteffort", "x");
        let mut path = self.lab.cgroup_root().join(pod.trim_start_matches('/'));
        path.pop();
        path
    }

    async fn reuse_pids(&self, during: impl Fn() -> bool) -> anyhow::Result<String> {
        let mut used = BTreeSet::new();
        let mut reused = 0;
        while during() {
            let pods = self.churn.pods();
            let dead = pods.iter().filter(|pod| pod.stage >= PodStage::Dead);
            let fresh: Vec<i32> =
                dead.filter_map(|pod| pod.pid).filter(|pid| !used.contains(pid)).collect();
            let host = pods.iter().find(|pod| pod.stage == PodStage::Runs);
            if let (Some(pid), Some(host)) = (fresh.first().copied(), host)
                && let Some(container) = &host.container
            {
                let group = self.lab.hand().cgroups.pod("besteffort", &host.uid);
                let group = self.lab.hand().cgroups.group(&group, container);
                // Its host may die at any moment.
                if group.is_dir() {
                    let ran = tokio::task::spawn_blocking(move || reuse::run(pid, &group));
                    match ran.await.context("it panicked")? {
                        Ok(true) => {
                            used.insert(pid);
                            reused += 1;
                        }
                        Ok(false) => {}
                        Err(error) if error.is_gone() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        ensure!(reused > 0, "no number of a dead process was used again");
        Ok(format!("{reused} numbers used again"))
    }
}

trait Gone {
    /// What was to be used is gone.
    fn is_gone(&self) -> bool;
}

impl Gone for anyhow::Error {
    fn is_gone(&self) -> bool {
        let number = self.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        matches!(number, Some(libc::ENOENT | libc::ENODEV | libc::EBUSY))
    }
}

/// Makes pods' and containers' cgroups and removes them again, as fast as it goes. It leaves none
/// behind, whatever happens.
fn burst(kubepods: &std::path::Path) -> anyhow::Result<Duration> {
    let began = Instant::now();
    fs::create_dir_all(kubepods)?;
    let mut made = Vec::new();
    let mut make = || -> std::io::Result<()> {
        for _ in 0..CGROUPS.0 {
            let pod = kubepods.join(format!("pod{}", uuid::Uuid::new_v4()));
            fs::create_dir(&pod)?;
            made.push(pod.clone());
            for _ in 0..CGROUPS.1 {
                let id = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
                let container = pod.join(id.map(|id| id.simple().to_string()).concat());
                fs::create_dir(&container)?;
                made.push(container);
            }
        }
        Ok(())
    };
    let result = make();
    let removed: Vec<_> = made.iter().rev().map(fs::remove_dir).collect();
    result.context("cannot make a cgroup")?;
    removed.into_iter().collect::<Result<(), _>>().context("cannot remove a cgroup")?;
    Ok(began.elapsed())
}
