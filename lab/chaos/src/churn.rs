//! Pods that are made and die all the time, each in a way that is known beforehand.

use super::truth::{PodKind, TrueEnd, hook_was_late};
use anyhow::{Context as _, bail};
use coroner_lab_cluster::{
    Cluster, container_of,
    kubelet::{START_FAILED, translate::PodId},
    wait::LIMIT,
};
use coroner_lab_scenarios::{
    NAMESPACE,
    death_mode::{self, CONTAINER, DeathMode, DeathTrigger, shuffled},
};
use coroner_workload::page::{Mapping, boot_now};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::timeout;

/// Pods at a time.
const AT_ONCE: usize = 6;
/// How long a pod that ended by itself stays: on most machines its report is settled before somebody
/// deletes it, and both orders are right.
const KEPT: Duration = Duration::from_secs(4);
/// How often the lab looks at an object.
const LOOK: Duration = Duration::from_millis(20);
/// How often it looks whether a process is dead.
const PIDFD_LOOK: Duration = Duration::from_millis(4);

/// Where a pod's life is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum PodStage {
    /// It is being started.
    Born,
    Runs,
    /// Its end was asked for.
    Asked,
    /// Its handler for the stop signal ran.
    Handled,
    /// Its main process is dead.
    Dead,
    /// Its object is gone.
    Gone,
}

/// One pod, as it is now.
#[derive(Clone, Debug)]
pub(super) struct Pod1 {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) kind: PodKind,
    pub(super) stage: PodStage,
    /// Its main process.
    pub(super) pid: Option<i32>,
    /// The container's id, once it runs.
    pub(super) container: Option<String>,
    pub(super) died: Option<u64>,
    pub(super) gone: Option<u64>,
    pub(super) handled: Option<bool>,
    /// What the lab, not the agent, failed at.
    pub(super) failure: Option<String>,
}

impl Pod1 {
    /// Its end, for the judge.
    pub(super) fn end(&self, lab: &Cluster, may_be_killed: bool) -> TrueEnd {
        let stops = self.container.as_deref().map(|id| lab.kubelet().stops(id));
        let hook_was_late = stops.is_some_and(|stops| hook_was_late(&stops));
        let died_as_asked = self.died.is_some();
        TrueEnd {
            kind: self.kind,
            handled: self.handled,
            may_be_killed,
            died_as_asked,
            hook_was_late,
        }
    }
}

/// The pods.
pub(super) struct Churn<'a> {
    lab: &'a Cluster,
    /// A directory on tmpfs.
    pages: &'a Path,
    ways: Vec<DeathMode>,
    known: Mutex<Vec<Pod1>>,
    over: AtomicBool,
    number: AtomicU32,
}

impl<'a> Churn<'a> {
    pub(super) fn new(lab: &'a Cluster, pages: &'a Path) -> Self {
        let can_limit = lab.can_limit_memory();
        let ways = DeathMode::ALL
            .into_iter()
            .filter(|way| can_limit || !way.needs_memory_limit())
            .collect();
        Self {
            lab,
            pages,
            ways,
            known: Mutex::default(),
            over: AtomicBool::new(false),
            number: AtomicU32::new(0),
        }
    }

    /// All pods of this round so far.
    pub(super) fn pods(&self) -> Vec<Pod1> {
        self.known().clone()
    }

    fn known(&self) -> MutexGuard<'_, Vec<Pod1>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a pod has come to run; not for ever, for none may.
    pub(super) async fn one_runs(&self) {
        let runs = async {
            while !self.known().iter().any(|pod| pod.stage >= PodStage::Runs) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = timeout(LIMIT, runs).await;
    }

    /// No pod is made any more.
    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Forgets the pods of the last round: another one begins.
    pub(super) fn begin(&self) {
        self.known().clear();
        self.over.store(false, Relaxed);
    }

    /// Makes pods until [`Self::end`], and lives their lives to the end.
    pub(super) async fn run(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let slots = (0..AT_ONCE).map(|_| {
            let mut random = random.fork();
            async move {
                let mut ways = Vec::new();
                while !self.over.load(Relaxed) {
                    if ways.is_empty() {
                        ways = shuffled(&self.ways, self.ways.len(), &mut random);
                    }
                    let Some(way) = ways.pop() else { return };
                    // At random, so that the pods are at different stages when a fault comes.
                    let life = Duration::from_millis(random.u64(50..900));
                    self.live(PodKind::One(way), life).await;
                }
            }
        });
        futures::future::join_all(slots.collect::<Vec<_>>()).await;
    }

    /// Has a crowd live and die: for so long that most of its processes are there by then.
    pub(super) async fn crowd(&self) {
        self.live(PodKind::Crowd, Duration::from_millis(1500)).await;
    }

    async fn live(&self, kind: PodKind, life: Duration) {
        let number = self.number.fetch_add(1, Relaxed);
        let name = format!("chaos-{number}-{}", kind.name());
        let index = {
            let mut known = self.known();
            known.push(Pod1 {
                name: name.clone(),
                uid: String::new(),
                kind,
                stage: PodStage::Born,
                pid: None,
                container: None,
                died: None,
                gone: None,
                handled: None,
                failure: None,
            });
            known.len() - 1
        };
        let page = self.pages.join(&name);
        let lived = self.live_as(kind, life, &name, &page, index).await;
        let _ = std::fs::remove_file(&page);
        if let Err(error) = lived {
            self.note(index, |pod| pod.failure = Some(format!("{error:#}")));
        }
        if let Err(error) = self.take_away(&name, index).await {
            self.note(index, |pod| {
                pod.failure.get_or_insert_with(|| format!("{error:#}"));
            });
        }
    }

    fn note(&self, index: usize, change: impl FnOnce(&mut Pod1)) {
        if let Some(pod) = self.known().get_mut(index) {
            change(pod);
        }
    }

    async fn live_as(
        &self,
        kind: PodKind,
        life: Duration,
        name: &str,
        file: &Path,
        index: usize,
    ) -> anyhow::Result<()> {
        let page = match kind {
            PodKind::One(_) => Some(Mapping::create(file).context("cannot make its page")?),
            PodKind::Crowd => None,
        };
        let pod = match kind {
            PodKind::One(way) => way.pod(name, self.lab.node(), file),
            PodKind::Crowd => death_mode::crowd(name, self.lab.node()),
        };
        let id = PodId::of(&self.lab.create(pod)?).context("the apiserver gave it no UID")?;
        self.note(index, |pod| pod.uid.clone_from(&id.uid));
        let container = timeout(LIMIT, self.runs(&id, page.as_ref()))
            .await
            .context("does not run")?
            .context("did not start")?;
        let pid = self.lab.main_pid(&id, CONTAINER)?;
        let process = pidfd_open(Pid::from_raw(pid).context("no pid")?, PidfdFlags::empty())?;
        self.note(index, |pod| {
            pod.stage = PodStage::Runs;
            pod.pid = Some(pid);
            pod.container = Some(container);
        });
        tokio::select! {
            () = tokio::time::sleep(life) => {}
            () = dies(&process) => bail!("it died before its time"),
        }
        self.ask_for_end(kind, &id, page.as_ref(), &process)?;
        self.note(index, |pod| pod.stage = PodStage::Asked);
        let handled = || page.as_ref().is_some_and(|page| page.term.load(Relaxed) != 0);
        let dies = async {
            while timeout(LOOK, dies(&process)).await.is_err() {
                if handled() {
                    self.note(index, |pod| pod.stage = PodStage::Handled);
                }
            }
        };
        let died = timeout(LIMIT, dies).await;
        self.note(index, |pod| {
            pod.handled = page.is_some().then(handled);
            if died.is_ok() {
                pod.stage = PodStage::Dead;
                pod.died = Some(boot_now());
            }
        });
        died.context("still alive long after its end was asked for")?;
        if !matches!(kind, PodKind::One(way) if !matches!(way.act(), DeathTrigger::Delete { .. })) {
            return Ok(());
        }
        tokio::time::sleep(KEPT).await;
        Ok(())
    }

    /// Until its heart beats, or it was said to run; the container's id.
    async fn runs(&self, id: &PodId, page: Option<&Mapping>) -> anyhow::Result<String> {
        loop {
            let pod = self.lab.pod(&id.namespace, &id.name).context("somebody deleted it")?;
            let status = pod.status.as_ref();
            if status.is_some_and(|status| status.reason.as_deref() == Some(START_FAILED)) {
                let why = status.and_then(|status| status.message.clone());
                bail!(why.unwrap_or_default());
            }
            let beats = page.is_none_or(|page| page.ready.load(Relaxed) != 0);
            if let Some((container, true)) = container_of(&pod, CONTAINER)
                && beats
            {
                return Ok(container);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn ask_for_end(
        &self,
        kind: PodKind,
        id: &PodId,
        page: Option<&Mapping>,
        process: &OwnedFd,
    ) -> anyhow::Result<()> {
        let act = match kind {
            PodKind::One(way) => way.act(),
            PodKind::Crowd => DeathTrigger::Delete { term_after: Duration::ZERO, kill_after: None },
        };
        match act {
            DeathTrigger::Delete { .. } => self.lab.delete(&id.namespace, &id.name, None)?,
            DeathTrigger::Send(signal) => {
                pidfd_send_signal(process, signal).context("pidfd_send_signal")?;
            }
            DeathTrigger::Itself => {
                page.context("it has no page")?.end_at.store(boot_now(), Relaxed);
            }
        }
        Ok(())
    }

    /// Deletes it if nobody has, and waits until its object is gone.
    async fn take_away(&self, name: &str, index: usize) -> anyhow::Result<()> {
        if self
            .lab
            .pod(NAMESPACE, name)
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
        {
            // Gone already is as good.
            let _ = self.lab.delete(NAMESPACE, name, None);
        }
        let goes = async {
            while self.lab.pod(NAMESPACE, name).is_some() {
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(LIMIT, goes).await.context("its object does not go")?;
        self.note(index, |pod| {
            pod.stage = PodStage::Gone;
            pod.gone = Some(boot_now());
        });
        Ok(())
    }
}

/// Until the process is dead.
async fn dies(process: &OwnedFd) {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A pidfd is readable once no thread of the process is left (`pidfd_poll`).
    while !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)), Ok(1..)) {
        tokio::time::sleep(PIDFD_LOOK).await;
    }
}
