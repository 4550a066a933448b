//! The committed code is what the generator makes of the protos.

use std::{env, fs, path::Path};

/// Versions of the CRI: names of a proto and of a module.
const VERSIONS: &[&str] = &["v1"];

#[test]
fn the_committed_code_is_what_the_protos_generate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for version in VERSIONS {
        let proto = format!("{version}.proto");
        let descriptors = protox::compile([&proto], [root.join("proto")]).unwrap();
        let out = tempfile::tempdir().unwrap();
        tonic_prost_build::configure()
            .build_server(false)
            .out_dir(out.path())
            .emit_rerun_if_changed(false) // a build script's output
            .compile_fds(descriptors)
            .unwrap();
        let generated = out.path().join(format!("runtime.{version}.rs"));
        let generated = fs::read_to_string(generated).unwrap();
        let path = root.join(format!("src/{version}.rs"));
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &generated).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == generated,
            "{} is stale: `cargo xtask docs` generates it again",
            path.display()
        );
    }
}
