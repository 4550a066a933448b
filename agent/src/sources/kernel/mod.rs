//! The kernel adapter: facts of the host → layout → plan → load → ring. The only place that knows
//! aya.

pub mod btf;
pub mod counting;
mod debug;
pub mod decode;
mod drain_schedule;
pub mod facts;
pub mod layout;
mod load;
mod object;
pub mod plan;
mod ring;
mod selftest;
mod skipped;
pub mod tiny;

use anyhow::{Error, anyhow, bail, ensure};
use coroner_core::{
    ids::CgroupId,
    input::{Input, KernelEvent, KernelFact, Loss, Received},
    time::BootTime,
};
pub use facts::hierarchy;

use crate::linux::{
    cgroupfs::{self, Inserted, Scan, ScanRoom},
    clock,
    privileges::{self, MissingCapability},
};
use coroner_ebpf::{Layout, TrafficLayout, maps};
use counting::Counting;
use drain_schedule::{DrainResult, DrainSchedule};
use load::Watching;
use plan::Planned;
use ring::Rings;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt, future,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep_until},
};

/// Events that are handed on at once.
const BATCH: usize = 256;

#[derive(Clone, Debug)]
pub struct KernelOptions {
    /// `None`: detected.
    pub cgroup_root: Option<PathBuf>,
    /// Size of each ring buffer in bytes: a power of two, at least a page.
    pub ring_bytes: u32,
    /// How many processes of containers can be known to have been sent a signal.
    pub notified: u32,
    pub counts_traffic: bool,
    /// For tests: of a hook with two programs attach only the second one, which then reports every event.
    pub only_second: bool,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            cgroup_root: None,
            ring_bytes: maps::RING_BYTES,
            notified: maps::NOTIFIED_MAX,
            counts_traffic: true,
            only_second: false,
        }
    }
}

/// A running kernel side. Dropping it detaches everything.
pub struct Kernel {
    cgroup_root: PathBuf,
    watching: Watching,
    rings: Rings,
    report: StartReport,
    counters: Arc<KernelCounters>,
    scanned: Vec<KernelEvent>,
    counting: Option<Counting>,
    /// Before there was any program.
    began: BootTime,
}

/// How the start went: for /readyz, doctor and the log.
#[derive(Clone, Debug, Default)]
pub struct StartReport {
    pub cgroup_root: PathBuf,
    /// Each hook by name and, if it was refused or is missing, why.
    pub hooks: BTreeMap<&'static str, Result<(), String>>,
    /// What the self-test could not prove.
    pub unproven: Option<Unproven>,
    /// The hooks that count connections, which are attached on demand; none: they are not to be used.
    pub traffic: BTreeMap<&'static str, Result<(), String>>,
    /// Why the self-test could not prove these.
    pub traffic_unproven: Option<String>,
}

impl StartReport {
    pub fn traffic_losses(&self) -> String {
        let losses = self.traffic.values().filter_map(|how| how.as_ref().err());
        losses.map(String::as_str).collect::<Vec<_>>().join("; ")
    }

    /// Connections can be counted. That this kernel does not show refused ones is no fault.
    pub fn counts_traffic(&self) -> bool {
        self.traffic.get(counting::TRANSITIONS).is_some_and(Result::is_ok)
    }

    pub fn is_refused(&self) -> bool {
        self.hooks.values().any(Result::is_err)
    }

    pub fn refusals(&self) -> String {
        let refused = self.hooks.iter().filter_map(|(hook, how)| Some((hook, how.as_ref().err()?)));
        refused.map(|(hook, why)| format!("{hook}: {why}")).collect::<Vec<_>>().join("; ")
    }
}

/// Hooks that are attached, and that the self-test could not prove.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    pub hooks: Vec<&'static str>,
    /// Such as a cgroup file system that is read-only.
    pub why: String,
}

impl Unproven {
    /// What is told of signals and processes is proven, and with it where most members of the kernel's
    /// structures are. Only what tells that cgroups come and go is not.
    pub fn is_harmless(&self) -> bool {
        self.hooks.iter().all(|hook| hook.starts_with("cgroup_"))
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} not verified by the self-test: {}", self.hooks.join(", "), self.why)
    }
}

#[derive(Debug, Default)]
pub struct KernelCounters {
    pub records: AtomicU64,
    /// The most bytes that a drain of the last minute or two found in the deciding ring.
    pub deciding_used: AtomicU64,
    /// The same of the detail ring.
    pub detail_used: AtomicU64,
    pub ring_bytes: AtomicU64,
    pub containers: AtomicU64,
    /// Cgroups that are not watched because they are nested too deeply below their container.
    pub too_deep: AtomicU64,
}

impl KernelCounters {
    fn count_containers(&self, fact: &KernelFact) {
        let now = self.containers.load(Ordering::Relaxed); // nobody else writes to it
        match fact {
            KernelFact::CgroupCreated { .. } => self.containers.store(now + 1, Ordering::Relaxed),
            KernelFact::CgroupRemoved { .. } => {
                self.containers.store(now.saturating_sub(1), Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// What the app may ask of the running kernel side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelCommand {
    /// Report this signal for this cgroup (a stop signal that is not in the common mask).
    AllowSignal { cgroup: CgroupId, signal: u8 },
    Watch {
        cgroup: CgroupId,
        /// Its path from the root of the hierarchy.
        path: String,
    },
}

/// The capabilities that [`start`], and what follows it, need and this thread lacks.
pub fn privileges_lacking(options: &KernelOptions) -> Vec<MissingCapability> {
    privileges::lacking(privileges::held(), facts::memlock_is_short(options.ring_bytes))
}

pub fn programs_embedded() -> bool {
    load::OBJECT.is_some()
}

/// bpf(2) lets anybody use a map that is open, whatever `kernel.unprivileged_bpf_disabled` says now
/// or later: since Linux 5.19 (kernel commit c8644cd0efe7).
pub fn frees_open_maps() -> bool {
    facts::version(&facts::release()) >= (5, 19)
}

/// Probes the host, resolves the layout, loads, attaches, proves it by the self-test and scans the
/// cgroups. Blocking work of well under a second.
pub fn start(options: &KernelOptions) -> anyhow::Result<Kernel> {
    let page = rustix::param::page_size();
    if !options.ring_bytes.is_power_of_two() || (options.ring_bytes as usize) < page {
        let size = options.ring_bytes;
        bail!("invalid ring buffer size {size}; use a power of two of at least a page");
    }
    let began = clock::boot_now();
    ensure!(programs_embedded(), load::NO_OBJECT);
    privileges::raise_memlock_limit();
    let bytes = facts::btf_bytes()?;
    let btf = btf::Btf::parse(&bytes).map_err(|error| {
        anyhow!(
            "cannot parse the kernel's BTF: {error}; please report it with the output of `uname -r`"
        )
    })?;
    let cgroup_root = hierarchy(options.cgroup_root.as_deref()).map_err(Error::msg)?;
    // Since Linux 7.0; BTF does not show it. After a wrong guess, what the kernel skips is still counted: see `skipped`.
    let is_preemptible = facts::version(&facts::release()) >= (7, 0);
    let layout = layout::resolve(&btf, facts::own_pid_namespace(), is_preemptible);
    let offsets = layout::resolve_traffic(&btf);
    let layout = Layout {
        traffic: *offsets.as_ref().unwrap_or(&TrafficLayout::default()),
        ..layout.map_err(Error::msg)?
    };
    let mut plan = plan::plan(&btf, is_preemptible);
    let mut traffic = match options.counts_traffic {
        true => plan::plan_traffic(&btf, &offsets.map(drop)),
        false => Vec::new(),
    };
    drop(btf);
    drop(bytes);

    let (mut watching, mut rings, mut counting) =
        load::load(options, &layout, &mut plan, &mut traffic)?;
    let counters = Arc::new(KernelCounters::default());
    counters.ring_bytes.store(u64::from(options.ring_bytes), Ordering::Relaxed);
    let unproven = selftest::prove(&cgroup_root, &mut watching, &mut rings, &mut plan, &counters);
    let traffic_unproven = selftest::prove_counting(&mut counting, &mut traffic);

    let mut kernel = Kernel {
        report: StartReport {
            cgroup_root: cgroup_root.clone(),
            hooks: verdicts(plan),
            unproven,
            traffic: verdicts(traffic),
            traffic_unproven,
        },
        cgroup_root,
        watching,
        rings,
        counters,
        scanned: Vec::new(),
        counting: Some(counting),
        began,
    };
    let facts = kernel.scan(ScanRoom::ALL, |scan| scan.kubepods());
    let time = clock::boot_now();
    kernel.scanned = facts.into_iter().map(|fact| KernelEvent { time, fact }).collect();
    Ok(kernel)
}

fn verdicts(plan: Vec<Planned>) -> BTreeMap<&'static str, Result<(), String>> {
    plan.into_iter().map(|planned| (planned.hook.name, planned.verdict)).collect()
}

impl Kernel {
    pub fn report(&self) -> StartReport {
        self.report.clone()
    }

    /// The calling thread can use the programs' maps with the capabilities that it has.
    pub fn answers(&self) -> bool {
        self.watching.answers()
    }

    /// What counts connections: once, for the adapter that answers for them.
    pub fn take_counting(&mut self) -> Option<Counting> {
        self.counting.take()
    }

    pub fn cgroup_root(&self) -> &Path {
        &self.cgroup_root
    }

    pub fn counters(&self) -> Arc<KernelCounters> {
        Arc::clone(&self.counters)
    }

    /// First sends what the scan found, then drains the rings for ever. Ends when `to` is closed;
    /// then everything is detached.
    pub async fn run(
        mut self,
        to: mpsc::Sender<Received>,
        mut commands: mpsc::Receiver<KernelCommand>,
    ) -> anyhow::Result<()> {
        let [deciding, detail] = self.rings.wakers()?;
        // SAFETY: owned descriptors, which `AsyncFd` keeps open for as long as they are registered.
        let (deciding, detail) = unsafe {
            (
                AsyncFd::register_with_interest(deciding, Interest::READABLE)?,
                AsyncFd::register_with_interest(detail, Interest::READABLE)?,
            )
        };
        let scanned = std::mem::take(&mut self.scanned);
        let mut open = self.send(scanned, &to).await;
        let (mut commanded, mut again) = (true, DrainSchedule::new(Instant::now()));
        let (mut came, mut more) = (false, false);
        let (mut looked, mut since) = (Instant::now(), self.began);
        while open {
            let mut woken = DrainResult::default();
            tokio::select! {
                () = to.closed() => break,
                ready = deciding.readable() => {
                    ready?.clear_ready();
                    (woken.anything, woken.deciding) = (true, true);
                }
                ready = detail.readable() => {
                    ready?.clear_ready();
                    woken.anything = true;
                }
                () = sleep_until(again.at()), if !more => {}
                () = future::ready(()), if more => {}
                command = commands.recv(), if commanded => match command {
                    Some(command) => {
                        let events = self.obey(&command);
                        open = self.send(events, &to).await;
                    }
                    None => commanded = false,
                },
            }
            self.watching.flush_diagnostics();
            let events = self.rings.drain(&self.counters);
            let (now, found) = (Instant::now(), self.rings.found());
            again.drained(now, found.or(woken));
            came |= found.anything;
            more = found.more;
            open = open && self.send(events, &to).await;
            if more {
                // Records may come as fast as they are read: all else on this thread has its turn first.
                yield_now().await;
            }
            // A system call for each counter; later where no record came: then few can have been lost.
            if now - looked < if came { drain_schedule::LATER } else { drain_schedule::IDLE } {
                continue;
            }
            (came, looked) = (false, now);
            // However long that is: this may have had to wait for the engine, or for a processor.
            let since = Some(std::mem::replace(&mut since, clock::boot_now()));
            for loss in self.rings.losses(&self.counters) {
                let loss = Loss { since, ..loss };
                let lost = Received { at: clock::boot_now(), input: Input::Lost(loss) };
                open = open && to.send(lost).await.is_ok();
            }
        }
        Ok(())
    }

    /// False: nobody listens any more.
    async fn send(&self, events: Vec<KernelEvent>, to: &mpsc::Sender<Received>) -> bool {
        let mut events = events.into_iter();
        while events.len() > 0 {
            let batch = events.len().min(BATCH).min(to.max_capacity());
            let Ok(permits) = to.reserve_many(batch).await else { return false };
            let at = clock::boot_now();
            for (permit, event) in permits.zip(&mut events) {
                self.counters.count_containers(&event.fact);
                permit.send(Received { at, input: Input::Kernel(event) });
            }
        }
        true
    }

    fn obey(&mut self, command: &KernelCommand) -> Vec<KernelEvent> {
        match command {
            KernelCommand::AllowSignal { cgroup, signal } => {
                match self.watching.allow(*cgroup, *signal) {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::debug!(%cgroup, signal, "cgroup is gone; signal not traced")
                    }
                    Err(error) => {
                        tracing::warn!(%cgroup, signal, %error, "cannot enable tracing of a signal")
                    }
                }
                Vec::new()
            }
            KernelCommand::Watch { cgroup, path } => self.watch(*cgroup, path),
        }
    }

    fn watch(&mut self, cgroup: CgroupId, path: &str) -> Vec<KernelEvent> {
        let directory = self.cgroup_root.join(path.trim_start_matches('/'));
        // The container may have exited since.
        if cgroupfs::inode(&directory) != Some(cgroup.0) {
            return Vec::new();
        }
        let facts = self.scan(ScanRoom::ONE, |scan| scan.container(&directory));
        let time = clock::boot_now();
        facts.into_iter().map(|fact| KernelEvent { time, fact }).collect()
    }

    fn scan(
        &mut self,
        room: ScanRoom,
        scan: impl FnOnce(&mut Scan<'_>) -> Vec<KernelFact>,
    ) -> Vec<KernelFact> {
        let (watching, mut full) = (RefCell::new(&mut self.watching), 0u64);
        let mut scanned = Scan {
            room,
            root: &self.cgroup_root,
            proc: Path::new("/proc"),
            insert: &mut |cgroup, entry| {
                let inserted = watching.borrow_mut().insert(cgroup, entry);
                full += u64::from(inserted == Inserted::Full);
                inserted
            },
            main: &mut |cgroup, main| watching.borrow_mut().set_main(cgroup, main),
        };
        let facts = scan(&mut scanned);
        let ScanRoom { left_out, too_deep, .. } = scanned.room;
        self.rings.count_unwatched(full + left_out, too_deep);
        facts
    }
}
