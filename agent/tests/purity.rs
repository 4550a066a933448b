//! The pure core stays pure: no I/O, no clock, no adapter's types, no way to fail.

use std::{fs, path::Path};

const FORBIDDEN: [&str; 17] = [
    "tokio",
    "aya",
    "tonic",
    "prost",
    "kube::",
    "k8s_openapi",
    "coroner_cri_api",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "SystemTime",
    "Instant",
    "println!",
    "eprintln!",
    "panic!(",
    "tracing",
];
const FALLIBLE: [&str; 4] = [".unwrap()", ".expect(", "unreachable!", "todo!"];

#[test]
fn the_domain_touches_nothing_but_its_inputs() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/domain");
    let (mut open, mut files) = (vec![dir.clone()], 0);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap();
            for word in FORBIDDEN.iter().chain(&FALLIBLE) {
                assert!(!line.contains(word), "{}:{}: {word}", path.display(), number + 1);
            }
        }
        files += 1;
    }
    assert!(files > 10, "{files} files in {}", dir.display());
}

/// Each foreign library has one adapter, and its types stay there.
#[test]
fn only_its_own_adapter_knows_a_library() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (adapter, libraries) in [
        ("kernel", ["aya::", "aya_log::"]),
        ("cri", ["tonic::", "coroner_cri_api::"]),
        ("kube", ["k8s_openapi::", "kube::Client"]),
    ] {
        let (mut open, mut inside) = (vec![src.clone()], 0);
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let used = text.lines().filter(|line| libraries.iter().any(|l| line.contains(l)));
            match path.starts_with(src.join(adapter)) {
                true => inside += used.count(),
                false => assert_eq!(used.count(), 0, "{} is not {adapter}/", path.display()),
            }
        }
        assert!(inside > 0, "{adapter} does not use {libraries:?}");
    }
}
