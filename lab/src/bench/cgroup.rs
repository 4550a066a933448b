//! Cgroups in which benchmarks make events: a service's, and containers' that no runtime knows. coroner watches a
//! container because of its name below a folder `…kubepods`.

use anyhow::Context as _;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long a cgroup may be busy after its processes were killed.
const BUSY: Duration = Duration::from_secs(5);
/// A pod's name, as the kubelet's cgroupfs driver makes it.
const POD: &str = "pod8dbc5577-d0e2-4706-8787-57d52c03ddf2";

/// Dropped, they are removed, with the processes in them.
#[derive(Debug)]
pub(crate) struct Cgroups {
    elsewhere: PathBuf,
    kubepods: PathBuf,
}

impl Cgroups {
    /// Below the mount point of cgroup2. What a killed run left is removed first.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let at = |name| Ok::<_, anyhow::Error>(mount_point()?.join(name));
        let cgroups =
            Self { elsewhere: at("coroner-bench")?, kubepods: at("coroner-bench-kubepods")? };
        cgroups.remove();
        for folder in [cgroups.service(), cgroups.pod()] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(cgroups)
    }

    /// A service's.
    pub(crate) fn service(&self) -> PathBuf {
        self.elsewhere.join("service")
    }

    /// Where cgroups are of no container, whatever their names.
    pub(crate) fn elsewhere(&self) -> PathBuf {
        self.elsewhere.clone()
    }

    /// The pod's own. Containers may be made in it.
    pub(crate) fn pod(&self) -> PathBuf {
        self.kubepods.join(POD)
    }

    /// A container of the pod.
    pub(crate) fn container(&self, number: usize) -> anyhow::Result<PathBuf> {
        let path = self.pod().join(format!("{number:064x}"));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    fn remove(&self) {
        for root in [&self.elsewhere, &self.kubepods] {
            // Linux 5.14 and later. Before that, the processes die with the benchmark.
            let _ = fs::write(root.join("cgroup.kill"), "1");
            let began = Instant::now();
            while root.exists() && remove(root).is_err() && began.elapsed() < BUSY {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove();
    }
}

fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Where cgroup2 is mounted.
pub(crate) fn mount_point() -> anyhow::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let point = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == "cgroup2").then(|| point.into())
    });
    point.context("cgroup2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")
}
