//! What the watch cannot tell: whether a pod exists that it has not shown, and whose node this is.

use super::{
    Core, KubeOptions,
    client::ANSWER_LIMIT,
    decode,
    errors::describe,
    pod::{self, Node, Pod},
    request::{self, RequestFailure},
    watch::{PAGE, PODS, on_node},
};
use crate::{linux::clock, sources::Closed};
use coroner_core::{
    ids::{PodRef, PodUid},
    input::{ApiEvent, ApiNode, ApiPod, PodCheck},
};
use futures::future::join_all;
use kube::{
    Client,
    api::{GetParams, ListParams},
    core::Request,
};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeSet,
    future::Future,
    io::Read,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::{Mutex, Notify, mpsc},
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout},
};
use tracing::{debug, info, warn};

/// So many pods are looked up one by one; for more, one list of the node's pods costs less.
const ONE_BY_ONE: usize = 10;
/// Between two of those, because other nodes' agents may ask at the same time.
const PACE: Duration = Duration::from_millis(200);
/// Pods that such a list may have: of more than these it shows which exist, and not which do not.
const MAX_LISTED: usize = 1 << 16;
/// Of the pods that such a list lacks, so many are looked up by name all the same.
const SAMPLED: usize = 5;
/// The node is asked for again after so long,
pub(super) const NODE_EVERY: Duration = Duration::from_secs(300);
/// or while it could not be had or tells another boot than this machine's.
const NODE_DOUBTED_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Lookups {
    client: Client,
    options: KubeOptions,
    /// Notified whenever an outage of the watch is over.
    recovered: Arc<Notify>,
    core: Core,
    /// The last failure to get the node, so that it is logged once.
    node_failure: Option<String>,
    /// A pod could not be looked up: logged once, until one could.
    failing: bool,
    pace: Mutex<Interval>,
}

impl Lookups {
    pub(super) fn new(
        client: Client,
        options: KubeOptions,
        recovered: Arc<Notify>,
        core: Core,
    ) -> Self {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (node_failure, failing, pace) = (None, false, Mutex::new(pace));
        Self { client, options, recovered, core, node_failure, failing, pace }
    }

    /// Answers until either channel closes.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Vec<PodRef>>) {
        let recovered = Arc::clone(&self.recovered);
        let mut next_node = Instant::now();
        loop {
            let done = tokio::select! {
                request = requests.recv() => match request {
                    Some(pods) => self.check(pods).await,
                    None => return,
                },
                () = recovered.notified() => {
                    next_node = Instant::now();
                    Ok(())
                }
                () = sleep_until(next_node) => {
                    let node = self.get_node().await;
                    next_node = Instant::now() + pause(&node, self.options.own_boot_id.as_deref());
                    self.core.send(node).await
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    async fn get_node(&mut self) -> ApiEvent {
        let node = &self.options.node;
        let (missing, error) = match asked(self.node_object(), node, "get of nodes").await {
            Ok(Some(Some(found))) => {
                if self.node_failure.take().is_some() {
                    info!(node, "read the Node object");
                }
                return ApiEvent::Node(found);
            }
            Ok(Some(None)) => (
                false,
                format!("the Node {node:?} has no bootID; its kubelet has not reported yet"),
            ),
            Ok(None) => (
                true,
                format!(
                    "the apiserver has no Node {node:?}; compare --node (or NODE_NAME) with `kubectl \
                     get nodes`"
                ),
            ),
            Err(error) => (false, error),
        };
        self.options.counters.errors.fetch_add(1, Relaxed);
        if self.node_failure.as_ref() != Some(&error) {
            warn!(
                error,
                "cannot read the Node object; leak detection is suspended until it can be read"
            );
            self.node_failure = Some(error.clone());
        }
        ApiEvent::NodeUnknown { missing, error }
    }

    /// The Node object; `None`: no kubelet has reported for it yet.
    async fn node_object(&self) -> Result<Option<ApiNode>, RequestFailure> {
        let request =
            Request::new("/api/v1/nodes").get(&self.options.node, &GetParams::default())?;
        let node: Node = self.object(request, "a Node").await?;
        Ok(pod::node(&node))
    }

    async fn object<T: DeserializeOwned + Send + 'static>(
        &self,
        request: http::Request<Vec<u8>>,
        what: &'static str,
    ) -> Result<T, RequestFailure> {
        let counters = Arc::clone(&self.options.counters);
        let decode = move |body: &mut dyn Read| decode::object(body, &counters.truncated);
        let object = request::decoded(&self.client, request, decode).await?;
        object.ok_or(RequestFailure::Unexpected(what))
    }

    async fn check(&mut self, mut pods: Vec<PodRef>) -> Result<(), Closed> {
        let asked = clock::boot_now();
        let answers = if pods.len() > ONE_BY_ONE {
            self.look_for_all(&pods, &[]).await
        } else {
            // Of a cgroup only the UID is known: no name to get the pod by.
            let (nameless, named): (Vec<_>, Vec<_>) =
                pods.into_iter().partition(|pod| pod.name.is_empty() && pod.namespace.is_empty());
            let mut answers = join_all(named.iter().map(|pod| self.look_for(pod))).await;
            pods = named;
            if !nameless.is_empty() {
                let found = pods.iter().zip(&answers).filter(|(_, answer)| **answer == Ok(true));
                let existing: Vec<&PodUid> = found.map(|(pod, _)| &pod.uid).collect();
                answers.extend(self.look_for_all(&nameless, &existing).await);
                pods.extend(nameless);
            }
            answers
        };
        let failure = answers.iter().find_map(|answer| answer.as_ref().err()).cloned();
        match failure {
            Some(error) if !self.failing => {
                warn!(error, "cannot check whether pods still exist; retrying when needed");
                self.failing = true;
            }
            Some(error) => debug!(error, "still cannot check whether pods exist"),
            None => self.failing = false,
        }
        let pods = pods
            .into_iter()
            .zip(answers)
            .map(|(pod, answer)| PodCheck { uid: pod.uid, exists: answer.ok() })
            .collect();
        self.core.send(ApiEvent::Checked { asked, pods }).await
    }

    /// Whether the object of this name is this very pod. No resource version is given, so that the
    /// answer is etcd's own (a quorum read) and not that of a cache which may lag behind.
    async fn look_for(&self, pod: &PodRef) -> Result<bool, String> {
        if !is_name(&pod.namespace) || !is_name(&pod.name) {
            return Err(self.failed("the runtime reported a pod with an invalid name"));
        }
        self.pace.lock().await.tick().await;
        let found = async {
            let pods = format!("/api/v1/namespaces/{}/pods", pod.namespace);
            let request = Request::new(pods).get(&pod.name, &GetParams::default())?;
            let found: Pod = self.object(request, "a pod").await?;
            pod::pod(&found).ok_or(RequestFailure::Unexpected("a pod"))
        };
        match asked(found, &pod.name, "get of pods").await {
            Ok(found) => Ok(found.is_some_and(|found| is(&found, &pod.uid))),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The same for many: they are bound to this node, so that a list of its pods has them all.
    ///
    /// Unless the name is another node's, which the Node object need not show: all nodes of a kind
    /// cluster are on one machine and tell the same boot. Then pods exist that the list lacks. So
    /// some of those are looked up by name, and `existing` are known to; one that the list should
    /// have had, and the list proves nothing.
    async fn look_for_all(
        &self,
        pods: &[PodRef],
        existing: &[&PodUid],
    ) -> Vec<Result<bool, String>> {
        let (known, complete) = match self.list().await {
            Ok(list) => list,
            Err(error) => {
                let error = self.failed(&error);
                return vec![Err(error); pods.len()];
            }
        };
        let mut answers: Vec<_> = pods
            .iter()
            .map(|pod| match known.contains(&pod.uid) {
                true => Ok(true),
                false if complete => Ok(false),
                false => Err("the apiserver's list contains an invalid pod".to_owned()),
            })
            .collect();
        let missing: Vec<usize> =
            (0..pods.len()).filter(|at| matches!(answers[*at], Ok(false))).collect();
        let named: Vec<usize> =
            missing.iter().copied().filter(|at| !pods[*at].name.is_empty()).collect();
        let sample: Vec<usize> = spread(&named, SAMPLED).collect();
        let looked_up = join_all(sample.iter().map(|at| self.look_for(&pods[*at]))).await;
        let lacks_one = existing.iter().any(|uid| !known.contains(*uid))
            || looked_up.iter().any(|answer| matches!(answer, Ok(true)));
        let unconfirmed = !sample.is_empty() && looked_up.iter().all(Result::is_err);
        if lacks_one || unconfirmed {
            let doubt = self.failed(&if lacks_one {
                format!(
                    "a pod of this machine exists, but is not assigned to the node {:?}; check \
                     whether --node (or NODE_NAME) is another node's name",
                    self.options.node
                )
            } else {
                "the apiserver's list lacks pods, and none of them can be read by name".into()
            });
            for at in missing {
                answers[at] = Err(doubt.clone());
            }
        }
        for (at, answer) in sample.into_iter().zip(looked_up) {
            answers[at] = answer;
        }
        answers
    }

    /// The UIDs of this node's pods, as the runtime knows them, and whether these are all.
    async fn list(&self) -> Result<(BTreeSet<PodUid>, bool), String> {
        let mut page = ListParams::default().fields(&on_node(&self.options.node)).limit(PAGE);
        let (mut known, mut is_complete) = (BTreeSet::new(), true);
        loop {
            let counters = Arc::clone(&self.options.counters);
            let read = move |body: &mut dyn Read| {
                let list = decode::list(body, &counters.truncated, |pod: Option<Pod>| {
                    match pod.as_ref().and_then(pod::pod) {
                        Some(pod) if known.len() < MAX_LISTED => {
                            known.extend(pod.mirror_of);
                            known.insert(PodUid::new(pod.uid));
                        }
                        _ => is_complete = false,
                    }
                    Ok(())
                })?;
                Ok((known, is_complete, list.following()))
            };
            let answer = async {
                request::decoded(&self.client, Request::new(PODS).list(&page)?, read).await
            };
            let answer = asked(answer, "", "list of pods").await?;
            let following;
            (known, is_complete, following) = answer.ok_or("the apiserver has no pods resource")?;
            match following {
                Some(token) => page.continue_token = Some(token),
                None => return Ok((known, is_complete)),
            }
        }
    }

    fn failed(&self, error: &str) -> String {
        self.options.counters.errors.fetch_add(1, Relaxed);
        error.to_owned()
    }
}

/// So many of them, from all over.
fn spread(all: &[usize], count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(all.len());
    (0..count).map(move |n| all[n * all.len() / count])
}

/// Until the node is asked for again.
fn pause(answer: &ApiEvent, own_boot_id: Option<&str>) -> Duration {
    match answer {
        ApiEvent::Node(node) if own_boot_id.is_none_or(|own| own == node.boot_id.trim()) => {
            NODE_EVERY
        }
        _ => NODE_DOUBTED_EVERY,
    }
}

/// The object is the pod that the runtime knows by this UID, or the mirror of it.
fn is(object: &ApiPod, uid: &PodUid) -> bool {
    object.uid == uid.as_str() || object.mirror_of.as_ref() == Some(uid)
}

/// A DNS subdomain (RFC 1123), as `ValidateNodeName` has it (kubernetes `pkg/apis/core/validation/validation.go`): what
/// may stand in a path as a namespace, or as a pod's or node's name.
pub(crate) fn is_name(text: &str) -> bool {
    let letter = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(letter)
            && bytes.last().is_some_and(letter)
            && bytes.iter().all(|b| letter(b) || *b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// An answer in time; `None`: there is no such thing. `name`: what was asked for; `right`: what the agent's role must allow.
async fn asked<T>(
    question: impl Future<Output = Result<T, RequestFailure>>,
    name: &str,
    right: &str,
) -> Result<Option<T>, String> {
    match timeout(ANSWER_LIMIT, question).await {
        Ok(Ok(answer)) => Ok(Some(answer)),
        // Only the apiserver itself can say so, of this very thing: a proxy on the way answers 404
        // for a path that it does not know.
        Ok(Err(RequestFailure::Refused(status)))
            if status.code == 404
                && status.reason == "NotFound"
                && status.details.as_ref().is_none_or(|details| details.name == name) =>
        {
            Ok(None)
        }
        Ok(Err(failure)) => Err(describe(&failure, failure.code(), right)),
        Err(_) => Err(format!("the apiserver did not answer within {} s", ANSWER_LIMIT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_another_boot_is_asked_for_again_soon() {
        let node = |boot_id: &str| {
            let (boot_id, kubelet_version) = (boot_id.into(), "v1.33.4".into());
            ApiEvent::Node(ApiNode { boot_id, kubelet_version, ready: None })
        };
        let unknown = ApiEvent::NodeUnknown { missing: false, error: String::new() };
        for (answer, own, expected) in [
            (node("b1"), Some("b1"), NODE_EVERY),
            (node("b0"), Some("b1"), NODE_DOUBTED_EVERY),
            (node("b0"), None, NODE_EVERY),
            (unknown, Some("b1"), NODE_DOUBTED_EVERY),
        ] {
            assert_eq!(pause(&answer, own), expected, "{answer:?}, {own:?}");
        }
    }
}
