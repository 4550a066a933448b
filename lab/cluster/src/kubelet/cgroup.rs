//! The cgroups that a kubelet makes itself: one for each pod, and a limit on memory.

use crate::{
    containerd::{Systemctl, hand_memory_down},
    wait,
};
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
    /// Makes the cgroups, if that is the kubelet's driver.
    systemd: Option<Systemctl>,
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
    /// Looks at what the hierarchy mounted at `root` offers. `base` is the lab's group in it, and the root of what
    /// `systemd` manages.
    pub fn probe(root: &Path, base: &str, systemd: Option<Systemctl>) -> Self {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let memory = if controllers.split_whitespace().any(|name| name == "memory") {
            Memory::Unified
        } else if Path::new(V1_MEMORY).join("memory.limit_in_bytes").exists() {
            Memory::Beside
        } else {
            Memory::Absent
        };
        Self { root: root.into(), base: base.into(), memory, systemd }
    }

    /// Whether memory can be limited at all.
    pub fn can_limit_memory(&self) -> bool {
        self.memory != Memory::Absent
    }

    /// Whether systemd makes the cgroups.
    pub fn has_systemd(&self) -> bool {
        self.systemd.is_some()
    }

    /// Has systemd stop a container, and does not wait for it.
    pub fn stop_scope(&self, container: &str) -> anyhow::Result<()> {
        let systemd = self.systemd.clone().context("systemd is not the cgroup driver")?;
        let scope = scope(container);
        tokio::spawn(async move {
            if let Err(error) = systemd.stop(&scope).await {
                tracing::error!(error = format!("{error:#}"), "systemctl");
            }
        });
        Ok(())
    }

    /// The pod's cgroup: `/coroner-lab/kubepods/besteffort/pod<uid>`, or the slices of that name, without dashes in
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

    /// The UIDs of the pods that have a cgroup now.
    pub fn pods(&self) -> Vec<String> {
        let (kubepods, escaped) =
            if self.systemd.is_some() { ("kubepods.slice", "_") } else { ("kubepods", "-") };
        let kubepods = self.root.join(self.base.trim_start_matches('/')).join(kubepods);
        let within = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
        let uid = |name: &str| {
            let name = name.strip_suffix(".slice").unwrap_or(name);
            let (before, uid) = name.rsplit_once("pod")?;
            (before.is_empty() || before.ends_with('-')).then(|| uid.replace(escaped, "-"))
        };
        within(kubepods)
            .flat_map(|qos| within(qos.path()))
            .filter_map(|pod| uid(pod.file_name().to_str()?))
            .collect()
    }

    /// Makes a pod's cgroup and those above it.
    pub async fn create(&self, path: &str) -> anyhow::Result<()> {
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

    /// Removes a pod's cgroup once its last task has left (the kernel may take a moment), and first
    /// what a runtime that was killed has left in it, as the kubelet does (runc's libcontainer,
    /// `RemovePath`).
    pub async fn remove(&self, path: &str) -> anyhow::Result<()> {
        let directory = self.root.join(path.trim_start_matches('/'));
        if let Some(systemd) = &self.systemd {
            let what = format!("nothing runs in cgroup {}", directory.display());
            wait::until(what, || Ok(is_empty(&directory).then_some(()))).await?;
            systemd.stop(slice(path)).await?;
        }
        for cgroup in from_the_leaves(&directory) {
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

    /// The directory of a container's cgroup.
    pub fn group(&self, pod: &str, container: &str) -> PathBuf {
        let pod = self.root.join(pod.trim_start_matches('/'));
        match self.systemd {
            None => pod.join(container),
            Some(_) => pod.join(scope(container)),
        }
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

/// The unit of a slice's cgroup.
fn slice(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The unit of a container, as containerd has runc name it.
fn scope(container: &str) -> String {
    format!("cri-containerd-{container}.scope")
}

/// Whether no process is in a cgroup or below it; also of one that is gone.
pub fn is_empty(cgroup: &Path) -> bool {
    let events = fs::read_to_string(cgroup.join("cgroup.events"));
    events.map_or(true, |events| events.lines().any(|line| line == "populated 0"))
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
        let cgroups = Cgroups::probe(root.path(), "/coroner-lab", None);
        let path = cgroups.pod("besteffort", "u1");
        assert_eq!(path, "/coroner-lab/kubepods/besteffort/podu1");
        cgroups.create(&path).await.unwrap();
        cgroups.create(&path).await.unwrap(); // once more: it is there already
        let directory = root.path().join("coroner-lab/kubepods/besteffort/podu1");
        assert!(directory.is_dir());
        fs::create_dir_all(directory.join("sandbox/nested")).unwrap(); // a killed runtime left it
        cgroups.remove(&path).await.unwrap();
        cgroups.remove(&path).await.unwrap(); // once more: it is gone already
        assert!(!directory.exists() && directory.parent().unwrap().is_dir());
    }

    #[test]
    fn under_systemd_the_same_names_are_slices_and_scopes() {
        let root = tempfile::tempdir().unwrap();
        let base = "/coroner-lab";
        let systemd = Systemctl::of(root.path());
        let cgroups = Cgroups::probe(root.path(), base, Some(systemd));
        let pod = cgroups.pod("besteffort", "u-1");
        let seen = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice";
        assert_eq!(pod, format!("{base}{seen}"));
        assert_eq!(cgroups.as_runtime_sees(&pod), seen);
        assert_eq!(slice(&pod), "kubepods-besteffort-podu_1.slice");
        let container = cgroups.group(&pod, "c");
        assert!(container.ends_with("kubepods-besteffort-podu_1.slice/cri-containerd-c.scope"));
        fs::create_dir_all(container).unwrap();
        assert_eq!(cgroups.pods(), ["u-1"]);
    }

    #[test]
    fn a_cgroup_is_empty_once_nothing_runs_in_it_or_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let with = |events: &str| {
            fs::write(root.path().join("cgroup.events"), events).unwrap();
            is_empty(root.path())
        };
        assert!(!with("populated 1\nfrozen 0\n"));
        assert!(with("populated 0\nfrozen 0\n"));
        assert!(is_empty(&root.path().join("gone")));
    }
}
