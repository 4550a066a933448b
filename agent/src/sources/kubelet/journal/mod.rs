//! The systemd journal: the system's files, followed across rotations. Only entries of the kubelet's units are read.

mod follow;
mod object;

pub(crate) use follow::{FollowError, Follower, JournalLine};

use super::{
    lines::Lines,
    reading::{LineCounters, Reading},
    time::Receipt,
};
use coroner_core::{
    input::{KubeletEvent, KubeletLogGap},
    time::{Anchor, BootTime, WallTime},
};
use std::{
    collections::{HashSet, VecDeque},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The units that the kubelet runs in: its own, k3s', RKE2's, microk8s', Amazon's snap.
pub(super) const UNITS: [&str; 7] = [
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "snap.microk8s.daemon-kubelite.service",
    "snap.kubelet-eks.daemon.service",
];

/// Journal files that are looked at.
const MAX_FILES: usize = 256;

/// Why no journal is read.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoJournal {
    #[error("{} has no journal of the system; mount the host's / and set --host-root", .0.display())]
    Absent(PathBuf),
    #[error("cannot read the journal {} ({error})", path.display())]
    Unread { path: PathBuf, error: FollowError },
}

/// The system's journal.
#[derive(Debug)]
pub(super) struct Journal {
    root: PathBuf,
    boot: Option<[u8; 16]>,
    /// Files that are read, oldest first; the last one is the one that the journal writes into.
    open: VecDeque<Follower>,
    /// Files that were read, or that are too old.
    done: HashSet<[u8; 16]>,
    lines: Lines,
}

/// The boot clock at a moment of the monotonic one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspended {
    /// How far the boot clock is ahead now: the time that the machine was suspended.
    pub(super) ns: u64,
}

impl Journal {
    /// Below the host's root. Lines of another boot than this are left out.
    pub(super) fn new(root: &Path, boot: Option<[u8; 16]>) -> Self {
        let (open, done) = (VecDeque::new(), HashSet::new());
        Self { root: root.to_owned(), boot, open, done, lines: Lines::default() }
    }

    /// The system's files: the one that is written, and those that were rotated away.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for below in ["var/log/journal", "run/log/journal"] {
            let machines = fs::read_dir(self.root.join(below)).into_iter().flatten().flatten();
            for machine in machines.take(MAX_FILES) {
                let files = fs::read_dir(machine.path()).into_iter().flatten().flatten();
                found.extend(files.take(16 * MAX_FILES).map(|file| file.path()).filter(|path| {
                    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    name == "system.journal"
                        || name.starts_with("system@") && name.ends_with(".journal")
                }));
            }
        }
        // Rotated files have their number and time in their names; the newest come last, `system.journal` first.
        found.sort();
        if let Some(rest) = found.len().checked_sub(MAX_FILES) {
            found.retain({
                let mut left_out = 0;
                move |path| {
                    let keep = path.ends_with("system.journal") || left_out >= rest;
                    left_out += usize::from(!keep);
                    keep
                }
            });
        }
        found
    }

    fn follower(path: &Path) -> Result<Option<Follower>, FollowError> {
        // No FIFO, device or link is opened.
        if !fs::symlink_metadata(path)?.is_file() {
            return Ok(None);
        }
        Ok(Some(Follower::open(File::open(path)?, &UNITS)?))
    }

    /// Opens files that are new, and those at the start that reach beyond `since` (µs since the epoch).
    fn open_new(
        &mut self,
        since: u64,
        reading: &mut Reading,
        now: &Anchor,
    ) -> Result<(), NoJournal> {
        let files = self.files();
        if files.is_empty() && self.open.is_empty() {
            return Err(NoJournal::Absent(self.root.clone()));
        }
        let mut new = Vec::new();
        let mut failed = None;
        for path in files {
            let follower = match Self::follower(&path) {
                Ok(Some(follower)) => follower,
                Ok(None) => continue,
                // Rotated or removed just now.
                Err(FollowError::Io(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    failed = Some(NoJournal::Unread { path, error });
                    continue;
                }
            };
            let is_open = self.open.iter().any(|open| open.id() == follower.id());
            if !is_open && self.done.insert(follower.id()) {
                let is_current = path.ends_with("system.journal");
                if is_current || follower.tail_realtime() >= since {
                    new.push((is_current, follower.tail_realtime(), follower));
                }
            }
        }
        new.sort_by_key(|(is_current, tail, _)| (*is_current, *tail));
        for (_, _, mut follower) in new {
            match self.open.back().map(|last| last.missing_before(&follower)) {
                None => {
                    if let Err(error) = follower.seek(since) {
                        failed = Some(NoJournal::Unread { path: self.root.clone(), error });
                        reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Damaged);
                        continue;
                    }
                }
                Some(Some(0) | None) => {}
                Some(Some(_)) => reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Rotated),
            }
            self.open.push_back(follower);
        }
        match failed {
            Some(failed) if self.open.is_empty() => Err(failed),
            _ => Ok(()),
        }
    }

    /// Reads what is new. `since` is for the first time only: µs since the epoch.
    pub(super) fn poll(
        &mut self,
        since: u64,
        (now, suspended): (Anchor, Suspended),
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<Vec<KubeletEvent>, NoJournal> {
        self.open_new(since, reading, &now)?;
        while let Some(follower) = self.open.front_mut() {
            let mut lines = Vec::new();
            let result = follower.poll(&mut lines);
            for line in lines {
                self.take(&line, (&now, suspended), reading, counters);
            }
            match result {
                Ok(true) => break, // the rest comes with the next poll
                Ok(false) if self.open.len() > 1 => {
                    self.open.pop_front();
                }
                Ok(false) => break,
                Err(_) => {
                    reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Damaged);
                    self.open.pop_front();
                }
            }
        }
        Ok(reading.events(Some(BootTime(now.boot_ns))))
    }

    fn take(
        &mut self,
        line: &JournalLine,
        (now, suspended): (&Anchor, Suspended),
        reading: &mut Reading,
        counters: &LineCounters,
    ) {
        let at = BootTime(now.boot_ns);
        if self.boot.is_some_and(|boot| boot != line.boot) {
            reading.of_another_boot(counters);
            return;
        }
        let mut found = Vec::new();
        self.lines.line(line.message.as_deref(), &mut found);
        for one in &found {
            reading.take(one, &receipt(line, suspended), at, counters);
        }
    }
}

/// When the journal received a line. The monotonic clock stands still while the machine is suspended; when that
/// was is not known.
pub(super) fn receipt(line: &JournalLine, suspended: Suspended) -> Receipt {
    let wall = WallTime(i64::try_from(line.realtime.saturating_mul(1_000)).unwrap_or(i64::MAX));
    let boot = BootTime(line.monotonic.saturating_mul(1_000).saturating_add(suspended.ns));
    // The difference of two readings is a few µs without any suspension.
    let uncertainty_ns = suspended.ns.max(1_000);
    Receipt::Journal { wall, boot, uncertainty_ns }
}
