//! Containers without a runtime: cgroups as runtimes name them, and the load's processes in them.

use anyhow::{Context as _, bail};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A root that coroner knows by its name, beside the kubelet's own, which would tidy it up.
const ROOT: &str = "storm-kubepods";
/// A pod's name, as the cgroupfs driver makes it.
const POD: &str = "pod8dbc5577-d0e2-4706-8787-57d52c03ddf2";
/// How long a cgroup may be busy after its processes were reaped.
const BUSY: Duration = Duration::from_secs(2);

/// A pod's cgroup with containers. Dropped, it is removed: its processes have to be gone.
#[derive(Debug)]
pub(super) struct Pods {
    base: PathBuf,
    containers: Vec<PathBuf>,
}

impl Pods {
    /// Below `base`, in a hierarchy of cgroup2.
    pub(super) fn make(base: &Path, containers: usize) -> anyhow::Result<Self> {
        if !base.join("cgroup.controllers").is_file() {
            bail!("{} is not in a cgroup2 hierarchy: the storm needs one", base.display());
        }
        let mut pods = Self { base: base.into(), containers: Vec::new() };
        let pod = pods.pod();
        fs::create_dir_all(&pod).with_context(|| format!("cannot make {}", pod.display()))?;
        for number in 0..containers {
            let container = pod.join(format!("{number:064x}"));
            fs::create_dir(&container)
                .with_context(|| format!("cannot make {}", container.display()))?;
            pods.containers.push(container);
        }
        Ok(pods)
    }

    /// The pod's own cgroup.
    pub(super) fn pod(&self) -> PathBuf {
        self.base.join(ROOT).join(POD)
    }

    /// Where a process writes `0` to move into each of the containers.
    pub(super) fn doors(&self) -> anyhow::Result<Vec<File>> {
        let door = |container: &PathBuf| {
            let file = container.join("cgroup.procs");
            File::options().write(true).open(&file).with_context(|| format!("{}", file.display()))
        };
        self.containers.iter().map(door).collect()
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let until = Instant::now() + BUSY;
        let pod = self.pod();
        let short = fs::read_dir(&pod).into_iter().flatten().flatten().map(|entry| entry.path());
        for directory in
            short.filter(|path| path.is_dir()).chain([pod.clone(), self.base.join(ROOT)])
        {
            // What is left is in the lab's own cgroup, which the lab removes with all that is in it.
            while fs::remove_dir(&directory).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
