//! The cgroups that a kubelet makes itself: one for each pod, and a limit on memory.

use crate::{
    containerd::{Systemctl, cleanup::remove_groups, hand_memory_down, mount_point},
    wait,
};
use anyhow::{Context as _, Result, bail};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Twice as many records of 32 bytes as there is room for, with 20 ms between two looks.
const FREEZES: usize = 128;

/// The lab's own part of the hierarchy that runc works on.
#[derive(Clone, Debug)]
pub struct Cgroups {
    /// Mount point of the cgroup2 hierarchy, as this process sees it.
    root: PathBuf,
    /// `/coroner-lab-3f2a91c0`: everything of the lab is below.
    base: String,
    memory: Memory,
    /// Makes the cgroups, if that is the driver.
    systemd: Option<Systemctl>,
}

/// Which controller can limit memory here.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Memory {
    /// cgroup2's own.
    Unified,
    /// The v1 hierarchy that is mounted there: the process is moved into a limited group of it, and stays where runc put
    /// it in the unified one.
    Beside(PathBuf),
    Absent,
}

impl Cgroups {
    /// `base` is the lab's group in the hierarchy mounted at `root`, and the root of what `systemd` manages.
    pub fn new(root: &Path, base: &str, systemd: Option<Systemctl>) -> Self {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let memory = match mount_point("cgroup", "memory") {
            _ if controllers.split_whitespace().any(|name| name == "memory") => Memory::Unified,
            Some(at) => Memory::Beside(at),
            None => Memory::Absent,
        };
        Self { root: root.into(), base: base.into(), memory, systemd }
    }

    /// Whether memory can be limited at all.
    pub fn can_limit_memory(&self) -> bool {
        self.memory != Memory::Absent
    }

    /// The pod's cgroup: `/coroner-lab-…/kubepods/besteffort/pod<uid>`, or the slices of that name, without dashes in
    /// the UID (cgroup_manager_linux.go, `escapeSystemdCgroupName`).
    pub fn pod(&self, qos: &str, uid: &str) -> String {
        let base = &self.base;
        match self.systemd {
            None => format!("{base}/kubepods/{qos}/pod{uid}"),
            Some(_) => {
                let uid = uid.replace('-', "_");
                let group = format!("{base}/kubepods.slice/kubepods-{qos}.slice");
                format!("{group}/kubepods-{qos}-pod{uid}.slice")
            }
        }
    }

    /// The pod's cgroup as the runtime sees it: its hierarchy begins where systemd's does.
    pub fn as_runtime_sees<'a>(&self, pod: &'a str) -> &'a str {
        let seen = self.systemd.as_ref().and_then(|_| pod.strip_prefix(&self.base));
        seen.unwrap_or(pod)
    }

    /// Makes a pod's cgroup and those above it.
    pub async fn create(&self, path: &str) -> Result<()> {
        if let Some(systemd) = &self.systemd {
            return systemd.start(slice(path)).await;
        }
        let mut directory = self.root.clone();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if self.memory == Memory::Unified {
                hand_memory_down(&directory);
            }
            directory.push(name);
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error)
                        .with_context(|| format!("cannot make cgroup {}", directory.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a pod's cgroup once its last task has left, and what a runtime that was killed has left in it (runc's
    /// libcontainer, `RemovePath`).
    pub async fn remove(&self, path: &str) -> Result<()> {
        let directory = self.directory(path);
        if let Some(systemd) = &self.systemd {
            let events = directory.join("cgroup.events");
            wait::until(format!("nothing runs in cgroup {path}"), || {
                let events = fs::read_to_string(&events).unwrap_or_default();
                Ok((!events.lines().any(|line| line == "populated 1")).then_some(()))
            })
            .await?;
            systemd.stop(slice(path)).await?;
        }
        remove_when_empty(&directory).await
    }

    fn directory(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The directory of a container's cgroup; of systemd's, containerd has runc choose the name.
    pub fn container(&self, pod: &str, container: &str) -> PathBuf {
        let pod = self.directory(pod);
        match self.systemd {
            None => pod.join(container),
            Some(_) => pod.join(format!("cri-containerd-{container}.scope")),
        }
    }

    /// The processes of a container, by their ids here.
    pub fn processes(&self, pod: &str, container: &str) -> Result<Vec<i32>> {
        let file = self.container(pod, container).join("cgroup.procs");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Whether a container of the pod has more processes than its main one: one is in it by exec.
    pub fn has_second_process(&self, pod: &str) -> bool {
        fs::read_dir(self.directory(pod)).into_iter().flatten().flatten().any(|container| {
            let processes = fs::read_to_string(container.path().join("cgroup.procs"));
            processes.is_ok_and(|processes| processes.lines().count() > 1)
        })
    }

    /// Freezes and thaws a container so often that the kernel's records of it are more than a ring of 4 KiB holds.
    pub async fn freeze_often(&self, pod: &str, container: &str) -> Result<()> {
        let group = self.container(pod, container);
        for number in 0..2 * FREEZES {
            let frozen = (number + 1) % 2;
            write(&group.join("cgroup.freeze"), frozen)?;
            let line = format!("frozen {frozen}");
            wait::until(&line, || {
                let events = fs::read_to_string(group.join("cgroup.events"))?;
                Ok(events.lines().any(|one| one == line).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Bounds the memory of a running container, its main process being `pid`, to `bytes`.
    pub fn limit_memory(&self, pod: &str, container: &str, pid: i32, bytes: u64) -> Result<()> {
        match &self.memory {
            Memory::Unified => {
                let group = self.container(pod, container);
                write(&group.join("memory.max"), bytes)?;
                optional(&group.join("memory.swap.max"), 0)
            }
            Memory::Beside(root) => {
                let group = self.beside(root, container);
                fs::create_dir_all(&group)
                    .with_context(|| format!("cannot make cgroup {}", group.display()))?;
                write(&group.join("memory.limit_in_bytes"), bytes)?;
                optional(&group.join("memory.memsw.limit_in_bytes"), bytes)?;
                write(&group.join("cgroup.procs"), pid)
            }
            Memory::Absent => {
                bail!("this machine has no memory controller: no container can be limited")
            }
        }
    }

    /// Takes away what [`Self::limit_memory`] made for a container.
    pub async fn unlimit_memory(&self, container: &str) -> Result<()> {
        match &self.memory {
            Memory::Beside(root) => remove_when_empty(&self.beside(root, container)).await,
            _ => Ok(()),
        }
    }

    fn beside(&self, root: &Path, container: &str) -> PathBuf {
        root.join(self.base.trim_start_matches('/')).join(container)
    }
}

/// A quantity of memory such as `32Mi`, in bytes.
pub(super) fn bytes(quantity: &str) -> Option<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    units.into_iter().find_map(|(unit, shift)| {
        quantity.strip_suffix(unit)?.parse::<u64>().ok()?.checked_shl(shift)
    })
}

pub(super) fn write(file: &Path, value: impl ToString) -> Result<()> {
    fs::write(file, value.to_string()).with_context(|| format!("cannot write {}", file.display()))
}

/// Writes a file that some kernels do not have (swap accounting).
fn optional(file: &Path, value: impl ToString) -> Result<()> {
    if file.exists() { write(file, value) } else { Ok(()) }
}

/// The unit of a slice's cgroup.
fn slice(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

async fn remove_when_empty(directory: &Path) -> Result<()> {
    let what = format!("cgroup {} is not in use any more", directory.display());
    wait::until(what, || match remove_groups(directory) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        other => other.map(Some).with_context(|| format!("cannot remove {}", directory.display())),
    })
    .await
}
