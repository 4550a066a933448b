//! The objects, their one sequence of resource versions, and the changes of late.

mod garbage;

use super::{
    deletion::{self, Effect},
    failure::ApiFailure,
    kind::ResourceKind,
    selector::Selector,
};
use coroner_workload::page::boot_now;
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::DaemonSet,
    api::core::v1::{Namespace, Node, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// On a static pod's mirror: the UID of the static pod (pkg/kubelet/types/pod_update.go).
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// What happened to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeType {
    /// It is new.
    Added,
    /// It changed.
    Modified,
    /// It is gone.
    Deleted,
}

impl ChangeType {
    /// As a watch says it.
    pub fn name(self) -> &'static str {
        match self {
            ChangeType::Added => "ADDED",
            ChangeType::Modified => "MODIFIED",
            ChangeType::Deleted => "DELETED",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Change {
    /// The resource version that it made.
    pub version: u64,
    pub kind: ResourceKind,
    /// What happened.
    pub change: ChangeType,
    /// The object after it; of a deleted one the last state.
    pub object: Arc<Value>,
    /// The object before it, for selectors that it enters or leaves.
    pub previous: Option<Arc<Value>>,
}

impl Change {
    /// The change as a watch with this selector sees it, if it does.
    pub(super) fn seen_by(&self, selector: &Selector) -> Option<ChangeType> {
        let before = self.previous.as_ref().is_some_and(|object| selector.matches(object));
        let after = selector.matches(&self.object) && self.change != ChangeType::Deleted;
        match (before, after) {
            (false, true) => Some(ChangeType::Added),
            (true, true) => Some(ChangeType::Modified),
            (true, false) => Some(ChangeType::Deleted),
            (false, false) => None,
        }
    }
}

/// Fields that no update may change, and over which upgrades fail.
const IMMUTABLE: [(ResourceKind, &str); 3] = [
    (ResourceKind::DaemonSet, "/spec/selector"),
    (ResourceKind::ClusterRoleBinding, "/roleRef"),
    (ResourceKind::RoleBinding, "/roleRef"),
];

/// When the dependents of a deleted object go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Propagation {
    /// After it.
    #[default]
    Background,
    /// Before it.
    Foreground,
    /// Not at all.
    Orphan,
}

/// What a delete request may say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeleteOptions {
    /// gracePeriodSeconds; `None` takes the pod's own.
    pub grace: Option<i64>,
    /// preconditions.uid
    pub uid: Option<String>,
    /// preconditions.resourceVersion
    pub resource_version: Option<String>,
    /// propagationPolicy
    pub propagation: Propagation,
}

/// The apiserver's objects. Cloning gives another handle on the same ones.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Mutex<Inner>>,
    version: watch::Sender<u64>,
}

type Key = (ResourceKind, String, String);

#[derive(Debug)]
struct Inner {
    version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Change>,
    capacity: usize,
    /// Changes up to and with this version are forgotten.
    forgotten: u64,
    /// Of every pod that there ever was, by the UID that the runtime knows: a test must not depend
    /// on when somebody came to see a change.
    pods: HashMap<String, PodObject>,
}

/// A pod's object, which exists or existed; times are ns of CLOCK_BOOTTIME.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodObject {
    /// The end of its grace, where its deletion was asked for: the earliest that it ever was.
    pub deadline: Option<u64>,
    /// When the object went.
    pub gone: Option<u64>,
}

impl Store {
    /// An empty one that remembers this many changes for watches.
    pub fn new(history: usize) -> Store {
        let inner = Inner {
            version: 1,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            capacity: history,
            forgotten: 1,
            pods: HashMap::new(),
        };
        Store { inner: Arc::new(Mutex::new(inner)), version: watch::Sender::new(1) }
    }

    /// Creates an object and gives it what the apiserver gives: uid, version, times, and to a pod
    /// the defaults that matter here.
    pub fn create(
        &self,
        kind: ResourceKind,
        namespace: &str,
        object: Value,
    ) -> Result<Value, ApiFailure> {
        let mut object = complete(kind, namespace, object)?;
        let mut inner = self.lock();
        let key = key(kind, &object);
        if inner.objects.contains_key(&key) {
            return Err(ApiFailure::exists(kind.resource(), &key.2));
        }
        let made = inner.put(kind, ChangeType::Added, &mut object, None);
        self.publish(inner);
        Ok(made)
    }

    /// Whether objects of this kind can be had.
    pub(super) fn serves(&self, kind: ResourceKind) -> bool {
        let definition = kind.definition();
        definition
            .is_none_or(|name| self.get(ResourceKind::CustomResourceDefinition, "", &name).is_ok())
    }

    /// One object.
    pub fn get(
        &self,
        kind: ResourceKind,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, ApiFailure> {
        self.lock().find(kind, namespace, name)
    }

    /// The version of now, and all objects of a kind in all namespaces.
    pub fn list(&self, kind: ResourceKind) -> (u64, Vec<Arc<Value>>) {
        let inner = self.lock();
        let of_kind = inner.objects.iter().filter(|((other, ..), _)| *other == kind);
        (inner.version, of_kind.map(|(_, object)| Arc::clone(object)).collect())
    }

    /// Changes an object. One without finalizers whose deletion waited for them goes.
    pub fn update(
        &self,
        kind: ResourceKind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value) -> Result<(), ApiFailure>,
    ) -> Result<Value, ApiFailure> {
        let mut inner = self.lock();
        let old = inner.find(kind, namespace, name)?;
        let mut new = Value::clone(&old);
        change(&mut new)?;
        validate(kind, &new)?;
        if new == *old {
            return Ok(new);
        }
        for (of, place) in IMMUTABLE {
            if of == kind && new.pointer(place) != old.pointer(place) {
                return Err(ApiFailure::invalid(format!("{place}: field is immutable")));
            }
        }
        if let Some(known) = old["metadata"]["generation"].as_i64()
            && kind != ResourceKind::Pod
            && new["spec"] != old["spec"]
        {
            new["metadata"]["generation"] = json!(known + 1);
        }
        let unkept = deletion::is_kept(&old) && !deletion::is_kept(&new);
        let waited = new["metadata"]["deletionGracePeriodSeconds"] == 0;
        let made = if unkept && waited {
            inner.put(kind, ChangeType::Deleted, &mut new, Some(old))
        } else {
            inner.put(kind, ChangeType::Modified, &mut new, Some(old))
        };
        self.publish(inner);
        Ok(made)
    }

    /// Deletes an object as the real apiserver would; gives what is left of it.
    pub fn delete(
        &self,
        kind: ResourceKind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Value, ApiFailure> {
        let mut inner = self.lock();
        let old = inner.find(kind, namespace, name)?;
        for (field, wanted) in
            [("uid", &options.uid), ("resourceVersion", &options.resource_version)]
        {
            let found = old["metadata"][field].as_str().unwrap_or_default();
            if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != found) {
                return Err(ApiFailure::conflict(format!(
                    "Precondition failed: {field} in precondition: {wanted}, in object: {found}"
                )));
            }
        }
        let left = inner.remove(kind, old, options.grace, options.propagation);
        self.publish(inner);
        Ok(Value::clone(&left))
    }

    /// Changes after a version, oldest first, and a receiver that wakes when there are more.
    pub fn changes_since(&self, version: u64) -> Result<Vec<Change>, ApiFailure> {
        let inner = self.lock();
        if version < inner.forgotten {
            return Err(ApiFailure::expired(version, inner.forgotten));
        }
        Ok(inner.history.iter().filter(|change| change.version > version).cloned().collect())
    }

    /// Wakes at every change; its value is the newest version.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// What there is, or was, of the object of the pod with this UID; of a static pod it is the
    /// mirror's. `None`: it never had one.
    pub fn pod_object(&self, uid: &str) -> Option<PodObject> {
        self.lock().pods.get(uid).copied()
    }

    /// Forgets all changes, so that every watch from an older version gets 410.
    pub fn compact(&self) {
        let mut inner = self.lock();
        inner.history.clear();
        inner.forgotten = inner.version;
    }

    fn publish(&self, inner: MutexGuard<'_, Inner>) {
        let version = inner.version;
        drop(inner);
        self.version.send_if_modified(|known| {
            let newer = version > *known;
            *known = version.max(*known);
            newer
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is made of whole objects: a panic elsewhere leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the kubelet and the scenarios use, typed.
impl Store {
    /// Creates a pod in its namespace, or in `default`.
    pub fn create_pod(&self, pod: &Pod) -> Result<Pod, ApiFailure> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        typed(&self.create(ResourceKind::Pod, namespace, untyped(pod)?)?)
    }

    pub fn create_node(&self, node: &Node) -> Result<Node, ApiFailure> {
        typed(&self.create(ResourceKind::Node, "", untyped(node)?)?)
    }

    pub fn get_pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiFailure> {
        typed(self.get(ResourceKind::Pod, namespace, name)?.as_ref())
    }

    pub fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Pod, ApiFailure> {
        typed(&self.delete(ResourceKind::Pod, namespace, name, options)?)
    }

    /// Changes a pod's status, and nothing else of it.
    pub fn patch_status(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        change: impl FnOnce(&mut k8s_openapi::api::core::v1::PodStatus),
    ) -> Result<Pod, ApiFailure> {
        let changed = self.update(ResourceKind::Pod, namespace, name, |object| {
            if uid.is_some_and(|uid| object["metadata"]["uid"] != uid) {
                return Err(ApiFailure::conflict(format!("pod {name:?} has another uid now")));
            }
            let mut status = typed::<Pod>(object)?.status.unwrap_or_default();
            change(&mut status);
            object["status"] = untyped(&status)?;
            Ok(())
        })?;
        typed(&changed)
    }
}

impl Inner {
    fn find(
        &self,
        kind: ResourceKind,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, ApiFailure> {
        let key = (kind, namespace.to_owned(), name.to_owned());
        let found = self.objects.get(&key).cloned();
        found.ok_or_else(|| ApiFailure::not_found(kind.resource(), name))
    }

    /// Deletes an object, or begins to; gives what is left of it.
    fn remove(
        &mut self,
        kind: ResourceKind,
        old: Arc<Value>,
        grace: Option<i64>,
        propagation: Propagation,
    ) -> Arc<Value> {
        let now = Timestamp::now();
        let mut new = Value::clone(&old);
        if old["metadata"]["deletionTimestamp"].is_null() {
            self.prepare_deletion(propagation, &mut new);
        }
        let effect = if kind == ResourceKind::Pod {
            deletion::of_pod(&mut new, grace, now)
        } else if deletion::is_kept(&new) && old["metadata"]["deletionTimestamp"].is_null() {
            if kind == ResourceKind::Namespace {
                new["status"]["phase"] = json!("Terminating");
            }
            deletion::mark(&mut new, now, 0);
            Effect::Goes { marked: true }
        } else {
            Effect::Goes { marked: false }
        };
        let mut left = old;
        if matches!(effect, Effect::Waits | Effect::Goes { marked: true }) {
            left = Arc::new(self.put(kind, ChangeType::Modified, &mut new, Some(left)));
        }
        if deletion::is_kept(&left) {
            self.continue_deletion(kind, &left);
        } else if matches!(effect, Effect::Goes { .. }) {
            self.put(kind, ChangeType::Deleted, &mut new, Some(Arc::clone(&left)));
            left = Arc::new(new);
        }
        left
    }

    /// Makes the next version out of an object.
    fn put(
        &mut self,
        kind: ResourceKind,
        change: ChangeType,
        object: &mut Value,
        previous: Option<Arc<Value>>,
    ) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let stored = Arc::new(object.clone());
        let key = key(kind, object);
        if kind == ResourceKind::Pod {
            self.note_pod(change, object);
        }
        match change {
            ChangeType::Deleted => self.objects.remove(&key),
            ChangeType::Added | ChangeType::Modified => {
                self.objects.insert(key, Arc::clone(&stored))
            }
        };
        self.history.push_back(Change {
            version: self.version,
            kind,
            change,
            object: stored,
            previous,
        });
        while self.history.len() > self.capacity {
            if let Some(oldest) = self.history.pop_front() {
                self.forgotten = oldest.version;
            }
        }
        if change == ChangeType::Deleted {
            self.finish_deletion(kind, object);
        }
        object.clone()
    }
}

impl Inner {
    fn note_pod(&mut self, change: ChangeType, object: &Value) {
        let meta = &object["metadata"];
        let mirrored = meta["annotations"][CONFIG_MIRROR].as_str();
        let Some(uid) = mirrored.or(meta["uid"].as_str()) else { return };
        let now = boot_now();
        let deadline = meta["deletionTimestamp"].as_str().and_then(|at| at.parse().ok());
        let deadline = deadline.map(|at: Timestamp| {
            let left = at.as_nanosecond() - Timestamp::now().as_nanosecond();
            now.saturating_add_signed(i64::try_from(left).unwrap_or_default())
        });
        let known = self.pods.entry(uid.to_owned()).or_default();
        // The mirror of a static pod comes back under the same UID.
        let deadlines = [known.deadline.filter(|_| known.gone.is_none()), deadline];
        known.deadline = deadlines.into_iter().flatten().min();
        known.gone = (change == ChangeType::Deleted).then_some(now);
    }
}

fn key(kind: ResourceKind, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (kind, text("namespace"), text("name"))
}

fn complete(kind: ResourceKind, namespace: &str, mut object: Value) -> Result<Value, ApiFailure> {
    if !object.is_object() || !(object["metadata"].is_object() || object["metadata"].is_null()) {
        return Err(ApiFailure::bad_request("the body is no object with metadata"));
    }
    validate(kind, &object)?;
    let uid = uuid::Uuid::new_v4().to_string();
    let metadata = &mut object["metadata"];
    if metadata["name"].as_str().is_none_or(str::is_empty) {
        let Some(prefix) = metadata["generateName"].as_str().filter(|prefix| !prefix.is_empty())
        else {
            return Err(ApiFailure::invalid("metadata.name: Required value"));
        };
        metadata["name"] = json!(format!("{prefix}{}", &uid[..5]));
    }
    if kind.is_namespaced() {
        if metadata["namespace"].as_str().is_some_and(|given| given != namespace) {
            return Err(ApiFailure::bad_request(
                "the namespace of the object is not the request's",
            ));
        }
        metadata["namespace"] = json!(namespace);
    }
    metadata["uid"] = json!(uid);
    metadata["creationTimestamp"] = json!(deletion::seconds(Timestamp::now()));
    object["kind"] = json!(kind.name());
    object["apiVersion"] = json!(kind.api_version());
    if kind == ResourceKind::Namespace {
        object["spec"]["finalizers"] = json!([deletion::NAMESPACE]);
        object["status"]["phase"] = json!("Active");
    }
    if kind.api_version() != "v1" && object["spec"].is_object() {
        object["metadata"]["generation"] = json!(1);
    }
    if kind == ResourceKind::Pod {
        object["metadata"]["generation"] = json!(1);
        for (field, value) in [
            ("terminationGracePeriodSeconds", json!(30)),
            ("restartPolicy", json!("Always")),
            ("dnsPolicy", json!("ClusterFirst")),
            ("schedulerName", json!("default-scheduler")),
        ] {
            if object["spec"][field].is_null() {
                object["spec"][field] = value;
            }
        }
        if object["status"]["phase"].is_null() {
            object["status"]["phase"] = json!("Pending");
        }
    }
    Ok(object)
}

/// Fields of the wrong type are refused, as by the real one; unknown ones are kept.
fn validate(kind: ResourceKind, object: &Value) -> Result<(), ApiFailure> {
    match kind {
        ResourceKind::Namespace => typed::<Namespace>(object).map(drop),
        ResourceKind::Node => typed::<Node>(object).map(drop),
        ResourceKind::Pod => typed::<Pod>(object).map(drop),
        ResourceKind::Event => typed::<EventFields>(object).map(drop),
        ResourceKind::DaemonSet => typed::<DaemonSet>(object).map(drop),
        _ => Ok(()),
    }
}

/// What the lab looks at in an event: clients of every age leave out what its type demands.
#[derive(serde::Deserialize)]
struct EventFields {
    #[serde(rename = "metadata", default)]
    _metadata: ObjectMeta,
    #[serde(rename = "involvedObject", default)]
    _about: ObjectReference,
}

fn typed<T: serde::de::DeserializeOwned>(object: &Value) -> Result<T, ApiFailure> {
    T::deserialize(object).map_err(|error| ApiFailure::bad_request(error.to_string()))
}

fn untyped(object: &impl serde::Serialize) -> Result<Value, ApiFailure> {
    serde_json::to_value(object).map_err(|error| ApiFailure::bad_request(error.to_string()))
}
