//! Watches: lines of JSON, from the history first and then as things happen.

use super::{
    ApiserverFault,
    failure::ApiFailure,
    kind::ResourceKind,
    selector::Selector,
    store::{ChangeType, Store},
    table::{self, Include},
};
use futures::{Stream, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{self, Instant, Interval, MissedTickBehavior},
};

/// What every request needs.
#[derive(Clone, Debug)]
pub(super) struct ApiserverShared {
    pub(super) store: Store,
    pub(super) fault: watch::Receiver<ApiserverFault>,
    pub(super) bookmark_every: Duration,
}

/// What a watch asks for.
#[derive(Clone, Debug)]
pub(super) struct WatchRequest {
    pub(super) kind: ResourceKind,
    pub(super) selector: Selector,
    /// `None`: what there is now, then changes.
    pub(super) version: Option<u64>,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<Duration>,
    /// As a table, with this much of each object.
    pub(super) table: Option<Include>,
}

/// One watch under way.
struct Watching {
    shared: ApiserverShared,
    wanted: WatchRequest,
    /// All up to this version has been told.
    version: u64,
    ready: VecDeque<Value>,
    wake: watch::Receiver<u64>,
    fault: watch::Receiver<ApiserverFault>,
    bookmark: Interval,
    deadline: Option<Instant>,
    /// Tell what is ready, then end.
    over: bool,
}

/// Begins a watch.
pub(super) fn watch(
    shared: ApiserverShared,
    wanted: WatchRequest,
) -> Result<impl Stream<Item = Result<String, Infallible>> + Send, ApiFailure> {
    let wake = shared.store.subscribe();
    let fault = shared.fault.clone();
    let mut ready = VecDeque::new();
    let version = match wanted.version {
        Some(version) => {
            shared.store.changes_since(version)?;
            version
        }
        None => {
            let (version, objects) = shared.store.list(wanted.kind);
            let mine = objects.iter().filter(|object| wanted.selector.matches(object));
            ready.extend(mine.map(|object| line(&wanted, ChangeType::Added, object)));
            version
        }
    };
    let every = shared.bookmark_every.max(Duration::from_millis(1));
    let mut bookmark = time::interval_at(Instant::now() + every, every);
    bookmark.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = wanted.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let watching =
        Watching { shared, wanted, version, ready, wake, fault, bookmark, deadline, over: false };
    Ok(stream::unfold(watching, |mut watching| async {
        let text = watching.next().await?;
        Some((Ok(text), watching))
    }))
}

impl Watching {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(value) = self.ready.pop_front() {
                return Some(format!("{value}\n"));
            }
            if self.over {
                return None;
            }
            // Before looking: a change in between wakes again.
            self.wake.borrow_and_update();
            self.read();
            if !self.ready.is_empty() || self.over {
                continue;
            }
            let deadline = self.deadline;
            tokio::select! {
                changed = self.wake.changed() => self.over = changed.is_err(),
                changed = self.fault.changed() => {
                    let fault = *self.fault.borrow_and_update();
                    match fault {
                        ApiserverFault::None => self.over = changed.is_err(),
                        ApiserverFault::Unavailable => self.over = true,
                        ApiserverFault::Expired => self.fail(&ApiFailure::expired(self.version, u64::MAX)),
                        ApiserverFault::Garbage => {
                            self.over = true;
                            return Some("{\"type\":\"GARBAGE\",\"object\":[}\n".into());
                        }
                    }
                }
                _ = self.bookmark.tick(), if self.wanted.bookmarks => self.ready.push_back(json!({
                    "type": "BOOKMARK",
                    "object": {
                        "kind": self.wanted.kind.name(),
                        "apiVersion": self.wanted.kind.api_version(),
                        "metadata": {
                            "resourceVersion": self.version.to_string(),
                            "creationTimestamp": null,
                        },
                    },
                })),
                () = async { time::sleep_until(deadline.unwrap_or_else(Instant::now)).await },
                    if deadline.is_some() => self.over = true,
            }
        }
    }

    fn read(&mut self) {
        match self.shared.store.changes_since(self.version) {
            Ok(changes) => {
                for change in changes {
                    self.version = change.version;
                    if change.kind != self.wanted.kind {
                        continue;
                    }
                    if let Some(seen) = change.seen_by(&self.wanted.selector) {
                        self.ready.push_back(line(&self.wanted, seen, &change.object));
                    }
                }
            }
            Err(failure) => self.fail(&failure),
        }
    }

    fn fail(&mut self, failure: &ApiFailure) {
        self.over = true;
        self.ready.push_back(json!({ "type": "ERROR", "object": failure.status() }));
    }
}

fn line(wanted: &WatchRequest, change: ChangeType, object: &Arc<Value>) -> Value {
    let object = match wanted.table {
        None => Value::clone(object),
        Some(include) => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            table::of(wanted.kind, &[object], version, include, Timestamp::now())
        }
    };
    json!({ "type": change.name(), "object": object })
}
