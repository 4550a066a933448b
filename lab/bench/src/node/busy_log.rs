//! The log of a busy kubelet: the lines of a real one at `-v=4` again and again, each with the time at which it is
//! written.

use anyhow::Context as _;
use flate2::read::GzDecoder;
use jiff::Timestamp;
use std::{fmt::Write as _, fs::File, io::Read as _, io::Write as _, path::Path, time::Duration};
use tokio::time::{Instant, MissedTickBehavior};

/// Lines of a kubelet 1.36 about pods that start, are stopped and are removed.
const RECORDED: &[u8] = include_bytes!(
    "../../../../agent/tests/replay/recordings/k1.36-containerd2.1-systemd/static-and-mirror/kubelet.log.gz"
);
/// Bytes of klog's date and time, after the letter of the severity.
const TIME: usize = "1122 06:39:58.743852".len();
/// Lines in a second.
pub(super) const RATE: usize = 1_000;
/// Writes in a second.
const WRITES: usize = 20;

/// The log.
pub(super) struct BusyLog {
    /// Severity, and what follows the time.
    lines: Vec<(char, String)>,
    next: usize,
    file: File,
}

impl BusyLog {
    /// An empty file.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let mut text = String::new();
        GzDecoder::new(RECORDED).read_to_string(&mut text).context("the recorded log")?;
        let line = |line: &str| {
            let line = line.strip_prefix("??? ").unwrap_or(line);
            Some((line.chars().next()?, line.get(1 + TIME..)?.to_owned()))
        };
        let lines: Vec<_> = text.lines().filter_map(line).collect();
        anyhow::ensure!(!lines.is_empty(), "the recorded log has no lines");
        Ok(Self { lines, next: 0, file: File::create(path)? })
    }

    /// Writes [`RATE`] lines a second.
    pub(super) async fn write(&mut self, long: Duration) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(WRITES)?);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let end = Instant::now() + long;
        while Instant::now() < end {
            ticks.tick().await;
            let time = Timestamp::now().strftime("%m%d %H:%M:%S%.6f").to_string();
            let mut block = String::new();
            for _ in 0..RATE / WRITES {
                let (severity, rest) = &self.lines[self.next % self.lines.len()];
                writeln!(block, "{severity}{time}{rest}")?;
                self.next += 1;
            }
            self.file.write_all(block.as_bytes())?;
        }
        Ok(())
    }
}
