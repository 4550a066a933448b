//! The lists of the API, which are read and written as the client reads.

use super::{Parameters, SharedState, no};
use crate::{
    linux::clock,
    store::{
        entry::Entry,
        history::{Filter, Kind, Selected, Stored},
    },
};
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use coroner_report::{
    Anchor, ContainerDeath, Detection, Leak, List, ListQuery, Moment, PodRef, PodTermination,
    WallTime, parse_duration,
};
use futures::{Stream, StreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};
use std::{convert::Infallible, sync::Arc};

/// Items that are read from the history together.
const CHUNK: usize = 16;

/// What the history has.
pub(super) trait Item: Serialize + DeserializeOwned + Send + 'static {
    const KIND: Kind;

    fn place(&mut self) -> &mut String;
    fn date(&mut self, clock: &Anchor);
}

impl Item for PodTermination {
    const KIND: Kind = Kind::Termination;

    fn place(&mut self) -> &mut String {
        &mut self.node
    }

    fn date(&mut self, clock: &Anchor) {
        Self::date(self, clock);
    }
}

impl Item for ContainerDeath {
    const KIND: Kind = Kind::Death;

    fn place(&mut self) -> &mut String {
        &mut self.node
    }

    fn date(&mut self, clock: &Anchor) {
        Self::date(self, clock);
    }
}

/// An item as it is sent. `None`: what is stored cannot be read, which is counted.
pub(super) fn item<T: Item>(shared: &SharedState, stored: &Stored, clock: &Anchor) -> Option<T> {
    let Some(mut item) = stored.read::<T>() else {
        shared.history.unreadable();
        return None;
    };
    item.place().clone_from(&shared.observed.node);
    if stored.is_of_this_boot {
        item.date(clock);
    }
    Some(item)
}

/// All of a list, or what has changed since an earlier answer.
pub(super) async fn list<T: Item>(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let clock = clock::anchor();
    let selected = match filter(query, &clock) {
        Ok(filter) => shared.history.select(T::KIND, filter, clock).await,
        Err(why) => return no(StatusCode::BAD_REQUEST, why),
    };
    let Selected { ids, cursor, is_complete, .. } = match selected {
        Ok(selected) => selected,
        Err(error) => return no(StatusCode::SERVICE_UNAVAILABLE, error),
    };
    let list = List { cursor, complete: is_complete, ..empty(&shared, &clock) };
    let chunks: Vec<_> = ids.chunks(CHUNK).map(<[i64]>::to_vec).collect();
    let items = stream::iter(chunks).then(move |ids| {
        let shared = Arc::clone(&shared);
        async move {
            let stored = shared.history.stored(ids).await.unwrap_or_else(|_| {
                shared.history.unreadable();
                Vec::new()
            });
            let items = stored.iter().filter_map(|one| item::<T>(&shared, one, &clock));
            stream::iter(items.collect::<Vec<_>>())
        }
    });
    answer(&list, items.flatten())
}

fn filter(query: ListQuery, clock: &Anchor) -> Result<Filter, &'static str> {
    if query.limit == Some(0) {
        return Err("limit: use at least 1");
    }
    let since = query.since.as_deref().map(|text| parse_duration(text).ok_or(text)).transpose();
    let since =
        since.map_err(|_| "since: use a number with a unit, for example 30m or 1d")?.map(|since| {
            let since = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
            WallTime(clock.wall(clock::boot_now()).0.saturating_sub(since))
        });
    let ListQuery { namespace, pod, limit, after, .. } = query;
    Ok(Filter { namespace, pod, since, limit, after, ..Filter::default() })
}

pub(super) async fn leaks(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let clock = clock::anchor();
    let filter = match filter(query, &clock) {
        Ok(filter) => filter,
        Err(why) => return no(StatusCode::BAD_REQUEST, why),
    };
    let run = shared.started.0;
    let after = filter.after.as_deref().and_then(|cursor| parse_cursor(cursor, run));
    let (mut entries, last, after): (Vec<Entry<Leak>>, _, _) = {
        let leaks = shared.leaks.lock();
        let (last, forgotten) = leaks.changes();
        (leaks.entries().cloned().collect(), last, after.filter(|after| *after >= forgotten))
    };
    entries.retain(|entry| {
        let is_gone = entry.item.resolved_at.is_some();
        let is_asked_for = match after {
            None => !is_gone,
            // A leak that came and went between two answers is not worth an item.
            Some(after) => entry.version > after && (!is_gone || entry.number <= after),
        };
        let is = |wanted: &Option<String>, of: fn(&PodRef) -> &String| {
            let pod = entry.item.pod.as_ref();
            wanted.as_ref().is_none_or(|wanted| pod.is_some_and(|pod| wanted == of(pod)))
        };
        let is_young = is_gone || filter.since.is_none_or(|from| entry.item.confirmed.time >= from);
        is_asked_for
            && is_young
            && is(&filter.namespace, |pod| &pod.namespace)
            && is(&filter.pod, |pod| &pod.name)
    });
    entries.sort_unstable_by_key(|entry| match after {
        Some(_) => entry.version,
        None => entry.number,
    });
    let mut seen = last;
    // What begins again for a reader who has another run's items is whole.
    let limit = filter.limit.filter(|_| after.is_some() || filter.after.is_none());
    if let Some(limit) = limit.filter(|limit| *limit < entries.len()) {
        entries.truncate(limit);
        if let Some(after) = after {
            seen = entries.last().map_or(after, |entry| entry.version);
        }
    }
    let message = shared.health.lock().suspension(clock::boot_now());
    let list = List {
        detection: Some(Detection { message, ..shared.leaks.lock().detection().clone() }),
        cursor: format!("{run:x}-{seen:x}"),
        complete: after.is_none(),
        ..empty(&shared, &clock)
    };
    let node = shared.observed.node.clone();
    let items = entries.into_iter().map(move |entry| {
        let leak = Leak::clone(&entry.item);
        Leak { node: node.clone(), ..leak }
    });
    answer(&list, stream::iter(items))
}

/// The last change before the answer with this cursor; `None`: the cursor is not of this run.
fn parse_cursor(cursor: &str, run: u64) -> Option<u64> {
    let (of, seen) = cursor.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    number(seen).filter(|_| number(of) == Some(run))
}

fn empty(shared: &SharedState, clock: &Anchor) -> List<()> {
    List {
        node: shared.observed.node.clone(),
        boot_id: shared.observed.boot_id.clone(),
        observed_since: shared.observed_since.get().map(|at| Moment::of_boot(*at, clock)),
        detection: None,
        cursor: String::new(),
        complete: true,
        items: Vec::new(),
    }
}

/// The envelope around items, which are written one after the other as the client reads: many clients that do not
/// read hold no copies.
fn answer<T: Serialize + 'static>(
    list: &List<()>,
    items: impl Stream<Item = T> + Send + 'static,
) -> Response {
    let Ok(envelope) = serde_json::to_string(list) else {
        return no(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the answer");
    };
    let (head, tail) = envelope.split_at(envelope.len() - "]}".len());
    let items = items.enumerate().map(|(number, item)| {
        let mut bytes = if number == 0 { Vec::new() } else { b",".to_vec() };
        // Of these types, and to memory, it does not fail.
        let _ = serde_json::to_writer(&mut bytes, &item);
        Bytes::from(bytes)
    });
    let part = |text: &str| stream::iter([Bytes::from(text.to_owned())]);
    let parts = part(head).chain(items).chain(part(tail)).map(Ok::<_, Infallible>);
    ([(CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response()
}
