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
    input::{Input, KubeletEvent, KubeletLogOrigin, Received},
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

/// Files that a kubelet writes by itself, below the host's root: of distributions without a journal, and RKE2's.
const KNOWN_FILES: [&str; 2] =
    ["/var/log/kubelet.log", "/var/lib/rancher/rke2/agent/logs/kubelet.log"];
/// The log is looked for again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Where the kubelet's log is looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogSource {
    /// The systemd journal, or else a file that is known.
    Auto,
    /// The systemd journal below the host's root.
    Journal,
    /// A plain file below the host's root.
    File(PathBuf),
}

/// What the adapter needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the log is.
    pub source: LogSource,
    /// Root of the host's file system.
    pub host_root: PathBuf,
    /// Lines, by what became of them.
    pub counters: Arc<LineCounters>,
}

/// What is found of a log, for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
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
        let is_plain = |path: &&str| {
            below::stat(host_root, Path::new(path)).is_ok_and(|stat| below::is_plain(&stat))
        };
        match KNOWN_FILES.iter().find(|path| is_plain(path)) {
            Some(path) if !journal::exists(host_root) => Self::File(path.into()),
            _ => Self::Journal,
        }
    }
}

impl Log {
    fn new(options: &Options, now: &Anchor) -> Self {
        match options.source.found(&options.host_root) {
            LogSource::File(path) => Self::File(LogFile::new(&options.host_root, &path)),
            LogSource::Journal | LogSource::Auto => {
                let since = now.wall(BootTime(now.boot_ns) - LOOK_BACK).0.max(0).unsigned_abs();
                let journal = Journal::new(&options.host_root, this_boot());
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
pub fn probe(options: &Options) -> Result<Found, String> {
    let now = clock::anchor();
    let mut log = Log::new(options, &now);
    let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
    let events = log.poll(&mut reading, &options.counters)?;
    let level = events.iter().filter_map(|event| match event {
        KubeletEvent::Verbosity { at_least } => Some(*at_least),
        _ => None,
    });
    let place = match options.source.found(&options.host_root) {
        LogSource::File(path) => path.display().to_string(),
        LogSource::Journal | LogSource::Auto => "the systemd journal".to_owned(),
    };
    Ok(Found { place, level: level.max(), lines: options.counters.of(LineResult::Read) })
}

/// A live log, and how far it was read.
#[derive(Debug)]
struct Live {
    options: Options,
    log: Option<Log>,
    /// It was read, and is read on where it was after an error.
    is_begun: bool,
    reading: Reading,
    /// The engine has known that it is read.
    is_known: bool,
    /// What a poll found; after a poll that hung too.
    events: Vec<KubeletEvent>,
}

impl Live {
    fn new(options: Options) -> Self {
        let reading = Reading::new(Budget::live(), clock::boot_now() - LOOK_BACK);
        Self { options, log: None, is_begun: false, reading, is_known: false, events: Vec::new() }
    }

    /// Reads what is new. Returns where it is read from.
    fn poll(&mut self) -> Result<KubeletLogOrigin, String> {
        let options = &self.options;
        let log = self.log.get_or_insert_with(|| Log::new(options, &clock::anchor()));
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
pub async fn run(options: Options, to: mpsc::Sender<Received>) -> anyhow::Result<()> {
    let pool = BlockingPool::new(LONGEST_POLL, 1);
    let is_auto = options.source == LogSource::Auto;
    let live = Arc::new(Mutex::new(Live::new(options)));
    let mut readable: Option<bool> = None;
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
                let begins = (readable != Some(true)).then_some((origin, asked));
                if begins.is_some() {
                    info!(origin = origin.as_str(), "reading the kubelet's log");
                }
                readable = Some(true);
                // Held by a poll only, and none is under way.
                lock(&live).take(begins)
            }
            Err(_) if readable == Some(false) => Vec::new(),
            Err(error) => {
                if is_auto && readable.is_none() {
                    info!("{error}; the kubelet's own account is missing");
                } else {
                    warn!("{error}; the kubelet's own account is missing");
                }
                readable = Some(false);
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
        sleep(if readable == Some(false) { LOOK_AGAIN } else { file::POLL }).await;
    }
    Ok(())
}

/// A poll that panicked has left what it had read.
fn lock(live: &Mutex<Live>) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a whole log that a person has: a plain file, the output of journalctl, or standard input (`-`). `anchor` is
/// of the machine that wrote it, at a moment that the log is about, and `boot` its boot, if it is known.
pub fn read_all(
    path: &Path,
    anchor: Anchor,
    boot: Option<&str>,
    counters: &LineCounters,
) -> anyhow::Result<Vec<KubeletEvent>> {
    /// A log is kept in memory.
    const MOST: u64 = 256 << 20;
    let mut text = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().take(MOST).read_to_end(&mut text)?;
    } else {
        anyhow::ensure!(fs::metadata(path)?.is_file(), file::FileError::NotPlain(path.to_owned()));
        fs::File::open(path)?.take(MOST).read_to_end(&mut text)?;
    }
    let near = WallTime(anchor.wall_ns);
    Ok(events_of(&text, (anchor, near), boot.and_then(stream::boot_id), counters))
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

    #[test]
    fn after_an_error_each_line_comes_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet.log");
        let write = |pod: &str| {
            let now = jiff::Timestamp::now().strftime("%m%d %H:%M:%S.000001");
            let line =
                format!("I{now} 7 kubelet.go:1] \"SyncPod enter\" pod=\"d/{pod}\" podUID=\"u\"");
            let file = fs::File::options().append(true).create(true).open(&path);
            writeln!(file.unwrap(), "{line}").unwrap();
        };
        write("a");
        let (source, host_root) = (LogSource::File("kubelet.log".into()), folder.path().to_owned());
        let mut live = Live::new(Options { source, host_root, counters: Default::default() });
        let asked = BootTime(7);
        let names = |live: &mut Live| {
            let origin = live.poll()?;
            let name = |event| match event {
                KubeletEvent::Entry(entry) => entry.name,
                KubeletEvent::Reading { .. } => Some("reading".to_owned()),
                KubeletEvent::Verbosity { at_least } => Some(format!("-v={at_least}")),
                KubeletEvent::Gap { .. } => Some("gap".to_owned()),
                _ => None,
            };
            let events = live.take(Some((origin, asked)));
            Ok::<Vec<String>, String>(events.into_iter().filter_map(name).collect())
        };
        assert_eq!(names(&mut live).unwrap(), ["reading", "-v=4", "a"]);
        let Some(Log::File(file)) = &mut live.log else { panic!("{live:?}") };
        file.break_reads();
        write("b");
        names(&mut live).unwrap_err();
        write("c");
        assert_eq!(names(&mut live).unwrap(), ["reading", "b", "c", "-v=4"]);
    }
}
