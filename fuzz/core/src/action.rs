//! The bytes of an execution → what is done with the story.

use std::time::Duration;

/// One thing that happens to the story's inputs, or beside them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// The next inputs as they came.
    Deliver(u8),
    /// The next inputs are lost.
    Skip(u8),
    /// The next inputs, the last first.
    Backwards(u8),
    /// An earlier or later input, so many times.
    Repeat {
        which: u8,
        times: u16,
        /// Each time of another process.
        processes: bool,
    },
    /// So many ticks, so far apart.
    Wait(u8, Duration),
    /// The next input at this time, whatever the clock says.
    At(u64),
    /// The next input's own times are wrong by so much.
    Shift(i64),
    /// The next input with another value in place of one of its own.
    Odd { which: u8, how: u8 },
    /// Evidence is lost.
    Lose { kind: u8, count: u8 },
    /// A source breaks or comes back.
    Connection(u8),
    /// The agent starts again.
    Restart { recall: bool },
    /// The engine gets an answer to one of its requests.
    Answer { which: u8, how: u8 },
    /// The runtime lists everything: what of it, and in which state.
    Lists { present: u8, running: u8 },
    /// The apiserver lists these pods.
    Pods { present: u8, deleted: u8 },
    /// What is found on the host of these sandboxes and pods.
    Survey { present: u8, how: u8 },
    /// The runtime or the kubelet starts or ends; the node's status changes.
    Node(u8),
    /// The wall clock is set by so much.
    Clock(i64),
}

/// How many inputs `Repeat` makes of one: past the bounds of what is kept of a container.
const TIMES: [u16; 8] = [1, 1, 1, 2, 5, 20, 70, 300];
/// From the engine's usual tick to the longest times that it keeps anything.
const STEPS: [u64; 6] = [1, 5, 30, 300, 3_600, 86_400];

impl Action {
    /// The inputs may contradict those of the story.
    pub(crate) fn contradicts(self) -> bool {
        match self {
            Self::Deliver(_) | Self::Skip(_) | Self::Backwards(_) | Self::Repeat { .. } => false,
            Self::Wait(..) | Self::Lose { .. } | Self::Connection(_) | Self::Restart { .. } => {
                false
            }
            Self::Node(_) | Self::Clock(_) | Self::Survey { .. } => false,
            Self::At(_) | Self::Shift(_) | Self::Odd { .. } => true,
            Self::Answer { .. } | Self::Lists { .. } | Self::Pods { .. } => true,
        }
    }

    /// Three bytes each: what, and two of how.
    pub(crate) fn of([what, how, more]: [u8; 3]) -> Self {
        let far = u32::from(more % 64);
        let offset = i64::from(how.cast_signed()) << far;
        match what % 16 {
            0 => Self::Deliver(how),
            1 => Self::Skip(how),
            2 => Self::Backwards(how),
            3 => Self::Repeat {
                which: how,
                times: TIMES[usize::from(more % 8)],
                processes: more & 8 != 0,
            },
            4 => {
                let step = STEPS[usize::from(more) % STEPS.len()];
                Self::Wait(how % 64, Duration::from_secs(step))
            }
            5 => Self::At(u64::from(how) << far),
            6 if more & 128 != 0 => Self::Odd { which: how, how: more & 127 },
            6 => Self::Shift(offset),
            7 => Self::Lose { kind: how, count: more },
            8 => Self::Connection(how),
            9 => Self::Restart { recall: how & 1 != 0 },
            10 => Self::Answer { which: how, how: more },
            11 => Self::Lists { present: how, running: more },
            12 => Self::Pods { present: how, deleted: more },
            13 => Self::Survey { present: how, how: more },
            14 => Self::Node(how),
            _ => Self::Clock(offset),
        }
    }
}
