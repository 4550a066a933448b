//! Every input that the repository keeps (`fuzz/corpus`), given to its fuzz target.

#[path = "../../core/src/corpus.rs"]
mod kept;

use std::{
    any::Any,
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
};

macro_rules! targets {
    ($($target:ident)*) => {
        /// The targets that are replayed here.
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(
            #[test]
            fn $target() {
                assert_survives(stringify!($target), coroner_fuzz_targets::$target);
            }
        )*
    };
}

targets! { api btf cgroup_path cri engine host http journal json kubelet record recording replay report }

/// What is in a folder of `fuzz/`, in order.
fn paths(folder: &str) -> Vec<PathBuf> {
    let fuzz =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the fuzz targets");
    let folder = fuzz.join(folder);
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// The name of a file without its extensions.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Gives the target all of its inputs, and fails with those that break it.
fn assert_survives(target: &str, run: fn(&[u8])) {
    let broken = broken(target, run);
    assert!(
        broken.is_empty(),
        "fuzz target {target} breaks on these of fuzz/corpus/{target}.tar.gz:\n{}\nto see one again: \
         cargo test -p coroner-fuzz-targets --test corpus {target}",
        broken.join("\n")
    );
}

/// The inputs that break the target, and how.
fn broken(target: &str, run: fn(&[u8])) -> Vec<String> {
    let inputs = kept::inputs(target);
    assert!(!inputs.is_empty(), "fuzz/corpus/{target}.tar.gz holds no input");
    let mut broken = Vec::new();
    for (name, bytes) in inputs {
        if let Err(panic) = catch_unwind(|| run(&bytes)) {
            broken.push(format!("{name}: {}", message(&*panic)));
        }
    }
    broken
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[test]
fn every_target_has_inputs_and_every_input_has_a_target() {
    for folder in ["fuzz_targets", "corpus"] {
        let found: Vec<String> = paths(folder).iter().map(|path| stem(path)).collect();
        assert_eq!(found, TARGETS, "fuzz/{folder} does not match the targets that are replayed");
    }
}

/// What everyone who clones the repository carries.
#[test]
fn the_corpus_is_small() {
    let bytes: u64 =
        paths("corpus").iter().map(|file| file.metadata().expect("a file").len()).sum();
    assert!(
        bytes <= 500 << 10,
        "{bytes} bytes; cargo xtask fuzz TARGET --keep keeps the fewest inputs"
    );
}

#[test]
fn every_input_that_breaks_its_target_is_named() {
    let broken = broken("btf", |bytes| assert!(bytes.is_empty(), "{} bytes", bytes.len()));
    let inputs = kept::inputs("btf");
    assert_eq!(broken.len(), inputs.len());
    for (line, (name, bytes)) in broken.iter().zip(inputs) {
        assert_eq!(*line, format!("{name}: {} bytes", bytes.len()));
    }
}
