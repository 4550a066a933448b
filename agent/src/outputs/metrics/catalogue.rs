//! The catalogue: one table from which the metrics are registered, tested and documented.

use super::labels::{self as of, Values};
use prometheus::{
    CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
    core::Collector,
};

/// Type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram(&'static Buckets),
}

/// Upper edges of a histogram's buckets.
#[derive(PartialEq, Debug)]
pub struct Buckets(pub &'static [f64]);

impl Eq for Buckets {}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name, with the base unit as suffix.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Base unit; empty for a plain count.
    pub unit: &'static str,
    /// What it says, one sentence.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What values they can have, in the same order.
    pub values: &'static [Values],
    /// Whether one can rely on it.
    pub stability: Stability,
    /// What it is good for, as PromQL.
    pub example: &'static str,
    /// The subject that it belongs to.
    pub group: &'static str,
}

/// Whether one can rely on a metric: on its name, type, labels and meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stability {
    /// It changes only with a new major version, and is deprecated for a minor one before.
    Stable,
    /// It may change with every minor version: it tells of coroner's own inside.
    Internal,
}

/// Whole terminations and stops: fine below a second, with edges on both sides of the grace that
/// everybody has (30 s, and the 2 s that the kubelet adds at most), past ten minutes.
static DURATIONS: Buckets = Buckets(&[
    0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 29.0, 30.0, 32.0, 45.0, 60.0, 90.0, 120.0, 300.0,
    600.0, 1200.0, 3600.0,
]);

/// The kubelet's garbage collection goes its round each minute.
static REMOVALS: Buckets =
    Buckets(&[1.0, 5.0, 10.0, 20.0, 32.0, 60.0, 90.0, 120.0, 300.0, 600.0, 3600.0]);

/// 1 is the whole grace: what is above exceeded it.
static RATIOS: Buckets = Buckets(&[0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0]);

macro_rules! catalogue {
    ($($group:literal { $($field:ident: $type:ident $(($buckets:ident))? = $name:literal,
       $unit:literal, [$($label:literal: $values:ident),*], $stability:ident, $help:literal,
       $example:literal;)* })*) => {
        /// Every metric of the agent itself. Those of its process (`process_…`) come from the
        /// prometheus crate.
        pub static CATALOGUE: [Entry; <[&str]>::len(&[$($($name,)*)*])] = [$($(Entry {
            name: $name,
            kind: catalogue!(@kind $type $($buckets)?),
            unit: $unit,
            help: $help,
            labels: &[$($label),*],
            values: &[$(of::$values),*],
            stability: Stability::$stability,
            example: $example,
            group: $group,
        },)*)*];

        /// The metrics, registered.
        #[derive(Debug)]
        pub(super) struct Families {
            $($(#[doc = $help] pub(super) $field: $type,)*)*
        }

        impl Families {
            pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
                let [$($($field,)*)*] = &CATALOGUE;
                Ok(Self { $($($field: register(registry, catalogue!(@new $field, $type)?)?,)*)* })
            }
        }
    };
    (@kind HistogramVec $buckets:ident) => { Kind::Histogram(&$buckets) };
    (@kind GaugeVec) => { Kind::Gauge };
    (@kind $counter:ident) => { Kind::Counter };
    (@new $entry:ident, HistogramVec) => {
        HistogramVec::new($entry.histogram_opts(), $entry.labels)
    };
    (@new $entry:ident, $type:ident) => {
        $type::new(Opts::new($entry.name, $entry.help), $entry.labels)
    };
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

impl Entry {
    /// What values this label can have; `None`: it is not one of its labels.
    pub fn values(&self, label: &str) -> Option<Values> {
        let place = self.labels.iter().position(|known| *known == label)?;
        self.values.get(place).copied()
    }

    fn histogram_opts(&self) -> HistogramOpts {
        let opts = HistogramOpts::new(self.name, self.help);
        match self.kind {
            Kind::Histogram(buckets) => opts.buckets(buckets.0.to_vec()),
            _ => opts,
        }
    }
}

catalogue! {
    "Terminations of pods" {
        pod_terminations: IntCounterVec =
            "coroner_pod_terminations_total", "", ["cause": CAUSES], Stable,
            "Pod lives that ended on this node, by what ended them.",
            "sum by (cause) (rate(coroner_pod_terminations_total[1h]))";
        termination_duration: HistogramVec(DURATIONS) =
            "coroner_pod_termination_duration_seconds", "seconds", [], Stable,
            "From the request to delete a pod to the end of its processes, sandbox and object. \
             Terminations whose beginning was not seen are left out.",
            "histogram_quantile(0.99, sum by (le) \
             (rate(coroner_pod_termination_duration_seconds_bucket[1h])))";
        phase_seconds: CounterVec =
            "coroner_pod_termination_phase_seconds_total", "seconds", ["phase": PHASES], Stable,
            "Seconds that terminating pods spent in each phase.",
            "topk(3, sum by (phase) (rate(coroner_pod_termination_phase_seconds_total[1h])))";
        terminating: GaugeVec =
            "coroner_pods_terminating", "", [], Stable,
            "Pods whose end is under way on this node.",
            "sum by (node) (coroner_pods_terminating)";
        removal_duration: HistogramVec(REMOVALS) =
            "coroner_sandbox_removal_duration_seconds", "seconds", [], Stable,
            "From a sandbox's stop to its removal by the kubelet's garbage collection.",
            "histogram_quantile(0.9, sum by (le) \
             (rate(coroner_sandbox_removal_duration_seconds_bucket[1h])))";
        pod_findings: IntCounterVec =
            "coroner_pod_findings_total", "", ["finding": POD_FINDINGS], Stable,
            "Findings on pods that terminated, besides those on their containers.",
            "sum by (finding) (increase(coroner_pod_findings_total[1d])) > 0";
        unmeasured: IntCounterVec =
            "coroner_pod_terminations_unmeasured_total", "", [], Internal,
            "Pod terminations whose duration is not in the histogram: the agent started after they \
             began, or a source was away when they began or ended.",
            "sum(increase(coroner_pod_terminations_unmeasured_total[1d]))";
        incomplete: IntCounterVec =
            "coroner_pod_terminations_incomplete_total", "", [], Internal,
            "Pod terminations whose account may lack evidence that was lost.",
            "sum(increase(coroner_pod_terminations_incomplete_total[1d]))";
        updates: IntCounterVec =
            "coroner_pod_termination_updates_total", "", ["change": CHANGES], Internal,
            "New revisions of termination reports by late evidence, before and after they are \
             counted: the verdict of a container changes, or something else does.",
            "sum by (change) (rate(coroner_pod_termination_updates_total[1h]))";
    }
    "Deaths of containers" {
        container_deaths: IntCounterVec =
            "coroner_container_deaths_total", "", ["namespace": NAMESPACE, "verdict": VERDICTS], Stable,
            "Container lives that ended, by namespace (the first 100 seen, then other) and \
             verdict.",
            "sum by (namespace) \
             (increase(coroner_container_deaths_total{verdict=\"stop_signal_ignored\"}[1d])) > 0";
        stop_duration: HistogramVec(DURATIONS) =
            "coroner_container_stop_duration_seconds", "seconds", [], Stable,
            "From the first act of stopping a container (preStop or the stop signal) to the \
             exit of its last process.",
            "histogram_quantile(0.99, sum by (le) \
             (rate(coroner_container_stop_duration_seconds_bucket[1h])))";
        grace_ratio: HistogramVec(RATIOS) =
            "coroner_container_stop_grace_ratio", "ratio", [], Stable,
            "Share of its grace period that a stopped container used; above 1 it exceeded the \
             grace.",
            "1 - sum(rate(coroner_container_stop_grace_ratio_bucket{le=~\"1(\\\\.0)?\"}[1h])) / \
             sum(rate(coroner_container_stop_grace_ratio_count[1h]))";
        container_findings: IntCounterVec =
            "coroner_container_findings_total", "", ["finding": CONTAINER_FINDINGS], Stable,
            "Findings on containers that died.",
            "sum by (finding) (increase(coroner_container_findings_total[1d])) > 0";
        contradictions: IntCounterVec =
            "coroner_contradictions_total", "", ["kind": CONTRADICTIONS], Stable,
            "Container lives of which runtime or apiserver say what the kernel contradicts.",
            "sum by (kind) (increase(coroner_contradictions_total[1d])) > 0";
        unkillable: GaugeVec =
            "coroner_containers_unkillable", "", ["state": UNKILLABLE], Stable,
            "Containers that are alive long after SIGKILL, by the state of what is left of \
             them: uninterruptible hangs in the kernel. The log says where.",
            "sum by (node, state) (coroner_containers_unkillable) > 0";
    }
    "What was left behind" {
        leaked_sandboxes: GaugeVec =
            "coroner_leaked_sandboxes", "", ["class": SANDBOX_CLASSES], Stable,
            "Sandboxes that were left behind on this node, by what of them is wrong.",
            "sum by (node, class) (coroner_leaked_sandboxes) > 0";
        leaked_created: GaugeVec =
            "coroner_leaked_sandbox_created_timestamp_seconds", "seconds", ["namespace": OF_POD, "pod": OF_POD, "uid": OF_POD, "sandbox": SANDBOX, "class": SANDBOX_CLASSES, "cause": LEAK_CAUSES], Stable,
            "When a leaked sandbox was made; exists only while the leak does, for the oldest \
             ones up to --leak-series.",
            "topk(10, time() - coroner_leaked_sandbox_created_timestamp_seconds)";
        leaked_unlisted: GaugeVec =
            "coroner_leaked_sandboxes_without_series", "", [], Stable,
            "Leaked sandboxes beyond --leak-series: counted, but without a series of their own.",
            "sum by (node) (coroner_leaked_sandboxes_without_series) > 0";
        leaked_ips: GaugeVec =
            "coroner_leaked_sandbox_ips", "", [], Stable,
            "Addresses that leaked sandboxes hold.",
            "topk(10, sum by (node) (coroner_leaked_sandbox_ips))";
        orphans: GaugeVec =
            "coroner_orphans", "", ["kind": ORPHANS], Stable,
            "Shims, network namespaces and pods' cgroups that no sandbox and no pod knows.",
            "sum by (node, kind) (coroner_orphans) > 0";
        stuck_terminating: GaugeVec =
            "coroner_pods_stuck_terminating", "", ["reason": REASONS], Stable,
            "Pods whose object is still there long after its deadline, by what they wait for.",
            "sum by (reason) (coroner_pods_stuck_terminating) > 0";
        leak_causes: GaugeVec =
            "coroner_leaks", "", ["cause": LEAK_CAUSES], Stable,
            "All that was left behind on this node (sandboxes, orphans, stuck pods), by likely \
             cause.",
            "sum by (cause) (coroner_leaks) > 0";
        leaks_opened: IntCounterVec =
            "coroner_leaks_opened_total", "", ["class": CLASSES], Stable,
            "Leaks that became certain.",
            "sum by (class) (increase(coroner_leaks_opened_total[1d])) > 0";
        leaks_resolved: IntCounterVec =
            "coroner_leaks_resolved_total", "", ["class": CLASSES], Stable,
            "Leaks that are resolved: gone, or of another class now.",
            "sum by (class) (increase(coroner_leaks_resolved_total[1d])) > 0";
        leak_detection_state: GaugeVec =
            "coroner_leak_detection_state", "", ["state": JUDGEMENTS], Stable,
            "1 for the current state of leak detection: possible, or why it is suspended.",
            "count by (state) (coroner_leak_detection_state == 1)";
        leak_detection_active: IntCounterVec =
            "coroner_leak_detection_active_seconds_total", "seconds", [], Stable,
            "Time in which all sources were in sync, so that leak detection was active.",
            "rate(coroner_leak_detection_active_seconds_total[1h])";
        leak_candidates: GaugeVec =
            "coroner_leak_candidates", "", [], Internal,
            "What looks like a leak and has not been confirmed yet: it may only be late.",
            "sum by (node) (coroner_leak_candidates)";
        leak_contradictions: IntCounterVec =
            "coroner_leak_contradictions_total", "", [], Internal,
            "Candidates that the apiserver, asked past the watch, has cleared.",
            "sum(increase(coroner_leak_contradictions_total[1d]))";
    }
    "Sources of evidence" {
        ready: GaugeVec =
            "coroner_ready", "", [], Stable,
            "1 while every source of evidence works (/readyz).",
            "coroner_ready == 0";
        cri_connected: GaugeVec =
            "coroner_cri_connected", "", [], Stable,
            "1 while the container runtime answers.",
            "coroner_cri_connected == 0";
        api_in_sync: GaugeVec =
            "coroner_api_in_sync", "", [], Stable,
            "1 while the watch of this node's pods is in sync with the apiserver.",
            "coroner_api_in_sync == 0";
        hook_attached: GaugeVec =
            "coroner_hook_attached", "", ["hook": HOOKS], Stable,
            "1 for each kernel hook that is attached and was not refused by the self-test, 0 for the others.",
            "coroner_hook_attached == 0";
        evidence_lost: IntCounterVec =
            "coroner_evidence_lost_total", "", ["kind": LOSSES], Stable,
            "Evidence that was lost, by how.",
            "sum by (node, kind) (increase(coroner_evidence_lost_total[1h])) > 0";
        source_errors: IntCounterVec =
            "coroner_source_errors_total", "", ["source": SOURCES], Internal,
            "Calls and watches of a source that failed.",
            "sum by (node, source) (rate(coroner_source_errors_total[15m]))";
        source_skipped: IntCounterVec =
            "coroner_source_skipped_total", "", ["source": SPEAKERS], Internal,
            "Things that a source said and that make no sense; they were left out.",
            "sum by (source) (increase(coroner_source_skipped_total[1d])) > 0";
        source_truncated: IntCounterVec =
            "coroner_source_truncated_total", "", ["source": SPEAKERS, "field": CUTS], Internal,
            "Strings and items of lists that a source sent beyond what is kept; they were cut off. `pods`: pods that have ended, of a node with more than 4,096.",
            "sum by (source, field) (increase(coroner_source_truncated_total[1d])) > 0";
        cri_calls: IntCounterVec =
            "coroner_cri_calls_total", "", [], Internal,
            "Calls made to the container runtime; all of them only read.",
            "sum by (node) (rate(coroner_cri_calls_total[5m]))";
        cri_slowest_call: GaugeVec =
            "coroner_cri_slowest_call_seconds", "seconds", [], Internal,
            "Longest that a call to the container runtime of the last minute or two took, or waits now. Answers are used until 60 s after the request; silence for longer is an outage.",
            "coroner_cri_slowest_call_seconds > 5";
        api_snapshots: IntCounterVec =
            "coroner_api_snapshots_total", "", [], Internal,
            "Full lists of this node's pods taken from the apiserver.",
            "sum by (node) (increase(coroner_api_snapshots_total[1h]))";
    }
    "The agent itself" {
        build_info: GaugeVec =
            "coroner_build_info", "", ["version": VERSION], Stable,
            "1, with the agent's version as label.",
            "count by (version) (coroner_build_info)";
        inputs: IntCounterVec =
            "coroner_inputs_total", "", ["source": INPUTS], Internal,
            "Inputs that the engine was given, by source.",
            "sum by (source) (rate(coroner_inputs_total[5m]))";
        kernel_records: IntCounterVec =
            "coroner_kernel_records_total", "", ["kind": RECORDS], Internal,
            "Records that the kernel programs sent, by kind.",
            "sum by (kind) (rate(coroner_kernel_records_total[5m]))";
        watched_cgroups: GaugeVec =
            "coroner_watched_cgroups", "", [], Internal,
            "Cgroups that the kernel programs watch.",
            "max by (node) (coroner_watched_cgroups)";
        cgroups_too_deep: IntCounterVec =
            "coroner_cgroups_too_deep_total", "", [], Internal,
            "Cgroups that are not followed: too many levels below their container.",
            "sum by (node) (increase(coroner_cgroups_too_deep_total[1d])) > 0";
        ring_used: GaugeVec =
            "coroner_ring_used_bytes", "bytes", ["ring": RINGS], Internal,
            "Most bytes that a drain of the last minute or two found in a ring buffer.",
            "max by (node, ring) (coroner_ring_used_bytes / coroner_ring_size_bytes)";
        ring_size: GaugeVec =
            "coroner_ring_size_bytes", "bytes", ["ring": RINGS], Internal,
            "Size of a ring buffer.",
            "max by (node, ring) (coroner_ring_used_bytes / coroner_ring_size_bytes)";
        engine_entries: GaugeVec =
            "coroner_engine_entries", "", ["kind": ENTRIES], Internal,
            "Entries in the engine's memory, by kind; bounded.",
            "max by (kind) (coroner_engine_entries)";
        requests_dropped: IntCounterVec =
            "coroner_requests_dropped_total", "", ["to": ADAPTERS], Internal,
            "Requests of the engine that an adapter was too busy to take.",
            "sum by (node, to) (increase(coroner_requests_dropped_total[1h])) > 0";
        recording: GaugeVec =
            "coroner_recording", "", [], Internal,
            "1 while the inputs are recorded (--record).",
            "coroner_recording == 1";
        recording_inputs: IntCounterVec =
            "coroner_recording_inputs_total", "", ["outcome": OUTCOMES], Internal,
            "Inputs that were recorded, or dropped because the disk was too slow.",
            "sum by (outcome) (rate(coroner_recording_inputs_total[5m]))";
        recording_bytes: GaugeVec =
            "coroner_recording_size_bytes", "bytes", [], Internal,
            "Size of the recording.",
            "max by (node) (coroner_recording_size_bytes)";
        recording_errors: IntCounterVec =
            "coroner_recording_errors_total", "", [], Internal,
            "Failures to write the recording; the first one ends it.",
            "sum by (node) (increase(coroner_recording_errors_total[1h])) > 0";
        events: IntCounterVec =
            "coroner_events_total", "", ["outcome": EVENT_OUTCOMES], Internal,
            "Events that were to be made of pods and this node (--events), by what became of \
             them.",
            "sum by (node, outcome) (increase(coroner_events_total{outcome!=\"sent\"}[1h])) > 0";
    }
}
