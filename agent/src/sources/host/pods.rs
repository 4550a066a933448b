//! Pods' cgroups, and what is in them.
//!
//! Many kubelets may live on one machine: a kind, k3d or minikube node is a container, and the
//! cgroups of its pods are in the machine's hierarchy, or in what of it the agent sees, like any
//! other. Another kubelet's pods are never told: nobody here knows them, so that each would be an
//! orphan.
//!
//! Names do not tell whose a tree is, and neither does the kubelet's own cgroup: on an ordinary node
//! it is in `system.slice`, beside the pods and not above them. The processes do: a tree is ours if
//! one in it descends from a shim of our runtime, the nearest shim above it counting (a kind node
//! may be a container of the same runtime). This is decided by the pids in `cgroup.procs`, not by
//! the paths in /proc/PID/cgroup, which depend on the reader's cgroup namespace.
//!
//! If no tree is shown to be ours (no pod lives), the only one that nothing shows to be another's is
//! taken, if it is in no container; of several nothing is told. Before the first pod of a node, and
//! where the agent does not share the host's PID namespace, that is the rule which counts.

use super::{
    HostView, SurveyError,
    shims::{is_a_shim, ours},
    table::Table,
};
use crate::linux::cgroupfs;
use coroner_core::{
    ids::{CgroupId, PodUid},
    input::PodCgroup,
};
use std::{collections::BTreeSet, fs, path::Path};

/// Processes of one pod that are told by number; the others are only counted.
const MAX_PIDS: usize = 16;
/// So many parents are gone through on the way to a shim.
const MAX_ANCESTORS: usize = 64;

/// The cgroups of this kubelet's pods, whether they live or not.
pub(super) fn cgroups(host: &HostView, table: &Table) -> Result<Vec<PodCgroup>, SurveyError> {
    let root = &host.cgroup_root;
    fs::read_dir(root).map_err(|error| SurveyError::unread(root, &error))?;
    let shims = ours(host, table)?.into_iter().map(|own| own.shim.process.pid).collect();
    let trees = cgroupfs::kubepods_below(root)
        .into_iter()
        .map(|top| Tree::read(root, &top, |pid| whose(table, &shims, pid)));
    let (ours, others): (Vec<_>, Vec<_>) = trees.partition(|tree| tree.has_ours);
    let mut found = Vec::new();
    if ours.is_empty() {
        let mut unclaimed = others
            .into_iter()
            .filter(|tree| !tree.has_anothers && !tree.pods.is_empty())
            .collect::<Vec<_>>();
        match (unclaimed.pop(), unclaimed.len()) {
            (None, _) => {}
            (Some(tree), 0) if !is_in_a_container(&tree.path) => found = tree.pods,
            (Some(_), more) => return Err(SurveyError::NobodysPods(more + 1)),
        }
    }
    for tree in ours {
        found.extend(tree.pods);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Which runtime's shim a process descends from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ownership {
    Ours,
    Anothers,
    Nobodys,
}

fn whose(table: &Table, shims: &BTreeSet<u32>, pid: u32) -> Ownership {
    let mut at = pid;
    for _ in 0..MAX_ANCESTORS {
        let Some(process) = table.get(at) else { break };
        if shims.contains(&at) {
            return Ownership::Ours;
        }
        if is_a_shim(&process.comm) {
            return Ownership::Anothers;
        }
        at = process.parent;
    }
    Ownership::Nobodys
}

/// One kubelet's.
#[derive(Default)]
struct Tree {
    /// Of its top, from the hierarchy's root.
    path: String,
    pods: Vec<PodCgroup>,
    has_ours: bool,
    has_anothers: bool,
}

impl Tree {
    fn read(root: &Path, top: &Path, whose: impl Fn(u32) -> Ownership) -> Self {
        let mut tree = Self { path: cgroupfs::path_below(root, top), ..Self::default() };
        for (folder, pod) in cgroupfs::pods_below(root, top) {
            let path = cgroupfs::path_below(root, &folder);
            let pod = pod_cgroup(&folder, path, pod, |pid| match whose(pid) {
                Ownership::Ours => tree.has_ours = true,
                Ownership::Anothers => tree.has_anothers = true,
                Ownership::Nobodys => {}
            });
            tree.pods.extend(pod);
        }
        tree
    }
}

/// A name on the way is what a runtime or a manager of machines gives a container.
fn is_in_a_container(path: &str) -> bool {
    path.split('/').any(|name| {
        let stem = name.strip_suffix(".scope").unwrap_or(name);
        let id = stem.rsplit_once('-').map_or(stem, |(_, id)| id);
        let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
        is_id || name.starts_with("lxc.payload") || name == "machine.slice"
    })
}

/// `None`: removed meanwhile.
fn pod_cgroup(
    folder: &Path,
    path: String,
    pod: PodUid,
    mut visit: impl FnMut(u32),
) -> Option<PodCgroup> {
    let cgroup = CgroupId(cgroupfs::inode(folder)?);
    let mut tasks = 0_usize;
    let mut pids = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let here = cgroupfs::pids(&folder);
        tasks += here.len();
        // 0 is one that this PID namespace has no number for.
        for pid in here.into_iter().filter(|pid| *pid != 0) {
            visit(pid);
            pids.push(pid);
        }
        pids.sort_unstable();
        pids.truncate(MAX_PIDS);
        open.extend(cgroupfs::directories(&folder));
    }
    Some(PodCgroup { pod, cgroup, path, tasks: u32::try_from(tasks).unwrap_or(u32::MAX), pids })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
    const STATIC: &str = "bad66ee59a4de7f24d8f4a47d6e2e7a9";

    /// A kind node's container, as docker names it with the systemd driver.
    const NODE: &str = "/system.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef\
                        0123456789abcdef.scope/kubelet.slice/kubelet-kubepods.slice";

    /// All in these trees is ours.
    fn host() -> Fake {
        let mut fake = Fake::new();
        fake.kthreadd();
        fake.socket("/run/ours.sock");
        fake.host.runtime = Some(fake.process(100, "containerd", 1, 1));
        fake.namespace(100, "mnt", 1);
        fake
    }

    /// A shim of the runtime in this mount namespace, and a process of it in a pod's cgroup.
    fn living_pod(fake: &Fake, shim: u32, mount: u64, parent: u32, cgroup: &str) {
        fake.process(shim, "containerd-shim", parent, 1);
        fake.namespace(shim, "mnt", mount);
        let words = ["shim", "-namespace", "k8s.io", "-id", ID, "-address", "/run/ours.sock"];
        fake.file(&format!("proc/{shim}/cmdline"), words.join("\0"));
        fake.process(shim + 1, "pause", shim, 1);
        // What it runs is no child of the shim.
        fake.process(shim + 2, "app", shim + 1, 1);
        fake.file(&format!("cgroup{cgroup}/{ID}/cgroup.procs"), format!("{}\n", shim + 2));
    }

    fn look(fake: &Fake) -> Result<Vec<PodCgroup>, SurveyError> {
        cgroups(&fake.host, &Table::read(&fake.host).unwrap())
    }

    fn paths(fake: &Fake) -> Vec<String> {
        look(fake).unwrap().into_iter().map(|pod| pod.path).collect()
    }

    fn found(fake: &Fake) -> Vec<(String, String, u32, Vec<u32>)> {
        let found = look(fake).unwrap();
        found.into_iter().map(|c| (c.pod.as_str().to_owned(), c.path, c.tasks, c.pids)).collect()
    }

    #[test]
    fn of_both_drivers_and_under_any_root() {
        let fake = host();
        living_pod(&fake, 51, 1, 1, "/elsewhere");
        for pid in [5, 40] {
            fake.process(pid, "app", 51, 1);
        }
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
        let cgroup = look(&fake).unwrap().pop().unwrap().cgroup;
        assert_eq!(Some(cgroup.0), inode);
    }

    /// Shims with their mount namespace, parent and a pod's cgroup; other cgroups of pods; and which are found.
    #[test]
    fn another_kubelets_pods_are_not_told() {
        let ours = format!("/kubepods/burstable/pod{UID}");
        let in_node = format!("{NODE}/kubelet-kubepods-pod{STATIC}.slice");
        let left_there = format!("{NODE}/kubelet-kubepods-podleft.slice");
        let sibling = in_node.replace("docker-01", "docker-ff");
        type Case<'a> = (&'a [(u32, u64, u32, &'a str)], &'a [&'a str], &'a [&'a str]);
        let cases: [Case<'_>; 3] = [
            // An agent of the machine, with nodes in containers beside it.
            (
                &[(10, 1, 1, &ours), (20, 2, 1, &in_node)],
                &[&left_there, "/kubepods/podleft"],
                &[&ours, "/kubepods/podleft"],
            ),
            // A node that is a container of our own runtime: the nearest shim counts.
            (&[(10, 1, 1, "/default"), (20, 2, 11, &in_node)], &[], &[]),
            // An agent in a kind node that sees the machine's whole hierarchy.
            (&[(10, 1, 1, &in_node)], &[&sibling, "/kubepods/podx"], &[&in_node]),
        ];
        for (living, others, expected) in cases {
            let fake = host();
            for (shim, mount, parent, cgroup) in living {
                living_pod(&fake, *shim, *mount, *parent, cgroup);
            }
            for cgroup in others {
                // The numbers of processes outside are 0.
                fake.file(&format!("cgroup{cgroup}/cgroup.procs"), "0\n");
            }
            assert_eq!(paths(&fake), expected);
        }
    }

    /// Before the first pod, and after the last.
    #[test]
    fn without_a_living_pod_only_a_tree_beyond_doubt_is_told() {
        let fake = host();
        let orphan = format!("/coroner-lab-1/kubepods/besteffort/pod{UID}");
        fake.process(9, "sleep", 1, 1);
        fake.file(&format!("cgroup{orphan}/cgroup.procs"), "9\n");
        fake.file("cgroup/kubepods.slice/cgroup.procs", "");
        assert_eq!(paths(&fake), [orphan.as_str()], "and a tree without any pod");
        living_pod(&fake, 20, 2, 1, &format!("{NODE}/kubelet-kubepods-pod{STATIC}.slice"));
        assert_eq!(paths(&fake), [orphan.as_str()], "and another's");
        fake.file("cgroup/k3s/kubepods/podx/cgroup.procs", "");
        assert!(matches!(look(&fake), Err(SurveyError::NobodysPods(2))));
        living_pod(&fake, 10, 1, 1, "/k3s/kubepods/podx");
        assert_eq!(paths(&fake), ["/k3s/kubepods/podx"]);
    }

    #[test]
    fn a_tree_in_a_container_needs_proof() {
        let libpod = format!("/machine.slice/libpod-{ID}.scope/container/kubepods");
        let lxc = "/lxc.payload.node/kubepods".to_owned();
        for top in [NODE.to_owned(), format!("/docker/{ID}/kubepods"), libpod, lxc] {
            let fake = host();
            fake.file(&format!("cgroup{top}/pod{UID}/cgroup.procs"), "");
            assert!(matches!(look(&fake), Err(SurveyError::NobodysPods(1))), "{top}");
            living_pod(&fake, 10, 1, 1, &format!("{top}/pod{STATIC}"));
            assert_eq!(paths(&fake).len(), 2, "{top}");
        }
        for top in ["/kubepods", "/kubelet.slice/kubelet-kubepods.slice", "/k3s/kubepods"] {
            assert!(!is_in_a_container(top), "{top}");
        }
    }
}
