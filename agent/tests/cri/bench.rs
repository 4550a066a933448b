//! The adapter, running, and a runtime for it.

use super::runtime::{Call, FakeRuntime, Serving};
use coroner::sources::cri::{self, CriCounters, CriOptions};
use coroner_core::input::{CriContainer, CriEvent, CriExit, CriSandbox, Input, Received};
use coroner_core::output::CriRequest;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Long enough that no list comes by itself.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);
/// Ends a test that would wait for ever; nothing is measured by it.
pub(crate) const STUCK: Duration = Duration::from_secs(60);
/// Between two looks at what is waited for. No test depends on it.
const LOOK: Duration = Duration::from_millis(1);

/// Waits until this is so.
pub(crate) async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(STUCK, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// The adapter, running, and a runtime for it.
pub(crate) struct CriBench {
    pub(crate) runtime: FakeRuntime,
    pub(crate) serving: Option<Serving>,
    pub(crate) socket: PathBuf,
    pub(crate) events: mpsc::Receiver<Received>,
    pub(crate) requests: mpsc::Sender<CriRequest>,
    pub(crate) counters: Arc<CriCounters>,
    _folder: TempDir,
}

impl CriBench {
    pub(crate) fn new(runtime: FakeRuntime, idle: Duration) -> Self {
        Self::with(runtime, |options| options.idle = idle)
    }

    pub(crate) fn with(runtime: FakeRuntime, change: impl FnOnce(&mut CriOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("cri.sock");
        let serving = runtime.serve(&socket);
        let mut options = CriOptions::new(socket.clone());
        options.busy = Duration::from_millis(1);
        options.idle = NEVER;
        options.timeout = STUCK; // a busy machine is no outage
        change(&mut options);
        let counters = Arc::clone(&options.counters);
        let (to, events) = mpsc::channel(16);
        let (requests, asked) = mpsc::channel(16);
        tokio::spawn(cri::run(options, to, asked));
        let serving = Some(serving);
        Self { runtime, serving, socket, events, requests, counters, _folder: folder }
    }

    pub(crate) async fn event(&mut self) -> CriEvent {
        let received = tokio::time::timeout(STUCK, self.events.recv());
        let received = received.await.expect("no event came").expect("the adapter ended");
        match received.input {
            Input::Cri(event) => {
                if let CriEvent::Sandboxes { asked, .. } | CriEvent::Containers { asked, .. } =
                    &event
                {
                    assert!(*asked <= received.at, "answered before it was asked");
                }
                event
            }
            other => panic!("not of the CRI: {other:?}"),
        }
    }

    /// Skips to the next event that `pick` takes.
    pub(crate) async fn until<T>(&mut self, mut pick: impl FnMut(CriEvent) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(self.event().await) {
                return picked;
            }
        }
    }

    /// Skips to the end of the next full list.
    pub(crate) async fn full_list(&mut self) {
        self.until(|event| matches!(event, CriEvent::Containers { only: None, .. }).then_some(()))
            .await;
    }

    /// Skips to the sandboxes of the next full list.
    pub(crate) async fn sandboxes(&mut self) -> Vec<CriSandbox> {
        self.until(|event| match event {
            CriEvent::Sandboxes { only: None, sandboxes, .. } => Some(sandboxes),
            CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
            _ => None,
        })
        .await
    }

    /// Skips to the containers of the next full list.
    pub(crate) async fn containers(&mut self) -> Vec<CriContainer> {
        self.until(|event| match event {
            CriEvent::Containers { only: None, containers, .. } => Some(containers),
            CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
            _ => None,
        })
        .await
    }

    /// Skips to the end of the next list. No container's exit comes before it.
    pub(crate) async fn list_without_exits(&mut self) {
        self.until(|event| {
            assert_eq!(exited(event.clone()), None, "reported twice");
            matches!(event, CriEvent::Containers { .. }).then_some(())
        })
        .await;
    }

    pub(crate) async fn ask(&self, request: CriRequest) {
        self.requests.send(request).await.expect("the adapter runs");
    }

    pub(crate) fn statuses_asked(&self, id: &str) -> usize {
        let state = self.runtime.state();
        let wanted =
            |call: &&Call| matches!(call, Call::Status { container, .. } if container == id);
        state.calls.iter().filter(wanted).count()
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.counters.skipped.load(Ordering::Relaxed)
    }
}

pub(crate) fn exited(event: CriEvent) -> Option<CriExit> {
    match event {
        CriEvent::ContainerExited(exit) => Some(exit),
        _ => None,
    }
}

/// A failure's text and code.
pub(crate) fn outage(event: CriEvent) -> Option<(String, Option<String>)> {
    match event {
        CriEvent::Unreachable { error, code } => Some((error, code)),
        _ => None,
    }
}

pub(crate) fn unreachable(event: CriEvent) -> Option<String> {
    outage(event).map(|(error, _)| error)
}
