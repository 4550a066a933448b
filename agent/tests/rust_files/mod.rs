//! The sources, for tests that read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The Rust files below a folder, or the one that this is.
pub(crate) fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        return entries.flat_map(|entry| rust_files(&entry)).collect();
    }
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    is_rust.then(|| path.to_owned()).into_iter().collect()
}
