//! Programs of versions that the machine's own distribution need not have: each the package of one
//! of Debian's suites, unpacked into the project's folder beside the machine's own.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::{Apt, debian_keyring};
use crate::{host, toolchain::output, workspace::Workspace};

/// A program in a version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// Its name, and that of the package that holds it.
    pub(crate) program: &'static str,
    /// What makes it say its version, as the third word of what it prints.
    asked_by: &'static [&'static str],
    /// The versions that will do.
    pub(crate) version: Version,
    /// The Debian suite that has it.
    pub(crate) suite: &'static str,
}

/// Which versions will do: of a suite that moves on, no more than must stay the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// This line of versions, by which `coroner-lab --containerd` finds it.
    Line(&'static str),
    /// This one, or a later one with the same first number.
    From(u64, u64),
}

/// From the oldest that has the CRI's v1: 1.6 tells no events, those of 1.7 are one reader's, and 2.x
/// has other plugins and another configuration.
pub(crate) static CONTAINERDS: [Release; 3] = [
    containerd(Version::Line("1.6"), "bookworm"),
    containerd(Version::Line("1.7"), "trixie"),
    containerd(Version::Line("2"), "sid"),
];

/// Runs the alert rules' unit tests.
pub(crate) static PROMTOOL: Release = Release {
    program: "promtool",
    asked_by: &["--version"],
    version: Version::From(3, 5),
    suite: "sid",
};

/// Answers the dashboards' queries.
pub(crate) static PROMETHEUS: Release = Release {
    program: "prometheus",
    asked_by: &["--version"],
    version: Version::From(3, 5),
    suite: "sid",
};

/// Renders the manifests: the kustomize inside kubectl before 1.21 is another one.
pub(crate) static KUBECTL: Release = Release {
    program: "kubectl",
    asked_by: &["version", "--client"],
    version: Version::From(1, 36),
    suite: "sid",
};

const fn containerd(version: Version, suite: &'static str) -> Release {
    Release { program: "containerd", asked_by: &["--version"], version, suite }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => f.write_str(line),
            Self::From(major, minor) => write!(f, "{major}.{minor}"),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.version)
    }
}

impl Release {
    /// Where it is: the machine's own if that is of this version, or ours.
    pub(crate) fn find(&self, workspace: &Workspace) -> Option<PathBuf> {
        host::find_program(self.program)
            .into_iter()
            .chain([self.ours(workspace)])
            .find(|program| self.ask(program).is_some_and(|said| self.is_said_by(&said)))
    }

    /// How a person gets it where xtask cannot.
    pub(super) fn advice(&self) -> String {
        let Self { program, suite, .. } = self;
        let besides =
            if *program == "containerd" { " (and ctr, containerd-shim-runc-v2)" } else { "" };
        format!("a build of it as target/tools/{program}-{suite}/usr/bin/{program}{besides}")
    }

    /// Where set-up puts it, and the lab looks for a containerd.
    fn ours(&self, workspace: &Workspace) -> PathBuf {
        self.folder(workspace).join("usr/bin").join(self.program)
    }

    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(format!("{}-{}", self.program, self.suite))
    }

    fn ask(&self, program: &Path) -> Option<String> {
        output(Command::new(program).args(self.asked_by))
    }

    /// `containerd github.com/containerd/containerd/v2 2.1.9+unknown`, `Client Version: v1.36.4`.
    fn is_said_by(&self, said: &str) -> bool {
        said.split_whitespace().nth(2).is_some_and(|word| self.version.covers(word))
    }

    /// Fetches and unpacks it.
    ///
    /// # Errors
    /// When the suite cannot be reached, or has gone on to another version.
    pub(super) fn fetch(&self, workspace: &Workspace) -> Result<()> {
        let keyring = debian_keyring(workspace)?;
        let home = workspace.tools().join("apt").join(self.suite);
        let mut apt = Apt::of_suite(home, self.suite, &keyring)?;
        apt.unpack_alone(&format!("fetching {self}"), self.program, &self.folder(workspace))?;
        let ours = self.ours(workspace);
        let said = self
            .ask(&ours)
            .unwrap_or_else(|| format!("one that does not run here ({})", ours.display()));
        if !self.is_said_by(&said) {
            bail!(
                "Debian's {} has no {self} any more, but {}: put another suite, or another \
                 version, into the table of xtask/src/setup/releases.rs",
                self.suite,
                said.trim()
            );
        }
        Ok(())
    }
}

impl Version {
    /// Whether `word`, such as `v1.7.24` or `1.6.20~ds1`, is a version that will do.
    fn covers(&self, word: &str) -> bool {
        let word = word.trim_start_matches('v');
        match self {
            Self::Line(line) => word.strip_prefix(line).is_some_and(|rest| rest.starts_with('.')),
            Self::From(major, minor) => {
                let mut numbers = word.split('.').map(|number| number.parse::<u64>().ok());
                numbers.next() == Some(Some(*major))
                    && numbers.next().flatten().is_some_and(|number| number >= *minor)
            }
        }
    }
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

    #[test]
    fn a_later_version_will_do_and_an_older_one_will_not() {
        assert!(KUBECTL.is_said_by("Client Version: v1.36.4\nKustomize Version: v5.8.1\n"));
        assert!(KUBECTL.is_said_by("Client Version: v1.40.0\n"));
        assert!(!KUBECTL.is_said_by("Client Version: v1.32.4-dispatcher\n"));
        // What kubectl 1.20 prints.
        assert!(!KUBECTL.is_said_by("Client Version: version.Info{Major:\"1\", Minor:\"20\"}\n"));
        assert!(PROMTOOL.is_said_by("promtool, version 3.5.3+ds1 (branch: debian/sid)\n"));
        assert!(!PROMETHEUS.is_said_by("prometheus, version 2.53.0 (branch: x)\n"));
        assert!(!PROMETHEUS.is_said_by("prometheus, version 4.0.0") && !PROMETHEUS.is_said_by(""));
    }
}
