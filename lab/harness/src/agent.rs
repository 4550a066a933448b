//! The real `coroner run` as a child, and its HTTP API.

use anyhow::{Context as _, anyhow, bail};
use axum::http::{StatusCode, Uri};
use coroner::outputs::report::LeakList;
use coroner_api::{
    List, ListQuery,
    client::AgentAddress as Api,
    leaks::Leak,
    openapi,
    terminations::{Death, Termination},
};
use coroner_core::report::{ContainerDeath, PodTermination};
use coroner_lab_cluster::{Cluster, port::Port, wait};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::de::DeserializeOwned;
use std::{
    collections::VecDeque,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// No answer of the agent is longer.
const MAX_ANSWER: usize = 64 << 20;

/// How the agent is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    pub binary: PathBuf,
    /// `--api-listen`, where metrics and health are served, too; `None`: a port of its own.
    pub listen: Option<SocketAddr>,
    pub node: String,
    /// `--runtime-endpoint`.
    pub cri: String,
    pub kubeconfig: PathBuf,
    /// `--cgroup-root`; `None`: the agent finds it.
    pub cgroup_root: Option<PathBuf>,
    /// `--cri-poll-interval`; `None`: its default.
    pub cri_idle: Option<Duration>,
    /// `--leak-threshold`; `None`: its default.
    pub leak_threshold: Option<Duration>,
    /// `--state-dir`; `None`: it keeps none.
    pub state_dir: Option<PathBuf>,
    /// `--host-root`; `None`: the machine's own.
    pub host_root: Option<PathBuf>,
    /// `--kubelet-process`; `None`: its default.
    pub kubelet_process: Option<String>,
    pub events: bool,
    /// Where its log goes.
    pub log: PathBuf,
}

impl AgentOptions {
    /// How the agent is started on this cluster's node.
    pub fn on(cluster: &Cluster, binary: &Path, log: PathBuf) -> Self {
        Self {
            binary: binary.into(),
            listen: None,
            node: cluster.node().into(),
            cri: cluster.cri(),
            kubeconfig: cluster.kubeconfig().into(),
            cgroup_root: Some(cluster.cgroup_root().into()),
            cri_idle: None,
            leak_threshold: None,
            state_dir: None,
            host_root: Some(cluster.host_root().into()),
            kubelet_process: Some(cluster.kubelet_process().into()),
            events: false,
            log,
        }
    }
}

/// A running agent. Dropped, it is killed.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    http: Http,
    log: PathBuf,
    ready_after: Duration,
    _port: Option<Port>,
}

impl Agent {
    /// Starts it and waits until /readyz says so. The error carries the end of its log.
    pub async fn start(options: &AgentOptions) -> anyhow::Result<Self> {
        Self::start_with(options, &[]).await
    }

    /// The same with more flags, as they are.
    pub async fn start_with(options: &AgentOptions, flags: &[String]) -> anyhow::Result<Self> {
        let began = Instant::now();
        let mut agent = Self::spawn(options, flags)?;
        agent.wait_for(true).await?;
        agent.ready_after = began.elapsed();
        Ok(agent)
    }

    /// Starts it and waits until its programs run: one that is told another machine's name may never be
    /// ready.
    pub async fn start_unready(options: &AgentOptions, flags: &[String]) -> anyhow::Result<Self> {
        let mut agent = Self::spawn(options, flags)?;
        agent.wait_for(false).await?;
        Ok(agent)
    }

    fn spawn(options: &AgentOptions, flags: &[String]) -> anyhow::Result<Self> {
        let (port, address) = match options.listen {
            Some(address) => (None, address),
            None => {
                let port = Port::reserve()?;
                let address = port.address();
                (Some(port), address)
            }
        };
        // Appended: what an agent said before it was restarted is part of the story.
        let log = File::options().create(true).append(true).open(&options.log);
        let log = log.with_context(|| format!("cannot write {}", options.log.display()))?;
        let mut command = Command::new(&options.binary);
        command
            .arg("run")
            // Other agents of this machine have the default addresses.
            .args(["--listen", "127.0.0.1:0", "--socket", "off"])
            .args(["--api-listen", &address.to_string()])
            .args(["--node", &options.node])
            .args(["--runtime-endpoint", &options.cri])
            .arg("--kubeconfig")
            .arg(&options.kubeconfig);
        if let Some(root) = &options.cgroup_root {
            command.arg("--cgroup-root").arg(root);
        }
        for (flag, duration) in [
            ("--cri-poll-interval", options.cri_idle),
            ("--leak-threshold", options.leak_threshold),
        ] {
            if let Some(duration) = duration {
                command.arg(flag).arg(format!("{}ms", duration.as_millis()));
            }
        }
        if let Some(directory) = &options.state_dir {
            command.arg("--state-dir").arg(directory);
        }
        if let Some(root) = &options.host_root {
            command.arg("--host-root").arg(root);
        }
        if let Some(name) = &options.kubelet_process {
            command.args(["--kubelet-process", name]);
        }
        if options.events {
            command.arg("--events");
        }
        command.args(flags);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C at the terminal is for the lab, which then ends the agent itself.
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let child = command.spawn().with_context(|| {
            format!(
                "cannot start the agent {}: build it (cargo xtask build) or name it with --agent",
                options.binary.display()
            )
        })?;
        let http = Http::new(address);
        let (log, ready_after) = (options.log.clone(), Duration::ZERO);
        Ok(Self { child, http, log, ready_after, _port: port })
    }

    async fn wait_for(&mut self, ready: bool) -> anyhow::Result<()> {
        let (child, http) = (&mut self.child, &self.http);
        let mut last = "it does not answer".to_owned();
        let what = if ready { "the agent is ready" } else { "the agent's programs run" };
        let is_loading =
            |body: &[u8]| String::from_utf8_lossy(body).contains("\nkernel     FAILING");
        let answer = wait::asking(what, async || {
            if let Some(status) = child.try_wait()? {
                bail!("the agent ended at once ({status})");
            }
            Ok(match http.page("/readyz").await {
                Ok((status, _)) if status.is_success() => Some(()),
                Ok((_, body)) if !ready && !is_loading(&body) => Some(()),
                Ok((status, body)) => {
                    last = format!("{status}: {}", String::from_utf8_lossy(&body).trim());
                    None
                }
                Err(error) => {
                    last = format!("{error:#}");
                    None
                }
            })
        });
        if let Err(error) = answer.await {
            bail!("{error:#}: {last}\nits log ends with:\n{}", self.tail());
        }
        Ok(())
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.http.address)
    }

    /// From its start to the first good answer of /readyz; 0 if nobody waited for that.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// What it answers for by HTTP, apart from its process.
    pub fn http(&self) -> Http {
        self.http.clone()
    }

    /// Its process, as long as it was not waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL, and waits for its end.
    pub async fn kill(mut self) {
        let _ = self.child.kill().await;
    }

    /// Its resident memory now and at its highest, bytes.
    pub fn memory(&self) -> Option<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let kib = |key: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some((kib("VmRSS:")? << 10, kib("VmHWM:")? << 10))
    }

    /// Whether it still runs; the error carries the end of its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("the agent died ({status}); its log ends with:\n{}", self.tail())
            }
        }
    }

    /// SIGTERM, and SIGKILL if that is not enough.
    pub async fn stop(mut self) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if let Err(error) = wait::event("the agent leaves after SIGTERM", self.child.wait()).await {
            tracing::error!("{error:#}: it is killed");
            let _ = self.child.kill().await;
        }
    }

    fn tail(&self) -> String {
        tail(&self.log, 15)
    }
}

/// The agent's HTTP API.
#[derive(Clone, Debug)]
pub struct Http {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<axum::body::Bytes>>,
}

impl Http {
    /// Of the agent that answers at this address.
    pub fn new(address: SocketAddr) -> Self {
        // As the kubelet's prober: a connection for each request.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { address, client }
    }

    /// All settled terminations that it remembers, newest first.
    pub async fn terminations(&self) -> anyhow::Result<Vec<PodTermination>> {
        let list = self.list::<Termination>(openapi::TERMINATIONS).await?;
        Ok(list.items.into_iter().map(Into::into).collect())
    }

    /// All deaths of containers that it remembers, newest first.
    pub async fn deaths(&self) -> anyhow::Result<Vec<ContainerDeath>> {
        let list = self.list::<Death>(openapi::DEATHS).await?;
        Ok(list.items.into_iter().map(Into::into).collect())
    }

    /// What is left behind now, and whether that can be judged.
    pub async fn leaks(&self) -> anyhow::Result<LeakList> {
        Ok(self.list::<Leak>(openapi::LEAKS).await?.into())
    }

    /// Any page: whether all is well with it, and what it says.
    pub async fn page(&self, path: &str) -> anyhow::Result<(StatusCode, axum::body::Bytes)> {
        let uri: Uri = format!("http://{}{path}", self.address).parse()?;
        let answer = self.client.get(uri).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        Ok((status, body.map_err(|error| anyhow!("{path}: {error}"))?.to_bytes()))
    }

    async fn list<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<List<T>> {
        let url: Uri = format!("http://{}", self.address).parse()?;
        Api::at_url(&url, None)?.list(path, &ListQuery::default()).await
    }
}

/// The last `lines` of a text file, for an error message.
pub fn tail(file: &Path, lines: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
    let mut last = VecDeque::with_capacity(lines);
    for line in text.lines() {
        if last.len() == lines {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.into_iter().map(|line| format!("  {line}\n")).collect()
}

/// Has the kernel kill the child when this process dies, however that comes about: nothing of a
/// run is left behind by a SIGKILL.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                .map_err(Into::into)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "a\nb\nc\n").unwrap();
        assert_eq!(tail(file.path(), 2), "  b\n  c\n");
        assert_eq!(tail(file.path(), 9), "  a\n  b\n  c\n");
        assert!(tail(Path::new("/nonexistent"), 2).contains("No such file"));
    }
}
