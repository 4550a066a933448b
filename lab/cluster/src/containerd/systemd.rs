//! systemd as the node's cgroup driver: Debian's, with the node's part of the hierarchy for its root. It runs as a
//! user's manager, because a system's wants to be process 1 of its PID namespace; what it does with slices and
//! scopes is the same code. runc finds it where it looks for the system's.

use super::{end_of, find, namespace, process::ContainerdProcess};
use crate::wait;
use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Its programs.
pub(super) const SYSTEMD: &str = "systemd";
pub(super) const SYSTEMCTL: &str = "systemctl";

/// Below the node's /run, which is the manager's own directory there.
const SOCKET: &str = "systemd/private";
/// Without it the system counts as one that systemd has not booted (sd_booted(3)).
const BOOTED: &str = "systemd/system";
const UNITS: &str = "systemd/lab";

/// The daemon's cgroup below the node's root, as on a real node; its shims are there with it.
const DAEMON: &str = "system.slice/containerd.service";

/// Makes the node's root of the hierarchy, and the daemon's cgroup below it.
pub(super) fn make_root(root: &Path) -> Result<()> {
    let daemon = daemon(root);
    fs::create_dir_all(&daemon)
        .with_context(|| format!("cannot make cgroup {}", daemon.display()))?;
    if let Some(above) = root.parent() {
        namespace::hand_memory_down(above);
    }
    Ok(())
}

pub(super) fn daemon(root: &Path) -> PathBuf {
    root.join(DAEMON)
}

/// Starts it in the node's namespaces and waits until it can be asked.
pub(super) async fn start(
    work: &Path,
    root: &Path,
    node: namespace::NodeNamespaces,
) -> Result<ContainerdProcess> {
    let run = work.join("run");
    for directory in [BOOTED, UNITS] {
        fs::create_dir_all(run.join(directory))?;
    }
    fs::write(run.join(UNITS).join("default.target"), "[Unit]\nDescription=The lab's node\n")?;
    let log = run.join("systemd.log");
    let output = File::create(&log)?;
    let mut command = Command::new(find::program(SYSTEMD));
    command
        .arg("--user")
        .env("XDG_RUNTIME_DIR", "/run")
        .env("XDG_CONFIG_HOME", "/run/systemd")
        .env("SYSTEMD_UNIT_PATH", Path::new("/run").join(UNITS))
        .env("SYSTEMD_GENERATOR_PATH", "/run/systemd")
        .env("SYSTEMD_ENVIRONMENT_GENERATOR_PATH", "/run/systemd")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    namespace::join_on_exec(&mut command, node, Some(root))?;
    let manager = ContainerdProcess::start("systemd", command)?;
    wait::until("systemd answers", || {
        ensure!(manager.ended.borrow().is_none(), "systemd ended");
        Ok(UnixStream::connect(run.join(SOCKET)).ok().map(drop))
    })
    .await
    .with_context(|| end_of(&log))?;
    Ok(manager)
}

/// The node's systemd, for the kubelet.
#[derive(Clone, Debug)]
pub struct Systemctl {
    run: PathBuf,
}

impl Systemctl {
    pub(crate) fn of(work: &Path) -> Self {
        Self { run: work.join("run") }
    }

    /// Makes a slice's cgroup and those above it.
    pub async fn start(&self, slice: &str) -> Result<()> {
        self.do_to("start", slice).await
    }

    /// Ends what runs in a slice or scope, and removes its cgroup; one that is not there is no error.
    pub async fn stop(&self, unit: &str) -> Result<()> {
        self.do_to("stop", unit).await
    }

    async fn do_to(&self, verb: &str, unit: &str) -> Result<()> {
        let mut command = tokio::process::Command::new(find::program(SYSTEMCTL));
        command.args(["--user", "--quiet", verb, unit]).env("XDG_RUNTIME_DIR", &self.run);
        command.kill_on_drop(true);
        let ended = wait::event(format!("systemctl {verb} {unit}"), command.output()).await?;
        let output = ended.context("cannot run systemctl")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "systemctl {verb} {unit}: {}", said.trim());
        Ok(())
    }
}
