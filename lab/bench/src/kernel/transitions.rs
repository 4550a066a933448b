//! What counting connections costs each transition of a socket's state: with nothing attached, with an empty
//! program, with nothing counted yet (`--traffic always`), with namespaces of others counted in (*miss*), with its own
//! (*hit*), and with tools that print a line for each connection or transition, in turns. By the wall clock, and for miss
//! and hit by the kernel's own count beside an empty program, as everywhere in this benchmark.

use super::{Ours, report::median};
use crate::{
    Figure,
    programs::{self, Statistics},
    tracers::{find, see_tracepoints},
};
use anyhow::{Context as _, bail};
use coroner::sources::kernel::{
    self,
    counting::{Counting, EntryKey},
};
use coroner_lab_harness::agent::die_with_parent;
use std::{
    io::{self, Read as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// The tracepoint.
const HOOK: &str = "inet_sock_set_state";
/// Connections of one run, one after the other.
const CONNECTIONS: u32 = 2000;
/// Transitions of both ends of a connection.
const TRANSITIONS: f64 = 10.0;
/// Namespaces of others that are counted in.
const OTHERS: u32 = 250;
/// Where numbers of namespaces that do not exist begin.
const NOWHERE: u32 = 1;
/// How long a tool may take until it prints connections.
const TO_START: Duration = Duration::from_secs(60);
/// Bytes that a tool may print before its first connection.
const HEADER: u64 = 512;
/// What a miss may cost beyond an empty program, ns for each transition.
const GOAL: f64 = 100.0;

/// Measures in a network namespace of its own.
pub(super) fn measure(cgroup_root: &Path, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let options = kernel::KernelOptions {
        cgroup_root: Some(cgroup_root.into()),
        ..kernel::KernelOptions::default()
    };
    let mut kernel = kernel::start(&options)?;
    let counting = kernel.take_counting().context("no programs that count connections")?;
    drop(kernel);
    // A namespace is its thread's.
    let measured = thread::spawn(move || in_a_namespace(counting, rounds)).join();
    measured.unwrap_or_else(|_| bail!("the measurement panicked"))
}

fn in_a_namespace(mut counting: Counting, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    // SAFETY: a plain system call, of this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot make a network namespace");
    }
    raise_loopback().context("cannot set up loopback")?;
    super::actor::stay_on_one_cpu().context("cannot stay on one CPU")?;
    let netns = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    let own = EntryKey { netns: u32::try_from(netns)?, cgroup: None };
    let others = (NOWHERE..NOWHERE + OTHERS).map(|netns| EntryKey { netns, cgroup: None });
    let mut walls = [const { Vec::new() }; 7];
    let mut nets = [const { Vec::new() }; 2];
    for round in 0..=rounds {
        let mut wall = [0.0; 7];
        wall[0] = connect_often()?;
        {
            let _empty = Ours::attach(&[HOOK])?;
            wall[1] = connect_often()?;
        }
        for (wall, name) in wall[4..].iter_mut().zip(["tcpstates", "tcplife"]) {
            let _tracer = ConnectionTracer::start(name)?;
            *wall = connect_often()?;
        }
        counting.attach().map_err(anyhow::Error::msg)?;
        wall[6] = connect_often()?;
        counting.detach();
        for key in others.clone() {
            counting.insert(key, &[])?;
        }
        let mut net = [0.0; 2];
        for (index, hits) in [false, true].into_iter().enumerate() {
            if hits {
                counting.insert(own, &[])?;
            }
            counting.attach().map_err(anyhow::Error::msg)?;
            wall[2 + index] = connect_often()?;
            counting.detach();
            net[index] = by_the_kernel(&mut counting)?;
            counting.remove(own);
        }
        others.clone().for_each(|key| counting.remove(key));
        if round > 0 {
            walls.iter_mut().zip(wall).for_each(|(all, one)| all.push(one));
            nets.iter_mut().zip(net).for_each(|(all, one)| all.push(one));
        }
    }
    let [detached, empty, miss, hit, states, life, always] = walls.map(|all| median(&all));
    let [miss_net, hit_net] = nets.map(|all| median(&all));
    let figure = |name: &str, value| {
        Figure::of(super::report::BENCH, format!("connections.{name}"), value, "ns")
    };
    Ok(vec![
        figure("miss.net", miss_net).at_most(GOAL),
        figure("hit.net", hit_net),
        figure("transition.nothing_attached", detached),
        figure("transition.empty_program", empty).beside("nothing attached", detached),
        figure("transition.always", always).beside("an empty program", empty),
        figure("transition.miss", miss).beside("an empty program", empty),
        figure("transition.hit", hit).beside("an empty program", empty),
        figure("transition.tcpstates", states).beside("a hit", hit),
        figure("transition.tcplife", life).beside("a hit", hit),
    ])
}

/// A tool of libbpf-tools that prints connections, into a pipe that a thread reads, on the same CPU. Dropped, it is killed.
struct ConnectionTracer(Child);

impl ConnectionTracer {
    /// Returns when it has printed connections of this process.
    fn start(name: &str) -> anyhow::Result<Self> {
        let mut command = tokio::process::Command::new(find(name)?);
        die_with_parent(&mut command);
        let command = command.as_std_mut();
        see_tracepoints(command);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut output = child.stdout.take().context("its output is piped")?;
        let mut tracer = Self(child);
        let bytes = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                seen.fetch_add(read as u64, Relaxed);
            }
        });
        let began = Instant::now();
        // Its output is buffered: many lines come at once, after more connections than one.
        while bytes.load(Relaxed) <= HEADER {
            if let Some(status) = tracer.0.try_wait()? {
                bail!("{name} ended at once: {status}");
            }
            if began.elapsed() > TO_START {
                bail!("{name} prints nothing");
            }
            connect_often()?;
        }
        Ok(tracer)
    }
}

impl Drop for ConnectionTracer {
    fn drop(&mut self) {
        // Being gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the program costs beyond the empty one behind it, by the kernel's own count, ns for each transition.
fn by_the_kernel(counting: &mut Counting) -> anyhow::Result<f64> {
    let own = std::process::id();
    // The first takes upon itself what it costs to be the first.
    let _first = Ours::attach(&[HOOK])?;
    let before = ids(own)?;
    counting.attach().map_err(anyhow::Error::msg)?;
    let ours: Vec<u32> = ids(own)?.into_iter().filter(|id| !before.contains(id)).collect();
    let last = Ours::attach(&[HOOK])?;
    let _statistics = Statistics::enable()?;
    let mean = |of: &dyn Fn(u32) -> bool| {
        let all = programs::of_process(own)?.into_iter().filter(|one| of(one.id));
        let program = programs::by_hook(all).remove(HOOK);
        let program = program.with_context(|| format!("no program on {HOOK}"))?;
        anyhow::Ok((program.run_time, program.runs))
    };
    let (is_ours, is_last) = (|id| ours.contains(&id), |id| last.ids.contains(&id));
    let before = (mean(&is_ours)?, mean(&is_last)?);
    connect_often()?;
    let after = (mean(&is_ours)?, mean(&is_last)?);
    counting.detach();
    let of = |before: (u64, u64), after: (u64, u64)| {
        (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64
    };
    Ok(of(before.0, after.0) - of(before.1, after.1))
}

fn ids(process: u32) -> anyhow::Result<Vec<u32>> {
    Ok(programs::of_process(process)?.into_iter().map(|program| program.id).collect())
}

/// Opens and closes connections; how long a transition takes, ns.
fn connect_often() -> anyhow::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let began = Instant::now();
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(address)?;
        let (mut server, _) = listener.accept()?;
        drop(client);
        server.read_exact(&mut [0]).err().context("data from nobody")?;
    }
    Ok(began.elapsed().as_nanos() as f64 / f64::from(CONNECTIONS) / TRANSITIONS)
}

fn raise_loopback() -> io::Result<()> {
    // SAFETY: plain system calls, on a descriptor that nobody else has and a request that outlives them.
    let done = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
