//! The readers of the kubelet's log: for the fuzz targets (`fuzz/targets`) and the tests of whole logs.

use super::{journal::Follower, klog, reading::LineCounters, run::events_of};
use coroner_core::{
    input::KubeletEvent,
    time::{Anchor, WallTime},
};
use std::{fs::File, io::Write as _};

/// What a log says, in whichever format its lines are.
pub fn log(text: &[u8], anchor: Anchor, counters: &LineCounters) -> Vec<KubeletEvent> {
    events_of(text, (anchor, WallTime(anchor.wall_ns)), None, counters)
}

/// The messages of the kubelet's units in a journal file. `None`: it is none, or is damaged.
pub fn journal(mut file: File, bytes: &[u8], since: u64) -> Option<Vec<Option<Vec<u8>>>> {
    file.write_all(bytes).ok()?;
    let mut follower = Follower::open(file, &["kubelet.service"]).ok()?;
    follower.seek(since).ok()?;
    let mut lines = Vec::new();
    // The last entry of a file that is written waits for the second poll.
    for _ in 0..2 {
        follower.poll(&mut lines).ok()?;
    }
    Some(lines.into_iter().map(|line| line.message).collect())
}

/// The message of a line, as it stands there.
pub fn message(line: &[u8]) -> Option<&[u8]> {
    klog::line(klog::without_prefix(line))
        .and_then(|line| klog::message(klog::without_mark(line.text)))
        .map(|(message, _)| message)
}

/// The messages of the kubelet's units in a journal that grows by one object between two polls.
pub fn growing_journal(mut file: File, whole: &[u8]) -> Option<Vec<Vec<u8>>> {
    use std::os::unix::fs::FileExt as _;
    let mut begun = whole.to_vec();
    let ends = objects(whole);
    // The journal is written at the moment, and has no object yet.
    begun[16] = 1;
    begun[136..144].fill(0);
    file.write_all(&begun).ok()?;
    let mut follower = Follower::open(file.try_clone().ok()?, &["kubelet.service"]).ok()?;
    let mut lines = Vec::new();
    for tail in ends {
        file.write_all_at(&tail.to_le_bytes(), 136).ok()?;
        follower.poll(&mut lines).ok()?;
    }
    follower.poll(&mut lines).ok()?;
    lines.into_iter().map(|line| line.message).collect()
}

/// Where the objects of a journal begin.
fn objects(whole: &[u8]) -> Vec<u64> {
    let number = |at: usize| {
        whole.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    let (mut at, tail, mut found) = (number(88), number(136), Vec::new());
    while at <= tail && at != 0 {
        found.push(at);
        let size = number(usize::try_from(at).unwrap_or(usize::MAX - 16) + 8);
        at = (at + size.max(16) + 7) & !7;
    }
    found
}
