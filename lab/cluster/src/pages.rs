//! The directory of the pages that pods share with the one who watches them die: on tmpfs, where no
//! writing back to a disk holds a heart up.

use anyhow::Context as _;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Removed with all that is in it when it is dropped.
#[derive(Debug)]
pub struct Pages(pub PathBuf);

impl Pages {
    /// Named after the lab, which has its work directory for itself: what is there already is of a
    /// run that was killed.
    pub fn make(lab: &str) -> anyhow::Result<Self> {
        let directory = Path::new("/dev/shm").join(lab);
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::create_dir(&directory),
        }
        .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self(directory))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
