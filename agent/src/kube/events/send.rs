//! One Event to the apiserver, through kube-rs' recorder, and what its answer means.

use super::note::{About, Note};
use crate::kube::{client::ANSWER_LIMIT, lookup::is_name, tell::describe};
use coroner_core::observation::PodRef;
use futures::Future;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    core::Status,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::timeout;

/// Who says so: `From` of `kubectl describe`.
const CONTROLLER: &str = "coroner";
/// The most that the apiserver takes (`ReportingInstanceLengthLimit`).
const MAX_INSTANCE: usize = 128;
/// What the agent's role must allow.
const RIGHT: &str = "create and patch of events in the API group events.k8s.io: apply \
                     deploy/overlays/events, or leave out --events";

/// What became of an Event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The apiserver has it.
    Sent,
    /// The apiserver does not take it, and will not take it later.
    Refused(String),
    /// The same, and there is nothing to mend: its namespace goes, or the pod's name is none.
    Pointless(String),
    /// No answer, or one that says to come again.
    Away(String),
}

/// Sends Events. Cloning gives another handle on the same recorder.
#[derive(Clone)]
pub(super) struct Sender {
    client: Client,
    node: String,
    /// It remembers what it sent in the last minutes: the same again is a patch of the count.
    recorder: Arc<Mutex<Recorder>>,
}

impl Sender {
    pub(super) fn new(client: Client, node: String) -> Self {
        let recorder = Arc::new(Mutex::new(recorder(client.clone(), &node)));
        Self { client, node, recorder }
    }

    /// Sends one. Owns what it needs, so that it can go on while its owner does something else.
    pub(super) fn send(&self, note: Note) -> impl Future<Output = (Note, Outcome)> + Send + use<> {
        let me = self.clone();
        async move {
            let outcome = me.try_to(&note).await;
            (note, outcome)
        }
    }

    async fn try_to(&self, note: &Note) -> Outcome {
        let (regarding, related) = match &note.about {
            About::Pod { pod, field } => (pod_reference(pod, field.clone()), None),
            About::Node { related, field } => {
                let related = related.as_ref().and_then(|pod| pod_reference(pod, None));
                (Some(self.node_reference(field.clone())), related)
            }
        };
        let Some(regarding) = regarding else {
            return Outcome::Pointless("the runtime gives a pod a name that none can have".into());
        };
        let event = Event {
            type_: EventType::Warning,
            reason: note.reason.as_str().to_owned(),
            note: Some(note.message.clone()),
            action: note.reason.action().to_owned(),
            secondary: related,
        };
        match self.publish(&event, &regarding).await {
            Err(kube::Error::Api(status)) if is_lost(&status) => {
                // The Event that it would patch has been deleted: forget it, and make a new one.
                let fresh = recorder(self.client.clone(), &self.node);
                *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
                outcome(self.publish(&event, &regarding).await)
            }
            result => outcome(result),
        }
    }

    async fn publish(&self, event: &Event, regarding: &ObjectReference) -> kube::Result<()> {
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match timeout(ANSWER_LIMIT, recorder.publish(event, regarding)).await {
            Ok(result) => result,
            Err(late) => Err(kube::Error::Service(Box::new(late))),
        }
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

fn recorder(client: Client, node: &str) -> Recorder {
    let instance = Some(instance(node).to_owned());
    Recorder::new(client, Reporter { controller: CONTROLLER.into(), instance })
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

fn outcome(result: kube::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Sent,
        Err(kube::Error::Api(status)) => refusal(&status),
        // Our own doing: the same again would fail the same way.
        Err(error @ (kube::Error::SerdeError(_) | kube::Error::BuildRequest(_))) => {
            Outcome::Refused(describe(&error, None, RIGHT))
        }
        Err(error) => Outcome::Away(describe(&error, None, RIGHT)),
    }
}

fn refusal(status: &Status) -> Outcome {
    let why = describe(status, Some(status.code), RIGHT);
    match status.code {
        429 | 500.. => Outcome::Away(why),
        _ if is_about_the_namespace(status) => Outcome::Pointless(why),
        _ => Outcome::Refused(why),
    }
}

/// The Event that was to be patched is not there.
fn is_lost(status: &Status) -> bool {
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

    fn status(code: u16, details: &str) -> Status {
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
                Outcome::Sent => ("sent", String::new()),
                Outcome::Refused(why) => ("refused", why),
                Outcome::Pointless(why) => ("pointless", why),
                Outcome::Away(why) => ("away", why),
            };
            assert_eq!(got, wanted, "{code} {details}");
            assert!(why.contains("so says the apiserver"), "{why}");
        }
    }

    #[test]
    fn a_missing_right_is_named_with_what_gives_it() {
        let Outcome::Refused(why) = refusal(&status(403, "{}")) else { panic!("not refused") };
        assert!(why.contains("create and patch of events"), "{why}");
        assert!(why.contains("deploy/overlays/events"), "{why}");
    }

    #[test]
    fn a_node_s_name_may_be_longer_than_an_instance() {
        let name = "n".repeat(253);
        assert_eq!(instance(&name).len(), MAX_INSTANCE);
        assert_eq!(instance("n1"), "n1");
    }
}
