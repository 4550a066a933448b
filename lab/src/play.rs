//! Plays one scenario: makes the pod, does what is to be done, and waits for the agent's report.

use crate::{
    clients::{Clients, Connection},
    driver::{PodId, START_FAILED, StopCall},
    lab::{Lab, NODE, container_id, container_status},
    leftovers::Made,
    monitor::{AgentMonitor, AgentReports, THRESHOLD},
    scenarios::{Action, Crowd, NAMESPACE, Origin, Scenario, When, pod::PORT},
    wait,
};
use anyhow::{Context as _, Result, bail};
use coroner_core::{
    leak::{Leak, LeakClass, LeakKey},
    report::{Audit, ContainerDeath, PodTermination},
};
use k8s_openapi::api::core::v1::Pod;
use rustix::process::Signal;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

/// How much longer than the threshold nothing may be reported: some of the agent's polls.
const QUIET: Duration = Duration::from_secs(3);
/// How many late answers a report may have to wait for.
const ANSWERS: u32 = 20;

/// A scenario while it is played.
pub struct Playing<'a> {
    pub scenario: &'a Scenario,
    lab: &'a Lab,
    /// As the runtime knows it; of a scenario without one, a pod that is none.
    pub pod: PodId,
    /// Names by which its leaks are known: UIDs, ids of sandboxes, names of files.
    names: BTreeSet<String>,
    /// What was reported of its leaks before they were removed.
    removed: BTreeMap<LeakKey, Leak>,
    /// What was left by hand, beside sandboxes.
    made: Vec<Made>,
    /// The first attempt of each container, by its name.
    first: HashMap<&'static str, String>,
    clients: Vec<(&'a Crowd, Clients)>,
}

/// All that is known of a scenario's pod, from the agent and from the lab itself.
#[derive(Default)]
pub struct Account {
    pub termination: Option<PodTermination>,
    /// The deaths before the pod's own termination, and those of it as they were first reported; the oldest first.
    pub earlier: Vec<ContainerDeath>,
    pub first: Vec<ContainerDeath>,
    pub leaks: Vec<Leak>,
    /// How its containers were to respond to their stop signal, as it was reported while they ran.
    pub audits: Vec<Audit>,
    pub clients: Vec<(Origin, Vec<Connection>)>,
    /// How each container was stopped, and what it has logged, by its name.
    pub stops: HashMap<String, Vec<StopCall>>,
    pub logs: HashMap<String, Vec<WorkloadLine>>,
    /// When the deletion was requested, ns of CLOCK_BOOTTIME.
    pub deleted: Option<u64>,
    /// How many records the agent has counted as lost.
    pub lost: f64,
}

/// One line of the workload's log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct WorkloadLine {
    /// `start`, `term` (the stop signal was taken), `called` (the apiserver has answered), `exit` (about to exit).
    pub event: String,
    /// CLOCK_BOOTTIME, ns.
    pub boot_ns: u64,
    /// Its pid in its own namespace: 1 is the container's init.
    pub pid: u32,
}

/// The workload's lines of a log in the CRI's format: `<time> stdout F <text>`. Anything else is skipped.
fn lines(log: &Path) -> Vec<WorkloadLine> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let texts = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    texts.filter_map(|text| serde_json::from_str(text).ok()).collect()
}

impl<'a> Playing<'a> {
    /// Makes the scenario's pod, if it has one, and waits until it runs.
    pub async fn begin(scenario: &'a Scenario, lab: &'a Lab) -> Result<Self> {
        if scenario.never_starts() {
            lab.containerd.lock().await.set_network(scenario.name, false)?;
        }
        let pod = if scenario.has_pod() {
            let pod = scenario.pod(NODE);
            let pod = match scenario.is_static() {
                true => lab.driver().add_static(&pod),
                false => lab.create(&pod)?,
            };
            PodId::of(&pod).context("the pod has no UID")?
        } else {
            let uid = uuid::Uuid::new_v4().to_string();
            PodId { namespace: NAMESPACE.into(), name: scenario.name.into(), uid }
        };
        let mut playing = Self {
            scenario,
            lab,
            names: [pod.uid.clone()].into(),
            pod,
            removed: BTreeMap::new(),
            made: Vec::new(),
            first: HashMap::new(),
            clients: Vec::new(),
        };
        if scenario.has_pod() {
            playing.until_it_runs().await?;
            playing.connect_clients().await?;
        }
        Ok(playing)
    }

    /// Until its containers are ready to be signalled, by their own logs.
    async fn until_it_runs(&mut self) -> Result<()> {
        let waits_for_hook =
            self.scenario.steps.first().is_some_and(|one| one.when == When::PostStart);
        let never_starts = self.scenario.never_starts();
        self.happens("the pod runs", |of| {
            let status = of.object().and_then(|pod| pod.status).unwrap_or_default();
            let has_failed = status.reason.as_deref() == Some(START_FAILED);
            if has_failed && !never_starts {
                bail!("the pod did not start: {}", status.message.unwrap_or_default());
            }
            let runs = !matches!(status.phase.as_deref(), None | Some("Pending"));
            Ok(waits_for_hook || if never_starts { has_failed } else { runs })
        })
        .await?;
        if never_starts {
            return Ok(());
        }
        for container in self.scenario.containers() {
            let log = self.lab.log(&self.pod, container);
            self.happens(&format!("{container} is ready to be signalled"), |_| {
                Ok(lines(&log).iter().any(|line| line.event == "start"))
            })
            .await?;
        }
        let Some(pod) = self.object() else { return Ok(()) };
        let ids =
            self.scenario.containers().filter_map(|name| Some((name, container_id(&pod, name)?)));
        self.first = ids.collect();
        Ok(())
    }

    /// Starts its clients, and waits until each is where its habit leads to.
    async fn connect_clients(&mut self) -> Result<()> {
        for crowd in &self.scenario.clients {
            let status = self.object().and_then(|pod| pod.status).context("the pod is gone")?;
            let ips = status.pod_ips.into_iter().flatten().filter_map(|ip| ip.ip.parse().ok());
            let mut own = ips.filter(|ip: &IpAddr| ip.is_ipv6() == crowd.over_v6);
            let to = SocketAddr::new(own.next().context("the pod has no such address")?, PORT);
            let from = match crowd.from {
                Origin::Elsewhere => self.lab.other_node().await?,
                Origin::Node => self.lab.node_network(),
            };
            let clients = Clients::start(from, to, crowd.load.clone())?;
            clients.settled().await?;
            let pod = self.lab.network(&self.pod.uid).await?.context("the pod has no network")?;
            self.happens("the server has read all", |_| {
                // Connections that arrive are never done.
                Ok(crowd.load.arrives || pod.unread(PORT)? == 0)
            })
            .await?;
            self.clients.push((crowd, clients));
        }
        Ok(())
    }

    /// Does what is to be done, each step in its time.
    pub async fn act(&mut self, agent: &AgentMonitor) -> Result<()> {
        for step in &self.scenario.steps {
            match step.when {
                When::After(time) => tokio::time::sleep(time).await,
                When::PostStart => {
                    self.happens("the postStart hook runs", |of| {
                        let group = of.object().map(|pod| of.lab.cgroup(&pod));
                        Ok(group.is_some_and(|group| of.lab.cgroups.has_second_process(&group)))
                    })
                    .await?;
                }
                When::Handled(container) => {
                    self.happens("the stop signal is handled", |of| Ok(of.has_handled(container)))
                        .await?;
                }
                When::Again(container) => {
                    let log = self.pod.log(&self.lab.logs(), container, 1);
                    self.happens("the container runs again", |of| {
                        let pod = of.object().context("the pod is gone")?;
                        let status = container_status(&pod, container).context("no status")?;
                        let is_ready = lines(&log).iter().any(|line| line.event == "start");
                        Ok(status.restart_count == 1 && is_ready)
                    })
                    .await?;
                }
                When::Leaked(class) => self.leaked(class, agent).await?,
            }
            self.perform(step.act, agent).await.with_context(|| format!("{:?}", step.act))?;
        }
        Ok(())
    }

    async fn perform(&mut self, act: Action, agent: &AgentMonitor) -> Result<()> {
        let (lab, name) = (self.lab, self.pod.name.clone());
        let name = name.as_str();
        let object = || lab.pod(NAMESPACE, name).context("the pod's object is gone");
        match act {
            Action::Wait => {}
            Action::Delete { grace } => {
                self.audited(agent).await?;
                lab.delete(NAMESPACE, name, grace)?;
                if self.clients.iter().any(|(crowd, _)| !crowd.lag.is_zero()) {
                    self.happens("the pod's stop begins", |of| Ok(of.is_being_stopped())).await?;
                }
                self.clients.iter().for_each(|(crowd, all)| all.stop_arriving_after(crowd.lag));
            }
            Action::Kill { container, signal } => lab.kill(&object()?, container, signal)?,
            Action::Restart { container, image, event } => {
                if let Some(image) = image {
                    lab.set_image(NAMESPACE, name, container, image)?;
                }
                lab.driver().restart(&self.pod.uid, container, event);
            }
            Action::RemoveManifest => lab.driver().remove_static(&self.pod.uid),
            Action::KillRuntime => lab.containerd.lock().await.kill().await?,
            Action::StartRuntime => lab.containerd.lock().await.restart().await?,
            Action::HangRuntime => lab.containerd.lock().await.set_hung(true)?,
            Action::ResumeRuntime => lab.containerd.lock().await.set_hung(false)?,
            Action::StopApiserver => lab.set_apiserver(false),
            Action::StartApiserver => lab.set_apiserver(true),
            Action::RestartAgent(flags) => agent.restart(flags).await?,
            Action::PauseAgent => agent.of_agent(|agent| agent.signal(Signal::STOP)).await??,
            Action::FillRings { container } => {
                let id = container_id(&object()?, container).context("no container")?;
                lab.cgroups.freeze_often(&lab.cgroup(&object()?), &id).await?;
            }
            Action::ResumeAgent => agent.of_agent(|agent| agent.signal(Signal::CONT)).await??,
            Action::Leave(what) => {
                let made = lab.leave(what, &self.pod).await?;
                made.into_iter().for_each(|made| self.note_made(made));
            }
            Action::LoseBundles => self.note_made(lab.lose_bundles(&self.pod).await?),
            Action::RemoveSandboxes => {
                self.note_leaks(&agent.reports().borrow());
                lab.remove_sandboxes(&self.pod.uid).await?;
            }
            Action::RemoveFinalizers => lab.remove_finalizers(NAMESPACE, name)?,
            Action::Freeze { container } => {
                self.made.push(lab.freeze(&object()?, container).await?)
            }
            Action::Thaw => self.undo().await?,
            Action::BreakNetwork => lab.containerd.lock().await.set_network(name, false)?,
            Action::MendNetwork => lab.containerd.lock().await.set_network(name, true)?,
        }
        Ok(())
    }

    /// Waits until each container of the pod is audited, unless something is done to the node, or they do not run yet.
    async fn audited(&self, agent: &AgentMonitor) -> Result<()> {
        let starts = self.scenario.steps.first().is_some_and(|one| one.when == When::PostStart);
        let frozen = self.scenario.steps.iter().any(|one| matches!(one.act, Action::Freeze { .. }));
        let pod = self.object().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let Some(pod) = pod.filter(|_| !self.scenario.alone && !starts && !frozen) else {
            return Ok(());
        };
        let ids = self.scenario.containers().filter_map(|name| container_id(&pod, name));
        let ids: Vec<String> = ids.collect();
        let has_all = |now: &AgentReports| ids.iter().all(|id| now.audits.contains_key(id));
        agent.wait("the agent has audited the containers", has_all).await
    }

    /// Waits for all that is reported of the pod, and of its leaks if the scenario is about them.
    pub async fn account(&mut self, agent: &AgentMonitor) -> Result<Account> {
        let expected = &self.scenario.expected;
        let (uid, limit) = (&self.pod.uid, wait::LIMIT + ANSWERS * self.lab.delay);
        let mut reports = agent.reports();
        if expected.terminates {
            let is_reported = reports.wait_for(|now| now.pods.contains_key(uid));
            wait::event_within(limit, "the agent's report", is_reported).await??;
        }
        // The counts of connections may come later than all else. A report that is not final by then is compared as it is.
        if expected.traffic.is_some() || !self.lab.delay.is_zero() {
            let is_final =
                reports.wait_for(|now| now.pods.get(uid).is_none_or(|all| all[0].is_final));
            let _ = wait::event_within(limit, "the report is final", is_final).await;
        }
        if self.scenario.watched {
            self.watch_leaks(agent).await?;
        }
        let mut account =
            Account { deleted: self.lab.deleted_at(&self.pod.uid), ..Account::default() };
        for (crowd, clients) in self.clients.drain(..) {
            account.clients.push((crowd.from, clients.finish().await?));
        }
        let names = self.scenario.containers();
        account.logs =
            names.map(|name| (name.into(), lines(&self.lab.log(&self.pod, name)))).collect();
        account.lost = match agent.http() {
            Some(http) if expected.loses => http.metric("coroner_evidence_lost_total", "").await?,
            _ => 0.0,
        };
        let now = reports.borrow();
        account.termination = now.pods.get(uid).and_then(|all| all.first().cloned());
        let of_it: &[ContainerDeath] =
            account.termination.as_ref().map_or(&[], |report| &report.containers);
        let deaths = now.deaths.get(uid).into_iter().flatten().rev().cloned();
        (account.first, account.earlier) =
            deaths.partition(|death| of_it.iter().any(|own| own.id == death.id));
        let record = self.lab.driver().record();
        let stops = of_it.iter().map(|death| (death.name.clone(), record.of(death.id.as_str())));
        account.stops = stops.collect();
        account.leaks = self.own_leaks(&now).cloned().collect();
        let audits = now.audits.values().filter(|audit| audit.pod.uid.as_str() == uid);
        account.audits = audits.cloned().collect();
        Ok(account)
    }

    /// Waits for the leaks that are expected, or until nothing has come.
    async fn watch_leaks(&self, agent: &AgentMonitor) -> Result<()> {
        let expected = &self.scenario.expected.leaks;
        if !expected.is_empty() {
            let all = agent.wait("all leaks are reported", |now| {
                let classes: Vec<LeakClass> = self.own_leaks(now).map(|leak| leak.class).collect();
                expected.iter().all(|leak| classes.contains(&leak.class))
            });
            // What has not come by then is a disagreement.
            let _ = all.await;
            return Ok(());
        }
        // By the agent's own count of the time in which it could detect leaks, which stands still where the machine does.
        agent.detects().await?;
        let enough = agent.reports().borrow().watched + (THRESHOLD + QUIET).as_secs();
        agent.wait("the agent goes on detecting", |now| now.watched >= enough).await
    }

    /// What the agent has reported of the scenario's leaks. Of what was removed meanwhile it is what was reported before:
    /// a sandbox goes step by step, and has another class between two of them.
    fn own_leaks<'b>(&'b self, reports: &'b AgentReports) -> impl Iterator<Item = &'b Leak> {
        let own = reports.ever.values().filter(|leak| self.owns(leak) && !self.is_late(leak));
        own.map(|leak| self.removed.get(&leak.key).unwrap_or(leak))
    }

    pub fn owns(&self, leak: &Leak) -> bool {
        let own = |name: &str| self.names.contains(name);
        leak.pod.as_ref().is_some_and(|pod| own(pod.uid.as_str()))
            || match &leak.key {
                LeakKey::Sandbox { id } => own(id.as_str()),
                LeakKey::Shim { id, .. } => own(id),
                LeakKey::Netns { name, .. } => own(name),
                LeakKey::PodCgroup { pod: uid, .. } | LeakKey::Pod { uid } => own(uid.as_str()),
            }
    }

    /// The driver itself took so long for the removal that the report is right.
    fn is_late(&self, leak: &Leak) -> bool {
        let is_expected = self.scenario.expected.leaks.iter().any(|one| one.class == leak.class);
        let took = self.lab.driver().removal(&self.pod.uid).unwrap_or_default();
        !is_expected && took >= THRESHOLD - QUIET
    }

    /// Removes all that is left of the scenario, and waits until the agent reports no leak of it.
    pub async fn clear(&mut self, agent: &AgentMonitor) -> Result<()> {
        let (lab, uid) = (self.lab, self.pod.uid.clone());
        // A scenario that failed half-way may not have undone its fault.
        if self.scenario.alone {
            lab.set_apiserver(true);
            let mut containerd = lab.containerd.lock().await;
            containerd.set_hung(false)?;
            if !containerd.runs() {
                containerd.restart().await?;
            }
            drop(containerd);
            let _ = agent.of_agent(|agent| agent.signal(Signal::CONT)).await;
        }
        lab.containerd.lock().await.set_network(&self.pod.name, true)?;
        self.undo().await?;
        if self.scenario.is_static() {
            lab.driver().remove_static(&uid);
        } else if self.object().is_some() {
            lab.remove_finalizers(NAMESPACE, &self.pod.name)?;
            // It may be gone with them.
            let _ = lab.delete(NAMESPACE, &self.pod.name, Some(1));
        }
        self.happens("the object is gone", |of| Ok(of.object().is_none())).await?;
        if self.scenario.watched {
            lab.remove_sandboxes(&uid).await?;
            lab.cgroups.remove(&lab.cgroups.pod("besteffort", &uid)).await?;
            let is_resolved = |now: &AgentReports| !now.leaks.values().any(|leak| self.owns(leak));
            agent.wait("the agent reports no leak any more", is_resolved).await?;
        }
        Ok(())
    }

    /// Waits until the agent reports a leak of the scenario's.
    async fn leaked(&self, class: LeakClass, agent: &AgentMonitor) -> Result<()> {
        let is_it = |leak: &Leak| leak.class == class && self.owns(leak);
        agent.wait(&format!("the agent reports {class}"), |now| now.leaks.values().any(is_it)).await
    }

    fn note_leaks(&mut self, reports: &AgentReports) {
        let own = reports.leaks.values().filter(|leak| self.owns(leak));
        let own: BTreeMap<_, _> = own.map(|leak| (leak.key.clone(), leak.clone())).collect();
        self.removed.extend(own);
    }

    fn note_made(&mut self, made: Made) {
        self.names.extend(made.names());
        self.made.push(made);
    }

    async fn undo(&mut self) -> Result<()> {
        for made in self.made.drain(..) {
            self.lab.undo(made).await?;
        }
        Ok(())
    }

    /// The object, if it exists; of a static pod its mirror.
    fn object(&self) -> Option<Pod> {
        self.lab.pod(NAMESPACE, &self.pod.name)
    }

    /// A preStop hook runs, or the stop signal has arrived: however late the driver is, and the runtime.
    fn is_being_stopped(&self) -> bool {
        self.first.iter().any(|(name, id)| {
            let stops = self.lab.driver().record().of(id);
            stops.iter().any(|stop| stop.hook_began.is_some() || stop.done.is_some())
                || self.has_handled(name)
        })
    }

    /// By the workload's own record.
    fn has_handled(&self, container: &str) -> bool {
        let log = self.lab.log(&self.pod, container);
        lines(&log).iter().any(|line| line.event == "term")
    }

    async fn happens(
        &self,
        what: &str,
        mut holds: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        wait::until(what, || Ok(holds(self)?.then_some(()))).await
    }
}
