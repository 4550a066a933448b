//! The promise of docs/api.md: version 1 only grows. `v1` is what was released, and changes with a release only;
//! `golden` is what the agent sends today.

use coroner_api::{
    List,
    leaks::Leak,
    terminations::{Death, Termination},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{fs, path::Path};

fn read(folder: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// What `old` has and `new` lacks, or has in another form.
fn missing(old: &Value, new: &Value, at: &str, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, old) in old {
                let at = format!("{at}.{name}");
                match new.get(name) {
                    Some(new) => missing(old, new, &at, found),
                    None => found.push(at),
                }
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() <= new.len() => {
            for (n, (old, new)) in old.iter().zip(new).enumerate() {
                missing(old, new, &format!("{at}[{n}]"), found);
            }
        }
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_)) => {}
        (old, new) if old == new => {}
        _ => found.push(at.to_owned()),
    }
}

/// Reads an answer with today's types, which lose nothing of it, and once more with fields and values of the future.
fn reads<T: Serialize + DeserializeOwned>(name: &str) {
    for folder in ["v1", "golden"] {
        let json = read(folder, name);
        let value: T = serde_json::from_value(json.clone())
            .unwrap_or_else(|error| panic!("{folder}/{name}: {error}"));
        let mut found = Vec::new();
        missing(&json, &serde_json::to_value(value).unwrap(), name, &mut found);
        assert!(found.is_empty(), "today's types lose {found:?} of {folder}");
        let mut newer = json;
        grow(&mut newer);
        if let Err(error) = serde_json::from_value::<T>(newer.clone()) {
            panic!("{folder}/{name} with additions: {error}\n{newer:#}");
        }
    }
    let mut found = Vec::new();
    missing(&read("v1", name), &read("golden", name), name, &mut found);
    assert!(found.is_empty(), "a client of v1 misses {found:?}");
}

/// Adds an unknown field to every object, and an unknown kind to every list of objects that have one.
fn grow(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            fields.values_mut().for_each(grow);
            for label in ["verdict", "cause", "class"] {
                if fields.get(label).is_some_and(Value::is_string) {
                    fields.insert(label.to_owned(), "of_the_future".into());
                }
            }
            // A value that is an object with one key, such as an exit status, is no structure that can grow.
            if fields.len() > 1 {
                fields.insert("ofTheFuture".to_owned(), json!({ "any": [1] }));
            }
        }
        Value::Array(items) => {
            items.iter_mut().for_each(grow);
            if items.first().is_some_and(|item| item.get("source").is_some()) {
                items.push(json!({ "kind": "of_the_future", "at": null, "source": "moon" }));
            }
        }
        _ => {}
    }
}

#[test]
fn every_answer_is_read_both_ways() {
    reads::<Termination>("termination.json");
    reads::<Termination>("unfinished.json");
    reads::<Death>("death.json");
    reads::<Leak>("leak.json");
    reads::<Leak>("stuck.json");
    reads::<List<Leak>>("list.json");
}

/// The document of a release describes what today's agent sends: its paths, parameters, schemas and values are there.
#[test]
fn the_document_only_grows() {
    let (old, new) = (read("v1", "openapi.json"), read("golden", "openapi.json"));
    let mut found = Vec::new();
    for part in ["paths", "components"] {
        gone(&old[part], &new[part], part, &mut found);
    }
    assert!(found.is_empty(), "gone: {found:?}");
}

fn gone(old: &Value, new: &Value, at: &str, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            // Both are for people.
            let is_text = |name: &str| ["description", "summary"].contains(&name);
            for (name, old) in old.iter().filter(|(name, _)| !is_text(name)) {
                match new.get(name) {
                    Some(new) => gone(old, new, &format!("{at}.{name}"), found),
                    None => found.push(format!("{at}.{name}")),
                }
            }
        }
        // Lists of names, values and alternatives: in any order.
        (Value::Array(old), Value::Array(new)) => {
            let has = |old: &Value| {
                new.iter().any(|new| {
                    let mut found = Vec::new();
                    gone(old, new, at, &mut found);
                    found.is_empty()
                })
            };
            found.extend(old.iter().filter(|old| !has(old)).map(|old| format!("{at}: {old}")));
        }
        _ if old == new => {}
        _ => found.push(at.to_owned()),
    }
}

/// The document describes what is sent: no answer has a field that it does not name.
#[test]
fn the_document_knows_every_field() {
    let document = read("golden", "openapi.json");
    for (name, schema) in [
        ("termination", "Termination"),
        ("unfinished", "Termination"),
        ("death", "Death"),
        ("leak", "Leak"),
        ("stuck", "Leak"),
        ("list", "List_Leak"),
    ] {
        let schema = &document["components"]["schemas"][schema];
        described(&document, &[schema], &read("golden", &format!("{name}.json")), name);
    }
}

fn described(document: &Value, schemas: &[&Value], json: &Value, at: &str) {
    // All that a schema refers to, in whatever form.
    let (mut open, mut all): (Vec<&Value>, Vec<&Value>) = (schemas.to_vec(), Vec::new());
    while let Some(schema) = open.pop() {
        if let Some(to) = schema["$ref"].as_str() {
            open.push(document.pointer(&to[1..]).unwrap());
        }
        for part in ["allOf", "oneOf"] {
            open.extend(schema[part].as_array().into_iter().flatten());
        }
        all.push(schema);
    }
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                let of: Vec<_> = all.iter().map(|schema| &schema["properties"][name]).collect();
                let of: Vec<_> = of.into_iter().filter(|schema| !schema.is_null()).collect();
                assert!(!of.is_empty(), "{at}.{name} is not in the document");
                described(document, &of, value, &format!("{at}.{name}"));
            }
        }
        Value::Array(items) => {
            let of: Vec<_> = all.iter().map(|schema| &schema["items"]).collect();
            items.iter().for_each(|item| described(document, &of, item, at));
        }
        _ => {}
    }
}

/// One convention: fields are camelCase, values are snake_case as labels of metrics are.
#[test]
fn fields_have_one_convention() {
    let document = read("golden", "openapi.json");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert!(schemas.len() > 30, "{}", schemas.len());
    let mut checked = 0;
    for (schema, what) in schemas {
        let mut open = vec![what];
        while let Some(value) = open.pop() {
            if let Some(properties) = value["properties"].as_object() {
                for name in properties.keys() {
                    checked += 1;
                    // The keys of an externally tagged value are values.
                    let is_value = value["required"] == json!([name]) && properties.len() == 1;
                    assert!(is_value || !name.contains('_'), "{schema}.{name}");
                }
            }
            match value {
                Value::Object(fields) => open.extend(fields.values()),
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
    }
    assert!(checked > 100, "{checked}");
}
