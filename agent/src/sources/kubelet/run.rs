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
    sync::Arc,
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

/// Reads a live log until the channel is closed. What cannot be read is missing, and never an error.
pub async fn run(options: Options, to: mpsc::Sender<Received>) -> anyhow::Result<()> {
    let pool = BlockingPool::new(LONGEST_POLL, 1);
    let now = clock::anchor();
    let since = BootTime(now.boot_ns) - LOOK_BACK;
    let mut state = Some((Log::new(&options, &now), Reading::new(Budget::live(), since)));
    let mut readable: Option<bool> = None;
    while !to.is_closed() {
        // A poll that hangs keeps its state: the log is read anew from where it is then.
        let (mut log, mut reading) = state.take().unwrap_or_else(|| {
            let now = clock::anchor();
            (Log::new(&options, &now), Reading::new(Budget::live(), BootTime(now.boot_ns)))
        });
        let (origin, asked) = (log.origin(), clock::boot_now());
        let counters = Arc::clone(&options.counters);
        let polled = pool
            .call(move || {
                let result = log.poll(&mut reading, &counters);
                (log, reading, result)
            })
            .await;
        let result = match polled {
            Ok((log, reading, result)) => {
                let since = reading.since(asked);
                state = Some((log, reading));
                result.map(|events| (since, events))
            }
            Err(error) => Err(format!("reading the kubelet's log: {error}")),
        };
        let mut events = Vec::new();
        match result {
            Ok((since, more)) => {
                if readable != Some(true) {
                    info!(origin = origin.as_str(), "reading the kubelet's log");
                    events.push(KubeletEvent::Reading { origin, since });
                }
                readable = Some(true);
                events.extend(more);
            }
            Err(error) => {
                if readable != Some(false) {
                    if options.source == LogSource::Auto && readable.is_none() {
                        info!("{error}; the kubelet's own account is missing");
                    } else {
                        warn!("{error}; the kubelet's own account is missing");
                    }
                    events.push(KubeletEvent::Unreadable { error });
                }
                readable = Some(false);
            }
        }
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
        if readable == Some(false) {
            state = None;
            sleep(LOOK_AGAIN).await;
        } else {
            sleep(file::POLL).await;
        }
    }
    Ok(())
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
    events.extend(reading.events(None));
    events
}
