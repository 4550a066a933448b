//! The lists of the API, which are written as the client reads.

use super::{Observed, Parameters, SharedState, no};
use crate::{linux::clock, store::entry::Entry};
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use coroner_report::{
    Anchor, BootTime, ContainerDeath, Detection, Leak, List, ListQuery, Moment, PodRef,
    PodTermination, WallTime, parse_duration,
};
use futures::stream;
use serde::Serialize;
use std::sync::Arc;

pub(super) trait Item: Clone + Serialize + Send + Sync + 'static {
    /// Newest first; else in the order in which they came.
    const NEWEST_FIRST: bool;

    fn pod(&self) -> Option<&PodRef>;
    /// By which `since` selects; `None`: unknown.
    fn at(&self, clock: &Anchor) -> Option<WallTime>;
    /// As it is sent.
    fn complete(self, node: String, gone: bool, clock: &Anchor) -> Self;
    /// The items in no order, with those that are gone; the number of the last change; and the last change that the items
    /// no longer show although a reader needs it.
    fn changes(shared: &SharedState) -> (Vec<Entry<Self>>, u64, u64);
    fn detection(_: &SharedState) -> Option<Detection> {
        None
    }
}

impl Item for PodTermination {
    const NEWEST_FIRST: bool = true;

    fn pod(&self) -> Option<&PodRef> {
        Some(&self.pod)
    }

    fn at(&self, clock: &Anchor) -> Option<WallTime> {
        Some(clock.wall(self.ended.boot))
    }

    fn complete(self, node: String, _: bool, _: &Anchor) -> Self {
        Self { node, ..self }
    }

    fn changes(shared: &SharedState) -> (Vec<Entry<Self>>, u64, u64) {
        let history = shared.history.lock();
        (history.terminations().cloned().collect(), history.changes(), 0)
    }
}

impl Item for ContainerDeath {
    const NEWEST_FIRST: bool = true;

    fn pod(&self) -> Option<&PodRef> {
        self.pod.as_ref()
    }

    fn at(&self, clock: &Anchor) -> Option<WallTime> {
        self.milestones.iter().map(|milestone| clock.wall(milestone.at.boot)).max()
    }

    fn complete(mut self, node: String, _: bool, clock: &Anchor) -> Self {
        self.date(clock);
        Self { node, ..self }
    }

    fn changes(shared: &SharedState) -> (Vec<Entry<Self>>, u64, u64) {
        let history = shared.history.lock();
        (history.deaths().cloned().collect(), history.changes(), 0)
    }
}

impl Item for Leak {
    const NEWEST_FIRST: bool = false;

    fn pod(&self) -> Option<&PodRef> {
        self.pod.as_ref()
    }

    fn at(&self, _: &Anchor) -> Option<WallTime> {
        Some(self.confirmed.time)
    }

    fn complete(self, node: String, resolved: bool, _: &Anchor) -> Self {
        Self { node, resolved, ..self }
    }

    fn changes(shared: &SharedState) -> (Vec<Entry<Self>>, u64, u64) {
        let leaks = shared.leaks.lock();
        let (last, forgotten) = leaks.changes();
        (leaks.entries().cloned().collect(), last, forgotten)
    }

    fn detection(shared: &SharedState) -> Option<Detection> {
        let message = shared.health.lock().suspension(clock::boot_now());
        Some(Detection { message, ..shared.leaks.lock().detection().clone() })
    }
}

/// All of a list, or what has changed since an earlier answer.
pub(super) async fn list<T: Item>(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    if query.limit == Some(0) {
        return no(StatusCode::BAD_REQUEST, "limit: use at least 1");
    }
    let since = query.since.as_deref().map(|text| parse_duration(text).ok_or(text)).transpose();
    let Ok(since) = since else {
        return no(
            StatusCode::BAD_REQUEST,
            "since: use a number with a unit, for example 30m or 1d",
        );
    };
    let clock = clock::anchor();
    let from = since.map(|since| {
        let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        clock.wall(BootTime(clock::boot_now().0.saturating_sub(since)))
    });
    let (mut entries, last, forgotten) = T::changes(&shared);
    let run = shared.started.0;
    let after = query.after.as_deref().and_then(|cursor| parse_cursor(cursor, run));
    let after = after.filter(|after| *after >= forgotten);
    entries.retain(|entry| {
        let is_asked_for = match after {
            None => !entry.gone,
            // A leak that came and went between two answers is not worth an item.
            Some(after) => entry.version > after && (!entry.gone || entry.number <= after),
        };
        let (pod, at) = (entry.item.pod(), entry.item.at(&clock));
        let is = |wanted: &Option<String>, of: fn(&PodRef) -> &String| {
            wanted.as_ref().is_none_or(|wanted| pod.is_some_and(|pod| wanted == of(pod)))
        };
        let is_young = entry.gone || from.is_none_or(|from| at.is_none_or(|at| at >= from));
        is_asked_for
            && is_young
            && is(&query.namespace, |pod| &pod.namespace)
            && is(&query.pod, |pod| &pod.name)
    });
    entries.sort_unstable_by_key(|entry| match after {
        Some(_) => entry.version,
        None if T::NEWEST_FIRST => u64::MAX - entry.number,
        None => entry.number,
    });
    let mut seen = last;
    // What begins again for a reader who has another run's items is whole.
    let limit = query.limit.filter(|_| after.is_some() || query.after.is_none());
    if let Some(limit) = limit.filter(|limit| *limit < entries.len()) {
        entries.truncate(limit);
        if let Some(after) = after {
            seen = entries.last().map_or(after, |entry| entry.version);
        }
    }
    answer(&shared, entries, format!("{run:x}-{seen:x}"), after.is_none(), clock)
}

/// The last change before the answer with this cursor; `None`: the cursor is not of this run.
fn parse_cursor(cursor: &str, run: u64) -> Option<u64> {
    let (of, seen) = cursor.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    number(seen).filter(|_| number(of) == Some(run))
}

/// The envelope around items, which are written one after the other as the client reads: many clients that do not
/// read hold no copies.
fn answer<T: Item>(
    shared: &SharedState,
    entries: Vec<Entry<T>>,
    cursor: String,
    complete: bool,
    clock: Anchor,
) -> Response {
    let Observed { node, boot_id } = shared.observed.clone();
    let empty = List::<()> {
        node: node.clone(),
        boot_id,
        observed_since: shared.observed_since.get().map(|at| Moment::of_boot(*at, &clock)),
        detection: T::detection(shared),
        cursor,
        complete,
        items: Vec::new(),
    };
    let Ok(envelope) = serde_json::to_string(&empty) else {
        return no(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the answer");
    };
    let (head, tail) = envelope.split_at(envelope.len() - "]}".len());
    let items = entries.into_iter().enumerate().map(move |(number, entry)| {
        let mut bytes = if number == 0 { Vec::new() } else { b",".to_vec() };
        let item = T::clone(&entry.item).complete(node.clone(), entry.gone, &clock);
        serde_json::to_writer(&mut bytes, &item)?;
        Ok(Bytes::from(bytes))
    });
    let parts = std::iter::once(Ok(Bytes::from(head.to_owned()))).chain(items);
    let parts = parts.chain(std::iter::once(Ok(Bytes::from(tail.to_owned()))));
    let body = Body::from_stream(stream::iter(parts.map(|part: serde_json::Result<Bytes>| part)));
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}
