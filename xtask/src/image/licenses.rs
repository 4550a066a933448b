//! The licences of what is linked into the agent: the image carries the texts that the packages have.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    host::Arch,
    steps::step,
    toolchain::{BPF_TARGET, cargo, metadata},
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

/// A dependency: its name and version, the licence that its manifest names, and the texts in its package.
type Dependency = (String, String, Vec<String>);

/// The texts of all that the agent is linked with.
///
/// # Errors
/// The dependencies cannot be listed, or a text cannot be read.
pub(super) fn third_party(arch: &Arch) -> Result<String> {
    let metadata = metadata(&[])?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |one: &Value| format!("{} v{}", text(&one["name"]), text(&one["version"]));
    let packages: BTreeMap<String, &Value> = packages.iter().map(|one| (name(one), one)).collect();
    let mut all = BTreeMap::new();
    // The kernel programs are in the agent, too.
    for (package, target) in [(super::PROGRAM, arch.triple), (PROGRAMS, BPF_TARGET)] {
        let mut tree = cargo("tree");
        tree.args(["--locked", "--edges=normal", "--prefix=none", "--no-dedupe", "--format={p}"]);
        tree.args(["--package", package, "--target", target]);
        for line in step("listing what is linked", &mut tree)?.lines() {
            // `name v1.2.3`, then what cargo knows of it: a folder, `(proc-macro)`.
            let name = line.split(' ').take(2).collect::<Vec<_>>().join(" ");
            let about =
                packages.get(&name).with_context(|| format!("cargo metadata lacks {name}"))?;
            if about["source"].is_null() || all.contains_key(&name) {
                continue; // this workspace's own
            }
            let manifest = text(&about["manifest_path"]);
            let folder = Path::new(&manifest).parent().context("a manifest without a folder")?;
            all.insert(name, (text(&about["license"]), texts(folder)?));
        }
    }
    let all = all.into_iter().map(|(name, (license, texts))| (name, license, texts));
    Ok(written(&all.collect::<Vec<_>>()))
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
    for (name, license, texts) in dependencies {
        let none = if texts.is_empty() { " (its package has no text)" } else { "" };
        out += &format!("{name}: {license}{none}\n");
        texts.iter().for_each(|text| by_text.entry(text).or_default().push(name));
    }
    for (text, names) in by_text {
        out += &format!("\n---- {}\n\n{text}\n", names.join(", "));
    }
    out
}
