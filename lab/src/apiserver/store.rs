//! The objects, and the history of their changes.

use super::{
    deletion::{self, Effect},
    failure::ApiFailure,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// How many changes watches can go back before they get 410.
const HISTORY: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Namespace,
    Node,
    Pod,
    Event,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Namespace, Self::Node, Self::Pod, Self::Event];

    /// As in paths.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Namespace => "namespaces",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Event => "events",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Event => "Event",
        }
    }

    pub(super) fn is_namespaced(self) -> bool {
        matches!(self, Self::Pod | Self::Event)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeType {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Debug)]
pub struct Change {
    /// The resource version that it made.
    pub version: u64,
    pub kind: Kind,
    pub change: ChangeType,
    /// As it is after the change, or was before it went.
    pub object: Arc<Value>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeleteOptions {
    /// gracePeriodSeconds.
    pub grace: Option<i64>,
    /// preconditions.uid.
    pub uid: Option<String>,
}

/// The objects; clones share them.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Mutex<Inner>>,
    version: watch::Sender<u64>,
}

type Key = (Kind, String, String);

#[derive(Debug)]
struct Inner {
    version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
}

impl Default for Store {
    fn default() -> Self {
        let (objects, history) = (BTreeMap::new(), VecDeque::new());
        let inner = Inner { version: 1, objects, history, forgotten: 1 };
        Self { inner: Arc::new(Mutex::new(inner)), version: watch::Sender::new(1) }
    }
}

impl Store {
    /// Creates an object and gives it what the apiserver gives: UID, version, times, and to a pod the defaults that
    /// matter here.
    pub fn create(&self, kind: Kind, object: Value) -> Result<Arc<Value>, ApiFailure> {
        let object = complete(kind, object)?;
        let mut inner = self.lock();
        let key = key(kind, &object);
        if inner.objects.contains_key(&key) {
            return Err(ApiFailure::exists(kind.resource(), &key.2));
        }
        let created = inner.put(kind, ChangeType::Added, object);
        self.publish(inner);
        Ok(created)
    }

    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Arc<Value>, ApiFailure> {
        self.lock().find(kind, namespace, name)
    }

    /// The current version, and all objects of a kind in all namespaces.
    pub fn list(&self, kind: Kind) -> (u64, Vec<Arc<Value>>) {
        let inner = self.lock();
        let of_kind = inner.objects.iter().filter(|((other, ..), _)| *other == kind);
        (inner.version, of_kind.map(|(_, object)| Arc::clone(object)).collect())
    }

    /// Changes an object. It goes if only its finalizers held it and they are removed.
    pub fn update(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value) -> Result<(), ApiFailure>,
    ) -> Result<Arc<Value>, ApiFailure> {
        let mut inner = self.lock();
        let old = inner.find(kind, namespace, name)?;
        let mut new = Value::clone(&old);
        change(&mut new)?;
        if new == *old {
            return Ok(old);
        }
        let waited = new["metadata"]["deletionGracePeriodSeconds"] == 0;
        let goes = waited && is_held(&old) && !is_held(&new);
        let change = if goes { ChangeType::Deleted } else { ChangeType::Modified };
        let updated = inner.put(kind, change, new);
        self.publish(inner);
        Ok(updated)
    }

    /// Deletes an object as the real apiserver does, with a grace period for a pod; returns what is left of it.
    pub fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Arc<Value>, ApiFailure> {
        let mut inner = self.lock();
        let old = inner.find(kind, namespace, name)?;
        if let Some(wanted) = options.uid.as_ref().filter(|uid| old["metadata"]["uid"] != **uid) {
            return Err(ApiFailure::conflict(format!("Precondition failed: UID {wanted}")));
        }
        let mut new = Value::clone(&old);
        let effect = match kind {
            Kind::Pod => deletion::of_pod(&mut new, options.grace, Timestamp::now()),
            _ => Effect::Goes,
        };
        let mut left = old;
        if *left != new {
            left = inner.put(kind, ChangeType::Modified, new);
        }
        if effect == Effect::Goes && !is_held(&left) {
            left = inner.put(kind, ChangeType::Deleted, Value::clone(&left));
        }
        self.publish(inner);
        Ok(left)
    }

    /// Changes after a version, the oldest first.
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

    fn publish(&self, inner: MutexGuard<'_, Inner>) {
        self.version.send_replace(inner.version);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the driver and the scenarios use, typed.
impl Store {
    pub fn create_as<T: Serialize + DeserializeOwned>(
        &self,
        kind: Kind,
        object: &T,
    ) -> Result<T, ApiFailure> {
        let object = serde_json::to_value(object);
        let object = object.map_err(|error| ApiFailure::bad_request(error.to_string()))?;
        let created = self.create(kind, object)?;
        typed(&created)
    }

    pub fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        typed(self.get(Kind::Pod, namespace, name).ok()?.as_ref()).ok()
    }
}

impl Inner {
    fn find(&self, kind: Kind, namespace: &str, name: &str) -> Result<Arc<Value>, ApiFailure> {
        let found = self.objects.get(&(kind, namespace.to_owned(), name.to_owned())).cloned();
        found.ok_or_else(|| ApiFailure::not_found(kind.resource(), name))
    }

    /// Makes the next version out of an object.
    fn put(&mut self, kind: Kind, change: ChangeType, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let (key, object) = (key(kind, &object), Arc::new(object));
        match change {
            ChangeType::Deleted => self.objects.remove(&key),
            _ => self.objects.insert(key, Arc::clone(&object)),
        };
        let (version, stored) = (self.version, Arc::clone(&object));
        self.history.push_back(Change { version, kind, change, object: stored });
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.version;
        }
        object
    }
}

fn key(kind: Kind, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (kind, text("namespace"), text("name"))
}

fn is_held(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
}

fn complete(kind: Kind, mut object: Value) -> Result<Value, ApiFailure> {
    let metadata = &mut object["metadata"];
    if metadata["name"].as_str().is_none_or(str::is_empty) {
        return Err(ApiFailure::invalid("metadata.name: Required value"));
    }
    if kind.is_namespaced() && metadata["namespace"].is_null() {
        metadata["namespace"] = json!("default");
    }
    metadata["uid"] = json!(uuid::Uuid::new_v4().to_string());
    metadata["creationTimestamp"] = json!(deletion::seconds(Timestamp::now()));
    object["kind"] = json!(kind.name());
    object["apiVersion"] = json!("v1");
    if kind == Kind::Pod {
        typed::<Pod>(&object)?;
        object["metadata"]["generation"] = json!(1);
        let (spec, status) = (&["spec"][..], &["status"][..]);
        for (at, field, value) in [
            (spec, "terminationGracePeriodSeconds", json!(30)),
            (spec, "restartPolicy", json!("Always")),
            (status, "phase", json!("Pending")),
        ] {
            let place = &mut object[at[0]][field];
            if place.is_null() {
                *place = value;
            }
        }
    }
    Ok(object)
}

pub(super) fn typed<T: DeserializeOwned>(object: &Value) -> Result<T, ApiFailure> {
    T::deserialize(object).map_err(|error| ApiFailure::bad_request(error.to_string()))
}
