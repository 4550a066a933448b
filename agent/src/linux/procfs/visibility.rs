//! How much of the host this process may see.

use crate::linux::privileges;
use rustix::thread::CapabilitySet;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const OWN: &str = "/proc";
/// Processes whose namespaces show whether those of the host's processes can be read: PID 1, which
/// some kernels let no other process read, and kthreadd, which no security module confines either.
const PROBED: [u32; 2] = [1, KTHREADD];
/// The parent of all kernel threads: 2 in the first PID namespace, and in no other.
const KTHREADD: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcVisibility {
    /// The host's file system below `--host-root` can be entered.
    pub root: bool,
    /// The host's processes can be seen: the /proc that is read is of the host's PID namespace.
    pub host: bool,
    /// The namespaces of the host's processes can be read: neither CAP_SYS_PTRACE is missing, nor
    /// does a security module (AppArmor, SELinux) deny what it gives.
    pub namespaces: bool,
    /// CAP_SYS_PTRACE: /proc/PID/wchan of processes that are privileged or another user's.
    pub wait_channels: bool,
}

impl ProcVisibility {
    /// Looks at this process' rights, and at what is below `host_root`.
    pub fn probe(host_root: &Path) -> Self {
        let proc = host_proc(host_root);
        let namespace = |pid| proc.join(format!("{pid}/ns/net"));
        Self {
            root: fs::metadata(host_root.join("proc")).is_ok(),
            host: is_of_the_host(&proc),
            namespaces: PROBED.iter().any(|pid| fs::read_link(namespace(pid)).is_ok()),
            wait_channels: privileges::held().contains(CapabilitySet::SYS_PTRACE),
        }
    }

    /// What is not reported, and the remedy, of each part that cannot be read although no capability is missing for it.
    /// Those that are missing are named by [`privileges::lacking`].
    pub fn hidden(self) -> Vec<(&'static str, &'static str)> {
        let mut hidden = Vec::new();
        if !self.root {
            hidden.push((
                "cannot enter the file system under --host-root; the container runtime is \
                 reached only if its socket is mounted here, and leaks of class \
                 orphan_netns are not reported",
                "grant access (/proc/1/root needs hostPID, CAP_SYS_PTRACE and no AppArmor or \
                 SELinux confinement, as in deploy/), or mount the host's / into the pod \
                 and set --host-root to the mount point",
            ));
        }
        if !self.host {
            hidden.push((
                "the host's processes are not visible; leaks of class orphan_shim, \
                 orphan_netns and orphan_pod_cgroup, kubelet restarts and unkillable \
                 processes are not reported",
                "set hostPID: true and check --host-root; if the host mounts /proc with \
                 hidepid, add the SYS_PTRACE capability to the container",
            ));
        } else if !self.namespaces && self.wait_channels {
            hidden.push((
                "a security module restricts CAP_SYS_PTRACE; leaks of class orphan_shim and \
                 orphan_netns are not reported, nor where in the kernel a process hangs",
                "run the container with appArmorProfile: Unconfined (SELinux: type spc_t), \
                 as deploy/ does",
            ));
        }
        hidden
    }
}

/// The /proc through which the host's processes are read: the one below `host_root`, or, where that
/// cannot be entered, this process' own if it shows the same processes (`hostPID: true`).
///
/// /proc/1/root is closed to a process that may not ptrace PID 1 (`proc_pid_get_link` in
/// `fs/proc/base.c`); states, parents, command lines, cgroups and mount tables are not.
pub(crate) fn host_proc(host_root: &Path) -> PathBuf {
    host_proc_or(host_root, Path::new(OWN))
}

fn host_proc_or(host_root: &Path, own: &Path) -> PathBuf {
    let below = host_root.join("proc");
    if is_closed(&below) && is_of_the_host(own) { own.to_owned() } else { below }
}

/// Something is there that cannot be entered: what is missing would only be a wrong path.
fn is_closed(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
}

/// Names of processes that a node has and a pod has not: a kubelet's, and what each container is a child of.
const OF_NODES: [&str; 5] = ["kubelet", "kubelite", "k3s", "containerd-shim", "conmon"];

/// Whether a /proc is of the host's PID namespace: the kernel's first one, or, where the node is a container (kind,
/// k3d, minikube), the one that holds the node's daemons.
pub(crate) fn is_of_the_host(proc: &Path) -> bool {
    let comm = |folder: &Path| fs::read_to_string(folder.join("comm")).unwrap_or_default();
    let is_of_node = |folder: PathBuf| {
        let comm = comm(&folder);
        OF_NODES.iter().any(|name| comm.starts_with(name))
    };
    comm(&proc.join(KTHREADD.to_string())).trim() == "kthreadd"
        || fs::read_dir(proc).is_ok_and(|mut all| {
            all.any(|entry| entry.is_ok_and(|process| is_of_node(process.path())))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_kthreadd_or_daemons_and_a_pod_neither() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_of_the_host(folder.path()));
        fs::create_dir_all(folder.path().join("2")).unwrap();
        for (comm, expected) in [
            ("sleep\n", false),
            ("kthreadd\n", true),
            ("kubelet\n", true),
            ("k3s-server\n", true),
            ("containerd-shim\n", true),
            ("containerd\n", false),
        ] {
            fs::write(folder.path().join("2/comm"), comm).unwrap();
            assert_eq!(is_of_the_host(folder.path()), expected, "{comm}");
        }
    }

    #[test]
    fn a_closed_root_leaves_the_own_proc_if_it_is_the_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let (own, open) = (folder.path().join("own"), folder.path().join("root"));
        fs::create_dir_all(own.join("2")).unwrap();
        fs::create_dir_all(open.join("proc")).unwrap();
        // Nothing below a file can be entered, by root either.
        let closed = folder.path().join("closed");
        fs::write(&closed, "").unwrap();
        assert!(is_closed(&closed.join("proc")));
        assert_eq!(host_proc_or(&closed, &own), closed.join("proc"), "another PID namespace");
        fs::write(own.join("2/comm"), "kthreadd\n").unwrap();
        assert_eq!(host_proc_or(&closed, &own), own);
        assert_eq!(host_proc_or(&open, &own), open.join("proc"));
        let missing = folder.path().join("missing");
        assert_eq!(host_proc_or(&missing, &own), missing.join("proc"), "a mistyped path");
    }

    #[test]
    fn the_namespaces_of_any_process_of_the_host_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let link = |pid: &str| {
            let folder = folder.path().join(format!("proc/{pid}/ns"));
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink("net:[7]", folder.join("net")).unwrap();
        };
        link("3");
        assert!(!ProcVisibility::probe(folder.path()).namespaces);
        link("2");
        let visibility = ProcVisibility::probe(folder.path());
        assert!(visibility.namespaces, "PID 1 is closed, and kthreadd is not");
        assert!(visibility.root && !visibility.host);
    }

    /// What each costs is in the table of the store's health.
    #[test]
    fn a_security_module_hides_namespaces_and_not_wait_channels() {
        let all = ProcVisibility { root: true, host: true, namespaces: true, wait_channels: true };
        let hidden = |visibility: ProcVisibility| visibility.hidden().len();
        assert_eq!((hidden(all), hidden(ProcVisibility { namespaces: false, ..all })), (0, 1));
        assert_eq!(hidden(ProcVisibility { namespaces: false, wait_channels: false, ..all }), 0);
        assert_eq!(hidden(ProcVisibility { root: false, namespaces: false, ..all }), 2);
    }
}
