//! Replays inputs through the engine.

use crate::{
    outputs::recording::{Header, Reader, Stopped},
    store::terminations::History,
};
use coroner_core::{
    engine::Engine,
    ids::PodRef,
    input::{ApiEvent, CriEvent, Input, Received},
    output::Report,
    report::PodTermination,
    time::BootTime,
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

const TICK: Duration = Duration::from_secs(1);

/// Ticks in a row without an input: after a day nothing waits for the time to pass. A corrupt time
/// must not keep us busy for the age of the universe.
const MAX_TICKS: usize = 24 * 3600;

/// A recording on its way through an engine: what the agent said when it was made, and what it
/// would have said had it gone on.
#[derive(Debug)]
pub struct Replay {
    engine: Engine,
    history: History,
    pods: HashMap<String, PodRef>,
    last: BootTime,
}

impl Replay {
    pub fn new(header: &Header) -> Self {
        let settings = header.settings();
        Self {
            engine: Engine::new(settings),
            history: History::new(usize::MAX),
            pods: HashMap::new(),
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
        self.note_pods(&received.input);
        let reports = self.engine.step(received).reports;
        self.note_reports(reports);
    }

    fn note_reports(&mut self, reports: Vec<Report>) {
        for report in reports {
            match report {
                Report::PodTerminated(account) => self.history.put(*account, false),
                Report::PodUpdated(account, _) => self.history.put(*account, true),
                _ => {}
            }
        }
    }

    fn note_pods(&mut self, input: &Input) {
        let mut note = |namespace: &str, name: &str, uid: &str| {
            if !self.pods.contains_key(uid) {
                let pod =
                    PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
                self.pods.insert(uid.to_owned(), pod);
            }
        };
        match input {
            Input::Api(ApiEvent::Snapshot { pods }) => {
                pods.iter().for_each(|pod| note(&pod.namespace, &pod.name, &pod.uid));
            }
            Input::Api(ApiEvent::Applied(pod) | ApiEvent::Deleted(pod)) => {
                note(&pod.namespace, &pod.name, &pod.uid);
            }
            Input::Cri(CriEvent::Sandboxes { sandboxes, .. }) => {
                sandboxes.iter().for_each(|one| note(&one.namespace, &one.name, one.pod.as_str()));
            }
            _ => {}
        }
    }

    /// The accounts as they stand, oldest first.
    pub fn timelines(&self) -> impl DoubleEndedIterator<Item = &Arc<PodTermination>> {
        self.history.terminations().map(|entry| &entry.item)
    }

    /// Pods whose end is under way.
    pub fn open(&self) -> usize {
        self.engine.gauges().terminating
    }

    pub fn without_account(&self) -> BTreeSet<(&str, &str)> {
        let reported: BTreeSet<_> =
            self.timelines().map(|reported| reported.pod.uid.as_str()).collect();
        self.pods
            .iter()
            .filter(|(uid, _)| !reported.contains(uid.as_str()))
            .map(|(_, pod)| (pod.namespace.as_str(), pod.name.as_str()))
            .collect()
    }
}

/// The ticks after `last`, up to `end`: one each second, for a day at most.
fn ticks(last: BootTime, end: BootTime) -> impl Iterator<Item = BootTime> {
    let next = |at: &BootTime| Some(*at + TICK).filter(|next| next > at);
    std::iter::successors(Some(last), next).skip(1).take_while(move |at| *at <= end).take(MAX_TICKS)
}
