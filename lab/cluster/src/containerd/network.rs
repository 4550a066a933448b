//! The pods' network: a bridge in the lab's own network namespace, and a plugin (CNI) that connects sandboxes
//! with it, so that nothing of the machine's own network is touched. The workload's binary is that plugin.

use anyhow::{Context, Result};
use coroner_workload::network::{self, Dual};
use rustix::process::Pid;
use serde_json::json;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The plugin's name, and the network's.
const NAME: &str = "coroner-lab";
/// The plugin that containerd calls beside it for every sandbox.
const LOOPBACK: &str = "loopback";

/// Below the work directory's `run`, which is the namespace's /run.
const DIRECTORY: &str = "cni";
const PLUGINS: &str = "bin";
const CONFIGURATION: &str = "net.d";
const ADDRESSES: &str = "addresses";
const FAIL_DEL: &str = "fail-del-";

/// The directory as the outside sees it.
pub(super) fn directory(work: &Path) -> PathBuf {
    work.join("run").join(DIRECTORY)
}

/// The plugins' directory as containerd sees it.
pub(super) fn plugins() -> PathBuf {
    inside(PLUGINS)
}

/// The configurations' directory as containerd sees it.
pub(super) fn configuration() -> PathBuf {
    inside(CONFIGURATION)
}

/// The workload's binary as the namespace sees it: under this name it is the plugin, and anything
/// that its command line says where no plugin is called.
pub(super) fn program() -> PathBuf {
    inside(PLUGINS).join(NAME)
}

fn inside(name: &str) -> PathBuf {
    Path::new("/run").join(DIRECTORY).join(name)
}

/// The addresses that are taken, a file for each, in which the sandbox's id stands.
pub(super) fn addresses(work: &Path) -> PathBuf {
    directory(work).join(ADDRESSES)
}

/// Puts the plugin there.
pub(super) fn install(work: &Path, workload: &Path) -> Result<()> {
    let directory = directory(work);
    for name in [PLUGINS, CONFIGURATION, ADDRESSES] {
        fs::create_dir_all(directory.join(name))?;
    }
    let plugin = directory.join(PLUGINS).join(NAME);
    fs::copy(workload, &plugin)
        .with_context(|| format!("cannot copy {} to {}", workload.display(), plugin.display()))?;
    Ok(fs::hard_link(&plugin, plugin.with_file_name(LOOPBACK))?)
}

/// The network namespace of a process.
fn namespace(process: Pid) -> PathBuf {
    format!("/proc/{}/ns/net", process.as_raw_pid()).into()
}

/// Makes the bridge in the namespace of this process, which keeps it, and the plugin's configuration. The
/// namespace, and the node's addresses in it.
pub(super) fn set_up(work: &Path, holder: Pid) -> Result<(File, Dual)> {
    let path = namespace(holder);
    let node = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let addresses = network::make_bridge(&node).context("the lab has no network for its pods")?;
    let network = json!({
        "cniVersion": "1.0.0",
        "name": NAME,
        "plugins": [{ "type": NAME, "addresses": inside(ADDRESSES), "node": path }],
    });
    let file = directory(work).join(CONFIGURATION).join("10-coroner-lab.conflist");
    fs::write(&file, network.to_string())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok((node, addresses))
}

/// Makes the plugin's DEL fail for the pod of this name from now on, or no more.
pub(super) fn fail_delete(work: &Path, pod: &str, fails: bool) -> io::Result<()> {
    let file = addresses(work).join(format!("{FAIL_DEL}{pod}"));
    if fails {
        return fs::write(file, "");
    }
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
