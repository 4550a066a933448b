//! What all readers share: lines to events, the budget, what is missing, and the counts.

use super::{
    budget::Budget,
    lines::FoundLine,
    parser::{LineResult, parse, time_of_either},
    time::{Receipt, moment},
};
use coroner_core::{
    input::{KubeletEntry, KubeletEvent, KubeletLogGap},
    time::BootTime,
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lines of the kubelet's log, by what became of them.
#[derive(Debug, Default)]
pub struct LineCounters([AtomicU64; LineResult::ALL.len()]);

impl LineCounters {
    fn add(&self, result: LineResult, count: u64) {
        self.0[result as usize].fetch_add(count, Relaxed);
    }

    /// How many lines so far.
    pub fn of(&self, result: LineResult) -> u64 {
        self.0[result as usize].load(Relaxed)
    }
}

/// Makes events of lines.
#[derive(Debug)]
pub(super) struct Reading {
    budget: Budget,
    /// The levels of the lines of this run of the kubelet, a bit each.
    levels: u32,
    /// The first line that was read was written no later.
    began: Option<BootTime>,
    /// The last moment up to which nothing is missing.
    last: BootTime,
    /// The same when the first line that was not read came.
    missing_since: Option<BootTime>,
    /// Lines that are not later were read at another place.
    known_until: Option<BootTime>,
    /// Lines that were not read since then: over the budget, and others.
    over: u64,
    unread: u64,
    events: Vec<KubeletEvent>,
}

impl Reading {
    /// From `since` on.
    pub(super) fn new(budget: Budget, since: BootTime) -> Self {
        let (missing_since, known_until, events) = (None, None, Vec::new());
        Self {
            budget,
            levels: 0,
            began: None,
            last: since,
            missing_since,
            known_until,
            over: 0,
            unread: 0,
            events,
        }
    }

    /// Takes a line at the moment `now`.
    pub(super) fn take(
        &mut self,
        found: &FoundLine,
        receipt: &Receipt,
        now: BootTime,
        counters: &LineCounters,
    ) {
        let FoundLine::Line(line) = found else {
            counters.add(LineResult::TooLong, 1);
            self.miss(KubeletLogGap::Damaged);
            return;
        };
        if let Some(until) = self.known_until {
            let at = time_of_either(line).and_then(|time| moment(time, receipt));
            if at.is_none_or(|at| at.boot <= until) {
                return;
            }
            self.known_until = None;
        }
        if !self.budget.allows(line.len(), now) {
            counters.add(LineResult::OverBudget, 1);
            self.miss(KubeletLogGap::Budget);
            return;
        }
        // The machine of a person's log may have gone on for long after the moment that is known of it.
        let latest = if self.budget.is_unlimited() { BootTime(u64::MAX) } else { now };
        let parsed = parse(line, receipt);
        if self.began.is_none() {
            let at = time_of_either(line).and_then(|time| moment(time, receipt));
            let at = at.map(|at| BootTime(at.boot.0.saturating_add(at.uncertainty_ns)));
            self.began = at.or(parsed.entries.first().map(KubeletEntry::latest));
        }
        counters.add(parsed.result, 1);
        if parsed.result == LineResult::NotUnderstood {
            self.miss(KubeletLogGap::Damaged);
        }
        // What was not read stands before this line.
        if let Some(first) = parsed.entries.first() {
            self.report_missing(first.latest().min(latest));
        }
        if parsed.entries.iter().any(KubeletEntry::begins_a_run) {
            self.levels = 0;
        }
        let bit = 1 << parsed.level.min(31);
        if matches!(parsed.result, LineResult::Read | LineResult::Skipped)
            && parsed.level > 0
            && self.levels & bit == 0
        {
            self.levels |= bit;
            self.events.push(KubeletEvent::Verbosity { at_least: parsed.level });
        }
        for entry in parsed.entries {
            self.last = self.last.max(entry.time).min(latest);
            self.events.push(KubeletEvent::Entry(Box::new(entry)));
        }
    }

    /// From when on lines are known: the first one that was read, or `now`, when reading began. What was there before
    /// may have been rotated away, or left out.
    pub(super) fn since(&self, now: BootTime) -> BootTime {
        self.began.unwrap_or(now)
    }

    /// The levels of the lines of this run of the kubelet so far.
    pub(super) fn verbosity(&self) -> impl Iterator<Item = KubeletEvent> + use<> {
        let levels = self.levels;
        let of_a_line = (0..32).filter(move |level| levels & (1 << level) != 0);
        of_a_line.map(|at_least| KubeletEvent::Verbosity { at_least })
    }

    /// A line of another boot.
    pub(super) fn of_another_boot(&self, counters: &LineCounters) {
        counters.add(LineResult::OtherBoot, 1);
    }

    /// Lines are missing: at most up to now. `lines` is 0 where their number is unknown.
    pub(super) fn gap(&mut self, now: BootTime, lines: u64, cause: KubeletLogGap) {
        self.push_gap(self.last, now, lines, cause);
        self.last = self.last.max(now);
    }

    /// The log is read on at another place, which may have the lines that were read, too.
    pub(super) fn moved(&mut self, now: BootTime) {
        self.known_until = Some(self.last);
        self.gap(now, 0, KubeletLogGap::Damaged);
    }

    /// Among the lines that are missing may be the first ones of a run of the kubelet, with another verbosity.
    fn push_gap(&mut self, from: BootTime, to: BootTime, lines: u64, cause: KubeletLogGap) {
        self.levels = 0;
        self.events.push(KubeletEvent::Gap { from, to, lines, cause });
    }

    /// A line is not read.
    fn miss(&mut self, cause: KubeletLogGap) {
        let lines = if cause == KubeletLogGap::Budget { &mut self.over } else { &mut self.unread };
        *lines += 1;
        self.missing_since.get_or_insert(self.last);
    }

    /// What was not read, at most up to now.
    fn report_missing(&mut self, now: BootTime) {
        let Some(from) = self.missing_since.take() else { return };
        for (lines, cause) in [
            (std::mem::take(&mut self.over), KubeletLogGap::Budget),
            (std::mem::take(&mut self.unread), KubeletLogGap::Damaged),
        ] {
            if lines > 0 {
                self.push_gap(from, now, lines, cause);
            }
        }
        self.last = self.last.max(now);
    }

    /// The events so far.
    pub(super) fn events(&mut self, now: BootTime) -> Vec<KubeletEvent> {
        self.report_missing(now);
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::time::{Anchor, WallTime};
    use std::time::Duration;

    #[test]
    fn what_is_over_the_budget_is_one_gap() {
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 1_795_446_000_000_000_000 };
        let near = WallTime(anchor.wall_ns);
        let receipt = Receipt::File { anchor, near, zone: 0 };
        let line = b"I1123 14:18:35.558172  1 kubelet.go:2124] \"SyncPod enter\" pod=\"a/b\"";
        let line = FoundLine::Line(line.to_vec());
        let counters = LineCounters::default();
        let mut reading = Reading::new(Budget::new(5, 1 << 20), BootTime(3));
        let now = BootTime(anchor.boot_ns);
        for _ in 0..25 {
            reading.take(&line, &receipt, now, &counters);
        }
        let events = reading.events(now);
        let entries = events.iter().filter(|event| matches!(event, KubeletEvent::Entry(_)));
        assert_eq!(entries.count(), 10);
        assert_eq!(events[0], KubeletEvent::Verbosity { at_least: 4 });
        let KubeletEvent::Gap { from, to, lines, cause } = events[events.len() - 1] else {
            panic!("{events:?}");
        };
        assert!(from > BootTime(3) && from < to && to == now);
        assert_eq!((lines, cause), (15, KubeletLogGap::Budget));
        assert_eq!(counters.of(LineResult::OverBudget), 15);
        reading.take(&FoundLine::TooLong, &receipt, now, &counters);
        assert_eq!(counters.of(LineResult::TooLong), 1);
    }

    #[test]
    fn a_gap_is_between_the_lines_around_it_that_were_read() {
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 1_795_446_000_000_000_000 };
        let receipt = Receipt::File { anchor, near: WallTime(anchor.wall_ns), zone: 0 };
        let (counters, now) = (LineCounters::default(), BootTime(anchor.boot_ns));
        let line = |second: u8| {
            let line = format!(
                "I1123 14:18:{second}.000000  1 kubelet.go:1] \"SyncPod enter\" pod=\"a/b\""
            );
            FoundLine::Line(line.into_bytes())
        };
        let begins = |reading: &mut Reading| {
            let gap = |event| match event {
                KubeletEvent::Gap { from, cause, .. } => Some((cause, from)),
                _ => None,
            };
            let gaps: Vec<_> = reading.events(now).into_iter().filter_map(gap).collect();
            gaps
        };
        // Each budget is that of one line.
        let mut reading = Reading::new(Budget::new(1, 1 << 20), BootTime(3));
        for second in [10, 11, 12] {
            reading.take(&line(second), &receipt, now, &counters);
        }
        let read = reading.last;
        // What journald suppressed is found after what is over the budget.
        reading.gap(read + Duration::from_secs(20), 7, KubeletLogGap::RateLimit);
        assert_eq!(
            begins(&mut reading),
            [(KubeletLogGap::RateLimit, read), (KubeletLogGap::Budget, read)]
        );
        let mut reading = Reading::new(Budget::unlimited(), BootTime(3));
        reading.take(&line(10), &receipt, now, &counters);
        let read = reading.last;
        reading.take(&FoundLine::TooLong, &receipt, now, &counters);
        reading.take(&line(12), &receipt, now, &counters);
        assert_eq!(begins(&mut reading), [(KubeletLogGap::Damaged, read)]);
        // The line after it was written long before the end of the recording that a log is joined with, or long after
        // its beginning.
        for now in [BootTime(u64::MAX), BootTime(4)] {
            let mut reading = Reading::new(Budget::unlimited(), BootTime(3));
            for found in [line(10), FoundLine::TooLong, line(12), line(14)] {
                reading.take(&found, &receipt, now, &counters);
            }
            let events = reading.events(now);
            let [_, KubeletEvent::Entry(before), gap, _, KubeletEvent::Entry(after), _] =
                &events[..]
            else {
                panic!("{events:?}")
            };
            let (from, to, cause) = (before.time, after.latest(), KubeletLogGap::Damaged);
            assert_eq!(*gap, KubeletEvent::Gap { from, to, lines: 1, cause });
        }
    }

    #[test]
    fn the_verbosity_is_told_once_for_each_level_and_run() {
        let anchor = Anchor { boot_ns: 1 << 50, wall_ns: 1_795_446_000_000_000_000 };
        let receipt = Receipt::File { anchor, near: WallTime(anchor.wall_ns), zone: 0 };
        let (counters, now) = (LineCounters::default(), BootTime(anchor.boot_ns));
        let mut reading = Reading::new(Budget::unlimited(), BootTime(3));
        assert_eq!(reading.since(BootTime(9)), BootTime(9));
        for message in [
            r#""SyncPod enter" pod="a/b""#,
            r#""SyncLoop REMOVE" source="file" pods=["a/b"]"#,
            r#""SyncLoop REMOVE" source="file" pods=["a/b"]"#,
            r#""Kubelet version" kubeletVersion="v1.36.0""#,
            r#""SyncLoop REMOVE" source="file" pods=["a/b"]"#,
        ] {
            let line = format!("I1123 14:18:35.558172  1 kubelet.go:2124] {message}");
            let line = FoundLine::Line(line.into_bytes());
            reading.take(&line, &receipt, now, &counters);
        }
        let level = |event: KubeletEvent| match event {
            KubeletEvent::Verbosity { at_least } => Some(at_least),
            _ => None,
        };
        let events = reading.events(now);
        let first = events.iter().find_map(|event| match event {
            KubeletEvent::Entry(entry) => Some(entry.latest()),
            _ => None,
        });
        assert_eq!(Some(reading.since(BootTime(9))), first, "nothing is known of the time before");
        let levels: Vec<_> = events.into_iter().filter_map(level).collect();
        assert_eq!(levels, [4, 2, 2]);
        // The kubelet may have been restarted in a gap.
        let line = br#"I1123 14:18:35.558172  1 kubelet.go:1] "SyncLoop REMOVE" source="file" pods=["a/b"]"#;
        for found in
            [FoundLine::TooLong, FoundLine::Line(line.to_vec()), FoundLine::Line(line.to_vec())]
        {
            reading.take(&found, &receipt, now, &counters);
            reading.events(now);
        }
        assert_eq!(reading.verbosity().filter_map(level).collect::<Vec<_>>(), [2]);
        reading.gap(now, 0, KubeletLogGap::Rotated);
        assert_eq!(reading.verbosity().count(), 0);
        reading.take(&FoundLine::Line(line.to_vec()), &receipt, now, &counters);
        let told = reading.events(now).into_iter().filter_map(level);
        assert_eq!(told.collect::<Vec<_>>(), [2]);
    }
}
