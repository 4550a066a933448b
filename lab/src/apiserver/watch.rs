//! Watches: lines of JSON, from the history first and then as changes come.

use super::{
    failure::ApiFailure,
    http::Selector,
    store::{ChangeType, Kind, Store},
};
use futures::{Stream, stream};
use serde_json::{Value, json};
use std::{collections::VecDeque, convert::Infallible, future::pending, time::Duration};
use tokio::{
    sync,
    time::{Instant, sleep, sleep_until},
};

pub(super) struct WatchRequest {
    pub(super) kind: Kind,
    pub(super) selector: Selector,
    /// `None`: all objects that there are, then changes.
    pub(super) version: Option<u64>,
    pub(super) bookmarks: Option<Duration>,
    pub(super) timeout: Option<Duration>,
}

struct Watching {
    store: Store,
    wanted: WatchRequest,
    /// All up to this version has been sent.
    version: u64,
    ready: VecDeque<Value>,
    wake: sync::watch::Receiver<u64>,
    available: sync::watch::Receiver<bool>,
    deadline: Option<Instant>,
    is_over: bool,
}

pub(super) fn watch(
    store: Store,
    available: sync::watch::Receiver<bool>,
    wanted: WatchRequest,
) -> Result<impl Stream<Item = Result<String, Infallible>> + Send, ApiFailure> {
    let wake = store.subscribe();
    let mut ready = VecDeque::new();
    let version = match wanted.version {
        Some(version) => {
            store.changes_since(version)?;
            version
        }
        None => {
            let (version, objects) = store.list(wanted.kind);
            let mine = objects.iter().filter(|object| wanted.selector.matches(object));
            ready.extend(mine.map(|object| json!({ "type": "ADDED", "object": **object })));
            version
        }
    };
    let deadline = wanted.timeout.map(|timeout| Instant::now() + timeout);
    let watching =
        Watching { store, wanted, version, ready, wake, available, deadline, is_over: false };
    Ok(stream::unfold(watching, |mut watching| async {
        let line = watching.next().await?;
        Some((Ok(format!("{line}\n")), watching))
    }))
}

impl Watching {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            // Before reading: a change in between wakes again.
            self.wake.borrow_and_update();
            self.read();
            if !self.ready.is_empty() {
                continue;
            }
            let (deadline, bookmarks) = (self.deadline, self.wanted.bookmarks);
            tokio::select! {
                changed = self.wake.changed() => self.is_over = changed.is_err(),
                // Away, or gone for good.
                () = async { drop(self.available.wait_for(|available| !available).await) } => {
                    return None;
                }
                () = async {
                    match bookmarks {
                        Some(every) => sleep(every).await,
                        None => pending().await,
                    }
                } => return Some(self.bookmark()),
                () = async {
                    match deadline {
                        Some(deadline) => sleep_until(deadline).await,
                        None => pending().await,
                    }
                } => return None,
            }
        }
    }

    fn bookmark(&self) -> Value {
        let metadata = json!({ "resourceVersion": self.version.to_string() });
        let kind = self.wanted.kind.name();
        json!({
            "type": "BOOKMARK", "object": { "kind": kind, "apiVersion": "v1", "metadata": metadata },
        })
    }

    fn read(&mut self) {
        let changes = match self.store.changes_since(self.version) {
            Ok(changes) => changes,
            Err(failure) => {
                self.is_over = true;
                self.ready.push_back(json!({ "type": "ERROR", "object": failure.status() }));
                return;
            }
        };
        for change in changes {
            self.version = change.version;
            if change.kind == self.wanted.kind && self.wanted.selector.matches(&change.object) {
                let kind = match change.change {
                    ChangeType::Added => "ADDED",
                    ChangeType::Modified => "MODIFIED",
                    ChangeType::Deleted => "DELETED",
                };
                self.ready.push_back(json!({ "type": kind, "object": *change.object }));
            }
        }
    }
}
