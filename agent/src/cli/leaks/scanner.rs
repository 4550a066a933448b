//! Runs the agent's adapters and engine without the kernel side, for a standalone scan.

use crate::outputs::report::LeakList;
use crate::{
    config::StandaloneConfig,
    linux::clock,
    sources::{
        cri, host,
        kernel::{self, HierarchyError},
        kube,
        tasks::Adapters,
    },
    store::{health::Health, leaks::LeakStore},
};
use coroner_core::{
    engine::{Engine, Settings},
    ids::PodRef,
    input::{CriEvent, HostEvent, HostSurvey, Input, Received},
    leak::{DetectionState, Leak},
    leaks::LeakGauges,
    output::{CriRequest, Report, Request},
    time::BootTime,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval},
};

/// Capacity of the engine's input queue; when it is full, the adapters wait.
const INPUTS: usize = 8192;
/// Capacity of an adapter's request queue. A dropped request is made again.
const REQUESTS: usize = 1024;
/// The engine's ticks.
const TICK: Duration = Duration::from_secs(1);
/// Timeout of a call to the runtime. Shorter than a scan (30 s), so that a silent runtime is reported.
const SILENCE: Duration = Duration::from_secs(20);
/// When no sandbox status was requested for this time, all have been.
const QUIET: Duration = Duration::from_secs(3);

/// Scans runtime, apiserver and host.
pub(super) struct StandaloneScanner {
    engine: Engine,
    store: LeakStore,
    health: Health,
    node: String,
    survey: Option<HostSurvey>,
    /// When a sandbox status was last requested.
    asked: BootTime,
    inputs: mpsc::Receiver<Received>,
    cri: mpsc::Sender<CriRequest>,
    host: mpsc::Sender<host::RuntimeConnected>,
    api: mpsc::Sender<Vec<PodRef>>,
    adapters: Adapters,
    ticks: Interval,
}

impl StandaloneScanner {
    /// Starts the adapters. `threshold` and `idle` (time between lists of the runtime) may be
    /// others than the agent's. An error: there is no hierarchy that has the pods.
    pub(super) fn start(
        mut look: StandaloneConfig,
        threshold: Duration,
        idle: Duration,
    ) -> Result<Self, HierarchyError> {
        let (to, inputs) = mpsc::channel(INPUTS);
        let (cri_requests, from_cri) = mpsc::channel(REQUESTS);
        let (host_requests, from_host) = mpsc::channel(REQUESTS);
        let (api_requests, from_api) = mpsc::channel(REQUESTS);
        let settings = Settings { leak_threshold: threshold, ..Settings::new(clock::anchor()) };
        let cgroup_root = kernel::hierarchy(look.cgroup_root.as_deref())?.root;
        look.cri.idle = idle;
        look.cri.timeout = SILENCE;
        look.cri.cgroup_root = Some(cgroup_root.clone());
        let host = host::HostOptions {
            socket: Arc::clone(&look.cri.dialed),
            kubelet: look.kubelet,
            ..host::HostOptions::new(&look.cri.host_root, &cgroup_root)
        };
        look.kube.own_boot_id = host::boot_id(&look.cri.host_root);
        let node = look.kube.node.clone();
        let now = clock::boot_now();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut adapters = Adapters::default();
        adapters.spawn("cri", cri::run(look.cri, to.clone(), from_cri));
        adapters.spawn("host", host::run(host, to.clone(), from_host));
        adapters.spawn("api", kube::run(look.kube, to, from_api));
        Ok(Self {
            engine: Engine::new(settings),
            store: LeakStore::new(threshold),
            health: Health::without_kernel(now),
            node,
            survey: None,
            asked: now,
            inputs,
            cri: cri_requests,
            host: host_requests,
            api: api_requests,
            adapters,
            ticks,
        })
    }

    /// Handles inputs until the next tick. An error: an adapter failed.
    pub(super) async fn tick(&mut self) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                biased;
                error = self.adapters.failure() => return Err(error),
                _ = self.ticks.tick() => break,
                Some(received) = self.inputs.recv() => self.take(received),
            }
        }
        let at = clock::boot_now();
        self.take(Received { at, input: Input::Tick });
        let gauges = self.gauges();
        self.health.set_detection_state(gauges.detection_state);
        self.store.update_progress(&gauges);
        Ok(())
    }

    fn take(&mut self, received: Received) {
        self.health.note(&received);
        let at = received.at;
        match &received.input {
            Input::Cri(CriEvent::Connected { process, .. }) => {
                let _ = self.host.try_send(host::RuntimeConnected(*process));
            }
            Input::Host(HostEvent::Survey(survey)) => {
                self.survey = Some(survey.clone());
            }
            _ => {}
        }
        let outputs = self.engine.step(received);
        for request in outputs.requests {
            // A dropped request is made again later. Deaths are of no interest here.
            match request {
                Request::Cri(CriRequest::FindCgroup(_)) => {}
                Request::Cri(request) => {
                    if matches!(request, CriRequest::SandboxStatus(_)) {
                        self.asked = at;
                    }
                    drop(self.cri.try_send(request));
                }
                Request::VerifyPods(pods) => drop(self.api.try_send(pods)),
                Request::ListEvents(_)
                | Request::TraceSignal { .. }
                | Request::WatchCgroup { .. }
                | Request::InspectProcesses(_)
                | Request::Traffic(_) => {}
            }
        }
        outputs.reports.into_iter().for_each(|report| self.apply(report));
    }

    fn apply(&mut self, report: Report) {
        match report {
            Report::LeakOpened(leak) | Report::LeakChanged(leak) => {
                self.store.put(leak);
            }
            Report::LeakResolved(leak) => self.store.remove(&leak.key),
            _ => {}
        }
    }

    pub(super) fn gauges(&self) -> LeakGauges {
        self.engine.gauges().leaks
    }

    /// The confirmed leaks.
    pub(super) fn list(&self) -> LeakList {
        let suspension = self.health.suspension(clock::boot_now());
        LeakList { node: self.node.clone(), suspension, ..LeakList::from(&self.store) }
    }

    /// Candidates that have been observed for `at_least`, oldest first.
    pub(super) fn candidates(&self, at_least: Duration) -> Vec<Arc<Leak>> {
        let mut all = self.engine.leak_candidates(clock::boot_now(), at_least);
        all.sort_by_key(crate::store::leaks::since);
        all.into_iter().map(Arc::new).collect()
    }

    /// The host was surveyed, and all needed sandbox statuses were requested.
    pub(super) fn is_scan_complete(&self) -> bool {
        self.survey.is_some() && clock::boot_now().since(self.asked) >= QUIET
    }

    /// Parts of the host that could not be read.
    pub(super) fn unreadable_parts(&self) -> Vec<&'static str> {
        self.survey.as_ref().map_or_else(|| vec!["the host"], unreadable_parts)
    }

    /// Why leak detection is suspended, and the remedy.
    pub(super) fn suspension_reason(&self) -> String {
        let why = self.health.suspension(clock::boot_now());
        format!("leak detection is suspended on node {}: {why}", self.node)
    }

    /// The node's name is wrong, so that waiting does not help.
    pub(super) fn is_misconfigured(&self) -> bool {
        matches!(
            self.gauges().detection_state,
            DetectionState::NodeMissing | DetectionState::NodeForeign
        )
    }
}

fn unreadable_parts(survey: &HostSurvey) -> Vec<&'static str> {
    [
        ("shims", survey.shims.is_none()),
        ("network namespaces", survey.netns.is_none()),
        ("pod cgroups", survey.pod_cgroups.is_none()),
        ("volumes", survey.volumes.is_none()),
    ]
    .into_iter()
    .filter_map(|(what, unreadable_parts)| unreadable_parts.then_some(what))
    .collect()
}
