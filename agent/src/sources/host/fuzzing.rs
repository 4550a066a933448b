//! The parsers of what the adapter reads from the host: for the fuzz targets (`fuzz/targets`).

use super::{mounts, shims, table};
use coroner_core::input::PodVolume;
use std::{collections::BTreeMap, path::PathBuf};

/// The volumes of pods that are mounted, and how many more there are than are told.
pub fn volumes(mountinfo: &str) -> (Vec<PodVolume>, u64) {
    let found = mounts::volumes_in(mountinfo);
    (found.list, found.left_out)
}

/// The network namespaces that are mounted.
pub fn net_namespaces(mountinfo: &str) -> BTreeMap<PathBuf, u64> {
    mounts::net_namespaces_in(mountinfo)
}

/// The inode in the target of a link below /proc/PID/ns.
pub fn namespace_inode(link: &str) -> Option<u64> {
    table::namespace_inode(link)
}

/// The id that a process of this name and command line serves, if it is a shim of pods.
pub fn serves<'a>(comm: &str, command: &'a [u8]) -> Option<&'a [u8]> {
    shims::serves(comm, command)
}

/// The most entries of a kind that are told.
pub const MAX_ENTRIES: usize = super::MAX_ENTRIES;
