//! `cargo xtask soak`: the same rounds with random faults, for hours, of one agent that is never
//! started anew: what it takes of the machine must not grow.

use super::{
    ChaosOptions, ChaosTargets,
    fault::{FAULTS, Fault},
    in_environment,
    judge::mib,
    plan::{Length, Plan},
    round::{self, Round, RoundOutcome},
    slope::{FEWEST, Point, Trend, trend},
};
use coroner_lab_harness::console::Console;
use std::time::{Duration, Instant};

/// This share of the time warms up and does not count.
pub const WARM_UP: f64 = 0.25;
/// What the slope of RssAnon may make over the time that counts, bytes: what an allocator's
/// fragments move up and down by.
pub const MAY_GROW: f64 = (2 << 20) as f64;
/// The same of descriptors.
pub const MAY_OPEN: f64 = 2.0;

/// The faults that the same agent lives through. One that is started anew would hide what it had
/// gathered.
pub fn faults() -> Vec<&'static Fault> {
    FAULTS.iter().filter(|fault| !fault.deed.replaces_agent()).collect()
}

/// Runs for so long. True: flat, and nobody complained. Whatever happens, nothing is left behind.
pub async fn run(options: &ChaosOptions, long: Duration) -> anyhow::Result<bool> {
    let options = &ChaosOptions {
        faults: faults(),
        length: Length::For(long),
        goals: true,
        ..options.clone()
    };
    in_environment(options, async |stage, console| soak(stage, options, long, console).await).await
}

async fn soak(
    stage: &ChaosTargets<'_>,
    options: &ChaosOptions,
    long: Duration,
    console: Console,
) -> anyhow::Result<bool> {
    let began = Instant::now();
    let mut round = Round::of_a_soak(stage, options);
    let mut plan = Plan::random(options.faults.clone(), options.seed);
    let mut outcomes: Vec<RoundOutcome> = Vec::new();
    let mut samples = Samples::default();
    console.print(HEAD);
    while began.elapsed() < long {
        let Some(fault) = plan.next() else { break };
        let outcome = round.play(fault).await?;
        samples.take(began.elapsed().as_secs_f64(), &outcome);
        console.print(&line(began.elapsed(), &outcome));
        super::object(options.setup.json, &outcome);
        outcomes.push(outcome);
    }
    let verdict = samples.verdict();
    console.print(&format!(
        "\n{}\n{}\n",
        round::summary(&outcomes, options.seed),
        verdict.sentence
    ));
    Ok(verdict.flat && outcomes.iter().all(|outcome| outcome.judgement.is_good()))
}

const HEAD: &str = "\
   time  fault                  RssAnon   fds  threads  series    lost  terminations  wrong  false leaks\n";

fn line(at: Duration, outcome: &RoundOutcome) -> String {
    let seconds = at.as_secs();
    let vitals = &outcome.after;
    let mut text = format!(
        "{:>2}:{:02}:{:02}  {:<20} {:>9} {:>5} {:>8} {:>7} {:>7} {:>13} {:>6} {:>12}\n",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        outcome.fault,
        mib(vitals.memory),
        vitals.fds,
        vitals.threads,
        vitals.series,
        vitals.losses(),
        vitals.terminations,
        outcome.judgement.wrong,
        outcome.judgement.false_leaks,
    );
    for complaint in outcome.judgement.complaints.iter().take(round::MOST_LINES) {
        text.push_str(&format!("    ✘ {complaint}\n"));
    }
    text
}

/// What was measured at rest, after each round.
#[derive(Debug, Default)]
struct Samples {
    memory: Vec<Point>,
    fds: Vec<Point>,
}

/// Flat or not, and why.
#[derive(Debug)]
struct Verdict {
    flat: bool,
    sentence: String,
}

impl Samples {
    fn take(&mut self, at: f64, outcome: &RoundOutcome) {
        self.memory.push(Point { at, value: outcome.after.memory as f64 });
        self.fds.push(Point { at, value: outcome.after.fds as f64 });
    }

    fn verdict(&self) -> Verdict {
        let (Some(memory), Some(fds)) = (trend(&self.memory, WARM_UP), trend(&self.fds, WARM_UP))
        else {
            let sentence = format!(
                "too short: {} rounds after the warm-up tell no trend, give it more time with --for",
                FEWEST
            );
            return Verdict { flat: false, sentence };
        };
        let flat = memory.growth <= MAY_GROW && fds.growth <= MAY_OPEN;
        let told = |trend: Trend, unit: f64| (trend.growth / unit, trend.per_hour / unit);
        let (grown, per_hour) = told(memory, f64::from(1 << 20));
        let (opened, opened_per_hour) = told(fds, 1.0);
        let sentence = format!(
            "{}: RssAnon {grown:+.2} MiB over what counts ({per_hour:+.2} MiB/h, at most {:+.0} MiB), \
             descriptors {opened:+.1} ({opened_per_hour:+.1}/h, at most {MAY_OPEN:+.0})",
            if flat { "flat" } else { "NOT FLAT" },
            MAY_GROW / f64::from(1 << 20),
        );
        Verdict { flat, sentence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(f64) -> f64, fds: impl Fn(f64) -> f64) -> Samples {
        let at = |n: u32| f64::from(n) * 30.0;
        let points = |of: &dyn Fn(f64) -> f64| {
            (0..40).map(|n| Point { at: at(n), value: of(at(n)) }).collect()
        };
        Samples { memory: points(&memory), fds: points(&fds) }
    }

    #[test]
    fn what_warms_up_and_then_stays_is_flat() {
        let warm = |at: f64| 8e6 + 4e6 * (at / 200.0).min(1.0);
        let verdict = samples(warm, |_| 30.0).verdict();
        assert!(verdict.flat, "{}", verdict.sentence);
        assert!(verdict.sentence.starts_with("flat"), "{}", verdict.sentence);
    }

    #[test]
    fn what_grows_is_not() {
        let leaks = samples(|at| 8e6 + 4096.0 * at, |_| 30.0).verdict();
        assert!(!leaks.flat && leaks.sentence.starts_with("NOT FLAT"), "{}", leaks.sentence);
        let opens = samples(|_| 8e6, |at| 30.0 + at / 100.0).verdict();
        assert!(!opens.flat, "{}", opens.sentence);
        assert!(!Samples::default().verdict().flat, "nothing was measured");
    }

    #[test]
    fn no_fault_of_the_soak_starts_the_agent_anew() {
        let names: Vec<_> = faults().iter().map(|fault| fault.name).collect();
        assert!(names.contains(&"runtime-killed") && names.contains(&"watch-stalled"), "{names:?}");
        assert!(!names.contains(&"agent-killed") && !names.contains(&"ring-shrunk"), "{names:?}");
    }
}
