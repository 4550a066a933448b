//! Where things are: the workspace's root, what is built and what is fetched.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The paths that every command shares. Everything that xtask writes lies below `target/`.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The workspace that this xtask was compiled in.
    pub(crate) fn here() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: manifest.parent().unwrap_or(manifest).to_path_buf() }
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A path below `target/`.
    pub(crate) fn target(&self, below: &str) -> PathBuf {
        self.root.join("target").join(below)
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
