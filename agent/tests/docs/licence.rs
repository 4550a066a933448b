//! The licences are what the manifests say, and what the kernel is told.

use crate::pages;
use std::fs;

fn read(file: &str) -> String {
    fs::read_to_string(pages::root().join(file)).unwrap()
}

#[test]
fn every_licence_that_is_offered_is_there() {
    assert!(read("Cargo.toml").contains("license = \"Apache-2.0 OR MIT\""));
    for (file, words) in [
        ("LICENSE-APACHE", "Apache License\n                           Version 2.0"),
        ("LICENSE-MIT", "MIT License"),
        (
            "ebpf/LICENSE-GPL2",
            "GNU GENERAL PUBLIC LICENSE\n                       Version 2, June 1991",
        ),
    ] {
        assert!(read(file).contains(words), "{file}");
    }
}

/// The kernel knows six sentences (`license_is_gpl_compatible`, include/linux/license.h) and lends
/// its helpers to no program with another.
#[test]
fn the_programs_say_to_the_kernel_what_their_manifest_says() {
    assert!(read("ebpf/src/programs.rs").contains("b\"Dual MIT/GPL\\0\""));
    assert!(read("ebpf/Cargo.toml").contains("license = \"MIT OR GPL-2.0-only\""));
}
