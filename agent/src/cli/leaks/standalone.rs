//! A list without an agent: the engine runs for `--for` without the kernel side, and with that as its threshold.

use super::LeaksAnswer;
use crate::{
    cli::print_note,
    config::StandaloneConfig,
    linux::clock,
    outputs::report::{LeakList, span},
    sources::{cri, host, kernel, kube, tasks::Adapters},
    store::{health::Health, leaks::LeakStore},
};
use anyhow::bail;
use coroner_core::{
    engine::{Engine, Settings},
    ids::PodRef,
    input::{CriEvent, HostEvent, HostSurvey, Input, Received},
    leak::DetectionState,
    output::{CriRequest, Report, Request},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

/// Capacity of the engine's input queue; when it is full, the adapters wait.
const INPUTS: usize = 8192;
/// Capacity of an adapter's request queue. A dropped request is made again.
const REQUESTS: usize = 1024;
/// The engine's ticks.
const TICK: Duration = Duration::from_secs(1);
/// Timeout of a call to the runtime. Shorter than [`OUTAGE`], so that a silent runtime is reported.
const SILENCE: Duration = Duration::from_secs(20);
/// Maximum outage of a source: longer than a survey of a host of which parts hang, 20 s.
const OUTAGE: Duration = Duration::from_secs(30);
/// What is found this late, because its status or the apiserver had to be asked, was still observed for all of the time.
const LAG: Duration = Duration::from_secs(3);
/// How much longer than the threshold to wait for what confirms a candidate that was observed for all of it: the
/// apiserver's answer, and a survey that began after it.
const LATE: Duration = Duration::from_secs(30);

/// Observes the node, and returns the leaks and the candidates.
pub(super) async fn observe(
    look: StandaloneConfig,
    namespace: Option<&str>,
) -> anyhow::Result<LeaksAnswer> {
    let threshold = look.threshold;
    print_note(&format!(
        "observing node {} for {}, without an agent",
        look.kube.node,
        span(threshold.as_secs())
    ));
    let (mut node, mut adapters, mut inputs) = Node::start(look)?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut in_sync = Instant::now();
    loop {
        tokio::select! {
            biased;
            error = adapters.failure() => return Err(error),
            _ = ticks.tick() => {}
            Some(received) = inputs.recv() => {
                node.take(received);
                continue;
            }
        }
        let now = clock::boot_now();
        node.take(Received { at: now, input: Input::Tick });
        let gauges = node.engine.gauges().leaks;
        node.health.set_detection_state(gauges.detection_state);
        node.store.update_progress(&gauges);
        match gauges.detection_state {
            DetectionState::Possible => in_sync = Instant::now(),
            state => {
                let is_wrong =
                    matches!(state, DetectionState::NodeMissing | DetectionState::NodeForeign);
                if is_wrong || in_sync.elapsed() >= OUTAGE {
                    let why = node.health.suspension(now);
                    bail!("leak detection is suspended on node {}: {why}", node.name);
                }
                continue;
            }
        }
        let waits = || {
            let all_of_it = threshold.saturating_sub(LAG);
            !node.engine.leak_candidates(now, all_of_it).is_empty()
        };
        if gauges.watched >= threshold + LATE || (gauges.watched >= threshold && !waits()) {
            break;
        }
    }
    let unreadable = node.survey.as_ref().map_or_else(Vec::new, unreadable_parts);
    if !unreadable.is_empty() {
        print_note(&format!(
            "could not read: {}; leaks there are not reported. Run as root on the host or set \
             --host-root (--log-level warn shows the cause)",
            unreadable.join(", ")
        ));
    }
    let mut candidates = node.engine.leak_candidates(clock::boot_now(), Duration::ZERO);
    candidates.sort_by_key(crate::store::leaks::since);
    let candidates = candidates.into_iter().map(Arc::new).collect();
    let list = LeakList { node: node.name, ..LeakList::from(&node.store) };
    Ok(LeaksAnswer::new(list, candidates, true, namespace))
}

/// The engine with the agent's adapters of runtime, host and apiserver.
struct Node {
    name: String,
    engine: Engine,
    store: LeakStore,
    health: Health,
    survey: Option<HostSurvey>,
    cri: mpsc::Sender<CriRequest>,
    host: mpsc::Sender<host::RuntimeConnected>,
    api: mpsc::Sender<Vec<PodRef>>,
}

impl Node {
    fn start(
        mut look: StandaloneConfig,
    ) -> anyhow::Result<(Self, Adapters, mpsc::Receiver<Received>)> {
        let (to, inputs) = mpsc::channel(INPUTS);
        let (cri, from_cri) = mpsc::channel(REQUESTS);
        let (host, from_host) = mpsc::channel(REQUESTS);
        let (api, from_api) = mpsc::channel(REQUESTS);
        let threshold = look.threshold;
        let settings = Settings { leak_threshold: threshold, ..Settings::new(clock::anchor()) };
        let cgroup_root = kernel::hierarchy(look.cgroup_root.as_deref())?.root;
        // Several lists and surveys per threshold, so that no candidate is confirmed by one from before its time.
        look.cri.idle = look.cri.idle.min(threshold / 4);
        look.cri.timeout = SILENCE;
        look.cri.cgroup_root = Some(cgroup_root.clone());
        let defaults = host::HostOptions::new(&look.cri.host_root, &cgroup_root);
        let surveys = host::HostOptions {
            socket: Arc::clone(&look.cri.dialed),
            kubelet: look.kubelet,
            every: defaults.every.min(threshold / 4),
            ..defaults
        };
        look.kube.own_boot_id = host::boot_id(&look.cri.host_root);
        let node = Self {
            name: look.kube.node.clone(),
            engine: Engine::new(settings),
            store: LeakStore::new(threshold),
            health: Health::without_kernel(clock::boot_now()),
            survey: None,
            cri,
            host,
            api,
        };
        let mut adapters = Adapters::default();
        adapters.spawn("cri", cri::run(look.cri, to.clone(), from_cri));
        adapters.spawn("host", host::run(surveys, to.clone(), from_host));
        adapters.spawn("api", kube::run(look.kube, to, from_api));
        Ok((node, adapters, inputs))
    }

    fn take(&mut self, received: Received) {
        self.health.note(&received);
        match &received.input {
            Input::Cri(CriEvent::Connected { process, .. }) => {
                let _ = self.host.try_send(host::RuntimeConnected(*process));
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
                | Request::Traffic(_) => {}
            }
        }
        for report in outputs.reports {
            match report {
                Report::LeakOpened(leak) | Report::LeakChanged(leak) => self.store.put(leak),
                Report::LeakResolved(leak) => self.store.remove(&leak.key),
                _ => {}
            }
        }
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
    .filter_map(|(what, is_unreadable)| is_unreadable.then_some(what))
    .collect()
}
