//! The cgroups that a kubelet makes itself: one for each pod, and a limit on memory.

use crate::wait;
use anyhow::{Context as _, bail};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where the v1 memory controller is mounted on a hybrid machine.
const V1_MEMORY: &str = "/sys/fs/cgroup/memory";

/// The lab's own part of the hierarchy that runc works on.
#[derive(Clone, Debug)]
pub struct Cgroups {
    /// Mount point of the cgroup2 hierarchy, as this process sees it.
    root: PathBuf,
    /// `/coroner-lab`: everything of the lab is below.
    base: String,
    memory: Memory,
}

/// Which controller can limit memory here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    /// cgroup2's own.
    Unified,
    /// The v1 hierarchy beside it: the process is moved into a limited group there, and stays
    /// where runc put it in the unified one.
    Beside,
    /// None.
    Absent,
}

impl Cgroups {
    /// Looks at what the hierarchy mounted at `root` offers. `base` is the lab's group in it.
    pub fn probe(root: &Path, base: &str) -> Self {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let memory = if controllers.split_whitespace().any(|name| name == "memory") {
            Memory::Unified
        } else if Path::new(V1_MEMORY).join("memory.limit_in_bytes").exists() {
            Memory::Beside
        } else {
            Memory::Absent
        };
        Self { root: root.into(), base: base.into(), memory }
    }

    /// Whether memory can be limited at all.
    pub fn can_limit_memory(&self) -> bool {
        self.memory != Memory::Absent
    }

    /// The pod's cgroup, as the runtime is told: `/coroner-lab/kubepods/besteffort/pod<uid>`.
    pub fn pod(&self, qos: &str, uid: &str) -> String {
        format!("{}/kubepods/{qos}/pod{uid}", self.base)
    }

    /// The UIDs of the pods that have a cgroup now.
    pub fn pods(&self) -> Vec<String> {
        let kubepods = self.root.join(self.base.trim_start_matches('/')).join("kubepods");
        let within = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
        within(kubepods)
            .flat_map(|qos| within(qos.path()))
            .filter_map(|pod| Some(pod.file_name().to_str()?.strip_prefix("pod")?.to_owned()))
            .collect()
    }

    /// Makes a cgroup and those above it.
    pub fn create(&self, path: &str) -> anyhow::Result<()> {
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

    /// Removes a pod's cgroup once its last task has left (the kernel may take a moment), and first
    /// what a runtime that was killed has left in it, as the kubelet does (runc's libcontainer,
    /// `RemovePath`).
    pub async fn remove(&self, path: &str) -> anyhow::Result<()> {
        for cgroup in from_the_leaves(&self.root.join(path.trim_start_matches('/'))) {
            remove_when_empty(&cgroup).await?;
        }
        Ok(())
    }

    /// The processes of a container, by their ids here.
    pub fn processes(&self, pod: &str, container: &str) -> anyhow::Result<Vec<i32>> {
        let file = self.group(pod, container).join("cgroup.procs");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// The directory of a process' cgroup.
    pub fn of_process(&self, pid: i32) -> anyhow::Result<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
        Ok(self.root.join(path.context("it is in no cgroup of version 2")?))
    }

    /// Whether a container of the pod has more processes than its main one: one is in it by exec.
    pub fn has_second_process(&self, pod: &str) -> bool {
        let containers = fs::read_dir(self.root.join(pod.trim_start_matches('/')));
        containers.into_iter().flatten().flatten().any(|container| {
            let processes = fs::read_to_string(container.path().join("cgroup.procs"));
            processes.is_ok_and(|processes| processes.lines().count() > 1)
        })
    }

    /// Moves a process into a pod's own cgroup.
    pub fn add(&self, pod: &str, pid: u32) -> anyhow::Result<()> {
        write(&self.root.join(pod.trim_start_matches('/')).join("cgroup.procs"), pid)
    }

    /// Freezes a container: from now on it runs no instruction of its own.
    pub fn freeze(&self, pod: &str, container: &str) -> anyhow::Result<()> {
        write(&self.group(pod, container).join("cgroup.freeze"), 1)
    }

    fn group(&self, pod: &str, container: &str) -> PathBuf {
        self.root.join(pod.trim_start_matches('/')).join(container)
    }

    /// Bounds the memory of a running container, its main process being `pid`, to `bytes`.
    pub fn limit_memory(
        &self,
        pod: &str,
        container: &str,
        pid: i32,
        bytes: u64,
    ) -> anyhow::Result<()> {
        match self.memory {
            Memory::Unified => {
                let group = self.group(pod, container);
                write(&group.join("memory.max"), bytes)?;
                optional(&group.join("memory.swap.max"), 0)
            }
            Memory::Beside => {
                let group = self.beside(container);
                fs::create_dir_all(&group)
                    .with_context(|| format!("cannot make cgroup {}", group.display()))?;
                write(&group.join("memory.limit_in_bytes"), bytes)?;
                optional(&group.join("memory.memsw.limit_in_bytes"), bytes)?;
                write(&group.join("cgroup.procs"), pid)
            }
            Memory::Absent => bail!(
                "this machine has no memory controller, neither on cgroup2 nor at {V1_MEMORY}: \
                 a container cannot be limited"
            ),
        }
    }

    /// Takes away what [`Self::limit_memory`] made for a container.
    pub async fn unlimit_memory(&self, container: &str) -> anyhow::Result<()> {
        match self.memory {
            Memory::Beside => remove_when_empty(&self.beside(container)).await,
            _ => Ok(()),
        }
    }

    fn beside(&self, container: &str) -> PathBuf {
        Path::new(V1_MEMORY).join(self.base.trim_start_matches('/')).join(container)
    }
}

/// Lets the groups below have a memory controller, unless they do already. Refused where a task
/// sits in the group itself: the limit then fails, and says so.
fn hand_memory_down(group: &Path) {
    let control = group.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    if !enabled.split_whitespace().any(|name| name == "memory") {
        let _ = fs::write(control, "+memory");
    }
}

/// A quantity of memory such as `32Mi`, in bytes.
pub fn bytes(quantity: &str) -> Option<u64> {
    let (digits, unit) = quantity.split_at(quantity.find(|c: char| !c.is_ascii_digit())?.max(1));
    let factor: u64 = match unit {
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn write(file: &Path, value: impl ToString) -> anyhow::Result<()> {
    fs::write(file, value.to_string()).with_context(|| format!("cannot write {}", file.display()))
}

/// Writes a file that some kernels do not have (swap accounting).
fn optional(file: &Path, value: impl ToString) -> anyhow::Result<()> {
    if file.exists() { write(file, value) } else { Ok(()) }
}

/// This cgroup and all below it, each after those that are in it.
fn from_the_leaves(cgroup: &Path) -> Vec<PathBuf> {
    // Gone, or gone in the meantime: nothing is below it.
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut all: Vec<_> = below.flat_map(|entry| from_the_leaves(&entry.path())).collect();
    all.push(cgroup.to_owned());
    all
}

async fn remove_when_empty(directory: &Path) -> anyhow::Result<()> {
    let what = format!("cgroup {} is not in use any more", directory.display());
    wait::until(what, || match fs::remove_dir(directory) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(())),
        other => {
            other.with_context(|| format!("cannot remove cgroup {}", directory.display())).map(Some)
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_quantities_of_memory() {
        let table = [
            ("32Mi", Some(32 << 20)),
            ("1Gi", Some(1 << 30)),
            ("5k", Some(5_000)),
            ("32", None),
            ("Mi", None),
            ("", None),
            ("1.5Gi", None),
            ("99999999999999999999Gi", None),
        ];
        for (quantity, expected) in table {
            assert_eq!(bytes(quantity), expected, "{quantity}");
        }
    }

    #[tokio::test]
    async fn makes_and_removes_the_pods_directory() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::probe(root.path(), "/coroner-lab");
        let path = cgroups.pod("besteffort", "u1");
        assert_eq!(path, "/coroner-lab/kubepods/besteffort/podu1");
        cgroups.create(&path).unwrap();
        cgroups.create(&path).unwrap(); // once more: it is there already
        let directory = root.path().join("coroner-lab/kubepods/besteffort/podu1");
        assert!(directory.is_dir());
        fs::create_dir_all(directory.join("sandbox/nested")).unwrap(); // a killed runtime left it
        cgroups.remove(&path).await.unwrap();
        cgroups.remove(&path).await.unwrap(); // once more: it is gone already
        assert!(!directory.exists() && directory.parent().unwrap().is_dir());
    }
}
