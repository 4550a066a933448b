//! Numbers → figures.

use super::{leaked::Ticks, load::InputKind, measure::HeldMemory};
use crate::Figure;
use crate::figure::median;
use std::collections::BTreeMap;

const BENCH: &str = "engine";
/// The goals of `cargo xtask bench engine`.
const INPUTS_PER_SECOND: f64 = 2_000_000.0;
const GROWTH: f64 = 1.05;
/// Milliseconds that a tick takes on a node full of leaked sandboxes, and where all are of one pod.
const LEAKED_TICK: f64 = 5.0;
const LEAKED_OF_ONE_POD_TICK: f64 = 1.0;

#[derive(Debug)]
pub(super) struct EngineMeasurements {
    /// CPU seconds per input, of each round.
    pub(super) speed: Vec<f64>,
    /// The same without the pods that stay: what was recorded, and nothing else.
    pub(super) alone: Vec<f64>,
    /// The same of reading the inputs from JSON.
    pub(super) reading: Vec<f64>,
    /// Seconds per input of each kind.
    pub(super) by_kind: BTreeMap<InputKind, f64>,
    /// Inputs of each kind in a round.
    pub(super) mix: BTreeMap<InputKind, u64>,
    /// Allocations per input.
    pub(super) allocations: f64,
    /// Ticks of a node with 14,000 leaked sandboxes, and with 1,000 of one pod.
    pub(super) leaked: Ticks,
    pub(super) leaked_of_one_pod: Ticks,
    /// After few terminations and after many.
    pub(super) held: [HeldMemory; 2],
}

pub(super) fn figures(measured: &EngineMeasurements) -> Vec<Figure> {
    let per_second = |times: &[f64]| 1.0 / median(times.to_vec());
    let figure = |name: String, value, unit| Figure::of(BENCH, name, value, unit);
    let reading = "only parsing the same as JSON";
    let mut figures = vec![
        figure("inputs".into(), per_second(&measured.speed), "1/s")
            .at_least(INPUTS_PER_SECOND)
            .beside(reading, per_second(&measured.reading)),
        figure("inputs.recording_alone".into(), per_second(&measured.alone), "1/s"),
    ];
    let all: u64 = measured.mix.values().sum();
    for (kind, time) in &measured.by_kind {
        let inputs = measured.mix.get(kind).copied().unwrap_or_default();
        let share = inputs as f64 / all as f64 * 100.0;
        figures.push(figure(format!("{}.share", kind.name()), share, "% of inputs"));
        figures.push(figure(format!("{}.time", kind.name()), time * 1e9, "ns"));
    }
    figures.push(figure("allocations".into(), measured.allocations, "per input"));
    for (name, ticks, goal) in [
        ("leaked.tick", measured.leaked, LEAKED_TICK),
        ("leaked_of_one_pod.tick", measured.leaked_of_one_pod, LEAKED_OF_ONE_POD_TICK),
    ] {
        let ms = |seconds: f64| seconds * 1e3;
        let first = ("the first one", ms(ticks.first));
        figures.push(figure(name.into(), ms(ticks.median), "ms").beside(first.0, first.1));
        figures.push(figure(format!("{name}.p99"), ms(ticks.p99), "ms").at_most(goal));
    }
    let [few, many] = measured.held;
    let ratio = |value: fn(&HeldMemory) -> u64| value(&many) as f64 / value(&few) as f64;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let after = |held: &HeldMemory| format!("after {} terminations", held.terminations);
    figures.push(figure("heap".into(), kib(many.heap), "KiB").beside(after(&few), kib(few.heap)));
    figures.push(figure("heap.growth".into(), ratio(|held| held.heap), "×").at_most(GROWTH));
    figures.push(
        figure("rss".into(), kib(many.resident), "KiB").beside(after(&few), kib(few.resident)),
    );
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> EngineMeasurements {
        let held = |terminations, heap| HeldMemory { terminations, heap, resident: 2 * heap };
        EngineMeasurements {
            speed: vec![4e-7, 3e-7, 9e-3],
            alone: vec![1e-7],
            reading: vec![4e-6],
            by_kind: BTreeMap::from([(InputKind::Kernel, 2e-7), (InputKind::Tick, 5e-6)]),
            mix: BTreeMap::from([(InputKind::Kernel, 99), (InputKind::Tick, 1)]),
            allocations: 0.5,
            leaked: Ticks { first: 0.1, median: 1e-3, p99: 6e-3, found: 14_000 },
            leaked_of_one_pod: Ticks { first: 0.01, median: 1e-4, p99: 9e-4, found: 999 },
            held: [held(10_000, 1 << 20), held(1_000_000, (1 << 20) + (1 << 16))],
        }
    }

    #[test]
    fn goals_are_judged_by_rate_and_by_growth() {
        let figures = figures(&measured());
        let of = |name: &str| figures.iter().find(|f| f.figure == name).expect(name);
        let inputs = of("inputs");
        assert!((inputs.value - 2_500_000.0).abs() < 1.0);
        assert_eq!(inputs.ok, Some(true));
        let ratio = inputs.beside.as_ref().and_then(|beside| beside.ratio).expect("beside");
        assert!((ratio - 10.0).abs() < 1e-6);
        assert_eq!(of("kernel_record.share").value, 99.0);
        assert!((of("tick.time").value - 5_000.0).abs() < 1e-6);
        assert_eq!(of("heap.growth").ok, Some(false), "a sixteenth more");
        assert_eq!(of("leaked.tick.p99").ok, Some(false));
        assert_eq!(of("leaked_of_one_pod.tick.p99").ok, Some(true));
    }
}
