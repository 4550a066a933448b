//! The reader's side of the rings: drains them in the order of time, and counts what was lost.

use super::{
    KernelCounters, decode::decode, drain_schedule::DrainResult, plan::Hook, skipped::Skipped,
};
use crate::{linux::clock, sources::windowed_max::WindowedMax};
use aya::maps::{MapData, PerCpuArray, RingBuf};
use coroner_core::{
    ids::CgroupId,
    input::{KernelEvent, KernelFact, Loss, LossKind},
};
use coroner_ebpf::maps;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering,
};
use tokio::time::Instant;

/// Both rings and what is still held back.
pub(super) struct Rings {
    deciding: RingBuf<MapData>,
    detail: RingBuf<MapData>,
    lost: PerCpuArray<MapData, u64>,
    /// Read, but younger than the moment at which reading began: the other ring may still hold
    /// something older.
    held: Vec<KernelEvent>,
    found: DrainResult,
    /// Bytes that waited in the deciding ring and in the detail ring.
    used: [WindowedMax; 2],
    skipped: Skipped,
    totals: LossTotals,
    reported: BTreeMap<LossKind, u64>,
    /// Cgroups of the self-test: nobody's business.
    pub(super) ignored: BTreeSet<CgroupId>,
}

impl Rings {
    pub(super) fn new(
        deciding: RingBuf<MapData>,
        detail: RingBuf<MapData>,
        lost: PerCpuArray<MapData, u64>,
        skipped: Skipped,
    ) -> Self {
        Self {
            deciding,
            detail,
            lost,
            held: Vec::new(),
            found: DrainResult::default(),
            used: [WindowedMax::new(Instant::now()), WindowedMax::new(Instant::now())],
            skipped,
            totals: LossTotals::default(),
            reported: BTreeMap::new(),
            ignored: BTreeSet::new(),
        }
    }

    /// What becomes readable when the kernel wakes the reader: the deciding ring, the detail ring.
    pub(super) fn wakers(&self) -> io::Result<[OwnedFd; 2]> {
        let waker = |ring: &RingBuf<MapData>| ring.as_fd().try_clone_to_owned();
        Ok([waker(&self.deciding)?, waker(&self.detail)?])
    }

    pub(super) fn found(&self) -> DrainResult {
        self.found
    }

    /// Reads both rings, the self-test's records left out. What comes out is in the order of the
    /// kernel's time, over both rings and over successive calls; but the record of a program that was
    /// preempted comes late.
    ///
    /// Of each ring no more than it has room for, however fast it fills again: so much holds all that
    /// was in it when reading began, and [`DrainResult::more`] says that it may not be all by now.
    pub(super) fn drain(&mut self, counters: &KernelCounters) -> Vec<KernelEvent> {
        let mut events = self.drain_all(counters);
        events.retain(|event| !self.is_own(event));
        events
    }

    /// The same with the self-test's records.
    pub(super) fn drain_all(&mut self, counters: &KernelCounters) -> Vec<KernelEvent> {
        let began = clock::boot_now();
        let mut events = std::mem::take(&mut self.held);
        let held = events.len();
        let room = counters.ring_bytes.load(Ordering::Relaxed);
        let mut read = |ring: &mut RingBuf<MapData>| {
            read_up_to(room, || {
                let item = ring.next()?;
                events.extend(self.totals.read(&item));
                Some(room_of(item.len()))
            })
        };
        let (deciding, more_deciding) = read(&mut self.deciding);
        let (detail, more_detail) = read(&mut self.detail);
        // The last record may reach beyond it.
        let now = Instant::now();
        let [used_deciding, used_detail] = &mut self.used;
        for (used, bytes, told) in [
            (used_deciding, deciding, &counters.deciding_used),
            (used_detail, detail, &counters.detail_used),
        ] {
            told.store(used.observe(now, bytes.min(room)), Ordering::Relaxed);
        }
        // How much a spent budget cost is counted as a loss.
        let is_record =
            |event: &&KernelEvent| !matches!(event.fact, KernelFact::BudgetSpent { .. });
        let records = events[held..].iter().filter(is_record).count() as u64;
        counters.records.fetch_add(records, Ordering::Relaxed);
        events.sort_by_key(|event| event.time);
        let settled = events.partition_point(|event| event.time <= began);
        self.held = events.split_off(settled);
        self.found = DrainResult {
            anything: deciding > 0 || detail > 0,
            deciding: deciding > 0 || !self.held.is_empty(),
            more: more_deciding || more_detail,
        };
        events
    }

    pub(super) fn losses(&mut self, counters: &KernelCounters) -> Vec<Loss> {
        self.totals.skipped = self.skipped.lost();
        for (index, total) in (0..).zip(&mut self.totals.of_programs) {
            // Fails only if the map is gone, and then everything is.
            *total = self.lost.get(&index, 0).map_or(*total, |values| values.iter().sum());
        }
        let too_deep = self.totals.too_deep + self.totals.of(maps::LOST_NESTING);
        counters.too_deep.store(too_deep, Ordering::Relaxed);
        self.totals.since(&mut self.reported)
    }

    /// The programs of this hook are detached for good.
    pub(super) fn forget(&mut self, hook: &Hook) {
        self.skipped.remove(hook);
    }

    /// Counts cgroups that the agent could not make watched, and those that it does not follow.
    pub(super) fn count_unwatched(&mut self, refused: u64, too_deep: u64) {
        self.totals.refused += refused;
        self.totals.too_deep += too_deep;
    }

    /// Puts back what was drained before anybody could take it.
    pub(super) fn keep(&mut self, events: Vec<KernelEvent>) {
        self.held.extend(events);
    }

    fn is_own(&self, event: &KernelEvent) -> bool {
        !self.ignored.is_empty() && event.fact.cgroup().is_some_and(|id| self.ignored.contains(&id))
    }
}

/// What was lost since the start.
#[derive(Default)]
struct LossTotals {
    skipped: u64,
    undecodable: u64,
    /// Insertions by the agent that the map refused.
    refused: u64,
    /// Nested cgroups that the agent did not follow when it scanned.
    too_deep: u64,
    /// What the programs have counted, by `LOST_*`.
    of_programs: [u64; maps::LOST_COUNT as usize],
}

impl LossTotals {
    /// Decodes a record.
    fn read(&mut self, record: &[u8]) -> Option<KernelEvent> {
        decode(record)
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot decode a record from the kernel programs");
                self.undecodable += 1;
            })
            .ok()
    }

    fn of(&self, index: u32) -> u64 {
        self.of_programs[index as usize]
    }

    /// Losses that were not reported yet, and are reported now.
    fn since(&self, reported: &mut BTreeMap<LossKind, u64>) -> Vec<Loss> {
        let totals = [
            (LossKind::ProgramSkipped, self.skipped),
            (LossKind::Undecodable, self.undecodable),
            (LossKind::CgroupMapFull, self.refused + self.of(maps::LOST_MAP_FULL)),
            (LossKind::DecidingRingFull, self.of(maps::LOST_DECIDING)),
            (LossKind::DetailRingFull, self.of(maps::LOST_DETAIL)),
            (LossKind::BudgetSpent, self.of(maps::LOST_BUDGET)),
        ];
        let more = totals.map(|(kind, total)| {
            let before = reported.insert(kind, total).unwrap_or_default();
            Loss::new(kind, total.saturating_sub(before))
        });
        more.into_iter().filter(|loss| loss.count > 0).collect()
    }
}

/// What a record of this length takes of a ring: the kernel puts eight bytes before each
/// (`kernel/bpf/ringbuf.c`).
fn room_of(record: usize) -> u64 {
    (record as u64 + 8).next_multiple_of(8)
}

/// Reads until nothing is there (`read` gives the bytes of what it has read), or until so many bytes
/// are. How many it were, and whether more may be there.
fn read_up_to(room: u64, mut read: impl FnMut() -> Option<u64>) -> (u64, bool) {
    let mut bytes = 0;
    while let Some(more) = read() {
        bytes += more;
        if bytes >= room {
            return (bytes, true);
        }
    }
    (bytes, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_fills_as_fast_as_it_is_read_is_left_after_what_it_holds() {
        let (room, mut read) = (4096, 0);
        let record = room_of(size_of::<coroner_ebpf::record::Generate>());
        let (bytes, more) = read_up_to(room, || {
            read += 1;
            assert!(read <= 1000, "it would never end");
            Some(record)
        });
        assert!(more && bytes >= room && bytes < room + record, "{bytes}");
        assert_eq!(read * record, bytes);
    }

    #[test]
    fn each_loss_is_reported_once() {
        let of_programs = [4, 5, 6, 7, 8];
        let mut totals =
            LossTotals { skipped: 2, refused: 3, of_programs, ..LossTotals::default() };
        assert_eq!(totals.read(b"no record"), None);
        let mut reported = BTreeMap::new();
        let mut more = |totals: &LossTotals| {
            let losses = totals.since(&mut reported);
            losses.into_iter().map(|loss| (loss.kind, loss.count)).collect::<Vec<_>>()
        };
        // Cgroups that are nested too deeply (8) are no loss.
        let expected = [
            (LossKind::ProgramSkipped, 2),
            (LossKind::Undecodable, 1),
            (LossKind::CgroupMapFull, 3 + 7),
            (LossKind::DecidingRingFull, 4),
            (LossKind::DetailRingFull, 5),
            (LossKind::BudgetSpent, 6),
        ];
        assert_eq!(more(&totals), expected);
        assert_eq!(more(&totals), []);
        totals.refused += 1;
        assert_eq!(more(&totals), [(LossKind::CgroupMapFull, 1)]);
    }

    #[test]
    fn what_a_ring_can_hold_is_read_whole() {
        let mut records = vec![24; 100].into_iter();
        assert_eq!(read_up_to(4096, || records.next()), (2400, false));
        let mut full = vec![24, 72].into_iter();
        assert_eq!(read_up_to(96, || full.next()), (96, true), "more may have come");
        assert_eq!(full.next(), None);
        assert_eq!(read_up_to(96, || full.next()), (0, false));
    }
}
