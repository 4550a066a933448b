//! The freezer of cgroup v1, which also holds a process that was sent SIGKILL; that of cgroup2 lets it go
//! (`do_freezer_trap`, kernel/signal.c). Each lab mounts the hierarchy for itself, also where it is mounted already; where it
//! is not, its controller is free, because cgroup v2 has no use for it.

use crate::{containerd::cleanup, wait};
use anyhow::{Context as _, Result};
use rustix::mount::MountFlags;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Frozen processes.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Frozen {
    /// Moves the processes into a freezer of the lab in this work directory, and waits until they are frozen.
    pub async fn freeze(work: &Path, processes: &[i32]) -> Result<Self> {
        let hierarchy = mount(work)?;
        // Of this name, so that it is found again if the lab is killed.
        let group = hierarchy.join(&cleanup::cgroup_name(work)[1..]);
        fs::create_dir_all(&group)
            .with_context(|| format!("cannot make cgroup {}", group.display()))?;
        let frozen = Self(group);
        for pid in processes {
            fs::write(frozen.0.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("cannot freeze process {pid}"))?;
        }
        let state = frozen.0.join("freezer.state");
        fs::write(&state, "FROZEN")?;
        wait::until("they are frozen", || {
            Ok((fs::read_to_string(&state)?.trim() == "FROZEN").then_some(()))
        })
        .await?;
        Ok(frozen)
    }

    /// Lets them go and waits until none is left.
    pub async fn thaw(self) -> Result<()> {
        fs::write(self.0.join("freezer.state"), "THAWED")?;
        wait::until("what was frozen has exited", || {
            Ok(fs::read_to_string(self.0.join("cgroup.procs"))?.is_empty().then_some(()))
        })
        .await?;
        Ok(fs::remove_dir(&self.0)?)
    }
}

/// Mounts the hierarchy, unless this lab has.
fn mount(work: &Path) -> Result<PathBuf> {
    let point = work.join(cleanup::FREEZER);
    if point.join("cgroup.procs").exists() {
        return Ok(point);
    }
    fs::create_dir_all(&point)?;
    rustix::mount::mount("cgroup", &point, "cgroup", MountFlags::empty(), Some(c"freezer"))
        .context(
            "cannot mount the freezer of cgroup v1: it takes a kernel with CONFIG_CGROUP_FREEZER, \
             booted without cgroup_no_v1",
        )?;
    Ok(point)
}
