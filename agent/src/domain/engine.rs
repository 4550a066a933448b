//! step(now, input) → observations.

use super::{input::Received, observation::Observation, time::Anchor};

/// The engine's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    _settings: Settings,
}

impl Engine {
    /// An engine that knows nothing.
    pub fn new(settings: Settings) -> Self {
        Self { _settings: settings }
    }

    /// Takes one input, says what follows from it.
    pub fn step(&mut self, _input: Received) -> Vec<Observation> {
        Vec::new()
    }
}
