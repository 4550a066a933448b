//! Foreign kernels: Debian's, unpacked into the project's folder and never installed.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host::{AARCH64, Arch, X86_64},
    progress::note,
    setup::{self, Apt, Locked},
    workspace::Workspace,
};

/// A kernel to boot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// How its version begins. A suite that is still in the making moves on within it.
    version: &'static str,
    /// The machine that it is for.
    pub(crate) arch: &'static Arch,
    /// The Debian suite that has it.
    suite: &'static str,
    /// What stands before the version in the name of the package that holds the image.
    stem: &'static str,
    /// What stands after it.
    flavour: &'static str,
}

const CLOUD: Kernel = Kernel {
    name: "5.10",
    version: "5.10",
    arch: &X86_64,
    suite: "bullseye",
    stem: "linux-image-",
    flavour: "-cloud-amd64",
};
const CLOUD_ARM64: Kernel =
    Kernel { name: "5.10-arm64", arch: &AARCH64, flavour: "-cloud-arm64", ..CLOUD };

/// All kernels that the programs are tested on, beside the machine's own; those of an architecture from the
/// oldest.
pub(crate) static KERNELS: [Kernel; 6] = [
    CLOUD,
    Kernel { name: "6.1", version: "6.1", suite: "bookworm", ..CLOUD },
    Kernel { name: "6.12", version: "6.12", suite: "trixie", ..CLOUD },
    Kernel { name: "7", version: "7", suite: "sid", stem: "linux-binary-", ..CLOUD },
    CLOUD_ARM64,
    // Its pages have 16 KiB.
    Kernel {
        name: "7-arm64-16k",
        version: "7",
        suite: "sid",
        stem: "linux-binary-",
        flavour: "-arm64-16k",
        ..CLOUD_ARM64
    },
];

/// The kernels of these versions; all, if none is named.
///
/// # Errors
/// On a version that is not in the table; the error names those that are.
pub(crate) fn choose(versions: &[String]) -> Result<Vec<&'static Kernel>> {
    if versions.is_empty() {
        return Ok(KERNELS.iter().collect());
    }
    versions
        .iter()
        .map(|version| {
            KERNELS.iter().find(|kernel| kernel.name == version).with_context(|| {
                let known: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
                format!("no kernel {version}; there are: {}", known.join(", "))
            })
        })
        .collect()
}

/// Written last: the package that was unpacked, as in the lock file.
const RECORD: &str = "installed";

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "linux-{}", self.name)
    }
}

impl Kernel {
    /// Its package and where that comes from, for a person.
    pub(crate) fn source(&self) -> String {
        format!("{}*{} of Debian's {}", self.package(), self.flavour, self.suite)
    }

    /// How the package's name begins.
    fn package(&self) -> String {
        format!("{}{}.", self.stem, self.version)
    }

    /// The name of the package to take: the newest of its version; where the suite has gone on, the newest of
    /// all.
    ///
    /// # Errors
    /// When the suite has none, or its package lists cannot be fetched.
    fn newest(&self, apt: &Apt) -> Result<String> {
        let of_version = apt.newest(&self.package(), self.flavour);
        of_version.or_else(|error| apt.newest(self.stem, self.flavour).map_err(|_| error))
    }

    /// Whether a package is of its version, or of a later one.
    fn accepts(&self, package: &str) -> bool {
        let numbers = |text: &str| -> Vec<u64> {
            let words = text.split(|letter: char| !letter.is_ascii_digit());
            words.map_while(|word| word.parse().ok()).collect()
        };
        let own = numbers(self.version);
        let rest = package.strip_prefix(self.stem).map(numbers);
        rest.is_some_and(|rest| rest.iter().take(own.len()).copied().ge(own.iter().copied()))
    }

    /// Where it is unpacked.
    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(self.to_string())
    }

    /// Its image, and the package that it is from; `None`: it is not there, or is an older table's.
    pub(crate) fn installed(&self, workspace: &Workspace) -> Option<(PathBuf, Locked)> {
        let folder = self.folder(workspace);
        let record = fs::read_to_string(folder.join(RECORD)).ok()?;
        let package = Locked::parse(record.lines().next()?)?;
        let is_it = package.suite == self.suite && self.accepts(&package.package);
        is_it.then_some((image_in(&folder)?, package))
    }

    /// Its image.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn image(&self, workspace: &Workspace) -> Result<PathBuf> {
        match self.installed(workspace) {
            Some((image, _)) => Ok(image),
            None => bail!("{self} is not there: `cargo xtask setup` fetches it"),
        }
    }

    /// Fetches and unpacks it.
    ///
    /// # Errors
    /// When there is no apt, or it cannot be fetched.
    pub(crate) fn install(&self, workspace: &Workspace) -> Result<()> {
        let folder = self.folder(workspace);
        let foreign = (!self.arch.is_host()).then_some(self.arch);
        let apt = Apt::of_architecture(workspace, self.suite, foreign)?;
        let title = format!("fetching Linux {}", self.name);
        let mut package = self.newest(&apt)?;
        let fetched = apt.fetch(&title, &[&package], false).or_else(|error| {
            // The lists were old, and are new now: the suite may have another one.
            let newest = self.newest(&apt)?;
            if newest == package {
                return Err(error);
            }
            package = newest;
            apt.fetch(&title, &[&package], false)
        })?;
        if !package.starts_with(&self.package()) {
            note(&format!(
                "warning: Debian's {} has no Linux {} any more; {package} is tested in its place: change \
                 the table KERNELS in xtask/src/vm/kernel.rs, and the fixtures in agent/tests/fixtures/btf \
                 with it",
                self.suite, self.version
            ));
        }
        // Under another name until it is whole: what is interrupted here must not be booted later.
        let partial = workspace.tools().join(format!("{self}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        for archive in fetched {
            setup::compare(workspace, &archive.locked)?;
            archive.unpack(&partial)?;
            fs::write(partial.join(RECORD), format!("{}\n", archive.locked))?;
        }
        if image_in(&partial).is_none() {
            bail!("the package of Linux {} holds no vmlinuz", self.name);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::rename(&partial, &folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(())
    }
}

/// The image of an unpacked package: `boot/vmlinuz-VERSION`, since Linux 7 of Debian
/// `usr/lib/modules/VERSION/vmlinuz`.
fn image_in(root: &Path) -> Option<PathBuf> {
    let in_folder = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let is_image = |file: &PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    };
    in_folder("boot").find(is_image).or_else(|| {
        in_folder("usr/lib/modules")
            .map(|folder| folder.join("vmlinuz"))
            .find(|file| file.is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_version_means_all_and_a_wrong_one_is_answered_with_the_right_ones() {
        assert_eq!(choose(&[]).expect("all").len(), KERNELS.len());
        assert_eq!(choose(&["6.1".into()]).expect("known")[0].suite, "bookworm");
        let error = choose(&["2.4".into()]).expect_err("unknown");
        assert!(
            error.to_string().contains("5.10, 6.1, 6.12, 7, 5.10-arm64, 7-arm64-16k"),
            "{error}"
        );
    }

    #[test]
    fn a_version_is_not_the_beginning_of_a_longer_one() {
        let kernel = choose(&["6.1".into()]).expect("known")[0];
        assert!("linux-image-6.1.0-50-cloud-amd64".starts_with(&kernel.package()));
        assert!(!"linux-image-6.12.107+deb13-cloud-amd64".starts_with(&kernel.package()));
    }

    #[test]
    fn the_image_is_found_where_old_and_new_packages_have_it() {
        for place in ["boot/vmlinuz-6.1.0-50", "usr/lib/modules/7.2.13/vmlinuz"] {
            let root = tempfile::tempdir().expect("a folder");
            assert_eq!(image_in(root.path()), None);
            let file = root.path().join(place);
            fs::create_dir_all(file.parent().expect("has one")).expect("made");
            fs::write(root.path().join("other"), "").expect("written");
            fs::write(&file, "").expect("written");
            assert_eq!(image_in(root.path()), Some(file));
        }
    }

    #[test]
    fn a_kernel_that_is_not_whole_or_of_another_suite_is_missing() {
        let root = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(root.path());
        let kernel = choose(&["6.1".into()]).expect("known")[0];
        let error = kernel.image(&workspace).expect_err("nothing there").to_string();
        assert!(error.contains("linux-6.1") && error.contains("cargo xtask setup"), "{error}");
        let folder = kernel.folder(&workspace);
        fs::create_dir_all(folder.join("boot")).expect("made");
        fs::write(folder.join("boot/vmlinuz-6.1.0-56"), "").expect("written");
        assert_eq!(kernel.installed(&workspace), None, "it may be half unpacked");
        let record = |suite: &str, name: &str| {
            let line = format!("{suite} linux-image-{name}-cloud-amd64 6.1.192-2 aa\n");
            fs::write(folder.join(RECORD), line).expect("written");
            kernel.installed(&workspace).is_some()
        };
        assert!(record("bookworm", "6.1.0-56"));
        assert!(!record("trixie", "6.1.0-56") && !record("bookworm", "5.10.1"));
    }

    #[test]
    fn every_kernel_is_in_the_lock_file() {
        let lock = include_str!("../../tools.lock");
        for kernel in &KERNELS {
            let locked = lock.lines().filter_map(Locked::parse);
            let known = |line: Locked| {
                let package = line.package.split(':').next().unwrap_or_default();
                line.suite == kernel.suite
                    && package.starts_with(&kernel.package())
                    && package.ends_with(kernel.flavour)
            };
            assert!(locked.into_iter().any(known), "{kernel}");
        }
    }

    #[test]
    fn a_later_kernel_is_accepted_and_an_earlier_one_is_not() {
        let seven = choose(&["7".into()]).expect("known")[0];
        assert!(seven.accepts("linux-binary-7.2.13+deb14-cloud-amd64"));
        assert!(seven.accepts("linux-binary-8.1.2+deb15-cloud-amd64"));
        assert!(!seven.accepts("linux-binary-6.18.4-cloud-amd64"));
        let six = choose(&["6.12".into()]).expect("known")[0];
        assert!(six.accepts("linux-image-6.12.117+deb13-cloud-amd64"));
        assert!(!six.accepts("linux-image-6.1.0-50-cloud-amd64"));
        assert!(!six.accepts("linux-headers-6.12.117"));
    }
}
