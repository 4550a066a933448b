//! The format of version 1: what a file of it says must be read, and written, the same for ever. A field or a
//! variant of the core's inputs that gets another name keeps its old one in files (`#[serde(rename)]`).

use coroner_core::input::Received;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf};

/// Every kind of input, with all of its fields and the values of its closed sets.
const FORMAT: &str = include_str!("format-1.jsonl");

#[test]
fn a_file_of_version_1_is_read_and_written_the_same() {
    for line in FORMAT.lines() {
        let input: Received = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let written = serde_json::to_value(&input).expect("it is an object");
        let read: Value = serde_json::from_str(line).expect("it is JSON");
        assert_eq!(written, read, "it is another recording now");
    }
}

/// Collects the names in a line: keys, and the texts that may be a value of a closed set.
fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                into.insert(key.clone());
                names(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        Value::String(text) => {
            into.insert(text.clone());
        }
        _ => {}
    }
}

/// `SignalGenerated` as `signal_generated`.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// The fields and variants that a source file of the inputs declares, by their names in files.
fn declared(source: &str) -> Vec<String> {
    let (mut renamed, mut flattened) = (None, false);
    let mut all = Vec::new();
    for line in source.lines().take_while(|line| !line.starts_with("#[cfg(test)]")) {
        let line = line.trim();
        if let Some((_, name)) = line.split_once("rename = \"") {
            renamed = name.split_once('"').map(|(name, _)| name.to_owned());
            continue;
        }
        if line == "#[serde(flatten)]" {
            flattened = true; // its own fields are declared elsewhere
            continue;
        }
        let word = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
        let field = line.strip_prefix("pub ").unwrap_or(line).split_once(": ");
        let field =
            field.filter(|(name, _)| line.ends_with(',') && word(name)).map(|(name, _)| name);
        let end = line.find([' ', '(', ',']).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let is_variant = name.starts_with(char::is_uppercase) && word(name);
        let ends = rest == "," || rest == " {" || rest.ends_with("),") || rest.ends_with("\",");
        // A value of a closed set has its label beside it.
        let label = rest.strip_prefix(" = \"").and_then(|rest| rest.split_once('"'));
        let label = || label.map_or_else(|| snake(name), |(label, _)| label.to_owned());
        let variant = (is_variant && ends && !rest.contains("=>")).then(label);
        if let Some(name) = field.map(str::to_owned).or(variant) {
            let name = renamed.take().unwrap_or(name);
            all.extend((!std::mem::take(&mut flattened)).then_some(name));
        }
    }
    all
}

#[test]
fn the_file_of_version_1_has_every_field_and_every_variant() {
    let mut known = BTreeSet::new();
    for line in FORMAT.lines() {
        names(&serde_json::from_str(line).expect("it is JSON"), &mut known);
    }
    let core = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("core/src");
    let files = fs::read_dir(core.join("input")).expect("the inputs are there").flatten();
    let mut sources: Vec<_> = files.map(|file| file.path()).collect();
    sources.push(core.join("input.rs"));
    let declared: BTreeSet<String> = sources
        .iter()
        .flat_map(|path| declared(&fs::read_to_string(path).expect("it can be read")))
        .collect();
    assert!(declared.len() > 150, "{declared:?}");
    let missing: Vec<&String> = declared.iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "add these to format-1.jsonl: {missing:?}");
}
