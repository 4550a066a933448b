//! The file of a unix socket, which may be in another root or mount namespace: a socket answers wherever its file is
//! opened.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// To look at what is there, and not to read it.
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A socket, whichever of its names it was found by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketId {
    /// Its path, from the root that it was found below.
    pub path: PathBuf,
    /// Device and inode.
    pub file: (u64, u64),
}

/// A socket that was opened by its path, not yet connected.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub(crate) id: SocketId,
    file: OwnedFd,
}

impl SocketFile {
    /// A path that reaches it whatever its root is, and however long its own path (`sun_path` has 108 bytes).
    pub(crate) fn address(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Opens it by its path as this process sees it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::of(open(path, PATH, Mode::empty())?, path)
    }

    /// Opens it by its path below a root. Symlinks, absolute ones (`/var/run`) and `..` lead to places below that root, as
    /// they do for the programs that live there.
    pub(crate) fn open_below(root: &Path, path: &Path) -> io::Result<Self> {
        let root = open(root, PATH | OFlags::DIRECTORY, Mode::empty())?;
        Self::of(openat2(&root, path, PATH, Mode::empty(), ResolveFlags::IN_ROOT)?, path)
    }

    fn of(file: OwnedFd, path: &Path) -> io::Result<Self> {
        let stat = fstat(&file)?;
        if !FileType::from_raw_mode(stat.st_mode).is_socket() {
            return Err(io::Error::other("not a socket"));
        }
        let id = SocketId { path: path.to_owned(), file: (stat.st_dev, stat.st_ino) };
        Ok(Self { id, file })
    }
}
