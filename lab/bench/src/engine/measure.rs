//! The measurements: each takes the load and gives numbers.

use super::load::{InputKind, Load};
use crate::heap::Count;
use anyhow::Context as _;
use coroner_core::{engine::Engine, input::Received, output::Report};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

/// Rounds before anything is measured: by then as much is forgotten as is learned.
pub const WARM_UP: u32 = 60;
/// Inputs that are made before the clock runs: few, for in the agent an adapter has only just made
/// an input when the engine takes it, and its memory is at hand.
const BATCH: usize = 64;

/// Has the engine take all of these. Returns how much it said.
///
/// Never inlined: what profilers attribute to this function is the engine's.
#[inline(never)]
pub fn take(engine: &mut Engine, inputs: &mut Vec<Received>) -> usize {
    inputs.drain(..).map(|received| engine.step(received).reports.len()).sum()
}

/// An engine that has heard so many rounds.
pub fn warm(load: &Load, rounds: u32) -> Engine {
    let mut engine = Engine::new(load.settings());
    // Not by `take`: this is not measured.
    let inputs = (1..=rounds).flat_map(|number| load.round(number));
    for received in load.beginning().into_iter().chain(inputs) {
        engine.step(received);
    }
    engine
}

/// The CPU time of this thread.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The CPU time that each of some rounds took, per input, in seconds.
pub(super) fn speed(load: &Load, rounds: u32) -> Vec<f64> {
    let mut engine = warm(load, WARM_UP);
    let mut times = Vec::new();
    for number in WARM_UP + 1..=WARM_UP + rounds {
        let count = load.round(number).len();
        let mut time = Duration::ZERO;
        batches(load, number, |inputs| {
            let began = cpu_time();
            take(&mut engine, inputs);
            time += cpu_time() - began;
        });
        times.push(time.as_secs_f64() / count as f64);
    }
    times
}

/// Makes a round's inputs, a few at a time.
pub fn batches(load: &Load, number: u32, mut each: impl FnMut(&mut Vec<Received>)) {
    let mut inputs = load.round(number);
    let mut batch = Vec::with_capacity(BATCH);
    while inputs.len() > 0 {
        batch.extend(inputs.by_ref().take(BATCH));
        each(&mut batch);
        batch.clear();
    }
}

/// The same, of reading the same inputs from a recording's lines and doing nothing with them.
pub(super) fn reading(load: &Load, rounds: u32) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 1..=rounds {
        let lines: Vec<String> = load
            .round(number)
            .map(|received| serde_json::to_string(&received))
            .collect::<Result<_, _>>()?;
        let began = cpu_time();
        for line in &lines {
            let read: Received = serde_json::from_str(line)?;
            std::hint::black_box(&read);
        }
        times.push((cpu_time() - began).as_secs_f64() / lines.len() as f64);
    }
    Ok(times)
}

/// What one input costs, by its kind, in seconds: the median of some rounds, the clock's own cost
/// left out.
pub(super) fn by_kind(load: &Load, rounds: u32) -> BTreeMap<InputKind, f64> {
    let mut engine = warm(load, WARM_UP);
    let mut means: BTreeMap<InputKind, Vec<f64>> = BTreeMap::new();
    for number in WARM_UP + 1..=WARM_UP + rounds {
        let mut sums: BTreeMap<InputKind, (f64, f64)> = BTreeMap::new();
        for received in load.round(number) {
            let kind = InputKind::of(&received.input);
            let before = Instant::now();
            let began = Instant::now();
            let out = engine.step(received);
            drop(out);
            let took = began.elapsed().saturating_sub(began.duration_since(before));
            let (sum, count) = sums.entry(kind).or_default();
            *sum += took.as_secs_f64();
            *count += 1.0;
        }
        for (kind, (sum, count)) in sums {
            means.entry(kind).or_default().push(sum / count);
        }
    }
    means.into_iter().map(|(kind, means)| (kind, crate::figure::median(means))).collect()
}

/// Allocations per input.
pub(super) fn allocations(load: &Load, rounds: u32) -> f64 {
    let mut engine = warm(load, WARM_UP);
    let (mut allocations, mut count) = (0, 0);
    for number in WARM_UP + 1..=WARM_UP + rounds {
        count += load.round(number).len();
        batches(load, number, |inputs| {
            let counting = Count::start();
            take(&mut engine, inputs);
            allocations += counting.allocations();
        });
    }
    allocations as f64 / count as f64
}

/// What the engine holds after so many terminations.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct HeldMemory {
    /// Terminations that it told of.
    pub(super) terminations: u64,
    /// Bytes on the heap that are the engine's.
    pub(super) heap: u64,
    /// The whole process, in bytes.
    pub(super) resident: u64,
}

/// What the engine holds after `first` terminations, and after `last`.
pub(super) fn memory(load: &Load, first: u64, last: u64) -> anyhow::Result<[HeldMemory; 2]> {
    let counting = Count::start();
    let mut engine = Engine::new(load.settings());
    take(&mut engine, &mut load.beginning());
    let mut terminations = 0;
    let mut held = Vec::new();
    for number in 1.. {
        for received in load.round(number) {
            let out = engine.step(received);
            let ended = out.reports.iter().filter(|o| matches!(o, Report::PodTerminated(_)));
            terminations += ended.count() as u64;
        }
        let due = if held.is_empty() { first } else { last };
        if terminations >= due {
            let heap = u64::try_from(counting.live()).unwrap_or_default();
            held.push(HeldMemory { terminations, heap, resident: resident()? });
            if let [first, last] = held[..] {
                return Ok([first, last]);
            }
        }
    }
    anyhow::bail!("the rounds are over after {terminations} terminations")
}

/// The resident memory of this process, in bytes.
fn resident() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm").context("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("statm has no second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
