//! Processes that play containers. Forked from a test with threads: a child calls nothing but
//! plain system calls.

use coroner::sources::kernel::tiny::Executable;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open, pidfd_send_signal,
        waitid, waitpid,
    },
};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fs, io,
    os::fd::AsRawFd,
    path::Path,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

/// `include/uapi/linux/sched.h`; libc's own constant overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A child, and its own children if it is the init of a PID namespace. Killed and reaped when
/// dropped.
pub(crate) struct Actor {
    pub(crate) pid: u32,
    reaped: bool,
}

/// What a child is to do: told before the fork, so that nothing is allocated after it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Role {
    /// Init of a PID namespace of its own.
    pub(crate) init: bool,
    /// Install a handler for these signals that exits with 37.
    pub(crate) handle: &'static [c_int],
    /// Install a handler for these signals that does nothing.
    pub(crate) swallow: &'static [c_int],
    /// Set these to SIG_IGN.
    pub(crate) ignore: &'static [c_int],
    /// Block these.
    pub(crate) block: &'static [c_int],
    /// Fork so many children that wait.
    pub(crate) children: u32,
    /// These children have a second thread.
    pub(crate) threaded: bool,
    /// Install a handler for these signals that sends the same to all others of the PID namespace and
    /// exits with 37. Children ignore them.
    pub(crate) pass_on: &'static [c_int],
    /// Fork a child that is the init of a PID namespace and forks so many children that wait.
    pub(crate) nested: u32,
    /// Fork so many children that exit at once, and wait for that, but leave them zombies.
    pub(crate) zombies: u32,
    /// Send itself SIGHUP so many times.
    pub(crate) raise: u32,
    /// Fork a child that leaves with 5, and reap it.
    pub(crate) fork_and_reap: bool,
    /// Take this name, after it has forked.
    pub(crate) name: Option<&'static CStr>,
    /// Touch so many bytes of memory.
    pub(crate) eat: usize,
    /// What it does in the end.
    pub(crate) then: Then,
}

#[derive(Clone, Copy, Default)]
pub(crate) enum Then {
    /// Wait to be killed.
    #[default]
    Pause,
    /// Exec a file.
    Exec(*const c_char),
    /// Start a thread, leave with 0 as its leader, and let the thread end the process with 7.
    LeaderFirst,
    /// Start a thread that execs a file.
    ThreadExec(*const c_char),
    /// Start a thread, and leave with 7 at the same moment as it.
    Together,
}

extern "C" fn leave(_: c_int) {
    unsafe { libc::_exit(37) }
}

extern "C" fn swallow(_: c_int) {}

/// Only an init may do so: `kill(-1)` spares the caller, and reaches no further than its namespace.
extern "C" fn pass_on(signal: c_int) {
    unsafe {
        if libc::getpid() == 1 {
            libc::kill(-1, signal);
        }
        libc::_exit(37)
    }
}

extern "C" fn wait(_: *mut c_void) -> c_int {
    loop {
        unsafe { libc::pause() };
    }
}

/// Forks; 0 is the child.
pub(crate) unsafe fn fork(flags: c_int) -> libc::pid_t {
    let flags = libc::c_long::from(libc::SIGCHLD | flags);
    unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) as libc::pid_t }
}

/// What /proc says of the thread group's leader: `pid (comm) state …`.
fn leader_is_zombie() -> bool {
    let mut stat = [0_u8; 128];
    let read = unsafe {
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY);
        let read = libc::read(file, stat.as_mut_ptr().cast(), stat.len());
        libc::close(file);
        usize::try_from(read).unwrap_or(0)
    };
    let after_name = stat[..read].iter().rposition(|byte| *byte == b')').map(|at| &stat[at..]);
    after_name.is_some_and(|rest| rest.starts_with(b") Z"))
}

pub(crate) fn kill(pid: u32, signal: c_int) {
    let sent = unsafe { libc::kill(pid as libc::pid_t, signal) };
    assert_eq!(sent, 0, "kill: {}", io::Error::last_os_error());
}

impl Actor {
    /// Starts a child in a cgroup; returns when it has its handlers and is about to do its last
    /// thing.
    pub(crate) fn start(cgroup: &Path, role: Role) -> Self {
        Self::start_in(&[cgroup], role)
    }

    /// Starts a child in a cgroup of each of several hierarchies.
    pub(crate) fn start_in(cgroups: &[&Path], role: Role) -> Self {
        let (go, let_go) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (ready, is_ready) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let stack = Stack::new();
        let pid = unsafe { fork(if role.init { libc::CLONE_NEWPID } else { 0 }) };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            unsafe {
                libc::close(let_go.as_raw_fd());
                libc::close(ready.as_raw_fd());
                play(role, go.as_raw_fd(), is_ready.as_raw_fd(), &stack);
                // Only a failed exec comes back: its error says why.
                libc::_exit(*libc::__errno_location());
            }
        }
        let actor = Self { pid: pid as u32, reaped: false };
        drop((go, is_ready));
        for cgroup in cgroups {
            fs::write(cgroup.join("cgroup.procs"), actor.pid.to_string()).unwrap();
        }
        drop(let_go);
        rustix::io::retry_on_intr(|| rustix::io::read(&ready, &mut [0u8])).unwrap();
        actor
    }

    /// Starts a child that does nothing but leave with a code, and is in its cgroup from its very beginning.
    pub(crate) fn born_in(cgroup: &Path, code: u8) -> Self {
        let folder = fs::File::open(cgroup).unwrap();
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.exit_signal = libc::SIGCHLD as u64;
        arguments.cgroup = folder.as_raw_fd() as u64;
        let size = size_of::<libc::clone_args>();
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size) };
        assert!(pid >= 0, "clone3: {}", io::Error::last_os_error());
        if pid == 0 {
            unsafe { libc::_exit(c_int::from(code)) };
        }
        Self { pid: pid as u32, reaped: false }
    }

    /// Starts a child in a cgroup and in the PID namespace of another, as runtimes start hooks.
    pub(crate) fn enter(of: &Self, cgroup: &Path, role: Role) -> Self {
        let join = |pid: &str| {
            let file = fs::File::open(format!("/proc/{pid}/ns/pid")).unwrap();
            let joined = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWPID) };
            assert_eq!(joined, 0, "setns: {}", io::Error::last_os_error());
        };
        join(&of.pid.to_string());
        let actor = Self::start(cgroup, role);
        join("self");
        actor
    }

    /// Starts the smallest program in a cgroup.
    pub(crate) fn exec(cgroup: &Path, code: u8) -> Self {
        let program = Executable::new(code).unwrap();
        Self::start(cgroup, Role { then: Then::Exec(program.path().as_ptr()), ..Role::default() })
    }

    pub(crate) fn kill(&self, signal: c_int) {
        kill(self.pid, signal);
    }

    /// Sends a signal through a pidfd, as container runtimes do.
    pub(crate) fn kill_by_pidfd(&self, signal: c_int) {
        let pidfd = pidfd_open(self.raw(), PidfdFlags::empty()).unwrap();
        pidfd_send_signal(pidfd, Signal::from_named_raw(signal).unwrap()).unwrap();
    }

    /// Sends a signal with a value.
    pub(crate) fn queue(&self, signal: c_int) {
        let value = libc::sigval { sival_ptr: ptr::null_mut() };
        let sent = unsafe { libc::sigqueue(self.pid as libc::pid_t, signal, value) };
        assert_eq!(sent, 0, "sigqueue: {}", io::Error::last_os_error());
    }

    /// Sends a signal to the leading thread alone.
    pub(crate) fn kill_thread(&self, signal: c_int) {
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.pid, signal) };
        assert_eq!(sent, 0, "tgkill: {}", io::Error::last_os_error());
    }

    /// Waits until it has ended, and leaves it a zombie.
    pub(crate) fn wait_unreaped(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.raw()), options).unwrap();
    }

    pub(crate) fn wait(mut self) {
        self.reap();
    }

    fn reap(&mut self) {
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.raw()), WaitOptions::empty()));
        self.reaped = true;
    }

    fn raw(&self) -> Pid {
        Pid::from_raw(self.pid as i32).expect("it is not 0")
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.reaped {
            unsafe { libc::kill(self.pid as libc::pid_t, libc::SIGKILL) };
            self.reap();
        }
    }
}

/// What makes a thread.
const THREAD: c_int =
    libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FS | libc::CLONE_FILES;

/// A stack for a thread, mapped before the fork.
struct Stack(*mut c_void);

impl Stack {
    const SIZE: usize = 64 << 10;

    fn new() -> Self {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = unsafe { libc::mmap(ptr::null_mut(), Self::SIZE, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    /// Not the very end: libc's `syscall` reads a seventh argument above its frame, whether there
    /// is one or not.
    fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(Self::SIZE - 256)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.0, Self::SIZE) };
    }
}

/// In the child.
unsafe fn play(role: Role, go: c_int, ready: c_int, stack: &Stack) {
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        for signal in role.block {
            libc::sigaddset(&raw mut mask, *signal);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
        let install = |signals: &[c_int], handler: libc::sighandler_t| {
            for signal in signals {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler;
                libc::sigaction(*signal, &raw const action, ptr::null_mut());
            }
        };
        // What nohup and shells ignore is inherited.
        install(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT], libc::SIG_DFL);
        install(role.handle, leave as *const () as usize);
        install(role.swallow, swallow as *const () as usize);
        install(role.ignore, libc::SIG_IGN);

        let mut byte = 0u8;
        while libc::read(go, (&raw mut byte).cast(), 1) > 0 {}

        install(role.pass_on, libc::SIG_IGN);
        let forks = |count: u32| {
            for _ in 0..count {
                if fork(0) == 0 {
                    if role.threaded {
                        libc::clone(wait, stack.top(), THREAD, ptr::null_mut());
                    }
                    wait(ptr::null_mut());
                }
            }
        };
        forks(role.children);
        if role.nested > 0 {
            let mut done = [0; 2];
            libc::pipe(done.as_mut_ptr());
            if fork(libc::CLONE_NEWPID) == 0 {
                forks(role.nested);
                libc::write(done[1], (&raw const byte).cast(), 1);
                wait(ptr::null_mut());
            }
            libc::read(done[0], (&raw mut byte).cast(), 1);
        }
        for _ in 0..role.zombies {
            let pid = fork(0);
            if pid == 0 {
                libc::_exit(0);
            }
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, options);
        }
        install(role.pass_on, pass_on as *const () as usize);
        for _ in 0..role.raise {
            libc::kill(libc::getpid(), libc::SIGHUP);
        }
        if role.fork_and_reap {
            match fork(0) {
                0 => libc::_exit(5),
                pid => libc::waitpid(pid, ptr::null_mut(), 0),
            };
        }
        if let Some(name) = role.name {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        }
        libc::write(ready, (&raw const byte).cast(), 1);
        if role.eat > 0 {
            let (prot, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(ptr::null_mut(), role.eat, prot, flags, -1, 0).cast::<u8>();
            for page in (0..role.eat).step_by(4096) {
                at.add(page).write_volatile(1);
            }
        }
        match role.then {
            Then::Pause => loop {
                libc::pause();
            },
            Then::Exec(path) => {
                let argv = [c"tiny".as_ptr(), ptr::null()];
                let envp = [ptr::null()];
                libc::execve(path, argv.as_ptr(), envp.as_ptr());
            }
            Then::LeaderFirst => {
                static mut LEADER: c_int = 1;
                extern "C" fn thread(_: *mut c_void) -> c_int {
                    unsafe {
                        // Cleared by the kernel when the leader leaves its memory ...
                        while (&raw const LEADER).read_volatile() != 0 {
                            libc::sched_yield();
                        }
                        // ... and a zombie once it is past the hook: before that, kernels without
                        // group_dead let both report the end.
                        while !leader_is_zombie() {
                            libc::sched_yield();
                        }
                        libc::syscall(libc::SYS_exit_group, 7) as c_int
                    }
                }
                libc::syscall(libc::SYS_set_tid_address, &raw mut LEADER);
                libc::clone(thread, stack.top(), THREAD, ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
            Then::ThreadExec(path) => {
                extern "C" fn thread(path: *mut c_void) -> c_int {
                    let argv = [c"tiny".as_ptr(), ptr::null()];
                    let envp = [ptr::null()];
                    unsafe { libc::execve(path.cast_const().cast(), argv.as_ptr(), envp.as_ptr()) }
                }
                libc::clone(thread, stack.top(), THREAD, path.cast_mut().cast());
                loop {
                    libc::pause();
                }
            }
            Then::Together => {
                static ARRIVED: AtomicU32 = AtomicU32::new(0);
                extern "C" fn thread(_: *mut c_void) -> c_int {
                    ARRIVED.fetch_add(1, Ordering::SeqCst);
                    while ARRIVED.load(Ordering::SeqCst) < 2 {
                        std::hint::spin_loop();
                    }
                    unsafe { libc::syscall(libc::SYS_exit, 7) as c_int }
                }
                libc::clone(thread, stack.top(), THREAD, ptr::null_mut());
                thread(ptr::null_mut());
            }
        }
    }
}
