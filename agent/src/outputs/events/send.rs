//! One Event to the apiserver, and what its answer means.

use super::note::{EventDraft, Regarding};
use crate::sources::kube::{
    client::ANSWER_LIMIT,
    errors::{self, describe},
    lookup::is_name,
};
use coroner_core::ids::PodRef;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    core::Status,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::time::timeout;

/// Who says so: `From` of `kubectl describe`.
const CONTROLLER: &str = "coroner";
/// The most that the apiserver takes (`ReportingInstanceLengthLimit`).
const MAX_INSTANCE: usize = 128;
const RIGHT: &str = "create and patch of events in the API group events.k8s.io: set `events: true` \
                     in the chart's `config`, or remove --events";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    Sent,
    /// The apiserver does not take it, and will not take it later.
    Refused(String),
    /// The same, and there is nothing to fix: its namespace goes, or the pod's name is none.
    Pointless(String),
    /// No answer, or one that says to come again.
    Away(String),
}

/// Sends Events; an Event of the last 6 minutes is sent again as its count.
pub(super) struct Sender {
    client: Client,
    node: String,
    recorder: Recorder,
}

impl Sender {
    pub(super) fn new(client: Client, node: String) -> Self {
        let recorder = recorder(&client, &node);
        Self { client, node, recorder }
    }

    pub(super) async fn send(&mut self, note: &EventDraft) -> SendOutcome {
        let (regarding, field, secondary) = match &note.about {
            Regarding::Pod { pod, field } => (pod_reference(pod), field, None),
            Regarding::Node { related, field } => {
                (Some(node_reference(&self.node)), field, related.as_ref().and_then(pod_reference))
            }
        };
        let Some(regarding) = regarding else {
            let why = "the runtime reported a pod with an invalid name".into();
            return SendOutcome::Pointless(why);
        };
        // Part of what the recorder counts as the same: another sandbox is another Event.
        let regarding = ObjectReference { field_path: field.clone(), ..regarding };
        let event = Event {
            type_: EventType::Warning,
            reason: note.reason.as_str().to_owned(),
            note: Some(note.message.clone()),
            action: note.reason.action().to_owned(),
            secondary,
        };
        let mut sent = self.publish(&event, &regarding).await;
        if sent.as_ref().is_err_and(is_lost) {
            self.recorder = recorder(&self.client, &self.node);
            sent = self.publish(&event, &regarding).await;
        }
        outcome(sent)
    }

    async fn publish(&self, event: &Event, regarding: &ObjectReference) -> kube::Result<()> {
        let sent = timeout(ANSWER_LIMIT, self.recorder.publish(event, regarding)).await;
        sent.map_err(|late| kube::Error::Service(Box::new(late)))?
    }
}

/// The kubelet's Events on a node have its name as UID (pkg/kubelet/kubelet.go, `nodeRef`);
/// `kubectl describe node` looks for that one, in the namespace `default`.
fn node_reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(node.into()),
        uid: Some(node.into()),
        ..Default::default()
    }
}

fn recorder(client: &Client, node: &str) -> Recorder {
    // A node's name is ASCII, but may be longer than is taken.
    let instance = Some(node.get(..MAX_INSTANCE).unwrap_or(node).to_owned());
    Recorder::new(client.clone(), Reporter { controller: CONTROLLER.into(), instance })
}

/// `None`: what the runtime says cannot be a pod's name, and must not become part of a path.
fn pod_reference(pod: &PodRef) -> Option<ObjectReference> {
    (is_name(&pod.namespace) && is_name(&pod.name)).then(|| ObjectReference {
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.as_str().into()),
        ..node_reference("")
    })
}

fn outcome(sent: kube::Result<()>) -> SendOutcome {
    match sent {
        Ok(()) => SendOutcome::Sent,
        Err(kube::Error::Api(status)) => refused(&status),
        // It was taken, or cannot be: the same again would fail the same way.
        Err(kube::Error::SerdeError(_)) => {
            SendOutcome::Refused("cannot parse the response (content not shown)".into())
        }
        Err(error) => SendOutcome::Away(describe(&error, None, RIGHT)),
    }
}

fn refused(status: &Status) -> SendOutcome {
    let why = errors::refused(status, RIGHT);
    match status.code {
        429 | 500.. => SendOutcome::Away(why),
        _ if is_about_the_namespace(status) => SendOutcome::Pointless(why),
        _ => SendOutcome::Refused(why),
    }
}

/// The Event that was to be patched is not there.
fn is_lost(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_some_and(|of| of.kind == "events")
}

/// It goes, or is gone (`NamespaceTerminatingCause`, plugin/pkg/admission/namespace/lifecycle).
fn is_about_the_namespace(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|of| {
        of.causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
            || status.code == 404 && of.kind == "namespaces"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let text = format!(
                r#"{{"code": {code}, "message": "so says the apiserver", "details": {details}}}"#
            );
            let (got, why) = match refused(&serde_json::from_str(&text).unwrap()) {
                SendOutcome::Sent => ("sent", String::new()),
                SendOutcome::Refused(why) => ("refused", why),
                SendOutcome::Pointless(why) => ("pointless", why),
                SendOutcome::Away(why) => ("away", why),
            };
            assert_eq!(got, wanted, "{code} {details}");
            assert!(why.contains("so says the apiserver"), "{why}");
            assert_eq!(why.contains("create and patch of events"), code == 403, "{why}");
        }
    }
}
