//! The catalogue: one table from which the metrics are registered, tested and documented.

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
}

/// Whole terminations and stops: fine below a second, with edges on both sides of the grace that
/// everybody has (30 s, and the 2 s that the kubelet adds at most), past ten minutes.
static DURATIONS: Buckets = Buckets(&[
    0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 29.0, 30.0, 32.0, 45.0, 60.0, 90.0, 120.0, 300.0,
    600.0, 1200.0, 3600.0,
]);

/// The kubelet's garbage collection goes its round each minute.
static REMOVALS: Buckets = Buckets(&[
    0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 29.0, 32.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0,
    3600.0,
]);

/// 1 is the whole grace: what is above overran it.
static RATIOS: Buckets = Buckets(&[0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0]);

macro_rules! catalogue {
    ($($field:ident: $type:ident $(($buckets:ident))? = $name:literal, $unit:literal,
       [$($label:literal),*], $help:literal;)*) => {
        /// Every metric of the agent itself. Those of its process (`process_…`) come from the
        /// prometheus crate.
        pub static CATALOGUE: [Entry; <[&str]>::len(&[$($name),*])] = [$(Entry {
            name: $name,
            kind: catalogue!(@kind $type $($buckets)?),
            unit: $unit,
            help: $help,
            labels: &[$($label),*],
        }),*];

        /// The metrics, registered.
        #[derive(Debug)]
        pub(super) struct Families {
            $(#[doc = $help] pub(super) $field: $type,)*
        }

        impl Families {
            pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
                let [$($field),*] = &CATALOGUE;
                Ok(Self { $($field: register(registry, catalogue!(@new $field, $type)?)?,)* })
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
    fn histogram_opts(&self) -> HistogramOpts {
        let opts = HistogramOpts::new(self.name, self.help);
        match self.kind {
            Kind::Histogram(buckets) => opts.buckets(buckets.0.to_vec()),
            _ => opts,
        }
    }
}

catalogue! {
    pod_terminations: IntCounterVec = "coroner_pod_terminations_total", "", ["cause"],
        "Pod lives that ended on this node, by what ended them.";
    container_deaths: IntCounterVec = "coroner_container_deaths_total", "", ["namespace", "verdict"],
        "Container lives that ended, by namespace (the first 100 seen, then other) and verdict.";
    container_findings: IntCounterVec = "coroner_container_findings_total", "", ["finding"],
        "Findings on containers that died.";
    pod_findings: IntCounterVec = "coroner_pod_findings_total", "", ["finding"],
        "Findings on pods that terminated, besides those on their containers.";
    contradictions: IntCounterVec = "coroner_contradictions_total", "", ["kind"],
        "Container lives of which runtime or apiserver say what the kernel contradicts.";
    termination_duration: HistogramVec(DURATIONS) = "coroner_pod_termination_duration_seconds",
        "seconds", [],
        "From the request to delete a pod to the end of its processes, sandbox and object. \
         Terminations whose beginning was not seen are left out.";
    stop_duration: HistogramVec(DURATIONS) = "coroner_container_stop_duration_seconds", "seconds",
        [],
        "From the first act of stopping a container (preStop or the stop signal) to the exit of \
         its last process.";
    removal_duration: HistogramVec(REMOVALS) = "coroner_sandbox_removal_duration_seconds",
        "seconds", [],
        "From a sandbox's stop to its removal by the kubelet's garbage collection.";
    grace_ratio: HistogramVec(RATIOS) = "coroner_container_stop_grace_ratio", "ratio", [],
        "Share of its grace period that a stopped container used; above 1 it overran.";
    phase_seconds: CounterVec = "coroner_pod_termination_phase_seconds_total", "seconds", ["phase"],
        "Seconds that terminating pods spent in each phase.";
    truncated: IntCounterVec = "coroner_pod_terminations_truncated_total", "", [],
        "Pod terminations whose beginning was not seen: the agent started later.";
    incomplete: IntCounterVec = "coroner_pod_terminations_incomplete_total", "", [],
        "Pod terminations whose account may lack evidence that was lost.";
    amendments: IntCounterVec = "coroner_amendments_total", "", ["reason"],
        "Accounts changed after they were given: the sandbox went (expected), or late evidence.";
    inputs: IntCounterVec = "coroner_inputs_total", "", ["source"],
        "Inputs that the engine was given, by source.";
    kernel_records: IntCounterVec = "coroner_kernel_records_total", "", ["kind"],
        "Records that the kernel programs sent, by kind.";
    evidence_lost: IntCounterVec = "coroner_evidence_lost_total", "", ["kind"],
        "Evidence that was lost, by how.";
    requests_dropped: IntCounterVec = "coroner_requests_dropped_total", "", ["to"],
        "Requests of the engine that an adapter was too busy to take.";
    cgroups_too_deep: IntCounterVec = "coroner_cgroups_too_deep_total", "", [],
        "Cgroups that are not followed: too many levels below their container.";
    cri_calls: IntCounterVec = "coroner_cri_calls_total", "", [],
        "Calls made to the container runtime; all of them only read.";
    api_snapshots: IntCounterVec = "coroner_api_snapshots_total", "", [],
        "Full lists of this node's pods taken from the apiserver.";
    source_errors: IntCounterVec = "coroner_source_errors_total", "", ["source"],
        "Calls and watches of a source that failed.";
    source_skipped: IntCounterVec = "coroner_source_skipped_total", "", ["source"],
        "Things that a source said and that make no sense; they were left out.";
    recording: GaugeVec = "coroner_recording", "", [],
        "1 while the inputs are recorded (--record).";
    recording_inputs: IntCounterVec = "coroner_recording_inputs_total", "", ["outcome"],
        "Inputs that were recorded, or dropped because the disk was too slow.";
    recording_bytes: GaugeVec = "coroner_recording_size_bytes", "bytes", [],
        "Size of the recording.";
    recording_errors: IntCounterVec = "coroner_recording_errors_total", "", [],
        "Failures to write the recording; the first one ends it.";
    engine_entries: GaugeVec = "coroner_engine_entries", "", ["kind"],
        "Entries in the engine's memory, by kind; bounded.";
    terminating: GaugeVec = "coroner_pods_terminating", "", [],
        "Pods whose end is under way on this node.";
    unkillable: GaugeVec = "coroner_containers_unkillable", "", ["state"],
        "Containers that are alive long after SIGKILL, by the state of what is left of them: \
         uninterruptible hangs in the kernel. The log says where.";
    leaked_sandboxes: GaugeVec = "coroner_leaked_sandboxes", "", ["class"],
        "Sandboxes that were left behind on this node, by what of them is wrong.";
    orphans: GaugeVec = "coroner_orphans", "", ["kind"],
        "Shims, network namespaces and pods' cgroups that no sandbox and no pod knows.";
    stuck_terminating: GaugeVec = "coroner_pods_stuck_terminating", "", ["reason"],
        "Pods whose object is still there long after its deadline, by what they wait for.";
    leak_causes: GaugeVec = "coroner_leaks", "", ["cause"],
        "All that was left behind on this node (sandboxes, orphans, stuck pods), by likely cause.";
    leaked_ips: GaugeVec = "coroner_leaked_sandbox_ips", "", [],
        "Addresses that leaked sandboxes hold.";
    leaked_created: GaugeVec = "coroner_leaked_sandbox_created_timestamp_seconds", "seconds",
        ["namespace", "pod", "uid", "sandbox", "class", "cause"],
        "When a leaked sandbox was made; exists only while the leak does, for the oldest ones up \
         to --leak-series.";
    leaked_unlisted: GaugeVec = "coroner_leaked_sandboxes_without_series", "", [],
        "Leaked sandboxes beyond --leak-series: counted, but without a series of their own.";
    leak_suspects: GaugeVec = "coroner_leak_suspects", "", [],
        "What looks like a leak and has not been confirmed yet: it may only be late.";
    leaks_found: IntCounterVec = "coroner_leaks_found_total", "", ["class"],
        "Leaks that became certain.";
    leaks_gone: IntCounterVec = "coroner_leaks_gone_total", "", ["class"],
        "Leaks that are gone.";
    leak_judgement: GaugeVec = "coroner_leak_judgement", "", ["state"],
        "1 for the state that judging leaks is in: possible, or why it is suspended.";
    leak_judged: IntCounterVec = "coroner_leak_judged_seconds_total", "seconds", [],
        "Time in which all sources were in sync, so that leaks could be judged.";
    leak_contradictions: IntCounterVec = "coroner_leak_contradictions_total", "", [],
        "Suspects that the apiserver, asked past the watch, has cleared.";
    cri_connected: GaugeVec = "coroner_cri_connected", "", [],
        "1 while the container runtime answers.";
    api_in_sync: GaugeVec = "coroner_api_in_sync", "", [],
        "1 while the watch of this node's pods is in sync with the apiserver.";
    ready: GaugeVec = "coroner_ready", "", [],
        "1 while every source of evidence works (/readyz).";
    hook_attached: GaugeVec = "coroner_hook_attached", "", ["hook"],
        "1 for each kernel hook that is attached and passed its self-test.";
    ring_used: GaugeVec = "coroner_ring_used_bytes", "bytes", ["ring"],
        "Bytes that waited in a ring buffer when it was last drained.";
    ring_size: GaugeVec = "coroner_ring_size_bytes", "bytes", ["ring"],
        "Size of a ring buffer.";
    watched_cgroups: GaugeVec = "coroner_watched_cgroups", "", [],
        "Cgroups that the kernel programs watch.";
    build_info: GaugeVec = "coroner_build_info", "", ["version"],
        "1, with the agent's version as label.";
}
