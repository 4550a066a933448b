//! The Events that the kubelet has posted about one pod: one list each time the engine asks, within a budget, and never
//! a watch, because a cluster has thousands of agents.

use super::{
    client,
    decode::{self, Lenient, Text},
    errors::describe,
    lookup::is_name,
    pod::beginning,
    request::{self, RequestFailure},
};
use crate::{
    linux::clock,
    sources::{
        bucket::{Bucket, Rate},
        cut::Cuts,
    },
};
use coroner_core::{
    events::NETWORK_FAILURES,
    ids::PodRef,
    input::{EventReason, Input, KillReason, LookupEvent, PostedEvent, ProbeKind, Received},
    time::{Anchor, WallTime},
};
use kube::api::ListParams;
use serde::Deserialize;
use std::{io::Read, path::PathBuf, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info};

const BURST: u32 = 3;
/// Events of one pod that are read. A pod has some dozens; the apiserver keeps them for an hour.
const MAX_EVENTS: u32 = 64;
/// The longest name of a container that is kept, bytes.
const MAX_NAME: usize = 253;
/// The longest message that is kept, bytes.
const MAX_MESSAGE: usize = 200;
/// An answer takes no longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A list is put off if it may be made this soon. The engine waits for an answer for longer.
const PUT_OFF: Duration = Duration::from_secs(2);
/// Without the permission it is tried again after this.
const FORBIDDEN_FOR: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct EventsOptions {
    pub kubeconfig: Option<PathBuf>,
    /// One list after each such time, on average.
    pub every: Duration,
    /// This node's name: the kubelet names it in its Events.
    pub node: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Posted {
    reason: Lenient<Text<64>>,
    message: Lenient<Text<1024>>,
    count: Lenient<i64>,
    first_timestamp: Lenient<Text<64>>,
    last_timestamp: Lenient<Text<64>>,
    event_time: Lenient<Text<64>>,
    involved_object: Lenient<InvolvedObject>,
    source: Lenient<Poster>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InvolvedObject {
    field_path: Lenient<Text<256>>,
}

/// Who says that it has posted the Event (`EventSource`). Anyone who may create Events can write anything there.
#[derive(Deserialize)]
struct Poster {
    component: Lenient<Text<64>>,
    host: Lenient<Text<320>>,
}

/// The component of the kubelet's recorder (`makeEventRecorder`, cmd/kubelet/app/server.go); its host is the node.
const KUBELET: &str = "kubelet";

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
        let received = Received { at: clock::boot_now(), input: Input::Events(event) };
        to.send(received).await.is_ok()
    };
    if !send(LookupEvent::Lookup { lists: true }).await {
        return Ok(());
    }
    while let Some(pod) = requests.recv().await {
        let (mut now, asked) = (Instant::now(), clock::boot_now());
        let is_allowed = forbidden_until.is_none_or(|until| now >= until);
        let mut may = is_allowed && bucket.take(now);
        if is_allowed && !may && bucket.next() <= now + PUT_OFF {
            sleep_until(bucket.next()).await;
            now = Instant::now();
            may = bucket.take(now);
        }
        let entries = match may {
            true => match list(&client, &pod, &options.node).await {
                Ok(entries) => Some(entries),
                Err(failure) => {
                    if failure.as_ref().is_some_and(|failure| failure.code() == Some(403)) {
                        forbidden_until = Some(now + FORBIDDEN_FOR);
                        info!(
                            "the Events of pods may not be listed; causes that only they state stay unknown. \
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
        if !send(LookupEvent::Events { pod: pod.uid, asked, entries }).await {
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
) -> Result<Vec<PostedEvent>, Option<RequestFailure>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !is_name(&pod.namespace) || !pod.uid.as_str().bytes().all(is_plain) {
        return Err(None);
    }
    let node = node.to_owned();
    let asked = async {
        let events = format!("/api/v1/namespaces/{}/events", pod.namespace);
        let fields = format!("involvedObject.uid={},source={KUBELET}", pod.uid);
        let params = ListParams::default().fields(&fields).limit(MAX_EVENTS);
        let request = kube::core::Request::new(events).list(&params)?;
        let read = move |body: &mut dyn Read| {
            const PARTIAL: RequestFailure = RequestFailure::Unexpected("a whole list of events");
            let (anchor, mut entries) = (clock::anchor(), Vec::new());
            let list = decode::list(body, &Cuts::default(), |posted: Option<Posted>| {
                if entries.len() >= 2 * MAX_EVENTS as usize {
                    return Err(PARTIAL);
                }
                let posted = posted.filter(|posted| {
                    let source = posted.source.as_ref();
                    source
                        .is_some_and(|of| (of.component.text(), of.host.text()) == (KUBELET, &node))
                });
                entries.extend(posted.iter().flat_map(|posted| times(posted, &anchor)));
                Ok(())
            })?;
            // What is not on the first page may be what proves a cause.
            if list.following().is_none() { Ok(entries) } else { Err(PARTIAL) }
        };
        request::decoded(client, request, read).await
    };
    match timeout(ANSWER_LIMIT, asked).await {
        Ok(answer) => answer.map_err(Some),
        Err(_) => Err(None),
    }
}

/// An Event that was posted several times has its first and its last time.
fn times(posted: &Posted, anchor: &Anchor) -> Vec<PostedEvent> {
    let last = posted.last_timestamp.as_ref().or(posted.event_time.as_ref());
    let first = posted.first_timestamp.iter();
    let seconds =
        |text: &Text<64>| text.parse::<jiff::Timestamp>().ok().map(|time| time.as_second());
    let mut times: Vec<i64> =
        first.chain(last).filter_map(seconds).filter(|seconds| *seconds > 0).collect();
    times.dedup();
    let field_path = posted.involved_object.as_ref().map_or("", |of| of.field_path.text());
    let of = |at| {
        let texts = (posted.reason.text(), field_path, posted.message.text());
        let mut event = event(texts, WallTime::from_secs(at), anchor)?;
        event.posted = posted.count.and_then(|count| u32::try_from(count).ok());
        Some(event)
    };
    times.into_iter().filter_map(of).collect()
}

/// An Event by its reason, the path of its object's field and its message. `at`: its time, which has whole seconds.
pub fn event(
    (reason, field_path, message): (&str, &str, &str),
    at: WallTime,
    anchor: &Anchor,
) -> Option<PostedEvent> {
    const HALF: i64 = 500_000_000;
    let about = match reason {
        "Killing" => EventReason::Killing,
        "Unhealthy" => EventReason::Unhealthy,
        "FailedPostStartHook" => EventReason::PostStartFailed,
        "SandboxChanged" => EventReason::SandboxChanged,
        "Preempting" => EventReason::Preempting,
        "Evicted" => EventReason::Evicted,
        "ExceededGracePeriod" => EventReason::ExceededGrace,
        "FailedKillPod" => EventReason::KillPodFailed,
        "DeadlineExceeded" => EventReason::Deadline,
        "NodeShutdown" | "Shutdown" => EventReason::Shutdown,
        _ => return None,
    };
    let at = anchor.boot(WallTime(at.0.saturating_add(HALF)));
    let mut event = PostedEvent::new(at, HALF.unsigned_abs(), about);
    let container = field_path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    event.container = container.and_then(|(name, _)| name_of(name));
    match about {
        EventReason::Killing => {
            let reason = kill_reason(message);
            // Only texts that the kubelet composes are kept; `killing` is the message of RestartAllContainers.
            let is_known = reason != KillReason::Other || message == "killing";
            (event.reason, event.message) = (Some(reason), is_known.then(|| shortened(message)));
        }
        EventReason::KillPodFailed => {
            let words = NETWORK_FAILURES.iter().find(|words| message.contains(**words));
            event.message = words.map(|words| (*words).to_owned());
        }
        EventReason::Evicted => event.message = Some(beginning(message)),
        EventReason::Unhealthy => event.probe = failed_probe(message),
        _ => {}
    }
    Some(event)
}

/// Why a container is stopped (`computePodActions` and `killContainer`, pkg/kubelet/kuberuntime).
fn kill_reason(message: &str) -> KillReason {
    let reasons = [
        ("failed liveness probe", KillReason::LivenessProbe),
        ("failed startup probe", KillReason::StartupProbe),
        ("definition changed", KillReason::DefinitionChanged),
        ("resize requires restart", KillReason::Resize),
        ("try killing it before restart", KillReason::UnknownState),
        ("FailedPostStartHook", KillReason::PostStartHook),
        ("Stopping container", KillReason::Stopping),
    ];
    let known = reasons.iter().find(|(text, _)| message.contains(text));
    known.map_or(KillReason::Other, |(_, reason)| *reason)
}

/// The probe that failed. What it printed, which follows, is not read.
fn failed_probe(message: &str) -> Option<ProbeKind> {
    /// Before the message of an Event that stands for many alike (client-go/tools/record/events_cache.go).
    const COMBINED: &str = "(combined from similar events): ";
    let message = message.strip_prefix(COMBINED).unwrap_or(message);
    match message.split_once(" probe failed:")?.0 {
        "Liveness" => Some(ProbeKind::Liveness),
        "Readiness" => Some(ProbeKind::Readiness),
        "Startup" => Some(ProbeKind::Startup),
        _ => None,
    }
}

fn name_of(text: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (!text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(plain)).then(|| text.to_owned())
}

fn shortened(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_MESSAGE)];
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_its_first_and_its_last_time() {
        let json = r#"{"reason":"Killing","message":"Container a failed liveness probe, will be restarted","count":3,
            "firstTimestamp":"2026-11-22T12:49:56Z","lastTimestamp":"2026-11-22T12:50:56Z",
            "involvedObject":{"fieldPath":"spec.containers{a}"}}"#;
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 1_795_351_796_000_000_000 };
        let entries = |json: &str| times(&serde_json::from_str(json).unwrap(), &anchor);
        let both = entries(json);
        assert_eq!(both.len(), 2);
        for (entry, seconds) in both.iter().zip([0_u64, 60]) {
            assert_eq!(entry.about, EventReason::Killing);
            assert_eq!(entry.reason, Some(KillReason::LivenessProbe));
            assert_eq!((entry.container.as_deref(), entry.posted), (Some("a"), Some(3)));
            assert_eq!(entry.earliest().0, (1 << 50) + seconds * 1_000_000_000);
            assert_eq!(entry.uncertainty_ns, 500_000_000, "it has whole seconds");
        }
        assert!(entries(&json.replace("Killing", "Scheduled")).is_empty());
        for no_time in [
            r#"{"reason":"Killing"}"#,
            r#"{"reason":"Killing","firstTimestamp":"0001-01-01T00:00:00Z"}"#,
        ] {
            assert!(entries(no_time).is_empty(), "without a time it proves nothing");
        }
    }

    /// As containerd, CRI-O and cri-dockerd word it; the rest of an error may contain anything.
    #[test]
    fn a_network_that_could_not_be_removed_is_known_by_its_words() {
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 0 };
        for (error, wanted) in [
            (
                r#"failed to destroy network for sandbox \"1a\": plugin type=\"calico\" failed (delete): hunter2"#,
                Some(0),
            ),
            (
                "failed to destroy network for pod sandbox k8s_a_b_c_0(1a): error removing pod: hunter2",
                Some(0),
            ),
            (r#"networkPlugin cni failed to teardown pod \"a_b\" network: hunter2"#, Some(1)),
            ("context deadline exceeded", None),
        ] {
            let message = format!(
                "error killing pod: failed to \"KillPodSandbox\" for \"3b4c7244-42ad-469d-960b-59ebb51a6563\" with \
                 KillPodSandboxError: \"rpc error: code = Unknown desc = {error}\""
            );
            let event = event(("FailedKillPod", "", &message), WallTime(0), &anchor).unwrap();
            assert_eq!(event.message.as_deref(), wanted.map(|at: usize| NETWORK_FAILURES[at]));
        }
    }

    #[test]
    fn what_a_probe_printed_is_not_kept() {
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 0 };
        let unhealthy = |message| {
            event(("Unhealthy", "spec.containers{a}", message), WallTime(0), &anchor).unwrap()
        };
        let probe = |message| unhealthy(message).probe;
        let combined = "(combined from similar events): Startup probe failed: hunter2";
        assert_eq!(probe(combined), Some(ProbeKind::Startup));
        assert!(!format!("{:?}", unhealthy(combined)).contains("hunter2"));
        let of_another = "Readiness probe failed: Liveness probe failed: hunter2";
        assert_eq!(probe(of_another), Some(ProbeKind::Readiness));
        assert_eq!(probe("Liveness probe errored: probe failed: x"), None, "it is no failure");
    }
}
