//! The format of version 1: what a file of it says must be read, and written, the same for ever. A field or a
//! variant of the core's inputs that gets another name keeps its old one in files (`#[serde(rename)]`).

use coroner_core::input::Received;
use serde_json::Value;

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
