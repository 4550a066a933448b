//! Request channels of the adapters. Sending never waits, because the adapter may be waiting for the event loop.
//! A request that does not fit is dropped and counted.

use crate::{
    outputs::{
        events::{EventCounters, QueuedDraft, note},
        http::SharedState,
        metrics::Adapter,
    },
    sources::{host, kernel::KernelCommand, processes::ProcRequest},
};
use coroner_core::{
    ids::PodRef,
    output::{CriRequest, Report, Request, TrafficRequest},
};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tokio::{sync::mpsc::Sender, time::Instant};

pub(super) struct Senders {
    pub(super) cri: Sender<CriRequest>,
    pub(super) kernel: Sender<KernelCommand>,
    pub(super) proc: Sender<ProcRequest>,
    pub(super) host: Sender<host::Runtime>,
    pub(super) traffic: Sender<TrafficRequest>,
    /// `None`: the agent runs without the apiserver.
    pub(super) api: Option<Sender<Vec<PodRef>>>,
    /// `None`: the Events of pods are not looked up.
    pub(super) lookups: Option<Sender<PodRef>>,
    pub(super) events: Option<Events>,
    pub(super) shared: Arc<SharedState>,
}

pub(super) struct Events {
    pub(super) notes: Sender<QueuedDraft>,
    pub(super) counters: Arc<EventCounters>,
}

impl Senders {
    pub(super) fn request(&self, request: Request) {
        match request {
            Request::Cri(request) => self.hand(&self.cri, request, Adapter::Cri),
            Request::Traffic(request) => self.hand(&self.traffic, request, Adapter::Traffic),
            Request::InspectProcesses(which) => {
                self.hand(&self.proc, ProcRequest::Inspect(which), Adapter::Proc);
            }
            Request::ReadStopState(which) => {
                self.hand(&self.proc, ProcRequest::StopState(which), Adapter::Proc);
            }
            Request::TraceSignal { cgroup, signal } => {
                let command = KernelCommand::AllowSignal { cgroup, signal };
                self.hand(&self.kernel, command, Adapter::Kernel);
            }
            Request::WatchCgroup { cgroup, path } => {
                let command = KernelCommand::Watch { cgroup, path };
                self.hand(&self.kernel, command, Adapter::Kernel);
            }
            Request::ListEvents(pod) => {
                if let Some(lookups) = &self.lookups {
                    self.hand(lookups, pod, Adapter::Api);
                }
            }
            Request::VerifyPods(pods) => {
                if let Some(api) = &self.api {
                    self.hand(api, pods, Adapter::Api);
                }
            }
        }
    }

    /// True: it is handed over to be posted.
    pub(super) fn post_event(&self, report: &Report) -> bool {
        let Some((events, note)) = self.events.as_ref().zip(note(report)) else { return false };
        let is_taken = events.notes.try_send((note, Instant::now())).is_ok();
        if !is_taken {
            events.counters.dropped.fetch_add(1, Relaxed);
        }
        is_taken
    }

    pub(super) fn hand<T>(&self, to: &Sender<T>, request: T, adapter: Adapter) {
        if to.try_send(request).is_err() {
            self.shared.metrics.request_dropped(adapter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        outputs::{metrics::Metrics, report::samples},
        store::{health::Health, history::History, leaks::LeakStore},
    };
    use coroner_core::time::BootTime;
    use tokio::sync::mpsc::channel;

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let (health, history) = (Health::new(true, BootTime(0)), History::in_memory());
        let metrics = Metrics::new().unwrap();
        let shared = Arc::new(SharedState::new(health, history, LeakStore::default(), metrics));
        // The adapters take nothing.
        let ((cri, _cri), (notes, _notes)) = (channel(1), channel(1));
        let counters = Arc::new(EventCounters::default());
        let senders = Senders {
            cri,
            kernel: channel(1).0,
            proc: channel(1).0,
            host: channel(1).0,
            traffic: channel(1).0,
            api: None,
            lookups: None,
            events: Some(Events { notes, counters: Arc::clone(&counters) }),
            shared: Arc::clone(&shared),
        };
        let death = Report::CountDeath(Box::new(samples::two_containers().containers.remove(1)));
        for _ in 0..3 {
            senders.request(Request::Cri(CriRequest::PollNow(None)));
            senders.post_event(&death);
        }
        let text = shared.metrics.scrape(shared.health.lock()).unwrap();
        let line = r#"coroner_requests_dropped_total{to="cri"} 2"#;
        assert!(text.lines().any(|found| found == line), "{text}");
        assert_eq!(counters.dropped.load(Relaxed), 2);
    }
}
