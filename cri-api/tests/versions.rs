//! v1alpha2 is v1 on the wire: the agent decodes both with v1's messages (`agent/src/sources/cri/calls.rs`).

use std::{collections::BTreeMap, path::Path};

#[test]
fn every_field_and_enum_value_of_v1alpha2_is_the_same_in_v1() {
    let (v1, v1alpha2) = (numbers("v1"), numbers("v1alpha2"));
    let different: Vec<_> =
        v1alpha2.iter().filter(|(number, meaning)| v1.get(*number) != Some(meaning)).collect();
    assert!(different.is_empty(), "{different:#?}");
    assert!(v1alpha2.len() > 300, "{} numbers", v1alpha2.len());
}

/// What each number of a message or an enum means: `Message.number` → name, label and type.
fn numbers(version: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let descriptors = protox::compile([format!("{version}.proto")], [folder]).unwrap();
    let mut numbers = BTreeMap::new();
    for file in descriptors.file {
        let package = format!(".{}.", file.package());
        for message in &file.message_type {
            for field in &message.field {
                let (label, kind) = (field.label(), field.r#type());
                let name = field.type_name().trim_start_matches(&package);
                let meaning = format!("{}: {label:?} {kind:?} {name}", field.name());
                numbers.insert(format!("{}.{}", message.name(), field.number()), meaning);
            }
        }
        for enumeration in &file.enum_type {
            for value in &enumeration.value {
                let number = format!("{}.{}", enumeration.name(), value.number());
                numbers.insert(number, value.name().to_owned());
            }
        }
    }
    numbers
}
