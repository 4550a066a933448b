//! The reader's side of the rings: drains them in the order of time, and counts what was lost.

use super::{
    KernelCounters,
    decode::{KINDS, read_record},
    drain_schedule::DrainResult,
    plan::Hook,
    skipped::Skipped,
};
use crate::{linux::clock, sources::windowed_max::WindowedMax};
use aya::maps::{MapData, PerCpuArray, RingBuf};
use coroner_core::{
    ids::CgroupId,
    input::{KernelEvent, Loss, LossKind},
};
use coroner_ebpf::maps;
use std::{
    collections::BTreeSet,
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
    seen_lost: [u64; maps::LOST_COUNT as usize],
    skipped: Skipped,
    seen_skipped: u64,
    undecodable: u64,
    /// Insertions by the agent that the map refused.
    refused: u64,
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
            seen_lost: [0; maps::LOST_COUNT as usize],
            skipped,
            seen_skipped: 0,
            undecodable: 0,
            refused: 0,
            ignored: BTreeSet::new(),
        }
    }

    /// What becomes readable when the kernel wakes the reader: the deciding ring, the detail ring.
    pub(super) fn wakers(&self) -> io::Result<[OwnedFd; 2]> {
        let waker = |ring: &RingBuf<MapData>| ring.as_fd().try_clone_to_owned();
        Ok([waker(&self.deciding)?, waker(&self.detail)?])
    }

    /// What the last drain found.
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
        let (mut kinds, mut wrong) = ([0u64; KINDS.len()], 0u64);
        let room = counters.ring_bytes.load(Ordering::Relaxed);
        let mut read = |ring: &mut RingBuf<MapData>| {
            read_up_to(room, || {
                let item = ring.next()?;
                match read_record(&item) {
                    Ok((event, kind)) => {
                        kinds[kind] += 1;
                        events.push(event);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot decode a record from the kernel programs");
                        wrong += 1;
                    }
                }
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
        self.undecodable += wrong;
        for (counter, count) in counters.records.iter().zip(kinds) {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }

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

    /// Losses since the last call.
    pub(super) fn losses(&mut self, counters: &KernelCounters) -> Vec<Loss> {
        let mut losses = Vec::new();
        let skipped = self.skipped.lost();
        let more = skipped - std::mem::replace(&mut self.seen_skipped, skipped);
        if more > 0 {
            losses.push(Loss::new(LossKind::ProgramSkipped, more));
        }
        let undecodable = std::mem::take(&mut self.undecodable);
        if undecodable > 0 {
            losses.push(Loss::new(LossKind::Undecodable, undecodable));
        }
        let refused = std::mem::take(&mut self.refused);
        if refused > 0 {
            losses.push(Loss::new(LossKind::CgroupMapFull, refused));
        }
        for index in 0..maps::LOST_COUNT {
            // Fails only if the map is gone, and then everything is.
            let Ok(values) = self.lost.get(&index, 0) else { continue };
            let total: u64 = values.iter().sum();
            let seen = std::mem::replace(&mut self.seen_lost[index as usize], total);
            let count = total.saturating_sub(seen);
            let kind = match index {
                maps::LOST_DECIDING => LossKind::DecidingRingFull,
                maps::LOST_DETAIL => LossKind::DetailRingFull,
                maps::LOST_BUDGET => LossKind::BudgetSpent,
                maps::LOST_MAP_FULL => LossKind::CgroupMapFull,
                _ => {
                    counters.too_deep.fetch_add(count, Ordering::Relaxed);
                    continue;
                }
            };
            if count > 0 {
                losses.push(Loss::new(kind, count));
            }
        }
        losses
    }

    /// The programs of this hook are detached for good.
    pub(super) fn forget(&mut self, hook: &Hook) {
        self.skipped.remove(hook);
    }

    /// Counts cgroups that the agent could not make watched.
    pub(super) fn count_refused(&mut self, count: u64) {
        self.refused += count;
    }

    /// Puts back what was drained before anybody could take it.
    pub(super) fn keep(&mut self, events: Vec<KernelEvent>) {
        self.held.extend(events);
    }

    fn is_own(&self, event: &KernelEvent) -> bool {
        !self.ignored.is_empty() && event.fact.cgroup().is_some_and(|id| self.ignored.contains(&id))
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
    fn what_a_ring_can_hold_is_read_whole() {
        let mut records = vec![24; 100].into_iter();
        assert_eq!(read_up_to(4096, || records.next()), (2400, false));
        let mut full = vec![24, 72].into_iter();
        assert_eq!(read_up_to(96, || full.next()), (96, true), "more may have come");
        assert_eq!(full.next(), None);
        assert_eq!(read_up_to(96, || full.next()), (0, false));
    }
}
