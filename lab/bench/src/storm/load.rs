//! One process of the load: a hidden sub-command of `coroner-lab`. Reads its [`Orders`] from stdin,
//! obeys, tells on stdout what it has [`Done`], and leaves when stdin is closed.
//!
//! Events are sent in a batch at each turn of a clock: a system call to sleep stands between
//! batches, not between events. It counts what it sent, whatever it meant to send.

use super::mix::{Done, Orders, due};
use anyhow::{Context as _, bail};
use coroner_workload::page::boot_now;
use std::{
    ffi::{c_int, c_void},
    fs,
    io::{self, BufRead as _, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// The sub-command.
pub const COMMAND: &str = "storm-load";
/// What its processes are called: their events are known by it.
pub(super) const NAME: &str = "storm";
/// What it says when its handlers are set.
pub(super) const READY: &str = "ready";

/// From one batch to the next.
const TURN: Duration = Duration::from_micros(500);
/// Events between two looks at the clock: late batches are large.
const STRETCH: u64 = 256;
/// `include/uapi/linux/sched.h`; libc's own constant overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// How long a cgroup may be busy after its last process was reaped.
const BUSY: Duration = Duration::from_millis(100);
/// Bytes for the stack of a child that does nothing.
const STACK: usize = 16 << 10;

static CAUGHT: AtomicU64 = AtomicU64::new(0);
static STOPS_CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn catch(signal: c_int) {
    let counter = if signal == libc::SIGTERM { &STOPS_CAUGHT } else { &CAUGHT };
    counter.fetch_add(1, Relaxed);
}

/// Loads this machine as stdin says.
pub fn serve() -> anyhow::Result<()> {
    rustix::thread::set_name(&std::ffi::CString::new(NAME)?).context("cannot take a name")?;
    for signal in [libc::SIGHUP, libc::SIGTERM] {
        // SAFETY: an action of zeros is a valid one, and the handler only adds to a counter.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = catch as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        if set != 0 {
            return Err(io::Error::last_os_error()).context("cannot set a handler");
        }
    }
    let (mut input, mut output) = (io::stdin().lock(), io::stdout());
    writeln!(output, "{READY}")?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let orders: Orders = serde_json::from_str(&line).context("orders")?;
        let done = Storm::new(orders)?.rage()?;
        writeln!(output, "{}", serde_json::to_string(&done)?)?;
        line.clear();
    }
    Ok(())
}

struct Storm {
    orders: Orders,
    pid: i32,
    done: Done,
    /// Of a child; of what is aligned as a stack has to be.
    stack: Vec<u128>,
}

impl Storm {
    fn new(orders: Orders) -> anyhow::Result<Self> {
        if orders.stops > 0.0 && orders.stopped.is_empty() {
            bail!("nobody to stop");
        }
        let pid = i32::try_from(std::process::id())?;
        Ok(Self { orders, pid, done: Done::default(), stack: vec![0; STACK / size_of::<u128>()] })
    }

    fn rage(mut self) -> anyhow::Result<Done> {
        CAUGHT.store(0, Relaxed);
        STOPS_CAUGHT.store(0, Relaxed);
        let cpu = cpu_time();
        thread::sleep(Duration::from_nanos(self.orders.from.saturating_sub(boot_now())));
        while let Some(elapsed) = self.elapsed() {
            self.signal(due(self.orders.signals, elapsed))?;
            self.stop(due(self.orders.stops, elapsed))?;
            self.exit(due(self.orders.exits, elapsed))?;
            self.live(due(self.orders.lives, elapsed))?;
            thread::sleep(TURN);
        }
        // SIGTERMs of others may be under way until their own end, which is now.
        thread::sleep(Duration::from_millis(100));
        Ok(Done {
            caught: CAUGHT.load(Relaxed),
            stops_caught: STOPS_CAUGHT.load(Relaxed),
            cpu: cpu_time().saturating_sub(cpu),
            ..self.done
        })
    }

    /// Since the beginning; `None`: it is over.
    fn elapsed(&self) -> Option<Duration> {
        let elapsed = Duration::from_nanos(boot_now().saturating_sub(self.orders.from));
        (elapsed < self.orders.lasting).then_some(elapsed)
    }

    fn signal(&mut self, due: u64) -> anyhow::Result<()> {
        while self.done.signals < due && self.goes_on(self.done.signals) {
            kill(self.pid, libc::SIGHUP)?;
            self.done.signals += 1;
        }
        Ok(())
    }

    fn stop(&mut self, due: u64) -> anyhow::Result<()> {
        while self.done.stops < due && self.goes_on(self.done.stops) {
            let turn = usize::try_from(self.done.stops)? % self.orders.stopped.len();
            kill(self.orders.stopped[turn], libc::SIGTERM)?;
            self.done.stops += 1;
        }
        Ok(())
    }

    /// Looks at the clock from time to time.
    fn goes_on(&self, count: u64) -> bool {
        !count.is_multiple_of(STRETCH) || self.elapsed().is_some()
    }

    /// Children that share this one's memory, which waits for them: the cheapest that there are.
    fn exit(&mut self, due: u64) -> anyhow::Result<()> {
        extern "C" fn leave(_: *mut c_void) -> c_int {
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        while self.done.exits < due && self.elapsed().is_some() {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let top = self.stack.as_mut_ptr_range().end;
            // SAFETY: below the stack's end, which is aligned, is room enough for a function that only
            // leaves; this process does not go on before the child has left.
            let child = unsafe { libc::clone(leave, top.cast(), flags, ptr::null_mut()) };
            reap(child)?;
            self.done.exits += 1;
        }
        Ok(())
    }

    fn live(&mut self, due: u64) -> anyhow::Result<()> {
        let Some(pod) = self.orders.pod.clone() else { return Ok(()) };
        while self.done.lives < due && self.elapsed().is_some() {
            live(&pod.join(format!("{:064x}", boot_now())))?;
            self.done.lives += 1;
        }
        Ok(())
    }
}

/// A container whose only process leaves at once.
fn live(cgroup: &Path) -> anyhow::Result<()> {
    let wrong = || format!("{}", cgroup.display());
    fs::create_dir(cgroup).with_context(wrong)?;
    let folder = fs::File::open(cgroup).with_context(wrong)?;
    // SAFETY: arguments of zeros are valid ones.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::try_from(libc::SIGCHLD)?;
    arguments.cgroup = u64::try_from(folder.as_raw_fd())?;
    // SAFETY: the arguments are valid for their size; the child, which has one thread as this process
    // has, leaves at once.
    let child = unsafe {
        let child =
            libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>());
        if child == 0 {
            libc::_exit(0);
        }
        child
    };
    reap(i32::try_from(child)?)?;
    let busy_until = boot_now() + u64::try_from(BUSY.as_nanos())?;
    while let Err(error) = fs::remove_dir(cgroup) {
        if error.kind() != io::ErrorKind::ResourceBusy || boot_now() > busy_until {
            return Err(error).with_context(wrong);
        }
        thread::yield_now();
    }
    Ok(())
}

fn kill(pid: i32, signal: c_int) -> anyhow::Result<()> {
    // SAFETY: a system call without pointers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).with_context(|| format!("kill of {pid}")),
    }
}

fn reap(child: i32) -> anyhow::Result<()> {
    if child < 0 {
        return Err(io::Error::last_os_error()).context("cannot have a child");
    }
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(child, ptr::null_mut(), 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error).context("cannot wait for a child");
        }
    }
    Ok(())
}

/// Of this process, ns.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}
