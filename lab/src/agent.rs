//! The real `coroner run` as a child, and its HTTP API.

use crate::{lab::Lab, lab::NODE, port::Port, wait};
use anyhow::{Context as _, Result, bail, ensure};
use axum::http::{StatusCode, Uri};
use coroner_report::{Audit, ContainerDeath, Leak, List, PodTermination, openapi};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// How the agent is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    pub binary: PathBuf,
    /// `--api-listen`, where metrics and health are served, too; `None`: a free port.
    pub listen: Option<SocketAddr>,
    pub node: String,
    /// `--runtime-endpoint`.
    pub cri: String,
    pub kubeconfig: PathBuf,
    /// More flags, as they are.
    pub flags: Vec<String>,
    /// Where its log is appended.
    pub log: PathBuf,
}

impl AgentOptions {
    /// On the lab's node.
    pub fn on(lab: &Lab, binary: &Path) -> Self {
        let flags = [
            ("--cgroup-root", lab.cgroup_root.display().to_string()),
            ("--host-root", lab.host_root.display().to_string()),
            ("--kubelet-process", lab.kubelet_process().to_owned()),
        ];
        Self {
            binary: binary.into(),
            listen: None,
            node: NODE.into(),
            cri: lab.endpoint().into(),
            kubeconfig: lab.kubeconfig(),
            flags: flags.map(|(flag, value)| format!("{flag}={value}")).into(),
            log: lab.work().join("agent.log"),
        }
    }
}

/// A running agent. Dropped, it is killed.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    http: Http,
    log: PathBuf,
    /// From its start to the first good answer of /readyz.
    pub ready_after: Duration,
    _port: Option<Port>,
}

impl Agent {
    /// Starts it and waits until /readyz is good. The error has the end of its log.
    pub async fn start(options: &AgentOptions) -> Result<Self> {
        let began = Instant::now();
        let mut agent = Self::spawn(options)?;
        let (child, http) = (&mut agent.child, &agent.http);
        let mut last = "no answer".to_owned();
        let is_ready = wait::asking("the agent is ready", async || {
            if let Some(status) = child.try_wait()? {
                bail!("the agent exited ({status})");
            }
            match http.page("/readyz").await {
                Ok((status, _)) if status.is_success() => return Ok(Some(())),
                Ok((status, body)) => last = format!("{status}: {body}"),
                Err(error) => last = format!("{error:#}"),
            }
            Ok(None)
        });
        if let Err(error) = is_ready.await {
            bail!("{error:#}: {last}\nits log ends with:\n{}", tail(&agent.log, 15));
        }
        agent.ready_after = began.elapsed();
        Ok(agent)
    }

    fn spawn(options: &AgentOptions) -> Result<Self> {
        let port = if options.listen.is_some() { None } else { Some(Port::reserve()?) };
        let address =
            port.as_ref().map(Port::address).or(options.listen).unwrap_or(([0; 4], 0).into());
        let log = File::options().create(true).append(true).open(&options.log);
        let log = log.with_context(|| format!("cannot write {}", options.log.display()))?;
        let mut command = Command::new(&options.binary);
        command
            .arg("run")
            // Other agents of this machine have the default addresses.
            .args(["--listen", "127.0.0.1:0", "--socket", "off"])
            .args(["--api-listen", &address.to_string()])
            .args(["--node", &options.node])
            // The lab plays in a minute what a node does in a day.
            .args(["--events-lookup", "1s", "--audit-age", "0"])
            .args(["--runtime-endpoint", &options.cri])
            .arg("--kubeconfig")
            .arg(&options.kubeconfig)
            .args(&options.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C at the terminal is for the lab, which then stops the agent itself.
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let child = command.spawn().with_context(|| {
            format!(
                "cannot start the agent {}: build it (cargo xtask build) or name it with --agent",
                options.binary.display()
            )
        })?;
        let (http, log, ready_after) = (Http::new(address), options.log.clone(), Duration::ZERO);
        Ok(Self { child, http, log, ready_after, _port: port })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.http.address)
    }

    pub fn http(&self) -> Http {
        self.http.clone()
    }

    /// Its process, as long as it was not waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(kill_process(pid.context("the agent does not run")?, signal)?)
    }

    /// A number of /proc/PID/status, such as `VmRSS:`, in KiB where it is memory.
    pub fn status(&self, key: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Whether it still runs; the error has the end of its log.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("the agent died ({status}); its log ends with:\n{}", tail(&self.log, 15))
            }
        }
    }

    /// SIGTERM, and SIGKILL if that is not enough.
    pub async fn stop(mut self) {
        let _ = self.signal(Signal::TERM);
        if let Err(error) = wait::event("the agent exits after SIGTERM", self.child.wait()).await {
            tracing::error!("{error:#}: it is killed");
            let _ = self.child.kill().await;
        }
    }
}

/// The agent's HTTP API.
#[derive(Clone, Debug)]
pub struct Http {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<axum::body::Bytes>>,
}

impl Http {
    pub fn new(address: SocketAddr) -> Self {
        // As the kubelet's prober: a connection for each request.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { address, client }
    }

    /// All settled terminations that it remembers, newest first.
    pub async fn terminations(&self) -> Result<Vec<PodTermination>> {
        Ok(self.list(openapi::TERMINATIONS).await?.items)
    }

    /// All deaths of containers that it remembers, newest first.
    pub async fn deaths(&self) -> Result<Vec<ContainerDeath>> {
        Ok(self.list(openapi::DEATHS).await?.items)
    }

    /// How each running container will respond to its stop signal.
    pub async fn audits(&self) -> Result<Vec<Audit>> {
        Ok(self.list(openapi::AUDIT).await?.items)
    }

    /// The current leaks, and whether leak detection is possible.
    pub async fn leaks(&self) -> Result<List<Leak>> {
        self.list(openapi::LEAKS).await
    }

    /// Any page.
    pub async fn page(&self, path: &str) -> Result<(StatusCode, String)> {
        let uri: Uri = format!("http://{}{path}", self.address).parse()?;
        let answer = self.client.get(uri).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).trim().to_owned()))
    }

    /// The sum of a metric's series with this text in their labels.
    pub async fn metric(&self, name: &str, labels: &str) -> Result<f64> {
        let (_, text) = self.page("/metrics").await?;
        let series = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        });
        Ok(series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }

    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<List<T>> {
        let (status, body) = self.page(path).await?;
        ensure!(status == StatusCode::OK, "{path} returned {status}: {body}");
        Ok(serde_json::from_str(&body)?)
    }
}

/// The last `lines` of a text file, for an error message.
pub fn tail(file: &Path, lines: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
    let all: Vec<&str> = text.lines().collect();
    let last = &all[all.len().saturating_sub(lines)..];
    last.iter().map(|line| format!("  {line}\n")).collect()
}

/// Has the kernel kill the child when this process dies.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and touches no memory.
    unsafe {
        command
            .pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into));
    }
}
