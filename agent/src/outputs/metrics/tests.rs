use super::*;
use crate::outputs::events;
use crate::{outputs::report::samples, sources::kernel::StartReport};
use coroner_core::{
    input::{ConnectionEvent, LossKind, TrafficBlindness},
    report::OpenConnections,
    time::BootTime,
    types::Contradiction,
};

/// The families with an identity.
const LEAKED: [&str; 2] = [
    "coroner_leaked_sandbox_created_timestamp_seconds",
    "coroner_leaked_sandbox_observed_timestamp_seconds",
];

const OF_SCRAPES: [&str; 8] =
    ["namespace", "pod", "container", "node", "job", "instance", "endpoint", "cluster"];

/// Of one termination.
fn history() -> History {
    let history = History::in_memory();
    history.terminated(Box::new(samples::graceful()), true);
    futures::executor::block_on(history.flush());
    history
}

fn health() -> Health {
    let mut health = Health::new(true, BootTime(0));
    let hooks = [("cgroup_mkdir", Ok(()))].into();
    health.kernel_started(StartReport { hooks, ..StartReport::default() });
    health
}

/// Metrics that have seen one of everything.
fn seen() -> Metrics {
    let metrics = Metrics::new().unwrap();
    let counters = Arc::new(kernel::KernelCounters::default());
    counters.records.store(7, Relaxed);
    counters.ring_bytes.store(1 << 20, Relaxed);
    counters.deciding_used.store(96, Relaxed);
    counters.containers.store(3, Relaxed);
    let api = Arc::new(kube::KubeCounters::default());
    api.errors.store(2, Relaxed);
    api.truncated.add(Cut::Finalizers, 6);
    let events = Arc::new(events::EventCounters::default());
    events.sent.store(8, Relaxed);
    metrics.watch(SourceCounters {
        kernel: counters,
        shows_refusals: true,
        events: Some(events),
        api: Some(api),
        history: Some(history()),
        ..SourceCounters::default()
    });
    let mut account = samples::two_containers();
    let workload = Workload { kind: "Deployment".into(), name: "web".into() };
    account.containers[0].workload = Some(workload);
    let contradiction =
        Finding::contradiction(Contradiction::RuntimeExitCode, "the runtime says 137");
    account.containers[0].findings.push(contradiction);
    for death in &account.containers {
        metrics.record(&Report::CountDeath(Box::new(death.clone())));
    }
    metrics.record(&Report::PodTerminated(Box::new(account.clone())));
    let counted = samples::with_traffic(account);
    metrics.record(&Report::CountTermination(Box::new(counted)));
    let updated = Box::new(samples::sandbox_removed());
    metrics.record(&Report::PodUpdated(updated, Change::SandboxRemoved));
    let runtime = CriEvent::Connected { runtime: "containerd 2.1.4".into(), process: None };
    metrics.input(&Received { at: BootTime(1), input: Input::Cri(runtime) });
    let mut unseen = samples::with_traffic(samples::graceful());
    unseen.traffic.as_mut().unwrap().not_visible = Some(TrafficBlindness::ALL[0]);
    metrics.record(&Report::CountTermination(Box::new(unseen)));
    let leaks = LeakGauges {
        detection_state: DetectionState::Possible,
        watched: Duration::from_secs(77),
        candidates: 3,
        reported: [
            ((LeakClass::NotreadyNoPod, LeakCause::PodWorkerStuck), 2),
            ((LeakClass::OrphanNetns, LeakCause::UntrackedByRuntime), 1),
            ((LeakClass::StuckTerminating, LeakCause::Finalizer), 4),
        ]
        .into(),
        ips: 5,
    };
    let leaked = Arc::new(samples::leaked());
    metrics.record(&Report::LeakOpened(Arc::clone(&leaked)));
    metrics.record(&Report::LeakResolved(Arc::clone(&leaked)));
    metrics.leaked(&[leaked, Arc::new(samples::stuck())]);
    let losses = [(LossKind::DetailRingFull, 5)].into();
    let unkillable = [(TaskState::Uninterruptible, 2)].into();
    let gauges =
        Gauges { cgroups: 4, terminating: 1, losses, unkillable, leaks, ..Gauges::default() };
    metrics.engine(&gauges);
    metrics.engine(&gauges); // the same again adds nothing
    metrics.request_dropped(Adapter::Cri);
    metrics.watch_export(Arc::default());
    metrics.audited([(("shop".to_owned(), StopResponse::Ignores), 2)].into());
    metrics
}

#[test]
fn namespaces_of_audits_are_bounded() {
    let metrics = Metrics::new().unwrap();
    let counts = (0..2 * SERIES).map(|n| ((format!("n{n}"), StopResponse::Waits), n + 1));
    metrics.audited(counts.collect());
    let text = scrape(&metrics);
    let series =
        text.lines().filter(|line| line.starts_with("coroner_containers_by_stop_response{"));
    assert_eq!(series.count(), SERIES + 1);
    let rest = SERIES * (SERIES + 1) / 2;
    let other = format!(
        "coroner_containers_by_stop_response{{pod_namespace=\"other\",response=\"waits\"}} {rest}"
    );
    assert!(text.lines().any(|line| line == other), "{text}");
}

fn scrape(metrics: &Metrics) -> String {
    metrics.scrape(&health()).unwrap()
}

/// A scrape when no series is new any more.
async fn scrape_later(metrics: &Metrics) -> String {
    tokio::time::advance(Duration::from_secs(120)).await;
    scrape(metrics)
}

/// The rules for clusters count by it, and the metric by namespace by itself.
#[test]
fn what_is_slow_is_an_edge_of_the_buckets() {
    let family =
        CATALOGUE.iter().find(|one| one.name == "coroner_pod_termination_duration_seconds");
    let MetricKind::Histogram(buckets) = family.unwrap().kind else { panic!() };
    assert!(buckets.contains(&SLOW.as_secs_f64()));
}

#[test]
fn sources_that_are_not_asked_are_not_reported_as_silent() {
    let metrics = Metrics::new().unwrap();
    let mut health = Health::new(true, BootTime(0));
    health.kernel_failed("no BTF".into());
    let text = metrics.scrape(&health).unwrap();
    for name in ["coroner_cri_connected ", "coroner_api_in_sync "] {
        assert!(!text.lines().any(|line| line.starts_with(name)), "{text}");
    }
    assert!(text.contains("coroner_hook_attached{hook=\"cgroup_mkdir\"} 0\n"), "{text}");
    assert!(text.contains("coroner_ready 0\n"), "{text}");
}

#[test]
fn names_follow_the_rules_of_prometheus() {
    for entry in CATALOGUE {
        let name = entry.name;
        assert!(name.starts_with("coroner_"), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), entry.kind == MetricKind::Counter, "{name}");
        let stem = name.trim_end_matches("_total");
        if !entry.unit.is_empty() {
            assert!(stem.ends_with(&format!("_{}", entry.unit)), "{name}: {}", entry.unit);
        }
        for wrong in ["_ms", "_milliseconds", "_count", "_sum", "_bucket", "_minutes"] {
            assert!(!stem.ends_with(wrong), "{name}");
        }
        assert!(entry.help.ends_with('.'), "{name}: the help is a sentence");
        for label in entry.labels {
            // Identity only in a series that exists no longer than the thing it names.
            let identity = matches!(*label, "pod_name" | "uid" | "sandbox");
            assert!(!identity || LEAKED.contains(&name), "{name}");
            // With one of a scrape's own, every scrape needed honorLabels.
            assert!(!OF_SCRAPES.contains(label), "{name}: {label}");
        }
        if let MetricKind::Histogram(buckets) = entry.kind {
            assert!(buckets.is_sorted_by(|a, b| a < b), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_termination_as_a_scrape() {
    let text = scrape_later(&seen()).await.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    for entry in CATALOGUE {
        assert!(text.contains(&format!("# HELP {} ", entry.name)), "{}", entry.name);
    }
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let text = text.replace(&kernel, "KERNEL");
    crate::outputs::report::samples::golden("metrics.txt", &text);
}

/// lab/tests/deploy/export.rs has its own parser read it.
#[tokio::test(start_paused = true)]
async fn the_same_as_openmetrics_with_the_trace_of_the_last_termination() {
    let metrics = Metrics::new().unwrap().with_exemplars();
    let account = samples::graceful();
    metrics.record(&Report::CountTermination(Box::new(account.clone())));
    metrics.watch_export(Arc::default());
    tokio::time::advance(Duration::from_secs(120)).await;
    let text = metrics.scrape_openmetrics(&health()).unwrap();
    let trace = u128::from_be_bytes(otlp::trace_id(&account));
    let exemplar = format!("le=\"10.0\"}} 1 # {{trace_id=\"{trace:032x}\"}} 5.402 ");
    assert!(text.contains(&exemplar), "{text}");
    let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    samples::golden("openmetrics.txt", &text);
}

/// The object went at some time in an outage of the watch of 90 s.
#[test]
fn a_duration_that_is_an_interval_is_in_no_histogram() {
    let metrics = Metrics::new().unwrap();
    let account = samples::gone_in_an_outage();
    metrics.record(&Report::CountTermination(Box::new(account)));
    let text = scrape(&metrics);
    assert!(text.contains("coroner_pod_terminations_unmeasured_total 1\n"), "{text}");
    assert!(
        text.contains(
            "coroner_pod_termination_duration_seconds_count{cause_class=\"deletion\"} 0\n"
        ),
        "{text}"
    );
    let phase =
        |kind: &str| format!("coroner_pod_termination_phase_seconds_total{{phase=\"{kind}\"}}");
    let seconds = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&phase(kind)));
        line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    assert!((seconds("unattributed") - 90.0).abs() < 0.001, "{text}");
    assert!(seconds("cleanup") < 2.0, "{text}");
}

/// A Job that completed is no deletion, however slow what follows it is; an unknown cause is neither.
#[test]
fn only_deletions_and_evictions_are_in_the_rate_that_the_objective_rests_on() {
    for (cause, truncated, measured) in [
        (Cause::ApiDelete, false, "_duration_seconds_count{cause_class=\"deletion\"} 1\n"),
        (Cause::TaintEviction, false, "_duration_seconds_count{cause_class=\"eviction\"} 1\n"),
        (Cause::Unknown, false, "coroner_pod_terminations_unmeasured_total 1\n"),
        (Cause::ApiDelete, true, "coroner_pod_terminations_unmeasured_total 1\n"),
    ] {
        let metrics = Metrics::new().unwrap();
        let account = PodTermination { cause, truncated, ..samples::graceful() };
        metrics.record(&Report::CountTermination(Box::new(account)));
        let text = scrape(&metrics);
        let is_counted =
            |line: &str| line.contains("_duration_seconds_count") && line.ends_with(" 1");
        assert!(text.contains(measured), "{text}");
        let is_measured = cause.class().is_some() && !truncated;
        assert_eq!(text.lines().any(is_counted), is_measured, "{text}");
        assert_eq!(text.contains("coroner_pod_deletions_total{"), is_measured, "{text}");
    }
}

#[test]
fn series_by_workload_are_bounded_and_can_be_of_the_namespace_alone() {
    let deaths = |series: usize| {
        let metrics = Metrics::new().unwrap().with_workloads(series);
        let mut death = samples::graceful().containers.remove(0);
        for n in 0..5 {
            death.workload = Some(Workload { kind: "Deployment".into(), name: format!("web-{n}") });
            metrics.record(&Report::CountDeath(Box::new(death.clone())));
        }
        let text = scrape(&metrics);
        let lines = text.lines().filter(|line| line.starts_with("coroner_container_deaths_total{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let of = |namespace: &str, kind: &str, name: &str, container: &str| {
        format!(
            "coroner_container_deaths_total{{pod_container=\"{container}\",pod_namespace=\"{namespace}\",\
             verdict=\"graceful\",workload=\"{name}\",workload_type=\"{kind}\"}} 0"
        )
    };
    let own = |name| of("shop", "deployment", name, "web");
    assert_eq!(deaths(2), [of("shop", "other", "other", "other"), own("web-0"), own("web-1")]);
    assert_eq!(deaths(0), [of("shop", "", "", "")]);
}

#[test]
fn series_with_an_identity_are_bounded_and_go_with_the_leak() {
    let metrics = Metrics::new().unwrap();
    let leaks: Vec<_> = (0..LEAK_SERIES + 2)
        .map(|n| {
            let mut leak = samples::leaked();
            leak.key = LeakKey::Sandbox { id: format!("s{n}").as_str().into() };
            Arc::new(leak)
        })
        .collect();
    let series = |metrics: &Metrics| {
        let text = scrape(metrics);
        let of = |family| text.lines().filter(|l| l.starts_with(&format!("{family}{{"))).count();
        let [created, observed] = LEAKED.map(of);
        assert_eq!(created, observed, "both are of the same leaks");
        created
    };
    metrics.leaked(&leaks);
    assert_eq!(series(&metrics), LEAK_SERIES);
    metrics.leaked(&leaks[4..5]);
    assert_eq!(series(&metrics), 1);
    assert!(scrape(&metrics).contains("sandbox=\"s4\""));
    metrics.leaked(&[]);
    assert_eq!(series(&metrics), 0);
}

#[test]
fn found_minus_gone_is_what_stands_of_each_class() {
    let metrics = Metrics::new().unwrap();
    let counted = |class: LeakClass| {
        let of = &metrics.families;
        [&of.leaks_opened, &of.leaks_resolved].map(|of| of.counted(&[class.as_str()]))
    };
    let leak = samples::leaked();
    let stands = |class| Arc::new(Leak { class, ..leak.clone() });
    metrics.record(&Report::LeakOpened(stands(LeakClass::ReadyNoPod)));
    metrics.record(&Report::LeakChanged(stands(LeakClass::ReadyNoPod)));
    assert_eq!(counted(LeakClass::ReadyNoPod), [1.0, 0.0]);
    metrics.record(&Report::LeakChanged(stands(LeakClass::NotreadyNoPod)));
    assert_eq!(counted(LeakClass::ReadyNoPod), [1.0, 1.0]);
    assert_eq!(counted(LeakClass::NotreadyNoPod), [1.0, 0.0]);
    metrics.record(&Report::LeakResolved(stands(LeakClass::NotreadyNoPod)));
    assert_eq!(counted(LeakClass::ReadyNoPod), [1.0, 1.0]);
    assert_eq!(counted(LeakClass::NotreadyNoPod), [1.0, 1.0]);
    assert!(metrics.classes.lock().is_empty(), "nothing is kept of what is gone");
}

/// Every label's value in this scrape, with its metric.
fn labelled(text: &str) -> Vec<(&str, &str, &str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.filter_map(|line| line.split_once('{'));
    series
        .flat_map(|(name, rest)| {
            let (labels, _) = rest.rsplit_once('}').unwrap();
            let pairs = labels.split("\",").filter(|pair| !pair.is_empty());
            pairs.map(move |pair| {
                let (label, value) = pair.split_once("=\"").unwrap();
                (name, label, value.trim_end_matches('"'))
            })
        })
        .collect()
}

#[test]
fn closed_sets_of_labels_are_closed() {
    let text = scrape(&seen());
    for (series, label, value) in labelled(&text).into_iter().filter(|(_, label, _)| *label != "le")
    {
        let parts = ["_bucket", "_sum", "_count"].map(|part| series.strip_suffix(part));
        let is = |entry: &&MetricEntry| entry.name == series || parts.contains(&Some(entry.name));
        let entry = CATALOGUE.iter().find(is).expect(series);
        let name = entry.name;
        match entry.values(label).unwrap_or_else(|| panic!("{name} has no label {label}")) {
            Values::Closed(values) => assert!(values().contains(&value), "{name}: {label}={value}"),
            Values::Open(bound) => assert!(!bound.is_empty(), "{name}: {label}"),
        }
    }
}

/// A node with 250 pods of 75 workloads in 30 namespaces, after each of them has been deleted once: one in ten was
/// killed, one in ten cut connections.
#[test]
fn a_full_node_has_as_many_series_as_the_docs_say() {
    let metrics = Metrics::new().unwrap().with_process().unwrap();
    metrics.watch(SourceCounters {
        shows_refusals: true,
        api: Some(Arc::default()),
        history: Some(history()),
        ..SourceCounters::default()
    });
    let mut health = Health::new(true, BootTime(0));
    let hooks = kernel::plan::HOOKS.iter().map(|hook| (hook.name, Ok(()))).collect();
    health.kernel_started(StartReport { hooks, ..StartReport::default() });
    metrics.engine(&Gauges::default());
    metrics.leaked(&[]);
    let series = || {
        let text = metrics.scrape(&health).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    let idle = series();
    let mut account = samples::graceful();
    for pod in 0..250 {
        let of = pod % 75;
        account.pod.namespace = format!("team-{}", of % 30);
        account.workload = Some(Workload { kind: "Deployment".into(), name: format!("web-{of}") });
        let mut death = account.containers[0].clone();
        (death.pod, death.workload) = (Some(account.pod.clone()), account.workload.clone());
        if of % 10 == 0 {
            death.verdict = Verdict::StopSignalIgnored;
        }
        metrics.record(&Report::CountDeath(Box::new(death)));
        let with_traffic = if of % 10 == 1 { samples::with_traffic } else { |account| account };
        metrics.record(&Report::CountTermination(Box::new(with_traffic(account.clone()))));
    }
    let responses = [StopResponse::HasHandler, StopResponse::Ignores];
    let counts = (0..30).flat_map(|n| responses.map(|one| ((format!("team-{n}"), one), 3)));
    metrics.audited(counts.collect());
    assert_eq!([idle, series()], reference::SERIES);
}

/// What the kernel does not show is not 0.
#[test]
fn refused_connections_have_no_series_where_the_kernel_does_not_show_them() {
    let mut account = samples::with_traffic(samples::graceful());
    let mut has_series = |shows_refusals: bool, had_listener: bool| {
        let metrics = Metrics::new().unwrap();
        metrics.watch(SourceCounters { shows_refusals, ..SourceCounters::default() });
        let traffic = account.traffic.as_mut().unwrap();
        traffic.sees_refusals = shows_refusals;
        if !had_listener {
            let none = OpenConnections { established: 0, listening: Vec::new() };
            (traffic.at_begin, traffic.at_stop) = (Some(none.clone()), Some(none));
            traffic.counts.retain(|one| one.event == ConnectionEvent::RefusedAfterStop);
            assert!(!traffic.counts.is_empty());
            traffic.since = BootTime(0).into();
            assert!(account.never_listened());
        }
        metrics.record(&Report::CountTermination(Box::new(account.clone())));
        let text = metrics.scrape(&Health::new(true, BootTime(0))).unwrap();
        text.contains("event=\"refused\"")
    };
    assert!(!has_series(false, true));
    assert!(has_series(true, true));
    assert!(!has_series(true, false), "no port was open");
}
