//! The daemon's configuration.

use super::{CgroupDriver, ContainerdOptions, network};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The longest path that fits into a `sockaddr_un`, without its final zero.
const LONGEST_SOCKET_PATH: usize = 107;

pub(super) fn path(work: &Path) -> PathBuf {
    work.join("containerd.toml")
}

/// The daemon's socket as the outside sees it: `/run` of the namespace is `<work>/run`.
pub(super) fn socket(work: &Path) -> PathBuf {
    work.join("run/containerd/containerd.sock")
}

/// Makes the directories and writes the configuration. `cgroup_root` is the hierarchy that runc will use.
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
    let runtime = runtime(options, cgroup_root)?;
    let path = path(&options.work);
    fs::write(&path, text(&runtime, options.driver))
        .with_context(|| format!("cannot write {}", path.display()))
}

const NO_SHARES: &str = r#"s/"cpu":{"shares":[0-9]*}/"cpu":{}/"#;
const NO_DEVICE_RULES: &str = r#"s/"devices":\[{"allow"[^]]*\]/"devices":[]/"#;

const OLD_VERSION: &str = r#"s/"ociVersion":"[^"]*"/"ociVersion":"1.0.2"/"#;

/// The OCI runtime itself, or a script that first changes in the bundle what does not work here:
///
/// * the CPU shares on a cgroup2 hierarchy without the cpu controller (a hybrid machine's): containerd gives every
///   sandbox two shares (`WithDefaultSandboxShares`), and runc then fails for want of cpu.weight;
/// * for crun, the device rules where no more memory may be locked: crun raises that limit before it loads them as a
///   program (`libcrun_ebpf_load`, ebpf.c);
/// * for crun, the version of the specification: Debian's crun 1.8 refuses those after 1.0.
fn runtime(options: &ContainerdOptions, cgroup_root: &Path) -> Result<PathBuf> {
    let controllers = fs::read_to_string(cgroup_root.join("cgroup.controllers"))
        .with_context(|| format!("{} is no cgroup2 file system", cgroup_root.display()))?;
    let can_share = controllers.split_whitespace().any(|controller| controller == "cpu");
    let unlimited = Rlimit { current: None, maximum: None };
    let is_crun = options.oci_runtime.ends_with("crun");
    let can_lock = !is_crun || setrlimit(Resource::Memlock, unlimited).is_ok();
    let edits = [(can_share, NO_SHARES), (can_lock, NO_DEVICE_RULES), (!is_crun, OLD_VERSION)];
    let edits: Vec<&str> =
        edits.into_iter().filter(|(can, _)| !can).map(|(_, edit)| edit).collect();
    if edits.is_empty() {
        return Ok(options.oci_runtime.clone());
    }
    let script = format!(
        r#"#!/bin/sh
for word; do
  [ "$before" = --bundle ] && sed -i '{}' "$word/config.json"
  before=$word
done
exec '{}' "$@"
"#,
        edits.join("; "),
        options.oci_runtime.display(),
    );
    write_script(&options.work.join("run/runtime"), &script)?;
    Ok("/run/runtime".into())
}

pub(super) fn write_script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// * Version 2 is what 1.7 knows. Later daemons migrate it as they start.
/// * `opt` would make /opt/containerd, AppArmor would load a profile into the machine's kernel.
/// * The native snapshotter works on every file system, and copying one small binary costs nothing.
/// * Without CAP_SYS_RESOURCE no score below the daemon's own can be set.
/// * Unprivileged ports and ICMP are sysctls of a pod, which crun sets where /proc/sys is read-only.
fn text(runtime: &Path, driver: CgroupDriver) -> String {
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
  enable_unprivileged_icmp = false
  enable_unprivileged_ports = false
  disable_apparmor = true

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = {runtime:?}
        SystemdCgroup = {is_systemd}

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins:?}
    conf_dir = {networks:?}
"#,
        is_systemd = driver == CgroupDriver::Systemd,
        image = crate::image::NAME,
        plugins = network::PLUGINS,
        networks = network::NETWORKS,
    )
}
