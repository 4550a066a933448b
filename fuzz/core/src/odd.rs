use serde_json::Value;

/// At these arithmetic overflows, if it does anywhere.
const NUMBERS: [u64; 8] = [0, 1, 15, 64, 255, u32::MAX as u64, i64::MAX as u64, u64::MAX];
/// A terminal obeys them, or they are cut in the middle of a character.
const TEXTS: [&str; 4] = ["", "\u{1b}[2J\u{202e}", "a/b\n c", "ж"];

/// Puts another value of the same type in place of one of a document's; the decoder may refuse it still.
pub fn odd(document: &mut Value, which: usize, how: u8) {
    let mut words = Vec::new();
    let count = walk(document, &mut |value| words.extend(value.as_str().map(str::to_owned)));
    let (mut at, which) = (0, which % count);
    walk(document, &mut |value| {
        if at == which {
            replace(value, how.into(), &words);
        }
        at += 1;
    });
}

/// libFuzzer's mutator for lines of JSON: for half of the seeds an odd value in one of them; the new length. `None`:
/// the bytes are as they were.
pub fn mutated(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> Option<usize> {
    if seed.count_ones().is_multiple_of(2) {
        return None;
    }
    let odd = odd_line(&data[..size], seed).filter(|odd| odd.len() <= max_size)?;
    data[..odd.len()].copy_from_slice(&odd);
    Some(odd.len())
}

/// An odd value in one of the lines; `None`: that line is not JSON.
fn odd_line(lines: &[u8], seed: u32) -> Option<Vec<u8>> {
    let [which, how, value @ ..] = seed.to_le_bytes();
    let mut all: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let line = usize::from(which) % all.len();
    let mut document = serde_json::from_slice(all[line]).ok()?;
    odd(&mut document, u16::from_le_bytes(value).into(), how);
    let text = document.to_string();
    all[line] = text.as_bytes();
    Some(all.join(&b'\n'))
}

/// Visits each value before those within; how many.
fn walk(value: &mut Value, visit: &mut impl FnMut(&mut Value)) -> usize {
    visit(value);
    let mut within = 0;
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| within += walk(value, visit)),
        Value::Object(all) => all.values_mut().for_each(|value| within += walk(value, visit)),
        _ => {}
    }
    within + 1
}

/// The words are those of the document: the name of another state, the id of something else.
fn replace(value: &mut Value, how: usize, words: &[String]) {
    match value {
        Value::Null => *value = NUMBERS[how % NUMBERS.len()].into(),
        Value::Bool(is) => *is = !*is,
        Value::Number(number) => {
            *value = match (how / NUMBERS.len(), number.as_u64()) {
                (0, _) | (_, None) => NUMBERS[how % NUMBERS.len()].into(),
                (1, _) => i64::MIN.into(),
                (_, Some(number)) => (number ^ 1 << (how % 64)).into(),
            }
        }
        Value::String(text) => match how.checked_sub(TEXTS.len() + 1) {
            Some(which) => text.clone_from(&words[which % words.len()]),
            None => *text = TEXTS.get(how).map_or_else(|| "x".repeat(500), |&text| text.into()),
        },
        Value::Array(all) => match how % 4 {
            0 => all.clear(),
            1 => all.reverse(),
            2 => drop(all.pop()),
            _ => all.extend(all.last().cloned()),
        },
        Value::Object(_) => *value = Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn one_line_is_changed_and_the_others_stay() {
        let lines = b"none\n{\"a\": 1}\n\n";
        assert_eq!(odd_line(lines, 0), None);
        let seed = u32::from_le_bytes([1, 7, 1, 0]);
        let expected = format!("none\n{{\"a\":{}}}\n\n", u64::MAX);
        assert_eq!(odd_line(lines, seed).as_deref(), Some(expected.as_bytes()));
    }

    #[test]
    fn values_of_every_type_are_replaced() {
        let document = json!({ "a": [1, null], "b": { "c": "text", "d": true } });
        let mut seen = BTreeSet::new();
        for (which, how) in (0..14).flat_map(|which| (0..=255).map(move |how| (which, how))) {
            let mut other = document.clone();
            odd(&mut other, which, how);
            let is_same = |at: &str, is: fn(&Value) -> bool| other.pointer(at).is_none_or(is);
            assert!(is_same("/a", Value::is_array) && is_same("/b/c", Value::is_string));
            assert!(is_same("/b/d", Value::is_boolean));
            seen.insert(other.to_string());
        }
        for expected in [
            "null",
            r#"{"a":[],"b":{"c":"text","d":true}}"#,
            r#"{"a":[1,1],"b":{"c":"text","d":true}}"#,
            r#"{"a":[-9223372036854775808,null],"b":{"c":"text","d":true}}"#,
            r#"{"a":[1,null],"b":{"c":"text","d":false}}"#,
            r#"{"a":[1,null],"b":{"c":"","d":true}}"#,
            r#"{"a":[1,null],"b":null}"#,
        ] {
            assert!(seen.contains(expected), "{expected}");
        }
    }
}
