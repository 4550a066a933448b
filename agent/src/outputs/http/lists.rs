//! The lists of the API: pages, which are written as the client reads, and watches.

use super::{Observed, Parameters, SharedState, no};
use crate::{linux::clock, outputs::report, store::entry::Entry};
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use coroner_api::{
    Event, Heartbeat, List, ListQuery, Moment,
    leaks::{self, Detection},
    query::{DEFAULT_LIMIT, HEARTBEAT_SECONDS, MAX_LIMIT, parse_duration},
    terminations::{Death, Termination},
};
use coroner_core::{
    ids::PodRef,
    leak::Leak,
    report::{ContainerDeath, PodTermination},
    time::{Anchor, BootTime, WallTime},
};
use futures::stream;
use serde::Serialize;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

/// How many items a watch holds for its client at once.
const BATCH: usize = 64;
/// Changes within this time are one answer, so that a watch does not search the list for each.
const PAUSE: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECONDS);

/// The response goes on for as long as the client reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unending;

/// What can be listed.
pub(super) trait Item: Send + Sync + 'static {
    /// The form in the API.
    type Wire: Serialize + Send;
    /// Newest first; else in the order in which they came.
    const NEWEST_FIRST: bool;

    fn pod(&self) -> Option<&PodRef>;
    /// By which `since` selects; `None`: unknown.
    fn at(&self, clock: &Anchor) -> Option<WallTime>;
    fn wire(&self, clock: &Anchor, node: String) -> Self::Wire;
    /// Calls `each` with every entry, in no order.
    fn visit(shared: &SharedState, each: &mut dyn FnMut(&Entry<Self>))
    where
        Self: Sized;
    /// The number of the last change, and of the last one that [`Item::visit`] no longer shows although a reader needs
    /// it.
    fn changes(shared: &SharedState) -> (u64, u64) {
        (shared.history.lock().changes(), 0)
    }
    fn detection(_: &SharedState) -> Option<Detection> {
        None
    }
}

impl Item for PodTermination {
    type Wire = Termination;
    const NEWEST_FIRST: bool = true;

    fn pod(&self) -> Option<&PodRef> {
        Some(&self.pod)
    }

    fn at(&self, clock: &Anchor) -> Option<WallTime> {
        Some(clock.wall(self.ended))
    }

    fn wire(&self, _: &Anchor, node: String) -> Termination {
        Termination { node, ..self.into() }
    }

    fn visit(shared: &SharedState, each: &mut dyn FnMut(&Entry<Self>)) {
        shared.history.lock().terminations().for_each(each);
    }
}

impl Item for ContainerDeath {
    type Wire = Death;
    const NEWEST_FIRST: bool = true;

    fn pod(&self) -> Option<&PodRef> {
        self.pod.as_ref()
    }

    fn at(&self, clock: &Anchor) -> Option<WallTime> {
        self.milestones.iter().map(|milestone| clock.wall(milestone.at)).max()
    }

    fn wire(&self, clock: &Anchor, node: String) -> Death {
        Death { node, ..Death::of(self, clock) }
    }

    fn visit(shared: &SharedState, each: &mut dyn FnMut(&Entry<Self>)) {
        shared.history.lock().deaths().for_each(each);
    }
}

impl Item for Leak {
    type Wire = leaks::Leak;
    const NEWEST_FIRST: bool = false;

    fn pod(&self) -> Option<&PodRef> {
        self.pod.as_ref()
    }

    fn at(&self, _: &Anchor) -> Option<WallTime> {
        Some(self.confirmed)
    }

    fn wire(&self, clock: &Anchor, node: String) -> leaks::Leak {
        leaks::Leak { node, ..report::leak_json(self, clock) }
    }

    fn visit(shared: &SharedState, each: &mut dyn FnMut(&Entry<Self>)) {
        shared.leaks.lock().entries().for_each(each);
    }

    fn changes(shared: &SharedState) -> (u64, u64) {
        shared.leaks.lock().changes()
    }

    fn detection(shared: &SharedState) -> Option<Detection> {
        let why = shared.health.lock().suspension(clock::boot_now());
        Some(report::detection_json(&shared.leaks.lock().progress(), why))
    }
}

/// A page, or a watch.
pub(super) async fn list<T: Item>(
    State(shared): State<Arc<SharedState>>,
    Parameters(query): Parameters<ListQuery>,
) -> Response {
    let selected = match Selected::of(&query) {
        Ok(selected) => selected,
        Err(why) => return no(StatusCode::BAD_REQUEST, why),
    };
    if query.watch {
        if query.limit.is_some() || query.after.is_some() {
            return no(StatusCode::BAD_REQUEST, "a watch takes neither limit nor continue");
        }
        return watch::<T>(shared, selected);
    }
    let limit = match query.limit {
        Some(0) => return no(StatusCode::BAD_REQUEST, "limit: must be at least 1"),
        limit => limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT),
    };
    let run = shared.started.0;
    let after = match query.after.as_deref().map(|token| parse_token(token, run)).transpose() {
        Ok(after) => after,
        Err((status, why)) => return no(status, why),
    };
    let clock = clock::anchor();
    let is_next = |entry: &Entry<T>| {
        let beyond = after.is_none_or(|after| match T::NEWEST_FIRST {
            true => entry.number < after,
            false => entry.number > after,
        });
        beyond && !entry.gone && selected.wants(&*entry.item, &clock)
    };
    let order =
        |entry: &Entry<T>| if T::NEWEST_FIRST { u64::MAX - entry.number } else { entry.number };
    let mut found = first::<T>(&shared, limit + 1, is_next, order);
    let more = found.len() > limit;
    found.truncate(limit);
    let token = |entry: &Entry<T>| format!("{run:x}-{:x}", entry.number);
    let next = found.last().filter(|_| more).map(token);
    page(&shared, found, next, clock)
}

/// The pods and the time that a question is about.
struct Selected {
    namespace: Option<String>,
    pod: Option<String>,
    /// Fixed when the question comes: else an item could leave a watch without a line.
    from: Option<BootTime>,
}

impl Selected {
    fn of(query: &ListQuery) -> Result<Self, String> {
        let parse = |text: &str| {
            parse_duration(text).ok_or("since: use a number with a unit, for example 30m or 1d")
        };
        let since = query.since.as_deref().map(parse).transpose()?;
        let from = since.map(|since| {
            let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            BootTime(clock::boot_now().0.saturating_sub(since))
        });
        Ok(Self { namespace: query.namespace.clone(), pod: query.pod.clone(), from })
    }

    fn wants(&self, item: &impl Item, clock: &Anchor) -> bool {
        let is = |wanted: &Option<String>, of: fn(&PodRef) -> &String| {
            wanted.as_ref().is_none_or(|wanted| item.pod().is_some_and(|pod| wanted == of(pod)))
        };
        let is_young =
            self.from.is_none_or(|from| item.at(clock).is_none_or(|at| at >= clock.wall(from)));
        is_young && is(&self.namespace, |pod| &pod.namespace) && is(&self.pod, |pod| &pod.name)
    }
}

/// The change that the page before ended with.
fn parse_token(token: &str, run: u64) -> Result<u64, (StatusCode, &'static str)> {
    let number = |text| u64::from_str_radix(text, 16).ok();
    let parts = token.split_once('-').and_then(|(of, after)| Some((number(of)?, number(after)?)));
    match parts {
        None => Err((StatusCode::BAD_REQUEST, "continue: use the value of the previous page")),
        Some((of, _)) if of != run => Err((
            StatusCode::GONE,
            "continue: the agent was restarted since the previous page; list from the beginning",
        )),
        Some((_, after)) => Ok(after),
    }
}

/// The first few entries in an order, without a copy of the others.
fn first<T: Item>(
    shared: &SharedState,
    limit: usize,
    wanted: impl Fn(&Entry<T>) -> bool,
    order: impl Fn(&Entry<T>) -> u64,
) -> Vec<Entry<T>> {
    let mut found: Vec<Entry<T>> = Vec::new();
    T::visit(shared, &mut |entry| {
        if !wanted(entry) {
            return;
        }
        found.push(entry.clone());
        if found.len() >= 2 * limit {
            found.select_nth_unstable_by_key(limit, &order);
            found.truncate(limit);
        }
    });
    found.sort_unstable_by_key(order);
    found.truncate(limit);
    found
}

/// The envelope around items, which are written one after the other as the client reads: many clients that do not
/// read hold no copies.
fn page<T: Item>(
    shared: &SharedState,
    found: Vec<Entry<T>>,
    next: Option<String>,
    clock: Anchor,
) -> Response {
    let Observed { node, boot_id } = shared.observed.clone();
    let empty = List::<()> {
        node: node.clone(),
        boot_id,
        observed_since: shared.observed_since.get().map(|at| Moment::of_boot(*at, &clock)),
        detection: T::detection(shared),
        items: Vec::new(),
        next: None,
    };
    let (Ok(envelope), Ok(next)) = (serde_json::to_string(&empty), serde_json::to_string(&next))
    else {
        return no(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the answer");
    };
    let head = envelope.trim_end_matches("]}").to_owned();
    let tail = if next == "null" { "]}".to_owned() } else { format!("],\"continue\":{next}}}") };
    let items = found.into_iter().enumerate().map(move |(number, entry)| {
        let mut bytes = if number == 0 { Vec::new() } else { b",".to_vec() };
        serde_json::to_writer(&mut bytes, &entry.item.wire(&clock, node.clone()))?;
        Ok(Bytes::from(bytes))
    });
    let parts = std::iter::once(Ok(head.into())).chain(items);
    let parts = parts.chain(std::iter::once(Ok(Bytes::from(tail))));
    let body = Body::from_stream(stream::iter(parts.map(|part: serde_json::Result<Bytes>| part)));
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

fn watch<T: Item>(shared: Arc<SharedState>, selected: Selected) -> Response {
    let watch = ListWatch::<T> {
        news: shared.news.subscribe(),
        began: T::changes(&shared).0,
        shared,
        selected,
        seen: 0,
        is_initial: true,
        batch: VecDeque::new(),
        heartbeat: Instant::now(),
        detection: None,
    };
    let body = stream::unfold(watch, async |mut watch| Some((watch.next().await?, watch)));
    let mut response =
        ([(CONTENT_TYPE, "application/jsonl")], Body::from_stream(body)).into_response();
    response.extensions_mut().insert(Unending);
    response
}

/// What a client has seen of a list.
struct ListWatch<T> {
    shared: Arc<SharedState>,
    news: watch::Receiver<bool>,
    selected: Selected,
    /// The last change before the watch.
    began: u64,
    /// The last change that was sent, or needed not be.
    seen: u64,
    /// Not all that was there at the start has been sent.
    is_initial: bool,
    batch: VecDeque<Entry<T>>,
    /// When the next heartbeat is due.
    heartbeat: Instant,
    /// The state of leak detection that was sent last.
    detection: Option<Detection>,
}

impl<T: Item> ListWatch<T> {
    /// The next line; `None`: the agent stops, or no longer knows what the client has not seen.
    async fn next(&mut self) -> Option<serde_json::Result<Bytes>> {
        loop {
            if let Some(entry) = self.batch.pop_front() {
                return Some(line(&self.event(&entry)));
            }
            if *self.news.borrow_and_update() {
                return None;
            }
            let (seen, clock) = (self.seen, clock::anchor());
            let known = seen.max(self.began);
            let (last, forgotten) = T::changes(&self.shared);
            if forgotten > known {
                return None;
            }
            // A leak that came and went between two lines is not worth one, nor one that was gone before.
            let is_news = |entry: &Entry<T>| {
                let is_worth_it =
                    !entry.gone || (entry.number <= known && entry.version > self.began);
                entry.version > seen && is_worth_it && self.selected.wants(&*entry.item, &clock)
            };
            self.batch = first::<T>(&self.shared, BATCH, is_news, |entry| entry.version).into();
            if !self.batch.is_empty() {
                continue;
            }
            self.seen = seen.max(last);
            let detection = T::detection(&self.shared);
            let state = |of: &Option<Detection>| of.as_ref().map(|of| of.state.clone());
            let has_changed = state(&detection) != state(&self.detection);
            if std::mem::take(&mut self.is_initial)
                || has_changed
                || Instant::now() >= self.heartbeat
            {
                self.heartbeat = Instant::now() + HEARTBEAT;
                self.detection.clone_from(&detection);
                let at = Moment::of_boot(clock::boot_now(), &clock);
                let Observed { node, boot_id } = self.shared.observed.clone();
                let heartbeat = Heartbeat { node, boot_id, at, detection };
                return Some(line(&Event::<()>::Heartbeat(heartbeat)));
            }
            tokio::select! {
                changed = self.news.changed() => {
                    changed.ok()?;
                    sleep(PAUSE).await;
                }
                () = sleep_until(self.heartbeat) => {}
            }
        }
    }

    fn event(&mut self, entry: &Entry<T>) -> Event<T::Wire> {
        let was_seen = entry.number <= self.seen && !self.is_initial;
        self.seen = entry.version;
        let object = entry.item.wire(&clock::anchor(), self.shared.observed.node.clone());
        match (entry.gone, was_seen) {
            (true, _) => Event::Deleted { object },
            (false, true) => Event::Modified { object },
            (false, false) => Event::Added { object },
        }
    }
}

fn line(event: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut bytes = serde_json::to_vec(event)?;
    bytes.push(b'\n');
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;

    /// However long a watch lasts, what its client was shown stays selected.
    #[test]
    fn since_is_fixed_when_the_question_comes() {
        let query = ListQuery { since: Some("1h".into()), ..ListQuery::default() };
        let selected = Selected::of(&query).unwrap();
        let clock = clock::anchor();
        let from = clock.wall(selected.from.unwrap());
        let a_day_later = Anchor {
            boot_ns: clock.boot_ns + 86_400_000_000_000,
            wall_ns: clock.wall_ns + 86_400_000_000_000,
        };
        for clock in [clock, a_day_later] {
            let confirmed = |at| Leak { confirmed: at, ..samples::leaked() };
            assert!(selected.wants(&confirmed(from), &clock));
            assert!(!selected.wants(&confirmed(WallTime(from.0 - 1)), &clock));
        }
        let always = ListQuery { since: Some("9999h".into()), ..ListQuery::default() };
        assert_eq!(Selected::of(&always).unwrap().from, Some(BootTime(0)));
    }
}
