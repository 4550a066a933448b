//! Which versions of Debian's packages coroner was tested with: `xtask/tools.lock`.
//!
//! A mirror keeps only the newest version of a package, so an older one cannot be demanded: another version is used
//! with a warning, which has the line to add.

use std::fmt;

use anyhow::{Result, bail};
use sha2::{Digest as _, Sha256};

use crate::steps::note;

/// The lock file, below the workspace.
pub(super) const LOCK_FILE: &str = "xtask/tools.lock";

/// One package in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locked {
    /// The Debian suite that has it.
    pub(crate) suite: String,
    pub(crate) package: String,
    pub(crate) version: String,
    /// The SHA-256 of its archive, in hexadecimal.
    sha256: String,
}

/// As the lock file has it: `SUITE PACKAGE VERSION SHA256`.
impl fmt::Display for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, package, version, sha256 } = self;
        write!(f, "{suite} {package} {version} {sha256}")
    }
}

impl Locked {
    pub(super) fn of_archive(suite: &str, package: &str, version: &str, archive: &[u8]) -> Self {
        let [suite, package, version] = [suite, package, version].map(str::to_owned);
        let sha256 = Sha256::digest(archive).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { suite, package, version, sha256 }
    }

    /// Reads one line; `None` for a comment and an empty line.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace().map(str::to_owned);
        Some(Self {
            suite: words.next()?,
            package: words.next()?,
            version: words.next()?,
            sha256: words.next()?,
        })
    }
}

/// Compares a package with the text of the lock file.
///
/// # Errors
/// The file has this version with another checksum: it is not the archive that was tested.
pub(super) fn compare(lock: &str, found: &Locked) -> Result<()> {
    let lines = lock.lines().filter_map(Locked::parse);
    let known: Vec<Locked> =
        lines.filter(|line| line.suite == found.suite && line.package == found.package).collect();
    match known.iter().find(|line| line.version == found.version) {
        Some(line) if line.sha256 == found.sha256 => {}
        Some(line) => bail!(
            "{} {} of Debian's {} is not the archive that {LOCK_FILE} names: its SHA-256 is {} instead of {}",
            found.package,
            found.version,
            found.suite,
            found.sha256,
            line.sha256
        ),
        None => {
            let versions: Vec<_> = known.into_iter().map(|line| line.version).collect();
            note(&format!(
                "warning: coroner was tested with {} {}, not with this version; if all tests pass, add this line \
                 to {LOCK_FILE}:\n{found}",
                found.package,
                versions.join(", ")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_archive_of_a_tested_version_is_refused() {
        let tested = Locked::of_archive("bookworm", "runc", "1.1.5", b"tested");
        let lock = format!("# tested\n{tested}\nsid runc 2 aa\n");
        let other = |suite, version| Locked::of_archive(suite, "runc", version, b"other");
        assert!(compare(&lock, &tested).is_ok());
        assert!(compare(&lock, &other("bookworm", "1.1.5")).is_err());
        assert!(compare(&lock, &other("bookworm", "1.1.6")).is_ok(), "a warning");
        assert!(compare(&lock, &other("trixie", "1.1.5")).is_ok(), "of another suite");
    }
}
