//! Foreign kernels: Debian's cloud kernels, unpacked into the project's folder and never installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host::Arch,
    setup::{self, Apt},
    workspace::Workspace,
};

/// A kernel to boot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// What it is called on the command line.
    pub(crate) version: &'static str,
    /// The Debian suite that has it.
    suite: &'static str,
    /// How the package's name begins; it ends in the architecture's cloud flavour.
    package: &'static str,
}

/// All kernels that the programs are tested on, beside the machine's own.
pub(crate) const KERNELS: &[Kernel] =
    &[Kernel { version: "6.1", suite: "bookworm", package: "linux-image-6.1." }];

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
            KERNELS.iter().find(|kernel| kernel.version == version).with_context(|| {
                let known: Vec<_> = KERNELS.iter().map(|kernel| kernel.version).collect();
                format!("no kernel {version}; there are: {}", known.join(", "))
            })
        })
        .collect()
}

impl Kernel {
    /// The folder where all that concerns this kernel is kept.
    pub(super) fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.target("vm").join(self.version)
    }

    /// Its image, fetched the first time.
    ///
    /// # Errors
    /// When there is no apt, or it cannot be fetched.
    pub(super) fn image(&self, workspace: &Workspace) -> Result<PathBuf> {
        let root = self.folder(workspace).join("root");
        if let Some(image) = image_in(&root) {
            return Ok(image);
        }
        let keyring = setup::debian_keyring(workspace)?;
        let home = self.folder(workspace).join("apt");
        let mut apt = Apt::of_suite(home, self.suite, &keyring)?;
        let suffix = format!("-cloud-{}", Arch::host()?.debian);
        let title = format!("fetching Linux {}", self.version);
        apt.unpack_newest(&title, (self.package, &suffix), &root)?;
        match image_in(&root) {
            Some(image) => Ok(image),
            None => bail!("the package of Linux {} holds no boot/vmlinuz", self.version),
        }
    }
}

fn image_in(root: &Path) -> Option<PathBuf> {
    fs::read_dir(root.join("boot")).ok()?.filter_map(|file| Some(file.ok()?.path())).find(|file| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
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
        assert!(error.to_string().contains("6.1"), "{error}");
    }
}
