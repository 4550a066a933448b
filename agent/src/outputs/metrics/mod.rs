//! The metrics: what the world may learn, counted.
//!
//! **Architecture invariant.** Every label is a closed set or bounded; pod identity never is one.

mod catalogue;
mod labels;
mod process;

pub use catalogue::{Buckets, CATALOGUE, MetricEntry, MetricKind, Stability};
use coroner_core::{
    engine::Gauges,
    ids::PodRef,
    input::{
        ApiEvent, ConnectionEvent, CriEvent, Input, Received, TaskState, TrafficPeer, Workload,
    },
    labels,
    leak::{BlockedOn, DetectionState, Leak, LeakCause, LeakClass, LeakKey},
    leaks::LeakGauges,
    output::Report,
    pod_view::{LOST, REFUSED},
    report::{ContainerDeath, Finding, PodTermination, Traffic},
    time::WallTime,
    types::{Change, MilestoneKind, PhaseKind, Verdict},
};
pub use labels::Values;

use crate::{
    linux::clock,
    outputs::{events, recording, report},
    sources::{
        cri,
        cut::{Cut, Cuts},
        host, kernel, kube, processes,
    },
    store::{health::Health, leaks::since},
};
use catalogue::Families;
use parking_lot::Mutex;
use prometheus::{Encoder, IntCounter, IntCounterVec, Registry, TextEncoder};
use std::{
    collections::{BTreeSet, HashMap},
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Namespaces that get a label value of their own.
const NAMESPACES: usize = 100;
/// The label value of the rest.
const OTHER: &str = "other";

/// SIGKILL ended the container after its stop signal: until then it, its pod and the node waited.
const WAITED_FOR_SIGKILL: [Verdict; 3] =
    [Verdict::StopSignalIgnored, Verdict::StopSignalBlocked, Verdict::GraceExceeded];

/// All metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    namespaces: Mutex<BTreeSet<String>>,
    limits: Limits,
    /// Namespaces with a histogram of their own, if asked for.
    measured: Mutex<BTreeSet<String>>,
    /// Workloads with series of their own, if asked for: namespace and workload.
    workloads: Mutex<BTreeSet<(String, Workload)>>,
    /// As what each leak that stands was counted last.
    classes: Mutex<HashMap<LeakKey, LeakClass>>,
    sources: OnceLock<SourceCounters>,
    recording: OnceLock<Arc<recording::RecorderCounters>>,
    events: OnceLock<Arc<events::EventCounters>>,
}

/// How many series there are of what has none unless asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Workloads with series of their own; 0: no metrics of workloads.
    pub workloads: usize,
    /// Namespaces with a histogram of their own; 0: none.
    pub namespaces: usize,
}

/// What the adapters count, shared with them.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// The kernel side.
    pub kernel: Arc<kernel::KernelCounters>,
    /// The kernel shows refused connections: otherwise they have no series, rather than a 0.
    pub shows_refusals: bool,
    /// The container runtime.
    pub cri: Arc<cri::CriCounters>,
    /// The apiserver; `None`: done without.
    pub api: Option<Arc<kube::KubeCounters>>,
    /// The host's /proc.
    pub proc: Arc<processes::ProcessesCounters>,
    /// The host's file systems.
    pub host: Arc<host::HostCounters>,
}

labels! {
    /// An adapter that the engine asks something of.
    pub enum Adapter {
        /// The kernel side.
        Kernel = "kernel",
        /// The container runtime.
        Cri = "cri",
        /// The host's /proc.
        Proc = "proc",
        /// The host's file systems.
        Host = "host",
        /// What counts connections.
        Traffic = "traffic",
        /// The apiserver.
        Api = "api",
    }

    /// Why the HTTP server closed a connection.
    pub enum DropReason {
        /// The client took nothing of its answer for ten seconds.
        NotReading = "not_reading",
        /// Another connection needed the place of one that had no request.
        MadeRoom = "made_room",
        /// There was no place.
        NoRoom = "no_room",
        /// It was open for as long as a connection may be.
        TooLong = "too_long",
    }
}

impl Metrics {
    /// Registers the catalogue. Values of closed sets exist from the start, so that a rate over
    /// their first increase is right. Fails only if the catalogue itself is wrong.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let families = Families::register(&registry)?;
        let metrics = Self {
            registry,
            families,
            namespaces: Mutex::default(),
            limits: Limits::default(),
            measured: Mutex::default(),
            workloads: Mutex::default(),
            classes: Mutex::default(),
            sources: OnceLock::new(),
            recording: OnceLock::new(),
            events: OnceLock::new(),
        };
        metrics.initialise();
        Ok(metrics)
    }

    /// With what there is only if asked for.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Adds this process' own memory, CPU and file descriptors.
    pub fn with_process(self) -> prometheus::Result<Self> {
        self.registry.register(Box::new(process::ProcessMetrics::this()))?;
        Ok(self)
    }

    fn initialise(&self) {
        let of = &self.families;
        for (counter, values) in [
            (&of.pod_terminations, labels::PODS_OWN_CAUSES),
            (&of.container_findings, labels::CONTAINER_FINDINGS),
            (&of.pod_findings, labels::POD_FINDINGS),
            (&of.contradictions, labels::CONTRADICTIONS),
            (&of.traffic_not_visible, labels::TRAFFIC_BLINDNESS),
            (&of.evidence_lost, labels::LOSSES),
            (&of.updates, labels::CHANGES),
            (&of.leaks_opened, labels::CLASSES),
            (&of.leaks_resolved, labels::CLASSES),
            (&of.inputs, labels::INPUTS),
            (&of.requests_dropped, labels::ADAPTERS),
            (&of.http_dropped, labels::DROPS),
        ] {
            for value in values.closed() {
                counter.with_label_values(&[value]);
            }
        }
        for phase in labels::PHASES.closed() {
            of.phase_seconds.with_label_values(&[phase]);
        }
        for counter in [&of.unmeasured, &of.incomplete] {
            counter.with_label_values::<&str>(&[]);
        }
        of.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    }

    /// The adapters have started: their counters are read at each scrape.
    pub fn watch(&self, sources: SourceCounters) {
        // A second call would be a second set of adapters: the first one's counters stay.
        let _ = self.sources.set(sources);
    }

    /// The inputs are recorded: its counters are read at each scrape.
    pub fn watch_recording(&self, counters: Arc<recording::RecorderCounters>) {
        let _ = self.recording.set(counters); // as above
    }

    /// Events are made: their counters are read at each scrape.
    pub fn watch_events(&self, counters: Arc<events::EventCounters>) {
        let _ = self.events.set(counters); // as above
    }

    /// An input passes.
    pub fn input(&self, received: &Received) {
        let source = match &received.input {
            Input::Kernel(_) => "kernel",
            Input::Cri(event) => {
                if let CriEvent::Sandboxes { sandboxes, .. } = event {
                    for sandbox in sandboxes {
                        self.bounded(&sandbox.namespace);
                    }
                }
                "cri"
            }
            Input::Api(event) => {
                let pods = match event {
                    ApiEvent::Snapshot { pods } => pods.as_slice(),
                    ApiEvent::Applied(pod) => std::slice::from_ref(pod),
                    _ => &[],
                };
                for pod in pods {
                    self.workload(&pod.namespace, pod.workload.as_deref(), None);
                }
                "api"
            }
            Input::Proc(_) => "proc",
            Input::Traffic(_) => "traffic",
            Input::Host(_) => "host",
            Input::Events(_) => "events",
            Input::Recalled { .. } | Input::Clock(_) | Input::Tick => return, // the agent's own
            Input::Lost(_) => "lost", // counted by the engine, which has losses of its own
        };
        self.families.inputs.with_label_values(&[source]).inc();
    }

    /// The engine's sizes and losses as they are now.
    pub fn engine(&self, gauges: &Gauges) {
        let of = &self.families;
        for (kind, count) in &gauges.losses {
            set_counter_to(&of.evidence_lost.with_label_values(&[kind.as_str()]), *count);
        }
        let sizes = [
            ("cgroups", gauges.cgroups),
            ("containers", gauges.containers),
            ("sandboxes", gauges.sandboxes),
            ("objects", gauges.objects),
        ];
        for (kind, size) in sizes {
            of.engine_entries.with_label_values(&[kind]).set(size as f64);
        }
        of.terminating.with_label_values::<&str>(&[]).set(gauges.terminating as f64);
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
                None => {} // by its reason, below
            }
        }
        for cause in LeakCause::ALL {
            let found = count(&|_, of| of == *cause);
            of.leak_causes.with_label_values(&[cause.as_str()]).set(found);
        }
        for reason in BlockedOn::ALL {
            let stuck = gauges.blocked_on.get(reason).copied().unwrap_or_default();
            of.stuck_terminating.with_label_values(&[reason.as_str()]).set(stuck as f64);
        }
        for state in DetectionState::ALL {
            let on = if gauges.detection_state == *state { 1.0 } else { 0.0 };
            of.leak_detection_state.with_label_values(&[state.as_str()]).set(on);
        }
        of.leaked_ips.with_label_values::<&str>(&[]).set(gauges.ips as f64);
        of.leak_candidates.with_label_values::<&str>(&[]).set(gauges.candidates as f64);
        set_counter_to(
            &of.leak_detection_active.with_label_values::<&str>(&[]),
            gauges.watched.as_secs(),
        );
        let contradicted = of.leak_contradictions.with_label_values::<&str>(&[]);
        set_counter_to(&contradicted, gauges.contradicted);
    }

    /// The leaks that are certain have changed: the oldest sandboxes, up to `bound`, get a series.
    pub fn leaked(&self, leaks: &[Arc<Leak>], bound: usize) {
        let of = &self.families;
        of.leaked_created.reset();
        of.leaked_observed.reset();
        let sandboxes = leaks.iter().filter_map(|leak| match &leak.key {
            LeakKey::Sandbox { id } => Some((leak, id)),
            _ => None,
        });
        let mut without = 0;
        for (place, (leak, id)) in sandboxes.enumerate() {
            if place >= bound {
                without += 1;
                continue;
            }
            let name = |of: fn(&PodRef) -> &str| leak.pod.as_ref().map(of).unwrap_or_default();
            let seconds = |at: WallTime| at.0 as f64 / 1e9;
            of.leaked_observed
                .with_label_values(&[name(|pod| &pod.namespace), id.as_str()])
                .set(seconds(leak.first_observed));
            of.leaked_created
                .with_label_values(&[
                    name(|pod| &pod.namespace),
                    name(|pod| &pod.name),
                    name(|pod| pod.uid.as_str()),
                    id.as_str(),
                    leak.class.as_str(),
                    leak.cause.kind.as_str(),
                ])
                .set(seconds(since(leak)));
        }
        of.leaked_unlisted.with_label_values::<&str>(&[]).set(without as f64);
    }

    /// A request could not be handed over.
    pub fn request_dropped(&self, to: Adapter) {
        self.families.requests_dropped.with_label_values(&[to.as_str()]).inc();
    }

    /// The HTTP server closed a connection.
    pub fn connection_dropped(&self, why: DropReason) {
        self.families.http_dropped.with_label_values(&[why.as_str()]).inc();
    }

    /// Counts what a report adds to the metrics.
    pub fn record(&self, report: &Report) {
        match report {
            Report::CountDeath(death) => self.container(death),
            Report::CountTermination(account) => self.pod(account),
            // The sandbox may be removed by then: no update follows.
            Report::PodTerminated(account) => self.removal(account),
            Report::PodUpdated(account, change) => {
                if change.is_revision() {
                    self.families.updates.with_label_values(&[change.as_str()]).inc();
                }
                if *change == Change::SandboxRemoved {
                    self.removal(account);
                }
            }
            Report::ContainerDied(_) | Report::Unkillable(_) => {}
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
            self.families.leaks_resolved.with_label_values(&[before.as_str()]).inc();
        }
        if let Some(class) = class {
            self.families.leaks_opened.with_label_values(&[class.as_str()]).inc();
        }
    }

    fn container(&self, death: &ContainerDeath) {
        let of = &self.families;
        let namespace = match &death.pod {
            Some(pod) => self.bounded(&pod.namespace),
            None => OTHER.to_owned(),
        };
        of.container_deaths.with_label_values(&[namespace.as_str(), death.verdict.as_str()]).inc();
        if let Some(pod) = &death.pod {
            self.workload(&pod.namespace, death.workload.as_ref(), Some(death.verdict));
        }
        count(&of.container_findings, &death.findings);
        for kind in death.findings.iter().filter_map(|f| f.contradiction) {
            of.contradictions.with_label_values(&[kind.as_str()]).inc();
        }
        let times =
            [MilestoneKind::TermSent, MilestoneKind::KillSent].map(|kind| death.milestone(kind));
        if let ([Some(term), Some(kill)], true) =
            (times, WAITED_FOR_SIGKILL.contains(&death.verdict))
        {
            let waited = kill.at.since(term.at).as_secs_f64();
            of.sigkill_wait.with_label_values(&[namespace.as_str()]).inc_by(waited);
        }
        if death.truncated {
            return; // its times would be too short by an unknown amount
        }
        let began = death
            .milestone(MilestoneKind::StopBegan)
            .or_else(|| death.milestone(MilestoneKind::TermSent));
        if let (Some(began), Some(empty)) = (began, death.milestone(MilestoneKind::CgroupEmpty)) {
            let took = empty.at.since(began.at).as_secs_f64();
            of.stop_duration.with_label_values::<&str>(&[]).observe(took);
        }
        if let Some(ratio) = death.grace_ratio {
            of.grace_ratio.with_label_values::<&str>(&[]).observe(ratio);
        }
    }

    /// By workload, for the first of them. What has no controller is not counted: its pods have names of their own.
    fn workload(&self, namespace: &str, workload: Option<&Workload>, verdict: Option<Verdict>) {
        // Asked for each update of a pod, and off by default: nothing is copied then.
        let Some(workload) = workload.filter(|_| self.limits.workloads > 0) else { return };
        let key = (namespace.to_owned(), workload.clone());
        let Some(own) = within(&self.workloads, key, self.limits.workloads) else { return };
        let (namespace, kind, name) = match own {
            true => (namespace, &*workload.kind, &*workload.name),
            false => (OTHER, OTHER, OTHER),
        };
        for each in Verdict::ALL {
            let deaths = &self.families.workload_deaths;
            let deaths = deaths.with_label_values(&[namespace, kind, name, each.as_str()]);
            deaths.inc_by(u64::from(verdict == Some(*each)));
        }
    }

    fn pod(&self, account: &PodTermination) {
        let of = &self.families;
        of.pod_terminations.with_label_values(&[account.cause.as_str()]).inc();
        count(&of.pod_findings, &account.findings);
        let is_job = account.workload.as_ref().is_some_and(Workload::is_job);
        if let Some(traffic) = account.traffic.as_ref().filter(|_| !is_job) {
            self.traffic(account, traffic);
        }
        for phase in &account.phases {
            // Of a phase whose end was not seen, the rest may be the next one's.
            let lost = if phase.is_exact() { Duration::ZERO } else { phase.uncertainty };
            let add = |kind: PhaseKind, time: Duration| {
                let seconds = time.as_secs_f64();
                of.phase_seconds.with_label_values(&[kind.as_str()]).inc_by(seconds);
            };
            add(phase.kind, phase.took().saturating_sub(lost));
            add(PhaseKind::Unattributed, lost);
        }
        if !account.incomplete.is_empty() {
            of.incomplete.with_label_values::<&str>(&[]).inc();
        }
        if account.truncated || !account.is_exact() {
            of.unmeasured.with_label_values::<&str>(&[]).inc();
        } else {
            let took = account.total().as_secs_f64();
            of.termination_duration.with_label_values::<&str>(&[]).observe(took);
            let namespace = &account.pod.namespace;
            if let Some(own) = within(&self.measured, namespace.clone(), self.limits.namespaces) {
                let label = if own { namespace } else { OTHER };
                of.namespace_duration.with_label_values(&[label]).observe(took);
            }
        }
    }

    fn traffic(&self, account: &PodTermination, traffic: &Traffic) {
        let of = &self.families;
        if let Some(reason) = traffic.not_visible {
            of.traffic_not_visible.with_label_values(&[reason.as_str()]).inc();
            return;
        }
        let namespace = self.bounded(&account.pod.namespace);
        let clients =
            |events: &[ConnectionEvent]| traffic.sum(&[TrafficPeer::Client], events).count;
        for (counter, count) in [
            (&of.connections_cut, clients(&LOST)),
            (&of.connections_late, clients(&[ConnectionEvent::OpenedAfterStop])),
        ] {
            counter.with_label_values(&[namespace.as_str()]).inc_by(count);
        }
        if traffic.sees_refusals && !account.never_listened() {
            let counter = of.connections_refused.with_label_values(&[namespace.as_str()]);
            counter.inc_by(clients(&REFUSED));
        }
        if let Some(lag) = report::endpoint_lag(account) {
            of.endpoint_lag.with_label_values::<&str>(&[]).observe(lag.as_secs_f64());
        }
    }

    fn removal(&self, account: &PodTermination) {
        if let Some(took) = sandbox_removal(account) {
            let family = &self.families.removal_duration;
            family.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
        }
    }

    /// The namespace as a label's value: its own name for the first hundred.
    ///
    /// Its counters begin at 0 with a namespace's first pod on the node: Prometheus' `increase()`
    /// ignores the first sample of a series, which would be the first death.
    fn bounded(&self, namespace: &str) -> String {
        let mut seen = self.namespaces.lock();
        if seen.contains(namespace) {
            return namespace.to_owned();
        }
        let label = if seen.len() < NAMESPACES { namespace } else { OTHER };
        if seen.insert(label.to_owned()) {
            let of = &self.families;
            for counter in [&of.connections_cut, &of.connections_late] {
                counter.with_label_values(&[label]);
            }
            if self.sources.get().is_some_and(|sources| sources.shows_refusals) {
                of.connections_refused.with_label_values(&[label]);
            }
            of.sigkill_wait.with_label_values(&[label]);
            for verdict in Verdict::ALL {
                of.container_deaths.with_label_values(&[label, verdict.as_str()]);
            }
        }
        label.to_owned()
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

    fn refresh(&self, health: &Health) {
        let of = &self.families;
        let flag = |on: bool| if on { 1.0 } else { 0.0 };
        if let Some(connected) = health.cri_connected() {
            of.cri_connected.with_label_values::<&str>(&[]).set(flag(connected));
        }
        if let Some(in_sync) = health.api_in_sync() {
            of.api_in_sync.with_label_values::<&str>(&[]).set(flag(in_sync));
        }
        let ready = health.readiness(clock::boot_now()).ready;
        of.ready.with_label_values::<&str>(&[]).set(flag(ready));
        of.hook_attached.reset(); // those of a kernel side that failed may not all be its successor's
        for (hook, attached) in health.hooks() {
            of.hook_attached.with_label_values(&[hook]).set(flag(attached));
        }
        if let Some(recording) = self.recording.get() {
            self.refresh_recording(recording);
        }
        if let Some(events) = self.events.get() {
            for (outcome, count) in events.all() {
                set_counter_to(&of.events.with_label_values(&[outcome]), count.load(Relaxed));
            }
        }
        if let Some(sources) = self.sources.get() {
            self.refresh_kernel(&sources.kernel);
            set_counter_to(
                &of.cri_calls.with_label_values::<&str>(&[]),
                sources.cri.calls.load(Relaxed),
            );
            let slowest = sources.cri.latency.slowest().as_secs_f64();
            of.cri_slowest_call.with_label_values::<&str>(&[]).set(slowest);
            self.refresh_source("cri", &sources.cri.errors, &sources.cri.skipped);
            self.refresh_cuts("cri", &sources.cri.truncated);
            let errors = |source| of.source_errors.with_label_values(&[source]);
            set_counter_to(&errors("proc"), sources.proc.errors.load(Relaxed));
            set_counter_to(&errors("host"), sources.host.errors.load(Relaxed));
            if let Some(api) = &sources.api {
                let snapshots = of.api_snapshots.with_label_values::<&str>(&[]);
                set_counter_to(&snapshots, api.snapshots.load(Relaxed));
                self.refresh_source("api", &api.errors, &api.skipped);
                self.refresh_cuts("api", &api.truncated);
            }
        }
    }

    fn refresh_source(&self, source: &str, errors: &AtomicU64, skipped: &AtomicU64) {
        let of = &self.families;
        set_counter_to(&of.source_errors.with_label_values(&[source]), errors.load(Relaxed));
        set_counter_to(&of.source_skipped.with_label_values(&[source]), skipped.load(Relaxed));
    }

    /// Only what ever was cut has a series: on nearly every node that is nothing.
    fn refresh_cuts(&self, source: &str, cuts: &Cuts) {
        for cut in Cut::ALL.iter().copied().filter(|cut| cuts.of(*cut) > 0) {
            let of = &self.families.source_truncated;
            set_counter_to(&of.with_label_values(&[source, cut.as_str()]), cuts.of(cut));
        }
    }

    fn refresh_recording(&self, counters: &recording::RecorderCounters) {
        let of = &self.families;
        let on = if counters.recording.load(Relaxed) { 1.0 } else { 0.0 };
        of.recording.with_label_values::<&str>(&[]).set(on);
        for (outcome, count) in [("written", &counters.written), ("dropped", &counters.dropped)] {
            set_counter_to(&of.recording_inputs.with_label_values(&[outcome]), count.load(Relaxed));
        }
        let bytes = counters.bytes.load(Relaxed) as f64;
        of.recording_bytes.with_label_values::<&str>(&[]).set(bytes);
        let errors = of.recording_errors.with_label_values::<&str>(&[]);
        set_counter_to(&errors, counters.errors.load(Relaxed));
    }

    fn refresh_kernel(&self, counters: &kernel::KernelCounters) {
        let of = &self.families;
        let records = counters.records().filter(|(kind, _)| kernel::decode::is_counted(kind));
        for (kind, count) in records {
            set_counter_to(&of.kernel_records.with_label_values(&[kind]), count);
        }
        let too_deep = of.cgroups_too_deep.with_label_values::<&str>(&[]);
        set_counter_to(&too_deep, counters.too_deep.load(Relaxed));
        let size = counters.ring_bytes.load(Relaxed) as f64;
        for (ring, used) in
            [("deciding", &counters.deciding_used), ("detail", &counters.detail_used)]
        {
            of.ring_used.with_label_values(&[ring]).set(used.load(Relaxed) as f64);
            of.ring_size.with_label_values(&[ring]).set(size);
        }
        let watched = counters.containers.load(Relaxed) as f64;
        of.watched_cgroups.with_label_values::<&str>(&[]).set(watched);
    }
}

/// Whether it is among the first `most`; `None`: none is to be counted.
fn within<T: Ord>(known: &Mutex<BTreeSet<T>>, one: T, most: usize) -> Option<bool> {
    let mut known = known.lock();
    let own = known.contains(&one) || known.len() < most && known.insert(one);
    (most > 0).then_some(own)
}

/// From the sandbox's stop to its removal, where both are known.
pub fn sandbox_removal(account: &PodTermination) -> Option<Duration> {
    let stopped = account.milestone(MilestoneKind::SandboxStopped)?;
    let removed = account.milestone(MilestoneKind::SandboxRemoved)?;
    let took = removed.at.since(stopped.at);
    // Between two idle polls at the best: half of it is still the same bucket or the next.
    (removed.uncertainty.max(stopped.uncertainty) <= took / 2).then_some(took)
}

fn count(family: &IntCounterVec, findings: &[Finding]) {
    for finding in findings {
        family.with_label_values(&[finding.kind.as_str()]).inc();
    }
}

/// Brings a counter up to a count kept elsewhere.
fn set_counter_to(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
