//! What neighbours may try, against the real agent: its memory, its probes, its socket, its log, its files.
//! docs/security.md says which test holds which statement.

use crate::{
    actors::{Actor, Role},
    agent::{RunningAgent, agent},
    connections::network,
    stage::{self, PATIENCE, Pod},
};
use coroner::outputs::recording::Reader;
use coroner_core::input::Input;
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
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{path}: {error}"),
        _ => answer,
    }
}

/// Resident memory of a process, KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// 256 connections from 64 addresses that say nothing, half a request, a byte at a time, or ask again and again and
/// read nothing: each probe of the kubelet is answered, the memory stays, and each that had to go is counted.
#[test]
fn whoever_reaches_the_port_takes_no_probe_and_no_memory() {
    let _machine = stage::machine();
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            network::unshare();
            let mut running = RunningAgent::start(agent("run").args(["--listen", NODE]));
            running.until("system calls are filtered");
            let to = running.address.clone();
            // Each is answered. A machine that gives the agent no time has it stalled; those who connect must not.
            let probe = || {
                let until = Instant::now() + PATIENCE;
                loop {
                    let answer = ask(NODE, &to, "/healthz");
                    if answer.starts_with("HTTP/1.1 200") {
                        return;
                    }
                    let is_slow = answer.contains("the event loop has been stalled");
                    assert!(is_slow && Instant::now() < until, "{answer}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            };
            probe();
            // Answers are a hundred times what is held of them.
            let greedy = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
            let says = ["", "GET /heal", &greedy, "G"];
            let before = resident(running.process.id());
            let mut crowd = Vec::new();
            for n in 0..256_u32 {
                let from = format!("10.1.0.{}:0", n % 64).parse().unwrap();
                let mut stream = connect(from, &to).unwrap();
                // Those that were closed for others are of no use to the attacker any more.
                let _ = stream.write_all(says[n as usize % says.len()].as_bytes());
                crowd.push(stream);
                if n % 8 == 0 {
                    let slow = crowd.iter_mut().skip(3).step_by(4);
                    slow.for_each(|stream| drop(stream.write_all(b"E")));
                    probe();
                }
            }
            probe();
            let grown = resident(running.process.id()).saturating_sub(before);
            assert!(grown < 8 << 10, "it took {grown} KiB more");
            let made_room = || -> u64 {
                let metrics = ask(NODE, &to, "/metrics");
                let name = "coroner_http_connections_dropped_total{reason=\"made_room\"} ";
                let line = metrics.lines().find_map(|line| line.strip_prefix(name));
                line.expect("counted").parse().unwrap()
            };
            // 32 places are for them. A scrape may be a second old.
            let until = Instant::now() + PATIENCE;
            while made_room() < 256 - 32 {
                assert!(Instant::now() < until, "{} made room", made_room());
                std::thread::sleep(Duration::from_millis(100));
            }
            // And the port says nothing of pods, to anyone.
            for path in ["terminations", "deaths", "leaks", "terminations/uid", "openapi.json"] {
                for from in [NODE, "10.2.0.1:0"] {
                    let answer = ask(from, &to, &format!("/api/v1/{path}"));
                    assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
                    assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
                }
            }
            drop(crowd);
        });
        attack.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// What the agent answers on its socket to a thread of this user.
fn answer_to(user: u32, socket: &Path) -> String {
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            // SAFETY: a plain system call, of this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let request =
                b"GET /api/v1/deaths HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
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
    let is_recorded = || {
        let read = Reader::open(&file).into_iter().flatten();
        let facts = read.filter_map(|received| match received.input {
            Input::Kernel(event) => Some(event.fact),
            _ => None,
        });
        facts.into_iter().any(|fact| crate::is_end(&fact, pid))
    };
    let until = Instant::now() + PATIENCE;
    while !is_recorded() {
        assert!(Instant::now() < until, "its end is not recorded");
        std::thread::sleep(Duration::from_millis(20)); // between two looks
    }
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
