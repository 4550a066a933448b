//! The ways to ask the adapters. None ever waits: the adapter may be waiting for the event loop. What
//! cannot be handed over is dropped and counted.

use crate::{
    cri, host,
    http::Shared,
    kernel,
    kube::{
        self,
        events::{Counters, Note, note},
    },
    metrics::Adapter,
};
use coroner_core::observation::{Observation, ProcessesWanted};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tokio::sync::mpsc::Sender;

/// The ways to ask the adapters.
pub(super) struct Outputs {
    pub(super) cri: Sender<cri::Request>,
    pub(super) kernel: Sender<kernel::Command>,
    pub(super) proc: Sender<ProcessesWanted>,
    pub(super) host: Sender<host::Request>,
    /// `None`: without the apiserver there is nobody to ask, and no answer.
    pub(super) api: Option<Sender<kube::Request>>,
    /// `None`: no Events are made.
    pub(super) events: Option<Events>,
    pub(super) shared: Arc<Shared>,
}

/// The way to Events.
pub(super) struct Events {
    pub(super) notes: Sender<Note>,
    pub(super) counters: Arc<Counters>,
}

impl Outputs {
    /// Of the container runtime.
    pub(super) fn cri(&self, request: cri::Request) {
        self.hand(&self.cri, request, Adapter::Cri);
    }

    /// Of the kernel programs.
    pub(super) fn kernel(&self, command: kernel::Command) {
        self.hand(&self.kernel, command, Adapter::Kernel);
    }

    /// Of the host's /proc.
    pub(super) fn proc(&self, wanted: ProcessesWanted) {
        self.hand(&self.proc, wanted, Adapter::Proc);
    }

    /// Of the host.
    pub(super) fn host(&self, request: host::Request) {
        self.hand(&self.host, request, Adapter::Host);
    }

    /// Of the apiserver.
    pub(super) fn api(&self, request: kube::Request) {
        if let Some(api) = &self.api {
            self.hand(api, request, Adapter::Api);
        }
    }

    /// What of it is worth an Event becomes one, where they are made.
    pub(super) fn tell(&self, observation: &Observation) {
        let Some(events) = &self.events else { return };
        if let Some(note) = note(observation)
            && events.notes.try_send(note).is_err()
        {
            events.counters.dropped.fetch_add(1, Relaxed);
        }
    }

    fn hand<T>(&self, to: &Sender<T>, request: T, adapter: Adapter) {
        if to.try_send(request).is_err() {
            self.shared.metrics.request_dropped(adapter);
        }
    }
}
