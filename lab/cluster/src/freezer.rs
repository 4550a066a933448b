//! The freezer of cgroup v1, which also holds a process that was sent SIGKILL; that of cgroup2 lets it go
//! (`do_freezer_trap`, kernel/signal.c). The lab mounts the hierarchy itself: on a machine with cgroup v2
//! alone nobody else does, and its controller is free there, because cgroup v2 has no use for it.

use crate::{containerd, wait};
use anyhow::Context as _;
use rustix::mount::MountFlags;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Frozen processes.
#[derive(Debug)]
pub struct Frozen {
    work: PathBuf,
    hierarchy: PathBuf,
    group: PathBuf,
}

impl Frozen {
    /// Moves the processes into a freezer of the lab in this work directory, and waits until they are
    /// frozen.
    pub async fn freeze(work: &Path, processes: &[i32]) -> anyhow::Result<Self> {
        let hierarchy = mounted(work)?;
        // Of this name, so that it is found again if the lab is killed.
        let group = hierarchy.join(containerd::cgroup_parent(work).trim_start_matches('/'));
        fs::create_dir_all(&group)
            .with_context(|| format!("cannot make cgroup {}", group.display()))?;
        let frozen = Self { work: work.into(), hierarchy, group };
        for pid in processes {
            fs::write(frozen.group.join("cgroup.procs"), pid.to_string()).with_context(|| {
                format!("cannot move process {pid} to {}", frozen.group.display())
            })?;
        }
        let state = frozen.group.join(containerd::FREEZER_STATE);
        fs::write(&state, "FROZEN")?;
        wait::until("they are frozen", || {
            let state = fs::read_to_string(&state)?;
            Ok((state.trim() == "FROZEN").then_some(()))
        })
        .await?;
        Ok(frozen)
    }

    /// Lets them go and waits until none is left.
    pub async fn thaw(self) -> anyhow::Result<()> {
        if self.group.exists() {
            fs::write(self.group.join(containerd::FREEZER_STATE), "THAWED")?;
            let procs = self.group.join("cgroup.procs");
            wait::until("what was frozen has ended", || {
                let left = fs::read_to_string(&procs)?;
                for pid in left.lines() {
                    // One that has ended in the meantime cannot be moved.
                    let _ = fs::write(self.hierarchy.join("cgroup.procs"), pid);
                }
                Ok(left.is_empty().then_some(()))
            })
            .await?;
            fs::remove_dir(&self.group)
                .with_context(|| format!("cannot remove cgroup {}", self.group.display()))?;
        }
        containerd::unmount_freezer(&self.work)
    }
}

/// The hierarchy, mounted below the work directory: where the agent finds it too, and whoever removes
/// the directory. Where the machine has it mounted as well, it is the same one.
fn mounted(work: &Path) -> anyhow::Result<PathBuf> {
    let point = work.join(containerd::FREEZER);
    fs::create_dir_all(&point).with_context(|| format!("cannot make {}", point.display()))?;
    if !point.join("cgroup.procs").exists() {
        rustix::mount::mount("cgroup", &point, "cgroup", MountFlags::empty(), Some(c"freezer"))
            .with_context(|| {
                format!(
                    "cannot mount the freezer of cgroup v1 at {}: it takes a kernel with \
                     CONFIG_CGROUP_FREEZER, booted without cgroup_no_v1",
                    point.display()
                )
            })?;
    }
    Ok(point)
}
