//! Wiring of adapters, event loop and outputs. One thread suffices for adapters and event loop: a node has few deaths,
//! and the kernel's records wait in the ring buffers. Another one speaks with the network.

mod export;
mod network;
mod record;
mod senders;
mod servers;
mod start;
mod stop;

use coroner_core::{
    engine::{Engine, Settings},
    ids::ContainerId,
    input::{CriEvent, Input, Received},
    leak::Leak,
    output::Report,
    time::{Anchor, Moment},
};

use crate::{
    config::Config,
    linux::{allocator, clock, restrictions::Restrictions},
    outputs::{
        events,
        http::{Observed, SharedState, tls},
        log::lines,
        metrics::{Adapter, Metrics, SourceCounters},
        otlp::{self, Signal},
        recording::{self, Recorder},
    },
    sources::{
        cri, host, kernel, kube, processes, tasks::Adapters, traffic, windowed_max::WindowedMax,
    },
    store::{
        health::Health,
        history::{History, HistoryOptions},
        leaks::LeakStore,
    },
};
use anyhow::Context;
use export::Export;
use network::Network;
use senders::{Events, Senders};
use servers::RunningServers;
use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};
use stop::StopSignals;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, interval_at, sleep, timeout},
};
use tracing::{info, warn};

/// Capacity of the engine's input queue. When it is full, the adapters wait and the kernel's rings fill up
/// (lost records are counted).
const INPUTS: usize = 8192;
/// Inputs per batch, so that the server and the timers are not starved.
const BATCH: usize = 256;
/// Capacity of an adapter's request queue. More requests are dropped and counted; polling finds the same a
/// little later, except what is asked of the kernel adapter.
const REQUESTS: usize = 1024;
/// Maximum number of log lines about leaks per tick; one more line counts the rest.
const LEAK_LINES: usize = 50;
const TICK: Duration = Duration::from_secs(1);
/// Interval at which the event loop returns free memory to the kernel, which takes a fraction of a
/// millisecond. The first time, the start-up is over and its pages are dropped too.
const TRIM_INTERVAL: Duration = Duration::from_secs(15);
/// Drift of the system clock after which timestamps are converted again: NTP slews the clock by at most 0.5 ms
/// per second.
const CLOCK_DRIFT_TOLERANCE: Duration = Duration::from_millis(100);
/// Change of the system clock between two ticks that must be a step, because no slew is that fast.
const CLOCK_STEP: Duration = Duration::from_secs(1);

/// Time for each of adapters, history and servers to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to write the end of the recording after that. The end matters most for a bug report, and the pod's
/// grace period is longer.
const RECORDING_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for pods that have just ended to be reported after SIGTERM, if terminations are exported: the settle window, and
/// the ticks around it. Nothing else on a node that goes would report them.
const LAST_REPORTS_TIMEOUT: Duration = Duration::from_millis(6_500);
/// Time to send what waits then. Meanwhile the recording is written.
const EXPORT_FLUSH_TIMEOUT: Duration = Duration::from_millis(2_500);

/// Runs until SIGTERM, SIGINT or SIGHUP. An error has the reason and the remedy.
pub fn run(config: Config) -> anyhow::Result<()> {
    allocator::configure_allocator();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot set up the event loop")?;
    let result = runtime.block_on(observe(config));
    // A blocking call that hangs (a dead mount under /proc) must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn observe(config: Config) -> anyhow::Result<()> {
    let mut stop = StopSignals::listen()?;
    let args = &config.args;
    // In a pod the service account's token is used.
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let kube = config.sources.kube.as_ref();
    let names_kubeconfig = kube.is_some_and(|kube| kube.kubeconfig.is_some())
        || std::env::var_os("KUBECONFIG").is_some();
    if let Some(kube) = kube {
        kube::config(kube.kubeconfig.as_deref()).await?;
    }
    let directories = config.tls().iter().flat_map(tls::TlsFiles::directories).collect();
    let kubeconfig = kube.is_some() && (names_kubeconfig || !in_pod);
    let certificate = config.tls().map(tls::Certificate::open).transpose()?;
    // The port first: a used port is the most common error, and nothing is attached yet.
    let listener = servers::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another address with --listen", args.listen)
    })?;
    let metrics =
        Metrics::new().and_then(Metrics::with_process).context("cannot register the metrics")?;
    let targets = otlp::targets(args.otlp_endpoint.as_ref(), |name| std::env::var(name).ok())?;
    let has_traces = targets.iter().any(|target| target.signal == Signal::Traces);
    let metrics = if has_traces { metrics.with_exemplars() } else { metrics };
    let metrics = metrics.with_workloads(args.workload_metrics);
    let host_root = config.sources.cri.host_root.clone();
    let boot_id = host::boot_id(&host_root);
    let node = config.sources.kube.as_ref().map_or_else(
        || rustix::system::uname().nodename().to_string_lossy().into_owned(),
        |kube| kube.node.clone(),
    );
    let observed = Observed { node, boot_id: boot_id.clone().unwrap_or_default() };
    let (history, restored) = History::open(HistoryOptions {
        directory: args.leaks.state_dir.clone().filter(|_| !args.history_age.is_zero()),
        age: args.history_age,
        bytes: args.history_size.into(),
        boot_id: boot_id.clone().unwrap_or_default(),
        exports: !targets.is_empty(),
    })?;
    let shared = SharedState::new(
        Health::new(config.sources.kube.is_some(), clock::boot_now()),
        history.clone(),
        LeakStore::new(args.leaks.leak_threshold),
        metrics,
    );
    let shared = Arc::new(shared.of(observed));
    let network = Network::start(directories, kubeconfig)?;
    {
        let mut health = shared.health.lock();
        health.confinement.insert("Landlock", network.restricted.clone());
        // Before anyone asks.
        health.lacks = kernel::privileges_lacking(&config.sources.kernel);
        health.restrictions = Restrictions::probe(&host_root);
        health.node_checks().iter().for_each(lines::check);
    }
    let servers = RunningServers::start(
        &shared,
        &network,
        listener,
        certificate.as_ref(),
        args.api_listen.0,
        args.socket.0.clone(),
    )
    .await?;

    let limit = args.record_limit.into();
    let record = args.record.as_deref().map(|file| record::prepare(file, limit)).transpose()?;
    if let Some(certificate) = certificate {
        network.handle.spawn(certificate.follow());
    }
    let (options, stay) = (&config.sources.kernel, args.keep_running_unready);
    let started = start::kernel(options, stay, kube.is_some() && !in_pod, &shared, &mut stop);
    let Some(started) = started.await? else { return Ok(()) };
    shared.observed_since.get_or_init(clock::boot_now);
    let settings = Settings {
        leak_threshold: args.leaks.leak_threshold,
        uses_api: config.sources.kube.is_some(),
        audit_interval: args.audit_interval,
        audit_age: args.audit_age,
        ..Settings::new(clock::anchor())
    };
    let recorder =
        record.map(|file| record::start(file, limit, &settings, &started.report())).transpose()?;
    let (mut adapters, inputs, senders) =
        start_adapters(started, config, boot_id, &shared, &network);
    let mut events = EventLoop {
        engine: Engine::new(settings),
        shared,
        senders,
        recorder,
        anchor: settings.anchor,
        leak_lines: 0,
        losses: lines::Losses::default(),
        lag: WindowedMax::new(Instant::now()),
    };
    if !restored.is_empty() {
        info!(leaks = restored.len(), "restored leaks that an earlier run confirmed (--state-dir)");
        let leaks = restored.iter().map(|kept| kept.leak.clone()).collect();
        events.shared.leaks.lock().restore(restored);
        let input = Input::Recalled { leaks };
        events.handle_input(Received { at: clock::boot_now(), input });
    }
    let export = Export::start(targets, &history, &events.shared, &network);
    let stopped = async { info!("received {}; shutting down", stop.wait().await) };
    let result = events.run(inputs, &mut adapters, stopped, export.is_some()).await;
    let recorder = events.recorder.take();
    drop(events); // closes the adapters' requests
    let export_deadline = Instant::now() + EXPORT_FLUSH_TIMEOUT;
    export.iter().for_each(Export::stop);
    // What may still deliver evidence first, and the servers last.
    adapters.end(STOP_TIMEOUT).await;
    if let Some(recorder) = recorder {
        recorder.end(RECORDING_FLUSH_TIMEOUT);
    }
    if let Some(export) = export {
        export.end(export_deadline).await;
    }
    if timeout(STOP_TIMEOUT, history.flush()).await.is_err() {
        warn!("timed out storing the history; the last reports may be lost");
    }
    servers.end(STOP_TIMEOUT).await;
    if result.is_ok() {
        info!("shutdown complete");
    }
    result
}

fn start_adapters(
    mut kernel: kernel::Kernel,
    config: Config,
    boot_id: Option<String>,
    shared: &Arc<SharedState>,
    network: &Network,
) -> (Adapters, mpsc::Receiver<Received>, Senders) {
    let Config { args, events, events_lookup, mut sources } = config;
    let (to, inputs) = mpsc::channel(INPUTS);
    let (cri_requests, from_cri_requests) = mpsc::channel(REQUESTS);
    let (commands, from_commands) = mpsc::channel(REQUESTS);
    let (looks, from_looks) = mpsc::channel(REQUESTS);
    let (host_requests, from_host_requests) = mpsc::channel(REQUESTS);
    // For what 1,024 sandboxes ask while programs are attached: a drain is not dropped.
    let (traffic_requests, from_traffic_requests) = mpsc::channel(8 * REQUESTS);
    // Cgroups are found in the hierarchy that the programs watch: ids of others mean nothing.
    let cgroup_root = kernel.cgroup_root().to_owned();
    let proc = processes::ProcessesOptions {
        host_root: sources.cri.host_root.clone(),
        cgroup_root: cgroup_root.clone(),
        counters: Arc::default(),
    };
    let traffic = traffic::TrafficOptions {
        host_root: sources.cri.host_root.clone(),
        attachment: args.traffic,
        counting: kernel.take_counting(),
    };
    let defaults = host::HostOptions::new(&sources.cri.host_root, &cgroup_root);
    let host = host::HostOptions {
        kubelet: args.leaks.kubelet.names(),
        socket: Arc::clone(&sources.cri.dialed),
        // Several surveys per threshold, so that no candidate is confirmed by a survey from before its time.
        every: defaults.every.min(args.leaks.leak_threshold / 4),
        ..defaults
    };
    sources.cri.cgroup_root = Some(cgroup_root);
    shared.metrics.watch(SourceCounters {
        kernel: kernel.counters(),
        shows_refusals: traffic.shows_refusals(),
        cri: sources.cri.counters.clone(),
        api: sources.kube.as_ref().map(|options| options.counters.clone()),
        proc: proc.counters.clone(),
        host: host.counters.clone(),
        events: events.as_ref().map(|options| options.counters.clone()),
        history: Some(shared.history.clone()),
    });
    shared.health.lock().kernel_started(kernel.report());
    let mut adapters = Adapters::default();
    adapters.spawn("kernel", kernel.run(to.clone(), from_commands));
    adapters.spawn("proc", processes::run(proc, to.clone(), from_looks));
    adapters.spawn("cri", cri::run(sources.cri, to.clone(), from_cri_requests));
    adapters.spawn("traffic", traffic::run(traffic, to.clone(), from_traffic_requests));
    adapters.spawn("host", host::run(host, to.clone(), from_host_requests));
    let api = sources.kube.map(|mut options| {
        options.own_boot_id = boot_id;
        let (api_requests, from_api_requests) = mpsc::channel(REQUESTS);
        let run = kube::run(options, to.clone(), from_api_requests);
        adapters.spawn_on(&network.handle, "api", run);
        api_requests
    });
    let lookups = events_lookup.map(|options| {
        let (requests, from_requests) = mpsc::channel(REQUESTS);
        let run = kube::list_events(options, to.clone(), from_requests);
        adapters.spawn_on(&network.handle, "events-lookup", run);
        requests
    });
    let events = events.map(|options| {
        let counters = Arc::clone(&options.counters);
        let (notes, from_notes) = mpsc::channel(events::QUEUE);
        adapters.spawn_on(&network.handle, "events", events::run(options, from_notes));
        Events { notes, counters }
    });
    let senders = Senders {
        lookups,
        cri: cri_requests,
        kernel: commands,
        proc: looks,
        host: host_requests,
        traffic: traffic_requests,
        api,
        events,
        shared: Arc::clone(shared),
    };
    (adapters, inputs, senders)
}

struct EventLoop {
    engine: Engine,
    shared: Arc<SharedState>,
    senders: Senders,
    recorder: Option<Recorder>,
    anchor: Anchor,
    leak_lines: usize,
    losses: lines::Losses,
    /// Nanoseconds by which ticks were late.
    lag: WindowedMax,
}

impl EventLoop {
    /// Runs until `stop`, or until an adapter stops, which is an error. `reports_the_last`: after `stop`, pods that are
    /// terminating have some seconds to be reported.
    async fn run(
        &mut self,
        mut inputs: mpsc::Receiver<Received>,
        adapters: &mut Adapters,
        stop: impl Future<Output = ()>,
        reports_the_last: bool,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut batch = Vec::with_capacity(BATCH);
        let (mut trims, mut starting) =
            (interval_at(Instant::now() + TRIM_INTERVAL, TRIM_INTERVAL), true);
        trims.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (is_over, mut is_stopping) = (sleep(Duration::MAX), false);
        tokio::pin!(stop, is_over);
        let result = loop {
            if is_stopping && self.engine.gauges().terminating == 0 {
                break Ok(());
            }
            tokio::select! {
                biased;
                () = &mut stop, if !is_stopping => {
                    let limit = if reports_the_last { LAST_REPORTS_TIMEOUT } else { Duration::ZERO };
                    is_over.as_mut().reset(Instant::now() + limit);
                    is_stopping = true;
                }
                () = &mut is_over => break Ok(()),
                error = adapters.failure() => break Err(error),
                due = ticks.tick() => {
                    self.note_lag(due);
                    self.tick();
                }
                _ = trims.tick() => match std::mem::take(&mut starting) {
                    true => allocator::drop_startup_pages(),
                    false => allocator::trim_heap(),
                },
                _ = inputs.recv_many(&mut batch, BATCH) => {
                    for received in batch.drain(..) {
                        self.handle_input(received);
                    }
                }
            }
        };
        // Inputs that were sent before the shutdown still count.
        inputs.close();
        while let Some(received) = inputs.recv().await {
            self.handle_input(received);
        }
        self.tick();
        // Otherwise Events that wait for late evidence would be lost at exit.
        let rest = self.engine.count_the_rest();
        self.emit_all(rest);
        result
    }

    fn note_lag(&mut self, due: Instant) {
        let now = Instant::now();
        let lag = u64::try_from(now.duration_since(due).as_nanos()).unwrap_or(u64::MAX);
        let longest = self.lag.observe(now, lag);
        self.shared.metrics.event_loop_lag(Duration::from_nanos(longest));
    }

    /// Timestamps are boot-clock times; the anchor converts them to wall-clock times. Replaces the anchor when the
    /// system clock was set.
    fn read_clock(&mut self) {
        let anchor = clock::anchor();
        let drift = self.anchor.drift(&anchor);
        if drift < CLOCK_DRIFT_TOLERANCE {
            return;
        }
        if drift >= CLOCK_STEP {
            info!(by = ?drift, "the system clock was stepped; timestamps now follow the new time");
        }
        self.shared.leaks.lock().clock_was_set(&anchor);
        self.anchor = anchor;
        self.handle_input(Received { at: clock::boot_now(), input: Input::Clock(anchor) });
    }

    fn tick(&mut self) {
        self.read_clock();
        self.handle_input(Received { at: clock::boot_now(), input: Input::Tick });
        let gauges = self.engine.gauges();
        self.shared.metrics.engine(&gauges);
        let longest = self.shared.metrics.slowest_cri_call();
        let is_other_state = self.shared.leaks.lock().update_detection(&gauges.leaks);
        let checks = {
            let mut health = self.shared.health.lock();
            health.detection_state = gauges.leaks.detection_state;
            let is_other_runtime = health.runtime_takes(longest);
            let runtime = is_other_runtime.then(|| health.runtime_check(clock::boot_now()));
            [runtime, is_other_state.then(|| health.leak_check())]
        };
        // Without the lock: the log's reader may hang.
        checks.iter().flatten().for_each(lines::check);
        if let Some(counts) = self.shared.audits.lock().take_counts() {
            self.shared.metrics.audited(counts);
        }
        self.losses.log_sums(Instant::now());
        self.leaks_changed();
    }

    /// Publishes the leaks, at most once per tick.
    fn leaks_changed(&mut self) {
        let more = std::mem::take(&mut self.leak_lines).saturating_sub(LEAK_LINES);
        if more > 0 {
            lines::more_leaks(more);
        }
        let (gone, leaks) = {
            let mut store = self.shared.leaks.lock();
            (store.take_gone(), store.take_changed().then(|| store.oldest_first()))
        };
        if !gone.is_empty() {
            self.shared.history.leaks_gone(gone);
        }
        if let Some(leaks) = leaks {
            self.shared.metrics.leaked(&leaks);
        }
    }

    fn log_leak(&mut self, leak: &Leak, gone: bool) {
        self.leak_lines += 1;
        if self.leak_lines <= LEAK_LINES {
            lines::leak(leak, gone, self.anchor.wall(clock::boot_now()));
        }
    }

    fn handle_input(&mut self, received: Received) {
        self.shared.metrics.input(&received);
        self.shared.health.lock().note(&received);
        if let Input::Lost(loss) = &received.input {
            // The sources log their own outages.
            self.losses.note(loss.kind, loss.count, Instant::now());
        }
        if let Input::Cri(CriEvent::Connected { process, .. }) = &received.input {
            self.senders.hand(&self.senders.host, *process, Adapter::Host);
        }
        let received = Received { input: recording::redact(received.input), ..received };
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&received);
        }
        let outputs = self.engine.step(received);
        self.emit_all(outputs.reports);
        outputs.requests.into_iter().for_each(|request| self.senders.request(request));
    }

    fn emit_all(&mut self, reports: Vec<Report>) {
        // A death is counted with the termination that it is part of.
        let of_termination = |report: &Report| match report {
            Report::CountTermination(report) => {
                report.containers.iter().map(|death| death.id.clone()).collect()
            }
            _ => Vec::new(),
        };
        let of_terminations = reports.iter().flat_map(of_termination).collect();
        reports.into_iter().for_each(|report| self.emit(report, &of_terminations));
    }

    fn emit(&mut self, report: Report, of_terminations: &HashSet<ContainerId>) {
        self.shared.metrics.record(&report);
        let history = &self.shared.history;
        let was_posted = match &report {
            Report::LeakOpened(leak) => self.shared.leaks.lock().is_posted(&leak.key),
            _ => false,
        };
        let is_posted = was_posted || self.senders.post_event(&report);
        match report {
            Report::ContainerDied(death) => {
                history.died(death, false);
            }
            Report::CountDeath(death) => {
                let is_of_termination = of_terminations.contains(&death.id);
                lines::death(&death, is_of_termination);
                match is_of_termination {
                    true => history.died_with_pod(death),
                    false => history.died(death, true),
                }
            }
            Report::PodTerminated(account) => {
                lines::termination(&account);
                history.terminated(account, false);
            }
            Report::PodUpdated(account, change) => {
                lines::update(&account, change);
                history.terminated(account, false);
            }
            Report::CountTermination(account) => history.terminated(account, true),
            Report::Audited(audit) => self.shared.audits.lock().put(audit),
            Report::AuditOver(id) => self.shared.audits.lock().remove(&id),
            Report::Unkillable(holdout) => lines::holdout(&holdout),
            Report::LeakOpened(leak) => {
                history.leak_opened(Arc::clone(&leak), is_posted);
                self.log_leak(&leak, false);
                self.shared.leaks.lock().put(leak);
            }
            Report::LeakChanged(leak) => self.shared.leaks.lock().put(leak),
            Report::LeakResolved(leak) => {
                self.log_leak(&leak, true);
                let resolved_at = Some(Moment::of_boot(clock::boot_now(), &self.anchor));
                let leak = Arc::new(Leak { resolved_at, ..Leak::clone(&leak) });
                self.shared.history.leak_resolved(Arc::clone(&leak));
                self.shared.leaks.lock().remove(leak);
            }
        }
    }
}
