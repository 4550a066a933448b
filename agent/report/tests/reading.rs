//! The promise of docs/api.md: a client of today reads what a newer agent adds. `golden` is what the agent sends.

use coroner_report::{ContainerDeath, Leak, List, PodTermination};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Of an example with unknown fields, verdicts, and kinds in lists, all that is known is read.
fn reads<T: Serialize + DeserializeOwned>(text: &str) {
    let mut known: Value = serde_json::from_str(text).unwrap();
    let mut newer = known.clone();
    change(&mut newer, "of_the_future", true);
    change(&mut known, "unknown", false);
    let read: T = serde_json::from_value(newer).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), known);
}

/// Changes all verdicts, and adds what no version knows.
fn change(json: &mut Value, verdict: &str, adds: bool) {
    match json {
        Value::Object(fields) => {
            fields.values_mut().for_each(|value| change(value, verdict, adds));
            if let Some(known) = fields.get_mut("verdict") {
                *known = verdict.into();
            }
            // An object with one key, such as an exit status, is a value.
            if adds && fields.len() > 1 {
                fields.insert("ofTheFuture".to_owned(), json!({ "any": [1] }));
            }
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| change(item, verdict, adds));
            let is_kind = |item: &Value| item["kind"].is_string() && item["verdict"].is_null();
            if adds && items.iter().any(is_kind) {
                items.push(json!({ "kind": "of_the_future", "source": "moon" }));
            }
        }
        _ => {}
    }
}

#[test]
fn every_example_is_read_with_additions() {
    reads::<PodTermination>(include_str!("golden/termination.json"));
    reads::<PodTermination>(include_str!("golden/unfinished.json"));
    reads::<ContainerDeath>(include_str!("golden/death.json"));
    reads::<Leak>(include_str!("golden/leak.json"));
    reads::<Leak>(include_str!("golden/stuck.json"));
    reads::<List<Leak>>(include_str!("golden/list.json"));
}
