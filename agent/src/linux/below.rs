//! Files below another root. Symlinks, absolute ones and `..` lead to places below that root, as they do for the programs
//! that live there.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open as open_at, openat2};
use std::{fs::File, io, os::fd::OwnedFd, path::Path};

/// To look at what is there, and not to read it.
pub(super) const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Whether a file is a plain one.
pub(crate) fn is_plain(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

/// Another root, which is open.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

impl Root {
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        Ok(Self(open_at(path, PATH | OFlags::DIRECTORY, Mode::empty())?))
    }

    /// Opens what `path` is below it.
    pub(crate) fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        // The root itself has an empty path.
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = flags | OFlags::CLOEXEC;
        Ok(openat2(&self.0, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
    }

    /// Opens a plain file for reading. `None`: it is something else. A device is not even opened, and a FIFO that comes in
    /// its place does not block.
    pub(crate) fn open_plain(&self, path: &Path) -> io::Result<Option<File>> {
        if !is_plain(&fstat(self.open(path, PATH)?)?) {
            return Ok(None);
        }
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let plain = is_plain(&fstat(&file)?);
        Ok(plain.then(|| file.into()))
    }
}

/// Opens what `path` is below `root`.
pub(crate) fn open(root: &Path, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Root::new(root)?.open(path, flags)
}

/// What is there.
pub(crate) fn stat(root: &Path, path: &Path) -> io::Result<Stat> {
    Ok(fstat(open(root, path, PATH)?)?)
}

/// Opens a plain file for reading, as [`Root::open_plain`].
pub(crate) fn open_plain(root: &Path, path: &Path) -> io::Result<Option<File>> {
    Root::new(root)?.open_plain(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Read as _, os::unix::fs::symlink};

    #[test]
    fn links_stay_below_the_root_and_only_plain_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("host");
        fs::create_dir_all(root.join("var/log")).unwrap();
        fs::write(folder.path().join("secret"), "outside").unwrap();
        fs::write(root.join("secret"), "inside").unwrap();
        symlink("../../../../secret", root.join("var/log/up")).unwrap();
        symlink("/secret", root.join("var/log/absolute")).unwrap();
        symlink("/var/log", root.join("logs")).unwrap();
        for path in ["var/log/up", "var/log/absolute", "/logs/up", "../secret"] {
            let mut text = String::new();
            let file = open_plain(&root, Path::new(path)).unwrap();
            file.unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "inside", "{path}");
        }
        let mode = Mode::from_raw_mode(0o600);
        let fifo = root.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        for path in ["fifo", "var", "/"] {
            assert!(open_plain(&root, Path::new(path)).unwrap().is_none(), "{path}");
        }
        assert!(open_plain(Path::new("/"), Path::new("dev/zero")).unwrap().is_none());
    }
}
