//! A private containerd and runc, in their own mount namespace, on this machine's kernel and
//! cgroups. The machine's own containerd, its /run, /var/lib and sysctls are never touched.
//!
//! ```text
//! let containerd = Containerd::start(ContainerdOptions::new("/tmp/coroner-lab", workload)).await?;
//! image::build(workload, &archive)?;
//! containerd.import(&archive).await?;                     // sandbox image and workload: image::NAME
//! let cri = RuntimeServiceClient::new(containerd::connect(&containerd.endpoint()).await?);
//! // RunPodSandbox: network namespace NODE, or POD: see `cni_dir`; linux.cgroup_parent =
//! //   format!("{}/kubepods/besteffort/pod{uid}", containerd.cgroup_parent())
//! // No cpu, memory or pids limits: the hierarchy may lack those controllers.
//! containerd.stop().await?;                               // nothing remains
//! ```
//!
//! Everything lives below one work directory, which also names the lab's own top-level cgroup, so
//! that [`clean_up`] finds what an earlier run left behind: by the processes whose `/run` *is* the
//! work directory's, and by the cgroup.
//!
//! The mount namespace is kept by a process of its own and outlives the daemon, as a node's does: mounts
//! that one daemon makes (`/run/netns/cni-…`) are there for the next one. They are not seen below
//! the work directory, where those are empty files, but below [`Containerd::host_root`]. The same process keeps
//! the network namespace with the bridge of the pods' network, in which nothing else runs.

mod config;
mod find;
mod forgotten;
mod leftovers;
mod namespace;
mod network;
mod process;
mod systemd;

pub use find::{find, has_user_namespaces, program, target_directory, tools, version};
pub use forgotten::{KeptNetwork, Orphans};
pub use leftovers::clean_up;
pub use leftovers::{
    FREEZER, FREEZER_STATE, cgroup_parent, end_cgroup, ensure_free, give_up, lock, unmount_freezer,
};
pub use namespace::hand_memory_down;
pub use systemd::Systemctl;

use crate::{network::Network, wait};
use anyhow::{Context, Result, bail, ensure};
use coroner_cri_api::v1::{
    ImageSpec, ImageStatusRequest, VersionRequest, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use hyper_util::rt::TokioIo;
use namespace::NodeNamespaces;
use process::{ContainerdProcess, describe};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Where the daemon writes down the state of containers, in the work directory.
const CHECKPOINTS: &str = "lib/containerd/io.containerd.grpc.v1.cri/containers";

/// Which cgroup hierarchy runc is made to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupHierarchy {
    /// cgroup v2, on a hybrid machine the otherwise unused one at /sys/fs/cgroup/unified.
    Unified,
    /// cgroup v1, as the machine has it mounted.
    Legacy,
}

/// Who makes the cgroups of pods and containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupDriver {
    /// The kubelet and runc themselves.
    Cgroupfs,
    /// A systemd of the node's own, on cgroup v2 alone: on v1 a user's manager may not do it.
    Systemd,
}

/// Where cgroup v2 is mounted on this machine.
pub fn unified_hierarchy() -> Result<PathBuf> {
    namespace::Hierarchies::of_this_machine()?.root(CgroupHierarchy::Unified)
}

/// How to start it.
#[derive(Clone, Debug)]
pub struct ContainerdOptions {
    /// Where everything is kept; made if it is not there. Short, for a socket's path may have 107
    /// bytes, and on a file system that the outside sees.
    pub work: PathBuf,
    pub hierarchy: CgroupHierarchy,
    pub driver: CgroupDriver,
    /// The daemon; its `ctr` and `containerd-shim-runc-v2` stand beside it.
    pub containerd: PathBuf,
    /// runc, or crun.
    pub oci_runtime: PathBuf,
    /// The workload's binary, static: the network plugin of the lab.
    pub workload: PathBuf,
}

impl ContainerdOptions {
    /// The project's own containerd and runc, on cgroup v2.
    pub fn new(work: impl Into<PathBuf>, workload: impl Into<PathBuf>) -> ContainerdOptions {
        ContainerdOptions {
            work: work.into(),
            workload: workload.into(),
            hierarchy: CgroupHierarchy::Unified,
            driver: CgroupDriver::Cgroupfs,
            containerd: find::program("containerd"),
            oci_runtime: find::program("runc"),
        }
    }
}

/// A running private containerd. Dropping it removes everything, as [`Containerd::stop`] does.
#[derive(Debug)]
pub struct Containerd {
    options: ContainerdOptions,
    version: String,
    cgroup_root: PathBuf,
    /// The root of the hierarchy as the node sees it, where that is its own part: under systemd.
    own_root: Option<PathBuf>,
    /// Keeps the namespaces.
    holder: ContainerdProcess,
    /// The node's systemd lives as long.
    _systemd: Option<ContainerdProcess>,
    network: Network,
    daemon: ContainerdProcess,
    claim: Claim,
}

/// The work directory, which is this lab's. Dropped, it removes all that was made in and for it.
#[derive(Debug)]
struct Claim {
    work: PathBuf,
    removed: bool,
    _lock: File,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        if let Err(error) =
            leftovers::remove(&self.work).and_then(|()| leftovers::give_up(&self.work))
        {
            tracing::warn!("the lab's containerd left something behind: {error:#}");
        }
    }
}

impl Containerd {
    /// Removes what an earlier run left in the same work directory, then starts the daemon and
    /// waits until it answers.
    pub async fn start(options: ContainerdOptions) -> Result<Containerd> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "the lab runs a container runtime and needs root: use sudo"
        );
        let systemd: &[&str] = match options.driver {
            CgroupDriver::Systemd => &[systemd::SYSTEMD, systemd::SYSTEMCTL],
            CgroupDriver::Cgroupfs => &[],
        };
        let systemd = systemd.iter().map(|name| find::program(name));
        let runtime = [options.containerd.clone(), options.oci_runtime.clone()];
        for program in runtime.into_iter().chain(systemd) {
            ensure!(
                program.is_file(),
                "{} is not there: `cargo xtask setup` brings it, and --system-tools takes the machine's",
                program.display()
            );
        }
        ensure!(
            options.workload.is_file(),
            "{} is not there: build it (cargo xtask build)",
            options.workload.display()
        );
        let version = version(&options.containerd)?;
        fs::create_dir_all(&options.work)
            .with_context(|| format!("cannot make {}", options.work.display()))?;
        let options = ContainerdOptions { work: fs::canonicalize(&options.work)?, ..options };
        let lock = leftovers::lock(&options.work)?;
        let claim = Claim { work: options.work.clone(), removed: false, _lock: lock };
        leftovers::remove(&options.work)?;
        let hierarchies = namespace::Hierarchies::of_this_machine()?;
        let cgroup_root = hierarchies.root(options.hierarchy)?;
        let own_root = own_root(&options, &cgroup_root)?;
        config::write(&options, own_root.as_deref().unwrap_or(&cgroup_root))?;
        network::install(&options.work, &options.workload)?;
        let holder = hold_namespace(&options, &hierarchies, own_root.as_deref())?;
        let (node, addresses) = network::set_up(&options.work, holder.pid)?;
        let systemd = match &own_root {
            Some(root) => {
                let node = NodeNamespaces::of(holder.pid)?;
                Some(systemd::start(&options.work, root, node).await?)
            }
            None => None,
        };
        let daemon = start_daemon(&options, &holder, own_root.as_deref())?;
        let containerd = Containerd {
            options,
            version,
            cgroup_root,
            own_root,
            holder,
            _systemd: systemd,
            network: Network::node(node, addresses),
            daemon,
            claim,
        };
        containerd.wait_ready().await?;
        Ok(containerd)
    }

    /// `unix://…`, reachable from outside the private namespace.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        config::socket(&self.options.work)
    }

    /// The mount point, as the host sees it, of the hierarchy that runc uses. For
    /// [`CgroupHierarchy::Legacy`] that of the memory controller.
    pub fn cgroup_root(&self) -> &Path {
        &self.cgroup_root
    }

    /// The lab's own top-level cgroup, such as `/coroner-lab-3f2a91c0`: below it, `kubepods` keeps
    /// apart from that of any real node.
    pub fn cgroup_parent(&self) -> String {
        leftovers::cgroup_parent(&self.options.work)
    }

    /// The node's systemd, if that is the cgroup driver.
    pub fn systemctl(&self) -> Option<Systemctl> {
        self.own_root.as_ref().map(|_| Systemctl::of(&self.options.work))
    }

    /// The daemon's version, such as `1.6.20`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The daemon's log file.
    pub fn log(&self) -> PathBuf {
        self.options.work.join("containerd.log")
    }

    /// The daemon's process id; also of one that has been killed.
    pub fn pid(&self) -> u32 {
        self.daemon.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// The root directory as the daemon sees it, under a path that lasts as long as the lab: where an
    /// observer finds the lab's own /run and /var/lib, and the mounts below them. To be used as it
    /// is: made canonical, it is `/`.
    pub fn host_root(&self) -> PathBuf {
        format!("/proc/{}/root", self.holder.pid.as_raw_pid()).into()
    }

    /// The node's side of the pods' network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Where the network plugin of sandboxes with a namespace of their own keeps its things:
    /// `addresses` holds a file for each that is taken, in which the sandbox's id stands.
    pub fn cni_dir(&self) -> PathBuf {
        network::directory(&self.options.work)
    }

    /// Makes the network plugin refuse to take down the network of the pod of this name, or no more.
    pub fn fail_cni_delete(&self, pod: &str, fails: bool) -> Result<()> {
        network::fail_delete(&self.options.work, pod, fails)
            .context("cannot tell the network plugin")
    }

    /// Whether the daemon runs.
    pub fn runs(&self) -> bool {
        self.daemon.ended.borrow().is_none()
    }

    /// Kills the daemon with SIGKILL and waits for its end; containers and shims live on.
    pub async fn kill(&mut self) -> Result<()> {
        self.daemon.kill().await
    }

    /// Starts the daemon again on the same state and in the same namespace, after
    /// [`Containerd::kill`] or instead of it.
    pub async fn restart(&mut self) -> Result<()> {
        self.daemon.kill().await?;
        self.daemon = start_daemon(&self.options, &self.holder, self.own_root.as_deref())?;
        self.wait_ready().await
    }

    /// Imports an archive made by [`crate::image::build`] and waits until the CRI knows the image.
    pub async fn import(&self, archive: &Path) -> Result<()> {
        self.import_as(archive, &crate::image::NAMES).await
    }

    /// Imports an archive and waits until the CRI knows the images of these names.
    pub async fn import_as(&self, archive: &Path, names: &[&str]) -> Result<()> {
        let mut command = self.ctr();
        command.args(["images", "import", "--snapshotter", "native"]);
        if !self.version.starts_with("1.") {
            // The daemon's own import, the default since 2.0, unpacks for no other snapshotter than
            // its default.
            command.arg("--local");
        }
        run(command.arg(archive)).await?;
        let mut images = ImageServiceClient::new(connect(&self.endpoint()).await?);
        // An event inside containerd.
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

    /// Sends a signal to a container's main process past the CRI (`ctr task kill`).
    pub async fn kill_task(&self, container: &str, signal: &str) -> Result<()> {
        run(self.ctr().args(["tasks", "kill", "--signal", signal, container])).await
    }

    /// `ctr`, on the containers of pods.
    fn ctr(&self) -> tokio::process::Command {
        let ctr = self.options.containerd.with_file_name("ctr");
        let mut command = tokio::process::Command::new(ctr);
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]);
        command
    }

    /// Removes what the daemon has written down of a container's state, after [`Containerd::kill`]: the next
    /// daemon reports CONTAINER_UNKNOWN (`loadContainer`, internal/cri/server/restart.go).
    pub fn lose_status(&self, container: &str) -> Result<()> {
        ensure!(!self.runs(), "a daemon that runs has the state in memory");
        let status = self.options.work.join(CHECKPOINTS).join(container).join("status");
        fs::remove_file(&status).with_context(|| format!("cannot remove {}", status.display()))
    }

    /// Kills the daemon, the shims and all containers, and removes cgroups and directories.
    pub async fn stop(mut self) -> Result<()> {
        self.daemon.kill().await?;
        self.claim.removed = true;
        let work = self.options.work.clone();
        tokio::task::spawn_blocking(move || {
            leftovers::remove(&work)?;
            leftovers::give_up(&work)
        })
        .await
        .context("the clean-up panicked")?
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
            Ok(status) = ended.wait_for(Option::is_some) => match *status {
                Some(status) => format!("containerd ended with {}", describe(status)),
                None => "containerd ended".into(),
            },
        };
        bail!("{why}; {}", end_of(&self.log()))
    }
}

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last: Vec<&str> = text.lines().rev().take(5).collect();
    let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
    format!("the end of {}:\n{last}", log.display())
}

/// Makes the root of the hierarchy that the node has for itself under systemd.
fn own_root(options: &ContainerdOptions, cgroup_root: &Path) -> Result<Option<PathBuf>> {
    if options.driver == CgroupDriver::Cgroupfs {
        return Ok(None);
    }
    ensure!(
        options.hierarchy == CgroupHierarchy::Unified,
        "the lab has systemd as cgroup driver on cgroup v2 only"
    );
    let own = cgroup_root.join(cgroup_parent(&options.work).trim_start_matches('/'));
    systemd::make_root(&own)?;
    Ok(Some(own))
}

/// Makes the namespaces, with a process in them that does nothing else.
fn hold_namespace(
    options: &ContainerdOptions,
    machine: &namespace::Hierarchies,
    root: Option<&Path>,
) -> Result<ContainerdProcess> {
    let mut command = Command::new(network::program());
    command.arg("pause").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let binds = namespace::plan(&options.work, options.hierarchy, machine, root)?;
    namespace::make_on_exec(&mut command, binds, root)?;
    ContainerdProcess::start("namespace", command)
        .context("cannot make the lab's mount and network namespaces")
}

fn start_daemon(
    options: &ContainerdOptions,
    holder: &ContainerdProcess,
    own_root: Option<&Path>,
) -> Result<ContainerdProcess> {
    let log = options.work.join("containerd.log");
    let output = File::options().create(true).append(true).open(&log)?;
    let mut command = Command::new(&options.containerd);
    command
        .env("PATH", find::path_with(&options.containerd))
        .arg("--config")
        .arg(config::path(&options.work))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    let cgroup = own_root.map(systemd::daemon);
    namespace::join_on_exec(&mut command, NodeNamespaces::of(holder.pid)?, cgroup.as_deref())?;
    ContainerdProcess::start("containerd", command)
        .with_context(|| format!("see {}", log.display()))
}

/// Runs a command to its end; if it fails, what it wrote is in the error.
async fn run(command: &mut tokio::process::Command) -> Result<()> {
    let output = command.output().await;
    let command = command.as_std();
    let output = output.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

/// A channel to a CRI endpoint such as `unix:///run/containerd/containerd.sock`.
pub async fn connect(endpoint: &str) -> Result<Channel> {
    let Some(path) = endpoint.strip_prefix("unix://") else {
        bail!("{endpoint} is not a unix:// endpoint");
    };
    let path = PathBuf::from(path);
    // The address is not used, but tonic wants one.
    Endpoint::from_static("http://cri.invalid")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .with_context(|| format!("cannot connect to {endpoint}"))
}
