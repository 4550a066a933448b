//! What the watch cannot tell: whether a pod exists that it has not shown, and whose node this is.

use super::{
    Counters, Options, Request,
    client::{ANSWER_LIMIT, describe},
    convert,
    pod::ReducedPod,
};
use crate::{
    clock,
    domain::{
        ids::PodUid,
        input::{ApiEvent, ApiNode, ApiPod, Input, PodCheck, Received},
        observation::PodRef,
    },
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

/// So many pods are looked up one by one; for more, one list of the node's pods costs less.
const ONE_BY_ONE: usize = 10;
/// Pods in one page of that list.
const PAGE: u32 = 500;
/// The node is asked for again after so long,
const NODE_EVERY: Duration = Duration::from_secs(300);
/// or while it could not be had.
const NODE_MISSING_EVERY: Duration = Duration::from_secs(60);

/// The channel to the core is closed.
struct Closed;

/// Why a question got no answer.
enum Unanswered {
    /// The apiserver says that there is no such thing.
    Missing,
    /// Anything else, as text.
    Failed(String),
}

pub(super) struct Lookups {
    client: Client,
    node: String,
    recovered: Arc<Notify>,
    counters: Arc<Counters>,
    to: mpsc::Sender<Received>,
    /// The last failure to get the node, so that it is logged once.
    node_failure: Option<String>,
    /// A pod could not be looked up: logged once, until one could.
    failing: bool,
}

impl Lookups {
    /// `recovered` is notified whenever an outage of the watch is over.
    pub(super) fn new(
        client: Client,
        options: &Options,
        recovered: Arc<Notify>,
        to: mpsc::Sender<Received>,
    ) -> Self {
        Self {
            client,
            node: options.node.clone(),
            recovered,
            counters: Arc::clone(&options.counters),
            to,
            node_failure: None,
            failing: false,
        }
    }

    /// Answers until either channel closes.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let recovered = Arc::clone(&self.recovered);
        let mut next_node = Instant::now();
        loop {
            let done = tokio::select! {
                request = requests.recv() => match request {
                    Some(Request::Check(pods)) => self.check(pods).await,
                    None => return,
                },
                () = recovered.notified() => {
                    next_node = Instant::now();
                    Ok(())
                }
                () = sleep_until(next_node) => {
                    let node = self.get_node().await;
                    let had = matches!(node, ApiEvent::Node(_));
                    let pause = if had { NODE_EVERY } else { NODE_MISSING_EVERY };
                    next_node = Instant::now() + pause;
                    self.send(node).await
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    async fn get_node(&mut self) -> ApiEvent {
        let api: Api<Node> = Api::all(self.client.clone());
        let answer = match asked(api.get(&self.node), &self.node, "get of nodes").await {
            Ok(node) => convert::node(&node).ok_or_else(|| {
                Unanswered::Failed(format!(
                    "the Node {:?} has no bootID: no kubelet has reported for it yet",
                    self.node
                ))
            }),
            Err(unanswered) => Err(unanswered),
        };
        self.tell_node(answer)
    }

    fn tell_node(&mut self, answer: Result<ApiNode, Unanswered>) -> ApiEvent {
        let (missing, error) = match answer {
            Ok(node) => {
                if self.node_failure.take().is_some() {
                    info!(node = self.node, "the Node object could be had");
                }
                return ApiEvent::Node(node);
            }
            Err(Unanswered::Missing) => (
                true,
                format!(
                    "the apiserver has no Node {:?}: check --node, or NODE_NAME in the \
                     environment, against `kubectl get nodes`",
                    self.node
                ),
            ),
            Err(Unanswered::Failed(error)) => (false, error),
        };
        self.counters.errors.fetch_add(1, Relaxed);
        if self.node_failure.as_ref() != Some(&error) {
            warn!(error, "the Node object cannot be had; no leak is told before it is");
            self.node_failure = Some(error.clone());
        }
        ApiEvent::NodeUnknown { missing, error }
    }

    async fn check(&mut self, mut pods: Vec<PodRef>) -> Result<(), Closed> {
        let asked = clock::boot_now();
        let answers = if pods.len() > ONE_BY_ONE {
            self.look_for_all(&pods).await
        } else {
            // Of a cgroup only the UID is known: no name to get the pod by.
            let (nameless, named): (Vec<_>, Vec<_>) =
                pods.into_iter().partition(|pod| pod.name.is_empty() && pod.namespace.is_empty());
            let mut answers = join_all(named.iter().map(|pod| self.look_for(pod))).await;
            pods = named;
            if !nameless.is_empty() {
                answers.extend(self.look_for_all(&nameless).await);
                pods.extend(nameless);
            }
            answers
        };
        let failure = answers.iter().find_map(|answer| answer.as_ref().err()).cloned();
        match failure {
            Some(error) if !self.failing => {
                warn!(error, "whether pods still exist cannot be asked; trying on when needed");
                self.failing = true;
            }
            Some(error) => debug!(error, "whether pods still exist still cannot be asked"),
            None => self.failing = false,
        }
        let pods = pods
            .into_iter()
            .zip(answers)
            .map(|(pod, answer)| PodCheck { uid: pod.uid, exists: answer.ok() })
            .collect();
        self.send(ApiEvent::Checked { asked, pods }).await
    }

    /// Whether the object of this name is this very pod. No resource version is given, so that the
    /// answer is etcd's own (a quorum read) and not that of a cache which may lag behind.
    async fn look_for(&self, pod: &PodRef) -> Result<bool, String> {
        if !is_name(&pod.namespace) || !is_name(&pod.name) {
            return Err(self.failed("the runtime gives a pod a name that no object can have"));
        }
        let api: Api<ReducedPod> = Api::namespaced(self.client.clone(), &pod.namespace);
        match asked(api.get(&pod.name), &pod.name, "get of pods").await {
            Ok(ReducedPod { pod: Some(found), .. }) => Ok(is(&found, &pod.uid)),
            Ok(_) => Err(self.failed("the apiserver's answer is no pod")),
            Err(Unanswered::Missing) => Ok(false),
            Err(Unanswered::Failed(error)) => Err(self.failed(&error)),
        }
    }

    /// The same for many: they are bound to this node, so that a list of its pods has them all.
    async fn look_for_all(&self, pods: &[PodRef]) -> Vec<Result<bool, String>> {
        match self.list().await {
            Ok((known, complete)) => pods
                .iter()
                .map(|pod| match known.contains(&pod.uid) {
                    true => Ok(true),
                    false if complete => Ok(false),
                    false => Err("the apiserver's list holds something that is no pod".into()),
                })
                .collect(),
            Err(error) => {
                let error = self.failed(&error);
                vec![Err(error); pods.len()]
            }
        }
    }

    /// The UIDs of this node's pods, as the runtime knows them, and whether these are all.
    async fn list(&self) -> Result<(BTreeSet<PodUid>, bool), String> {
        let api: Api<ReducedPod> = Api::all(self.client.clone());
        let on_this_node = format!("spec.nodeName={}", self.node);
        let mut page = ListParams::default().fields(&on_this_node).limit(PAGE);
        let (mut known, mut complete) = (BTreeSet::new(), true);
        loop {
            let answer = asked(api.list(&page), "", "list of pods").await;
            let list = answer.map_err(|unanswered| match unanswered {
                Unanswered::Missing => "the apiserver knows no pods".to_owned(),
                Unanswered::Failed(error) => error,
            })?;
            for item in list.items {
                match item.pod {
                    Some(pod) => {
                        known.extend(pod.mirror_of);
                        known.insert(PodUid::new(pod.uid));
                    }
                    None => complete = false,
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok((known, complete)),
            }
        }
    }

    fn failed(&self, error: &str) -> String {
        self.counters.errors.fetch_add(1, Relaxed);
        error.to_owned()
    }

    async fn send(&self, event: ApiEvent) -> Result<(), Closed> {
        let received = Received { at: clock::boot_now(), input: Input::Api(event) };
        self.to.send(received).await.map_err(|_| Closed)
    }
}

/// The object is the pod that the runtime knows by this UID, or the mirror of it.
fn is(object: &ApiPod, uid: &PodUid) -> bool {
    object.uid == uid.as_str() || object.mirror_of.as_ref() == Some(uid)
}

/// What may stand in a path as a namespace or a pod's name (RFC 1123).
fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('.')
}

/// An answer in time. `name`: what was asked for; `right`: what the agent's role must allow.
async fn asked<T>(
    question: impl Future<Output = kube::Result<T>>,
    name: &str,
    right: &str,
) -> Result<T, Unanswered> {
    let Ok(answer) = timeout(ANSWER_LIMIT, question).await else {
        let limit = ANSWER_LIMIT.as_secs();
        return Err(Unanswered::Failed(format!("the apiserver did not answer within {limit} s")));
    };
    answer.map_err(|error| match &error {
        // Only the apiserver itself can say so, of this very thing: a proxy on the way answers 404
        // for a path that it does not know.
        kube::Error::Api(status)
            if status.code == 404
                && status.reason == "NotFound"
                && status.details.as_ref().is_none_or(|details| details.name == name) =>
        {
            Unanswered::Missing
        }
        kube::Error::Api(status) => Unanswered::Failed(describe(&error, Some(status.code), right)),
        _ => Unanswered::Failed(describe(&error, None, right)),
    })
}
