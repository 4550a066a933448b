//! The pods' network: Debian's CNI plugins, and a bridge in a network namespace of the lab's own, so that nothing of the
//! machine's network is touched. containerd calls a script, which calls `bridge` in that namespace, or fails.

use super::{
    config::write_script,
    namespace::{hold_network, namespace},
    process::Process,
    *,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    sync::Arc,
    thread,
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// As containerd sees them.
pub(super) const PLUGINS: &str = "/run/cni/bin";
pub(super) const NETWORKS: &str = "/run/cni/net.d";
const ADDRESSES: &str = "/run/cni/addresses";
const FAILING: &str = "/run/cni/failing";
/// The script's name, and the network's.
const NAME: &str = "lab";

/// A network namespace. It lasts for as long as this.
#[derive(Clone, Debug)]
pub struct Network {
    namespace: Arc<File>,
    /// IPv4 first, where they are known.
    pub addresses: Vec<IpAddr>,
    /// Of another node: what holds it.
    _holder: Option<Arc<KillOnDrop>>,
}

#[derive(Debug)]
struct KillOnDrop(Process);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::KILL);
    }
}

impl Network {
    pub fn of_process(pid: i32) -> Result<Self> {
        let pid = rustix::process::Pid::from_raw(pid).context("not a process")?;
        let namespace = Arc::new(namespace(pid, "net")?);
        Ok(Self { namespace, addresses: Vec::new(), _holder: None })
    }

    /// Moves the calling thread there.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Does it on a thread of its own, which is in the namespace: a socket stays in the one in which it was made.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let enter = || self.enter().and_then(|()| what());
        let done = thread::scope(|scope| scope.spawn(enter).join());
        done.unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace panicked")))
    }

    /// A connection from here.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.inside(|| match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        })?;
        socket.connect(to).await
    }

    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let listener = self.inside(|| std::net::TcpListener::bind(at))?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// Connections and bytes that wait at a TCP port: where there are none, the server has seen all that clients have
    /// sent. From /proc/net/tcp, whose fifth field is `tx_queue:rx_queue`; a listener's is the number of connections to
    /// be accepted (`get_tcp4_sock`).
    pub fn unread(&self, port: u16) -> Result<u64> {
        let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let tables = self.inside(|| Ok(table("tcp")? + &table("tcp6").unwrap_or_default()))?;
        let received = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (_, local) = fields.get(1)?.rsplit_once(':')?;
            let (_, queue) = fields.get(4)?.split_once(':')?;
            let is_it = u16::from_str_radix(local, 16) == Ok(port);
            is_it.then(|| u64::from_str_radix(queue, 16).ok())?
        };
        Ok(tables.lines().filter_map(received).sum())
    }
}

/// A path of the namespace as the outside sees it.
fn outside(work: &Path, path: &str) -> PathBuf {
    work.join(path.trim_start_matches('/'))
}

/// Puts the plugins and the configuration there. The node's side of the network.
pub(super) fn set_up(options: &ContainerdOptions, holder: &Process) -> Result<Network> {
    let work = &options.work;
    for directory in [PLUGINS, NETWORKS, ADDRESSES, FAILING] {
        fs::create_dir_all(outside(work, directory))?;
    }
    let (plugins, bin) = (&options.plugins, outside(work, PLUGINS));
    for plugin in ["host-local", "loopback"] {
        std::os::unix::fs::symlink(plugins.join(plugin), bin.join(plugin))?;
    }
    let script = format!(
        r#"#!/bin/sh
pod=${{CNI_ARGS##*K8S_POD_NAME=}}
if [ $CNI_COMMAND = DEL ] && [ -f "{FAILING}/${{pod%%;*}}" ]; then
  echo '{{"cniVersion":"1.0.0","code":999,"msg":"the lab lets this plugin fail"}}'
  exit 1
fi
exec nsenter --net=/proc/{}/ns/net '{}'
"#,
        holder.pid.as_raw_pid(),
        plugins.join("bridge").display(),
    );
    write_script(&bin.join(NAME), &script)?;
    let list = json!({ "cniVersion": "1.0.0", "name": NAME, "plugins": [plugin()] });
    fs::write(outside(work, NETWORKS).join("lab.conflist"), list.to_string())?;
    let namespace = Arc::new(namespace(holder.pid, "net")?);
    // The bridge plugin gives the bridge the first address of each subnet.
    let addresses = vec![[10, 244, 0, 1].into(), [0xfd63, 0x6f72, 0x6f6e, 0, 0, 0, 0, 1].into()];
    let network = Network { namespace, addresses, _holder: None };
    // The plugin sets them if they are not, and cannot where /proc/sys is read-only.
    network.inside(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").or(Ok(()))
    })?;
    Ok(network)
}

fn plugin() -> Value {
    let v4 = json!([{ "subnet": "10.244.0.0/16" }]);
    let v6 = json!([{ "subnet": "fd63:6f72:6f6e::/64" }]);
    let has_v6 = Path::new("/proc/net/if_inet6").exists();
    let ranges = if has_v6 { vec![v4, v6] } else { vec![v4] };
    json!({
        "type": NAME, "bridge": "lab0", "isGateway": true,
        "ipam": { "type": "host-local", "dataDir": ADDRESSES, "ranges": ranges },
    })
}

/// Connects a network namespace of its own with the bridge.
pub(super) fn other_node(holder: &Process) -> Result<Network> {
    let process = hold_network(&cleanup::cgroup_of(holder.pid, &unified_hierarchy()?)?)?;
    let mut config = plugin();
    config["cniVersion"] = "1.0.0".into();
    config["name"] = NAME.into();
    let namespace = Arc::new(namespace(process.pid, "net")?);
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--mount=/proc/{}/ns/mnt", holder.pid.as_raw_pid()));
    nsenter.arg(Path::new(PLUGINS).join(NAME)).stdin(Stdio::piped()).stdout(Stdio::piped());
    nsenter.envs([
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "other-node"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", PLUGINS),
    ]);
    nsenter.env("CNI_NETNS", format!("/proc/{}/ns/net", process.pid.as_raw_pid()));
    let mut child = nsenter.spawn().context("cannot run nsenter")?;
    if let Some(mut stdin) = child.stdin.take() {
        io::Write::write_all(&mut stdin, config.to_string().as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the CNI plugin failed: {text}");
    let result: Value = serde_json::from_str(&text).context("the CNI plugin's result")?;
    let ips = result["ips"].as_array().into_iter().flatten();
    let ips = ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok());
    let addresses = ips.collect();
    Ok(Network { namespace, addresses, _holder: Some(Arc::new(KillOnDrop(process))) })
}

pub(super) fn set_works(work: &Path, pod: &str, works: bool) -> Result<()> {
    let file = outside(work, FAILING).join(pod);
    let done = if works { fs::remove_file(&file) } else { fs::write(&file, "") };
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
