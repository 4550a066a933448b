use coroner::sources::kube::fuzzing;
use serde_json::Value;

/// Documents as they arrive, of any bytes: in whichever pieces, the same is left of them. What is JSON to
/// serde_json is so to the reader, and what is left of it is JSON that says nothing new.
pub fn json(bytes: &[u8]) {
    let whole = fuzzing::reduced(bytes, bytes.len());
    for piece in [1, 7] {
        assert_eq!(fuzzing::reduced(bytes, piece), whole, "in pieces of {piece}");
    }
    let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
    if !document.is_object() {
        return;
    }
    let [(left, _)] = &whole.expect("JSON")[..] else { panic!("one document") };
    let left: Value = serde_json::from_slice(left).expect("what is left is JSON");
    if has_no_twins(bytes, &document) {
        within(&left, &document);
    }
}

/// A name that is there twice counts as the first one here, and as the last one there.
fn has_no_twins(bytes: &[u8], document: &Value) -> bool {
    fn names(value: &Value) -> usize {
        match value {
            Value::Object(all) => all.len() + all.values().map(names).sum::<usize>(),
            Value::Array(all) => all.iter().map(names).sum(),
            _ => 0,
        }
    }
    // Colons stand after names, and in strings: then nothing is said.
    bytes.iter().filter(|byte| **byte == b':').count() == names(document)
}

fn within(left: &Value, whole: &Value) {
    match (left, whole) {
        (Value::Null, _) => {}
        (Value::Object(left), Value::Object(whole)) => {
            for (name, value) in left {
                within(value, &whole[name]);
            }
        }
        (Value::Array(left), Value::Array(whole)) => {
            assert!(left.len() <= whole.len());
            left.iter().zip(whole).for_each(|(left, whole)| within(left, whole));
        }
        (Value::String(left), Value::String(whole)) => assert!(whole.starts_with(left.as_str())),
        _ => assert_eq!(left, whole),
    }
}
