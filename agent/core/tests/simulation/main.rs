//! An oracle for deaths: random histories of a pod, told by sources that are late, hang, break or begin
//! in the middle. What the engine says is held against the truth, which the generator knows.

mod judge;
mod plan;
#[path = "../random/mod.rs"]
mod random;
mod sources;
mod truth;

use coroner_core::input::{CriEvent, Input};
use judge::{Floor, Judgement, judge};
use plan::{FAULTS, Plan};
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::TestRunner,
};

/// Histories of each fault.
const CASES: u32 = 1_500;

/// What came of the histories of one fault.
struct Outcome {
    floor: Floor,
    histories: u32,
    wrong: u32,
    /// The simplest form of the first that went wrong.
    example: Option<(Plan, Judgement)>,
}

fn simulate(fault: &str) -> Outcome {
    let config = random::cases(CASES);
    let histories = config.cases;
    let mut runner = TestRunner::new(config);
    let mut outcome = Outcome { floor: Floor::default(), histories, wrong: 0, example: None };
    for _ in 0..histories {
        let mut tree = plan::plan(fault).new_tree(&mut runner).expect("a plan");
        let judgement = play(&tree.current());
        outcome.floor.add(&judgement);
        if judgement.wrong.is_empty() {
            continue;
        }
        outcome.wrong += 1;
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
        outcome.example = Some(simplest);
    }
    outcome
}

fn play(plan: &Plan) -> Judgement {
    let truth = truth::Truth::of(plan);
    let (inputs, complete) = sources::inputs(plan, &truth);
    judge(&truth, &inputs, complete)
}

/// The inputs but ticks and lists that say nothing new, to make a test of.
fn listing(plan: &Plan) -> String {
    let truth = truth::Truth::of(plan);
    let (inputs, _) = sources::inputs(plan, &truth);
    let (mut text, mut lists) = (String::new(), [String::new(), String::new()]);
    for one in &inputs {
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
        text.push_str(&format!("{:>9.3} s  {:?}\n", one.at.0 as f64 / 1e9, one.input));
    }
    text
}

/// What must be known at least: FAULT, percent of verdicts, percent of causes.
const FLOORS: &str = include_str!("floors.txt");

fn floor_of(fault: &str) -> (f64, f64) {
    let lines = FLOORS.lines().filter(|line| !line.starts_with('#'));
    let mut rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&fault)).expect("each fault has its floor");
    let number = |column: usize| row[column].parse().expect("a number");
    (number(1), number(2))
}

#[test]
fn nothing_contradicts_the_truth_and_enough_is_known() {
    let mut wrong = Vec::new();
    for fault in FAULTS {
        let outcome = simulate(fault);
        println!(
            "{fault:<16}{:>5} of {} wrong, {}",
            outcome.wrong, outcome.histories, outcome.floor
        );
        let (known, least) = (outcome.floor.known(), floor_of(fault));
        if known.0 < least.0 || known.1 < least.1 {
            wrong.push(format!("{fault}: known {known:.2?} %, and the floor is {least:?}"));
        }
        if let Some((plan, judgement)) = outcome.example {
            let why = judgement.wrong.join("\n");
            wrong.push(format!("{fault}:\n{why}\n{plan:#?}\n{}", listing(&plan)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
