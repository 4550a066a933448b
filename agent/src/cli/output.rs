//! The forms in which a command answers.

use coroner_report::printable::{json, shown};
use serde::Serialize;
use serde_json::Value;

/// A document of JSON or YAML, which no terminal obeys.
pub(super) fn document(value: &impl Serialize, yaml: bool) -> anyhow::Result<String> {
    if !yaml {
        return Ok(json(&serde_json::to_string_pretty(value)?).into_owned() + "\n");
    }
    let mut value = serde_json::to_value(value)?;
    escape(&mut value);
    let text = serde_saphyr::to_string(&value)?;
    Ok(text.trim_end().to_owned() + "\n")
}

pub(super) fn json_line(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(json(&serde_json::to_string(value)?).into_owned() + "\n")
}

fn escape(value: &mut Value) {
    match value {
        Value::String(text) => *text = shown(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(escape),
        Value::Object(fields) => fields.values_mut().for_each(escape),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_reaches_the_terminal() {
        let value = serde_json::json!({ "comm": "a\u{1b}[2J\u{202e}b\u{9b}", "yes": "no" });
        let json = document(&value, false).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "the same to a parser");
        let yaml = document(&value, true).unwrap();
        for text in [json, yaml, json_line(&value).unwrap()] {
            assert!(
                !text.replace('\n', "").contains(coroner_report::printable::is_hidden),
                "{text:?}"
            );
        }
    }
}
