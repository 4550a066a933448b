//! The host's mounts: volumes below pods' directories, and the network namespaces that mounts keep.

use super::{HostView, SurveyError, table::namespace_inode};
use crate::linux::mountinfo::mounts;
use coroner_core::{ids::PodUid, input::PodVolume};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The mounts of the namespace in which the kubelet mounts volumes.
///
/// That is the kubelet's own (which OpenShift hides from the rest of the host, and Talos puts into
/// a container); while it does not run, the runtime's; and otherwise the one of the host's first
/// process. An agent's own namespace comes last: it shows what was mounted when the agent began.
fn read(host: &HostView) -> Result<Vec<u8>, SurveyError> {
    let daemons = [host.kubelet, host.runtime].into_iter().flatten();
    let whose = daemons.map(|daemon| daemon.pid.to_string()).chain(["1".into(), "self".into()]);
    let mut failure = None;
    for pid in whose {
        let path = host.proc.join(pid).join("mountinfo");
        match fs::read(&path) {
            // Empty: a process that has ended and is not reaped.
            Ok(text) if !text.is_empty() => return Ok(text),
            Ok(_) => {}
            Err(error) => {
                failure.get_or_insert_with(|| SurveyError::unread(&path, &error));
            }
        }
    }
    Err(failure.unwrap_or(SurveyError::NoMounts))
}

/// Every mount at a pod's volume, whether the pod lives or not.
pub(super) fn volumes(host: &HostView) -> Result<Vec<PodVolume>, SurveyError> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for volume in mounts(&read(host)?).filter_map(|mount| volume(&mount.at.to_string_lossy())) {
        if known.insert((volume.pod.clone(), volume.volume.clone())) {
            found.push(volume);
        }
    }
    Ok(found)
}

/// The inodes of the network namespaces that are mounted, by mount point.
pub(super) fn net_namespaces(host: &HostView) -> Result<BTreeMap<PathBuf, u64>, SurveyError> {
    let network = |root: &Path| {
        let root = root.to_str().filter(|root| root.starts_with("net:["))?;
        namespace_inode(root)
    };
    let all = read(host)?;
    Ok(mounts(&all).filter_map(|mount| Some((mount.at, network(&mount.root)?))).collect())
}

/// `…/pods/UID/volumes/PLUGIN/NAME`, or something below. A plugin's name always has a `~`, which is
/// how the kubelet writes the slash in `kubernetes.io/nfs` (`pkg/volume/plugins.go`).
fn volume(mount_point: &str) -> Option<PodVolume> {
    let parts: Vec<&str> = mount_point.split('/').collect();
    parts.windows(5).find_map(|window| match window {
        ["pods", pod, "volumes", plugin, name]
            if plugin.contains('~') && !pod.is_empty() && !name.is_empty() =>
        {
            Some(PodVolume { pod: PodUid::new(pod), volume: format!("{plugin}/{name}") })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::host::fake::Fake;
    use coroner_core::input::DaemonProcess;

    const POD: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:40 / /var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~projected/token rw - tmpfs tmpfs rw
41 22 0:41 /x /var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~nfs/my\\040data rw - nfs4 nas:/x rw
42 22 0:41 / /var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~nfs/my\\040data rw - nfs4 nas:/ rw
43 22 0:42 / /data/kubelet/pods/5d41402abc4b2a76b9719d911017c592/volumes/kubernetes.io~csi/pv-1/mount rw - ext4 /dev/sdb rw
44 22 0:43 / /var/lib/kubelet/pods/{pod}/volume-subpaths/data/app/0 rw - nfs4 nas:/ rw
45 22 0:44 / /home/pods/me/volumes/holiday/photos rw - ext4 /dev/sdc rw
46 22 0:45 / /var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~nfs rw - nfs4 nas:/ rw
50 23 0:4 net:[4026532567] /run/netns/cni-1 rw shared:9 - nsfs nsfs rw
51 23 0:4 mnt:[4026532568] /run/mntns/x rw - nsfs nsfs rw
52 23 0:4 net:[x] /run/netns/cni-2 rw - nsfs nsfs rw

garbage
";

    #[test]
    fn volumes_of_pods_and_namespaces_that_are_mounted() {
        let fake = Fake::new();
        fake.file("proc/1/mountinfo", MOUNTS.replace("{pod}", POD));
        let found = volumes(&fake.host).unwrap();
        let all: Vec<_> = found.iter().map(|v| (v.pod.as_str(), v.volume.as_str())).collect();
        assert_eq!(
            all,
            [
                (POD, "kubernetes.io~projected/token"),
                (POD, "kubernetes.io~nfs/my data"),
                ("5d41402abc4b2a76b9719d911017c592", "kubernetes.io~csi/pv-1"),
            ]
        );
        let expected = BTreeMap::from([(PathBuf::from("/run/netns/cni-1"), 4_026_532_567)]);
        assert_eq!(net_namespaces(&fake.host).unwrap(), expected);
    }

    #[test]
    fn whose_mounts_count() {
        let mut fake = Fake::new();
        assert!(matches!(read(&fake.host), Err(SurveyError::Unread { .. })));
        for pid in ["self", "1", "7", "9"] {
            fake.file(&format!("proc/{pid}/mountinfo"), format!("of {pid}"));
            if pid == "7" {
                fake.host.runtime = Some(DaemonProcess { pid: 7, started: 70 });
            }
            if pid == "9" {
                fake.host.kubelet = Some(DaemonProcess { pid: 9, started: 90 });
            }
            assert_eq!(read(&fake.host).unwrap(), format!("of {pid}").as_bytes());
        }
        fake.file("proc/9/mountinfo", "");
        assert_eq!(read(&fake.host).unwrap(), b"of 7");
    }
}
