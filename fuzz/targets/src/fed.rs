//! What the fuzz targets share: an engine that is fed, and what must be true of all that it says.

use coroner::report::{self, Style};
use coroner_core::{
    engine::{Engine, Settings},
    ids::PodUid,
    input::{Input, Received},
    leak::{Leak, LeakKey},
    observation::{ContainerDeath, PodTermination},
    output::{Outputs, Report},
    time::{Anchor, BootTime, WallTime},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

/// The clocks of an agent that has been up for an hour, in 2026.
const ANCHOR: Anchor = Anchor { boot_ns: 3_600_000_000_000, wall_ns: 1_795_000_000_000_000_000 };

/// An engine, and what it said so far as far as later words may not contradict it.
#[derive(Debug)]
pub(crate) struct Coroner {
    engine: Engine,
    now: BootTime,
    lives: HashSet<(PodUid, u32)>,
    counted: HashSet<(PodUid, u32)>,
    leaks: BTreeSet<LeakKey>,
}

impl Coroner {
    /// One that has just started.
    pub(crate) fn new() -> Self {
        Self::with(Settings::new(ANCHOR))
    }

    /// One with these settings.
    pub(crate) fn with(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings),
            now: BootTime(settings.anchor.boot_ns),
            lives: HashSet::new(),
            counted: HashSet::new(),
            leaks: BTreeSet::new(),
        }
    }

    /// The moment of its last input.
    pub(crate) fn now(&self) -> BootTime {
        self.now
    }

    /// Gives it an input that was made of bytes, as if it had just come, a millisecond after the
    /// last one. It must be one that can be recorded.
    pub(crate) fn feed(&mut self, input: Input) -> Outputs {
        let received = Received { at: self.now + Duration::from_millis(1), input };
        recordable(&received);
        self.take(received)
    }

    /// Lets so many seconds pass.
    pub(crate) fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.take(Received { at: self.now + Duration::from_secs(1), input: Input::Tick });
        }
    }

    /// Gives it an input, and checks what it says.
    pub(crate) fn take(&mut self, received: Received) -> Outputs {
        self.now = received.at;
        let out = self.engine.step(received);
        out.reports.iter().for_each(|report| self.check(report));
        out
    }

    /// What it holds, at the end.
    pub(crate) fn gauges(&self) -> coroner_core::engine::Gauges {
        self.engine.gauges()
    }

    fn check(&mut self, report: &Report) {
        match report {
            // Not counted: a container that was forgotten may be met again, and die again.
            Report::ContainerDied(death) => self::death(death),
            Report::PodTerminated(told) => {
                account(told);
                let life = (told.pod.uid.clone(), told.life);
                assert!(self.lives.insert(life), "told twice: {:?} life {}", told.pod, told.life);
            }
            Report::PodUpdated(told, _) => account(told),
            Report::CountTermination(told) => {
                let life = (told.pod.uid.clone(), told.life);
                assert!(self.lives.contains(&life), "counted unreported: {life:?}");
                assert!(self.counted.insert(life), "counted twice: {:?}", told.pod);
            }
            Report::LeakOpened(found) => {
                leak(found);
                assert!(self.leaks.insert(found.key.clone()), "found twice: {:?}", found.key);
            }
            Report::LeakChanged(found) => {
                leak(found);
                assert!(self.leaks.contains(&found.key), "changed unfound: {:?}", found.key);
            }
            Report::LeakResolved(found) => {
                leak(found);
                assert!(self.leaks.remove(&found.key), "gone unfound: {:?}", found.key);
            }
            _ => {}
        }
    }
}

impl Default for Coroner {
    fn default() -> Self {
        Self::new()
    }
}

/// A recording gives back the input that was written to it.
pub(crate) fn recordable(received: &Received) {
    let line = serde_json::to_vec(received).expect("an input can be written");
    let read: Received = serde_json::from_slice(&line).expect("what was written can be read");
    assert_eq!(&read, received, "{}", String::from_utf8_lossy(&line));
}

/// What the API says of a death can be read by its clients.
fn death(death: &ContainerDeath) {
    let json = serde_json::to_string(death).expect("a death can be told");
    serde_json::from_str::<ContainerDeath>(&json).expect("and understood");
}

/// Phases add up to the whole, without gap or overlap; the account can be told as JSON and as text,
/// and no text that came from outside gets at the terminal.
fn account(told: &PodTermination) {
    let mut at = told.began;
    for phase in &told.phases {
        assert_eq!(phase.from, at, "a gap before {:?}: {told:#?}", phase.kind);
        assert!(phase.to >= phase.from, "backwards: {told:#?}");
        at = phase.to;
    }
    assert_eq!(at, told.ended.max(told.began), "phases do not reach the end: {told:#?}");
    let kinds: BTreeMap<_, _> = told.milestones.iter().map(|mark| (mark.kind, mark.at)).collect();
    assert_eq!(kinds.len(), told.milestones.len(), "a milestone twice: {told:#?}");

    let json = serde_json::to_string(told).expect("an account can be told");
    serde_json::from_str::<PodTermination>(&json).expect("and understood");
    for width in [20, 100] {
        let style = Style { width, color: false };
        plain(&report::termination(told, &style));
        plain(&report::explain(told, &style));
    }
    report::log_line(told);
}

fn leak(leak: &Leak) {
    let json = serde_json::to_string(leak).expect("a leak can be told");
    serde_json::from_str::<Leak>(&json).expect("and understood");
    for now in [WallTime(i64::MIN), WallTime(0), WallTime(i64::MAX)] {
        plain(&report::leak(leak, now, &Style::default()));
    }
}

/// Nothing in it moves the cursor.
pub(crate) fn plain(text: &str) {
    let control = text.chars().find(|char| char.is_control() && *char != '\n');
    assert_eq!(control, None, "{text:?}");
}

/// Neither a path nor an argument: of a command only the binary's name may be kept.
pub(crate) fn binary(name: &str) {
    assert!(!name.contains(['/', ' ', '\t', '\n']), "more than a binary's name: {name:?}");
}

/// The bytes in pieces, each with its length in `WIDTH` bytes before it; the last may be cut off.
pub(crate) fn pieces<const WIDTH: usize>(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<WIDTH>()?;
        let len = len.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let (piece, rest) = rest.split_at(rest.len().min(len));
        bytes = rest;
        Some(piece)
    })
}
