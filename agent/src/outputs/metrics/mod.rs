//! The metrics: what the world may learn, counted.
//!
//! **Architecture invariant.** Every label is a closed set or bounded; pod identity never is one.

mod catalogue;
mod labels;
mod openmetrics;
mod process;
mod zero_first;

pub use catalogue::{CATALOGUE, MetricEntry, MetricKind, Stability};
use coroner_core::{
    engine::Gauges,
    ids::PodRef,
    input::{
        ApiEvent, ConnectionEvent, CriEvent, Input, Received, TaskState, TrafficPeer, Workload,
    },
    labels,
    leak::{DetectionState, Leak, LeakCause, LeakClass, LeakKey},
    leaks::LeakGauges,
    output::Report,
    report::{ContainerDeath, Finding, PodTermination, REFUSED, StopResponse, Traffic},
    time::WallTime,
    types::{Cause, CauseClass, Change, MilestoneKind, PhaseKind, Verdict},
};
pub use labels::Values;
pub use openmetrics::OPENMETRICS;

use crate::{
    linux::clock,
    outputs::{events, otlp, report},
    sources::{
        cri,
        cut::{Cut, Cuts},
        host, kernel, kube, processes,
    },
    store::{health::Health, history::History},
};
use catalogue::Families;
use openmetrics::{Exemplar, Exemplars};
use parking_lot::Mutex;
use prometheus::{Encoder, IntCounter, IntCounterVec, Registry, TextEncoder};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use zero_first::ZeroFirst;

/// Series of each family by namespace or workload, if `--workload-metrics` does not say.
pub const SERIES: usize = 150;
/// Leaked sandboxes with series of their own.
const LEAK_SERIES: usize = 50;
/// A deletion that takes longer is slow: the usual grace of 30 s, the kubelet's 2 s, and 13 s for the node's own work.
const SLOW: Duration = Duration::from_secs(45);
/// Of a family without labels.
const NONE: &[&str] = &[];
/// The label value of the rest.
const OTHER: &str = "other";

/// Kinds whose objects last, so that their names are few: a run of anything else has a name of its own.
const LASTING: [&str; 6] =
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "CronJob"];

/// SIGKILL ended the container after its stop signal: until then it, its pod and the node waited.
const WAITED_FOR_SIGKILL: [Verdict; 3] =
    [Verdict::StopSignalIgnored, Verdict::StopSignalBlocked, Verdict::GraceExceeded];

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    by_workload: bool,
    /// Runtime and kubelet, as far as they are known.
    versions: Mutex<[String; 2]>,
    /// As what each leak that stands was counted last.
    classes: Mutex<HashMap<LeakKey, LeakClass>>,
    sources: OnceLock<SourceCounters>,
    export: OnceLock<Arc<otlp::ExportCounters>>,
    /// `None`: terminations are not exported, so they have no trace.
    exemplars: Option<Mutex<Exemplars>>,
}

#[derive(Debug, Default)]
pub struct SourceCounters {
    pub kernel: Arc<kernel::KernelCounters>,
    /// The kernel shows refused connections.
    pub shows_refusals: bool,
    pub cri: Arc<cri::CriCounters>,
    pub api: Option<Arc<kube::KubeCounters>>,
    pub proc: Arc<processes::ProcessesCounters>,
    pub host: Arc<host::HostCounters>,
    pub events: Option<Arc<events::EventCounters>>,
    pub history: Option<History>,
}

labels! {
    /// An adapter that the engine asks something of.
    pub enum Adapter {
        Kernel = "kernel",
        Cri = "cri",
        Proc = "proc",
        Host = "host",
        Traffic = "traffic",
        Api = "api",
    }

    pub enum ConnectionEnd {
        /// The process ended in the middle of a request, or with unread data.
        Cut = "cut",
        /// The pod did not accept it.
        Refused = "refused",
        /// The client opened it after the stop signal.
        Late = "late",
    }

    pub enum DropReason {
        /// As many as allowed were open.
        NoRoom = "no_room",
        /// It was open for as long as a connection may be, with an answer that was not read.
        TooLong = "too_long",
    }
}

impl Metrics {
    /// Registers the catalogue. Fails only if the catalogue itself is wrong.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let families = Families::register(&registry)?;
        let metrics = Self {
            registry,
            families,
            by_workload: true,
            versions: Mutex::default(),
            classes: Mutex::default(),
            sources: OnceLock::new(),
            export: OnceLock::new(),
            exemplars: None,
        };
        metrics.initialise();
        Ok(metrics.with_workloads(SERIES))
    }

    /// With at most so many series in each family by workload; 0: by namespace only.
    pub fn with_workloads(self, series: usize) -> Self {
        let of = &self.families;
        for family in [&of.container_deaths, &of.sigkill_wait, &of.connections, &of.deletions] {
            family.bound(if series == 0 { SERIES } else { series });
        }
        Self { by_workload: series > 0, ..self }
    }

    /// With the trace of the last termination in each bucket, for OpenMetrics.
    pub fn with_exemplars(self) -> Self {
        Self { exemplars: Some(Mutex::default()), ..self }
    }

    /// Adds this process' own memory, CPU and file descriptors.
    pub fn with_process(self) -> prometheus::Result<Self> {
        self.registry.register(Box::new(process::ProcessMetrics::this()))?;
        Ok(self)
    }

    fn initialise(&self) {
        let of = &self.families;
        for (counter, values) in [
            (&of.evidence_lost, labels::LOSSES),
            (&of.requests_dropped, labels::ADAPTERS),
            (&of.http_dropped, labels::DROPS),
            (&of.history_errors, labels::HISTORY_FAULTS),
        ] {
            for value in values.closed() {
                counter.with_label_values(&[value]);
            }
        }
        for class in labels::CAUSE_CLASSES.closed() {
            of.termination_duration.with_label_values(&[class]);
        }
        for phase in labels::PHASES.closed() {
            of.phase_seconds.with_label_values(&[phase]);
        }
        of.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    }

    /// The adapters have started: their counters are read at each scrape.
    pub fn watch(&self, sources: SourceCounters) {
        // A second call would be a second set of adapters: the first one's counters stay.
        let _ = self.sources.set(sources);
        self.node_info(|_| {});
    }

    /// The exporter has started, as `watch`.
    pub fn watch_export(&self, counters: Arc<otlp::ExportCounters>) {
        let _ = self.export.set(counters);
    }

    fn node_info(&self, learn: impl FnOnce(&mut [String; 2])) {
        let mut versions = self.versions.lock();
        learn(&mut versions);
        let uname = rustix::system::uname();
        let kernel = uname.release().to_string_lossy();
        let refusals = self.sources.get().is_some_and(|sources| sources.shows_refusals);
        let refusals = if refusals { "true" } else { "false" };
        let info = &self.families.node_info;
        info.reset();
        info.with_label_values(&[&kernel, &*versions[0], &*versions[1], refusals]).set(1.0);
    }

    pub fn input(&self, received: &Received) {
        match &received.input {
            Input::Cri(CriEvent::Connected { runtime, .. }) => {
                self.node_info(|[known, _]| known.clone_from(runtime));
            }
            Input::Api(ApiEvent::Node(node)) => {
                self.node_info(|[_, known]| known.clone_from(&node.kubelet_version));
            }
            _ => {}
        }
    }

    /// The longest in the last minute or two.
    pub fn event_loop_lag(&self, longest: Duration) {
        self.families.event_loop_lag.set(longest.as_secs_f64());
    }

    pub fn engine(&self, gauges: &Gauges) {
        let of = &self.families;
        for (kind, count) in &gauges.losses {
            total(&of.evidence_lost, &[kind.as_str()], *count);
        }
        of.terminating.with_label_values(NONE).set(gauges.terminating as f64);
        for state in TaskState::ALL.iter().filter(|state| **state != TaskState::Zombie) {
            let count = gauges.unkillable.get(state).copied().unwrap_or_default();
            of.unkillable.with_label_values(&[state.as_str()]).set(count as f64);
        }
        self.leaks(&gauges.leaks);
    }

    fn leaks(&self, gauges: &LeakGauges) {
        let of = &self.families;
        let count = |wanted: &dyn Fn(LeakClass, LeakCause) -> bool| -> f64 {
            let counts =
                gauges.reported.iter().filter(|((class, cause), _)| wanted(*class, *cause));
            counts.map(|(_, count)| *count).sum::<usize>() as f64
        };
        for class in LeakClass::ALL {
            let found = count(&|of, _| of == *class);
            match class.orphan() {
                Some(kind) => of.orphans.with_label_values(&[kind]).set(found),
                None if class.is_sandbox() => {
                    of.leaked_sandboxes.with_label_values(&[class.as_str()]).set(found);
                }
                None => {} // by its cause, below
            }
        }
        for cause in LeakCause::ALL {
            let found = count(&|_, of| of == *cause);
            of.leak_causes.with_label_values(&[cause.as_str()]).set(found);
            let stuck = count(&|class, of| class == LeakClass::StuckTerminating && of == *cause);
            of.stuck_terminating.with_label_values(&[cause.as_str()]).set(stuck);
        }
        for state in DetectionState::ALL {
            let on = if gauges.detection_state == *state { 1.0 } else { 0.0 };
            of.leak_detection_state.with_label_values(&[state.as_str()]).set(on);
        }
        of.leaked_ips.with_label_values(NONE).set(gauges.ips as f64);
        set_counter_to(&of.leak_detection_active, gauges.watched.as_secs());
    }

    /// The leaks that are certain have changed: the oldest sandboxes get a series.
    pub fn leaked(&self, leaks: &[Arc<Leak>]) {
        let of = &self.families;
        of.leaked_created.reset();
        of.leaked_observed.reset();
        let sandboxes = leaks.iter().filter_map(|leak| match &leak.key {
            LeakKey::Sandbox { id } => Some((leak, id)),
            _ => None,
        });
        for (leak, id) in sandboxes.take(LEAK_SERIES) {
            let name = |of: fn(&PodRef) -> &str| leak.pod.as_ref().map(of).unwrap_or_default();
            let seconds = |at: WallTime| at.0 as f64 / 1e9;
            of.leaked_observed
                .with_label_values(&[name(|pod| &pod.namespace), id.as_str()])
                .set(seconds(leak.first_observed.time));
            of.leaked_created
                .with_label_values(&[
                    name(|pod| &pod.namespace),
                    name(|pod| &pod.name),
                    name(|pod| pod.uid.as_str()),
                    id.as_str(),
                    leak.class.as_str(),
                    leak.cause.kind.as_str(),
                ])
                .set(seconds(leak.since()));
        }
    }

    /// Containers by namespace and response. Namespaces beyond the bound are counted together, the smallest first.
    pub fn audited(&self, counts: BTreeMap<(String, StopResponse), usize>) {
        let mut largest: Vec<_> = counts.into_iter().collect();
        largest.sort_by_key(|(_, count)| usize::MAX - count);
        let of = &self.families.responses;
        of.reset();
        for (number, ((namespace, response), count)) in largest.into_iter().enumerate() {
            let namespace = if number < SERIES { &namespace } else { OTHER };
            of.with_label_values(&[namespace, response.as_str()]).add(count as f64);
        }
    }

    pub fn request_dropped(&self, to: Adapter) {
        self.families.requests_dropped.with_label_values(&[to.as_str()]).inc();
    }

    pub fn connection_dropped(&self, why: DropReason) {
        self.families.http_dropped.with_label_values(&[why.as_str()]).inc();
    }

    pub fn record(&self, report: &Report) {
        match report {
            Report::CountDeath(death) => self.container(death),
            Report::CountTermination(account) => self.pod(account),
            // The sandbox may be removed by then: no update follows.
            Report::PodTerminated(account) => self.removal(account),
            Report::PodUpdated(account, change) => {
                if *change == Change::SandboxRemoved {
                    self.removal(account);
                }
            }
            Report::ContainerDied(_)
            | Report::Audited(_)
            | Report::AuditOver(_)
            | Report::Unkillable(_) => {}
            Report::LeakOpened(leak) | Report::LeakChanged(leak) => {
                self.leak(leak, Some(leak.class));
            }
            Report::LeakResolved(leak) => self.leak(leak, None),
        }
    }

    /// Counts what a leak is from now on; `None`: gone. Another class counts as gone of the one
    /// and found of the other: found minus gone is what stands, of each class.
    fn leak(&self, leak: &Leak, class: Option<LeakClass>) {
        let mut classes = self.classes.lock();
        let before = match class {
            Some(class) => classes.insert(leak.key.clone(), class),
            None => classes.remove(&leak.key),
        };
        if before == class {
            return;
        }
        if let Some(before) = before {
            self.families.leaks_resolved.add(&[before.as_str()], 1.0);
        }
        if let Some(class) = class {
            self.families.leaks_opened.add(&[class.as_str()], 1.0);
        }
    }

    fn container(&self, death: &ContainerDeath) {
        let of = &self.families;
        let [namespace, kind, name, container] =
            self.labels(death.pod.as_ref(), death.workload.as_ref(), &death.name);
        let verdict = death.verdict.as_str();
        of.container_deaths.add(&[&namespace, &kind, &name, &container, verdict], 1.0);
        count(&of.container_findings, &death.findings);
        for kind in death.findings.iter().filter_map(|f| f.contradiction) {
            of.contradictions.add(&[kind.as_str()], 1.0);
        }
        let times =
            [MilestoneKind::TermSent, MilestoneKind::KillSent].map(|kind| death.milestone(kind));
        if let ([Some(term), Some(kill)], true) =
            (times, WAITED_FOR_SIGKILL.contains(&death.verdict))
        {
            let waited = kill.at.since(term.at).as_secs_f64();
            of.sigkill_wait.add(&[&namespace, &kind, &name], waited);
        }
        if death.truncated {
            return; // its times would be too short by an unknown amount
        }
        if let Some(ratio) = death.grace_ratio {
            of.grace_ratio.observe(ratio);
        }
    }

    /// `pod_namespace`, `workload_type` as kubernetes-mixin has it, `workload` and `pod_container`.
    fn labels(
        &self,
        pod: Option<&PodRef>,
        workload: Option<&Workload>,
        container: &str,
    ) -> [String; 4] {
        let Some(pod) = pod else { return [OTHER; 4].map(str::to_owned) };
        if !self.by_workload {
            return [&*pod.namespace, "", "", ""].map(str::to_owned);
        }
        let is_lasting = |of: &&Workload| LASTING.contains(&&*of.kind);
        let kind = workload.map_or_else(String::new, |of| of.kind.to_lowercase());
        let name = workload.filter(is_lasting).map_or("", |of| &*of.name);
        [pod.namespace.clone(), kind, name.to_owned(), container.to_owned()]
    }

    fn pod(&self, account: &PodTermination) {
        let of = &self.families;
        of.pod_terminations.add(&[account.cause.as_str()], 1.0);
        let class = account.cause.class();
        count(&of.pod_findings, &account.findings);
        let is_job = account.workload.as_ref().is_some_and(Workload::is_job);
        if let Some(traffic) = account.traffic.as_ref().filter(|_| !is_job) {
            self.traffic(account, traffic);
        }
        for phase in account.phases.iter().filter(|_| class.is_some()) {
            // Of a phase whose end was not seen, the rest may be the next one's.
            let lost = if phase.is_exact() { Duration::ZERO } else { phase.uncertainty };
            let add = |kind: PhaseKind, time: Duration| {
                let seconds = time.as_secs_f64();
                of.phase_seconds.with_label_values(&[kind.as_str()]).inc_by(seconds);
            };
            add(phase.kind, phase.took.saturating_sub(lost));
            add(PhaseKind::Unattributed, lost);
        }
        if !account.incomplete.is_empty() {
            of.incomplete.inc();
        }
        if account.truncated || !account.is_exact() || account.cause == Cause::Unknown {
            of.unmeasured.inc();
            return;
        }
        let took = account.took;
        let Some(class) = class else { return };
        of.termination_duration.with_label_values(&[class.as_str()]).observe(took.as_secs_f64());
        self.exemplify(account, class);
        let slow = if took > SLOW { "true" } else { "false" };
        of.deletions.add(&[&account.pod.namespace, slow], 1.0);
    }

    fn exemplify(&self, account: &PodTermination, class: CauseClass) {
        let Some(exemplars) = &self.exemplars else { return };
        let (value, at) = (account.took.as_secs_f64(), account.ended.time.0 as f64 / 1e9);
        let family = "coroner_pod_termination_duration_seconds";
        let series = openmetrics::bucket(family, ("cause_class", class.as_str()), value);
        let exemplar = Exemplar { trace: otlp::trace_id(account), value, at };
        exemplars.lock().insert(series, exemplar);
    }

    fn traffic(&self, account: &PodTermination, traffic: &Traffic) {
        let of = &self.families;
        if traffic.not_visible.is_some() {
            return;
        }
        let [namespace, kind, name, _] =
            self.labels(Some(&account.pod), account.workload.as_ref(), "");
        let clients = |end: ConnectionEnd, events: &[ConnectionEvent]| {
            let count = traffic.sum(&[TrafficPeer::Client], events).count;
            of.connections.add(&[&namespace, &kind, &name, end.as_str()], count as f64);
        };
        clients(ConnectionEnd::Cut, &[ConnectionEvent::Cut]);
        clients(ConnectionEnd::Late, &[ConnectionEvent::OpenedAfterStop]);
        if traffic.sees_refusals && !account.never_listened() {
            clients(ConnectionEnd::Refused, &REFUSED);
        }
        if let Some(lag) = report::endpoint_lag(account) {
            of.endpoint_lag.observe(lag.as_secs_f64());
        }
    }

    /// From the sandbox's stop to its removal, where both are known.
    fn removal(&self, account: &PodTermination) {
        let (Some(stopped), Some(removed)) = (
            account.milestone(MilestoneKind::SandboxStopped),
            account.milestone(MilestoneKind::SandboxRemoved),
        ) else {
            return;
        };
        let took = removed.at.since(stopped.at);
        // Between two idle polls at the best: half of it is still the same bucket or the next.
        if removed.uncertainty.max(stopped.uncertainty) <= took / 2 {
            self.families.removal_duration.observe(took.as_secs_f64());
        }
    }

    /// The longest that a call to the runtime of the last minute or two took, or waits now.
    pub fn slowest_cri_call(&self) -> Duration {
        self.sources.get().map_or(Duration::ZERO, |sources| sources.cri.latency.slowest())
    }

    /// The text of a scrape, with the gauges of this moment. `health` is let go before the text is made: behind its
    /// lock, the event loop would wait for that.
    pub fn scrape(&self, health: impl Deref<Target = Health>) -> prometheus::Result<String> {
        self.refresh(&health);
        drop(health);
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    /// The same as OpenMetrics.
    pub fn scrape_openmetrics(
        &self,
        health: impl Deref<Target = Health>,
    ) -> prometheus::Result<String> {
        let text = self.scrape(health)?;
        let exemplars = self.exemplars.as_ref().map(|all| all.lock().clone()).unwrap_or_default();
        Ok(openmetrics::openmetrics(&text, &exemplars))
    }

    fn refresh(&self, health: &Health) {
        let of = &self.families;
        let flag = |on: bool| if on { 1.0 } else { 0.0 };
        if let Some(connected) = health.cri_connected() {
            of.cri_connected.with_label_values(NONE).set(flag(connected));
        }
        if let Some(in_sync) = health.api_in_sync() {
            of.api_in_sync.with_label_values(NONE).set(flag(in_sync));
        }
        let ready = health.checks(clock::boot_now()).ready;
        of.ready.set(flag(ready));
        of.hook_attached.reset(); // those of a kernel side that failed may not all be its successor's
        for (hook, attached) in health.hooks() {
            of.hook_attached.with_label_values(&[hook]).set(flag(attached));
        }
        if let Some(export) = self.export.get() {
            self.refresh_export(export);
        }
        if let Some(sources) = self.sources.get() {
            for (outcome, count) in sources.events.iter().flat_map(|events| events.all()) {
                total(&of.events, &[outcome], count.load(Relaxed));
            }
            if let Some(history) = &sources.history {
                for (fault, count) in history.faults() {
                    total(&of.history_errors, &[fault.as_str()], count);
                }
                of.history_bytes.with_label_values(NONE).set(history.bytes() as f64);
                if let Some(oldest) = history.oldest() {
                    of.history_oldest.with_label_values(NONE).set(oldest.0 as f64 / 1e9);
                }
            }
            self.refresh_kernel(&sources.kernel);
            let slowest = sources.cri.latency.slowest().as_secs_f64();
            of.cri_slowest_call.with_label_values(NONE).set(slowest);
            self.refresh_source("cri", &sources.cri.errors, &sources.cri.skipped);
            self.refresh_cuts("cri", &sources.cri.truncated);
            total(&of.source_errors, &["proc"], sources.proc.errors.load(Relaxed));
            total(&of.source_errors, &["host"], sources.host.errors.load(Relaxed));
            if let Some(api) = &sources.api {
                self.refresh_source("api", &api.errors, &api.skipped);
                self.refresh_cuts("api", &api.truncated);
            }
        }
    }

    fn refresh_export(&self, export: &otlp::ExportCounters) {
        let of = &self.families;
        for (outcome, count) in export.outcomes() {
            total(&of.exported, &[outcome], count.load(Relaxed));
        }
        for (failure, count) in export.failures() {
            total(&of.export_failures, &[failure.as_str()], count.load(Relaxed));
        }
        of.export_queue.with_label_values(NONE).set(export.queued.load(Relaxed) as f64);
    }

    fn refresh_source(&self, source: &str, errors: &AtomicU64, skipped: &AtomicU64) {
        let of = &self.families;
        total(&of.source_errors, &[source], errors.load(Relaxed));
        total(&of.source_skipped, &[source], skipped.load(Relaxed));
    }

    /// Only what ever was cut has a series: on nearly every node that is nothing.
    fn refresh_cuts(&self, source: &str, cuts: &Cuts) {
        for cut in Cut::ALL.iter().copied().filter(|cut| cuts.of(*cut) > 0) {
            total(&self.families.source_truncated, &[source, cut.as_str()], cuts.of(cut));
        }
    }

    fn refresh_kernel(&self, counters: &kernel::KernelCounters) {
        let of = &self.families;
        set_counter_to(&of.kernel_records, counters.records.load(Relaxed));
        set_counter_to(&of.cgroups_too_deep, counters.too_deep.load(Relaxed));
        let size = counters.ring_bytes.load(Relaxed).max(1) as f64;
        for (ring, used) in
            [("deciding", &counters.deciding_used), ("detail", &counters.detail_used)]
        {
            of.ring_used.with_label_values(&[ring]).set(used.load(Relaxed) as f64 / size);
        }
        let watched = counters.containers.load(Relaxed) as f64;
        of.watched_cgroups.with_label_values(NONE).set(watched);
    }
}

fn count(family: &ZeroFirst, findings: &[Finding]) {
    for finding in findings {
        family.add(&[finding.kind.as_str()], 1.0);
    }
}

fn total(family: &IntCounterVec, labels: &[&str], to: u64) {
    set_counter_to(&family.with_label_values(labels), to);
}

fn set_counter_to(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
