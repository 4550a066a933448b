//! What of a node restricts the agent, whatever its capabilities.

use super::procfs::ProcVisibility;
use std::{fs, path::Path};

const LOCKDOWN: &str = "sys/kernel/security/lockdown";
/// This process' label: an AppArmor profile, or an SELinux context.
const OWN_LABEL: &str = "/proc/self/attr/current";

/// What of a node restricts the agent. `None`: not probed, or the kernel has nothing of the kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restrictions {
    pub visibility: Option<ProcVisibility>,
    /// The modes of the kernel's lockdown, with the one that it is in.
    pub lockdown: Option<String>,
    /// This process' label of a security module.
    pub label: Option<String>,
}

impl Restrictions {
    /// Looks at this process and at what is below `host_root`.
    pub fn probe(host_root: &Path) -> Self {
        // A container has no securityfs of its own.
        let lockdowns = [host_root, Path::new("/")].map(|root| root.join(LOCKDOWN));
        Self {
            visibility: Some(ProcVisibility::probe(host_root)),
            lockdown: lockdowns.iter().find_map(|file| fs::read_to_string(file).ok()),
            label: fs::read_to_string(OWN_LABEL).ok(),
        }
    }
}
