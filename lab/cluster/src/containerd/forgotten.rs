//! What a runtime has forgotten: shims whose bundle is gone, so that no daemon finds them again, and
//! network namespaces that nothing keeps but their mount.

use super::{Containerd, leftovers, namespace::NodeNamespaces};
use anyhow::{Context, Result, anyhow, bail};
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

/// Where the daemon keeps the bundles of pods' containers (its `runtime/v2`, namespace `k8s.io`).
/// From there a daemon that starts learns which shims there are.
const BUNDLES: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// Where containerd keeps network namespaces (`pkg/netns`).
const NETWORKS: &str = "/run/netns";

/// Shims without bundles, and what runs under them.
#[derive(Debug)]
pub struct Orphans {
    ids: BTreeSet<String>,
    groups: BTreeSet<PathBuf>,
}

impl Orphans {
    /// The ids of their sandboxes and containers.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().map(String::as_str)
    }

    /// Kills the shims and all in their pod's cgroup, which goes too. What has gone already is fine.
    pub fn end(&self) -> Result<()> {
        leftovers::kill_all(|pid| self.is_shim(pid))?;
        self.groups.iter().try_for_each(|group| leftovers::end_cgroup(group))
    }

    fn is_shim(&self, pid: i32) -> bool {
        // A sandbox's id is random and found nowhere else.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0);
        let program = words.next().unwrap_or_default();
        let is_ours = |word: &[u8]| self.ids().any(|id| id.as_bytes() == word);
        program.ends_with(b"containerd-shim-runc-v2") && words.any(is_ours)
    }
}

/// A network namespace that is kept by its mount alone.
#[derive(Debug)]
pub struct KeptNetwork {
    mounts: File,
    name: String,
}

impl KeptNetwork {
    /// Of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes it. If it has gone already, that is fine.
    pub fn remove(&self) -> Result<()> {
        let path = Path::new(NETWORKS).join(&self.name);
        within(&self.mounts, || {
            match unmount(&path, UnmountFlags::DETACH) {
                // Not mounted, or not there.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
        .with_context(|| format!("cannot remove network namespace {}", self.name))
    }
}

impl Containerd {
    /// Removes the bundles of the sandboxes and containers of a pod, whose cgroup that is. Done while the daemon is
    /// dead, the next one does not find their shims.
    pub fn lose_bundles(&self, group: &str) -> Result<Orphans> {
        let name = group.rsplit('/').next();
        let mut lost = Orphans { ids: BTreeSet::new(), groups: BTreeSet::new() };
        // Not below the root directory as the daemon sees it: there are the containers' own files.
        let bundles = self.options.work.join(BUNDLES);
        let unread = || format!("cannot read {}", bundles.display());
        for bundle in fs::read_dir(&bundles).with_context(unread)? {
            let bundle = bundle.with_context(unread)?;
            let config = bundle.path().join("config.json");
            let text =
                fs::read(&config).with_context(|| format!("cannot read {}", config.display()))?;
            let spec: serde_json::Value = serde_json::from_slice(&text)
                .with_context(|| format!("{} is no JSON", config.display()))?;
            // A path, or under systemd `<slice>:cri-containerd:<id>`.
            let path = spec["linux"]["cgroupsPath"].as_str().unwrap_or_default();
            if !path.split(['/', ':']).any(|part| Some(part) == name) {
                continue;
            }
            lost.groups.insert(self.cgroup_root.join(group.trim_start_matches('/')));
            lost.ids.insert(bundle.file_name().to_string_lossy().into_owned());
            fs::remove_dir_all(bundle.path())
                .with_context(|| format!("cannot remove {}", bundle.path().display()))?;
        }
        if lost.ids.is_empty() {
            bail!("{group} has no bundle in {}", bundles.display());
        }
        Ok(lost)
    }

    /// Makes a network namespace as the daemon does for a sandbox, but for none.
    pub fn keep_network(&self, name: String) -> Result<KeptNetwork> {
        let kept = KeptNetwork { mounts: NodeNamespaces::of(self.holder.pid)?.mounts, name };
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

/// Does something in that mount namespace, in a thread of its own: it cannot come back from there.
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
