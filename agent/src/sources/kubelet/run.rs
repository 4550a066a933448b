//! The adapter: reads a live log, and reports what it says and what is missing. A person's log is read at once.

use super::{
    budget::Budget,
    file::{self, LogFile},
    journal::{self, Clocks, Journal},
    parser::LineResult,
    reading::{LineCounters, Reading},
    stream,
};
use crate::linux::{below, blocking::BlockingPool, clock};
use coroner_core::{
    input::{Input, KubeletEvent, KubeletLogGap, KubeletLogOrigin, Received},
    time::{Anchor, BootTime, WallTime},
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::mpsc, time::sleep};
use tracing::{info, warn};

/// How far back a live log is read at the start.
const LOOK_BACK: Duration = Duration::from_secs(300);
/// A poll of a dead file system is given up after this.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// What RKE2's kubelet writes, below the host's root, and nothing into the journal (`--log-file`, staticpod.go of RKE2).
const RKE2S_FILE: &str = "/var/lib/rancher/rke2/agent/logs/kubelet.log";
/// What a kubelet writes on distributions without a journal.
const KUBELETS_FILE: &str = "/var/log/kubelet.log";
/// The log is looked for again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Where the kubelet's log is looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogSource {
    /// RKE2's file, or the systemd journal, or else a file that is known.
    Auto,
    /// The systemd journal below the host's root.
    Journal,
    /// A plain file below the host's root.
    File(PathBuf),
}

/// What the adapter needs.
#[derive(Clone, Debug)]
pub struct KubeletLogOptions {
    /// Where the log is.
    pub source: LogSource,
    /// Root of the host's file system.
    pub host_root: PathBuf,
    /// Lines, by what became of them.
    pub counters: Arc<LineCounters>,
}

/// What is found of a log, for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundLog {
    /// Where it is.
    pub place: String,
    /// The highest level of a line.
    pub level: Option<u8>,
    /// Lines that say something.
    pub lines: u64,
}

/// A log that is polled.
#[derive(Debug)]
enum Log {
    Journal(Box<Journal>, u64),
    File(LogFile),
}

/// This machine's clocks now.
fn clocks() -> Clocks {
    let monotonic = clock_gettime(ClockId::Monotonic);
    let monotonic = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
    let suspended_ns = clock::boot_now().0.saturating_sub(monotonic);
    Clocks { anchor: clock::anchor(), suspended_ns }
}

/// This machine's boot.
fn this_boot() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    stream::boot_id(&text)
}

impl LogSource {
    /// The place itself.
    fn found(&self, host_root: &Path) -> Self {
        let Self::Auto = self else { return self.clone() };
        // What was not written since the boot is of no kubelet that runs.
        let boot = clock::anchor().wall(BootTime(0)).0 / 1_000_000_000;
        let is_written = |path: &str| {
            below::stat(host_root, Path::new(path))
                .is_ok_and(|stat| below::is_plain(&stat) && stat.st_mtime >= boot)
        };
        if is_written(RKE2S_FILE) {
            Self::File(RKE2S_FILE.into())
        } else if journal::exists(host_root) || !is_written(KUBELETS_FILE) {
            Self::Journal
        } else {
            Self::File(KUBELETS_FILE.into())
        }
    }
}

impl Log {
    fn new(place: &LogSource, host_root: &Path) -> Self {
        match place {
            LogSource::File(path) => Self::File(LogFile::new(host_root, path)),
            LogSource::Journal | LogSource::Auto => {
                let now = clock::anchor();
                let since = now.wall(BootTime(now.boot_ns) - LOOK_BACK).0.max(0).unsigned_abs();
                let journal = Journal::new(host_root, this_boot());
                Self::Journal(Box::new(journal), since / 1_000)
            }
        }
    }

    fn origin(&self) -> KubeletLogOrigin {
        match self {
            Self::Journal(..) => KubeletLogOrigin::Journal,
            Self::File(_) => KubeletLogOrigin::File,
        }
    }

    fn poll(
        &mut self,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<Vec<KubeletEvent>, String> {
        match self {
            Self::File(file) => {
                file.poll(file::LOOK_BACK, reading, counters).map_err(|error| error.to_string())
            }
            Self::Journal(journal, since) => {
                journal.poll(*since, clocks(), reading, counters).map_err(|error| error.to_string())
            }
        }
    }
}

/// Looks at a log once, for a person. The error says why it is not read.
pub fn probe(options: &KubeletLogOptions) -> Result<FoundLog, String> {
    let found = options.source.found(&options.host_root);
    let mut log = Log::new(&found, &options.host_root);
    let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
    let events = log.poll(&mut reading, &options.counters)?;
    let level = events.iter().filter_map(|event| match event {
        KubeletEvent::Verbosity { at_least } => Some(*at_least),
        _ => None,
    });
    let place = match found {
        LogSource::File(path) => path.display().to_string(),
        LogSource::Journal | LogSource::Auto => "the systemd journal".to_owned(),
    };
    Ok(FoundLog { place, level: level.max(), lines: options.counters.of(LineResult::Read) })
}

/// A live log, and how far it was read.
#[derive(Debug)]
struct Live {
    options: KubeletLogOptions,
    log: Option<Log>,
    /// Where it is.
    place: LogSource,
    /// When it was looked for last, and where it was found then if that is another place.
    looked: BootTime,
    elsewhere: Option<LogSource>,
    /// It was read, and is read on where it was after an error.
    is_begun: bool,
    reading: Reading,
    /// The engine has known that it is read.
    is_known: bool,
    /// What a poll found; after a poll that hung too.
    events: Vec<KubeletEvent>,
}

impl Live {
    fn new(options: KubeletLogOptions) -> Self {
        let now = clock::boot_now();
        Self {
            log: None,
            place: options.source.clone(),
            looked: now,
            elsewhere: None,
            is_begun: false,
            reading: Reading::new(Budget::live(), now - LOOK_BACK),
            is_known: false,
            events: Vec::new(),
            options,
        }
    }

    /// A log that was found may be somewhere else by now: the node has a journal since, or none any more. A file that is
    /// being rotated is not there for a moment, so it is left only if it is found elsewhere twice.
    fn look_again(&mut self, now: BootTime) {
        if !self.is_begun || now.since(self.looked) < LOOK_AGAIN {
            return;
        }
        self.looked = now;
        let found = self.options.source.found(&self.options.host_root);
        let found = Some(found).filter(|found| *found != self.place);
        let before = std::mem::replace(&mut self.elsewhere, found.clone());
        if found.is_some() && found == before {
            (self.log, self.is_begun, self.elsewhere) = (None, false, None);
            self.reading.moved(now);
        }
    }

    /// Reads what is new. Returns where it is read from.
    fn poll(&mut self) -> Result<KubeletLogOrigin, String> {
        self.look_again(clock::boot_now());
        let options = &self.options;
        let log = self.log.get_or_insert_with(|| {
            self.place = options.source.found(&options.host_root);
            Log::new(&self.place, &options.host_root)
        });
        let origin = log.origin();
        match log.poll(&mut self.reading, &options.counters) {
            Ok(events) => {
                self.is_begun = true;
                self.events.extend(events);
                Ok(origin)
            }
            Err(error) => {
                // It may be somewhere else the next time.
                self.log = self.log.take().filter(|_| self.is_begun);
                Err(error)
            }
        }
    }

    /// What was found, and from when on it is whole, where the engine does not know that it is read.
    fn take(&mut self, begins: Option<(KubeletLogOrigin, BootTime)>) -> Vec<KubeletEvent> {
        let begin = begins.map(|(origin, asked)| {
            // The engine does not rely on the levels of before.
            if std::mem::replace(&mut self.is_known, true) {
                self.events.extend(self.reading.verbosity());
            }
            KubeletEvent::Reading { origin, since: self.reading.since(asked) }
        });
        begin.into_iter().chain(self.events.drain(..)).collect()
    }
}

/// Reads a live log until the channel is closed. What cannot be read is missing, and never an error.
pub async fn run(options: KubeletLogOptions, to: mpsc::Sender<Received>) -> anyhow::Result<()> {
    let pool = BlockingPool::new(LONGEST_POLL, 1);
    let is_auto = options.source == LogSource::Auto;
    let live = Arc::new(Mutex::new(Live::new(options)));
    // Where the last poll has read it; `Some(None)`: it could not be read.
    let mut read: Option<Option<KubeletLogOrigin>> = None;
    while !to.is_closed() {
        let asked = clock::boot_now();
        let polled = pool.call({
            let live = Arc::clone(&live);
            move || lock(&live).poll()
        });
        let polled =
            polled.await.unwrap_or_else(|error| Err(format!("reading the kubelet's log: {error}")));
        let events = match polled {
            Ok(origin) => {
                let begins = (read != Some(Some(origin))).then_some((origin, asked));
                if begins.is_some() {
                    info!(origin = origin.as_str(), "reading the kubelet's log");
                }
                read = Some(Some(origin));
                // Held by a poll only, and none is under way.
                lock(&live).take(begins)
            }
            Err(_) if read == Some(None) => Vec::new(),
            Err(error) => {
                let consequence = "reports lack the kubelet's stages, and causes are inferred where its log would prove them. \
                                   Set --kubelet-log to where the kubelet of this node logs, or to off";
                if is_auto && read.is_none() {
                    info!("{error}; {consequence}");
                } else {
                    warn!("{error}; {consequence}");
                }
                read = Some(None);
                vec![KubeletEvent::Unreadable { error }]
            }
        };
        for event in events {
            // Most lines of a log at -v=4 are about pods that keep running.
            if matches!(&event, KubeletEvent::Entry(entry) if !entry.is_wanted()) {
                continue;
            }
            let received = Received { at: clock::boot_now(), input: Input::Kubelet(event) };
            if to.send(received).await.is_err() {
                return Ok(());
            }
        }
        sleep(if read == Some(None) { LOOK_AGAIN } else { file::POLL }).await;
    }
    Ok(())
}

/// A poll that panicked has left what it had read until then. The lines that it took apart are missing.
fn lock(live: &Mutex<Live>) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
        live.clear_poison();
        let mut panicked = poisoned.into_inner();
        panicked.reading.gap(clock::boot_now(), 0, KubeletLogGap::Damaged);
        panicked
    })
}

/// A person's log is kept in memory: at most this much of it is read, MiB.
pub const MAX_MIB: u64 = 256;

/// What was read of a log that a person has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PersonsLog {
    /// What it says. If it is cut, a gap from its last line on comes last.
    pub events: Vec<KubeletEvent>,
    /// It is longer than [`MAX_MIB`], and what follows was not read.
    pub is_cut: bool,
}

/// Reads a whole log that a person has: a plain file, the output of journalctl, or standard input (`-`). `anchor` is
/// of the machine that wrote it, at a moment that the log is about, and `boot` its boot, if it is known.
pub fn read_all(
    path: &Path,
    anchor: Anchor,
    boot: Option<&str>,
    counters: &LineCounters,
) -> anyhow::Result<PersonsLog> {
    let (text, is_cut) = if path == Path::new("-") {
        read_at_most(MAX_MIB << 20, io::stdin().lock())?
    } else {
        anyhow::ensure!(fs::metadata(path)?.is_file(), file::FileError::NotPlain(path.to_owned()));
        read_at_most(MAX_MIB << 20, fs::File::open(path)?)?
    };
    let near = WallTime(anchor.wall_ns);
    let mut events = events_of(&text, (anchor, near), boot.and_then(stream::boot_id), counters);
    if is_cut {
        events.push(after_the_last(&events));
    }
    Ok(PersonsLog { events, is_cut })
}

/// The whole lines of at most so many bytes, and whether there are more.
fn read_at_most(most: u64, from: impl Read) -> io::Result<(Vec<u8>, bool)> {
    let mut text = Vec::new();
    from.take(most + 1).read_to_end(&mut text)?;
    let is_cut = text.len() as u64 > most;
    if is_cut {
        text.pop();
        text.truncate(memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1));
    }
    Ok((text, is_cut))
}

/// Nothing is known of what follows the last of these lines.
fn after_the_last(events: &[KubeletEvent]) -> KubeletEvent {
    let last = events.iter().filter_map(|event| match event {
        KubeletEvent::Entry(entry) => Some(entry.time),
        _ => None,
    });
    let from = last.max().unwrap_or(BootTime(0));
    KubeletEvent::Gap { from, to: BootTime(u64::MAX), lines: 0, cause: KubeletLogGap::NotRead }
}

/// What a whole log says.
pub(super) fn events_of(
    text: &[u8],
    (anchor, near): (Anchor, WallTime),
    boot: Option<[u8; 16]>,
    counters: &LineCounters,
) -> Vec<KubeletEvent> {
    let clocks = Clocks { anchor, suspended_ns: 0 };
    let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
    stream::read(text, clocks, near, boot, &mut reading, counters);
    let since = reading.since(BootTime(anchor.boot_ns));
    let mut events = vec![KubeletEvent::Reading { origin: KubeletLogOrigin::File, since }];
    // Nothing is known of what follows the last line.
    events.extend(reading.events(BootTime(u64::MAX)));
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use tokio::time::timeout;

    /// A live log in a file below a root, and what was found in it.
    struct LogNode {
        root: tempfile::TempDir,
        live: Mutex<Live>,
    }

    impl LogNode {
        fn new(source: LogSource) -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("var/log")).unwrap();
            let host_root = root.path().to_owned();
            let live =
                Live::new(KubeletLogOptions { source, host_root, counters: Default::default() });
            Self { root, live: Mutex::new(live) }
        }

        fn path(&self) -> PathBuf {
            self.root.path().join("var/log/kubelet.log")
        }

        /// A line of this moment, about a pod of this name.
        fn write(&self, pod: &str) {
            let now = jiff::Timestamp::now().strftime("%m%d %H:%M:%S.%6f");
            let line =
                format!("I{now} 7 kubelet.go:1] \"SyncPod enter\" pod=\"d/{pod}\" podUID=\"u\"");
            let file = fs::File::options().append(true).create(true).open(self.path());
            writeln!(file.unwrap(), "{line}").unwrap();
        }

        /// Where it is read, and what is found.
        fn poll(&self) -> Result<(KubeletLogOrigin, Vec<String>), String> {
            let mut live = lock(&self.live);
            let origin = live.poll()?;
            let name = |event| match event {
                KubeletEvent::Entry(entry) => entry.name,
                KubeletEvent::Reading { .. } => Some("reading".to_owned()),
                KubeletEvent::Verbosity { at_least } => Some(format!("-v={at_least}")),
                KubeletEvent::Gap { .. } => Some("gap".to_owned()),
                _ => None,
            };
            let events = live.take(Some((origin, BootTime(7))));
            Ok((origin, events.into_iter().filter_map(name).collect()))
        }

        fn names(&self) -> Vec<String> {
            self.poll().unwrap().1
        }

        /// It is time to look for the log again.
        fn looks_again(&self) {
            lock(&self.live).looked = BootTime(0);
        }
    }

    #[test]
    fn a_person_is_shown_the_place_and_the_verbosity() {
        for source in [LogSource::Auto, LogSource::File("/var/log/kubelet.log".into())] {
            let node = LogNode::new(source);
            let probed = || probe(&lock(&node.live).options);
            probed().unwrap_err();
            node.write("a");
            let place = "/var/log/kubelet.log".to_owned();
            assert_eq!(probed(), Ok(FoundLog { place, level: Some(4), lines: 1 }));
        }
    }

    #[test]
    fn after_an_error_each_line_comes_once() {
        let node = LogNode::new(LogSource::File("var/log/kubelet.log".into()));
        node.write("a");
        assert_eq!(node.names(), ["reading", "-v=4", "a"]);
        match &mut lock(&node.live).log {
            Some(Log::File(file)) => file.break_reads(),
            other => panic!("{other:?}"),
        }
        node.write("b");
        node.poll().unwrap_err();
        node.write("c");
        assert_eq!(node.names(), ["reading", "b", "c", "-v=4"]);
    }

    #[test]
    fn after_a_panic_lines_are_missing() {
        let node = LogNode::new(LogSource::File("var/log/kubelet.log".into()));
        node.write("a");
        assert_eq!(node.names(), ["reading", "-v=4", "a"]);
        let panics = || {
            let _held = lock(&node.live);
            panic!("on purpose")
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
        node.write("b");
        assert_eq!(node.names(), ["reading", "gap", "-v=4", "b", "-v=4"]);
        assert_eq!(node.names(), ["reading", "-v=4"]);
    }

    /// Time is paused: the test does not wait for the next poll.
    #[tokio::test(start_paused = true)]
    async fn what_is_not_read_is_reported() {
        let node = LogNode::new(LogSource::File("var/log/kubelet.log".into()));
        let (to, mut inputs) = mpsc::channel(64);
        let adapter = tokio::spawn(run(lock(&node.live).options.clone(), to));
        let mut next = async || {
            let received = timeout(10 * LOOK_AGAIN, inputs.recv()).await.expect("no event");
            match received.expect("the adapter ended").input {
                Input::Kubelet(event) => event,
                other => panic!("{other:?}"),
            }
        };
        let event = next().await;
        assert!(matches!(event, KubeletEvent::Unreadable { .. }), "{event:?}");
        node.write("a");
        let event = next().await;
        assert!(matches!(event, KubeletEvent::Reading { .. }), "{event:?}");
        while !matches!(next().await, KubeletEvent::Verbosity { .. }) {}
        fs::write(node.path(), "").unwrap();
        node.write("b");
        let event = next().await;
        assert!(matches!(event, KubeletEvent::Gap { .. }), "{event:?}");
        drop(inputs);
        adapter.await.unwrap().unwrap();
    }

    #[test]
    fn a_log_that_is_somewhere_else_by_now_is_read_there() {
        let packed = include_bytes!("../../../tests/fixtures/journal/plain-zstd.journal.gz");
        let mut whole = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut whole).unwrap();
        let node = LogNode::new(LogSource::Auto);
        node.write("a");
        // No file of the system is in it.
        let journal = node.root.path().join("var/log/journal/m");
        fs::create_dir_all(&journal).unwrap();
        assert_eq!(node.poll().unwrap().0, KubeletLogOrigin::File);
        fs::write(journal.join("system.journal"), &whole).unwrap();
        node.looks_again();
        assert_eq!(node.poll().unwrap().0, KubeletLogOrigin::File, "it is found there once");
        assert_eq!(node.poll().unwrap().0, KubeletLogOrigin::File, "it is not yet time");
        node.looks_again();
        let (origin, found) = node.poll().unwrap();
        assert_eq!(origin, KubeletLogOrigin::Journal);
        assert_eq!(found, ["reading", "gap"]);
        // And back: what was read there is not read again.
        node.write("b");
        fs::remove_dir_all(&journal).unwrap();
        node.looks_again();
        node.poll().unwrap();
        node.looks_again();
        let (origin, found) = node.poll().unwrap();
        assert_eq!(origin, KubeletLogOrigin::File);
        assert_eq!(found, ["reading", "gap", "-v=4", "b", "-v=4"]);
    }

    #[test]
    fn a_persons_log_that_is_too_long_has_a_gap_after_its_last_line() {
        let text = |pod| {
            format!("I1123 14:18:35.558172 7 kubelet.go:1] \"SyncPod enter\" pod=\"d/{pod}\"\n")
        };
        let whole = text("a") + &text("b");
        let (length, first) = (whole.len() as u64, text("a").into_bytes());
        let read = |most| read_at_most(most, whole.as_bytes()).unwrap();
        assert_eq!(read(length), (whole.clone().into_bytes(), false));
        assert_eq!(read(length - 1), (first.clone(), true), "no torn line");
        assert_eq!(read(9), (Vec::new(), true));
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 1_795_446_000_000_000_000 };
        let near = WallTime(anchor.wall_ns);
        let events = events_of(&first, (anchor, near), None, &LineCounters::default());
        let Some(KubeletEvent::Entry(last)) = events.last() else { panic!("{events:?}") };
        let (from, to, cause) = (last.time, BootTime(u64::MAX), KubeletLogGap::NotRead);
        assert_eq!(after_the_last(&events), KubeletEvent::Gap { from, to, lines: 0, cause });
    }

    #[test]
    fn rke2s_file_is_read_before_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let create = |path: &str| {
            let path = folder.path().join(path.strip_prefix('/').unwrap());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::create(path).unwrap()
        };
        let found = || LogSource::Auto.found(folder.path());
        assert_eq!(found(), LogSource::Journal);
        create(KUBELETS_FILE);
        assert_eq!(found(), LogSource::File(KUBELETS_FILE.into()));
        create("/run/log/journal/m/system.journal");
        assert_eq!(found(), LogSource::Journal);
        let file = create(RKE2S_FILE);
        assert_eq!(found(), LogSource::File(RKE2S_FILE.into()));
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(found(), LogSource::Journal, "it is of a kubelet before the boot");
    }
}
