//! The daemon's configuration.

use super::{CgroupDriver, CgroupHierarchy, ContainerdOptions, network};
use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The longest path that fits into a `sockaddr_un`, without its final zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// Where the daemon's configuration is.
pub(super) fn path(work: &Path) -> PathBuf {
    work.join("containerd.toml")
}

/// The daemon's socket, as the outside sees it: `/run` of the namespace is `<work>/run`.
pub(super) fn socket(work: &Path) -> PathBuf {
    work.join("run/containerd/containerd.sock")
}

/// Makes the directories and writes the configuration. `cgroup_root` is the hierarchy that runc
/// will use.
pub(super) fn write(options: &ContainerdOptions, cgroup_root: &Path) -> Result<()> {
    let socket = socket(&options.work);
    ensure!(
        socket.as_os_str().len() <= LONGEST_SOCKET_PATH,
        "{} is too long for a socket: choose a shorter work directory",
        socket.display()
    );
    for directory in ["run/proc", "lib/containerd/tmp"] {
        fs::create_dir_all(options.work.join(directory))?;
    }
    let path = path(&options.work);
    let runc = runtime(options, cgroup_root)?;
    fs::write(&path, text(&runc, options.driver))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The OCI runtime itself, or a script that first takes out of the bundle what it cannot have here:
///
/// * the CPU shares on a cgroup2 hierarchy without the cpu controller (a hybrid machine's): containerd gives every
///   sandbox two shares, whatever the request says (`WithDefaultSandboxShares`), and runc then fails for want of
///   cpu.weight;
/// * for crun, the device rules where no more memory may be locked: it raises that limit before it loads them as a
///   program (`libcrun_ebpf_load`, ebpf.c).
fn runtime(options: &ContainerdOptions, cgroup_root: &Path) -> Result<PathBuf> {
    let can_share = options.hierarchy == CgroupHierarchy::Legacy
        || fs::read_to_string(cgroup_root.join("cgroup.controllers"))
            .with_context(|| format!("{} is no cgroup2 file system", cgroup_root.display()))?
            .split_whitespace()
            .any(|controller| controller == "cpu");
    let is_crun = options.oci_runtime.ends_with("crun");
    let unlimited = Rlimit { current: None, maximum: None };
    let can_lock = !is_crun || setrlimit(Resource::Memlock, unlimited).is_ok();
    let edits = [(can_share, NO_SHARES), (can_lock, NO_DEVICE_RULES)];
    let edits: Vec<&str> =
        edits.into_iter().filter(|(can, _)| !can).map(|(_, edit)| edit).collect();
    if edits.is_empty() {
        return Ok(options.oci_runtime.clone());
    }
    let runtime = options.oci_runtime.to_str().context("the OCI runtime's path is not UTF-8")?;
    let script = options.work.join("run/runtime");
    fs::write(&script, without(&edits, runtime))
        .with_context(|| format!("cannot write {}", script.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok("/run/runtime".into())
}

const NO_SHARES: &str = r#"s/"cpu":{"shares":[0-9]*}/"cpu":{}/"#;
const NO_DEVICE_RULES: &str = r#"s/"devices":\[{"allow"[^]]*\]/"devices":[]/"#;

fn without(edits: &[&str], runtime: &str) -> String {
    format!(
        r#"#!/bin/sh
# Written by coroner's lab: this machine cannot give a container what this takes out.
for word; do
  [ "$before" = --bundle ] && sed -i '{}' "$word/config.json"
  before=$word
done
exec '{}' "$@"
"#,
        edits.join("; "),
        runtime.replace('\'', r"'\''")
    )
}

/// * Version 2 is what 1.6 and 1.7 know. Later daemons migrate it as they start, and know where each
///   key has gone: the sandbox image, the snapshotter and the network among them.
/// * `opt` would make /opt/containerd, AppArmor would load a profile into the machine's kernel.
/// * The native snapshotter works on every file system, and copying one small binary costs nothing.
/// * Without CAP_SYS_RESOURCE no score below the daemon's own can be set.
fn text(runc: &Path, driver: CgroupDriver) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
temp = "/var/lib/containerd/tmp"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {image:?}
  restrict_oom_score_adj = true
  disable_apparmor = true

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = {runc:?}
        SystemdCgroup = {is_systemd}

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins:?}
    conf_dir = {networks:?}
"#,
        is_systemd = driver == CgroupDriver::Systemd,
        image = crate::image::NAME,
        plugins = network::plugins(),
        networks = network::configuration(),
    )
}
