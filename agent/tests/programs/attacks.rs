//! What neighbours may try, against the real agent: its memory, its probes, its socket, its log, its files.
//! docs/security.md says which test holds which statement.

use crate::{
    actors::{Actor, Role},
    agent::{RunningAgent, agent, agent_of},
    connections::network,
    runtime::{self, FakeRuntime},
    stage::{self, Pod, TIMEOUT, TestCgroup},
};
use coroner::outputs::recording::Reader;
use coroner_core::input::{Input, LossKind};
use coroner_cri_api::read::ContainerState;
use rustix::net::{AddressFamily, SocketType};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

/// Where the agent listens, in a network namespace in which all of 10.0.0.0/8 is local: it is reached from any of these
/// addresses, of which its own is the only one that is the node's.
const NODE: &str = "10.0.0.1:0";

/// Between two looks at what is waited for. No test depends on it.
const LOOK: Duration = Duration::from_millis(100);

/// A connection from this address.
fn connect(from: SocketAddr, to: &str) -> std::io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &from)?;
    rustix::net::connect(&socket, &to.parse::<SocketAddr>().unwrap())?;
    Ok(socket.into())
}

/// The answer to a request from an address; empty if the connection was closed.
fn ask(from: &str, to: &str, path: &str) -> String {
    let mut stream = connect(from.parse().unwrap(), to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{path}: {error}"),
        _ => answer,
    }
}

/// Asks for /healthz until it answers 200. A machine that gives the agent no time has its event loop stalled; the
/// attackers must not keep it from answering.
fn probe(from: &str, to: &str) {
    stage::wait_for(LOOK, || {
        let answer = ask(from, to, "/healthz");
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        assert!(answer.contains("the event loop has been stalled"), "{answer}");
        Err(answer)
    });
}

/// How many connections the server closed for this reason. A scrape may be a second old.
fn dropped(from: &str, to: &str, reason: &str) -> u64 {
    let metrics = ask(from, to, "/metrics");
    let name = format!("coroner_http_connections_dropped_total{{reason=\"{reason}\"}} ");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("counted");
    count.parse().unwrap()
}

/// The agent's memory, without the pages of its file, from a moment when it has returned what its start took.
struct Memory {
    pid: u32,
    before: u64,
    most: u64,
}

impl Memory {
    /// Waits until the agent has trimmed its heap for the first time, 15 s after its start.
    fn of(running: &RunningAgent) -> Self {
        std::thread::sleep(Duration::from_secs(17));
        let pid = running.process.id();
        Self { pid, before: Self::now(pid), most: 0 }
    }

    fn now(pid: u32) -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn sample(&mut self) {
        self.most = self.most.max(Self::now(self.pid));
    }

    /// It grew by less than 8 MiB.
    fn assert_bounded(&self) {
        let grown = self.most.saturating_sub(self.before);
        eprintln!("{} KiB before, at most {grown} KiB more", self.before);
        assert!(grown < 8 << 10, "it took {grown} KiB more");
    }
}

/// So many of something here, and fewer in an emulator, where all takes many times as long.
fn many(here: usize, emulated: usize) -> usize {
    if std::env::var_os("CORONER_TEST_AGENT").is_some() { emulated } else { here }
}

/// 256 connections from 64 addresses that say nothing, half a request, a byte at a time, or ask again and again and
/// read nothing, and come again for a minute: each probe of the kubelet is answered, each death meanwhile is recorded,
/// the memory stays, and each that had to go is counted.
#[test]
fn whoever_reaches_the_port_takes_no_probe_no_record_and_no_memory() {
    let _machine = stage::machine();
    let hierarchy = stage::v2();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rec");
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            network::unshare();
            let mut run = agent("run");
            run.args(["--listen", NODE]).arg("--record").arg(&file);
            let mut running = RunningAgent::start(run.arg("--cgroup-root").arg(&*hierarchy));
            running.until("system calls are filtered");
            let to = running.address.clone();
            let probe = || probe(NODE, &to);
            probe();
            // Answers are a hundred times what is held of them.
            let greedy = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
            let says = ["", "GET /heal", &greedy, "G"];
            let attacker = |n: usize| {
                let from = format!("10.1.0.{}:0", n % 64).parse().unwrap();
                let mut stream = connect(from, &to).unwrap();
                // Those for which there was no room are of no use to the attacker.
                let _ = stream.write_all(says[n % says.len()].as_bytes());
                stream
            };
            let be_slow = |crowd: &mut [TcpStream]| {
                let slow = crowd.iter_mut().skip(3).step_by(4);
                slow.for_each(|stream| drop(stream.write_all(b"E")));
            };
            let mut memory = Memory::of(&running);
            let mut crowd = Vec::new();
            for n in 0..256 {
                crowd.push(attacker(n));
                if n % 8 == 0 {
                    be_slow(&mut crowd);
                    probe();
                }
            }
            let mut died = Vec::new();
            // Once a second, those who were closed come again.
            for round in 0..many(60, 5) {
                let pod = Pod::make(&hierarchy);
                let main = Actor::born_in(&pod.container.path, 1);
                died.push(main.pid);
                main.wait();
                // The eighth that has waited longest.
                for n in (0..32).map(|n| (32 * round + n) % 256) {
                    crowd[n] = attacker(n);
                }
                be_slow(&mut crowd);
                probe();
                memory.sample();
                std::thread::sleep(Duration::from_secs(1)); // the attack lasts; nothing is waited for
            }
            probe();
            memory.assert_bounded();
            // 32 places are for them.
            stage::wait_for(LOOK, || {
                let no_room = dropped(NODE, &to, "no_room");
                (no_room >= 256 - 32).then_some(()).ok_or_else(|| format!("{no_room} had no room"))
            });
            drop(crowd);
            // And the port says nothing of pods, to anyone.
            for path in ["terminations", "deaths", "leaks", "terminations/uid", "openapi.json"] {
                for from in [NODE, "10.2.0.1:0"] {
                    let answer = stage::wait_for(LOOK, || {
                        let answer = ask(from, &to, &format!("/api/v1/{path}"));
                        // Until the agent has noticed that a place is free.
                        if answer.is_empty() { Err(answer) } else { Ok(answer) }
                    });
                    assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
                    assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
                }
            }
            until_recorded(&file, &died);
            assert_eq!(running.stop_by(libc::SIGTERM).0, Some(0));
            // A container that this machine runs besides may spend its own budget.
            let lost = recorded(&file).filter_map(|input| match input {
                Input::Lost(loss) if loss.kind != LossKind::BudgetSpent => Some(loss),
                _ => None,
            });
            assert_eq!(lost.collect::<Vec<_>>(), []);
        });
        attack.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// What a recording holds so far.
fn recorded(file: &Path) -> impl Iterator<Item = Input> {
    Reader::open(file).into_iter().flatten().map(|received| received.input)
}

/// Waits until the end of each of these processes is in the recording.
fn until_recorded(file: &Path, pids: &[u32]) {
    stage::wait_for(LOOK, || {
        let kernel: Vec<_> = recorded(file)
            .filter_map(|input| match input {
                Input::Kernel(event) => Some(event.fact),
                _ => None,
            })
            .collect();
        let is_missing = |pid: &&u32| !kernel.iter().any(|fact| crate::is_end(fact, **pid));
        let missing: Vec<_> = pids.iter().filter(is_missing).collect();
        let are_there = missing.is_empty().then_some(());
        are_there.ok_or_else(|| format!("the ends of {missing:?} are not recorded"))
    });
}

/// Thirty containers of each of 40 pods have died, and 32 clients, of which 16 are served at once, ask for all of it
/// again and again and read nothing: probes are answered, and answers are made as they are read.
#[test]
fn answers_that_nobody_reads_take_no_memory() {
    let _machine = stage::machine();
    let hierarchy = stage::v2();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("coroner.sock");
    let (runtime, endpoint) = (FakeRuntime::default(), folder.path().join("cri.sock"));
    let _serving = runtime.serve(&endpoint);
    let mut run = agent_of("run", &endpoint);
    run.arg("--cgroup-root").arg(&*hierarchy).arg("--socket").arg(&socket);
    let mut running = RunningAgent::start(&mut run);
    running.until("system calls are filtered");
    let top = TestCgroup::top(&hierarchy, "kubepods");
    let mut living = Vec::new();
    let pods = many(40, 4);
    for number in 0..pods {
        let uid = format!("8dbc5577-d0e2-4706-8787-0000000000{number:02}");
        let pod = top.child(&format!("pod{uid}"));
        let id = |number: u64| format!("{:064x}", (pod.id.0 << 8) + number);
        let sandbox = id(0);
        for container in 1..=30 {
            let id = id(container);
            Actor::born_in(&pod.child(&id).path, 1).wait();
            runtime.state().add_exited(&id, &sandbox);
        }
        let mut state = runtime.state();
        state.sandboxes.truncate(number + 1);
        state.sandboxes[number].metadata.as_mut().unwrap().uid = uid;
        // Deaths of a pod that lives are reported at once.
        let id = id(31);
        state.containers.push(runtime::container(&id, &sandbox, ContainerState::ContainerRunning));
        let lives = pod.child(&id);
        living.push((Actor::start(&lives.path, Role::default()), lives, pod));
    }
    let all = stage::wait_for(LOOK, || {
        let answer = answer_to(0, &socket);
        let are_there = answer.matches("\"verdict\"").count() >= pods * 30;
        let bytes = answer.len();
        are_there.then_some(bytes).ok_or_else(|| format!("{bytes} bytes: {answer:.2000}"))
    });
    let probe = || probe("127.0.0.1:0", &running.address);
    let mut memory = Memory::of(&running);
    let greedy = "GET /api/v1/deaths?limit=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let crowd: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let _ = stream.write_all(greedy.as_bytes()); // there was no room, perhaps
            probe();
            memory.sample();
            stream
        })
        .collect();
    // There is room for 16. A client that takes nothing is left alone for a while, and then dropped.
    stage::wait_for(LOOK, || {
        memory.sample();
        let dropped = |reason| dropped("127.0.0.1:0", &running.address, reason);
        let (too_long, no_room) = (dropped("too_long"), dropped("no_room"));
        let are_closed = too_long > 0 && too_long + no_room >= 32;
        are_closed
            .then_some(())
            .ok_or_else(|| format!("{too_long} took too long, {no_room} had no room"))
    });
    drop(crowd);
    eprintln!("an answer has {all} bytes");
    memory.assert_bounded();
}

/// What the agent answers on its socket to a thread of this user.
fn answer_to(user: u32, socket: &Path) -> String {
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            // SAFETY: a plain system call, of this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let request =
                b"GET /api/v1/deaths?limit=5000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(request); // refused already
            let mut answer = String::new();
            match stream.read_to_string(&mut answer) {
                Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
                _ => answer,
            }
        });
        asks.join().unwrap()
    })
}

/// Whatever the socket's mode has become.
#[test]
fn other_users_are_not_answered_on_the_socket() {
    let _machine = stage::machine();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path().join("coroner.sock");
    let mut running = RunningAgent::start(agent("run").arg("--socket").arg(&socket));
    running.until("system calls are filtered");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(answer_to(0, &socket).starts_with("HTTP/1.1 200"));
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(answer_to(65534, &socket), "");
    assert!(answer_to(0, &socket).starts_with("HTTP/1.1 200"));
}

/// A container sends itself more signals than its budget holds, under a name that is no UTF-8 and says something to a
/// terminal. Of each kind of loss the log has one line a minute.
#[test]
fn a_container_that_floods_fills_no_log() {
    let _machine = stage::machine();
    let hierarchy = stage::v2();
    let mut run = agent("run");
    run.arg("--cgroup-root").arg(&*hierarchy);
    let began = Instant::now();
    let mut running = RunningAgent::start(&mut run);
    running.until("system calls are filtered");
    let pod = Pod::make(&hierarchy);
    for _ in 0..20 {
        let role = Role { ignore: &[libc::SIGHUP], raise: 20_000, ..Role::default() };
        drop(Actor::start(&pod.container.path, role));
    }
    running.until("evidence lost");
    let (code, rest) = running.stop_by(libc::SIGTERM);
    assert_eq!(code, Some(0));
    let lines = rest.iter().filter(|message| *message == "evidence lost").count();
    // One more of another kind, and one of each kind a minute: however long this took.
    let kinds = 4;
    let minutes = began.elapsed().as_secs() as usize / 60;
    assert!(lines < kinds * (minutes + 1), "{lines} lines: {rest:#?}");
}

/// The main process' name is no UTF-8, that of its child is, and both were there before the agent: it is the main
/// process whose end is recorded, and nobody takes the child for it.
#[test]
fn a_name_that_is_no_text_hides_no_process() {
    let _machine = stage::machine();
    let hierarchy = stage::v2();
    let pod = Pod::make(&hierarchy);
    let name = Some(c"\xff\x1b[2J\xe2\x80");
    let role = Role { init: true, children: 1, name, ..Role::default() };
    let main = Actor::start(&pod.container.path, role);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rec");
    let mut run = agent("run");
    run.arg("--cgroup-root").arg(&*hierarchy).arg("--record").arg(&file);
    let mut running = RunningAgent::start(&mut run);
    running.until("system calls are filtered");
    let pid = main.pid;
    main.kill(libc::SIGKILL);
    until_recorded(&file, &[pid]);
    assert_eq!(running.stop_by(libc::SIGTERM).0, Some(0));
}

/// Somebody made the file before, for all to read; or put something there that is none. A terminal that closes leaves a
/// whole recording.
#[test]
fn a_recording_is_nobody_else_s_and_whole_after_sighup() {
    let _machine = stage::machine();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rec");
    for (before, old) in [("", false), ("of another", true)] {
        fs::write(&file, before).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        let mut open_before = fs::File::open(&file).unwrap();
        let mut running = RunningAgent::start(agent("run").arg("--record").arg(&file));
        running.until("system calls are filtered");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(folder.path().join("rec.old").exists(), old, "what was there is kept");
        assert_eq!(running.stop_by(libc::SIGHUP).0, Some(0));
        let mut reader = Reader::open(&file).unwrap();
        assert!(reader.by_ref().count() > 0);
        assert!(reader.status().is_whole(), "{:?}", reader.status());
        let mut seen = String::new();
        open_before.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, before, "whoever has the old file open reads none of it");
        fs::remove_file(&file).unwrap();
    }
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    symlink(&elsewhere, &file).unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    for file in [&file, &fifo] {
        let refused = agent("run").arg("--record").arg(file).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("not a regular file"), "{said}");
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
}
