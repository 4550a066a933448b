//! What a pod leaves on a real host: a network namespace kept by a mount, a cgroup, a volume.

use crate::{
    actors::{Actor, Role},
    stage::{POD, Pod, TestCgroup, with_cgroup2},
};
use coroner::sources::host::{HostView, survey};
use coroner_core::{
    ids::PodUid,
    input::{DaemonProcess, NetNamespace, PodCgroup, PodVolume},
};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

const NAME: &str = "cni-5afa9f0c-27be-5b4c-9fd8-31e9b8d5a0a1";
/// The pod of [`Pod::make`].
fn uid() -> PodUid {
    PodUid::new(POD.strip_prefix("pod").unwrap())
}

/// The network namespace of the thread that asks.
const OWN: &str = "/proc/thread-self/ns/net";

fn process(pid: u32) -> DaemonProcess {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let started = fields.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
    DaemonProcess { pid, started }
}

/// Gives the calling thread, and what it forks, mounts and a network of its own.
fn leave_the_host() {
    let left = unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET) };
    assert_eq!(left, 0, "unshare: {}", io::Error::last_os_error());
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
}

/// On a thread that has left the host: a pod's process, and then ever less of it.
fn lives_and_leaves(root: &Path, hierarchy: &Path, pod: &Pod) {
    leave_the_host();
    fs::create_dir_all(root.join("proc")).unwrap();
    mount_bind_recursive("/proc", root.join("proc")).unwrap();
    let kept = root.join("run/netns").join(NAME);
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "").unwrap();
    fs::write(kept.with_file_name("blue"), "").unwrap();
    mount_bind(OWN, &kept).unwrap();
    let volume = root
        .join(format!("kubelet/pods/{}/volumes/kubernetes.io~empty-dir/my data", uid().as_str()));
    fs::create_dir_all(&volume).unwrap();
    mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();

    let actor = Actor::start(&pod.container.path, Role::default());
    let pid = actor.pid;
    let host = HostView {
        root: root.to_owned(),
        proc: root.join("proc"),
        cgroup_root: hierarchy.to_owned(),
        kubelets: Vec::new(),
        socket: None,
        // Its mounts are those of this thread, and it shows that this is the host's /proc.
        runtime: Some(process(pid)),
        kubelet: None,
    };
    let namespace =
        |inode, processes| Some(vec![NetNamespace { name: NAME.into(), inode, processes }]);
    let inode = Some(fs::metadata(OWN).unwrap().ino());
    let cgroups = |tasks, pids| PodCgroup {
        pod: uid(),
        cgroup: pod.pod.id,
        path: format!("/{}", pod.pod.path.strip_prefix(hierarchy).unwrap().display()),
        tasks,
        pids,
    };
    let volume = PodVolume { pod: uid(), volume: "kubernetes.io~empty-dir/my data".into() };

    let found = survey(&host);
    assert_eq!(found.netns, namespace(inode, 1));
    assert!(found.pod_cgroups.unwrap().contains(&cgroups(1, vec![pid])));
    assert!(found.volumes.unwrap().contains(&volume));
    assert_eq!(found.shims.map(|shims| shims.len()), Some(0));

    drop(actor);
    // Nothing but the host itself tells now whose /proc this is.
    let host = HostView { runtime: Some(process(std::process::id())), ..host };
    let found = survey(&host);
    assert_eq!(found.netns, namespace(inode, 0), "kept by its mount alone");
    assert!(found.pod_cgroups.unwrap().contains(&cgroups(0, vec![])));
    assert!(!found.volumes.unwrap().contains(&volume), "mounted for this thread only");

    unmount(&kept, UnmountFlags::empty()).unwrap();
    assert_eq!(survey(&host).netns, namespace(None, 0), "an empty file is left");
    fs::remove_file(&kept).unwrap();
    assert_eq!(survey(&host).netns, Some(vec![]));
}

#[test]
fn what_a_pod_leaves_is_found_as_long_as_it_is_there() {
    with_cgroup2(|hierarchy| {
        // A hierarchy of its own: in it, no tree of pods is another test's.
        let own = TestCgroup::top(hierarchy, "left");
        let hierarchy = own.path.as_path();
        let pod = Pod::make(hierarchy);
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| lives_and_leaves(root.path(), hierarchy, &pod));
            thread.join().unwrap();
        });
    });
}
