//! The node's ground: real cgroups, made as a kubelet and containerd make them, and small real
//! processes in them: a death must be real for the kernel programs.

use anyhow::{Context as _, bail};
use coroner_lab_cluster::containerd;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::{
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// How long a process that was signalled may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(20);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// What a shim's bundle says of itself, with the weight of an OCI specification.
const BUNDLE: &str = r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox"},"process":{"#;

/// All that is below one cgroup. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Ground {
    /// Mount point of the hierarchy.
    hierarchy: PathBuf,
    /// The node's own cgroup in it.
    root: PathBuf,
    workload: PathBuf,
    bundles: PathBuf,
    shim: PathBuf,
    socket: PathBuf,
}

/// A process of the node.
#[derive(Debug)]
pub(super) struct PodProcess(Child);

impl Ground {
    /// Removes what a killed run left behind at the same place, then begins anew. `socket` is what
    /// the shims name as the runtime's.
    pub(super) fn prepare(work: &Path, workload: &Path, socket: &Path) -> anyhow::Result<Self> {
        if !workload.is_file() {
            bail!(
                "{} is not there: build it (cargo xtask build) or name it with --workload",
                workload.display()
            );
        }
        let hierarchy = containerd::unified_hierarchy()?;
        let root = hierarchy.join(containerd::cgroup_parent(work).trim_start_matches('/'));
        if root.exists() {
            containerd::end_cgroup(&root)?;
        }
        let ground = Self {
            hierarchy,
            root,
            workload: workload.into(),
            bundles: work.join("bundles"),
            shim: work.join("containerd-shim-runc-v2"),
            socket: socket.into(),
        };
        // Its name is what a shim is known by, so it has to be a file of that name.
        fs::copy("/bin/sh", &ground.shim).context("cannot copy /bin/sh")?;
        Ok(ground)
    }

    /// Mount point of the hierarchy.
    pub(super) fn hierarchy(&self) -> &Path {
        &self.hierarchy
    }

    /// Makes a cgroup and those above it.
    pub(super) fn make(&self, path: &str) -> anyhow::Result<()> {
        let directory = self.root.join(path);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make cgroup {}", directory.display()))
    }

    /// Removes one as soon as its last task has left.
    pub(super) async fn remove(&self, path: &str) -> anyhow::Result<()> {
        let directory = self.root.join(path);
        let began = Instant::now();
        loop {
            match fs::remove_dir(&directory) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && began.elapsed() < GONE_WITHIN =>
                {
                    tokio::time::sleep(LOOK).await;
                }
                done => {
                    return done.with_context(|| format!("cannot remove {}", directory.display()));
                }
            }
        }
    }

    /// Starts the workload with this behaviour as the main process of that cgroup.
    pub(super) fn start(&self, cgroup: &str, behaviour: &[&str]) -> anyhow::Result<PodProcess> {
        let mut command = Command::new(&self.workload);
        command.args(behaviour);
        self.spawn(command, Some(cgroup))
    }

    /// Starts what looks like the shim of a sandbox: its name, its words, its bundle.
    pub(super) fn start_shim(&self, sandbox: &str) -> anyhow::Result<PodProcess> {
        let bundle = self.bundles.join(sandbox);
        let config = format!("{BUNDLE}\"env\":[\"{}\"]}}}}", "x".repeat(12 << 10));
        fs::create_dir_all(&bundle)
            .and_then(|()| fs::write(bundle.join("config.json"), config))
            .with_context(|| format!("cannot make {}", bundle.display()))?;
        let mut command = Command::new(&self.shim);
        // It stops itself at once: nothing is to be measured of it but that it is there.
        command.args(["-c", "kill -STOP $$", "shim", "-namespace", "k8s.io", "-id", sandbox]);
        command.arg("-address").arg(&self.socket).current_dir(&bundle);
        self.spawn(command, None)
    }

    fn spawn(&self, mut command: Command, cgroup: Option<&str>) -> anyhow::Result<PodProcess> {
        let members = match cgroup {
            Some(cgroup) => {
                let list = self.root.join(cgroup).join("cgroup.procs");
                let file = fs::File::options().write(true).open(&list);
                Some(file.with_context(|| format!("cannot open {}", list.display()))?)
            }
            None => None,
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let description = format!("cannot start {}", command.get_program().display());
        // SAFETY: prctl and write are async-signal-safe and touch no memory of ours.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if let Some(members) = &members {
                    rustix::io::write(members, b"0")?;
                }
                Ok(())
            });
        }
        Ok(PodProcess(command.spawn().context(description)?))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // What does not go away is found by the next run: the place is named after the work directory.
        if let Err(error) = containerd::end_cgroup(&self.root) {
            tracing::warn!("{error:#}");
        }
        let _ = fs::remove_dir_all(&self.bundles);
        let _ = fs::remove_file(&self.shim);
    }
}

impl PodProcess {
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Signals it, and waits until it is gone.
    pub(super) async fn end(&mut self, signal: Signal) -> anyhow::Result<ExitStatus> {
        let _ = kill_process(Pid::from_child(&self.0), signal);
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > GONE_WITHIN {
                bail!("process {} does not go away", self.pid());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for PodProcess {
    fn drop(&mut self) {
        // It has ended, or nothing else is to be done.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
