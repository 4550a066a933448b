//! What a person on the node can use against a leak: the daemons' units, and crictl.

use super::HostView;
use crate::linux::procfs::read_lossy;
use coroner_core::input::{DaemonProcess, NodeTools};
use std::{fs, path::Path};

/// Where distributions have crictl, and how it is called there.
const CRICTL: [(&str, &str); 7] = [
    (
        "var/lib/rancher/rke2/bin/crictl",
        "/var/lib/rancher/rke2/bin/crictl --config /var/lib/rancher/rke2/agent/etc/crictl.yaml",
    ),
    ("usr/local/bin/crictl", "crictl"),
    ("usr/bin/crictl", "crictl"),
    ("opt/bin/crictl", "/opt/bin/crictl"),
    ("home/kubernetes/bin/crictl", "/home/kubernetes/bin/crictl"),
    ("usr/local/bin/k3s", "k3s crictl"),
    ("usr/bin/k3s", "k3s crictl"),
];

pub(super) fn tools(host: &HostView) -> NodeTools {
    let unit = |process: Option<DaemonProcess>| {
        let cgroup = read_lossy(&host.proc.join(format!("{}/cgroup", process?.pid)));
        unit(&cgroup.ok()?)
    };
    let crictl = crictl(&host.root);
    NodeTools { kubelet: unit(host.kubelet), runtime: unit(host.runtime), crictl }
}

/// The cgroup's name is systemd's own statement: `0::/system.slice/k3s-agent.service`.
fn unit(cgroup: &str) -> Option<String> {
    let parts = cgroup.trim().split(['/', '\n']);
    let unit = parts.filter_map(|part| part.strip_suffix(".service")).next_back()?;
    // It becomes part of a command; a unit of a user is not started by root's systemctl.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_system = !cgroup.contains("/user@");
    (is_system && !unit.is_empty() && unit.chars().all(is_plain)).then(|| unit.to_owned())
}

fn crictl(root: &Path) -> Option<String> {
    fs::metadata(root.join("usr")).ok()?; // else the files of the host are not seen
    let found = CRICTL.iter().find(|(file, _)| fs::symlink_metadata(root.join(file)).is_ok());
    Some(found.map_or("", |(_, command)| command).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;

    #[test]
    fn units_by_the_cgroup_of_the_process() {
        for (cgroup, wanted) in [
            ("0::/system.slice/kubelet.service\n", Some("kubelet")),
            ("0::/../../system.slice/k3s-agent.service/kubelet\n", Some("k3s-agent")),
            ("1:name=systemd:/system.slice/k0sworker.service\n0::/\n", Some("k0sworker")),
            (
                "0::/system.slice/snap.microk8s.daemon-kubelite.service\n",
                Some("snap.microk8s.daemon-kubelite"),
            ),
            ("0::/podruntime/kubelet\n", None), // Talos
            ("0::/system.slice/docker-4711.scope\n", None),
            ("0::/user.slice/user@1000.service/k3s-rootless.service\n", None),
            ("0::/a;reboot.service\n", None),
        ] {
            assert_eq!(unit(cgroup).as_deref(), wanted, "{cgroup}");
        }
    }

    #[test]
    fn crictl_as_the_node_has_it() {
        let fake = Fake::new();
        let found = || crictl(&fake.host.root);
        assert_eq!(found(), None, "not seen");
        fake.file("usr/bin/ctr", "");
        assert_eq!(found().as_deref(), Some(""), "the node has none");
        fake.file("usr/local/bin/k3s", "");
        assert_eq!(found().as_deref(), Some("k3s crictl"));
    }
}
