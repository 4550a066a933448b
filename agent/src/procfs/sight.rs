//! How much of the host's processes this process may see.

use crate::privileges::Privileges;
use rustix::thread::CapabilitySet;
use std::{fs, path::Path};

/// How much of the host's processes this process may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sight {
    /// This is the /proc of the host's PID namespace: numbers mean the same as to the kernel.
    pub host: bool,
    /// CAP_SYS_PTRACE: /proc/PID/wchan of processes that are privileged or another user's.
    pub wait_channels: bool,
    /// CAP_SYS_ADMIN: /proc/PID/stack.
    pub stacks: bool,
}

impl Sight {
    /// Looks at this process' rights, and at the /proc below `host_root`.
    pub fn probe(host_root: &Path) -> Self {
        let held = Privileges::held();
        Self {
            host: is_of_the_host(host_root),
            wait_channels: held.has(CapabilitySet::SYS_PTRACE),
            stacks: held.has(CapabilitySet::SYS_ADMIN),
        }
    }
}

/// The parent of all kernel threads is number 2 in the first PID namespace, and in no other.
pub(crate) fn is_of_the_host(host_root: &Path) -> bool {
    fs::read_to_string(host_root.join("proc/2/comm")).is_ok_and(|comm| comm.trim() == "kthreadd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_namespace_has_no_kthreadd() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_of_the_host(folder.path()));
        fs::create_dir_all(folder.path().join("proc/2")).unwrap();
        for (comm, expected) in [("sleep\n", false), ("kthreadd\n", true)] {
            fs::write(folder.path().join("proc/2/comm"), comm).unwrap();
            assert_eq!(is_of_the_host(folder.path()), expected, "{comm}");
        }
    }
}
