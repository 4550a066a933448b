//! What the fuzz targets share: an engine that is fed, and what must be true of all that is shown.

use coroner::outputs::report::{self, Style};
use coroner_core::{
    engine::{Gauges, Settings},
    input::{Input, Received},
    output::Report,
    time::{Anchor, BootTime, WallTime},
};
use coroner_fuzz_core::CheckedEngine;
use std::time::Duration;

/// The clocks of an agent that has been up for an hour, in 2026.
const ANCHOR: Anchor = Anchor { boot_ns: 3_600_000_000_000, wall_ns: 1_795_000_000_000_000_000 };

/// An engine whose reports are shown as the agent shows them.
#[derive(Debug)]
pub(crate) struct Coroner(CheckedEngine);

impl Coroner {
    /// One that has just started.
    pub(crate) fn new() -> Self {
        Self::with(Settings::new(ANCHOR))
    }

    /// One with these settings.
    pub(crate) fn with(settings: Settings) -> Self {
        Self(CheckedEngine::new(settings))
    }

    /// The moment of the last input.
    pub(crate) fn now(&self) -> BootTime {
        self.0.now()
    }

    /// Applies an input that was made of bytes, as if it had just come, a millisecond after the last one.
    /// A recording must give it back as it was.
    pub(crate) fn feed(&mut self, input: Input) {
        let received = Received { at: self.now() + Duration::from_millis(1), input };
        let line = serde_json::to_vec(&received).expect("an input can be written");
        let read: Received = serde_json::from_slice(&line).expect("an input can be read");
        assert_eq!(read, received, "{}", String::from_utf8_lossy(&line));
        self.take(received);
    }

    /// Lets so many seconds pass.
    pub(crate) fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.take(Received { at: self.now() + Duration::from_secs(1), input: Input::Tick });
        }
    }

    /// Applies an input, and checks what follows.
    pub(crate) fn take(&mut self, received: Received) {
        self.0.step(received).reports.iter().for_each(show);
    }

    /// The engine's sizes.
    pub(crate) fn gauges(&self) -> Gauges {
        self.0.gauges()
    }
}

/// No text that came from outside gets at the terminal.
fn show(report: &Report) {
    match report {
        Report::PodTerminated(termination) | Report::PodUpdated(termination, _) => {
            for width in [20, 100] {
                let style = Style { width, color: false };
                plain(&report::termination(termination, &style));
                plain(&report::explain(termination, &[], &style));
            }
            report::log_line(termination);
        }
        Report::LeakOpened(leak) | Report::LeakChanged(leak) | Report::LeakResolved(leak) => {
            for now in [WallTime(i64::MIN), WallTime(0), WallTime(i64::MAX)] {
                plain(&report::leak(leak, now, &Style::default()));
            }
        }
        _ => {}
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
