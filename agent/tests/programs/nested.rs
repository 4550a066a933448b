//! A node that is a container, as kind, k3d and minikube make them: the agent is in a PID and a cgroup namespace that are
//! not the kernel's first ones. The test runs itself again in such namespaces; that one is the agent, and this one what
//! is around the node.

use crate::{
    actors::{Actor, Role},
    delivered, ends, sent,
    stage::{POD, Pod, Session, TestCgroup, with_cgroup2},
};
use coroner_core::{
    ids::Tgid,
    input::{Disposition, ExitStatus, KernelFact},
};
use libc::{SIGHUP, SIGKILL, SIGTERM};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use std::{
    env,
    ffi::{CString, c_int},
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::PathBuf,
    process::{Command, Stdio},
};

/// Set for the one inside.
const INSIDE: &str = "CORONER_TEST_INSIDE";
/// What the one inside says when its container runs.
const READY: &str = "the container runs";

#[test]
fn processes_are_told_by_the_numbers_of_the_agents_own_namespace() {
    if env::var_os(INSIDE).is_some() {
        return inside();
    }
    with_cgroup2(|hierarchy| {
        let node = TestCgroup::top(hierarchy, "node");
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .args(["--exact", "--nocapture", "--test-threads=1"])
            .arg("nested::processes_are_told_by_the_numbers_of_the_agents_own_namespace")
            .env(INSIDE, "yes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let procs = node.path.join("cgroup.procs");
        let procs = CString::new(procs.as_os_str().as_bytes()).unwrap();
        // SAFETY: plain system calls, and no allocation.
        unsafe { child.pre_exec(move || become_node(&procs)) };
        let mut child = child.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(READY)), "it ended before");

        // Somebody outside of the node sends a signal into it ...
        let inside = node.path.join("kubepods").join(POD).join("a".repeat(64));
        let target = fs::read_to_string(inside.join("cgroup.procs")).unwrap();
        let target: c_int = target.trim().parse().unwrap();
        assert_eq!(unsafe { libc::kill(target, SIGHUP) }, 0);
        // ... and a pod of another node ends.
        let foreign = Pod::make(hierarchy);
        let actor = Actor::start(&foreign.container.path, Role::default());
        actor.kill(SIGTERM);
        actor.wait();
        drop(foreign);
        child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
        // Its summary would be added to that of this run.
        for line in lines.filter(|line| !line.contains("test result: ")) {
            eprintln!("inside: {line}");
        }
        assert!(child.wait().unwrap().success());
    });
}

/// In a child that is about to become another program: moves into the node's cgroup and namespaces of its own. The
/// program is run by a child again, for only that is in the new PID namespace.
fn become_node(procs: &CString) -> io::Result<()> {
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP;
    // SAFETY: system calls with pointers that live.
    unsafe {
        let file = libc::open(procs.as_ptr(), libc::O_WRONLY);
        if libc::write(file, c"0".as_ptr().cast(), 1) != 1 || libc::unshare(flags) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close(file);
        let child = libc::fork();
        if child == 0 {
            return Ok(());
        }
        // The pipe whose end tells that the program has been executed, among others.
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
        let mut status = 0;
        while libc::waitpid(child, &raw mut status, 0) < 0 {}
        libc::_exit(c_int::from(status != 0));
    }
}

/// The agent in the node: PID 1 of its namespace.
fn inside() {
    assert_eq!(std::process::id(), 1);
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("proc", "/proc", "proc", MountFlags::empty(), None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let hierarchy: PathBuf = folder.path().into();
    mount("cgroup2", &hierarchy, "cgroup2", MountFlags::empty(), None).unwrap();
    let root = TestCgroup::make(hierarchy.join("kubepods"));
    let pod = root.child(POD);
    let before = pod.child(&"b".repeat(64));
    // One that was there before the agent: found by /proc, in this namespace's numbers.
    let older = Actor::start(&before.path, Role { init: true, ..Role::default() });
    let mut session = Session::start(&hierarchy);
    let container = pod.child(&"a".repeat(64));
    let role = Role { init: true, handle: &[SIGTERM], swallow: &[SIGHUP], ..Role::default() };
    let actor = Actor::start(&container.path, role);
    println!("\n{READY}");
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();

    let pods = Pod { container, pod, root };
    session.until("the signal from outside", |fact| {
        matches!(fact, KernelFact::SignalGenerated(sent) if i32::from(sent.signal) == SIGHUP)
    });
    let from_outside = sent(&session, &pods, &actor, SIGHUP);
    assert_eq!(from_outside.sender.tgid, Tgid(0), "it has no number here");
    assert!(!from_outside.sender.comm.is_empty());

    let (pid, older_pid) = (actor.pid, older.pid);
    actor.kill(SIGTERM);
    actor.wait_unreaped();
    older.kill(SIGKILL);
    older.wait();
    session.settle();
    let signal = sent(&session, &pods, &actor, SIGTERM);
    assert_eq!(
        (signal.sender.tgid, signal.target.tgid, signal.target.tid),
        (Tgid(1), Tgid(pid), pid)
    );
    assert_eq!(signal.target.ns_pid, Some(1), "its own namespace is one further in");
    assert_eq!(delivered(&session, &pods), [(1, Disposition::Handler), (15, Disposition::Handler)]);
    let [(task, status)] = &ends(&session, pid)[..] else { panic!("{:#?}", session.heard()) };
    assert_eq!((task.tid, *status), (pid, ExitStatus::Code(37)));
    let told: Vec<_> = session.about(before.id).iter().filter_map(KernelFact::process).collect();
    // The scan and the programs have the same number for it.
    assert_eq!(told, [Tgid(older_pid); 3], "running, SIGKILL, its end");
    // Of the other node's pod no process is told.
    for event in session.heard() {
        assert_ne!(event.fact.process(), Some(Tgid(0)), "{event:#?}");
    }
    actor.wait();
    before.remove();
    let Pod { container, pod, root } = pods;
    container.remove();
    pod.remove();
    root.remove();
}
