use crate::fed::Coroner;
use coroner::recording;
use coroner_core::{
    engine::Settings,
    input::{ApiEvent, CriEvent, Input, Loss, LossKind, Received},
    output::Outputs,
    time::BootTime,
};
use std::{sync::LazyLock, time::Duration};

/// The lab's pods on a real kernel and a real runtime.
static DEATHS: LazyLock<(Settings, Vec<Received>)> = LazyLock::new(|| {
    let mut sample = recording::sample().expect("it comes with coroner");
    let inputs = sample.by_ref().collect();
    (sample.header().settings(), inputs)
});

#[derive(Debug)]
enum Act {
    /// The next inputs as they came.
    Go(u8),
    /// The next inputs never come.
    Skip(u8),
    /// The next inputs, the last first.
    Backwards(u8),
    /// An earlier (or later) input.
    Any(u16),
    /// Time passes without a word.
    Wait(u8),
    /// The next input at this time, whatever the clock says.
    At(u64),
    /// The next input's times are wrong by so much.
    Shift(i64),
    Lost(u8, u8),
    RuntimeGone,
    RuntimeBack,
    ApiGone,
    ApiBack,
    Restart,
}

impl Act {
    /// Three bytes each: what, and two of how.
    fn of(bytes: &[u8]) -> Option<Self> {
        let &[what, how, more] = bytes else { return None };
        let far = u32::from(more % 64);
        Some(match what % 13 {
            0 => Self::Go(how),
            1 => Self::Skip(how),
            2 => Self::Backwards(how),
            3 => Self::Any(u16::from_le_bytes([how, more])),
            4 => Self::Wait(how),
            5 => Self::At(u64::from(how) << far),
            6 => Self::Shift(i64::from(how.cast_signed()) << far),
            7 => Self::Lost(how, more),
            8 => Self::RuntimeGone,
            9 => Self::RuntimeBack,
            10 => Self::ApiGone,
            11 => Self::ApiBack,
            _ => Self::Restart,
        })
    }
}

const LOSSES: [LossKind; 8] = [
    LossKind::DecidingRingFull,
    LossKind::DetailRingFull,
    LossKind::BudgetSpent,
    LossKind::Undecodable,
    LossKind::CgroupMapFull,
    LossKind::EngineFull,
    LossKind::NeverResolved,
    LossKind::Unrecorded,
];

/// The engine: a recording of real deaths, its inputs dropped, repeated, delayed, out of order and
/// with wrong times. Whatever comes, it tells no termination or leak twice and nothing that does not add up, and
/// says the same again when it is given the same.
pub fn engine(bytes: &[u8]) {
    let acts: Vec<_> = bytes.chunks(3).filter_map(Act::of).take(100).collect();
    assert_eq!(play(&acts), play(&acts), "the same inputs, another word");
}

fn play(acts: &[Act]) -> Outputs {
    let (settings, inputs) = &*DEATHS;
    let mut coroner = Coroner::with(*settings);
    let mut next = 0;
    let mut out = Outputs::default();
    let mut upcoming = |count: u8| {
        let from = next;
        next = inputs.len().min(next + usize::from(count));
        &inputs[from..next]
    };
    for act in acts {
        match act {
            Act::Go(count) => {
                for received in upcoming(*count) {
                    let at = received.at.max(coroner.now());
                    out.append(coroner.take(Received { at, ..received.clone() }));
                }
            }
            Act::Skip(count) => {
                upcoming(*count);
            }
            Act::Backwards(count) => {
                for received in upcoming(*count).iter().rev() {
                    out.append(coroner.feed(received.input.clone()));
                }
            }
            Act::Any(which) => {
                let received = &inputs[usize::from(*which) % inputs.len()];
                out.append(coroner.feed(received.input.clone()));
            }
            Act::Wait(seconds) => coroner.pass(u32::from(*seconds)),
            Act::At(at) => {
                for received in upcoming(1) {
                    out.append(coroner.take(Received { at: BootTime(*at), ..received.clone() }));
                }
            }
            Act::Shift(by) => {
                for received in upcoming(1) {
                    out.append(coroner.feed(shifted(received.input.clone(), *by)));
                }
            }
            Act::Lost(kind, count) => {
                let kind = LOSSES[usize::from(*kind) % LOSSES.len()];
                out.append(coroner.feed(Input::Lost(Loss::new(kind, u64::from(*count)))));
            }
            Act::RuntimeGone => {
                let gone = CriEvent::Unreachable { error: "connection refused".into(), code: None };
                out.append(coroner.feed(Input::Cri(gone)));
            }
            Act::RuntimeBack => {
                let back = CriEvent::Connected { runtime: "containerd 1.7".into(), process: None };
                out.append(coroner.feed(Input::Cri(back)));
            }
            Act::ApiGone => {
                let gone = ApiEvent::OutOfSync { error: "connection refused".into() };
                out.append(coroner.feed(Input::Api(gone)));
            }
            Act::ApiBack => out.append(coroner.feed(Input::Api(ApiEvent::Resumed))),
            Act::Restart => {
                out = Outputs::default();
                coroner = Coroner::with(*settings);
            }
        }
    }
    for _ in 0..200 {
        let at = coroner.now() + Duration::from_secs(1);
        out.append(coroner.take(Received { at, input: Input::Tick }));
    }
    out
}

/// What an input itself says of its times, wrong.
fn shifted(mut input: Input, by: i64) -> Input {
    let moved = |at: BootTime| BootTime(at.0.wrapping_add_signed(by));
    match &mut input {
        Input::Kernel(event) => event.time = moved(event.time),
        Input::Cri(CriEvent::Sandboxes { asked, sandboxes, .. }) => {
            *asked = moved(*asked);
            sandboxes.iter_mut().for_each(|one| one.created.0 = one.created.0.wrapping_add(by));
        }
        Input::Cri(CriEvent::Containers { asked, containers, .. }) => {
            *asked = moved(*asked);
            containers.iter_mut().for_each(|one| one.created.0 = one.created.0.wrapping_add(by));
        }
        Input::Cri(CriEvent::ContainerExited(exit)) => {
            for time in [&mut exit.started, &mut exit.finished].into_iter().flatten() {
                time.0 = time.0.wrapping_add(by);
            }
        }
        Input::Api(ApiEvent::Applied(pod) | ApiEvent::Deleted(pod)) => {
            for time in pod.deletion_timestamp.iter_mut() {
                time.0 = time.0.wrapping_add(by);
            }
            if let Some(seconds) = &mut pod.deletion_grace_seconds {
                *seconds = seconds.wrapping_add(by);
            }
        }
        _ => {}
    }
    input
}
