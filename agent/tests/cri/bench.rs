//! The adapter, running, and a runtime for it.

use super::runtime::{Call, FakeRuntime};
use crate::server::Server;
pub(crate) use crate::server::{STUCK, wait_until};
use coroner::sources::cri::{self, CriOptions};
use coroner_core::input::{CriEvent, CriExit, Input, Received};
use coroner_core::{ids::SandboxId, output::CriRequest, time::BootTime};
use std::{path::PathBuf, sync::atomic::Ordering, time::Duration};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Long enough that no list comes by itself.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);
pub(crate) struct CriBench {
    pub(crate) runtime: FakeRuntime,
    pub(crate) serving: Option<Server>,
    pub(crate) socket: PathBuf,
    pub(crate) events: mpsc::Receiver<Received>,
    pub(crate) requests: mpsc::Sender<CriRequest>,
    /// As the adapter was started.
    pub(crate) options: CriOptions,
    _folder: TempDir,
}

impl CriBench {
    pub(crate) fn new(runtime: FakeRuntime, idle: Duration) -> Self {
        Self::with(runtime, |options| options.idle = idle)
    }

    pub(crate) fn with(runtime: FakeRuntime, change: impl FnOnce(&mut CriOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("cri.sock");
        let serving = Some(runtime.serve(&socket));
        let mut options = CriOptions::new(socket.clone());
        options.busy = Duration::from_millis(1);
        options.idle = NEVER;
        options.timeout = STUCK; // a busy machine is no outage
        change(&mut options);
        let (to, events) = mpsc::channel(16);
        let (requests, asked) = mpsc::channel(16);
        tokio::spawn(cri::run(options.clone(), to, asked));
        Self { runtime, serving, socket, events, requests, options, _folder: folder }
    }

    pub(crate) async fn event(&mut self) -> CriEvent {
        let received = tokio::time::timeout(STUCK, self.events.recv());
        let received = received.await.expect("no event came").expect("the adapter ended");
        let Input::Cri(event) = received.input else { panic!("not of the CRI: {received:?}") };
        if let CriEvent::Sandboxes { asked, .. } | CriEvent::Containers { asked, .. } = &event {
            assert!(*asked <= received.at, "answered before it was asked");
        }
        event
    }

    /// Skips to the next event that `pick` takes.
    pub(crate) async fn until<T>(&mut self, mut pick: impl FnMut(CriEvent) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(self.event().await) {
                return picked;
            }
        }
    }

    /// Skips to the end of the next list, without an outage: of which sandbox, and when it was asked for.
    pub(crate) async fn list(&mut self) -> (Option<SandboxId>, BootTime) {
        self.until(|event| match event {
            CriEvent::Containers { only, asked, .. } => Some((only, asked)),
            CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
            _ => None,
        })
        .await
    }

    /// Skips to the end of the next full list: when it was asked for.
    pub(crate) async fn full_list(&mut self) -> BootTime {
        loop {
            if let (None, asked) = self.list().await {
                return asked;
            }
        }
    }

    /// Skips to the end of the next list. Nothing of this kind comes before it.
    pub(crate) async fn list_without<T>(&mut self, pick: fn(CriEvent) -> Option<T>) {
        self.until(|event| {
            assert!(pick(event.clone()).is_none(), "{event:?}");
            matches!(event, CriEvent::Containers { .. }).then_some(())
        })
        .await;
    }

    pub(crate) async fn ask(&self, request: CriRequest) {
        self.requests.send(request).await.expect("the adapter runs");
    }

    /// How many such calls were made.
    pub(crate) fn calls(&self, is_wanted: impl Fn(&Call) -> bool) -> usize {
        self.runtime.state().calls.iter().filter(|call| is_wanted(call)).count()
    }

    /// Waits until this many full lists were asked for.
    pub(crate) async fn until_asked(&self, lists: usize) {
        let full = Call::Sandboxes(String::new());
        wait_until("a full list", || self.calls(|call| *call == full) == lists).await;
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.options.counters.skipped.load(Ordering::Relaxed)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.options.counters.errors.load(Ordering::Relaxed)
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
