//! The adapter: surveys at intervals, and what becomes of the daemons in between.

use super::{
    HostView, PartialSurvey, SurveyError, SurveyPart, boot_id, daemons::Daemons, kubelet, mounts,
    netns, pods, shims, table::Table, tools::tools,
};
use crate::{
    linux::{blocking::BlockingPool, clock, procfs::host_proc},
    sources::{Closed, cri::Dialed},
};
use coroner_core::input::{DaemonProcess, DaemonState, HostEvent, HostSurvey, Input, Received};
use futures::{
    FutureExt,
    future::{self, BoxFuture, OptionFuture},
};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::{debug, info, warn};

/// A part of a survey that takes longer hangs: the kernel's /proc/PID/cmdline waits for a lock that
/// a process which cannot be killed may hold.
const TIMEOUT: Duration = Duration::from_secs(10);
/// So many parts may hang; then none is looked at before one of them ends.
const MAX_HANGING: usize = 8;
/// Surveys are at least so far apart, however often the runtime reconnects.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at the daemons' processes.
const DAEMON_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct HostOptions {
    pub host_root: PathBuf,
    pub cgroup_root: PathBuf,
    /// Names of the kubelet's process, or of what it is part of; see [`HostView::KUBELETS`].
    pub kubelet: Vec<String>,
    pub socket: Arc<Dialed>,
    /// The first look waits this long for the runtime, whose process identifies this node's shims and pods.
    pub runtime_wait: Duration,
    /// From the end of one survey to the next.
    pub every: Duration,
    pub counters: Arc<HostCounters>,
}

impl HostOptions {
    /// The defaults: a kubelet of any known name, a survey every minute.
    pub fn new(host_root: impl Into<PathBuf>, cgroup_root: impl Into<PathBuf>) -> Self {
        Self {
            host_root: host_root.into(),
            cgroup_root: cgroup_root.into(),
            kubelet: HostView::KUBELETS.map(str::to_owned).to_vec(),
            socket: Arc::default(),
            runtime_wait: Duration::from_secs(10),
            every: Duration::from_secs(60),
            counters: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
pub struct HostCounters {
    /// Looks at the host, whatever they could not see.
    pub surveys: AtomicU64,
    /// Parts of surveys that could not be looked at, and entries that were too many.
    pub errors: AtomicU64,
}

/// The CRI adapter connected to the runtime, which is this process, if known.
pub type Runtime = Option<DaemonProcess>;

/// Surveys for ever; ends when either channel is closed.
pub async fn run(
    options: HostOptions,
    to: mpsc::Sender<Received>,
    connected: mpsc::Receiver<Runtime>,
) -> anyhow::Result<()> {
    let boot_id = boot_id(&options.host_root);
    if boot_id.is_none() {
        warn!(
            host_root = %options.host_root.display(),
            "cannot read the boot id (/proc/sys/kernel/random/boot_id); leak detection is \
             suspended. Mount /proc into the container"
        );
    }
    let adapter = HostAdapter {
        daemons: Daemons::new(&host_proc(&options.host_root)),
        pool: BlockingPool::new(TIMEOUT, MAX_HANGING),
        troubled: BTreeSet::new(),
        options,
        to: to.clone(),
    };
    tokio::select! {
        () = to.closed() => {}
        _ = adapter.turn(boot_id, connected) => {} // either way a channel is closed
    }
    Ok(())
}

struct HostAdapter {
    options: HostOptions,
    to: mpsc::Sender<Received>,
    daemons: Daemons,
    pool: BlockingPool,
    /// Parts that could not be looked at: logged once, until they can.
    troubled: BTreeSet<SurveyPart>,
}

impl HostAdapter {
    /// Until a channel closes. Neither connections nor the ends of daemons wait for a survey.
    async fn turn(
        mut self,
        boot_id: Option<String>,
        mut connected: mpsc::Receiver<Runtime>,
    ) -> Result<(), Closed> {
        self.emit(HostEvent::Boot { boot_id }).await?;
        let mut under_way: Option<BoxFuture<'static, Findings>> = None;
        let mut next = Instant::now() + self.options.runtime_wait;
        let (mut answered, mut again) = (false, false);
        let mut seconds = interval(DAEMON_INTERVAL);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                connected = connected.recv() => {
                    if let Some(process) = connected.ok_or(Closed)? {
                        self.emit_all(|daemons| daemons.connected(process)).await?;
                    }
                    if std::mem::replace(&mut answered, true) {
                        again = true; // perhaps it is another process, which has other shims
                    } else {
                        // A look that began before does not know whose shims it sees.
                        (under_way, next) = (None, Instant::now());
                    }
                }
                _ = seconds.tick() => self.emit_all(Daemons::poll).await?,
                () = sleep_until(next), if under_way.is_none() => {
                    again = false;
                    under_way = Some(look(self.host(), self.pool.clone()).boxed());
                }
                Some(seen) = OptionFuture::from(under_way.as_mut()) => {
                    under_way = None;
                    next = Instant::now() + self.options.every;
                    let survey = self.looked(seen).await?;
                    // Leak detection begins with the first survey, which must show whatever can be seen.
                    if answered {
                        self.emit(HostEvent::Survey(survey)).await?;
                    }
                }
            }
            if again && under_way.is_none() {
                next = next.min(Instant::now() + MIN_PAUSE);
            }
        }
    }

    fn host(&self) -> HostView {
        HostView {
            root: self.options.host_root.clone(),
            proc: host_proc(&self.options.host_root),
            cgroup_root: self.options.cgroup_root.clone(),
            kubelets: self.options.kubelet.clone(),
            socket: self.options.socket.get(),
            runtime: self.daemons.runtime(),
            kubelet: self.daemons.kubelet(),
        }
    }

    async fn looked(&mut self, (looked, kubelet): Findings) -> Result<HostSurvey, Closed> {
        let counters = &self.options.counters;
        counters.surveys.fetch_add(1, Relaxed);
        counters.errors.fetch_add(looked.left_out, Relaxed);
        let mut troubled = BTreeSet::new();
        for (part, why) in looked.errors {
            if matches!(why, SurveyError::NoRuntime) {
                continue; // the CRI adapter reports it
            }
            counters.errors.fetch_add(1, Relaxed);
            troubled.insert(part);
            if self.troubled.contains(&part) {
                debug!(?part, %why, "the host survey is still incomplete");
            } else {
                warn!(?part, %why, not_reported = part.cost(), "the host survey is incomplete");
            }
        }
        for part in self.troubled.difference(&troubled) {
            info!(?part, "the host survey includes this part again");
        }
        self.troubled = troubled;
        self.emit_all(|daemons| daemons.surveyed(kubelet)).await?;
        Ok(looked.survey)
    }

    async fn emit_all(
        &mut self,
        change: impl FnOnce(&mut Daemons) -> Vec<HostEvent>,
    ) -> Result<(), Closed> {
        for event in change(&mut self.daemons) {
            self.emit(event).await?;
        }
        Ok(())
    }

    async fn emit(&self, event: HostEvent) -> Result<(), Closed> {
        let received = Received { at: clock::boot_now(), input: Input::Host(event) };
        self.to.send(received).await.map_err(|_| Closed)
    }
}

type Findings = (PartialSurvey, DaemonState);

#[cfg(test)]
pub(super) async fn survey(host: &HostView) -> HostSurvey {
    look(host.clone(), BlockingPool::new(TIMEOUT, MAX_HANGING)).await.0.survey
}

/// A survey, of which each part may hang.
async fn look(mut host: HostView, pool: BlockingPool) -> Findings {
    let mut looked = PartialSurvey::begin();
    let processes = in_time(&pool, &host, |host| {
        let table = Table::read(host)?;
        let kubelet = kubelet::find(host, &table);
        Ok((Arc::new(table), kubelet))
    });
    let processes = looked.seen(SurveyPart::Processes, processes.await);
    let kubelet = processes.as_ref().map_or(DaemonState::Unknown, |(_, kubelet)| kubelet.clone());
    if let DaemonState::Running { process } = kubelet {
        host.kubelet = Some(process);
    }
    let tools = in_time(&pool, &host, |host| Ok(tools(host)));
    let others = future::join(in_time(&pool, &host, mounts::volumes), tools);
    let (volumes, tools) = match &processes {
        None => others.await,
        Some((table, _)) => {
            let [one, other, third] = std::array::from_fn(|_| Arc::clone(table));
            let (others, shims, netns, cgroups) = tokio::join!(
                others,
                in_time(&pool, &host, move |host| shims::shims(host, &one)),
                in_time(&pool, &host, move |host| netns::namespaces(host, &other)),
                in_time(&pool, &host, move |host| pods::cgroups(host, &third)),
            );
            looked.survey.shims = looked.list(SurveyPart::Shims, shims);
            looked.survey.netns = looked.list(SurveyPart::NetworkNamespaces, netns);
            looked.survey.pod_cgroups = looked.list(SurveyPart::PodCgroups, cgroups);
            others
        }
    };
    looked.survey.tools = tools.unwrap_or_default();
    looked.survey.volumes = looked.list(SurveyPart::Volumes, volumes);
    (looked, kubelet)
}

/// A part of a look, on a thread of its own.
async fn in_time<T: Send + 'static>(
    pool: &BlockingPool,
    host: &HostView,
    look: impl FnOnce(&HostView) -> Result<T, SurveyError> + Send + 'static,
) -> Result<T, SurveyError> {
    let host = host.clone();
    pool.call(move || look(&host)).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{linux::socket_file::SocketId, sources::host::fake::Fake};
    use coroner_core::input::{Daemon, HostSurvey, NodeTools};

    /// Ends a test that would wait for ever; nothing is measured by it.
    const STUCK: Duration = Duration::from_secs(60);
    const LONG: Duration = Duration::from_secs(3600);

    struct HostBench {
        events: mpsc::Receiver<Received>,
        connected: mpsc::Sender<Runtime>,
        counters: Arc<HostCounters>,
        adapter: tokio::task::JoinHandle<anyhow::Result<()>>,
    }

    impl HostBench {
        /// With a runtime whose process is not known.
        async fn start(fake: &Fake, every: Duration) -> Self {
            let bench = Self::start_alone(fake, LONG, every);
            bench.connect(None).await;
            bench
        }

        fn start_alone(fake: &Fake, runtime_wait: Duration, every: Duration) -> Self {
            let socket = Arc::new(Dialed::default());
            socket.set(SocketId { path: "/run/ours.sock".into(), file: (0, 0) });
            let options = HostOptions {
                runtime_wait,
                every,
                socket,
                ..HostOptions::new(&fake.host.root, &fake.host.cgroup_root)
            };
            let counters = Arc::clone(&options.counters);
            let (to, events) = mpsc::channel(16);
            let (connected, from_cri) = mpsc::channel(16);
            let adapter = tokio::spawn(run(options, to, from_cri));
            Self { events, connected, counters, adapter }
        }

        async fn connect(&self, process: Option<DaemonProcess>) {
            self.connected.send(process).await.unwrap();
        }

        async fn event(&mut self) -> HostEvent {
            let received = tokio::time::timeout(STUCK, self.events.recv()).await.expect("no event");
            match received.expect("the adapter ended").input {
                Input::Host(event) => event,
                other => panic!("not of the host: {other:?}"),
            }
        }

        async fn survey(&mut self) -> HostSurvey {
            loop {
                if let HostEvent::Survey(survey) = self.event().await {
                    return survey;
                }
            }
        }

        async fn daemon(&mut self) -> (Daemon, DaemonState) {
            match self.event().await {
                HostEvent::Daemon { daemon, state } => (daemon, state),
                other => panic!("no daemon but {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn the_boot_then_the_daemons_then_the_survey() {
        let fake = Fake::new();
        fake.kthreadd();
        fake.file("proc/sys/kernel/random/boot_id", "b0\n");
        fake.file("proc/1/mountinfo", "");
        fake.file("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n");
        let kubelet = fake.process(9, "kubelet", 1, 90);
        let mut bench = HostBench::start(&fake, LONG).await;
        assert_eq!(bench.event().await, HostEvent::Boot { boot_id: Some("b0".into()) });
        assert_eq!(
            bench.daemon().await,
            (Daemon::Kubelet, DaemonState::Running { process: kubelet })
        );
        assert_eq!(bench.daemon().await, (Daemon::Runtime, DaemonState::Unknown));
        assert_eq!(bench.daemon().await.0, Daemon::Kubelet);
        let survey = bench.survey().await;
        let nothing = HostSurvey {
            asked: survey.asked,
            shims: Some(vec![]),
            netns: Some(vec![]),
            pod_cgroups: Some(vec![]),
            volumes: Some(vec![]),
            tools: NodeTools::default(),
        };
        assert_eq!(survey, nothing);
        assert_eq!(bench.counters.errors.load(Relaxed), 0);
        // The next one is an hour away, unless the runtime reconnects.
        fake.ended(9);
        bench.connect(None).await;
        let ended = (Daemon::Kubelet, DaemonState::Ended { process: kubelet });
        while bench.daemon().await != ended {}
        bench.survey().await;
        drop(bench.connected);
        bench.adapter.await.unwrap().unwrap();
    }

    /// A survey that does not know the runtime does not know whose shims and pods it sees.
    #[tokio::test]
    async fn the_first_survey_waits_for_the_runtime_and_the_next_for_no_time() {
        let fake = Fake::new();
        let runtime = fake.process(7, "containerd", 1, 70);
        let mut bench = HostBench::start_alone(&fake, LONG, LONG);
        assert!(matches!(bench.event().await, HostEvent::Boot { .. }));
        bench.connect(Some(runtime)).await;
        let running = DaemonState::Running { process: runtime };
        assert_eq!(bench.daemon().await, (Daemon::Runtime, running), "before any survey");
        bench.survey().await;
        assert_eq!(bench.counters.surveys.load(Relaxed), 1);
        // Another one that has ended by then: another runtime, other shims.
        let next = DaemonProcess { pid: 9, started: 90 };
        bench.connect(Some(next)).await;
        let ended = (Daemon::Runtime, DaemonState::Ended { process: next });
        while bench.daemon().await != ended {}
        bench.survey().await;
        drop(bench.events);
        bench.adapter.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn without_the_runtime_the_kubelet_is_found_and_no_survey_is_reported() {
        let fake = Fake::new();
        fake.kthreadd();
        let kubelet = fake.process(9, "kubelet", 1, 90);
        let mut bench = HostBench::start_alone(&fake, Duration::ZERO, Duration::from_millis(1));
        assert!(matches!(bench.event().await, HostEvent::Boot { .. }));
        let running = (Daemon::Kubelet, DaemonState::Running { process: kubelet });
        while bench.counters.surveys.load(Relaxed) < 3 {
            let told = bench.daemon().await; // panics at a survey
            assert!(told == running || told.0 == Daemon::Runtime, "{told:?}");
        }
        bench.connect(None).await;
        bench.survey().await;
    }

    #[tokio::test]
    async fn what_is_left_out_or_not_seen_is_counted() {
        let fake = Fake::new();
        let (to, _events) = mpsc::channel(16);
        let options = HostOptions::new(&fake.host.root, &fake.host.cgroup_root);
        let counters = Arc::clone(&options.counters);
        let (daemons, pool) = (Daemons::new(&fake.host.proc), BlockingPool::new(TIMEOUT, 1));
        let mut adapter = HostAdapter { options, to, daemons, pool, troubled: BTreeSet::new() };
        let errors = vec![(SurveyPart::Volumes, SurveyError::NoMounts)];
        let looked = PartialSurvey { left_out: 3, errors, ..PartialSurvey::begin() };
        assert!(adapter.looked((looked, DaemonState::Unknown)).await.is_ok());
        assert_eq!(counters.errors.load(Relaxed), 4);
    }
}
