//! Export by OTLP, at least once: what the history holds and has not sent goes to the receiver, oldest first, and is
//! marked when the receiver has taken or finally refused it. Runs on the thread of the network; the event loop never
//! waits for it.

mod client;
mod mapping;
pub mod options;

pub use client::Failure;
pub use mapping::trace_id;
pub use options::{Endpoint, Signal, Target, targets};

use crate::{
    linux::clock,
    sources::backoff::backoff,
    store::history::{History, Kept, Unsent},
};
use backon::ExponentialBackoff;
use client::{Answer, Client, Rejections};
use coroner_core::time::WallTime;
use mapping::Mapped;
use opentelemetry_proto::tonic::{
    collector::{logs::v1::ExportLogsServiceResponse, trace::v1::ExportTraceServiceResponse},
    logs::v1::LogRecord,
    trace::v1::Span,
};
use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Reports in one request, and their bytes, which are in memory as long as the receiver is away.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 256 << 10;
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Spans and log records, and requests that failed.
#[derive(Debug, Default)]
pub struct ExportCounters {
    pub sent: AtomicU64,
    /// Partly taken batches: what the receiver rejected.
    pub rejected: AtomicU64,
    /// Refused batches.
    pub refused: AtomicU64,
    /// Terminations and deaths that wait.
    pub queued: AtomicU64,
    failures: [AtomicU64; Failure::ALL.len()],
}

impl ExportCounters {
    pub fn outcomes(&self) -> [(&'static str, &AtomicU64); 3] {
        [("sent", &self.sent), ("rejected", &self.rejected), ("refused", &self.refused)]
    }

    pub fn failures(&self) -> impl Iterator<Item = (Failure, &AtomicU64)> {
        Failure::ALL.iter().copied().zip(&self.failures)
    }

    fn failed(&self, failure: Failure) {
        self.failures[failure as usize].fetch_add(1, Relaxed);
    }
}

pub struct Exporter {
    clients: Vec<Client>,
    history: History,
    node: String,
    counters: Arc<ExportCounters>,
    stopping: watch::Receiver<bool>,
    /// Refusals and rejections that were logged: each once.
    logged: BTreeSet<(Signal, String)>,
}

/// One request of each signal, and which reports are done when all are.
struct Batch {
    ids: Vec<i64>,
    spans: Vec<Span>,
    records: Vec<LogRecord>,
}

impl Exporter {
    /// `stopping`: what is queued is sent, then [`run`](Self::run) ends.
    pub fn new(
        targets: Vec<Target>,
        history: History,
        node: String,
        counters: Arc<ExportCounters>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        for target in &targets {
            let protocol = if target.is_grpc { "grpc" } else { "http/protobuf" };
            info!(signal = %target.signal, endpoint = %target, protocol, "exporting by OTLP");
            if target.shows_headers() {
                warn!(
                    signal = %target.signal,
                    "OTEL_EXPORTER_OTLP_HEADERS are sent without encryption; use an https:// endpoint"
                );
            }
        }
        let clients = targets.into_iter().map(Client::new).collect();
        Self { clients, history, node, counters, stopping, logged: BTreeSet::new() }
    }

    pub async fn run(mut self) {
        loop {
            let unsent = self.history.unsent(BATCH).await;
            self.count_queue().await;
            if unsent.is_empty() {
                if *self.stopping.borrow() {
                    return;
                }
                tokio::select! {
                    () = self.history.until_due() => {}
                    _ = self.stopping.changed() => {}
                }
                continue;
            }
            let batch = Batch::of(unsent, clock::anchor().wall(clock::boot_now()));
            self.deliver(&batch).await;
            // What is not marked would be found and sent again, as fast as the receiver takes it.
            while !self.history.sent(batch.ids.clone()).await {
                if *self.stopping.borrow() {
                    return;
                }
                let _ = timeout(MIN_PAUSE, self.stopping.changed()).await; // either way, once more
            }
        }
    }

    async fn count_queue(&self) {
        self.counters.queued.store(self.history.unsent_count().await, Relaxed);
    }

    /// Returns when each signal's request is taken or finally refused.
    async fn deliver(&mut self, batch: &Batch) {
        for at in 0..self.clients.len() {
            let count = match self.clients[at].target.signal {
                Signal::Traces => batch.spans.len(),
                Signal::Logs => batch.records.len(),
            };
            if count > 0 {
                self.deliver_to(at, batch, count as u64).await;
            }
        }
    }

    async fn deliver_to(&mut self, at: usize, batch: &Batch, count: u64) {
        let (mut pauses, mut failed) = (backoff(MIN_PAUSE, MAX_PAUSE), false);
        let signal = self.clients[at].target.signal;
        loop {
            match self.attempt(at, batch).await {
                Answer::Taken { rejected, why } => {
                    let rejected = rejected.min(count);
                    self.counters.sent.fetch_add(count - rejected, Relaxed);
                    self.counters.rejected.fetch_add(rejected, Relaxed);
                    if rejected > 0 {
                        let why = format!("rejected a part{why}");
                        self.log_once(signal, why, "see the receiver's log");
                    }
                    if failed {
                        info!(%signal, "the OTLP receiver takes reports again");
                    }
                    return;
                }
                Answer::Refused { why, todo } => {
                    self.counters.refused.fetch_add(count, Relaxed);
                    self.log_once(signal, why, todo);
                    return;
                }
                Answer::Later { failure, why, pause } => {
                    self.counters.failed(failure);
                    self.count_queue().await;
                    if !failed {
                        let to = &self.clients[at].target;
                        warn!(%signal, endpoint = %to, why, "cannot export; reports wait in the history, and are sent again");
                    }
                    failed = true;
                    self.wait(pause, &mut pauses).await;
                }
            }
        }
    }

    async fn attempt(&self, at: usize, batch: &Batch) -> Answer {
        let client = &self.clients[at];
        match client.target.signal {
            Signal::Traces => {
                const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                let request = mapping::traces(&self.node, batch.spans.clone());
                client.send::<ExportTraceServiceResponse>(&request, PATH).await
            }
            Signal::Logs => {
                const PATH: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
                let request = mapping::logs(&self.node, batch.records.clone());
                client.send::<ExportLogsServiceResponse>(&request, PATH).await
            }
        }
    }

    /// Until the next attempt; a stop of the agent ends it once.
    async fn wait(&mut self, pause: Option<Duration>, pauses: &mut ExponentialBackoff) {
        let own = pauses.next().unwrap_or(MAX_PAUSE);
        if *self.stopping.borrow() {
            return sleep(MIN_PAUSE).await;
        }
        let stopped = self.stopping.changed();
        let _ = timeout(own.max(pause.unwrap_or_default()), stopped).await; // either way, the next attempt
    }

    fn log_once(&mut self, signal: Signal, why: String, todo: &str) {
        if self.logged.len() < 32 && self.logged.insert((signal, why.clone())) {
            warn!(%signal, why, todo, "the OTLP receiver refused reports, which are lost for it");
        }
    }
}

impl Batch {
    /// The first of these, up to [`BATCH_BYTES`]. A death in a termination of the same batch is in its trace.
    fn of(unsent: Vec<Unsent>, now: WallTime) -> Self {
        let of_terminations: HashSet<_> = unsent
            .iter()
            .filter_map(|one| match &one.item {
                Kept::Termination(report) => Some(report.containers.iter()),
                Kept::Death(_) => None,
            })
            .flatten()
            .map(|death| death.id.clone())
            .collect();
        let mut batch = Self { ids: Vec::new(), spans: Vec::new(), records: Vec::new() };
        let mut bytes = 0;
        for Unsent { id, item } in unsent {
            let mapped = match &item {
                Kept::Termination(report) => Mapped::of_termination(report, now),
                Kept::Death(death) if of_terminations.contains(&death.id) => {
                    batch.ids.push(id);
                    continue;
                }
                Kept::Death(death) => Mapped::of_death(death, now),
            };
            bytes += mapped.bytes();
            if bytes > BATCH_BYTES && !batch.records.is_empty() {
                break;
            }
            batch.ids.push(id);
            batch.spans.extend(mapped.spans);
            batch.records.push(mapped.record);
        }
        batch
    }
}

impl Rejections for ExportTraceServiceResponse {
    fn rejected(self) -> (i64, String) {
        let partial = self.partial_success.unwrap_or_default();
        (partial.rejected_spans, partial.error_message)
    }
}

impl Rejections for ExportLogsServiceResponse {
    fn rejected(self) -> (i64, String) {
        let partial = self.partial_success.unwrap_or_default();
        (partial.rejected_log_records, partial.error_message)
    }
}
