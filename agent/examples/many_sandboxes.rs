//! How much memory and CPU the agent takes on a node full of leaked sandboxes: serves a runtime with
//! that many NotReady sandboxes and exited containers, and an apiserver that knows none of their
//! pods, starts the real agent on them, and prints what the kernel says of it until all leaks are
//! told and longer. Needs root, as the agent does.
//!
//! ```text
//! cargo build -p coroner && cargo run -p coroner --example many_sandboxes [NUMBER [lists|streams]]
//! ```

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/kube/apiserver.rs"]
mod apiserver;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/cri/runtime.rs"]
mod runtime;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/cri/things.rs"]
mod things;

use apiserver::{FakeApiserver, Script};
use coroner_cri_api::v1::{ContainerState, ListContainersResponse, ListPodSandboxResponse};
use prost::Message;
use runtime::{Call, FakeRuntime};
use serde_json::json;
use std::{
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};
use things::{leaked_container, leaked_sandbox, status};

/// As many as a message of 16 MiB holds (KEP-5825).
const NUMBER: usize = 14_000;

/// How long it is watched.
const SECONDS: u64 = 120;

/// What the agent is held to, MiB.
const GOAL: u64 = 96;

/// The agent; killed if the example ends early.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledOnDrop {
    /// Peak and present resident memory, MiB.
    fn memory(&self) -> Option<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).ok()?;
        let field = |name: &str| -> Option<u64> {
            let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(rest.split_ascii_whitespace().next()?.parse::<u64>().ok()? >> 10)
        };
        Some((field("VmHWM:")?, field("VmRSS:")?))
    }

    /// CPU time that it has used, seconds: utime and stime of /proc/PID/stat, in clock ticks.
    fn cpu(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace().skip(11).map(str::parse::<f64>);
        Some((fields.next()?.ok()? + fields.next()?.ok()?) / 100.0)
    }

    /// Leaks that it has told, by its metrics.
    fn told(&self, address: SocketAddr) -> Option<u64> {
        let mut socket = TcpStream::connect(address).ok()?;
        socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        let values = text.lines().filter(|line| line.starts_with("coroner_leaked_sandboxes{"));
        values.map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    let number = arguments.next().map_or(NUMBER, |text| text.parse().expect("a number"));
    let streams = arguments.next().is_some_and(|how| how == "streams");

    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.streams = streams.then_some(500);
        for n in 0..number {
            let container = leaked_container(n);
            let id = container.id.clone();
            state.statuses.insert(id.clone(), status(&id, ContainerState::ContainerExited, 0));
            state.containers.push(container);
            state.sandboxes.push(leaked_sandbox(n));
        }
        let items = state.sandboxes.clone();
        let containers = state.containers.clone();
        println!(
            "{number} sandboxes ({} KiB) and {number} containers ({} KiB), as {}",
            ListPodSandboxResponse { items }.encoded_len() >> 10,
            ListContainersResponse { containers }.encoded_len() >> 10,
            if streams { "streams" } else { "lists" },
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let _serving = runtime.serve(&socket);

    let here = env::current_exe().expect("this program has a path");
    let binary = here.parent().and_then(|it| it.parent()).expect("a folder").join("coroner");
    let apiserver = FakeApiserver::start(Script { version: 10, ..Script::default() });
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let node = json!({
        "kind": "Node", "apiVersion": "v1", "metadata": { "name": "n1" },
        "status": { "nodeInfo": { "bootID": boot.trim(), "kubeletVersion": "v1.23.1" } },
    });
    apiserver.script().gets.insert("nodes/n1".into(), (200, node));
    let kubeconfig = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", apiserver.address) } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
    });
    fs::write(&kubeconfig, config.to_string()).expect("a kubeconfig");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let address = free.expect("a free port");
    let agent = Command::new(binary)
        .args(["run", "--node", "n1", "--leak-threshold", "10s"])
        .args(["--listen", &address.to_string(), "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("--runtime-endpoint")
        .arg(&socket)
        .env("CORONER_LOG_LEVEL", "error")
        .spawn()
        .expect("cargo build -p coroner makes the agent");
    let agent = KilledOnDrop(agent);
    let full = |state: &runtime::RuntimeState| {
        let list = |call: &&Call| match call {
            Call::ContainerStream => true,
            Call::Containers(only) => only.is_empty(),
            _ => false,
        };
        state.calls.iter().filter(list).count()
    };
    let mut before = 0.0;
    for second in 1..=SECONDS {
        sleep(Duration::from_secs(1));
        let Some((peak, now)) = agent.memory() else { panic!("the agent ended") };
        if second % 5 == 0 {
            let state = runtime.state();
            let statuses =
                state.calls.iter().filter(|call| matches!(call, Call::Status { .. })).count();
            let cpu = agent.cpu().unwrap_or_default();
            println!(
                "{second:3} s: peak {peak} MiB, now {now} MiB; {:.1} % of a CPU; {} leaks told; {} \
                 full lists, {statuses} statuses",
                (cpu - before) / 5.0 * 100.0,
                agent.told(address).unwrap_or_default(),
                full(&state)
            );
            before = cpu;
        }
    }
    let (peak, _) = agent.memory().expect("the agent runs");
    assert!(peak <= GOAL, "the peak of {peak} MiB is above {GOAL} MiB");
}
