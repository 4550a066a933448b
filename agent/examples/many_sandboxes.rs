//! How much memory the agent takes on a node full of leaked sandboxes: serves a runtime with that
//! many NotReady sandboxes and exited containers, starts the real agent on it, and prints what the
//! kernel says of its memory. Needs root, as the agent does.
//!
//! ```text
//! cargo build -p coroner && cargo run -p coroner --example many_sandboxes [NUMBER [lists|streams]]
//! ```

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/cri/runtime.rs"]
mod runtime;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/cri/things.rs"]
mod things;

use k8s_cri::v1::{ContainerState, ListContainersResponse, ListPodSandboxResponse};
use prost::Message;
use runtime::{Call, FakeRuntime};
use std::{
    env, fs,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};
use things::{leaked_container, leaked_sandbox, status};

/// As many as a message of 16 MiB holds (KEP-5825).
const NUMBER: usize = 14_000;

/// What the agent is held to, MiB.
const GOAL: u64 = 96;

/// The agent; killed if the example ends early.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Agent {
    /// Peak and present resident memory, MiB.
    fn memory(&self) -> Option<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).ok()?;
        let field = |name: &str| -> Option<u64> {
            let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(rest.split_ascii_whitespace().next()?.parse::<u64>().ok()? >> 10)
        };
        Some((field("VmHWM:")?, field("VmRSS:")?))
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
    let agent = Command::new(binary)
        .args(["run", "--no-api", "--listen", "127.0.0.1:0", "--cri"])
        .arg(&socket)
        .spawn()
        .expect("cargo build -p coroner makes the agent");
    let agent = Agent(agent);
    let full = |state: &runtime::State| {
        let list = |call: &&Call| match call {
            Call::ContainerStream => true,
            Call::Containers(only) => only.is_empty(),
            _ => false,
        };
        state.calls.iter().filter(list).count()
    };
    for second in 1..=75 {
        sleep(Duration::from_secs(1));
        let Some((peak, now)) = agent.memory() else { panic!("the agent ended") };
        if second % 5 == 0 {
            let state = runtime.state();
            let statuses =
                state.calls.iter().filter(|call| matches!(call, Call::Status { .. })).count();
            println!(
                "{second:3} s: peak {peak} MiB, now {now} MiB; {} full lists, {statuses} statuses",
                full(&state)
            );
        }
    }
    let (peak, _) = agent.memory().expect("the agent runs");
    assert!(peak <= GOAL, "the peak of {peak} MiB is above {GOAL} MiB");
}
