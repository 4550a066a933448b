//! `cargo xtask docs`: writes the generated files anew.
//!
//! The tests that say whether they are stale are what knows how they are made; told to, they write them.

use anyhow::Result;

use crate::{
    build,
    progress::step,
    setup::{self, Need},
    toolchain::cargo,
    workspace::Workspace,
};

/// The tests that hold generated files to what they are made of: arguments of `cargo test`.
const TESTS: &[&[&str]] = &[
    &["--package=coroner", "--lib", "docs_metrics_md_is_what_the_catalogue_says"],
    &["--package=coroner-api", "--test=reference"],
    &["--package=coroner", "--test=cli", "the_man_pages_are_what_the_flags_say"],
    &["--package=coroner-lab", "--test=deploy", "generated"],
    &["--package=coroner-cri-api", "the_committed_code_is_what_the_protos_generate"],
];

/// What they need beyond the build.
pub(crate) const NEEDS: &[Need] = &[Need::Python(&setup::GRAFANA), Need::Python(&setup::HELM)];

/// Writes all of them.
///
/// # Errors
/// When something does not compile, or a file cannot be written.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    build::kernel_programs(workspace)?;
    for test in TESTS {
        step(
            &format!("writing what {} holds", test.last().unwrap_or(&"a test")),
            cargo("test")
                .current_dir(workspace.root())
                .env("PATH", workspace.path())
                .env("UPDATE_GOLDEN", "1")
                .arg("--locked")
                .args(*test),
        )?;
    }
    Ok(())
}
