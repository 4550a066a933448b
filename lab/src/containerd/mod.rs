//! A private containerd and runc in a mount namespace of their own, on this machine's kernel and cgroups. The
//! machine's own containerd, its /run, /var/lib and sysctls are never touched.
//!
//! Everything lives in one work directory and, with all processes, in one cgroup that is named after it: [`cleanup`]
//! kills that cgroup and removes that directory.
//!
//! The mount namespace is held by a process of its own and outlives the daemon, as a node's does. Mounts in it are
//! seen below [`Containerd::host_root`]. The same process holds the network namespace with the bridge of the pods.

mod config;
mod find;
mod namespace;
mod network;
mod orphans;
mod process;
mod systemd;

pub mod cleanup;

pub use find::{default_version, find, plugins, program, target_directory, tools, version};
pub use namespace::{enter_group, hand_memory_down, members, unified_hierarchy};
pub use network::Network;
pub use orphans::{KeptNetwork, Orphans};
pub use systemd::Systemctl;

pub(crate) use namespace::mount_point;

use crate::wait;
use anyhow::{Context as _, Result, bail, ensure};
use coroner_cri_api::v1::{
    ImageSpec, ImageStatusRequest, VersionRequest, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use hyper_util::rt::TokioIo;
use process::Process;
use rustix::process::Signal;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// The runtime as a client sees it; clones share one connection.
pub type Cri = RuntimeServiceClient<Channel>;

/// Who makes the cgroups of pods and containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum CgroupDriver {
    /// The driver and runc themselves.
    Cgroupfs,
    /// A systemd of the node's own.
    Systemd,
}

#[derive(Clone, Debug)]
pub struct ContainerdOptions {
    /// Where everything is kept. Short, because a socket's path may have 107 bytes.
    pub work: PathBuf,
    pub driver: CgroupDriver,
    /// The daemon; its `ctr` and `containerd-shim-runc-v2` are in the same directory.
    pub containerd: PathBuf,
    /// runc or crun.
    pub oci_runtime: PathBuf,
    /// The directory of the CNI plugins.
    pub plugins: PathBuf,
}

/// A running private containerd. Dropping it removes everything, as [`Containerd::stop`] does.
#[derive(Debug)]
pub struct Containerd {
    options: ContainerdOptions,
    version: String,
    cgroup_root: PathBuf,
    /// Holds the namespaces.
    holder: Process,
    /// The node's systemd lives as long.
    _systemd: Option<Process>,
    network: Network,
    daemon: Process,
    /// The daemon's cgroup.
    group: PathBuf,
    claim: cleanup::Claim,
}

impl Containerd {
    /// Removes what an earlier run left in the same work directory, then starts the daemon and waits until it answers.
    pub async fn start(options: ContainerdOptions) -> Result<Self> {
        for program in [&options.containerd, &options.oci_runtime, &options.plugins.join("bridge")]
        {
            ensure!(
                program.is_file(),
                "{} is not there: `cargo xtask setup` installs it",
                program.display()
            );
        }
        let version = version(&options.containerd)?;
        let claim = cleanup::claim(&options.work)?;
        let options = ContainerdOptions { work: claim.work().to_owned(), ..options };
        let cgroup_root = unified_hierarchy()?;
        let own = claim.cgroup();
        let group = own.join(match options.driver {
            CgroupDriver::Cgroupfs => "runtime",
            CgroupDriver::Systemd => systemd::DAEMON,
        });
        fs::create_dir_all(&group)
            .with_context(|| format!("cannot make cgroup {}", group.display()))?;
        hand_memory_down(&cgroup_root);
        let root = match options.driver {
            CgroupDriver::Cgroupfs => &cgroup_root,
            CgroupDriver::Systemd => own,
        };
        config::write(&options, root)?;
        let holder = namespace::hold(&options, root, &group)?;
        let network = network::set_up(&options, &holder)?;
        let systemd = match options.driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => Some(systemd::start(&options.work, own, &holder).await?),
        };
        let daemon = start_daemon(&options, &holder, &group)?;
        let containerd = Self {
            options,
            version,
            cgroup_root,
            holder,
            _systemd: systemd,
            network,
            daemon,
            group,
            claim,
        };
        containerd.wait_ready().await?;
        Ok(containerd)
    }

    /// `unix://…`, reachable from outside of the private namespace.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", config::socket(&self.options.work).display())
    }

    /// Where the cgroup2 hierarchy is mounted on this machine.
    pub fn cgroup_root(&self) -> &Path {
        &self.cgroup_root
    }

    /// The lab's own cgroup, such as `/coroner-lab-3f2a91c0`: its `kubepods` is apart from that of any real node.
    pub fn cgroup(&self) -> String {
        cleanup::cgroup_name(&self.options.work)
    }

    /// The node's systemd, if that is the cgroup driver.
    pub fn systemctl(&self) -> Option<Systemctl> {
        (self.options.driver == CgroupDriver::Systemd).then(|| Systemctl::new(&self.options.work))
    }

    /// The daemon's version, such as `2.1.9`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The root directory as the daemon sees it. To be used as it is: made canonical, it is `/`.
    pub fn host_root(&self) -> PathBuf {
        format!("/proc/{}/root", self.holder.pid.as_raw_pid()).into()
    }

    /// The node's side of the pods' network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Another node's network on the same bridge: its address is not this node's.
    pub fn other_node(&self) -> Result<Network> {
        network::other_node(&self.holder)
    }

    /// Lets the network plugin fail for the pod of this name, or work again.
    pub fn set_network(&self, pod: &str, works: bool) -> Result<()> {
        network::set_works(&self.options.work, pod, works)
    }

    pub fn runs(&self) -> bool {
        self.daemon.ended.borrow().is_none()
    }

    /// Kills the daemon with SIGKILL and waits for its exit; containers and shims keep running.
    pub async fn kill(&mut self) -> Result<()> {
        self.daemon.kill().await
    }

    /// Starts the daemon again on the same state and in the same namespaces.
    pub async fn restart(&mut self) -> Result<()> {
        self.daemon.kill().await?;
        self.daemon = start_daemon(&self.options, &self.holder, &self.group)?;
        self.wait_ready().await
    }

    /// The daemon answers nobody, or continues.
    pub fn set_hung(&self, hung: bool) -> Result<()> {
        self.daemon.signal(if hung { Signal::STOP } else { Signal::CONT })
    }

    /// Imports an image archive and waits until the CRI has the images of these names.
    pub async fn import(&self, archive: &Path, names: &[&str]) -> Result<()> {
        let mut ctr = tokio::process::Command::new(self.options.containerd.with_file_name("ctr"));
        ctr.arg("--address").arg(config::socket(&self.options.work));
        ctr.args(["--namespace", "k8s.io", "images", "import", "--snapshotter", "native"]);
        if !self.version.starts_with("1.") {
            // The daemon's own import, the default since 2.0, unpacks for no other snapshotter than its default.
            ctr.arg("--local");
        }
        let output = ctr.arg(archive).output().await.context("cannot run ctr")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ctr images import: {}", said.trim());
        let mut images = ImageServiceClient::new(connect(&self.endpoint()).await?);
        wait::asking(format!("the CRI has {}", names.join(", ")), async || {
            let mut known = true;
            for &name in names {
                let image = ImageSpec { image: name.into(), ..Default::default() };
                let request = ImageStatusRequest { image: Some(image), verbose: false };
                let answer = images.image_status(request).await;
                known &= answer.is_ok_and(|answer| answer.into_inner().image.is_some());
            }
            Ok(known.then_some(()))
        })
        .await
    }

    /// Kills all processes, and removes cgroups and directories; what remains is an error.
    pub async fn stop(mut self) -> Result<()> {
        self.daemon.kill().await?;
        tokio::task::spawn_blocking(move || self.claim.remove()).await.context("it panicked")?
    }

    async fn wait_ready(&self) -> Result<()> {
        let mut ended = self.daemon.ended.clone();
        let answers = wait::asking("containerd answers", async || {
            let Ok(channel) = connect(&self.endpoint()).await else { return Ok(None) };
            let version = VersionRequest { version: "v1".into() };
            Ok(RuntimeServiceClient::new(channel).version(version).await.ok().map(drop))
        });
        let why = tokio::select! {
            answered = answers => match answered {
                Ok(()) => return Ok(()),
                Err(error) => format!("{error:#}"),
            },
            _ = ended.wait_for(Option::is_some) => "containerd exited".into(),
        };
        bail!("{why}; {}", end_of(&self.options.work.join(LOG)))
    }
}

/// The daemon's log in the work directory.
const LOG: &str = "containerd.log";

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    format!("the end of {}:\n{}", log.display(), crate::agent::tail(log, 5))
}

fn start_daemon(options: &ContainerdOptions, holder: &Process, cgroup: &Path) -> Result<Process> {
    let log = File::options().create(true).append(true).open(options.work.join(LOG))?;
    let mut command = Command::new(&options.containerd);
    command
        .env("PATH", find::path_with(&options.containerd))
        .arg("--config")
        .arg(config::path(&options.work))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    namespace::join_on_exec(&mut command, holder.pid, cgroup)?;
    Process::start("containerd", command)
}

/// A channel to a CRI endpoint such as `unix:///run/containerd/containerd.sock`.
pub async fn connect(endpoint: &str) -> Result<Channel> {
    let path = endpoint.strip_prefix("unix://").map(PathBuf::from);
    let path = path.with_context(|| format!("{endpoint} is not a unix:// endpoint"))?;
    // The address is not used, but tonic wants one.
    Endpoint::from_static("http://cri.invalid")
        .connect_timeout(Duration::from_secs(5))
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .with_context(|| format!("cannot connect to {endpoint}"))
}
