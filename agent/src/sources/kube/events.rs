//! The Events that the kubelet has posted about one pod: one list each time the engine asks, within a budget, and never
//! a watch, because a cluster has thousands of agents.

use super::{
    answer::{AnswerStream, HttpRequest, RequestFailure},
    client,
    errors::describe,
    lookup::is_name,
    shape,
    watch::ListMetadata,
};
use crate::{
    linux::clock,
    sources::{
        bucket::{Bucket, Rate},
        cut::Cuts,
        json::JsonEvent,
        kubelet,
    },
};
use coroner_core::{
    ids::PodRef,
    input::{Input, KubeletEntry, KubeletEvent, Received},
    time::{Anchor, WallTime},
};
use kube::api::ListParams;
use serde::Deserialize;
use std::{path::PathBuf, time::Duration};
use tokio::{sync::mpsc, time::Instant, time::timeout};
use tracing::{debug, info};

/// So many lists at once.
const BURST: u32 = 3;
/// Events of one pod that are read. A pod has some dozens; the apiserver keeps them for an hour.
const MAX_EVENTS: u32 = 64;
/// An answer takes no longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Without the permission it is tried again after this.
const FORBIDDEN_FOR: Duration = Duration::from_secs(600);

/// What the adapter needs.
#[derive(Clone, Debug)]
pub struct EventsOptions {
    /// A kubeconfig; `None`: $KUBECONFIG, ~/.kube/config or the service account.
    pub kubeconfig: Option<PathBuf>,
    /// One list after each such time, on average.
    pub every: Duration,
    /// This node's name: the kubelet names it in its Events.
    pub node: String,
}

/// An Event, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Posted {
    reason: String,
    message: String,
    count: Option<i64>,
    first_timestamp: Option<String>,
    last_timestamp: Option<String>,
    event_time: Option<String>,
    involved_object: InvolvedObject,
    source: Poster,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct InvolvedObject {
    field_path: String,
}

/// Who says that it has posted the Event (`EventSource`). Anyone who may create Events can write anything there.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Poster {
    component: String,
    host: String,
}

/// The component of the kubelet's recorder (`makeEventRecorder`, cmd/kubelet/app/server.go); its host is the node.
const KUBELET: &str = "kubelet";

/// Answers until either channel closes.
pub async fn lists(
    options: EventsOptions,
    to: mpsc::Sender<Received>,
    mut requests: mpsc::Receiver<PodRef>,
) -> anyhow::Result<()> {
    let client = client::request_client(options.kubeconfig.as_deref()).await?;
    let rate = Rate { burst: BURST, every: options.every };
    let mut bucket = Bucket::full(rate, Instant::now());
    let mut forbidden_until: Option<Instant> = None;
    let send = async |event| {
        let received = Received { at: clock::boot_now(), input: Input::Kubelet(event) };
        to.send(received).await.is_ok()
    };
    if !send(KubeletEvent::Lookup { lists: true }).await {
        return Ok(());
    }
    while let Some(pod) = requests.recv().await {
        let (now, asked) = (Instant::now(), clock::boot_now());
        let may = forbidden_until.is_none_or(|until| now >= until) && bucket.take(now);
        let entries = match may {
            true => match list(&client, &pod, &options.node).await {
                Ok(entries) => Some(entries),
                Err(failure) => {
                    if failure.as_ref().is_some_and(|failure| failure.code() == Some(403)) {
                        forbidden_until = Some(now + FORBIDDEN_FOR);
                        info!(
                            "the Events of pods may not be listed; causes that they would prove stay inferred. \
                             Grant list of events, as the chart does, or use --events-lookup off"
                        );
                    } else {
                        let error = failure.map(|one| describe(&one, one.code(), "list of events"));
                        debug!(error, "cannot list the Events of a pod");
                    }
                    None
                }
            },
            false => None,
        };
        if !send(KubeletEvent::Events { pod: pod.uid, asked, entries }).await {
            break;
        }
    }
    Ok(())
}

/// What the Events of a pod say. `None` in the error: no answer in time, or no name to ask by.
async fn list(
    client: &kube::Client,
    pod: &PodRef,
    node: &str,
) -> Result<Vec<KubeletEntry>, Option<RequestFailure>> {
    if !is_name(&pod.namespace) || !pod.uid.as_str().bytes().all(is_of_a_uid) {
        return Err(None);
    }
    let asked = async {
        let events = format!("/api/v1/namespaces/{}/events", pod.namespace);
        let fields = format!("involvedObject.uid={},source={KUBELET}", pod.uid);
        let params = ListParams::default().fields(&fields).limit(MAX_EVENTS);
        let request: HttpRequest = kube::core::Request::new(events).list(&params)?;
        let mut answer = AnswerStream::to(client, request, &shape::EVENTS).await?;
        let (cuts, anchor) = (Cuts::default(), clock::anchor());
        let mut entries = Vec::new();
        while let Some(event) = answer.next(&cuts).await? {
            let item = match event {
                JsonEvent::Item(item) if entries.len() < 2 * MAX_EVENTS as usize => item,
                // What is not on the first page may be what proves a cause.
                JsonEvent::End(list) if ListMetadata::of(&list)?.following.is_none() => {
                    return Ok(entries);
                }
                _ => return Err(RequestFailure::Unexpected("a whole list of events")),
            };
            let posted = item.decode::<Posted>();
            let of_the_kubelet = |posted: &&Posted| {
                (&*posted.source.component, &*posted.source.host) == (KUBELET, node)
            };
            let posted = posted.iter().filter(of_the_kubelet);
            entries.extend(posted.flat_map(|posted| said(posted, pod, &anchor)));
        }
        Err(RequestFailure::Short)
    };
    match timeout(ANSWER_LIMIT, asked).await {
        Ok(answer) => answer.map_err(Some),
        Err(_) => Err(None),
    }
}

fn is_of_a_uid(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// An Event that was posted several times has its first and its last time.
fn said(posted: &Posted, pod: &PodRef, anchor: &Anchor) -> Vec<KubeletEntry> {
    let last = posted.last_timestamp.as_ref().or(posted.event_time.as_ref());
    let mut times: Vec<WallTime> = posted
        .first_timestamp
        .iter()
        .chain(last)
        .filter_map(|text| text.parse::<jiff::Timestamp>().ok())
        .map(|time| WallTime::from_secs(time.as_second()))
        .collect();
    times.dedup();
    let of = |at| {
        let words = (&*posted.reason, &*posted.involved_object.field_path, &*posted.message);
        let mut entry = kubelet::event(words, at, anchor)?;
        (entry.pod, entry.namespace) = (Some(pod.uid.clone()), Some(pod.namespace.clone()));
        entry.name = Some(pod.name.clone());
        entry.posted = posted.count.and_then(|count| u32::try_from(count).ok());
        Some(entry)
    };
    times.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::{
        ids::PodUid,
        input::{KubeletKillReason, KubeletStatement},
    };

    #[test]
    fn an_event_is_a_statement_of_its_first_and_its_last_time() {
        let json = r#"{"reason":"Killing","message":"Container a failed liveness probe, will be restarted","count":3,
            "firstTimestamp":"2026-11-22T12:49:56Z","lastTimestamp":"2026-11-22T12:50:56Z",
            "involvedObject":{"fieldPath":"spec.containers{a}"}}"#;
        let mut posted: Posted = serde_json::from_str(json).unwrap();
        let pod = PodRef { namespace: "d".into(), name: "p".into(), uid: PodUid::new("1-2") };
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 1_795_351_796_000_000_000 };
        let entries = said(&posted, &pod, &anchor);
        assert_eq!(entries.len(), 2);
        for (entry, seconds) in entries.iter().zip([0_u64, 60]) {
            assert_eq!(entry.statement, KubeletStatement::EventKilling);
            assert_eq!(entry.reason, Some(KubeletKillReason::LivenessProbe));
            assert_eq!((entry.container.as_deref(), entry.posted), (Some("a"), Some(3)));
            assert_eq!(entry.earliest().0, (1 << 50) + seconds * 1_000_000_000);
            assert_eq!(entry.uncertainty_ns, 500_000_000, "it has whole seconds");
        }
        posted.reason = "Scheduled".into();
        assert!(said(&posted, &pod, &anchor).is_empty());
        posted = Posted { reason: "Killing".into(), ..Posted::default() };
        assert!(said(&posted, &pod, &anchor).is_empty(), "without a time it proves nothing");
    }
}
