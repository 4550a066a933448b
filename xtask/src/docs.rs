//! `cargo xtask docs`: writes the generated files again. The tests that fail if a file is stale write it.

use anyhow::{Result, ensure};

use crate::{build, setup::Need, steps::show, toolchain::cargo, workspace::Workspace};

/// The tests that hold generated files to what they are made of: arguments of `cargo test`.
const TESTS: &[&[&str]] = &[
    &["--package=coroner", "--lib", "docs_metrics_md_is_what_the_catalogue_says"],
    &["--package=coroner", "--test=agent", "kubelet_md_has_every_message"],
    &["--package=coroner-report", "--all-features", "--test=reference"],
    &["--package=coroner", "--test=agent", "the_man_pages_are_what_the_flags_say"],
    &["--package=coroner-lab", "--test=deploy", "generated"],
];

/// What they need beyond the build.
pub(crate) const NEEDS: &[Need] = &[Need::Pypi];

/// Writes all of them.
///
/// # Errors
/// When something does not compile, or a file cannot be written.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    build::kernel_programs(workspace)?;
    for test in TESTS {
        let mut command = cargo("test");
        command.env("UPDATE_GOLDEN", "1").arg("--locked").args(*test);
        let title = format!("writing what {} compares", test.last().unwrap_or(&"a test"));
        let output = show(&title, &mut command)?;
        let ran = |line: &str| line.starts_with("running ") && line != "running 0 tests";
        ensure!(output.lines().any(ran), "{title}: there is no such test");
    }
    Ok(())
}
