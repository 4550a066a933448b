//! Run times and run counts → figures. Pure.

use super::case::{CASES, Case};
use crate::{Figure, programs::Program};
use std::collections::BTreeMap;

/// The benchmark's name in its figures.
pub(super) const BENCH: &str = "kernel";

/// What is compared with.
const EMPTY: &str = "an empty program";

/// One hook during one act: how long its programs took for an event, ns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct EventCost {
    /// The agent's program.
    pub(super) program: f64,
    /// An empty one, behind it.
    pub(super) empty: f64,
}

impl EventCost {
    /// What the program costs beyond being run and timed.
    fn net(self) -> f64 {
        self.program - self.empty
    }
}

/// The three programs of one hook: an empty one, the agent's, and another empty one, in the order in
/// which the kernel runs them. The first takes upon itself what it costs to be the first (to bring
/// the kernel's own code and clock into the caches): the other two do not pay for that.
pub(super) type Three = [Program; 3];

/// What the programs of a hook cost between two looks at them; `None`: they ran less often than
/// that.
pub(super) fn cost(before: &Three, after: &Three, at_least: u32) -> Option<EventCost> {
    let mean = |index: usize| {
        let (before, after) = (&before[index], &after[index]);
        let runs = after.runs.checked_sub(before.runs).filter(|runs| *runs >= at_least.into())?;
        let time = after.run_time.checked_sub(before.run_time)?;
        (runs > 0).then(|| time as f64 / runs as f64)
    };
    Some(EventCost { program: mean(1)?, empty: mean(2)? })
}

/// The costs of each row of [`CASES`], round after round.
pub(super) type Costs = BTreeMap<usize, Vec<EventCost>>;

/// For each row the medians of its rounds, and of each program its sizes.
pub(super) fn figures(costs: &Costs, programs: &[Program]) -> Vec<Figure> {
    let rows =
        CASES.iter().enumerate().filter_map(|(index, case)| Some((case, costs.get(&index)?)));
    let mut figures: Vec<_> = rows.clone().map(|(case, costs)| net(case, costs)).collect();
    figures.extend(rows.map(|(case, costs)| gross(case, costs)));
    figures.extend(sizes(programs));
    figures
}

fn net(case: &Case, costs: &[EventCost]) -> Figure {
    let figure = Figure::of(BENCH, name(case, "net"), median_of(costs, EventCost::net), "ns");
    match case.goal {
        Some(goal) => figure.at_most(goal),
        None => figure,
    }
}

fn gross(case: &Case, costs: &[EventCost]) -> Figure {
    let empty = median_of(costs, |cost| cost.empty);
    Figure::of(BENCH, name(case, "with_empty"), median_of(costs, |cost| cost.program), "ns")
        .beside(EMPTY, empty)
}

fn name(case: &Case, what: &str) -> String {
    format!("{}.{}.{what}", case.place.name(), case.name)
}

fn sizes(programs: &[Program]) -> Vec<Figure> {
    let all = |size: fn(&Program) -> u32| programs.iter().map(size).map(f64::from);
    let sum = |size| all(size).sum();
    vec![
        Figure::of(BENCH, "programs", programs.len() as f64, ""),
        Figure::of(BENCH, "programs.translated", sum(|p| p.translated.unwrap_or(0)), "bytes"),
        Figure::of(BENCH, "programs.machine_code", sum(|p| p.machine_code), "bytes"),
        Figure::of(
            BENCH,
            "programs.verified_most",
            all(|p| p.verified.unwrap_or(0)).fold(0.0, f64::max),
            "instructions",
        ),
    ]
}

fn median_of(costs: &[EventCost], of: impl Fn(EventCost) -> f64) -> f64 {
    median(&costs.iter().copied().map(of).collect::<Vec<_>>())
}

/// The middle of some values.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(runs: u64, run_time: u64) -> Program {
        Program {
            id: 7,
            hook: "sched_process_exit".into(),
            run_time,
            runs,
            verified: Some(500),
            translated: Some(800),
            machine_code: 600,
        }
    }

    #[test]
    fn a_cost_is_that_of_the_runs_in_between() {
        let before = [program(10, 900), program(10, 5_000), program(10, 900)];
        let after = [program(110, 9_900), program(110, 20_000), program(110, 5_900)];
        assert_eq!(cost(&before, &after, 100), Some(EventCost { program: 150.0, empty: 50.0 }));
        assert_eq!(cost(&before, &after, 101), None, "it has not run as often as it should have");
        assert_eq!(cost(&before, &before, 0), None, "nothing ran");
        assert_eq!(cost(&after, &before, 0), None, "not the same programs");
    }

    #[test]
    fn a_figure_is_the_median_of_its_rounds_and_only_what_is_net_has_a_goal() {
        let rounds = [100.0, 900.0, 119.0].map(|program| EventCost { program, empty: 60.0 });
        let costs = Costs::from([(0, rounds.into())]);
        let programs = [program(1, 1), Program { verified: Some(900), ..program(1, 1) }];
        let figures = figures(&costs, &programs);
        assert_eq!(figures[0], Figure::of(BENCH, "outside.exit.net", 59.0, "ns").at_most(160.0));
        let gross = Figure::of(BENCH, "outside.exit.with_empty", 119.0, "ns").beside(EMPTY, 60.0);
        assert_eq!(figures[1], gross);
        let sizes: Vec<_> = figures[2..].iter().map(|figure| figure.value).collect();
        assert_eq!(sizes, [2.0, 1600.0, 1200.0, 900.0]);
        assert_eq!(median_of(&rounds[..2], EventCost::net), 440.0);
    }
}
