//! Where things are: the workspace's root, what is built and what is fetched.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::host::Arch;

/// The paths that every command shares. Everything that xtask writes lies below `target/`.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The workspace that this xtask was compiled in.
    pub(crate) fn here() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::at(manifest.parent().unwrap_or(manifest))
    }

    /// The workspace in this folder.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A path below `target/`.
    pub(crate) fn target(&self, below: &str) -> PathBuf {
        self.root.join("target").join(below)
    }

    /// What cargo builds for this machine: `.cargo/config.toml` names the target, so that all is linked
    /// statically.
    ///
    /// # Errors
    /// On an architecture that coroner does not build for.
    pub(crate) fn built(&self, below: &str) -> Result<PathBuf> {
        Ok(self.built_for(Arch::host()?, below))
    }

    /// What cargo builds for an architecture.
    pub(crate) fn built_for(&self, arch: &Arch, below: &str) -> PathBuf {
        self.target(arch.triple).join(below)
    }

    /// What a failed test leaves: logs, recordings, answers.
    pub(crate) fn failed(&self) -> PathBuf {
        self.target("failed")
    }

    /// The project's own tools: nothing of the machine's is written to.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target("tools")
    }

    /// `PATH` with the project's own tools first.
    pub(crate) fn path(&self) -> OsString {
        let path = env::var_os("PATH").unwrap_or_default();
        let own = self.tools().join("bin");
        let folders = std::iter::once(own).chain(env::split_paths(&path));
        // Only a folder with a colon in its name cannot be joined; then PATH stays as it is.
        env::join_paths(folders).unwrap_or(path)
    }
}
