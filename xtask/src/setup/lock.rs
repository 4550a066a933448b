//! Which versions of Debian's packages coroner was tested with: `xtask/tools.lock`.
//!
//! A mirror keeps only the newest version of a package, so that an older one cannot be demanded: another
//! version is used with a warning that has the line to add.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// One package in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locked {
    /// The Debian suite that has it.
    pub(crate) suite: String,
    /// Its name.
    pub(crate) package: String,
    /// Its version.
    pub(crate) version: String,
    /// The SHA-256 of its archive, in hexadecimal.
    pub(crate) sha256: String,
}

/// As the lock file has it: `SUITE PACKAGE VERSION SHA256`.
impl fmt::Display for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, package, version, sha256 } = self;
        write!(f, "{suite} {package} {version} {sha256}")
    }
}

impl Locked {
    /// Reads one line; `None` for a comment, an empty line, or one that is no such line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace().map(str::to_owned);
        let locked = Self {
            suite: words.next()?,
            package: words.next()?,
            version: words.next()?,
            sha256: words.next()?,
        };
        words.next().is_none().then_some(locked)
    }
}

/// The SHA-256 of `bytes`, in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the lock file says of a package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This version, with this checksum, is in it.
    Known,
    /// This version is in it with another checksum: not the archive that was tested.
    Altered,
    /// This version is not in it; those that are.
    New(Vec<String>),
}

/// Looks `found` up in the text of the lock file.
pub(crate) fn look_up(lock: &str, found: &Locked) -> Verdict {
    let of_package: Vec<Locked> = lock
        .lines()
        .filter_map(Locked::parse)
        .filter(|line| line.suite == found.suite && line.package == found.package)
        .collect();
    match of_package.iter().find(|line| line.version == found.version) {
        Some(line) if line.sha256 == found.sha256 => Verdict::Known,
        Some(_) => Verdict::Altered,
        None => Verdict::New(of_package.into_iter().map(|line| line.version).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runc(version: &str, sha256: &str) -> Locked {
        let text = format!("bookworm runc {version} {sha256}");
        Locked::parse(&text).expect("four words")
    }

    #[test]
    fn a_known_version_with_another_checksum_is_not_the_known_one() {
        let lock =
            "# tested\nbookworm runc 1.1.5 aa # first\nbookworm runc 1.1.6 bb\nsid runc 2 cc\n";
        assert_eq!(look_up(lock, &runc("1.1.6", "bb")), Verdict::Known);
        assert_eq!(look_up(lock, &runc("1.1.5", "bb")), Verdict::Altered);
        let versions = vec!["1.1.5".to_owned(), "1.1.6".to_owned()];
        assert_eq!(look_up(lock, &runc("2", "cc")), Verdict::New(versions));
    }

    #[test]
    fn every_line_of_the_lock_file_is_read_and_written_alike() {
        let lock = include_str!("../../tools.lock");
        let lines = lock.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        for line in lines {
            let locked = Locked::parse(line).unwrap_or_else(|| panic!("not a line: {line}"));
            assert_eq!(locked.to_string(), line);
            assert_eq!(locked.sha256.len(), 64, "{line}");
        }
    }
}
