//! /proc: one reader of each of its files, on bytes, and how much of the host it shows.

pub mod net;
pub mod parse;
mod visibility;

pub use visibility::ProcVisibility;
pub(crate) use visibility::{host_proc, is_of_the_host};

use parse::Stat;
use std::{fs, io, path::Path};

/// A file of the kernel's as text. It may name processes, cgroups and mounts, whose names need not be
/// UTF-8; one of them is not to hide all.
pub(crate) fn read_lossy(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// A process' or thread's stat, by its folder in /proc.
pub(crate) fn read_stat(folder: &Path) -> Option<Stat> {
    parse::stat(&fs::read(folder.join("stat")).ok()?)
}
