use crate::{
    action::Action,
    checked::CheckedEngine,
    made, node,
    story::{STORIES, Story},
};
use coroner_core::{
    input::{ApiEvent, CriEvent, Input, Loss, LossKind, PersistedLeak, Received},
    output::{Outputs, Request},
    time::{Anchor, BootTime},
};
use std::{collections::VecDeque, time::Duration};

/// Actions of an execution.
const MAX_ACTIONS: usize = 32;
/// Inputs of an execution, ticks included: more than any story has, and than is kept of one container.
const MAX_INPUTS: u32 = 400;
/// Requests that can still be answered.
const MAX_REQUESTS: usize = 8;
/// Seconds between the ticks at the end: past the settle window, each timeout, and what is kept how long.
const LAST_TICKS: [u64; 14] = [1, 1, 2, 3, 5, 5, 5, 5, 10, 30, 60, 300, 600, 3_600];

/// The engine: a story of real or simulated deaths, its inputs dropped, repeated, delayed, out of order, with
/// wrong times, with odd values, and among others. Whatever comes, it reports no leak twice and nothing that does
/// not add up, and reports the same again when it is given the same; and no termination twice, unless inputs
/// contradict each other.
pub fn engine(bytes: &[u8]) {
    outputs(bytes);
}

/// The first byte chooses the story, and for some executions a check that costs as much as the rest; then three
/// bytes an action.
fn outputs(bytes: &[u8]) -> Outputs {
    let Some((options, bytes)) = bytes.split_first() else { return Outputs::default() };
    let (twice, story) = (options & 7 == 7, usize::from(options >> 3));
    let story = &STORIES[story % STORIES.len()];
    let actions: Vec<Action> =
        bytes.as_chunks().0.iter().copied().map(Action::of).take(MAX_ACTIONS).collect();
    let outputs = Player::new(story).play(&actions);
    if twice {
        let again = Player::new(story).play(&actions);
        assert_eq!(outputs, again, "the same inputs, other outputs");
    }
    outputs
}

struct Player {
    story: &'static Story,
    engine: CheckedEngine,
    /// Of the story's inputs.
    next: usize,
    /// Inputs that may still come.
    left: u32,
    requests: VecDeque<Request>,
    outputs: Outputs,
}

impl Player {
    fn new(story: &'static Story) -> Self {
        Self {
            story,
            engine: CheckedEngine::new(story.settings),
            next: 0,
            left: MAX_INPUTS,
            requests: VecDeque::new(),
            outputs: Outputs::default(),
        }
    }

    fn play(mut self, actions: &[Action]) -> Outputs {
        for action in actions {
            self.act(*action);
        }
        self.left = LAST_TICKS.len() as u32;
        for step in LAST_TICKS {
            self.tick(Duration::from_secs(step));
        }
        self.outputs
    }

    fn act(&mut self, action: Action) {
        let now = self.engine.now();
        if action.contradicts() {
            self.engine.contradict();
        }
        match action {
            Action::Deliver(count) => {
                for received in self.upcoming(count.into()) {
                    self.pass_until(received.at);
                    self.feed_at(received.at.max(self.engine.now()), received.input.clone());
                }
            }
            Action::Skip(count) => drop(self.upcoming(count.into())),
            Action::Backwards(count) => {
                let upcoming = self.upcoming(count.into());
                upcoming.iter().rev().for_each(|received| self.feed(received.input.clone()));
            }
            Action::Repeat { which, times, processes } => {
                let inputs = &self.story.inputs;
                let input = &inputs[usize::from(which) % inputs.len()].input;
                for time in 0..u32::from(times).min(self.left) {
                    let by = if processes { time } else { 0 };
                    self.feed(made::of_another_process(input.clone(), by));
                }
            }
            Action::Wait(ticks, step) => (0..ticks).for_each(|_| self.tick(step)),
            Action::At(at) => {
                for received in self.upcoming(1) {
                    self.feed_at(BootTime(at), received.input.clone());
                }
            }
            Action::Shift(by) => {
                for received in self.upcoming(1) {
                    self.feed(made::shifted(received.input.clone(), by));
                }
            }
            Action::Odd { which, how } => {
                for received in self.upcoming(1) {
                    if let Some(input) = made::odd(&received.input, which, how) {
                        self.feed(input);
                    }
                }
            }
            Action::Lose { kind, count } => {
                let kind = LossKind::ALL[usize::from(kind) % LossKind::ALL.len()];
                self.feed(Input::Lost(Loss::new(kind, count.into())));
            }
            Action::Connection(how) => self.feed(match how % 4 {
                0 => Input::Cri(CriEvent::Unreachable {
                    error: "connection refused".into(),
                    code: None,
                }),
                1 => Input::Cri(CriEvent::Connected {
                    runtime: "containerd 1.7".into(),
                    process: None,
                }),
                2 => Input::Api(ApiEvent::OutOfSync { error: "connection refused".into() }),
                _ => Input::Api(ApiEvent::Resumed),
            }),
            Action::Restart { recall } => {
                let started = CheckedEngine::new(self.story.settings);
                let before = std::mem::replace(&mut self.engine, started);
                self.requests.clear();
                let recollection =
                    |key| PersistedLeak { key, first_observed: now, preexisting: false };
                let leaks = before.leaks().iter().cloned().map(recollection).collect();
                if recall {
                    self.feed_at(now, Input::Recalled { leaks });
                }
            }
            Action::Answer { which, how } => {
                let len = self.requests.len().max(1);
                if let Some(request) = self.requests.remove(usize::from(which) % len)
                    && let Some(input) = made::answer(self.story, &request, now, how)
                {
                    self.feed(input);
                }
            }
            Action::Lists { present, running } => {
                for input in made::lists(self.story, now, present, running) {
                    self.feed(input);
                }
            }
            Action::Pods { present, deleted } => {
                let now = self.story.settings.anchor.wall(now);
                self.feed(made::pods(self.story, now, present, deleted));
            }
            Action::Survey { present, how } => {
                self.feed(made::survey(self.story, now, present, how));
            }
            Action::Node(how) => self.feed(node::node(how)),
            Action::Clock(by) => {
                let wall_ns = self.story.settings.anchor.wall(now).0.wrapping_add(by);
                self.feed(Input::Clock(Anchor { boot_ns: now.0, wall_ns }));
            }
        }
    }

    /// The story's next inputs.
    fn upcoming(&mut self, count: usize) -> &'static [Received] {
        let from = self.next;
        self.next = self.story.inputs.len().min(from + count);
        &self.story.inputs[from..self.next]
    }

    /// Ticks where the recorded agent ticked, but no more than show that time passed.
    fn pass_until(&mut self, at: BootTime) {
        const TICK: Duration = Duration::from_secs(1);
        for _ in 0..2 {
            if self.engine.now() + TICK <= at {
                self.tick(TICK);
            }
        }
        let rest = at.since(self.engine.now());
        if rest >= TICK {
            self.tick(rest);
        }
    }

    fn tick(&mut self, step: Duration) {
        self.feed_at(self.engine.now() + step, Input::Tick);
    }

    /// An input that has just come, a millisecond after the last one.
    fn feed(&mut self, input: Input) {
        self.feed_at(self.engine.now() + Duration::from_millis(1), input);
    }

    fn feed_at(&mut self, at: BootTime, input: Input) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        let outputs = self.engine.step(Received { at, input });
        self.requests.extend(outputs.requests.iter().filter(|one| made::is_answered(one)).cloned());
        let over = self.requests.len().saturating_sub(MAX_REQUESTS);
        self.requests.drain(..over);
        self.outputs.append(outputs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;
    use coroner_core::output::Report;
    use std::collections::BTreeSet;

    /// What no kept input reaches, libFuzzer seldom finds within seconds.
    #[test]
    fn the_corpus_reaches_every_kind_of_report() {
        let mut kinds = BTreeSet::new();
        for bytes in corpus::inputs("engine").values() {
            kinds.extend(outputs(bytes).reports.iter().map(|report| match report {
                Report::ContainerDied(_) => "container died",
                Report::PodTerminated(_) => "pod terminated",
                Report::PodUpdated(..) => "pod updated",
                Report::CountDeath(_) => "count death",
                Report::CountTermination(_) => "count termination",
                Report::LeakOpened(_) => "leak opened",
                Report::LeakChanged(_) => "leak changed",
                Report::LeakResolved(_) => "leak resolved",
                Report::Unkillable(_) => "unkillable",
            }));
        }
        assert_eq!(kinds.len(), 9, "only {kinds:?}");
    }
}
