//! One Event to the apiserver, and what its answer means.

use super::note::{EventDraft, Regarding};
use crate::sources::kube::{
    answer::{self, Refusal, RequestFailure},
    client::ANSWER_LIMIT,
    errors::describe,
    lookup::is_name,
};
use coroner_core::ids::PodRef;
use futures::Future;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Client,
    api::{Patch, PatchParams, PostParams},
    core::Request,
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};

/// An Event that was sent less than so long ago is told again by its count (client-go's
/// `finishTime`).
const SERIES: Duration = Duration::from_secs(360);
/// Events that are remembered for that.
const MAX_SERIES: usize = 256;
/// Who says so: `From` of `kubectl describe`.
const CONTROLLER: &str = "coroner";
/// The most that the apiserver takes (`ReportingInstanceLengthLimit`).
const MAX_INSTANCE: usize = 128;
/// What the agent's role must allow.
const RIGHT: &str = "create and patch of events in the API group events.k8s.io: set `events: true` \
                     in the chart's `config`, or remove --events";

/// What became of an Event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    /// The apiserver has it.
    Sent,
    /// The apiserver does not take it, and will not take it later.
    Refused(String),
    /// The same, and there is nothing to mend: its namespace goes, or the pod's name is none.
    Pointless(String),
    /// No answer, or one that says to come again.
    Away(String),
}

/// Sends Events. Cloning gives another handle on the same memory.
#[derive(Clone)]
pub(super) struct Sender {
    client: Client,
    node: String,
    /// What was sent in the last minutes: the same again is a patch of the count.
    sent: Arc<Mutex<Vec<(Event, Instant)>>>,
}

impl Sender {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node, sent: Arc::default() }
    }

    /// Sends one. Owns what it needs, so that it can go on while its owner does something else.
    pub(super) fn send(
        &self,
        note: EventDraft,
    ) -> impl Future<Output = (EventDraft, SendOutcome)> + Send + use<> {
        let me = self.clone();
        async move {
            let outcome = me.try_to(&note).await;
            (note, outcome)
        }
    }

    async fn try_to(&self, note: &EventDraft) -> SendOutcome {
        let (regarding, related) = match &note.about {
            Regarding::Pod { pod, field } => (pod_reference(pod, field.clone()), None),
            Regarding::Node { related, field } => {
                let related = related.as_ref().and_then(|pod| pod_reference(pod, None));
                (Some(self.node_reference(field.clone())), related)
            }
        };
        let Some(regarding) = regarding else {
            return SendOutcome::Pointless(
                "the runtime reported a pod with an invalid name".into(),
            );
        };
        let event = self.event(note, regarding, related);
        match self.publish(event.clone()).await {
            Err(RequestFailure::Refused(refusal)) if is_lost(&refusal) => {
                // The Event that it would patch has been deleted: forget it, and make a new one.
                self.sent.lock().clear();
                outcome(self.publish(event).await)
            }
            result => outcome(result),
        }
    }

    fn event(
        &self,
        note: &EventDraft,
        regarding: ObjectReference,
        related: Option<ObjectReference>,
    ) -> Event {
        let now = Timestamp::now();
        let name = regarding.name.as_deref().unwrap_or(CONTROLLER);
        Event {
            action: Some(note.reason.action().to_owned()),
            event_time: Some(MicroTime(now)),
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: regarding.namespace.clone(),
                ..Default::default()
            },
            note: Some(note.message.clone()),
            reason: Some(note.reason.as_str().to_owned()),
            regarding: Some(regarding),
            related,
            reporting_controller: Some(CONTROLLER.into()),
            reporting_instance: Some(instance(&self.node).to_owned()),
            type_: Some("Warning".into()),
            ..Default::default()
        }
    }

    /// Makes the Event, or tells it again.
    async fn publish(&self, event: Event) -> Result<(), RequestFailure> {
        let again = {
            let mut sent = self.sent.lock();
            sent.retain(|(_, at)| at.elapsed() < SERIES);
            sent.iter().find(|(other, _)| is_same(other, &event)).map(|(other, _)| other.clone())
        };
        let event = match again {
            None => event,
            Some(before) => {
                let count = before.series.as_ref().map_or(1, |series| series.count) + 1;
                let last_observed_time = MicroTime(Timestamp::now());
                Event { series: Some(EventSeries { count, last_observed_time }), ..before }
            }
        };
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let events = Request::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"));
        let request = match &event.series {
            None => {
                let body = serde_json::to_vec(&event)
                    .map_err(kube::core::request::Error::SerializeBody)?;
                events.create(&PostParams::default(), body)?
            }
            Some(_) => {
                let name = event.metadata.name.as_deref().unwrap_or_default();
                events.patch(name, &PatchParams::default(), &Patch::Merge(&event))?
            }
        };
        let sent = timeout(ANSWER_LIMIT, answer::order(&self.client, request)).await;
        sent.map_err(|late| RequestFailure::Transport(kube::Error::Service(Box::new(late))))??;
        let mut sent = self.sent.lock();
        sent.retain(|(other, _)| !is_same(other, &event));
        if sent.len() >= MAX_SERIES {
            sent.remove(0);
        }
        sent.push((event, Instant::now()));
        Ok(())
    }

    /// The kubelet's Events on a node have its name as UID (pkg/kubelet/kubelet.go, `nodeRef`);
    /// `kubectl describe node` looks for that one, in the namespace `default`.
    fn node_reference(&self, field: Option<String>) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            field_path: field,
            ..Default::default()
        }
    }
}

/// What an Event is about is the same, whatever it says of it now.
fn is_same(one: &Event, other: &Event) -> bool {
    fn object(reference: &ObjectReference) -> [&Option<String>; 4] {
        [&reference.kind, &reference.namespace, &reference.name, &reference.uid]
    }
    one.reason == other.reason
        && one.action == other.action
        && one.regarding.as_ref().map(object) == other.regarding.as_ref().map(object)
        && one.related.as_ref().map(object) == other.related.as_ref().map(object)
}

/// A node's name is ASCII, but may be longer than is taken.
fn instance(node: &str) -> &str {
    node.get(..MAX_INSTANCE).unwrap_or(node)
}

/// `None`: what the runtime says cannot be a pod's name, and must not become part of a path.
fn pod_reference(pod: &PodRef, field: Option<String>) -> Option<ObjectReference> {
    (is_name(&pod.namespace) && is_name(&pod.name)).then(|| ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.as_str().to_owned()),
        field_path: field,
        ..Default::default()
    })
}

fn outcome(result: Result<(), RequestFailure>) -> SendOutcome {
    match result {
        Ok(()) => SendOutcome::Sent,
        Err(RequestFailure::Refused(refusal)) => self::refusal(&refusal),
        // Our own doing: the same again would fail the same way.
        Err(error @ RequestFailure::Request(_)) => {
            SendOutcome::Refused(describe(&error, None, RIGHT))
        }
        Err(error) => SendOutcome::Away(describe(&error, None, RIGHT)),
    }
}

fn refusal(refusal: &Refusal) -> SendOutcome {
    let why = describe(refusal, Some(refusal.code), RIGHT);
    match refusal.code {
        429 | 500.. => SendOutcome::Away(why),
        _ if is_about_the_namespace(refusal) => SendOutcome::Pointless(why),
        _ => SendOutcome::Refused(why),
    }
}

/// The Event that was to be patched is not there.
fn is_lost(refusal: &Refusal) -> bool {
    refusal.code == 404 && refusal.details.as_ref().is_some_and(|of| of.kind == "events")
}

/// It goes, or is gone (`NamespaceTerminatingCause`, plugin/pkg/admission/namespace/lifecycle).
fn is_about_the_namespace(refusal: &Refusal) -> bool {
    refusal.details.as_ref().is_some_and(|of| {
        of.causes.iter().flatten().any(|cause| cause.reason == "NamespaceTerminating")
            || refusal.code == 404 && of.kind == "namespaces"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, details: &str) -> Refusal {
        let text = format!(
            r#"{{"code": {code}, "message": "so says the apiserver", "details": {details}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        let terminating = r#"{"kind": "events", "causes": [{"reason": "NamespaceTerminating"}]}"#;
        for (code, details, wanted) in [
            (401, "{}", "refused"),
            (403, "{}", "refused"),
            (403, terminating, "pointless"),
            (404, r#"{"kind": "namespaces"}"#, "pointless"),
            (404, "{}", "refused"), // an apiserver without this API
            (422, "{}", "refused"),
            (429, "{}", "away"),
            (500, "{}", "away"),
            (503, "{}", "away"),
        ] {
            let (got, why) = match refusal(&status(code, details)) {
                SendOutcome::Sent => ("sent", String::new()),
                SendOutcome::Refused(why) => ("refused", why),
                SendOutcome::Pointless(why) => ("pointless", why),
                SendOutcome::Away(why) => ("away", why),
            };
            assert_eq!(got, wanted, "{code} {details}");
            assert!(why.contains("so says the apiserver"), "{why}");
        }
    }

    #[test]
    fn a_missing_right_is_named_with_what_gives_it() {
        let SendOutcome::Refused(why) = refusal(&status(403, "{}")) else { panic!("not refused") };
        assert!(why.contains("create and patch of events"), "{why}");
        assert!(why.contains("`events: true`"), "{why}");
    }

    #[test]
    fn a_node_s_name_may_be_longer_than_an_instance() {
        let name = "n".repeat(253);
        assert_eq!(instance(&name).len(), MAX_INSTANCE);
        assert_eq!(instance("n1"), "n1");
    }
}
