//! Pods' cgroups, and what is in them.

use super::{Blind, Bounded, Host};
use crate::{
    cgroupfs,
    domain::{
        cgroup_path,
        ids::{CgroupId, PodUid},
        input::PodCgroup,
    },
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Processes of one pod that are told by number; the others are only counted.
const MAX_PIDS: usize = 16;
/// Pods are right below `kubepods`, or below a QoS class.
const LEVELS: usize = 2;

/// The cgroups of pods, whether they live or not.
pub(super) fn cgroups(host: &Host) -> Result<Bounded<PodCgroup>, Blind> {
    let root = &host.cgroup_root;
    fs::read_dir(root).map_err(|error| Blind::unread(root, &error))?;
    let mut found = Bounded::default();
    let roots = cgroupfs::kubepods_below(root);
    let mut open: Vec<(PathBuf, usize)> = roots.into_iter().map(|path| (path, 0)).collect();
    while let Some((folder, level)) = open.pop() {
        for child in cgroupfs::directories(&folder) {
            let path = format!("/{}", child.strip_prefix(root).unwrap_or(&child).display());
            match cgroup_path::parse(&path).pod {
                Some(pod) => found.extend(pod_cgroup(&child, path, pod)),
                None if level + 1 < LEVELS => open.push((child, level + 1)),
                None => {}
            }
        }
    }
    found.list.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// `None`: removed meanwhile.
fn pod_cgroup(folder: &Path, path: String, pod: PodUid) -> Option<PodCgroup> {
    let cgroup = CgroupId(cgroupfs::inode(folder)?);
    let mut tasks = 0_usize;
    let mut pids = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let here = cgroupfs::pids(&folder);
        tasks += here.len();
        // 0 is one that this PID namespace has no number for.
        pids.extend(here.into_iter().filter(|pid| *pid != 0));
        pids.sort_unstable();
        pids.truncate(MAX_PIDS);
        open.extend(cgroupfs::directories(&folder));
    }
    Some(PodCgroup { pod, cgroup, path, tasks: u32::try_from(tasks).unwrap_or(u32::MAX), pids })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::Fake;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
    const STATIC: &str = "bad66ee59a4de7f24d8f4a47d6e2e7a9";

    fn found(fake: &Fake) -> Vec<(String, String, u32, Vec<u32>)> {
        let found = cgroups(&fake.host).unwrap();
        found
            .list
            .into_iter()
            .map(|c| (c.pod.as_str().to_owned(), c.path, c.tasks, c.pids))
            .collect()
    }

    #[test]
    fn of_both_drivers_and_under_any_root() {
        let fake = Fake::new();
        let escaped = UID.replace('-', "_");
        let systemd = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice"
        );
        let guaranteed = format!("/k3s/kubepods/pod{STATIC}");
        let own = "/k3s/kubepods/besteffort/podmy-own".to_owned();
        for path in [&systemd, &guaranteed, &own] {
            fake.file(&format!("cgroup{path}/cgroup.procs"), "");
        }
        fake.file(&format!("cgroup{systemd}/cri-containerd-{ID}.scope/cgroup.procs"), "7\n0\n5\n");
        fake.file(&format!("cgroup{systemd}/cri-containerd-{ID}.scope/in/cgroup.procs"), "6\n");
        let many: String = (1..=40).map(|pid| format!("{pid}\n")).collect();
        fake.file(&format!("cgroup{own}/{ID}/cgroup.procs"), many);
        fake.file("cgroup/system.slice/podman.service/cgroup.procs", "9\n");
        fake.file("cgroup/kubepods.slice/cgroup.procs", "9\n");
        assert_eq!(
            found(&fake),
            [
                ("my-own".to_owned(), own, 40, (1..=16).collect()),
                (STATIC.to_owned(), guaranteed, 0, vec![]),
                (UID.to_owned(), systemd.clone(), 4, vec![5, 6, 7]),
            ]
        );
        let inode = cgroupfs::inode(&fake.host.cgroup_root.join(&systemd[1..]));
        let cgroup = cgroups(&fake.host).unwrap().list.pop().unwrap().cgroup;
        assert_eq!(Some(cgroup.0), inode);
    }

    #[test]
    fn a_hierarchy_that_is_not_there_proves_nothing() {
        let mut fake = Fake::new();
        assert_eq!(found(&fake), []);
        fake.host.cgroup_root = "/nonexistent".into();
        assert!(matches!(cgroups(&fake.host), Err(Blind::Unread { .. })));
    }
}
