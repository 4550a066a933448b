//! Patches: merge patches, and server-side apply of whole objects. The latter is simplified: a list is one value, whose
//! elements have no owners of their own; only those who apply own fields; and what two of them apply is no conflict, but
//! has the last one's value.

use serde_json::{Map, Value, json};

/// JSON merge patch, RFC 7396, leaving out the directives of strategic patches (`$patch`, …).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
        if value.is_null() {
            if let Some(target) = target.as_object_mut() {
                target.remove(field);
            }
        } else {
            merge(&mut target[field.as_str()], value);
        }
    }
}

/// Applies what a manager wants: its fields are set, and those are removed that only this manager applied
/// before and does not want any more.
pub(super) fn apply(object: &mut Value, wanted: &Value, manager: &str) {
    let mut own = wanted.clone();
    for (place, fields) in
        [("", &["apiVersion", "kind"][..]), ("/metadata", &["name", "namespace", "managedFields"])]
    {
        if let Some(place) = own.pointer_mut(place).and_then(Value::as_object_mut) {
            place.retain(|field, _| !fields.contains(&&**field));
        }
    }
    let own = fields(&own);
    let entries = match object["metadata"]["managedFields"].take() {
        Value::Array(entries) => entries,
        _ => Vec::new(),
    };
    let (before, mut entries): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry["manager"] == manager);
    let mut kept = own.clone();
    for entry in &entries {
        merge(&mut kept, &entry["fieldsV1"]);
    }
    for entry in &before {
        remove(object, &entry["fieldsV1"], &kept);
    }
    merge(object, wanted);
    entries.push(json!({
        "manager": manager, "operation": "Apply", "apiVersion": wanted["apiVersion"],
        "fieldsType": "FieldsV1", "fieldsV1": own,
    }));
    object["metadata"]["managedFields"] = entries.into();
}

/// The fields of an object as FieldsV1 has them: `f:` and the name.
fn fields(value: &Value) -> Value {
    let known = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    known.map(|(field, value)| (format!("f:{field}"), fields(value))).collect::<Map<_, _>>().into()
}

/// Removes the fields that are no longer kept, and objects that are empty without them.
fn remove(object: &mut Value, before: &Value, kept: &Value) {
    let (Some(object), Some(before)) = (object.as_object_mut(), before.as_object()) else { return };
    for (field, below) in before {
        let Some(name) = field.strip_prefix("f:") else { continue };
        let (Some(value), kept) = (object.get_mut(name), &kept[field]) else { continue };
        remove(value, below, kept);
        let is_leaf = below.as_object().is_none_or(Map::is_empty);
        if kept.is_null() && (is_leaf || value.as_object().is_some_and(Map::is_empty)) {
            object.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_removes_by_null_and_ignores_directives() {
        let mut object = json!({ "a": { "b": 1, "c": 2 }, "d": [1, 2] });
        merge(&mut object, &json!({ "a": { "b": null, "e": 3 }, "d": [3], "$patch": "x" }));
        assert_eq!(object, json!({ "a": { "c": 2, "e": 3 }, "d": [3] }));
    }

    #[test]
    fn a_manager_removes_what_it_no_longer_wants_and_nobody_else_does() {
        let mut object = json!({ "metadata": { "labels": { "user": "1" } } });
        let first = json!({
            "apiVersion": "v1", "metadata": { "name": "a", "labels": { "x": "1", "y": "1" } },
            "spec": { "list": [1, 2], "map": { "only": true }, "none": null },
        });
        apply(&mut object, &first, "helm");
        assert_eq!(object["spec"], json!({ "list": [1, 2], "map": { "only": true } }));
        let other = json!({ "apiVersion": "v1", "metadata": { "labels": { "y": "2" } } });
        apply(&mut object, &other, "argo");
        apply(&mut object, &json!({ "apiVersion": "v1", "spec": { "list": [3] } }), "helm");
        assert_eq!(object["metadata"]["labels"], json!({ "user": "1", "y": "2" }));
        assert_eq!(object["spec"], json!({ "list": [3] }));
        let managers: Vec<_> =
            object["metadata"]["managedFields"].as_array().unwrap().iter().collect();
        assert_eq!(
            (&managers[0]["manager"], &managers[1]["manager"]),
            (&json!("argo"), &json!("helm"))
        );
        assert_eq!(managers[1]["fieldsV1"], json!({ "f:spec": { "f:list": {} } }));
    }

    #[test]
    fn the_same_again_changes_nothing() {
        let wanted = json!({ "apiVersion": "v1", "spec": { "a": {}, "b": [] } });
        let mut object = json!({});
        apply(&mut object, &wanted, "helm");
        let before = object.clone();
        apply(&mut object, &wanted, "helm");
        assert_eq!(object, before);
    }
}
