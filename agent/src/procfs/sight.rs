//! How much of the host's processes this process may see.

use crate::privileges::Privileges;
use rustix::thread::CapabilitySet;
use std::{fs, path::Path};

/// What is wrong where [`Sight::namespaces`] is false.
pub const DENIED: &str = "a security module, or a missing CAP_SYS_PTRACE, hides the host's processes: \
                          what was left behind, and where a process hangs, cannot be seen";

/// How much of the host's processes this process may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sight {
    /// This is the /proc of the host's PID namespace: numbers mean the same as to the kernel.
    pub host: bool,
    /// Which namespaces the host's first process is in: neither CAP_SYS_PTRACE is missing, nor does
    /// a security module (AppArmor, SELinux) deny what it gives.
    pub namespaces: bool,
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
            namespaces: fs::read_link(host_root.join("proc/1/ns/net")).is_ok(),
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
