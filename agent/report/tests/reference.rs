//! The tables of docs/api.md, from the OpenAPI document. `cargo xtask docs` writes them.

use coroner_report::openapi;
use serde_json::Value;
use std::{fmt::Write, fs, path::Path};

const MARK: &str = "<!-- generated: cargo xtask docs -->\n";

#[test]
fn docs_api_md_is_what_the_types_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = fs::read_to_string(&path).unwrap();
    let (written, _) = page.split_once(MARK).expect("the mark");
    let wanted = format!("{written}{MARK}{}", reference());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == wanted, "stale; run `cargo xtask docs`");
}

fn reference() -> String {
    let document: Value = serde_json::from_str(&openapi::document()).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let (values, types): (Vec<_>, Vec<_>) = schemas.iter().partition(|(_, schema)| is_enum(schema));
    let mut text = "\n## Types\n".to_owned();
    for (name, schema) in types {
        // Envelopes are the same for each kind of item.
        if name.contains('_') && name != "List_Termination" {
            continue;
        }
        heading(&mut text, name, schema);
        text.push_str("| field | type | |\n|---|---|---|\n");
        rows(&mut text, schema);
    }
    text.push_str("\n## Values\n");
    for (name, schema) in values {
        heading(&mut text, name, schema);
        text.push_str("| value | |\n|---|---|\n");
        let plain = schema["enum"].as_array().into_iter().flatten().map(|value| (value, ""));
        let each = schema["oneOf"].as_array().into_iter().flatten();
        let each = each.map(|one| (&one["enum"][0], one["description"].as_str().unwrap_or("")));
        for (value, meaning) in plain.chain(each) {
            let _ = writeln!(text, "| `{}` | {} |", value.as_str().unwrap(), line(meaning));
        }
    }
    text.replace("|  |", "| |")
}

fn heading(text: &mut String, name: &str, schema: &Value) {
    let name = name.replace('_', " of ");
    let _ = writeln!(text, "\n### {name}\n");
    let described = line(&describe(schema));
    if !described.is_empty() {
        let _ = writeln!(text, "{described}\n");
    }
}

fn is_enum(schema: &Value) -> bool {
    let is_value = |one: &Value| one["enum"].is_array() && one["properties"].is_null();
    is_value(schema) || schema["oneOf"].as_array().is_some_and(|all| all.iter().all(is_value))
}

/// Of an optional value, what is said of the value.
fn describe(schema: &Value) -> String {
    let optional = schema["oneOf"].as_array().into_iter().flatten();
    let mut all = std::iter::once(schema).chain(optional);
    all.find_map(|one| one["description"].as_str()).unwrap_or_default().to_owned()
}

/// In one line of a table.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A row per field; of a value with several forms, the fields of each.
fn rows(text: &mut String, schema: &Value) {
    for (name, of) in schema["properties"].as_object().into_iter().flatten() {
        let is_const = of["enum"].as_array().filter(|all| all.len() == 1);
        let kind =
            is_const.map_or_else(|| kind(of), |all| format!("`{}`", all[0].as_str().unwrap()));
        let _ = writeln!(text, "| `{name}` | {kind} | {} |", line(&describe(of)));
    }
    for all in ["allOf", "oneOf"] {
        for one in schema[all].as_array().into_iter().flatten() {
            match one["$ref"].as_str() {
                Some(of) => {
                    let _ = writeln!(text, "| … | the fields of {} | |", link(of));
                }
                None if one["enum"].is_array() => {
                    let _ = writeln!(
                        text,
                        "| | `{}` | {} |",
                        one["enum"][0].as_str().unwrap(),
                        line(&describe(one))
                    );
                }
                None => {
                    if all == "oneOf" {
                        let _ = writeln!(text, "| **or** | | {} |", line(&describe(one)));
                    }
                    rows(text, one);
                }
            }
        }
    }
}

fn kind(of: &Value) -> String {
    if let Some(to) = of["$ref"].as_str() {
        return link(to);
    }
    if let Some(all) = of["oneOf"].as_array() {
        return all.iter().rev().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if of["title"].is_string() || of["properties"].is_object() {
        return "the item".to_owned();
    }
    match &of["type"] {
        Value::String(one) if one == "array" => format!("list of {}", kind(&of["items"])),
        Value::String(one) => one.clone(),
        Value::Array(all) => {
            let kinds: Vec<_> = all.iter().filter_map(Value::as_str).collect();
            kinds.join(" or ")
        }
        _ => "any".to_owned(),
    }
}

fn link(to: &str) -> String {
    let name = to.rsplit('/').next().unwrap().replace('_', " of ");
    format!("[{name}](#{})", name.to_lowercase().replace(' ', "-"))
}
