//! A container's volume mounts, as far as they are of hostPath and emptyDir volumes: the lab has no
//! others. Pure, but for [`make`].

use super::PodId;
use coroner_cri_api::v1::{Mount, MountPropagation};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Where the pod's emptyDir of this name is: below its logs, for what holds them is removed with the
/// lab.
fn empty_dir(id: &PodId, root: &Path, name: &str) -> PathBuf {
    id.log_directory(root).join("volumes").join(name)
}

/// Makes the pod's emptyDirs.
pub(in crate::kubelet) fn make(pod: &Pod, id: &PodId, root: &Path) -> io::Result<()> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes.filter(|volume| volume.empty_dir.is_some()) {
        let directory = empty_dir(id, root, &volume.name);
        fs::create_dir_all(&directory)?;
        // Any user's (volume/emptydir/empty_dir.go, `perm`).
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    }
    Ok(())
}

/// What the container's mounts are to the runtime.
pub(super) fn mounts(pod: &Pod, id: &PodId, container: &Container, root: &Path) -> Vec<Mount> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources: HashMap<&str, String> = volumes
        .filter_map(|volume| {
            let path = match (&volume.host_path, &volume.empty_dir) {
                (Some(host), _) => host.path.clone(),
                (None, Some(_)) => empty_dir(id, root, &volume.name).display().to_string(),
                (None, None) => return None,
            };
            Some((volume.name.as_str(), path))
        })
        .collect();
    container
        .volume_mounts
        .iter()
        .flatten()
        .filter_map(|mount| {
            Some(Mount {
                container_path: mount.mount_path.clone(),
                host_path: sources.get(mount.name.as_str())?.clone(),
                readonly: mount.read_only == Some(true),
                propagation: propagation(mount.mount_propagation.as_deref()).into(),
                ..Default::default()
            })
        })
        .collect()
}

/// kubelet_pods.go, `translateMountPropagation`.
fn propagation(mode: Option<&str>) -> MountPropagation {
    match mode {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{
        EmptyDirVolumeSource, HostPathVolumeSource, PodSpec, Volume, VolumeMount,
    };

    #[test]
    fn paths_of_the_host_and_directories_of_its_own_are_mounted() {
        let volume = |name: &str, path: Option<&str>| Volume {
            name: name.into(),
            host_path: path
                .map(|path| HostPathVolumeSource { path: path.into(), ..Default::default() }),
            ..Default::default()
        };
        let own = Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..volume("e", None) };
        let mount = |name: &str| VolumeMount {
            name: name.into(),
            mount_path: format!("/{name}"),
            read_only: Some(name == "b"),
            mount_propagation: (name == "b").then(|| "HostToContainer".into()),
            ..Default::default()
        };
        let container = Container {
            volume_mounts: Some(["b", "c", "d", "e"].map(mount).to_vec()),
            ..Default::default()
        };
        let on_host = [volume("a", Some("/x")), volume("b", Some("/y")), volume("c", None), own];
        let spec = PodSpec { volumes: Some(on_host.to_vec()), ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let id = PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let root = tempfile::tempdir().unwrap();
        let mounts = mounts(&pod, &id, &container, root.path());
        assert_eq!(mounts.len(), 2, "{mounts:?}");
        assert_eq!((mounts[0].host_path.as_str(), mounts[0].container_path.as_str()), ("/y", "/b"));
        assert!(mounts[0].readonly && !mounts[1].readonly);
        assert_eq!(mounts[0].propagation(), MountPropagation::PropagationHostToContainer);
        assert_eq!(mounts[1].propagation(), MountPropagation::PropagationPrivate);
        make(&pod, &id, root.path()).unwrap();
        let made = fs::metadata(&mounts[1].host_path).unwrap();
        assert!(made.is_dir() && made.permissions().mode() & 0o777 == 0o777);
    }
}
