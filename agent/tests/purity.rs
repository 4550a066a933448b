//! Each foreign library stays in its adapter.

use std::{fs, path::Path};

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
