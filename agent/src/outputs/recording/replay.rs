//! Replays inputs through the engine.

use crate::outputs::recording::{Header, Reader, Stopped};
use coroner_core::{
    engine::Engine,
    input::{Input, Received},
    output::Report,
    report::PodTermination,
    time::BootTime,
};
use std::{sync::Arc, time::Duration};

const TICK: Duration = Duration::from_secs(1);

/// Ticks in a row without an input: after a day nothing waits for the time to pass. A corrupt time
/// must not keep us busy for the age of the universe.
const MAX_TICKS: usize = 24 * 3600;

/// A recording on its way through an engine: what the agent said when it was made, and what it
/// would have said had it gone on.
#[derive(Debug)]
pub struct Replay {
    engine: Engine,
    timelines: Timelines,
    last: BootTime,
}

impl Replay {
    pub fn new(header: &Header) -> Self {
        let settings = header.settings();
        Self {
            engine: Engine::new(settings),
            timelines: Timelines::default(),
            last: BootTime(header.clock.boot_ns),
        }
    }

    /// Steps through all that is left in the recording, its ticks and nothing else: that is what
    /// the agent did.
    pub fn run(&mut self, recording: &mut Reader) {
        for received in recording.by_ref() {
            self.step(received);
        }
        // An agent that stops tells what it still held.
        if recording.status().end.as_ref().is_some_and(|end| end.why == Stopped::Agent) {
            let rest = self.engine.count_the_rest();
            self.note_reports(rest);
        }
    }

    /// Goes on for so long, at most a day, as if nothing more had happened: accounts that were
    /// still open are closed with what there is.
    pub fn go_on(&mut self, time: Duration) {
        for at in ticks(self.last, self.last + time) {
            self.step(Received { at, input: Input::Tick });
        }
    }

    fn step(&mut self, received: Received) {
        self.last = self.last.max(received.at);
        let reports = self.engine.step(received).reports;
        self.note_reports(reports);
    }

    fn note_reports(&mut self, reports: Vec<Report>) {
        self.timelines.note(reports);
    }

    /// The accounts as they stand, oldest first.
    pub fn timelines(&self) -> impl DoubleEndedIterator<Item = &Arc<PodTermination>> {
        self.timelines.0.iter()
    }

    /// Pods whose end is under way.
    pub fn open(&self) -> usize {
        self.engine.gauges().terminating
    }
}

/// The last report of each termination, oldest first.
#[derive(Debug, Default)]
pub struct Timelines(pub Vec<Arc<PodTermination>>);

impl Timelines {
    pub fn note(&mut self, reports: Vec<Report>) {
        for report in reports {
            let (Report::PodTerminated(account) | Report::PodUpdated(account, _)) = report else {
                continue;
            };
            let same = |known: &&mut Arc<PodTermination>| {
                known.pod.uid == account.pod.uid && known.life == account.life
            };
            match self.0.iter_mut().rev().find(same) {
                Some(known) => *known = Arc::new(*account),
                None => self.0.push(Arc::new(*account)),
            }
        }
    }
}

/// The ticks after `last`, up to `end`: one each second, for a day at most.
fn ticks(last: BootTime, end: BootTime) -> impl Iterator<Item = BootTime> {
    let next = |at: &BootTime| Some(*at + TICK).filter(|next| next > at);
    std::iter::successors(Some(last), next).skip(1).take_while(move |at| *at <= end).take(MAX_TICKS)
}
