//! The adapter: reads a live log, and reports what it says and what is missing. A person's log is read at once.

use super::{
    budget::Budget,
    file::{self, LogFile},
    journal::{Journal, Suspended},
    reading::{LineCounters, Reading},
    stream::{self, Machine, Stream},
};
use crate::linux::{blocking::BlockingPool, clock};
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

/// Where the kubelet's log is looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogSource {
    /// The systemd journal below the host's root.
    Journal,
    /// A plain file.
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

/// A log that is polled.
#[derive(Debug)]
enum Log {
    Journal(Box<Journal>, u64),
    File(LogFile),
}

/// How far the boot clock is ahead of the monotonic one.
fn suspended() -> Suspended {
    let monotonic = clock_gettime(ClockId::Monotonic);
    let monotonic = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
    Suspended { ns: clock::boot_now().0.saturating_sub(monotonic) }
}

/// This machine's boot.
fn this_boot() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    stream::boot_id(&text)
}

impl Log {
    fn new(options: &Options, now: &Anchor) -> Self {
        match &options.source {
            LogSource::File(path) => Self::File(LogFile::new(path)),
            LogSource::Journal => {
                let since = now.wall(BootTime(now.boot_ns) - LOOK_BACK).0.max(0).unsigned_abs();
                let journal = Journal::new(&options.host_root, this_boot());
                Self::Journal(Box::new(journal), since / 1_000)
            }
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
                let clocks = (clock::anchor(), suspended());
                journal.poll(*since, clocks, reading, counters).map_err(|error| error.to_string())
            }
        }
    }
}

/// Reads a live log until the channel is closed.
pub async fn run(options: Options, to: mpsc::Sender<Received>) -> anyhow::Result<()> {
    let pool = BlockingPool::new(LONGEST_POLL, 1);
    let now = clock::anchor();
    let since = BootTime(now.boot_ns) - LOOK_BACK;
    let mut state = Some((Log::new(&options, &now), Reading::new(Budget::live(), since)));
    let mut readable: Option<bool> = None;
    loop {
        // A poll that hangs keeps its state; until it returns there is nothing to poll with.
        let Some((mut log, mut reading)) = state.take() else {
            anyhow::bail!("reading the kubelet's log hangs for more than {LONGEST_POLL:?}");
        };
        let counters = Arc::clone(&options.counters);
        let polled = pool
            .call(move || {
                let result = log.poll(&mut reading, &counters);
                (log, reading, result)
            })
            .await;
        let mut events = Vec::new();
        match polled {
            Ok((log, reading, result)) => {
                state = Some((log, reading));
                match result {
                    Ok(more) => {
                        if readable != Some(true) {
                            info!(source = ?options.source, "reading the kubelet's log");
                            let origin = match options.source {
                                LogSource::Journal => KubeletLogOrigin::Journal,
                                LogSource::File(_) => KubeletLogOrigin::File,
                            };
                            let since = if readable.is_none() { since } else { clock::boot_now() };
                            events.push(KubeletEvent::Reading { origin, since });
                        }
                        readable = Some(true);
                        events.extend(more);
                    }
                    Err(error) => {
                        if readable != Some(false) {
                            warn!("{error}; the kubelet's own account is missing");
                            events.push(KubeletEvent::Unreadable { error });
                        }
                        readable = Some(false);
                    }
                }
            }
            Err(error) => warn!("reading the kubelet's log: {error}"),
        }
        for event in events {
            let received = Received { at: clock::boot_now(), input: Input::Kubelet(event) };
            if to.send(received).await.is_err() {
                return Ok(());
            }
        }
        sleep(file::POLL).await;
        if to.is_closed() {
            return Ok(());
        }
    }
}

/// Reads a whole log that a person has: a plain file, the output of journalctl, or standard input (`-`). `anchor` is
/// of the machine that wrote it, and `boot` its boot, if they are known.
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
    // A plain log has no zone; its last line is about as old as the file.
    let changed = fs::metadata(path).and_then(|found| found.modified()).ok();
    let changed = changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let changed = changed.and_then(|since| i64::try_from(since.as_nanos()).ok());
    let near = WallTime(changed.unwrap_or(anchor.wall_ns));
    Ok(events_of(&text, (anchor, near), boot.and_then(stream::boot_id), counters))
}

/// What a whole log says.
pub(super) fn events_of(
    text: &[u8],
    (anchor, near): (Anchor, WallTime),
    boot: Option<[u8; 16]>,
    counters: &LineCounters,
) -> Vec<KubeletEvent> {
    let zone = stream::zone_of_log(text, near);
    let machine = Machine { anchor, suspended: Suspended { ns: 0 }, boot, near, zone };
    let mut stream = Stream::new(machine);
    let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
    let mut from = text;
    // A slice is always readable.
    let _ = stream::read(&mut from, &mut stream, &mut reading, counters);
    reading.events(None)
}
