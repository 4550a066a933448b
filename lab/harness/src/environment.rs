//! How every run of the lab begins and ends, whatever it is for.

use crate::{agent, console::Console};
use anyhow::Context as _;
use coroner_lab_cluster::{Cluster, containerd, tidy};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};
use tokio::signal::unix::{SignalKind, signal};

/// The agent's log, in the work directory.
pub const AGENT_LOG: &str = "agent.log";

/// What every run of the lab is asked for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Objects on stdout, everything else on stderr.
    pub json: bool,
    /// The agent's binary.
    pub agent: PathBuf,
    /// This program, which is also the load of some benchmarks.
    pub program: PathBuf,
    /// What the cluster is made of, and where it keeps its files.
    pub cluster: containerd::ContainerdOptions,
    /// Where a folder is kept for each failure; `None`: `failed` in the target directory.
    pub failed: Option<PathBuf>,
}

/// A work directory, and what is up in it.
pub struct Environment {
    pub console: Console,
    setup: Setup,
    cluster: Option<Cluster>,
}

impl Environment {
    /// With the work directory, without an earlier run's log, and absolute: the runtime has another working directory.
    pub fn new(setup: &Setup) -> anyhow::Result<Self> {
        let mut setup = setup.clone();
        setup.cluster.work = work_directory(&setup.cluster.work)?;
        Ok(Self { console: Console::new(setup.json), setup, cluster: None })
    }

    pub fn work(&self) -> PathBuf {
        self.setup.cluster.work.clone()
    }

    pub fn log(&self) -> PathBuf {
        self.work().join(AGENT_LOG)
    }

    /// Brings the cluster up.
    pub async fn set_up(&mut self) -> anyhow::Result<&mut Cluster> {
        let console = self.console;
        let options = self.setup.cluster.clone();
        let cluster = Cluster::start(options, &|text| console.step(text)).await?;
        Ok(self.cluster.insert(cluster))
    }

    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// How the agent is started on the cluster's node.
    pub fn agent(setup: &Setup, cluster: &Cluster) -> agent::AgentOptions {
        agent::AgentOptions::on(cluster, &setup.agent, cluster.work().join(AGENT_LOG))
    }

    /// Takes down what is up. The agent comes first, by whoever has started it: it need not report the cluster's own
    /// end. Its log stays if the run went wrong, or with `keep_log`.
    pub async fn tear_down<T>(
        self,
        result: anyhow::Result<T>,
        keep_log: bool,
    ) -> anyhow::Result<T> {
        let work = self.work();
        let stopped = match self.cluster {
            Some(cluster) => {
                self.console.step("taking the lab down");
                let stopped = cluster.stop().await;
                stopped.context("the lab was not taken down completely")
            }
            None => Ok(()),
        };
        tidy(&work);
        leave(&work, keep_log || went_wrong(&result), self.console);
        let value = result?;
        stopped?;
        Ok(value)
    }
}

/// Made, without an earlier run's log, and absolute. If a lab is running there, nothing of its is touched.
pub fn work_directory(work: &Path) -> anyhow::Result<PathBuf> {
    let work = fs::create_dir_all(work)
        .and_then(|()| work.canonicalize())
        .with_context(|| format!("cannot make {}", work.display()))?;
    containerd::ensure_free(&work)?;
    let _ = fs::remove_file(work.join(AGENT_LOG));
    Ok(work)
}

/// Leaves the work directory; with the agent's log if somebody should read it.
fn leave(work: &Path, worth_reading: bool, console: Console) {
    let log = work.join(AGENT_LOG);
    if worth_reading && log.exists() {
        console.step(&format!("the agent's log is kept: {}", log.display()));
        return;
    }
    let _ = fs::remove_file(&log);
    // Somebody else's files may be in it; then it stays.
    let _ = fs::remove_dir(work);
}

/// Ctrl-C or SIGTERM ended the run.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// It failed, and nobody wanted it to.
pub fn went_wrong<T>(result: &anyhow::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| !error.is::<Interrupted>())
}

/// Resolves at Ctrl-C or SIGTERM.
pub async fn interrupted() {
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Does this; drops it where it stands when the run is [`Interrupted`], which is the error then.
pub async fn unless_interrupted<T>(
    console: Console,
    what: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        result = what => result,
        () = interrupted() => {
            console.step("interrupted: taking everything down");
            Err(Interrupted.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_running_lab_has_in_its_directory_stays() {
        let work = tempfile::tempdir().unwrap();
        let log = work.path().join(AGENT_LOG);
        fs::write(&log, "its own").unwrap();
        let running = containerd::lock(work.path()).unwrap();
        let refused = work_directory(work.path()).unwrap_err().to_string();
        assert!(refused.starts_with("another lab is running in"), "{refused}");
        assert!(log.exists());
        drop(running);
        work_directory(work.path()).unwrap();
        assert!(!log.exists());
    }
}
