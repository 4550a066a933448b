//! systemd as the node's cgroup driver: Debian's, with the node's part of the hierarchy as its root. It runs as a user's
//! manager, because a system's wants to be process 1 of its PID namespace; its code for slices and scopes is the same.
//! runc finds it where it looks for the system's.

use super::{end_of, find::program, namespace, process::Process};
use crate::wait;
use anyhow::{Context as _, Result, ensure};
use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Below the node's /run, which is the manager's own directory there.
const SOCKET: &str = "systemd/private";
/// Without it the system counts as one that systemd has not booted (sd_booted(3)).
const BOOTED: &str = "systemd/system";
const UNITS: &str = "systemd/lab";

/// The daemon's cgroup below the node's root, as on a real node; its shims are there with it.
pub(super) const DAEMON: &str = "system.slice/containerd.service";

/// Starts it in the node's namespaces and waits until it answers.
pub(super) async fn start(work: &Path, root: &Path, holder: &Process) -> Result<Process> {
    let run = work.join("run");
    for directory in [BOOTED, UNITS] {
        fs::create_dir_all(run.join(directory))?;
    }
    fs::write(run.join(UNITS).join("default.target"), "[Unit]\nDescription=The lab's node\n")?;
    let log = run.join("systemd.log");
    let output = File::create(&log)?;
    let mut command = Command::new(program("systemd"));
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
    namespace::join_on_exec(&mut command, holder.pid, root)?;
    let manager = Process::start("systemd", command)?;
    wait::until("systemd answers", || {
        ensure!(manager.ended.borrow().is_none(), "systemd exited");
        Ok(UnixStream::connect(run.join(SOCKET)).ok().map(drop))
    })
    .await
    .with_context(|| end_of(&log))?;
    Ok(manager)
}

/// The node's systemd, for the driver.
#[derive(Clone, Debug)]
pub struct Systemctl {
    run: PathBuf,
}

impl Systemctl {
    pub(super) fn new(work: &Path) -> Self {
        Self { run: work.join("run") }
    }

    /// Makes a slice's cgroup and those above it.
    pub async fn start(&self, slice: &str) -> Result<()> {
        self.call("start", slice).await
    }

    /// Ends what runs in a slice, and removes its cgroup; one that is not there is no error.
    pub async fn stop(&self, slice: &str) -> Result<()> {
        self.call("stop", slice).await
    }

    async fn call(&self, verb: &str, unit: &str) -> Result<()> {
        let mut command = tokio::process::Command::new(program("systemctl"));
        command.args(["--user", "--quiet", verb, unit]).env("XDG_RUNTIME_DIR", &self.run);
        command.kill_on_drop(true);
        let ended = wait::event(format!("systemctl {verb} {unit}"), command.output()).await?;
        let output = ended.context("cannot run systemctl")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "systemctl {verb} {unit}: {}", said.trim());
        Ok(())
    }
}
