//! The versions of containerd that the lab is tested with: each the package of one of Debian's
//! suites, unpacked into the project's folder beside the machine's own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::{Apt, debian_keyring};
use crate::{host, toolchain::output, workspace::Workspace};

/// A version of containerd.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Runtime {
    /// The beginning of its number, by which `coroner-lab --containerd` finds it: of a suite that
    /// moves on, no more than must stay the same.
    pub(crate) version: &'static str,
    /// The Debian suite that has it.
    pub(crate) suite: &'static str,
}

/// From the oldest that has the CRI's v1: 1.6 tells no events, those of 1.7 are one reader's, and 2.x
/// has other plugins and another configuration.
pub(crate) static CONTAINERDS: [Runtime; 3] = [
    Runtime { version: "1.6", suite: "bookworm" },
    Runtime { version: "1.7", suite: "trixie" },
    Runtime { version: "2", suite: "sid" },
];

impl Runtime {
    /// Whether the lab finds it: the machine's own, or ours.
    pub(super) fn present(&self, workspace: &Workspace) -> bool {
        let own = host::find_program("containerd")
            .and_then(|program| output(Command::new(program).arg("--version")));
        own.is_some_and(|said| self.is_said_by(&said))
            || output(Command::new(self.daemon(workspace)).arg("--version"))
                .is_some_and(|said| self.is_said_by(&said))
    }

    /// Where the lab looks for it.
    fn daemon(&self, workspace: &Workspace) -> PathBuf {
        self.folder(workspace).join("usr/bin/containerd")
    }

    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(format!("containerd-{}", self.suite))
    }

    /// `containerd github.com/containerd/containerd/v2 2.1.9+unknown`.
    fn is_said_by(&self, said: &str) -> bool {
        said.split_whitespace().nth(2).is_some_and(|version| {
            version
                .trim_start_matches('v')
                .strip_prefix(self.version)
                .is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// Fetches and unpacks it.
    ///
    /// # Errors
    /// When the suite cannot be reached, or has gone on to another version.
    pub(super) fn fetch(&self, workspace: &Workspace) -> Result<()> {
        let keyring = debian_keyring(workspace)?;
        let home = workspace.tools().join("apt").join(self.suite);
        let mut apt = Apt::of_suite(home, self.suite, &keyring)?;
        let title = format!("fetching containerd {}", self.version);
        apt.unpack_alone(&title, "containerd", &self.folder(workspace))?;
        let said = said_by(&self.daemon(workspace));
        if !self.is_said_by(&said) {
            bail!(
                "Debian's {} has no containerd {} any more, but {}: put another suite, or another \
                 version, into the table of xtask/src/setup/runtimes.rs",
                self.suite,
                self.version,
                said.trim()
            );
        }
        Ok(())
    }
}

fn said_by(daemon: &Path) -> String {
    output(Command::new(daemon).arg("--version"))
        .unwrap_or_else(|| format!("one that does not run here ({})", daemon.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_known_by_what_the_daemon_says() {
        let [old, middle, new] = &CONTAINERDS;
        let said = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n";
        assert!(old.is_said_by(said) && !middle.is_said_by(said) && !new.is_said_by(said));
        assert!(new.is_said_by("containerd github.com/containerd/containerd/v2 2.1.9+unknown \n"));
        assert!(middle.is_said_by("containerd github.com/containerd/containerd v1.7.24 88bf19b\n"));
        assert!(!middle.is_said_by("containerd x 1.70.1") && !middle.is_said_by(""));
    }
}
