//! Runtime, apiserver and host, observed without the kernel side: for `leaks --standalone` and `doctor`.

use crate::{
    config::StandaloneConfig,
    linux::clock,
    sources::{cri, host, kube, tasks::Adapters},
    store::{health::Health, leaks::LeakStore},
};
use coroner_core::{
    engine::{Engine, Settings},
    ids::PodRef,
    input::{CriEvent, HostEvent, HostSurvey, Input, Received},
    output::{CriRequest, Report, Request},
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval},
};

const INPUTS: usize = 8192;
/// Capacity of an adapter's request queue. A dropped request is made again.
const REQUESTS: usize = 1024;
const TICK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(20);

/// The engine with the agent's adapters of runtime, apiserver and host.
pub(super) struct Observer {
    pub(super) engine: Engine,
    pub(super) store: LeakStore,
    pub(super) health: Health,
    pub(super) survey: Option<HostSurvey>,
    inputs: mpsc::Receiver<Received>,
    cri: mpsc::Sender<CriRequest>,
    host: mpsc::Sender<host::Runtime>,
    api: mpsc::Sender<Vec<PodRef>>,
    adapters: Adapters,
    ticks: Interval,
}

impl Observer {
    pub(super) fn start(
        mut look: StandaloneConfig,
        cgroup_root: PathBuf,
        mut health: Health,
    ) -> Self {
        let (to, inputs) = mpsc::channel(INPUTS);
        let (cri, from_cri) = mpsc::channel(REQUESTS);
        let (host, from_host) = mpsc::channel(REQUESTS);
        let (api, from_api) = mpsc::channel(REQUESTS);
        let threshold = look.threshold;
        // Several lists and surveys per threshold, so that no candidate is confirmed by one from before its time.
        look.cri.idle = look.cri.idle.min(threshold / 4);
        look.cri.timeout = SILENCE;
        let defaults = host::HostOptions::new(&look.cri.host_root, &cgroup_root);
        let surveys = host::HostOptions {
            socket: Arc::clone(&look.cri.dialed),
            kubelet: look.kubelet,
            every: defaults.every.min(threshold / 4),
            ..defaults
        };
        // It distinguishes the runtime of this node's pods from others.
        look.cri.cgroup_root = Some(cgroup_root);
        health.asks = true;
        let settings = Settings {
            leak_threshold: threshold,
            uses_api: look.kube.is_some(),
            audit_interval: Duration::ZERO,
            ..Settings::new(clock::anchor())
        };
        let mut adapters = Adapters::default();
        let boot_id = host::boot_id(&look.cri.host_root);
        adapters.spawn("cri", cri::run(look.cri, to.clone(), from_cri));
        adapters.spawn("host", host::run(surveys, to.clone(), from_host));
        if let Some(mut kube) = look.kube {
            kube.own_boot_id = boot_id;
            adapters.spawn("api", kube::run(kube, to, from_api));
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (engine, store) = (Engine::new(settings), LeakStore::new(threshold));
        Self { engine, store, health, survey: None, inputs, cri, host, api, adapters, ticks }
    }

    /// Takes the next input, or a tick, and then returns true. An error: an adapter failed.
    pub(super) async fn step(&mut self) -> anyhow::Result<bool> {
        let received = tokio::select! {
            biased;
            error = self.adapters.failure() => return Err(error),
            _ = self.ticks.tick() => Received { at: clock::boot_now(), input: Input::Tick },
            Some(received) = self.inputs.recv() => received,
        };
        let is_tick = matches!(received.input, Input::Tick);
        self.take(received);
        let gauges = self.engine.gauges().leaks;
        self.health.detection_state = gauges.detection_state;
        self.store.update_detection(&gauges);
        Ok(is_tick)
    }

    fn take(&mut self, received: Received) {
        self.health.note(&received);
        match &received.input {
            Input::Cri(CriEvent::Connected { process, .. }) => {
                let _ = self.host.try_send(*process);
            }
            Input::Host(HostEvent::Survey(survey)) => self.survey = Some(survey.clone()),
            _ => {}
        }
        let outputs = self.engine.step(received);
        for request in outputs.requests {
            match request {
                // Deaths are of no interest here.
                Request::Cri(CriRequest::FindCgroup(_)) => {}
                Request::Cri(request) => drop(self.cri.try_send(request)),
                Request::VerifyPods(pods) => drop(self.api.try_send(pods)),
                Request::ListEvents(_)
                | Request::TraceSignal { .. }
                | Request::WatchCgroup { .. }
                | Request::InspectProcesses(_)
                | Request::ReadStopState(_)
                | Request::Traffic(_) => {}
            }
        }
        for report in outputs.reports {
            match report {
                Report::LeakOpened(leak) | Report::LeakChanged(leak) => self.store.put(leak),
                Report::LeakResolved(leak) => self.store.remove(leak),
                _ => {}
            }
        }
    }
}
