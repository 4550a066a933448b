//! What a deletion brings about elsewhere, here at once: the deletion of dependents (the garbage collector,
//! pkg/controller/garbagecollector) and of a namespace's content (pkg/controller/namespace/deletion).

use super::{ChangeType, Inner, Propagation, ResourceKind, deletion};
use serde_json::{Value, json};
use std::sync::Arc;

/// The finalizer of an owner that is deleted after its dependents.
const FOREGROUND: &str = "foregroundDeletion";

type ObjectOfKind = (ResourceKind, Arc<Value>);

impl Inner {
    /// Before an object is deleted.
    pub(super) fn prepare_deletion(&mut self, propagation: Propagation, object: &mut Value) {
        if propagation == Propagation::Background {
            return;
        }
        let dependents = self.dependents(object);
        if propagation == Propagation::Foreground {
            if !dependents.is_empty() {
                match &mut object["metadata"]["finalizers"] {
                    Value::Array(all) => all.push(json!(FOREGROUND)),
                    none => *none = json!([FOREGROUND]),
                }
            }
            return;
        }
        for (kind, dependent) in dependents {
            let mut new = Value::clone(&dependent);
            if let Some(owners) = new["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"] != object["metadata"]["uid"]);
            }
            self.put(kind, ChangeType::Modified, &mut new, Some(dependent));
        }
    }

    /// While finalizers keep an object that is deleted.
    pub(super) fn continue_deletion(&mut self, kind: ResourceKind, object: &Value) {
        let mut wait_for = Vec::new();
        if has_finalizer(&object["metadata"], FOREGROUND) {
            wait_for = self.dependents(object);
        }
        if kind == ResourceKind::Namespace {
            wait_for.extend(self.content(object));
        }
        for (kind, object) in wait_for {
            self.remove(kind, object, None, Propagation::Background);
        }
        self.release(kind, object);
    }

    /// After an object has gone.
    pub(super) fn finish_deletion(&mut self, kind: ResourceKind, object: &Value) {
        // Pods and Events own nothing here, and there are many of them.
        if !matches!(kind, ResourceKind::Pod | ResourceKind::Event) {
            for (kind, dependent) in self.dependents(object) {
                if self.owners(&dependent).is_empty() {
                    self.remove(kind, dependent, None, Propagation::Background);
                }
            }
        }
        if kind == ResourceKind::CustomResourceDefinition {
            let custom = |kind: ResourceKind| {
                kind.definition().is_some_and(|it| object["metadata"]["name"] == it)
            };
            for (kind, object) in self.select(|kind, _| custom(kind)) {
                self.remove(kind, object, None, Propagation::Background);
            }
        }
        for (kind, owner) in self.owners(object) {
            self.release(kind, &owner);
        }
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        if let Ok(namespace) = self.find(ResourceKind::Namespace, "", namespace) {
            self.release(ResourceKind::Namespace, &namespace);
        }
    }

    /// Takes the finalizers whose objects are gone off an object that is deleted.
    fn release(&mut self, kind: ResourceKind, object: &Value) {
        let (_, namespace, name) = super::key(kind, object);
        let Ok(old) = self.find(kind, &namespace, &name) else { return };
        if old["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        let mut new = Value::clone(&old);
        if has_finalizer(&new["metadata"], FOREGROUND) && self.dependents(&old).is_empty() {
            remove_finalizer(&mut new["metadata"], FOREGROUND);
        }
        if kind == ResourceKind::Namespace && self.content(&old).is_empty() {
            remove_finalizer(&mut new["spec"], deletion::NAMESPACE);
        }
        if new != *old {
            let change = match deletion::is_kept(&new) {
                true => ChangeType::Modified,
                false => ChangeType::Deleted,
            };
            self.put(kind, change, &mut new, Some(old));
        }
    }

    fn select(&self, wanted: impl Fn(ResourceKind, &Value) -> bool) -> Vec<ObjectOfKind> {
        let all = self.objects.iter().map(|((kind, ..), object)| (*kind, object));
        let chosen = all.filter(|(kind, object)| wanted(*kind, object));
        chosen.map(|(kind, object)| (kind, Arc::clone(object))).collect()
    }

    fn dependents(&self, owner: &Value) -> Vec<ObjectOfKind> {
        self.select(|kind, object| {
            kind != ResourceKind::Event
                && references(object).iter().any(|one| one["uid"] == owner["metadata"]["uid"])
        })
    }

    fn content(&self, namespace: &Value) -> Vec<ObjectOfKind> {
        self.select(|_, object| object["metadata"]["namespace"] == namespace["metadata"]["name"])
    }

    /// The owners that exist.
    fn owners(&self, object: &Value) -> Vec<ObjectOfKind> {
        let find = |reference: &Value| {
            let kind = ResourceKind::all().find(|kind| reference["kind"] == kind.name())?;
            let namespace =
                object["metadata"]["namespace"].as_str().filter(|_| kind.is_namespaced());
            let name = reference["name"].as_str()?;
            let owner = self.find(kind, namespace.unwrap_or_default(), name).ok()?;
            (owner["metadata"]["uid"] == reference["uid"]).then_some((kind, owner))
        };
        references(object).iter().filter_map(find).collect()
    }
}

fn references(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

fn has_finalizer(of: &Value, finalizer: &str) -> bool {
    of["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == finalizer))
}

fn remove_finalizer(of: &mut Value, finalizer: &str) {
    if let Some(all) = of["finalizers"].as_array_mut() {
        all.retain(|one| one != finalizer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DeleteOptions, Store};
    use super::*;

    /// A DaemonSet with a scheduled pod, in a namespace.
    fn store() -> Store {
        let store = Store::new(64);
        let create = |kind, namespace: &str, object| store.create(kind, namespace, object).unwrap();
        create(ResourceKind::Namespace, "", json!({ "metadata": { "name": "a" } }));
        let set = create(ResourceKind::DaemonSet, "a", json!({ "metadata": { "name": "set" } }));
        create(
            ResourceKind::Pod,
            "a",
            json!({
                "metadata": {
                    "name": "pod",
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "set",
                        "uid": set["metadata"]["uid"], "controller": true,
                    }],
                },
                "spec": { "nodeName": "n", "containers": [] },
            }),
        );
        store
    }

    fn delete(store: &Store, kind: ResourceKind, name: &str, propagation: Propagation) {
        let namespace = if kind.is_namespaced() { "a" } else { "" };
        store
            .delete(kind, namespace, name, &DeleteOptions { propagation, ..Default::default() })
            .unwrap();
    }

    /// What there is, and whether its deletion waits.
    fn state(store: &Store) -> Vec<String> {
        let kinds = [ResourceKind::Namespace, ResourceKind::DaemonSet, ResourceKind::Pod];
        let all = kinds
            .into_iter()
            .flat_map(|kind| store.list(kind).1.into_iter().map(move |one| (kind, one)));
        all.map(|(kind, object)| {
            let waits = !object["metadata"]["deletionTimestamp"].is_null();
            format!("{}{}", kind.name(), if waits { " waits" } else { "" })
        })
        .collect()
    }

    /// The kubelet's last request.
    fn kill(store: &Store) {
        let now = DeleteOptions { grace: Some(0), ..Default::default() };
        store.delete(ResourceKind::Pod, "a", "pod", &now).unwrap();
    }

    #[test]
    fn dependents_go_after_before_or_not_at_all() {
        for (propagation, at_once, finally) in [
            (Propagation::Background, vec!["Namespace", "Pod waits"], vec!["Namespace"]),
            (
                Propagation::Foreground,
                vec!["Namespace", "DaemonSet waits", "Pod waits"],
                vec!["Namespace"],
            ),
            (Propagation::Orphan, vec!["Namespace", "Pod"], vec!["Namespace", "Pod"]),
        ] {
            let store = store();
            delete(&store, ResourceKind::DaemonSet, "set", propagation);
            assert_eq!(state(&store), at_once, "{propagation:?}");
            if propagation != Propagation::Orphan {
                kill(&store);
            }
            assert_eq!(state(&store), finally, "{propagation:?}");
        }
    }

    #[test]
    fn a_namespace_goes_after_all_that_is_in_it() {
        let store = store();
        delete(&store, ResourceKind::Namespace, "a", Propagation::Background);
        assert_eq!(state(&store), ["Namespace waits", "Pod waits"]);
        kill(&store);
        assert_eq!(state(&store), Vec::<String>::new());
    }
}
