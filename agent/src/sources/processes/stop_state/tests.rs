//! A /proc of our own, and then a real one.

use super::*;
use coroner_core::ids::{ContainerId, Tgid};
use std::process::Command;

const STATUS: &str = "State:\tS (sleeping)\nNSpid:\t77\t1\nSigBlk:\tBLK\nSigIgn:\tIGN\nSigCgt:\tCGT\n\
    voluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t0\n";

/// Masks with SIGTERM, and with nothing.
const TERM: &str = "0000000000004000";
const NONE: &str = "0000000000000000";

struct FakeProc(tempfile::TempDir);

impl FakeProc {
    fn new(blocked: &str, ignored: &str, caught: &str) -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        let tail = "0 ".repeat(17);
        fake.file("77/stat", &format!("77 (app) S 1 {tail}86400 0"));
        fake.thread("77", blocked, ignored, caught).file("77/wchan", "ep_poll");
        fake
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn thread(&self, folder: &str, blocked: &str, ignored: &str, caught: &str) -> &Self {
        let text = STATUS.replace("BLK", blocked).replace("IGN", ignored).replace("CGT", caught);
        self.file(&format!("{folder}/status"), &text)
    }

    fn read(&self) -> (StopState, Vec<String>) {
        let (state, unread) = read(self.0.path(), &wanted(77));
        (state.unwrap(), unread)
    }
}

fn wanted(pid: u32) -> ReadStopState {
    ReadStopState { container: ContainerId::new("c"), main: Tgid(pid), signal: 15 }
}

#[test]
fn masks_and_what_is_read_only_if_it_decides() {
    let (state, unread) = FakeProc::new(NONE, NONE, TERM).read();
    assert_eq!((state.caught, state.ignored, state.blocked), (true, false, false));
    assert_eq!((state.ns_pid, state.waits, state.settled), (Some(1), Some(false), true));
    assert_eq!((state.others, state.signalfd, unread.len()), (None, None, 0));
    let fake = FakeProc::new(NONE, TERM, NONE);
    let tail = "0 ".repeat(18);
    fake.file("77/task/77/children", "78 79 80 ")
        .file("78/stat", &format!("78 (gone) Z 77 {tail}9"));
    fake.file("79/stat", &format!("79 (java) S 77 {tail}9"));
    let (state, _) = fake.read();
    assert_eq!((state.ignored, state.children, &*state.child), (true, 1, "java"));
    // Blocked: threads and signalfds are read.
    let fake = FakeProc::new(TERM, NONE, NONE);
    let (state, unread) = fake.read();
    assert_eq!((state.others, state.signalfd, unread.len()), (None, None, 2), "{unread:?}");
    fake.thread("77/task/77", TERM, NONE, NONE).file("77/fdinfo/3", "pos:\t0\n");
    let alone = OtherThreads { all_block: true, waits: false, settled: true };
    let (state, unread) = fake.read();
    assert_eq!((state.others, state.signalfd, unread.len()), (Some(alone), Some(false), 0));
    fake.thread("77/task/78", NONE, NONE, NONE).file("77/task/78/wchan", "futex_wait");
    assert_eq!(fake.read().0.others, Some(OtherThreads { all_block: false, ..alone }));
    fake.file("77/task/78/wchan", "do_sigtimedwait.isra.0");
    assert_eq!(fake.read().0.others, Some(OtherThreads { waits: true, ..alone }));
    fake.file("77/fdinfo/4", &format!("pos:\t0\nsigmask:\t{TERM}\n"));
    assert_eq!(fake.read().0.signalfd, Some(true));
    (0..=MAX_FDS).for_each(|fd| _ = fake.file(&format!("77/fdinfo/{}", fd + 9), ""));
    (0..=MAX_THREADS)
        .for_each(|tid| _ = fake.thread(&format!("77/task/{}", tid + 99), TERM, NONE, NONE));
    let (state, unread) = fake.read();
    assert_eq!(state.others, None, "more than are read");
    assert!(state.signalfd != Some(false) && !unread.is_empty(), "{unread:?}");
}

#[test]
fn where_the_leading_thread_sleeps() {
    let fake = FakeProc::new(NONE, NONE, NONE);
    let number = RT_SIGTIMEDWAIT;
    let table = [
        ("do_sigtimedwait", "", Some(true), 0),
        ("do_freezer_trap", "", None, 1),
        ("0", "", None, 1), // no file: it may not be read
        ("0", "35 0x1", Some(false), 0),
        ("0", &format!("{number} 0x1"), Some(true), 0),
        ("0", "running", Some(false), 0),
    ];
    for (wchan, syscall, waits, silent) in table {
        let file = fake.0.path().join("77/syscall");
        if syscall.is_empty() {
            let _ = fs::remove_file(&file);
        } else {
            fake.file("77/syscall", syscall);
        }
        fake.file("77/wchan", wchan);
        let (state, unread) = fake.read();
        assert_eq!((state.waits, unread.len()), (waits, silent), "{wchan} {syscall}: {unread:?}");
    }
    let stopped = STATUS.replace("S (sleeping)", "T (stopped)");
    fake.file("77/status", &stopped.replace("BLK", NONE).replace("IGN", NONE).replace("CGT", NONE));
    fake.file("77/wchan", "do_signal_stop");
    let (state, unread) = fake.read();
    assert!(!state.settled && unread[0].ends_with("is stopped"), "{unread:?}");
    let running = STATUS.replace("S (sleeping)", "R (running)");
    fake.file("77/status", &running.replace("BLK", NONE).replace("IGN", NONE).replace("CGT", NONE));
    assert!(!fake.read().0.settled);
    assert_eq!(read(fake.0.path(), &wanted(78)).0, None, "no such process");
}

/// The kernel's own format. `cat` has no handler.
#[test]
fn a_real_process() {
    let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let state = loop {
        let (state, unread) = read(Path::new("/proc"), &wanted(child.id()));
        match state {
            Some(state) if state.settled && state.comm == "cat" => break state,
            _ => assert!(std::time::Instant::now() < deadline, "{unread:?}"),
        }
        std::thread::yield_now();
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((state.caught, state.blocked, state.waits), (false, false, Some(false)));
    assert!(state.ns_pid.is_some() && state.started > 0 && !state.exe.is_empty(), "{state:?}");
}
