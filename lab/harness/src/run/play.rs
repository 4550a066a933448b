//! Plays scenarios: makes the pod, does what is to be done, waits for the agent's account.

use crate::{
    monitor::{ASKS_EVERY, AgentMonitor, AgentReports, NOBODY_ASKS},
    run::clock,
};
use anyhow::{Context as _, bail};
use coroner_core::{
    leak::{Leak, LeakKey},
    report::{ContainerDeath, PodTermination},
};
use coroner_lab_cluster::{Cluster, container_of, image, remnants::Made};
use coroner_lab_cluster::{
    apiserver::ApiserverFault,
    kubelet::{
        START_FAILED,
        housekeeping::{Held, HousekeepingMoment},
        translate::PodId,
    },
    port::Port,
    traffic::{ClientConnection, Clients, has_read},
    wait,
};
use coroner_lab_scenarios::{
    Action, NAMESPACE, RESIDENT, Scenario, Site, Step, When,
    clients::{Crowd, Origin, PORT},
    left::Things,
};
use coroner_workload::network::v6_of;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter::once,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    time::Duration,
};
use tokio::sync::watch::Receiver;

/// A scenario while it is played.
pub struct Playing<'a> {
    pub scenario: &'a Scenario,
    pub lab: &'a Cluster,
    /// As the runtime knows it; of a scenario without one, a pod that is none.
    pub pod: PodId,
    /// Those that it took the place of: a static pod whose manifest changed is another one.
    replaced: Vec<PodId>,
    /// What it may leave behind.
    pub things: Things,
    /// What the agent told of its sandboxes before they were removed.
    pub removed: BTreeMap<LeakKey, Leak>,
    /// What was left by hand, beside sandboxes.
    pub made: Vec<Made>,
    /// Where its pod may listen.
    port: Port,
    /// The container ids that were seen, by name: another one is another life.
    lives: HashMap<&'static str, String>,
    /// The kubelet's housekeeping to come, and its holding still.
    housekeeping: Option<HousekeepingMoment>,
    held: Option<Held>,
    /// Clients that live.
    clients: Vec<(&'a Crowd, Clients)>,
}

/// How many late answers a report may have to wait for.
const ANSWERS: u32 = 20;

/// All that the agent said about a pod.
pub struct Account {
    /// Its lives, the oldest first.
    pub lives: Vec<PodTermination>,
    /// The deaths that belong to the end of none of them, the oldest first.
    pub earlier: Vec<ContainerDeath>,
    /// The deaths of its lives as they were first reported.
    pub first: Vec<ContainerDeath>,
    /// What its clients have recorded.
    pub clients: Vec<(Origin, Vec<ClientConnection>)>,
}

impl<'a> Playing<'a> {
    /// Makes the scenario's pod of this name, if it has one, and waits until it runs (or has run).
    pub async fn begin(
        scenario: &'a Scenario,
        name: &str,
        lab: &'a Cluster,
    ) -> anyhow::Result<Self> {
        let port = Port::reserve()?;
        let pod = if scenario.has_pod() {
            let mut pod = scenario.pod(site(lab, &port));
            pod.metadata.name = Some(name.into());
            let pod = if scenario.is_static() {
                lab.kubelet().add_static(&pod)
            } else {
                lab.create(pod)?
            };
            PodId::of(&pod).context("the apiserver gave the pod no UID")?
        } else {
            PodId {
                namespace: NAMESPACE.into(),
                name: name.into(),
                uid: uuid::Uuid::new_v4().to_string(),
            }
        };
        let mut things = Things::default();
        things.insert(&pod.uid);
        let mut playing = Self {
            scenario,
            lab,
            pod,
            replaced: Vec::new(),
            things,
            removed: BTreeMap::new(),
            made: Vec::new(),
            port,
            lives: HashMap::new(),
            housekeeping: None,
            held: None,
            clients: Vec::new(),
        };
        let first = scenario.steps.first().map(|step| step.when);
        if scenario.has_pod() {
            if first != Some(When::PostStart) {
                playing
                    .happens("the pod runs", |of| {
                        of.object().map_or(Ok(false), |pod| has_started(&pod))
                    })
                    .await?;
            }
            for container in scenario.containers() {
                playing.is_ready(container, 0).await?;
                if scenario.needs_user_namespace() {
                    lab.ensure_own_users(&playing.pod, container)?;
                }
            }
            playing.note_lives();
            // Its containers come and go, and the lists with them; a hook is over before a late list comes.
            if !matches!(first, Some(When::Waits(..) | When::PostStart)) {
                playing.is_listed().await;
            }
            playing.connect_clients().await?;
        }
        Ok(playing)
    }

    /// Starts its clients, and waits until each is where its habit leads to.
    async fn connect_clients(&mut self) -> anyhow::Result<()> {
        for crowd in &self.scenario.clients {
            let server = if crowd.of_neighbour { RESIDENT } else { &self.pod.name };
            let object = self.lab.pod(NAMESPACE, server).context("the server's object is gone")?;
            let v4 = object.status.and_then(|status| status.pod_ip);
            let v4: Ipv4Addr = v4.context("the server has no address")?.parse()?;
            let to = if crowd.over_v6 { IpAddr::V6(v6_of(v4)) } else { v4.into() };
            let from = match crowd.from {
                Origin::Elsewhere => self.lab.other_network().await?.clone(),
                Origin::Node => self.lab.node_network().await,
            };
            let clients = Clients::start(&from, (to, PORT).into(), crowd.load.clone())?;
            clients.settled().await?;
            if !crowd.unread && !crowd.of_neighbour {
                let network = self.lab.network(&self.pod.uid).await?;
                has_read(&network.context("the pod has no network")?, PORT).await?;
            }
            self.clients.push((crowd, clients));
        }
        Ok(())
    }

    /// Does what is to be done, each step in its time. Without `watcher` the agent has not yet
    /// been started.
    pub async fn act(
        &mut self,
        steps: &[Step],
        watcher: Option<&AgentMonitor>,
    ) -> anyhow::Result<()> {
        for step in steps {
            match step.when {
                When::After(time) => tokio::time::sleep(time).await,
                When::PostStart => {
                    self.happens("the postStart hook runs", |of| {
                        let runs = |pod| of.lab.has_second_process(&pod, &of.pod.uid);
                        Ok(of.object().is_some_and(runs))
                    })
                    .await?;
                }
                When::Handled(container) => {
                    self.happens("the stop signal is handled", |of| Ok(of.has_handled(container)))
                        .await?;
                }
                When::PreStop(container) => {
                    self.happens("the kubelet runs the preStop hook", |of| {
                        let pod = of.object().context("the pod's object is gone")?;
                        let id = container_of(&pod, container).map(|(id, _)| id);
                        let stops = of.lab.kubelet().stops(&id.unwrap_or_default());
                        Ok(stops.last().is_some_and(|stop| stop.hook_began.is_some()))
                    })
                    .await?;
                }
                When::Anew(container, time) => {
                    self.happens("the container runs anew", |of| Ok(of.runs_anew(container)))
                        .await?;
                    self.note_lives();
                    self.is_ready(container, self.restarts(container)).await?;
                    self.is_listed().await;
                    tokio::time::sleep(time).await;
                }
                When::Waits(container, reason) => {
                    let what = format!("the status shows that {container} waits: {reason}");
                    self.happens(&what, |of| Ok(of.waits(container).as_deref() == Some(reason)))
                        .await?;
                }
                When::Housekeeping => {
                    let moment = self.housekeeping.take().context("its cache was not read")?;
                    self.held =
                        wait::event("the kubelet does its housekeeping", moment.comes()).await?;
                    self.held.as_ref().context("the kubelet does no housekeeping")?;
                }
                When::Leaked(class) => {
                    let watcher = watcher.context("the agent has not started")?;
                    self.leaked(class, watcher.reports(), watcher.state().await).await?;
                }
                When::Told(reason) => {
                    self.happens("the apiserver has the Event", |of| {
                        Ok(of.lab.has_event(&of.pod.uid, reason.as_str()))
                    })
                    .await?;
                }
                When::Accounted(lives) => {
                    let mut accounts =
                        watcher.map(AgentMonitor::reports).context("the agent has not started")?;
                    self.accounted(lives, &mut accounts).await?;
                }
                When::Judged(judgement) => {
                    let mut accounts =
                        watcher.map(AgentMonitor::reports).context("the agent has not started")?;
                    let judged = accounts.wait_for(|told| told.detection_state == judgement);
                    let what = format!("the agent says that judgement is {judgement}");
                    wait::event(what, judged).await?.context(NOBODY_ASKS)?;
                }
            }
            self.perform(step.act, watcher).await.with_context(|| format!("{:?}", step.act))?;
            // What was held by the act is let go.
            self.held = None;
        }
        Ok(())
    }

    /// Waits for the agent's account of the pod's end.
    pub async fn account(
        &mut self,
        accounts: &mut Receiver<AgentReports>,
    ) -> anyhow::Result<Account> {
        self.accounted(self.scenario.expected.lives as usize, accounts).await?;
        // The counts of connections may come later than all else where many pods end at once.
        if self.lab.delays().any() || self.scenario.expected.traffic.is_some() {
            let all_final = accounts.wait_for(|told| self.lives(told).all(|life| life.is_final));
            // A report that is not final by then is compared as it is.
            let _ = wait::event_within(self.limit(), "the report is final", all_final).await;
        }
        let mut clients = Vec::new();
        for (crowd, playing) in self.clients.drain(..) {
            let record = playing.finish().await?;
            if !crowd.of_neighbour {
                clients.push((crowd.from, record));
            }
        }
        let told = accounts.borrow();
        let lives: Vec<PodTermination> = self.lives(&told).cloned().collect();
        let own: BTreeSet<_> =
            lives.iter().flat_map(|life| &life.containers).map(|c| &c.id).collect();
        let deaths = self.uids().filter_map(|uid| told.deaths.get(uid));
        let deaths = deaths.flat_map(|deaths| deaths.iter().rev().cloned());
        let (first, earlier) = deaths.partition(|death| own.contains(&death.id));
        Ok(Account { lives, earlier, first, clients })
    }

    /// Waits until the agent has told of the end of so many of its lives.
    async fn accounted(
        &self,
        lives: usize,
        accounts: &mut Receiver<AgentReports>,
    ) -> anyhow::Result<()> {
        let settled = accounts.wait_for(|told| self.lives(told).count() >= lives);
        let told = wait::event_within(self.limit(), "the agent's account", settled);
        told.await?.context(NOBODY_ASKS)?;
        Ok(())
    }

    /// The UIDs that it has had, the oldest first.
    fn uids(&self) -> impl Iterator<Item = &str> {
        self.replaced.iter().chain([&self.pod]).map(|pod| pod.uid.as_str())
    }

    /// Its lives of which the agent has told the end, the oldest first.
    fn lives<'t>(&self, told: &'t AgentReports) -> impl Iterator<Item = &'t PodTermination> {
        let of = self.uids().filter_map(|uid| told.pods.get(uid));
        of.flat_map(|lives| lives.iter().rev())
    }

    /// How long a report may take: with late sources also some answers for each scenario that is played at
    /// the same time, for the agent has one call of each kind under way.
    fn limit(&self) -> Duration {
        let delays = self.lab.delays();
        wait::LIMIT + ANSWERS * delays.apiserver.max(delays.runtime)
    }

    async fn perform(&mut self, act: Action, watcher: Option<&AgentMonitor>) -> anyhow::Result<()> {
        let (lab, name) = (self.lab, self.pod.name.clone());
        let name = name.as_str();
        let namesake = lab.pod(NAMESPACE, name);
        let object = || namesake.clone().context("the pod's object is gone");
        match act {
            // Done by whoever plays this.
            Action::StartAgent | Action::Wait => Ok(()),
            Action::Delete { grace } => {
                lab.delete(NAMESPACE, name, grace)?;
                if self.clients.iter().any(|(crowd, _)| !crowd.lag.is_zero()) {
                    self.happens("the pod's stop begins", |of| Ok(of.is_being_stopped())).await?;
                }
                self.clients.iter().for_each(|(crowd, all)| all.stop_arriving_after(crowd.lag));
                Ok(())
            }
            Action::Disrupt(disruption) => lab.disrupt(NAMESPACE, name, disruption),
            Action::End(ending) => {
                lab.kubelet().end(&self.pod.uid, ending);
                Ok(())
            }
            Action::Kill { container, signal } => lab.kill(&object()?, container, signal),
            Action::KillSandbox => lab.hand().kill_sandbox(&self.pod.uid).await,
            Action::StopContainer { container, timeout } => {
                lab.hand().stop_container(&object()?, container, timeout)
            }
            Action::StopSandbox => {
                let _paused = lab.kubelet().pause(&self.pod.uid).await?;
                lab.hand().stop_sandbox(&self.pod.uid).await
            }
            Action::StopScope { container } => lab.stop_scope(&object()?, container),
            Action::KillTask { container, signal } => {
                lab.kill_task(&object()?, container, signal).await
            }
            Action::LoseStatus { container } => lab.lose_status(&object()?, container).await,
            Action::Exec { container, command } => {
                let words: Vec<_> =
                    once(image::PROGRAM).chain(command.split_whitespace()).collect();
                lab.hand().exec(&object()?, container, &words).await.map(drop)
            }
            Action::Freeze { container } => lab.freeze(&object()?, container),
            Action::ChangeImage { container, image } => {
                lab.change_image(NAMESPACE, name, container, image)
            }
            Action::Resize { container, cpu } => lab.resize(NAMESPACE, name, container, cpu),
            Action::ChangeManifest => {
                let mut changed = self.scenario.pod(site(lab, &self.port));
                let annotations = changed.metadata.annotations.get_or_insert_default();
                annotations.insert("coroner/changed".into(), "true".into());
                lab.kubelet().remove_static(&self.pod.uid);
                let changed = PodId::of(&lab.kubelet().add_static(&changed));
                let changed = changed.context("the kubelet gave the pod no UID")?;
                self.things.insert(&changed.uid);
                self.replaced.push(std::mem::replace(&mut self.pod, changed));
                Ok(())
            }
            Action::RemoveManifest => {
                lab.kubelet().remove_static(&self.pod.uid);
                Ok(())
            }
            Action::ReturnManifest => {
                lab.kubelet().add_static(&self.scenario.pod(site(lab, &self.port)));
                Ok(())
            }
            Action::KillRuntime => lab.kill_runtime().await,
            Action::StartRuntime => lab.start_runtime().await,
            Action::StopApiserver => {
                lab.set_apiserver(ApiserverFault::Unavailable);
                Ok(())
            }
            Action::StartApiserver => {
                lab.set_apiserver(ApiserverFault::None);
                Ok(())
            }
            Action::ReadRuntimeCache => {
                self.housekeeping = Some(lab.read_runtime_cache(&self.pod.uid));
                Ok(())
            }
            Action::IgnoreProbes => {
                lab.kubelet().ignore_probes(&self.pod.uid);
                Ok(())
            }
            Action::KeepContainers => {
                lab.kubelet().keep_containers(&self.pod.uid);
                Ok(())
            }
            Action::RunKubelet(version) => lab.run_kubelet(version),
            Action::Leave(remnant) => {
                if let Some(made) = lab.leave(remnant, &self.pod).await? {
                    self.note_made(made);
                }
                Ok(())
            }
            Action::LoseBundles => {
                self.note_made(lab.lose_bundles(&self.pod).await?);
                Ok(())
            }
            Action::RemoveSandboxes => {
                if let Some(watcher) = watcher {
                    let accounts = watcher.reports();
                    self.note_told(&accounts.borrow());
                }
                lab.hand().remove_sandboxes(&self.pod.uid).await?;
                if self.made.iter().any(|made| matches!(made, Made::Orphans(_))) {
                    return Ok(()); // they are still in it
                }
                lab.hand().remove_cgroup(&self.pod.uid).await
            }
            Action::RemoveFinalizers => lab.remove_finalizers(NAMESPACE, name),
            Action::FreezeForGood { container } => {
                self.made.push(lab.freeze_for_good(&object()?, container).await?);
                Ok(())
            }
            Action::Thaw => self.undo().await,
            Action::BreakNetwork => lab.set_network(name, false).await,
            Action::MendNetwork => lab.set_network(name, true).await,
            Action::RestartAgent(flags) => {
                watcher.context("the agent has not started")?.restart(flags).await
            }
        }
    }

    fn note_made(&mut self, made: Made) {
        made.names().into_iter().for_each(|name| self.things.insert(name));
        self.made.push(made);
    }

    /// Takes away what was left by hand beside sandboxes.
    pub async fn undo(&mut self) -> anyhow::Result<()> {
        for made in self.made.drain(..) {
            self.lab.hand().undo(made).await?;
        }
        Ok(())
    }

    /// The object, if it exists; of a static pod its mirror.
    pub fn object(&self) -> Option<Pod> {
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

    /// A preStop hook runs, or the stop signal has arrived: however late the kubelet is, and the runtime.
    fn is_being_stopped(&self) -> bool {
        self.lives.iter().any(|(name, id)| {
            let stops = self.lab.kubelet().stops(id);
            stops.iter().any(|stop| stop.hook_began.is_some() || stop.done.is_some())
                || self.has_handled(name)
        })
    }

    /// By the workload's own record.
    fn has_handled(&self, container: &str) -> bool {
        let log = self.pod.log_file(self.lab.logs(), container);
        lines(&log).iter().any(|line| line.event == "term")
    }

    fn restarts(&self, container: &str) -> u32 {
        let status = self.status(container);
        status.and_then(|one| one.restart_count.try_into().ok()).unwrap_or_default()
    }

    /// What the container waits for, by its status.
    fn waits(&self, container: &str) -> Option<String> {
        self.status(container)?.state?.waiting?.reason
    }

    fn status(&self, container: &str) -> Option<ContainerStatus> {
        let status = self.object().and_then(|pod| pod.status).unwrap_or_default();
        let mut all = status.container_statuses.into_iter().flatten();
        all.find(|one| one.name == container)
    }

    pub async fn happens(
        &self,
        what: &str,
        mut holds: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        wait::until(what, || Ok(holds(self)?.then_some(()))).await
    }

    /// Waits until the agent has had the time to learn from a late runtime what runs: a list is under way, and
    /// only the next one has it. No pod ends that soon on a real node.
    pub async fn is_listed(&self) {
        tokio::time::sleep(listed(self.lab)).await;
    }

    /// Waits until the container's process says that it is ready to be signalled: it counts as
    /// running before. `attempt`: how often it was restarted.
    async fn is_ready(&self, container: &str, attempt: u32) -> anyhow::Result<()> {
        let log = self.pod.log_of(self.lab.logs(), container, attempt);
        let what = format!("{container} is ready to be signalled");
        self.happens(&what, |_| Ok(lines(&log).iter().any(|line| line.event == "start"))).await
    }
}

/// How long the runtime's lists take to show a container.
fn listed(lab: &Cluster) -> Duration {
    let delay = lab.delays().runtime;
    if delay.is_zero() { delay } else { 2 * delay + ASKS_EVERY }
}

fn site<'a>(lab: &'a Cluster, port: &Port) -> Site<'a> {
    Site { node: lab.node(), port: port.number(), listed: listed(lab) }
}

fn has_started(pod: &Pod) -> anyhow::Result<bool> {
    let Some(status) = &pod.status else { return Ok(false) };
    if status.reason.as_deref() == Some(START_FAILED) {
        bail!("the pod did not start: {}", status.message.as_deref().unwrap_or_default());
    }
    Ok(!matches!(status.phase.as_deref(), None | Some("Pending")))
}

pub(super) fn pod_id(timeline: &PodTermination) -> PodId {
    PodId {
        namespace: timeline.pod.namespace.clone(),
        name: timeline.pod.name.clone(),
        uid: timeline.pod.uid.as_str().into(),
    }
}

/// What a workload has told on its log, if there is one yet.
pub(super) fn lines(log: &Path) -> Vec<clock::WorkloadLine> {
    clock::lines(&std::fs::read_to_string(log).unwrap_or_default())
}
