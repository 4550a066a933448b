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
    Anchor, Audit, Cause, ContainerDeath, Detection, FindingKind, Leak, LeakCause, List, ListQuery,
    Moment, PodTermination, SortBy, Verdict, Workload, parse_duration, parse_time,
};
use futures::{Stream, StreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};
use std::{convert::Infallible, sync::Arc};

/// Items that are read from the history together.
const CHUNK: usize = 16;
/// Items of an answer, if the client does not say.
const LIMIT: usize = 500;

/// What the history has.
pub(super) trait Item: Serialize + DeserializeOwned + Send + 'static {
    const KIND: Kind;

    fn place(&mut self) -> &mut String;
    /// Converts the times of this boot after a step of the clock.
    fn date(&mut self, clock: &Anchor);
    /// Takes what the history knows beside the report.
    fn complete(&mut self, _: &Stored) {}
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

impl Item for Leak {
    const KIND: Kind = Kind::Leak;

    fn place(&mut self) -> &mut String {
        &mut self.node
    }

    fn date(&mut self, clock: &Anchor) {
        let at =
            [Some(&mut self.first_observed), Some(&mut self.confirmed), self.resolved_at.as_mut()];
        at.into_iter().flatten().for_each(|at| *at = Moment::of_boot(at.boot, clock));
    }

    /// One that was gone at a restart has no last report.
    fn complete(&mut self, stored: &Stored) {
        self.resolved_at = self.resolved_at.or(stored.ended);
    }
}

/// An item as it is sent. `None`: what is stored cannot be read, which is counted.
pub(super) fn item<T: Item>(shared: &SharedState, stored: &Stored, clock: &Anchor) -> Option<T> {
    let Some(mut item) = stored.read::<T>() else {
        shared.history.unreadable();
        return None;
    };
    item.place().clone_from(&shared.observed.node);
    item.complete(stored);
    if stored.is_of_this_boot {
        item.date(clock);
    }
    Some(item)
}

/// What runs now. Nothing of it is kept: for a reader with another cursor, the list begins again.
pub(super) async fn audits(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let ListQuery { namespace, pod, workload, container, response, limit, after, .. } =
        query.clone();
    let known = ListQuery {
        namespace,
        pod,
        workload,
        container,
        response,
        limit,
        after,
        ..ListQuery::default()
    };
    if known != query || query.limit == Some(0) {
        return no(
            StatusCode::BAD_REQUEST,
            "use namespace, pod, workload, container, response, limit (at least 1) and after",
        );
    }
    let clock = clock::anchor();
    let (mut items, changes) = shared.audits.lock().all();
    let cursor = format!("{:x}-{changes:x}", shared.started.0);
    let complete = query.after.as_ref() != Some(&cursor);
    let is = |wanted: &Option<String>, own: &[&str]| {
        wanted.as_deref().is_none_or(|one| own.contains(&one))
    };
    items.retain(|one| {
        let workload = one.workload.as_ref().map(|of| (of.to_string(), &*of.name));
        let workload = workload.as_ref().map_or([""; 2], |(whole, name)| [&**whole, *name]);
        complete
            && is(&query.namespace, &[&one.pod.namespace])
            && is(&query.pod, &[&one.pod.name, one.pod.uid.as_str()])
            && is(&query.workload, &workload)
            && is(&query.container, &[&one.name])
            && query.response.is_none_or(|wanted| one.response == wanted)
    });
    items.truncate(query.limit.unwrap_or(usize::MAX));
    let list = List { cursor, complete, ..empty(&shared, &clock) };
    let node = list.node.clone();
    answer(
        &list,
        stream::iter(items).map(move |one| {
            let read = Moment::of_boot(one.read.boot, &clock);
            Audit { node: node.clone(), read, ..Audit::clone(&one) }
        }),
    )
}

/// All of a list, or what has changed since an earlier answer.
pub(super) async fn list<T: Item>(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let clock = clock::anchor();
    let selected = match filter(query, T::KIND, &clock) {
        Ok(filter) => shared.history.select(T::KIND, filter, clock).await,
        Err(why) => return no(StatusCode::BAD_REQUEST, why),
    };
    let Selected { ids, cursor, is_complete, is_cut } = match selected {
        Ok(selected) => selected,
        Err(error) => return no(StatusCode::SERVICE_UNAVAILABLE, error),
    };
    let list = List { cursor, complete: is_complete, more: is_cut, ..empty(&shared, &clock) };
    answer(&list, stored::<T>(shared, ids, clock))
}

/// Reads a few at a time, as the client takes them.
fn stored<T: Item>(
    shared: Arc<SharedState>,
    ids: Vec<i64>,
    clock: Anchor,
) -> impl Stream<Item = T> {
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
    items.flatten()
}

fn filter(query: ListQuery, kind: Kind, clock: &Anchor) -> Result<Filter, String> {
    if query.limit == Some(0) {
        return Err("limit: use at least 1".to_owned());
    }
    if query.response.is_some() {
        return Err("response: only /api/v1/audit has it".to_owned());
    }
    let now = clock.wall(clock::boot_now());
    let time = |name, text: Option<String>| {
        let parsed = text.map(|text| parse_time(&text, now).ok_or(text)).transpose();
        parsed.map_err(|_| {
            format!("{name}: use a number with a unit, for example 30m or 1d, or a time as 2026-11-28T02:00:00Z")
        })
    };
    let over = query.over.as_deref().map(|text| parse_duration(text).ok_or(())).transpose();
    let causes = match kind {
        Kind::Leak => labels(LeakCause::ALL, LeakCause::as_str),
        Kind::Termination | Kind::Death => labels(Cause::ALL, Cause::as_str),
    };
    let default = Some(LIMIT).filter(|_| kind != Kind::Leak && query.after.is_none());
    let filter = Filter {
        namespace: query.namespace,
        pod: query.pod,
        life: None,
        workload: query.workload,
        container: query.container,
        verdict: one_of("verdict", query.verdict, labels(Verdict::ALL, Verdict::as_str))?,
        cause: one_of("cause", query.cause, causes)?,
        finding: one_of("finding", query.finding, labels(FindingKind::ALL, FindingKind::as_str))?,
        since: time("since", query.since)?,
        until: time("until", query.until)?,
        over: over.map_err(|()| "over: use a number with a unit, for example 60s or 2m")?,
        by_took: query.sort == Some(SortBy::Took),
        limit: query.limit.or(default),
        after: query.after,
    };
    let of_deaths = [
        filter.container.is_some(),
        filter.verdict.is_some(),
        filter.finding.is_some(),
        filter.over.is_some(),
        query.sort.is_some(),
    ];
    if kind == Kind::Leak && of_deaths.contains(&true) {
        return Err("container, verdict, finding, over and sort: leaks have none".to_owned());
    }
    Ok(filter)
}

fn labels<T: Copy>(all: &[T], label: fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().map(|one| label(*one)).collect()
}

/// A label of a closed set. What is unknown would match nothing, and look as if nothing had happened.
fn one_of(
    name: &str,
    given: Option<String>,
    all: Vec<&'static str>,
) -> Result<Option<&'static str>, String> {
    let Some(given) = given else { return Ok(None) };
    let known = all.iter().find(|label| **label == given);
    known.copied().map(Some).ok_or_else(|| format!("{name}: use one of {}", all.join(", ")))
}

pub(super) async fn leaks(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let clock = clock::anchor();
    let filter = match filter(query, Kind::Leak, &clock) {
        Ok(filter) => filter,
        Err(why) => return no(StatusCode::BAD_REQUEST, why),
    };
    let (entries, cursor, complete, is_cut) = current_leaks(&shared, &filter);
    let message = shared.health.lock().suspension(clock::boot_now());
    let detection = Detection { message, ..shared.leaks.lock().detection().clone() };
    // What is resolved, too, if the question is about a time.
    let resolved = match filter.since.filter(|_| complete) {
        None => Ok(Selected::default()),
        Some(_) => {
            let limit = filter.limit.map(|limit| limit.saturating_sub(entries.len()));
            let filter = Filter { after: None, limit, ..filter };
            shared.history.select(Kind::Leak, filter, clock).await
        }
    };
    match resolved {
        Ok(selected) => {
            let more = is_cut || selected.is_cut;
            let detection = Some(detection);
            let list = List { detection, cursor, complete, more, ..empty(&shared, &clock) };
            let node = shared.observed.node.clone();
            let items = entries.into_iter().map(move |entry| {
                let leak = Leak::clone(&entry.item);
                Leak { node: node.clone(), ..leak }
            });
            let resolved = stored::<Leak>(shared, selected.ids, clock);
            answer(&list, stream::iter(items).chain(resolved))
        }
        Err(error) => no(StatusCode::SERVICE_UNAVAILABLE, error),
    }
}

/// The leaks that are meant, in the order of the answer; its cursor; whether it is all of the list; and whether more
/// match than the limit.
fn current_leaks(shared: &SharedState, filter: &Filter) -> (Vec<Entry<Leak>>, String, bool, bool) {
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
        is_asked_for && is_meant(filter, &entry.item)
    });
    entries.sort_unstable_by_key(|entry| match after {
        Some(_) => entry.version,
        None => entry.number,
    });
    let mut seen = last;
    // What begins again for a reader who has another run's items is whole.
    let limit = filter.limit.filter(|_| after.is_some() || filter.after.is_none());
    let is_cut = limit.is_some_and(|limit| limit < entries.len());
    if let Some(limit) = limit.filter(|_| is_cut) {
        entries.truncate(limit);
        if let Some(after) = after {
            seen = entries.last().map_or(after, |entry| entry.version);
        }
    }
    (entries, format!("{run:x}-{seen:x}"), after.is_none(), is_cut)
}

fn is_meant(filter: &Filter, leak: &Leak) -> bool {
    let pod = leak.pod.as_ref();
    let workload = leak.workload.as_ref();
    let is = |wanted: &Option<String>, found: &[Option<&str>]| {
        wanted.as_deref().is_none_or(|wanted| found.contains(&Some(wanted)))
    };
    let is_young = filter.since.is_none_or(|since| leak.confirmed.time >= since);
    (leak.resolved_at.is_some() || is_young)
        && filter.until.is_none_or(|until| leak.confirmed.time < until)
        && is(&filter.namespace, &[pod.map(|pod| &*pod.namespace)])
        && is(&filter.pod, &[pod.map(|pod| &*pod.name), pod.map(|pod| pod.uid.as_str())])
        && filter.cause.is_none_or(|cause| leak.cause.kind.as_str() == cause)
        && is(
            &filter.workload,
            &[workload.map(|of| &*of.name), workload.map(Workload::to_string).as_deref()],
        )
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
        more: false,
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
