//! The load: processes of one thread, each in a chosen cgroup, that send signals, fork and make containers. Each is a hidden
//! sub-command of `coroner-lab`, which reads [`Order`]s from stdin and answers each with what was [`Done`].

use crate::agent::die_with_parent;
use anyhow::{Context as _, bail};
use coroner::{linux::clock::boot_now, sources::kernel::tiny::Executable};
use serde::{Deserialize, Serialize};
use std::{
    env,
    ffi::c_int,
    fs::{self, File},
    io::{self, BufRead as _, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// The sub-command.
pub const COMMAND: &str = "bench-load";
/// The name of its process and of the children that it forks.
pub(crate) const NAME: &str = "bench-load";

/// Between two batches of events: a system call to sleep is between batches, not between events.
const TURN: Duration = Duration::from_micros(500);
/// Events between two looks at the clock in a batch.
const STRETCH: u64 = 256;
/// `include/uapi/linux/sched.h`; libc's constant overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A kind of event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum LoadEvent {
    /// A signal to itself, which it catches.
    Raise(c_int),
    /// A signal to each of these processes in turn.
    Send(c_int, Vec<u32>),
    /// A child that exits.
    Exit,
    /// A container in this pod's cgroup: a cgroup is made, the smallest program is executed in it and exits, the cgroup
    /// becomes empty and is removed.
    Container(PathBuf),
}

/// How often something is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) event: LoadEvent,
    pub(crate) times: u64,
    /// Between two of them; zero: one after the other.
    pub(crate) every: Duration,
}

impl Work {
    /// At this rate for as long as the order lasts.
    pub(crate) fn per_second(event: LoadEvent, rate: f64) -> Self {
        Self { event, times: u64::MAX, every: Duration::from_secs(1).div_f64(rate) }
    }

    fn due(&self, elapsed: Duration) -> u64 {
        match self.every {
            Duration::ZERO => self.times,
            every => self.times.min((elapsed.as_nanos() / every.as_nanos()) as u64),
        }
    }
}

/// What a process of the load is to do: a line on its stdin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// CLOCK_BOOTTIME, ns: processes that have the same begin together.
    pub(crate) from: u64,
    /// What is not done after this time is not done at all.
    pub(crate) lasting: Duration,
    pub(crate) works: Vec<Work>,
}

/// What it has done: a line on its stdout.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Of each work in the order.
    pub(crate) times: Vec<u64>,
    /// Signals that it caught.
    pub(crate) caught: u64,
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn catch(_: c_int) {
    CAUGHT.fetch_add(1, Relaxed);
}

/// The sub-command: obeys until stdin is closed.
pub fn serve() -> anyhow::Result<()> {
    rustix::thread::set_name(&std::ffi::CString::new(NAME)?).context("cannot set the name")?;
    for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGURG] {
        // SAFETY: an action of zeros is valid, and the handler only adds to a counter.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = catch as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        check(set).context("cannot set a handler")?;
    }
    let program = Executable::new(0).context("the smallest program")?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("an order")?;
        writeln!(out, "{}", serde_json::to_string(&execute(&order, &program)?)?)?;
    }
    Ok(())
}

fn execute(order: &Order, program: &Executable) -> anyhow::Result<Done> {
    CAUGHT.store(0, Relaxed);
    let mut times = vec![0; order.works.len()];
    thread::sleep(Duration::from_nanos(order.from.saturating_sub(boot_now().0)));
    let elapsed = || Duration::from_nanos(boot_now().0.saturating_sub(order.from));
    while elapsed() < order.lasting {
        for (work, done) in order.works.iter().zip(&mut times) {
            let due = work.due(elapsed());
            while *done < due {
                make(&work.event, *done, program).with_context(|| format!("{:?}", work.event))?;
                *done += 1;
                if done.is_multiple_of(STRETCH) && elapsed() >= order.lasting {
                    break;
                }
            }
        }
        if order.works.iter().zip(&times).all(|(work, done)| *done == work.times) {
            break;
        }
        thread::sleep(TURN);
    }
    // Signals of others may come until their own order has ended.
    thread::sleep(Duration::from_millis(100));
    Ok(Done { times, caught: CAUGHT.load(Relaxed) })
}

fn make(event: &LoadEvent, turn: u64, program: &Executable) -> anyhow::Result<()> {
    match event {
        // SAFETY: system calls without pointers.
        LoadEvent::Raise(signal) => Ok(check(unsafe { libc::kill(libc::getpid(), *signal) })?),
        LoadEvent::Send(signal, to) => {
            let pid = to[usize::try_from(turn)? % to.len()];
            // SAFETY: a system call without pointers.
            Ok(check(unsafe { libc::kill(pid.cast_signed(), *signal) })?)
        }
        LoadEvent::Exit => {
            // SAFETY: this process has one thread, and the child only exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            reap(child)
        }
        LoadEvent::Container(pod) => {
            container(&pod.join(format!("{:064x}", boot_now().0)), program)
        }
    }
}

fn container(cgroup: &Path, program: &Executable) -> anyhow::Result<()> {
    fs::create_dir(cgroup)?;
    let folder = File::open(cgroup)?;
    // SAFETY: arguments of zeros are valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::try_from(libc::SIGCHLD)?;
    arguments.cgroup = u64::try_from(folder.as_raw_fd())?;
    let words = [program.path().as_ptr(), ptr::null()];
    // SAFETY: this process has one thread; the arguments are valid for their size, and the child makes system calls only.
    let child = unsafe {
        let size = size_of::<libc::clone_args>();
        let child = libc::syscall(libc::SYS_clone3, &raw mut arguments, size);
        if child == 0 {
            libc::execv(words[0], words.as_ptr());
            libc::_exit(127);
        }
        child
    };
    reap(i32::try_from(child)?)?;
    // Busy until the last switch away from the process.
    for _ in 0..10_000 {
        match fs::remove_dir(cgroup) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(Duration::from_micros(100));
            }
            removed => return Ok(removed?),
        }
    }
    bail!("{} stays busy", cgroup.display())
}

fn reap(child: c_int) -> anyhow::Result<()> {
    check(child).context("cannot fork")?;
    let mut status = 0;
    // SAFETY: the pointer is to a variable of this function.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error).context("cannot wait for a child");
        }
    }
    anyhow::ensure!(status == 0, "a child ended with status {status:#x}");
    Ok(())
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A process of the load. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Load {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Load {
    /// In this cgroup.
    pub(crate) async fn start(cgroup: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn_in(cgroup, command, false)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).context("no pipes")?;
        let mut load = Self { child, input, output: BufReader::new(output).lines() };
        // It answers when its handlers are set.
        load.order(&Order { from: 0, lasting: Duration::MAX, works: Vec::new() }).await?;
        load.done().await?;
        Ok(load)
    }

    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("a process of the load has exited")
    }

    pub(crate) async fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        self.input.write_all(line.as_bytes()).await.context("a process of the load has exited")
    }

    pub(crate) async fn done(&mut self) -> anyhow::Result<Done> {
        let line = self.output.next_line().await?.context("a process of the load has failed")?;
        serde_json::from_str(&line).context("an answer of the load")
    }

    /// Does this now, all of it.
    pub(crate) async fn work(&mut self, work: Work) -> anyhow::Result<()> {
        let (from, lasting) = (boot_now().0, Duration::from_secs(600));
        let wanted = vec![work.times];
        self.order(&Order { from, lasting, works: vec![work] }).await?;
        let done = self.done().await?;
        anyhow::ensure!(done.times == wanted, "done {:?}, wanted {wanted:?}", done.times);
        Ok(())
    }
}

/// A process that ignores SIGTERM and does nothing.
pub(crate) fn ignorer(cgroup: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new("sleep");
    command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null());
    spawn_in(cgroup, command, true)
}

/// Keeps a process, or this thread, on one CPU: one that is moved to another finds nothing in its caches, which would be
/// measured, too.
pub(crate) fn pin(pid: Option<u32>) -> anyhow::Result<()> {
    let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
    let allowed = rustix::thread::sched_getaffinity(pid)?;
    let mut one = rustix::thread::CpuSet::new();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    one.set(last.context("no CPU")?);
    Ok(rustix::thread::sched_setaffinity(pid, &one)?)
}

fn spawn_in(cgroup: &Path, mut command: Command, ignores: bool) -> anyhow::Result<Child> {
    let members = cgroup.join("cgroup.procs");
    let members: OwnedFd = File::options()
        .write(true)
        .open(&members)
        .with_context(|| format!("cannot open {}", members.display()))?
        .into();
    command.process_group(0).kill_on_drop(true);
    die_with_parent(&mut command);
    // SAFETY: system calls only, on a descriptor that is open.
    unsafe {
        command.pre_exec(move || {
            if ignores {
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
            }
            rustix::io::write(&members, b"0")?;
            Ok(())
        });
    }
    command.spawn().with_context(|| format!("cannot start {:?}", command.as_std().get_program()))
}
