//! Files that docs and comments name exist.

use crate::{names::rust_files, pages};
use std::{fs, path::PathBuf};

/// Where sources are.
const SOURCES: [&str; 7] = ["agent", "cri-api", "ebpf", "fuzz/targets", "image", "lab", "xtask"];

/// The Rust files that a text names in backticks: by the end of their path, several in braces.
fn named(text: &str) -> Vec<String> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.filter(|one| one.ends_with(".rs") && !one.contains([' ', '*', '<']));
    paths
        .flat_map(|path| {
            let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
            let (names, after) = rest.split_once('}').expect("a closing brace");
            names.split(',').map(|name| format!("{before}{name}{after}")).collect()
        })
        .collect()
}

#[test]
fn every_file_that_is_named_exists() {
    let root = pages::root();
    let files = rust_files(&SOURCES);
    let exists = |path: &String| files.iter().any(|file| file.ends_with(path));
    let mut texts: Vec<PathBuf> = files.clone();
    for folder in [root.clone(), root.join("docs")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        texts.extend(entries.filter(|path| path.extension().is_some_and(|ext| ext == "md")));
    }
    let (mut all, mut missing) = (0, Vec::new());
    for file in texts {
        let text = fs::read_to_string(&file).unwrap();
        let paths = named(&text);
        all += paths.len();
        let lacking = paths.into_iter().filter(|path| !exists(path));
        missing.extend(lacking.map(|path| format!("{}: {path}", file.display())));
    }
    assert!(all > 50, "{all}: are there none?");
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

#[test]
fn files_are_found_in_a_text() {
    let text =
        "see `docs/links.rs`, `docs/{names,pages}.rs` and `x y.rs`; `*.rs` and `f.go` are none";
    assert_eq!(named(text), ["docs/links.rs", "docs/names.rs", "docs/pages.rs"]);
}
