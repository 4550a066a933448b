//! Plays random histories, and makes what goes wrong as simple as can be.

mod connections;
mod decidable;
mod judge;
mod kubelet;
mod plan;
mod sources;
mod story;
mod truth;
mod view;

use coroner_core::input::{CriEvent, Input, Received};
pub(crate) use decidable::Hidden;
pub(crate) use judge::{Floor, Kind, Shares, Tally, judge};
pub(crate) use plan::{FAULTS, Plan};
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngSeed, TestRunner},
};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};
pub(crate) use truth::Expected;

/// What came of the histories of one fault.
pub(crate) struct FaultTally {
    pub(crate) fault: &'static str,
    pub(crate) seed: u64,
    pub(crate) histories: u32,
    /// Histories in which something was wrong.
    pub(crate) wrong: u32,
    pub(crate) kinds: [u32; Kind::ALL.len()],
    pub(crate) known: Floor,
    /// The first that went wrong.
    example: Option<Example>,
}

/// What is left of a history that went wrong.
pub(crate) struct Kept {
    /// What was wrong, what happened, and how it comes again.
    pub(crate) text: String,
    /// The inputs.
    pub(crate) file: PathBuf,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, file } = self;
        let folder = "agent/core/tests/simulation/found";
        write!(f, "\n\n{text}\nas a test: cp {} {folder}/NAME.jsonl\n", file.display())
    }
}

/// A history that went wrong, simplified.
struct Example {
    /// So many histories find it.
    number: u32,
    plan: Plan,
    judgement: Shares,
}

pub(crate) fn simulate(fault: &'static str, cases: u32, seed: u64) -> FaultTally {
    let (histories, rng_seed) = (cases, RngSeed::Fixed(seed));
    let config = Config { cases, rng_seed, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let (known, kinds) = (Floor::default(), [0; Kind::ALL.len()]);
    let mut outcome = FaultTally { fault, seed, histories, wrong: 0, kinds, known, example: None };
    for number in 1..=histories {
        let mut tree = plan::plan(fault).new_tree(&mut runner).expect("a plan");
        let judgement = play(&tree.current());
        outcome.known.add(&judgement);
        if judgement.wrong.is_empty() {
            continue;
        }
        outcome.wrong += 1;
        judgement.wrong.iter().for_each(|(kind, _)| outcome.kinds[*kind as usize] += 1);
        if outcome.example.is_some() {
            continue;
        }
        let mut simplest = (tree.current(), judgement);
        'simpler: while tree.simplify() {
            loop {
                let judgement = play(&tree.current());
                if !judgement.wrong.is_empty() {
                    simplest = (tree.current(), judgement);
                    break;
                }
                if !tree.complicate() {
                    break 'simpler;
                }
            }
        }
        let (plan, judgement) = simplest;
        outcome.example = Some(Example { number, plan, judgement });
    }
    outcome
}

fn play(plan: &Plan) -> Shares {
    let (expected, inputs) = history(plan);
    judge(&expected, &inputs)
}

fn history(plan: &Plan) -> (Expected, Vec<Received>) {
    let truth = truth::Truth::of(plan);
    let (inputs, complete) = sources::inputs(plan, &truth);
    (truth.expected(complete), inputs)
}

impl FaultTally {
    fn row(&self) -> Vec<&'static str> {
        let lines = include_str!("floors.txt").lines().filter(|line| !line.starts_with('#'));
        let mut rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.first() == Some(&self.fault));
        row.expect("each fault has its floor")
    }

    /// What must be known at least: percent of verdicts, and of the causes that something decides.
    pub(crate) fn floor(&self) -> (f64, f64) {
        let row = self.row();
        let number = |column: usize| row[column].parse().expect("a number");
        (number(1), number(2))
    }

    /// Of how many deaths, percent, this may hide the cause at most.
    pub(crate) fn ceiling(&self, hidden: Hidden) -> f64 {
        let pairs = self.row().into_iter().filter_map(|pair| pair.split_once('='));
        let own = pairs.filter(|(reason, _)| *reason == hidden.as_str());
        own.map(|(_, percent)| percent.parse().expect("a number")).next().unwrap_or_default()
    }

    pub(crate) fn is_good(&self) -> bool {
        let (verdicts, decided) = (self.known.known().0, self.known.decidable().1);
        let least = self.floor();
        let is_enough = verdicts >= least.0 && decided >= least.1;
        let is_honest = Hidden::ALL.into_iter().all(|hidden| {
            let (share, tally) = self.known.hidden(hidden);
            share <= self.ceiling(hidden) && tally.is_chance()
        });
        // Of few histories, chance decides.
        self.wrong == 0 && (is_enough && is_honest || self.histories < 1_000)
    }

    /// Writes down what went wrong, if anything.
    pub(crate) fn keep(&self, folder: &Path) -> Option<Kept> {
        let Self { fault, seed, .. } = self;
        let example = self.example.as_ref()?;
        let file = folder.join(format!("{fault}-{seed}.jsonl"));
        fs::create_dir_all(folder).expect("the folder can be made");
        fs::write(&file, example.file()).expect("the file can be written");
        let again = format!("--fault {fault} --seed {seed} --cases {}", example.number);
        let text = format!("{example}\nagain: cargo xtask simulate {again}");
        let (expected, inputs) = read(&fs::read_to_string(&file).expect("it was written"));
        assert!(
            !judge(&expected, &inputs).wrong.is_empty(),
            "{}: reads as another",
            file.display()
        );
        Some(Kept { text, file })
    }

    /// The columns of [`Display`](fmt::Display).
    pub(crate) fn head() -> String {
        format!(
            "{:<16}{:>10}{:>7}{:>16}{:>6}{:>7}{:>15}{:>9}{:>18}{:>11}{:>12}{:>24}  {}",
            "fault",
            "histories",
            "wrong",
            "contradictions",
            "lost",
            "twice",
            "disagreements",
            "deaths",
            "verdicts (floor)",
            "causes",
            "decidable",
            "known of these (floor)",
            "why not decidable (ceiling): reported right + other"
        )
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, histories, wrong, kinds, known, .. } = self;
        let [contradictions, lost, twice, disagreements] = kinds;
        let ((verdicts, causes), (decidable, decided)) = (known.known(), known.decidable());
        let ((least_verdicts, least_decided), deaths) = (self.floor(), known.deaths());
        write!(
            f,
            "{fault:<16}{histories:>10}{wrong:>7}{contradictions:>16}{lost:>6}{twice:>7}{disagreements:>15}{deaths:>9}"
        )?;
        write!(f, "{verdicts:>9.2} % ({least_verdicts:>3} %){causes:>9.2} %{decidable:>10.2} %")?;
        write!(f, "{decided:>15.2} % ({least_decided:>3} %) ")?;
        for hidden in Hidden::ALL {
            let (share, Tally { right, other, .. }) = known.hidden(hidden);
            if share > 0.0 {
                let (reason, most) = (hidden.as_str(), self.ceiling(hidden));
                write!(f, " {reason} {share:.2} % ({most} %): {right} + {other};")?;
            }
        }
        Ok(())
    }
}

impl Example {
    /// What is true, then the inputs but ticks, each a line of JSON.
    fn file(&self) -> String {
        let (expected, inputs) = history(&self.plan);
        let mut text = serde_json::to_string(&expected).expect("JSON") + "\n";
        for one in inputs.iter().filter(|one| one.input != Input::Tick) {
            text += &(serde_json::to_string(one).expect("JSON") + "\n");
        }
        text
    }
}

/// A file of `found/`.
pub(crate) fn read(file: &str) -> (Expected, Vec<Received>) {
    let mut lines = file.lines();
    let expected = lines.next().and_then(|line| serde_json::from_str(line).ok());
    let expected: Expected = expected.expect("first what is true");
    let inputs = lines.map(|line| serde_json::from_str(line).expect("an input"));
    let inputs = sources::with_ticks(inputs.collect(), expected.complete);
    (expected, inputs)
}

impl fmt::Display for Example {
    /// What was wrong, and what happens; of the inputs neither ticks nor lists that say nothing new.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, text) in &self.judgement.wrong {
            writeln!(f, "{kind:?}: {text}")?;
        }
        writeln!(f, "{:#?}", self.plan)?;
        let mut lists = [String::new(), String::new()];
        for one in &history(&self.plan).1 {
            let list = match &one.input {
                Input::Tick => continue,
                Input::Cri(CriEvent::Sandboxes { sandboxes, .. }) => {
                    Some((0, format!("{sandboxes:?}")))
                }
                Input::Cri(CriEvent::Containers { containers, .. }) => {
                    Some((1, format!("{containers:?}")))
                }
                _ => None,
            };
            if let Some((which, list)) = list
                && std::mem::replace(&mut lists[which], list.clone()) == list
            {
                continue;
            }
            writeln!(f, "{:>9.3} s  {:?}", one.at.0 as f64 / 1e9, one.input)?;
        }
        Ok(())
    }
}
