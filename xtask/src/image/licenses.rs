//! The licences of what is linked into the agent: the image carries the texts that the packages have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    host::Arch,
    progress::step,
    toolchain::{BPF_TARGET, cargo},
    workspace::Workspace,
};

/// Where it is in the image.
pub(super) const FILE: &str = "licenses/third-party.txt";
/// What a package's files of this kind begin with.
const FILES: [&str; 5] = ["license", "licence", "copying", "copyright", "notice"];
/// The package of the kernel programs.
const PROGRAMS: &str = "coroner-ebpf";
/// What is linked as well and is no package of cargo's.
const BESIDE: &str = "\
Third-party software that is linked into coroner, and its licences.

The Rust standard library: MIT OR Apache-2.0, https://github.com/rust-lang/rust
The GNU C Library: LGPL-2.1-or-later, https://sourceware.org/glibc; with the sources of coroner it can be linked again
The GCC runtime library: GPL-3.0-or-later WITH GCC-exception-3.1, https://gcc.gnu.org, which puts no terms on coroner
";
/// The texts of these.
const TEXTS_BESIDE: [(&str, &str); 2] = [
    ("The GNU C Library", include_str!("lgpl-2.1.txt")),
    ("The Rust standard library", include_str!("../../../LICENSE-APACHE")),
];

/// A dependency.
#[derive(Debug)]
struct Dependency {
    /// Its name and version.
    name: String,
    /// As its manifest says.
    license: String,
    /// The texts in its package.
    texts: Vec<String>,
}

/// The texts of all that the agent depends on.
///
/// # Errors
/// When the dependencies cannot be listed, or a text not be read.
pub(super) fn third_party(workspace: &Workspace, arch: &Arch) -> Result<String> {
    let mut all = BTreeMap::new();
    // The kernel programs are in the agent, too.
    for (package, target) in [(super::PROGRAM, arch.triple), (PROGRAMS, BPF_TARGET)] {
        let mut command = cargo("metadata");
        let platform = format!("--filter-platform={target}");
        command.current_dir(workspace.root());
        command.args(["--locked", "--format-version=1", "--quiet", &platform]);
        let text = step("listing the dependencies", &mut command)?.stdout;
        let metadata = serde_json::from_str(&text).context("cargo metadata is no JSON")?;
        let found = dependencies(&metadata, package)?;
        all.extend(found.into_iter().map(|one| (one.name.clone(), one)));
    }
    Ok(written(&all.into_values().collect::<Vec<_>>()))
}

/// What a package is linked with, from other sources than this workspace.
fn dependencies(metadata: &Value, package: &str) -> Result<Vec<Dependency>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let first = packages.iter().find(|(_, one)| one["name"] == package);
    let mut wanted = vec![first.with_context(|| format!("no package {package}"))?.0.clone()];
    let mut linked = BTreeSet::new();
    while let Some(id) = wanted.pop() {
        if !linked.insert(id.clone()) {
            continue;
        }
        let is_linked = |kind: &Value| kind["kind"].is_null();
        let all = nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default();
        let all = all.iter().filter(|one| list(&one["dep_kinds"]).iter().any(is_linked));
        wanted.extend(all.map(|one| text(&one["pkg"])));
    }
    let foreign = linked.iter().filter_map(|id| packages.get(id));
    let foreign = foreign.filter(|package| !package["source"].is_null());
    let mut found = Vec::new();
    for package in foreign {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest).parent().context("a manifest without a folder")?;
        found.push(Dependency {
            name: format!("{} {}", text(&package["name"]), text(&package["version"])),
            license: text(&package["license"]),
            texts: texts(folder)?,
        });
    }
    Ok(found)
}

fn texts(package: &Path) -> Result<Vec<String>> {
    let mut files: Vec<_> = fs::read_dir(package)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("cannot read {}", package.display()))?
        .into_iter()
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().to_lowercase();
            FILES.iter().any(|start| name.starts_with(start)) && entry.path().is_file()
        })
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    files.iter().map(read).collect()
}

/// Each text once, below the names of those that have it.
fn written(dependencies: &[Dependency]) -> String {
    let mut out = BESIDE.to_owned();
    let mut by_text: BTreeMap<&str, Vec<&str>> =
        TEXTS_BESIDE.iter().map(|(name, text)| (text.trim(), vec![*name])).collect();
    for one in dependencies {
        let none = if one.texts.is_empty() { " (its package has no text)" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}: {}{none}", one.name, one.license);
        for text in &one.texts {
            by_text.entry(text).or_default().push(&one.name);
        }
    }
    for (text, names) in by_text {
        let _ = write!(out, "\n---- {}\n\n{text}\n", names.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_what_is_linked_are_all_there() {
        let arch = Arch::host().expect("is built for");
        let text = third_party(&Workspace::here(), arch).expect("is made");
        for wanted in [
            "\ntokio 1.",
            "\nring 0.",
            "\naya 0.",
            "\naya-ebpf ",
            "Permission is hereby granted",
            "\n---- The GNU C Library\n\nGNU LESSER GENERAL PUBLIC LICENSE",
            "This library is distributed in the hope that it will be useful",
        ] {
            assert!(text.contains(wanted), "{wanted}");
        }
        assert!(!text.contains("\nrcgen "), "only tests use it");
        assert!(!text.contains("\ncoroner"), "this project is no third party");
    }

    #[test]
    fn a_text_stands_once() {
        let one = |name: &str, texts: &[&str]| Dependency {
            name: name.to_owned(),
            license: "MIT".to_owned(),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        };
        let text = written(&[one("a 1", &["Free."]), one("b 2", &[]), one("c 3", &["Free."])]);
        let (_, rest) = text.split_once("\na 1: MIT\n").expect("a");
        let begin = "b 2: MIT (its package has no text)\nc 3: MIT\n";
        assert!(rest.starts_with(begin) && rest.contains("\n---- a 1, c 3\n\nFree.\n"), "{rest}");
        assert_eq!(rest.matches("Free.").count(), 1);
    }
}
