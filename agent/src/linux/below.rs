//! Files below another root. Symlinks, absolute ones and `..` lead to places below that root, as they do for the programs
//! that live there.

use rustix::fs::{Mode, OFlags, ResolveFlags, open as open_at, openat2};
use std::{io, os::fd::OwnedFd, path::Path};

/// To look at what is there, and not to read it.
pub(super) const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

pub(crate) fn open(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let root = open_at(root, PATH | OFlags::DIRECTORY, Mode::empty())?;
    // The root itself has an empty path.
    let path = path.strip_prefix("/").unwrap_or(path);
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(openat2(&root, path, PATH, Mode::empty(), ResolveFlags::IN_ROOT)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::{fd::AsRawFd as _, unix::fs::symlink},
    };

    #[test]
    fn links_stay_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("host");
        fs::create_dir_all(root.join("var/log")).unwrap();
        fs::write(folder.path().join("secret"), "outside").unwrap();
        fs::write(root.join("secret"), "inside").unwrap();
        symlink("../../../../secret", root.join("var/log/up")).unwrap();
        symlink("/secret", root.join("var/log/absolute")).unwrap();
        symlink("/var/log", root.join("logs")).unwrap();
        for path in ["var/log/up", "var/log/absolute", "/logs/up", "../secret"] {
            let found = open(&root, Path::new(path)).unwrap();
            let text = fs::read_to_string(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
            assert_eq!(text, "inside", "{path}");
        }
    }
}
