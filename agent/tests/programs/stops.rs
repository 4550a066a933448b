//! Real programs, each PID 1 of a namespace of its own: what is read of them, and what they then do on SIGTERM.

use coroner::sources::processes::{self, ProcRequest, ProcessesOptions};
use coroner_core::{
    audit::{Reading, read},
    ids::{ContainerId, Tgid},
    input::{Input, StopState},
    output::ReadStopState,
    report::StopResponse::{self, EndsByDefault, HasHandler, Ignores, Waits},
};
use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, sync::mpsc};

/// In the environment: where Debian's packages are unpacked. `cargo xtask test --long` sets it.
const UNPACKED: &str = "CORONER_STOPPERS";
/// Longer than a program that takes the signal needs.
const LIVES_ON: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(60);
const LOOP: &str = "trap 'exit 7' TERM; while :; do sleep 0.1; done";

/// How it ends on SIGTERM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    LivesOn,
    Exits,
    ByDefault,
}
use End::{ByDefault, Exits, LivesOn};

/// A program (with `+` not as PID 1) and its arguments; the response; whether it is certain; how it ends.
type Program = (&'static str, &'static [&'static str], StopResponse, bool, End);

/// On every machine.
#[rustfmt::skip]
const SHELLS: [Program; 5] = [
    ("bin/sh", &["-c", "sleep 1000; true"], Ignores, true, LivesOn),
    ("bin/sh", &["-c", "exec sleep 1000"], Ignores, true, LivesOn),
    ("bin/sh", &["-c", "trap '' TERM; exec sleep 1000"], Ignores, true, LivesOn),
    ("bin/sh", &["-c", LOOP], HasHandler, false, Exits),
    ("+bin/sh", &["-c", "exec sleep 1000"], EndsByDefault, true, ByDefault),
];

/// Of packages.
#[rustfmt::skip]
const OTHERS: [Program; 14] = [
    ("bin/bash", &["-c", "sleep 1000; true"], Ignores, true, LivesOn),
    ("bin/bash", &["-c", LOOP], HasHandler, false, Exits),
    ("bin/dash", &["-c", LOOP], HasHandler, false, Exits),
    ("bin/busybox", &["sh", "-c", "sleep 1000; true"], Ignores, true, LivesOn),
    ("bin/busybox", &["sh", "-c", LOOP], HasHandler, false, Exits),
    ("usr/bin/tini", &["--", "sleep", "1000"], Waits, false, Exits),
    ("usr/bin/dumb-init", &["sleep", "1000"], HasHandler, false, Exits),
    ("usr/bin/s6-svscan", &["{}"], Waits, false, Exits),
    ("usr/bin/python3", &["-c", "import time; time.sleep(1000)"], Ignores, true, LivesOn),
    ("usr/bin/python3", &["-c", "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); signal.pause()"], HasHandler, false, Exits),
    ("usr/bin/python3", &["-c", "import signal; signal.pthread_sigmask(0, {15}); signal.sigwait({15})"], Waits, false, Exits),
    ("usr/bin/node", &["-e", "setInterval(() => {}, 1000)"], HasHandler, false, LivesOn),
    ("usr/lib/jvm/java-17-openjdk-amd64/bin/rmiregistry", &["0"], HasHandler, false, Exits),
    ("usr/sbin/nginx", &["-e", "stderr", "-p", "{}", "-c", "nginx.conf", "-g", "daemon off;"], HasHandler, false, Exits),
];

/// The adapter, which reads one process at a time.
struct Reader {
    runtime: Runtime,
    ask: mpsc::Sender<ProcRequest>,
    answers: mpsc::Receiver<coroner_core::input::Received>,
}

impl Reader {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let ((ask, wanted), (to, answers)) = (mpsc::channel(1), mpsc::channel(1));
        let options = ProcessesOptions {
            host_root: "/".into(),
            cgroup_root: "/sys/fs/cgroup".into(),
            counters: Default::default(),
        };
        runtime.spawn(processes::run(options, to, wanted));
        Self { runtime, ask, answers }
    }

    fn read(&mut self, pid: u32) -> Option<(StopState, Reading)> {
        let (container, main) = (ContainerId::new("c"), Tgid(pid));
        let wanted = ProcRequest::StopState(ReadStopState { container, main, signal: 15 });
        self.ask.blocking_send(wanted).unwrap();
        let Input::StopState(report) = self.answers.blocking_recv().unwrap().input else {
            panic!()
        };
        let state = report.state?;
        let reading = read(&state, 15, &report.unread);
        Some((state, reading))
    }
}

/// A program in the tree where packages are unpacked, or on the machine; `None`: it is not there.
fn program(path: &str) -> Option<PathBuf> {
    let unpacked = std::env::var_os(UNPACKED).map(|root| Path::new(&root).join(path));
    let found = unpacked.clone().unwrap_or_else(|| Path::new("/").join(path));
    assert!(unpacked.is_none() || found.exists(), "{} is missing", found.display());
    found.exists().then_some(found)
}

fn start(program: &Path, arguments: &[&str], is_pid_one: bool, own: &Path) -> Child {
    let mut command = Command::new("unshare");
    if let Ok(root) = std::env::var(UNPACKED) {
        let folders = ["usr/lib", "lib", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let folders = folders.map(|folder| format!("{root}/{folder}"));
        command.env("LD_LIBRARY_PATH", folders.join(":"));
        // Debian's Node.js reads files below /usr/share.
        let share =
            format!("mount -t overlay none -o lowerdir={root}/usr/share:/usr/share /usr/share");
        command.args(["--mount", "sh", "-c", &format!("{share} && exec unshare \"$@\""), "sh"]);
    }
    command.args(is_pid_one.then_some("--pid")).args(["--fork", "--"]).arg(program);
    command.args(arguments.iter().map(|one| one.replace("{}", own.to_str().unwrap())));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The only child of a process.
fn child_of(parent: u32) -> Option<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.to_owned());
        fields.and_then(|all| all.split(' ').nth(1)?.parse().ok()) == Some(parent)
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_child)
}

#[test]
fn real_programs_do_what_is_read_of_them() {
    let mut reader = Reader::new();
    let (mut played, mut missing) = (Vec::new(), Vec::new());
    for (path, arguments, response, certain, end) in SHELLS.into_iter().chain(OTHERS) {
        let is_pid_one = !path.starts_with('+');
        let of_packages = !path.ends_with("bin/sh");
        let Some(found) = (if of_packages { program(path) } else { Some("/bin/sh".into()) }) else {
            missing.push(path);
            continue;
        };
        let own = tempfile::tempdir().unwrap();
        fs::write(own.path().join("nginx.conf"), "pid nginx.pid; events {}").unwrap();
        let mut unshare = start(&found, arguments, is_pid_one, own.path());
        let deadline = Instant::now() + TIMEOUT;
        let pid = loop {
            // It may not have installed its handlers yet.
            let pid = child_of(unshare.id());
            let said = pid.and_then(|pid| reader.read(pid));
            let is_it = |(_, reading): &(StopState, Reading)| {
                (reading.response, reading.certain) == (response, certain)
            };
            if let Some(pid) = pid.filter(|_| said.as_ref().is_some_and(is_it)) {
                break pid;
            }
            assert!(Instant::now() < deadline, "{path} {arguments:?}: {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        // SAFETY: kill touches no memory.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
        let until = Instant::now() + if end == LivesOn { LIVES_ON } else { TIMEOUT };
        let ended = loop {
            match unshare.try_wait().unwrap() {
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                ended => break ended,
            }
        };
        // SAFETY: as above; nothing has the number before the end of `unshare`, which waits for it.
        let _ = ended.is_none().then(|| unsafe { libc::kill(pid as i32, libc::SIGKILL) });
        let _ = unshare.wait();
        let seen = match ended {
            None => LivesOn,
            Some(status) if status.signal() == Some(libc::SIGTERM) => ByDefault,
            Some(_) => Exits,
        };
        assert_eq!(seen, end, "{path} {arguments:?}");
        played.push(path);
    }
    println!(
        "{} programs did what was read of them; not on this machine: {missing:?}",
        played.len()
    );
    drop(reader.runtime);
}
