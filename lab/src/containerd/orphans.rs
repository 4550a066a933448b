//! What a runtime has forgotten: shims whose bundle is gone, so that no daemon finds them again, and network namespaces
//! that only their mount keeps.

use super::{Containerd, cleanup, namespace::namespace};
use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::{
    mount::{UnmountFlags, mount_bind, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
};

/// Where the daemon keeps the bundles of pods' containers. There a daemon that starts finds its shims.
const BUNDLES: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// Where containerd keeps network namespaces.
const NETWORKS: &str = "/run/netns";

/// Shims without bundles, and their pod's cgroup.
#[derive(Debug)]
pub struct Orphans {
    /// Of their sandboxes and containers.
    pub ids: BTreeSet<String>,
    group: PathBuf,
}

impl Orphans {
    /// Kills the shims and all in their pod's cgroup, which goes too.
    pub fn end(&self) -> Result<()> {
        for entry in fs::read_dir("/proc")?.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = command.split(|byte| *byte == 0);
            let is_shim = words.next().is_some_and(|one| one.ends_with(b"containerd-shim-runc-v2"));
            // A sandbox's id is random and found nowhere else.
            let is_ours = words.any(|word| self.ids.iter().any(|id| id.as_bytes() == word));
            if let Some(pid) =
                pid.and_then(rustix::process::Pid::from_raw).filter(|_| is_shim && is_ours)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        cleanup::end_cgroup(&self.group)
    }
}

/// A network namespace that only its mount keeps.
#[derive(Debug)]
pub struct KeptNetwork {
    mounts: File,
    /// Of its file.
    pub name: String,
}

impl KeptNetwork {
    pub fn remove(&self) -> Result<()> {
        let path = Path::new(NETWORKS).join(&self.name);
        within(&self.mounts, || {
            unmount(&path, UnmountFlags::DETACH)?;
            fs::remove_file(&path)
        })
        .with_context(|| format!("cannot remove network namespace {}", self.name))
    }
}

impl Containerd {
    /// Removes the bundles of the sandboxes and containers of a pod with this cgroup. Done while the daemon is dead, the
    /// next one does not find their shims.
    pub fn lose_bundles(&self, group: &str) -> Result<Orphans> {
        let group = self.cgroup_root.join(group.trim_start_matches('/'));
        let name = group.file_name().unwrap_or_default().to_string_lossy();
        let mut ids = BTreeSet::new();
        // Not below the root directory as the daemon sees it: there are the containers' own files.
        for bundle in fs::read_dir(self.options.work.join(BUNDLES))? {
            let bundle = bundle?;
            let config = fs::read(bundle.path().join("config.json"))?;
            let config: serde_json::Value = serde_json::from_slice(&config)?;
            // A path, or under systemd `<slice>:cri-containerd:<id>`.
            let path = config["linux"]["cgroupsPath"].as_str().unwrap_or_default();
            if path.split(['/', ':']).any(|part| part == name) {
                ids.insert(bundle.file_name().to_string_lossy().into_owned());
                fs::remove_dir_all(bundle.path())?;
            }
        }
        ensure!(!ids.is_empty(), "{} has no bundle", group.display());
        Ok(Orphans { ids, group: group.clone() })
    }

    /// Makes a network namespace as the daemon does for a sandbox, but for none.
    pub fn keep_network(&self, name: String) -> Result<KeptNetwork> {
        let kept = KeptNetwork { mounts: namespace(self.holder.pid, "mnt")?, name };
        let path = Path::new(NETWORKS).join(&kept.name);
        within(&kept.mounts, || {
            fs::create_dir_all(NETWORKS)?;
            File::create_new(&path)?;
            // SAFETY: a network namespace is no matter of memory.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Ok(mount_bind("/proc/thread-self/ns/net", &path)?)
        })
        .with_context(|| format!("cannot make network namespace {}", kept.name))?;
        Ok(kept)
    }
}

/// Does something in that mount namespace, in a thread of its own, which cannot come back from there.
fn within(mounts: &File, work: impl FnOnce() -> io::Result<()> + Send) -> Result<()> {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            // A thread that shares its root directory with others may not change the namespace.
            // SAFETY: root and working directory are no matter of memory.
            unsafe { unshare_unsafe(UnshareFlags::FS) }?;
            move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
            work()
        });
        there.join().map_err(|_| anyhow!("the thread panicked"))?.map_err(Into::into)
    })
}
