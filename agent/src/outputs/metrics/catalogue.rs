//! The catalogue: one table from which the metrics are registered, tested and documented.

use super::{
    labels::{self as of, Values},
    zero_first::ZeroFirst,
};
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    Opts, Registry, core::Collector,
};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MetricKind {
    Counter,
    Gauge,
    /// With the upper edges of its buckets.
    Histogram(&'static [f64]),
}

#[derive(Clone, Copy, Debug)]
pub struct MetricEntry {
    /// Its name, with the base unit as suffix.
    pub name: &'static str,
    pub kind: MetricKind,
    /// Base unit; empty for a plain count.
    pub unit: &'static str,
    pub help: &'static str,
    pub labels: &'static [&'static str],
    /// What values they can have, in the same order.
    pub values: &'static [Values],
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
static DURATIONS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 29.0, 30.0, 32.0, 45.0, 60.0, 90.0, 120.0, 300.0,
    600.0, 1200.0, 3600.0,
];

/// The kubelet's garbage collection goes its round each minute.
static REMOVALS: &[f64] = &[1.0, 5.0, 10.0, 20.0, 32.0, 60.0, 90.0, 120.0, 300.0, 600.0, 3600.0];

/// 1 is the whole grace: what is above exceeded it.
static RATIOS: &[f64] = &[0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0];

macro_rules! catalogue {
    ($($group:literal { $($field:ident: $type:ident $(($buckets:ident))? = $name:literal,
       $unit:literal, [$($label:literal: $values:ident),*], $stability:ident, $help:literal,
       $example:literal;)* })*) => {
        /// Every metric of the agent itself. Those of its process (`process_…`) come from the
        /// prometheus crate.
        pub static CATALOGUE: [MetricEntry; <[&str]>::len(&[$($($name,)*)*])] = [$($(MetricEntry {
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
    (@kind HistogramVec $buckets:ident) => { MetricKind::Histogram($buckets) };
    (@kind Histogram $buckets:ident) => { MetricKind::Histogram($buckets) };
    (@kind GaugeVec) => { MetricKind::Gauge };
    (@kind Gauge) => { MetricKind::Gauge };
    (@kind $counter:ident) => { MetricKind::Counter };
    (@new $entry:ident, HistogramVec) => { HistogramVec::new($entry.histogram(), $entry.labels) };
    (@new $entry:ident, Histogram) => { Histogram::with_opts($entry.histogram()) };
    (@new $entry:ident, IntCounter) => { IntCounter::new($entry.name, $entry.help) };
    (@new $entry:ident, Gauge) => { Gauge::new($entry.name, $entry.help) };
    (@new $entry:ident, ZeroFirst) => {
        ZeroFirst::new($entry)
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

impl MetricEntry {
    /// What values this label can have; `None`: it is not one of its labels.
    pub fn values(&self, label: &str) -> Option<Values> {
        let place = self.labels.iter().position(|known| *known == label)?;
        self.values.get(place).copied()
    }

    fn histogram(&self) -> HistogramOpts {
        let opts = HistogramOpts::new(self.name, self.help);
        match self.kind {
            MetricKind::Histogram(buckets) => opts.buckets(buckets.to_vec()),
            _ => opts,
        }
    }
}

catalogue! {
    "Pod terminations" {
        pod_terminations: ZeroFirst =
            "coroner_pod_terminations_total", "", ["cause": CAUSES], Stable,
            "Pod terminations on this node, by cause.",
            "sum by (cause) (rate(coroner_pod_terminations_total[1h]))";
        termination_duration: HistogramVec(DURATIONS) =
            "coroner_pod_termination_duration_seconds", "seconds", ["cause_class": CAUSE_CLASSES], Stable,
            "Time from the deletion or eviction of a pod until its processes, sandbox and object are gone. Excludes \
             pods that ended for another or an unknown cause, and terminations whose start was not observed.",
            "histogram_quantile(0.99, sum by (le) \
             (rate(coroner_pod_termination_duration_seconds_bucket[1h])))";
        deletions: ZeroFirst =
            "coroner_pod_deletions_total", "", ["pod_namespace": NAMESPACE, "slow": BOOLEAN], Stable,
            "The deletions and evictions in coroner_pod_termination_duration_seconds, by namespace, and whether they \
             took more than 45 s.",
            "sum by (pod_namespace) (increase(coroner_pod_deletions_total{slow=\"true\"}[1d])) / \
             sum by (pod_namespace) (increase(coroner_pod_deletions_total[1d]))";
        phase_seconds: CounterVec =
            "coroner_pod_termination_phase_seconds_total", "seconds", ["phase": PHASES], Stable,
            "Seconds that pods which were deleted or evicted spent in each phase.",
            "topk(3, sum by (phase) (rate(coroner_pod_termination_phase_seconds_total[1h])))";
        terminating: GaugeVec =
            "coroner_pods_terminating", "", [], Stable,
            "Pods that are terminating on this node.",
            "sum by (node) (coroner_pods_terminating)";
        removal_duration: Histogram(REMOVALS) =
            "coroner_sandbox_removal_duration_seconds", "seconds", [], Stable,
            "Time from the stop of a sandbox to its removal by the kubelet's garbage collection.",
            "histogram_quantile(0.9, sum by (le) \
             (rate(coroner_sandbox_removal_duration_seconds_bucket[1h])))";
        pod_findings: ZeroFirst =
            "coroner_pod_findings_total", "", ["finding": POD_FINDINGS], Stable,
            "Findings on terminated pods, without the findings on their containers.",
            "sum by (finding) (increase(coroner_pod_findings_total[1d])) > 0";
        unmeasured: IntCounter =
            "coroner_pod_terminations_unmeasured_total", "", [], Internal,
            "Pod terminations whose duration is not in the histogram, because the agent started \
             after the termination, or a source was unavailable when it began or ended.",
            "sum(increase(coroner_pod_terminations_unmeasured_total[1d]))";
        incomplete: IntCounter =
            "coroner_pod_terminations_incomplete_total", "", [], Internal,
            "Pod terminations whose report may be incomplete because evidence was lost.",
            "sum(increase(coroner_pod_terminations_incomplete_total[1d]))";
    }
    "Traffic" {
        connections: ZeroFirst =
            "coroner_pod_connections_total", "",
            ["pod_namespace": NAMESPACE, "workload_type": TYPE, "workload": OF_WORKLOAD,
             "event": CONNECTION_EVENTS], Stable,
            "Connections of clients that a terminating pod cut in the middle of a request or with unread data, that it \
             refused (visible from Linux 6.10: refusals_visible of coroner_node_info), or that clients opened late, \
             after its stop signal. Pods of Jobs do not count.",
            "sum by (pod_namespace, workload_type, workload) \
             (increase(coroner_pod_connections_total{event=~\"cut|refused\"}[1d])) > 0";
        endpoint_lag: Histogram(DURATIONS) =
            "coroner_pod_last_new_connection_seconds", "seconds", [], Stable,
            "Time from a pod's stop signal to the last new connection of a client, accepted or \
             refused: the delay of endpoint removal as this node sees it. Only of pods to which \
             clients connected while they terminated; 0 if none did after the stop signal.",
            "histogram_quantile(0.99, sum by (le) \
             (rate(coroner_pod_last_new_connection_seconds_bucket[1d])))";
    }
    "Container deaths" {
        container_deaths: ZeroFirst =
            "coroner_container_deaths_total", "",
            ["pod_namespace": NAMESPACE, "workload_type": TYPE, "workload": OF_WORKLOAD,
             "pod_container": CONTAINER, "verdict": VERDICTS], Stable,
            "Container deaths, by workload, container and verdict.",
            "topk(10, sum by (pod_namespace, workload_type, workload, pod_container) \
             (increase(coroner_container_deaths_total{verdict=~\"stop_signal_ignored|\
             grace_exceeded\"}[1d])))";
        sigkill_wait: ZeroFirst =
            "coroner_container_sigkill_wait_seconds_total", "seconds",
            ["pod_namespace": NAMESPACE, "workload_type": TYPE, "workload": OF_WORKLOAD], Stable,
            "Seconds from the stop signal to SIGKILL, of containers that ignored or blocked the stop signal or \
             exceeded the grace period.",
            "topk(10, sum by (pod_namespace, workload) (increase(coroner_container_sigkill_wait_seconds_total[1d])))";
        grace_ratio: Histogram(RATIOS) =
            "coroner_container_stop_grace_ratio", "ratio", [], Stable,
            "Share of the grace period that a stopped container used; above 1 it exceeded the \
             grace period.",
            "1 - sum(rate(coroner_container_stop_grace_ratio_bucket{le=~\"1(\\\\.0)?\"}[1h])) / \
             sum(rate(coroner_container_stop_grace_ratio_count[1h]))";
        container_findings: ZeroFirst =
            "coroner_container_findings_total", "", ["finding": CONTAINER_FINDINGS], Stable,
            "Findings on terminated containers.",
            "sum by (finding) (increase(coroner_container_findings_total[1d])) > 0";
        contradictions: ZeroFirst =
            "coroner_contradictions_total", "", ["kind": CONTRADICTIONS], Stable,
            "Containers whose runtime or apiserver status contradicts the kernel's records.",
            "sum by (kind) (increase(coroner_contradictions_total[1d])) > 0";
        unkillable: GaugeVec =
            "coroner_containers_unkillable", "", ["state": UNKILLABLE], Stable,
            "Containers with processes that survive SIGKILL, by process state; uninterruptible \
             processes are blocked in the kernel. The log shows where.",
            "sum by (node, state) (coroner_containers_unkillable) > 0";
        responses: GaugeVec =
            "coroner_containers_by_stop_response", "", ["pod_namespace": NAMESPACE, "response": RESPONSES], Stable,
            "Running containers by how their main process will respond to the stop signal (the audit).",
            "sum by (pod_namespace) (coroner_containers_by_stop_response{response=~\"ignores|blocked\"})";
    }
    "Leaks" {
        leaked_sandboxes: GaugeVec =
            "coroner_leaked_sandboxes", "", ["class": SANDBOX_CLASSES], Stable,
            "Leaked sandboxes on this node, by class.",
            "sum by (node, class) (coroner_leaked_sandboxes) > 0";
        leaked_created: GaugeVec =
            "coroner_leaked_sandbox_created_timestamp_seconds", "seconds",
            ["pod_namespace": OF_POD, "pod_name": OF_POD, "uid": OF_POD, "sandbox": SANDBOX, "class": SANDBOX_CLASSES,
             "cause": LEAK_CAUSES], Stable,
            "Creation time of a leaked sandbox; present only while the leak exists, for the \
             50 oldest leaks.",
            "topk(10, time() - coroner_leaked_sandbox_created_timestamp_seconds)";
        leaked_observed: GaugeVec =
            "coroner_leaked_sandbox_observed_timestamp_seconds", "seconds", ["pod_namespace": OF_POD, "sandbox": SANDBOX], Stable,
            "Time when a leaked sandbox was first observed as leaked: the agent's start, if the leak \
             is older; for the same leaks as the creation time.",
            "topk(10, time() - coroner_leaked_sandbox_observed_timestamp_seconds)";
        leaked_ips: GaugeVec =
            "coroner_leaked_sandbox_ips", "", [], Stable,
            "IP addresses held by leaked sandboxes: IPv4 or IPv6, whichever are more.",
            "topk(10, sum by (node) (coroner_leaked_sandbox_ips))";
        orphans: GaugeVec =
            "coroner_orphans", "", ["kind": ORPHANS], Stable,
            "Orphaned shims, network namespaces and pod cgroups.",
            "sum by (node, kind) (coroner_orphans) > 0";
        stuck_terminating: GaugeVec =
            "coroner_pods_stuck_terminating", "", ["cause": LEAK_CAUSES], Stable,
            "Pods whose object exists long after its deletion deadline, by likely cause.",
            "sum by (cause) (coroner_pods_stuck_terminating) > 0";
        leak_causes: GaugeVec =
            "coroner_leaks", "", ["cause": LEAK_CAUSES], Stable,
            "All leaks on this node (sandboxes, orphans, stuck pods), by likely cause.",
            "sum by (cause) (coroner_leaks) > 0";
        leaks_opened: ZeroFirst =
            "coroner_leaks_opened_total", "", ["class": CLASSES], Stable,
            "Confirmed leaks.",
            "sum by (class) (increase(coroner_leaks_opened_total[1d])) > 0";
        leaks_resolved: ZeroFirst =
            "coroner_leaks_resolved_total", "", ["class": CLASSES], Stable,
            "Resolved leaks: gone, or changed to another class.",
            "sum by (class) (increase(coroner_leaks_resolved_total[1d])) > 0";
        leak_detection_state: GaugeVec =
            "coroner_leak_detection_state", "", ["state": JUDGEMENTS], Stable,
            "1 for the current state of leak detection: possible, or the reason why it is \
             suspended.",
            "count by (state) (coroner_leak_detection_state == 1)";
        leak_detection_active: IntCounter =
            "coroner_leak_detection_active_seconds_total", "seconds", [], Stable,
            "Time during which leak detection was active because all sources were in sync.",
            "rate(coroner_leak_detection_active_seconds_total[1h])";
    }
    "Sources of evidence" {
        ready: Gauge =
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
            "1 for each kernel hook that is attached and passed the self-test, 0 for the others.",
            "coroner_hook_attached == 0";
        evidence_lost: IntCounterVec =
            "coroner_evidence_lost_total", "", ["kind": LOSSES], Stable,
            "Lost evidence, by kind of loss.",
            "sum by (node, kind) (increase(coroner_evidence_lost_total[1h])) > 0";
        source_errors: IntCounterVec =
            "coroner_source_errors_total", "", ["source": SOURCES], Internal,
            "Failed calls and watches of a source.",
            "sum by (node, source) (rate(coroner_source_errors_total[15m]))";
        source_skipped: IntCounterVec =
            "coroner_source_skipped_total", "", ["source": SPEAKERS], Internal,
            "Invalid items in a source's data, which were skipped.",
            "sum by (source) (increase(coroner_source_skipped_total[1d])) > 0";
        source_truncated: IntCounterVec =
            "coroner_source_truncated_total", "", ["source": SPEAKERS, "field": CUTS], Internal,
            "Strings and list items that exceeded the limits and were truncated. `pods`: \
             terminated pods of a node with more than 1,024.",
            "sum by (source, field) (increase(coroner_source_truncated_total[1d])) > 0";
        cri_slowest_call: GaugeVec =
            "coroner_cri_slowest_call_seconds", "seconds", [], Internal,
            "Longest call to the container runtime in the last one to two minutes, including \
             pending calls. A response is used up to 60 s after its request; after that the \
             runtime counts as unreachable.",
            "coroner_cri_slowest_call_seconds > 5";
    }
    "The agent itself" {
        build_info: GaugeVec =
            "coroner_build_info", "", ["version": VERSION], Stable,
            "1, with the agent's version as label.",
            "count by (version) (coroner_build_info)";
        node_info: GaugeVec =
            "coroner_node_info", "",
            ["kernel": OF_NODE, "runtime": OF_NODE, "kubelet": OF_NODE, "refusals_visible": BOOLEAN], Stable,
            "1, with the node's versions as labels, and whether its kernel shows refused connections.",
            "count by (kernel, refusals_visible) (coroner_node_info)";
        watched_cgroups: GaugeVec =
            "coroner_watched_cgroups", "", [], Internal,
            "Cgroups watched by the kernel programs.",
            "max by (node) (coroner_watched_cgroups)";
        kernel_records: IntCounter =
            "coroner_kernel_records_total", "", [], Internal,
            "Records from the kernel programs.",
            "sum by (node) (rate(coroner_kernel_records_total[5m]))";
        cgroups_too_deep: IntCounter =
            "coroner_cgroups_too_deep_total", "", [], Internal,
            "Cgroups that are not watched because they are nested too deeply below their \
             container, or are too many of one container.",
            "sum by (node) (increase(coroner_cgroups_too_deep_total[1d])) > 0";
        ring_used: GaugeVec =
            "coroner_ring_used_ratio", "ratio", ["ring": RINGS], Internal,
            "Largest part of a ring buffer that a drain found used in the last one to two minutes.",
            "max by (node, ring) (coroner_ring_used_ratio)";
        event_loop_lag: Gauge =
            "coroner_event_loop_lag_seconds", "seconds", [], Internal,
            "Longest delay of the event loop's tick, which is due each second, in the last one to two minutes.",
            "max by (node) (coroner_event_loop_lag_seconds)";
        requests_dropped: IntCounterVec =
            "coroner_requests_dropped_total", "", ["to": ADAPTERS], Internal,
            "Requests of the engine that were dropped because an adapter's queue was full.",
            "sum by (node, to) (increase(coroner_requests_dropped_total[1h])) > 0";
        http_dropped: IntCounterVec =
            "coroner_http_connections_dropped_total", "", ["reason": DROPS], Internal,
            "Connections that the agent's HTTP server closed, by reason: the limit of \
             connections was reached, or the client did not read its answer in time.",
            "sum by (node, reason) (increase(coroner_http_connections_dropped_total[1h])) > 0";
        history_errors: IntCounterVec =
            "coroner_history_errors_total", "", ["reason": HISTORY_FAULTS], Internal,
            "What went wrong with the history: reports that were dropped (no_room, not_stored), left out of an answer \
             (unreadable) or removed before they were exported (not_exported), failed attempts to write \
             (write_failed), and databases that were not usable (set_aside).",
            "sum by (node, reason) (increase(coroner_history_errors_total[1h])) > 0";
        history_bytes: GaugeVec =
            "coroner_history_bytes", "bytes", [], Internal,
            "Size of the history, on disk or in memory.",
            "max by (node) (coroner_history_bytes)";
        history_oldest: GaugeVec =
            "coroner_history_oldest_timestamp_seconds", "seconds", [], Internal,
            "End of the oldest termination or death in the history.",
            "min by (node) (time() - coroner_history_oldest_timestamp_seconds)";
        events: IntCounterVec =
            "coroner_events_total", "", ["outcome": EVENT_OUTCOMES], Internal,
            "Kubernetes Events for pods and this node (--events), by outcome.",
            "sum by (node, outcome) (increase(coroner_events_total{outcome!=\"sent\"}[1h])) > 0";
        exported: IntCounterVec =
            "coroner_export_records_total", "", ["outcome": EXPORT_OUTCOMES], Internal,
            "Spans and log records for the OTLP receiver (--otlp-endpoint), by outcome: what it rejected of a batch or \
             refused as a whole is not sent again.",
            "sum by (node, outcome) (increase(coroner_export_records_total{outcome!=\"sent\"}[1h])) > 0";
        export_failures: IntCounterVec =
            "coroner_export_failures_total", "", ["reason": EXPORT_FAILURES], Internal,
            "Requests to the OTLP receiver that failed and are repeated, by reason.",
            "sum by (node, reason) (increase(coroner_export_failures_total[1h])) > 0";
        export_queue: GaugeVec =
            "coroner_export_queue", "", [], Internal,
            "Terminations and deaths that wait for the OTLP receiver.",
            "max by (node) (coroner_export_queue)";
    }
}
