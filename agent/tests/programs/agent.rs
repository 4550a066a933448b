//! The binary itself on this kernel: what `doctor` and `run` say of it, as it is and with something
//! taken away.

use crate::stage;
use coroner::linux::landlock;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Resource, Rlimit, setrlimit},
    thread::{UnshareFlags, unshare_unsafe},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
};

/// `include/uapi/linux/capability.h`.
pub(crate) const CAP_SYS_PTRACE: u32 = 19;
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;
pub(crate) const CAP_PERFMON: u32 = 38;
pub(crate) const CAP_BPF: u32 = 39;

/// With nothing of the surrounding environment; there is no runtime, and no apiserver is asked.
pub(crate) fn agent(command: &str) -> Command {
    agent_of(command, Path::new("/nowhere/cri.sock"))
}

/// The same with a runtime.
pub(crate) fn agent_of(command: &str, endpoint: &Path) -> Command {
    let binary = std::env::var_os("CORONER_TEST_AGENT")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_coroner").into());
    let mut agent = Command::new(binary);
    agent.args([command, "--no-api", "--runtime-endpoint"]).arg(endpoint);
    agent.env_clear().stdin(Stdio::null());
    agent
}

/// The checks of `doctor` or /readyz: the severity of each, and what was found.
pub(crate) fn checks(diagnosis: &Value) -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let checks = diagnosis["checks"].as_array().expect("checks").iter();
    checks.map(|one| (text(&one["name"]), (text(&one["severity"]), text(&one["found"])))).collect()
}

fn check(diagnosis: &Value, name: &str) -> (String, String) {
    checks(diagnosis).remove(name).unwrap_or_else(|| panic!("no check {name} in {diagnosis:#}"))
}

pub(crate) fn doctor(
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> (Option<i32>, Value) {
    let mut doctor = agent("doctor");
    doctor.args(["-o", "json"]);
    // SAFETY: the closures of these tests make plain system calls.
    unsafe { doctor.pre_exec(prepare) };
    let Output { status, stdout, stderr } = doctor.output().unwrap();
    let diagnosis = serde_json::from_slice(&stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
    });
    (status.code(), diagnosis)
}

/// Not all are proven where the root of the hierarchy is nobody's to write into without a capability.
fn is_attached(diagnosis: &Value) -> bool {
    let (severity, found) = check(diagnosis, "kernel");
    severity == "ok" && found.starts_with("9 hooks on ")
}

/// What is said where there is no BTF.
const MISSING: &str = "/sys/kernel/btf/vmlinux does not exist";

/// The calling process, in a mount namespace of its own, sees no BTF.
fn hide_btf() -> io::Result<()> {
    // SAFETY: a mount namespace is no matter of memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(mount(c"none", c"/sys/kernel/btf", c"tmpfs", MountFlags::empty(), None)?)
}

#[test]
fn without_btf_the_agent_says_what_is_missing() {
    let _machine = stage::machine();
    let (code, diagnosis) = doctor(hide_btf);
    assert_eq!(code, Some(1));
    let (severity, found) = check(&diagnosis, "kernel");
    assert_eq!(severity, "failing");
    assert!(found.contains(MISSING) && found.contains("CONFIG_DEBUG_INFO_BTF"), "{found}");
    assert_eq!(check(&diagnosis, "api").0, "ok", "all else is still checked");

    let mut run = agent("run");
    // SAFETY: plain system calls.
    unsafe { run.arg("--keep-running-unready").pre_exec(hide_btf) };
    let mut running = RunningAgent::start(&mut run);
    running.until("cannot start the kernel programs");
    let (state, detail, status) = running.ready("kernel");
    assert_eq!(state, "failing");
    assert!(detail.contains(MISSING), "{detail}");
    assert!(status.contains("503"), "{status}");
    assert_eq!(running.stop(), Some(0));

    let mut run = agent("run");
    run.args(["--listen", "127.0.0.1:0", "--api-listen", "off", "--socket", "off"]);
    // SAFETY: plain system calls.
    let ended = unsafe { run.pre_exec(hide_btf) }.output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// An agent that runs on, and has said something.
pub(crate) struct RunningAgent {
    pub(crate) process: Child,
    pub(crate) address: String,
    log: mpsc::Receiver<String>,
}

impl RunningAgent {
    /// Flags come before the variables.
    pub(crate) fn start(run: &mut Command) -> Self {
        run.env("CORONER_LISTEN", "127.0.0.1:0").env("CORONER_LOG_FORMAT", "json");
        run.env("CORONER_API_LISTEN", "off").env("CORONER_SOCKET", "off");
        let mut process = run.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (to, log) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| to.send(line))
        });
        let mut running = Self { process, address: String::new(), log };
        let listening = running.until("listening");
        running.address = listening["address"].as_str().expect("an address").into();
        running
    }

    /// The first line of the log with this message.
    pub(crate) fn until(&mut self, message: &str) -> Value {
        let mut said = Vec::new();
        while let Ok(line) = self.log.recv_timeout(stage::TIMEOUT) {
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"].as_str().is_some_and(|text| text.contains(message)) {
                return line;
            }
            said.push(line);
        }
        panic!("it never said {message}; it said {said:#?}");
    }

    /// A check of /readyz, and the status line of the answer.
    pub(crate) fn ready(&self, name: &str) -> (String, String, String) {
        let mut server = TcpStream::connect(&self.address).unwrap();
        write!(server, "GET /readyz?format=json HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        server.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        let body: Value =
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
        let (severity, found) = check(&body, name);
        (severity, found, head.lines().next().unwrap_or_default().to_owned())
    }

    /// Its exit status after SIGTERM.
    pub(crate) fn stop(self) -> Option<i32> {
        self.stop_by(libc::SIGTERM).0
    }

    /// Its exit status after a signal, and the messages that nobody waited for.
    pub(crate) fn stop_by(mut self, signal: libc::c_int) -> (Option<i32>, Vec<String>) {
        // SAFETY: a child that is not reaped: the pid is its.
        unsafe { libc::kill(self.process.id() as libc::pid_t, signal) };
        let code = self.process.wait().unwrap().code();
        let lines = self.log.iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        (code, lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect())
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_agent_goes_on_with_the_privileges_that_it_keeps() {
    let _machine = stage::machine();
    let mut running = RunningAgent::start(agent("run").args(["--traffic", "always"]));
    let kept = running.until("dropped capabilities that are no longer needed");
    eprintln!("kept: {}", kept["kept"]);
    running.until("system calls are filtered");
    let counting = running.until("counting connections");
    assert_eq!(counting["refusals"], stage::tracepoint("tcp_send_reset").len() >= 3);
    for part in ["privileges", "kernel", "traffic"] {
        let (state, detail, _) = running.ready(part);
        assert_eq!(state, "ok", "{detail}");
    }
    let (_, detail, _) = running.ready("privileges");
    let has_landlock = landlock::probe().is_ok();
    assert!(detail.contains("; confined by seccomp"), "{detail}");
    assert_eq!(detail.contains("; confined by Landlock"), has_landlock, "{detail}");
    let threads = fs::read_dir(format!("/proc/{}/task", running.process.id())).unwrap();
    let threads = threads.map(|task| fs::read_to_string(task.unwrap().path().join("status")));
    let threads: Vec<String> = threads.map(Result::unwrap).collect();
    for status in &threads {
        let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
        let permitted = u64::from_str_radix(permitted, 16).unwrap();
        assert_eq!(permitted & (1 << CAP_PERFMON), 0, "{status}");
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.contains(line), "{line}: {status}");
        }
    }
    // The thread that decodes what others send has none at all.
    let network = threads.iter().find(|status| status.starts_with("Name:\tnetwork\n"));
    let network = network.expect("a thread of the network");
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(network.contains(line), "{line}: {network}");
    }
    assert_eq!(running.stop(), Some(0));
}

/// What the next program of this process may do, as root: these capabilities and no others, and
/// next to no locked memory, as in a container.
pub(crate) fn confine(kept: &[u32]) -> io::Result<()> {
    for capability in (0..64).filter(|capability| !kept.contains(capability)) {
        // SAFETY: a plain system call; it refuses numbers that this kernel does not know.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
    }
    let limit = Some(64 << 10);
    Ok(setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })?)
}

#[test]
fn two_capabilities_suffice_and_before_5_11_a_third() {
    let _machine = stage::machine();
    let (_, diagnosis) = doctor(|| confine(&[CAP_BPF, CAP_PERFMON]));
    if stage::release() >= (5, 11) {
        assert!(is_attached(&diagnosis), "{diagnosis:#}");
        return;
    }
    // Whether the limit suffices only the kernel knows.
    let (severity, found) = check(&diagnosis, "privileges");
    assert_eq!(severity, "degraded", "{diagnosis:#}");
    assert!(found.contains("CAP_SYS_RESOURCE is missing: before Linux 5.11"), "{found}");
    assert_eq!(check(&diagnosis, "kernel").0, "failing", "{diagnosis:#}");
    let (_, diagnosis) = doctor(|| confine(&[CAP_BPF, CAP_PERFMON, CAP_SYS_RESOURCE]));
    assert!(is_attached(&diagnosis), "{diagnosis:#}");
}
