//! cgroup2, pods and a running kernel side.

use coroner::{
    linux::procfs::parse,
    sources::kernel::{
        self, Kernel, KernelCommand, KernelCounters, KernelOptions,
        btf::{Btf, Parameter},
    },
};
use coroner_core::{
    ids::CgroupId,
    input::{Input, KernelEvent, KernelFact, LossKind, Received, TaskState},
};
use coroner_ebpf::MAX_NESTING;
use parking_lot::{Mutex, MutexGuard};
use rustix::mount::{MountFlags, UnmountFlags};
use std::{
    collections::BTreeMap,
    fs,
    ops::Deref,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// A record that has not come by then does not come: long, for machines in an emulator; not a
/// bound that anything is measured against.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);
/// Between two looks at what is waited for. No test depends on it.
const LOOK: Duration = Duration::from_millis(1);

/// One test at a time: they share the machine's processes and cgroups.
static MACHINE: Mutex<()> = Mutex::new(());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Runs a test that has the whole machine and the mount point of cgroup2.
pub(crate) fn with_cgroup2(test: impl FnOnce(&Path)) {
    let _machine = machine();
    test(&v2());
}

/// Runs a test of one pod.
pub(crate) fn with_pod(test: impl FnOnce(Session, Pod)) {
    with_cgroup2(|hierarchy| {
        let session = Session::start(hierarchy);
        test(session, Pod::make(hierarchy));
    });
}

/// The whole machine for one test.
pub(crate) fn machine() -> MutexGuard<'static, ()> {
    take_turns();
    MACHINE.lock()
}

/// Since Linux 7.0 a kernel program may be preempted, and is skipped meanwhile (docs/design.md). In an emulator, where
/// a program takes long, that happens often, and exact tests would fail for it. Processes that share a CPU in turns
/// hardly ever preempt each other; `preemption.rs` gives its own another policy.
fn take_turns() {
    if release() >= (7, 0) {
        let priority = libc::sched_param { sched_priority: 1 };
        // Refused on a machine that is not a guest of its own, which is fast.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) };
    }
}

/// Where cgroup2 is mounted: by the machine, or for the test, until this is dropped.
pub(crate) struct Hierarchy {
    point: PathBuf,
    ours: bool,
}

impl Deref for Hierarchy {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.point
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        if self.ours {
            // An error would hide the test's own.
            let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
            let _ = fs::remove_dir(&self.point);
        }
    }
}

/// cgroup2.
pub(crate) fn v2() -> Hierarchy {
    if let Some(point) = mounted("cgroup2", "") {
        return Hierarchy { point, ours: false };
    }
    let point = std::env::temp_dir().join("coroner-test-cgroup2");
    fs::create_dir_all(&point).unwrap();
    rustix::mount::mount(c"cgroup2", &point, c"cgroup2", MountFlags::empty(), None)
        .unwrap_or_else(|error| panic!("cannot mount cgroup2: {error}"));
    Hierarchy { point, ours: true }
}

/// Major and minor of the kernel's version: for what no BTF tells, as in which year a signal to the
/// dying was first said to be ignored.
pub(crate) fn release() -> (u32, u32) {
    kernel::facts::version(&rustix::system::uname().release().to_string_lossy())
}

/// What the kernel's BTF says of a tracepoint.
pub(crate) fn tracepoint(name: &str) -> Vec<Parameter> {
    let bytes = kernel::facts::btf_bytes().unwrap();
    let of = Btf::parse(&bytes).unwrap().tracepoint(name);
    of.unwrap_or_else(|| panic!("no tracepoint {name}"))
}

/// Where a hierarchy is mounted, by type and controller.
pub(crate) fn mounted(kind: &str, controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let point = fields.nth(1)?;
        let is = fields.next()? == kind
            && (controller.is_empty() || fields.next()?.split(',').any(|o| o == controller));
        is.then(|| point.into())
    })
}

/// Looks so often until something is there; the error says what is missing when the time is up.
#[track_caller]
pub(crate) fn wait_for<T>(every: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        match look() {
            Ok(found) => return found,
            Err(missing) => assert!(Instant::now() < until, "{missing}"),
        }
        std::thread::sleep(every);
    }
}

/// Waits for the end of a process that is no child of this one. It may not have been reaped by then.
pub(crate) fn wait_for_end(pid: u32) {
    wait_for(LOOK, || {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok().and_then(|text| parse::stat(&text));
        let has_ended = stat.is_none_or(|is| is.state == TaskState::Zombie);
        has_ended.then_some(()).ok_or_else(|| format!("process {pid} does not end"))
    });
}

/// The pids of a cgroup's processes but the init's.
pub(crate) fn children(cgroup: &Path, init: u32) -> Vec<u32> {
    let procs = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    procs.lines().map(|pid| pid.parse().unwrap()).filter(|pid| *pid != init).collect()
}

/// A cgroup of a test. Removed when dropped: its processes must be gone.
pub(crate) struct TestCgroup {
    pub(crate) path: PathBuf,
    pub(crate) id: CgroupId,
}

impl TestCgroup {
    pub(crate) fn make(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let id = CgroupId(fs::metadata(&path).unwrap().ino());
        Self { path, id }
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        Self::make(self.path.join(name))
    }

    /// A directory of its own below a hierarchy's root.
    pub(crate) fn top(root: &Path, suffix: &str) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self::make(root.join(format!("coroner-test-{}-{number}-{suffix}", std::process::id())))
    }

    pub(crate) fn remove(self) {
        drop(self);
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // Busy until the last process' end is complete.
        let until = Instant::now() + TIMEOUT;
        while fs::remove_dir(&self.path).is_err() && self.path.exists() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

/// A pod with one container, made as a kubelet with the cgroupfs driver would. Innermost first:
/// that is the order of removal.
pub(crate) struct Pod {
    pub(crate) container: TestCgroup,
    pub(crate) pod: TestCgroup,
    pub(crate) root: TestCgroup,
}

pub(crate) const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
pub(crate) const POD: &str = "pod8dbc5577-d0e2-4706-8787-57d52c03ddf2";

impl Pod {
    pub(crate) fn make(hierarchy: &Path) -> Self {
        let root = TestCgroup::top(hierarchy, "kubepods");
        let pod = root.child(POD);
        let container = pod.child(ID);
        Self { container, pod, root }
    }
}

/// A running kernel side and all that it has said.
pub(crate) struct Session {
    hierarchy: PathBuf,
    commands: mpsc::Sender<KernelCommand>,
    from: mpsc::Receiver<Received>,
    heard: Vec<KernelEvent>,
    pub(crate) lost: BTreeMap<LossKind, u64>,
    counters: Arc<KernelCounters>,
    runner: Option<JoinHandle<()>>,
}

pub(crate) fn options(hierarchy: &Path) -> KernelOptions {
    KernelOptions { cgroup_root: Some(hierarchy.into()), ..KernelOptions::default() }
}

/// Starts the kernel side; every hook must be there and proven.
pub(crate) fn start(options: &KernelOptions) -> Kernel {
    let kernel = kernel::start(options).unwrap_or_else(|error| panic!("{error}"));
    let report = kernel.report();
    assert_eq!(report.unproven, None);
    for (hook, verdict) in &report.hooks {
        assert_eq!(*verdict, Ok(()), "{hook}");
    }
    assert_eq!(report.traffic_unproven, None);
    for (hook, verdict) in &report.traffic {
        // Since Linux 6.10, with a reason, it is called for what is refused, too.
        let is_visible = *hook != "tcp_send_reset" || tracepoint(hook).len() >= 3;
        assert_eq!(verdict.is_ok(), is_visible, "{hook}: {verdict:?}");
    }
    kernel
}

impl Session {
    pub(crate) fn start(hierarchy: &Path) -> Self {
        Self::run(hierarchy, start(&options(hierarchy)))
    }

    pub(crate) fn run(hierarchy: &Path, kernel: Kernel) -> Self {
        let (to, from) = mpsc::channel(1 << 16);
        let (commands, obeyed) = mpsc::channel(16);
        let counters = kernel.counters();
        let runner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(kernel.run(to, obeyed)).unwrap();
        });
        Self {
            hierarchy: hierarchy.into(),
            commands,
            from,
            heard: Vec::new(),
            lost: BTreeMap::new(),
            counters,
            runner: Some(runner),
        }
    }

    pub(crate) fn command(&self, command: KernelCommand) {
        self.commands.blocking_send(command).unwrap();
    }

    /// Has this cgroup watched, by its path.
    pub(crate) fn watch(&self, cgroup: &TestCgroup) {
        let path = cgroup.path.strip_prefix(&self.hierarchy).unwrap();
        let (cgroup, path) = (cgroup.id, format!("/{}", path.display()));
        self.command(KernelCommand::Watch { cgroup, path });
    }

    /// Waits until something was said.
    pub(crate) fn until(&mut self, what: &str, said: impl Fn(&KernelFact) -> bool) {
        let is_said = |me: &Self| me.heard.iter().any(|event| said(&event.fact));
        assert!(self.listen_until(is_said), "never heard of {what}; heard {:#?}", self.heard);
    }

    /// Listens until this is so; false: it never was.
    fn listen_until(&mut self, is_so: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + TIMEOUT;
        while !is_so(self) && Instant::now() < until {
            self.listen();
            std::thread::sleep(LOOK);
        }
        is_so(self)
    }

    /// Waits until all that has happened so far was said: records come in the order of time, so
    /// something that happens now comes last.
    pub(crate) fn settle(&mut self) {
        let last = TestCgroup::top(&self.hierarchy, "last-kubepods");
        let id = last.id;
        last.remove();
        self.until("the last cgroup", |f| *f == KernelFact::CgroupRemoved { cgroup: id });
    }

    /// Waits until the kernel says that nobody is left in the cgroup. Since Linux 7 that comes only when
    /// its last task was switched away from, so that `wait` and [`Self::settle`] may return before it.
    pub(crate) fn until_empty(&mut self, cgroup: CgroupId) {
        self.until("its emptiness", |fact| *fact == KernelFact::CgroupEmpty { cgroup });
    }

    /// Nothing that has happened so far was lost. The reader looks at the counters of losses less often
    /// than into the rings, so one of them is raised that is no loss: when the reader has seen that, it
    /// has reported all losses before it drains the rings again.
    pub(crate) fn assert_lossless(&mut self) {
        let counters = Arc::clone(&self.counters);
        let too_deep = || counters.too_deep.load(Ordering::Relaxed);
        let before = too_deep();
        let pod = Pod::make(&self.hierarchy);
        let mut nested = vec![pod.container.child("nested")];
        for _ in 0..MAX_NESTING {
            nested.push(nested[nested.len() - 1].child("nested"));
        }
        while let Some(innermost) = nested.pop() {
            innermost.remove();
        }
        drop(pod);
        let looks = self.listen_until(|_| too_deep() != before);
        assert!(looks, "the reader never looks at the counters of losses");
        self.settle();
        assert!(self.lost.is_empty(), "{:?}", self.lost);
    }

    /// Waits until so many were told or lost, as far as they ever are; how many of either. Losses are
    /// told later than what was not lost.
    pub(crate) fn accounted(
        &mut self,
        all: u64,
        kind: LossKind,
        told: impl Fn(&Self) -> u64,
    ) -> (u64, u64) {
        let counts = |me: &Self| (told(me), me.lost.get(&kind).copied().unwrap_or(0));
        self.listen_until(|me| counts(me).0 + counts(me).1 >= all);
        counts(self)
    }

    /// All that was said so far about a cgroup, in the order in which it was.
    pub(crate) fn about(&self, cgroup: CgroupId) -> Vec<KernelFact> {
        self.heard
            .iter()
            .filter(|event| event.fact.cgroup() == Some(cgroup))
            .map(|event| event.fact.clone())
            .collect()
    }

    /// Of those, what was picked.
    pub(crate) fn facts<T>(
        &self,
        cgroup: CgroupId,
        pick: impl FnMut(KernelFact) -> Option<T>,
    ) -> Vec<T> {
        self.about(cgroup).into_iter().filter_map(pick).collect()
    }

    pub(crate) fn heard(&self) -> &[KernelEvent] {
        &self.heard
    }

    fn listen(&mut self) {
        while let Ok(received) = self.from.try_recv() {
            match received.input {
                Input::Kernel(event) => self.heard.push(event),
                Input::Lost(loss) => {
                    assert!(loss.since.is_some_and(|since| since <= received.at), "{loss:?}");
                    *self.lost.entry(loss.kind).or_default() += loss.count;
                }
                other => panic!("the kernel side said {other:?}"),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.from.close();
        self.listen();
        if let Some(runner) = self.runner.take() {
            let ended = runner.join();
            if std::thread::panicking() {
                // What a test misses may have been lost, and it has not come to look.
                eprintln!("lost: {:?}", self.lost);
            }
            assert!(ended.is_ok() || std::thread::panicking(), "the kernel side failed");
        }
    }
}
