//! Replays a recording through the engine.

use crate::domain::{engine::Engine, input::Received, observation::Observation, time::BootTime};
use std::time::Duration;

/// Steps the engine through all inputs in order of receipt, with a tick each second between them
/// and for `after` beyond the last one.
pub fn replay(
    engine: &mut Engine,
    inputs: impl IntoIterator<Item = Received>,
    after: Duration,
) -> Vec<Observation> {
    use crate::domain::input::Input;
    const TICK: Duration = Duration::from_secs(1);
    let mut said = Vec::new();
    let mut next_tick: Option<BootTime> = None;
    let mut last = BootTime(0);
    for input in inputs {
        let at = input.at;
        let tick = next_tick.get_or_insert(at + TICK);
        while *tick <= at {
            said.extend(engine.step(Received { at: *tick, input: Input::Tick }));
            *tick = *tick + TICK;
        }
        said.extend(engine.step(input));
        last = at;
    }
    if let Some(mut tick) = next_tick {
        while tick <= last + after {
            said.extend(engine.step(Received { at: tick, input: Input::Tick }));
            tick = tick + TICK;
        }
    }
    said
}
