//! `cargo xtask test`: the layers, from the cheapest, and what they came to.

mod binaries;
mod lint;
mod tally;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

pub(crate) use self::{
    binaries::{Run, TestBinary, compile},
    tally::Tally,
};
use crate::{
    build,
    cli::Layer,
    fuzz, image,
    progress::{capture, elapsed, note},
    setup::{self, Need},
    toolchain::cargo,
    vm::{self, Guest},
    workspace::Workspace,
};

/// What one layer came to.
#[derive(Debug)]
struct Outcome {
    layer: Layer,
    tally: Tally,
    took: Duration,
    /// Why it failed, unless it is the failed tests that say so.
    trouble: Option<String>,
}

impl Outcome {
    fn ok(&self) -> bool {
        self.trouble.is_none() && self.tally.failed == 0
    }
}

/// Runs `layers` (all, if none is named) and prints the closing table; whether all passed.
///
/// # Errors
/// When something is missing that no layer can run without.
pub(crate) fn run(
    workspace: &Workspace,
    layers: &[Layer],
    guests: &[Guest],
    list_only: bool,
) -> Result<bool> {
    let mut layers = if layers.is_empty() { Layer::ALL.to_vec() } else { layers.to_vec() };
    layers.sort();
    layers.dedup();
    setup::ensure(workspace, &needs(&layers), list_only)?;

    // The agent embeds the kernel programs; even clippy wants them there.
    build::kernel_programs(workspace)?;
    let mut tests = None;
    let mut outcomes = Vec::new();
    for layer in layers.iter().copied() {
        let begun = Instant::now();
        let result = if layer == Layer::Lint {
            lint::all(workspace).map(|()| Tally::default())
        } else if layer == Layer::Fuzz {
            fuzz::run(workspace, &fuzz::Order::in_tests(), list_only)
        } else {
            let tests: &Vec<TestBinary> = match &mut tests {
                Some(tests) => tests,
                none => {
                    build::workload(workspace)?;
                    none.insert(compile(workspace, &layers)?)
                }
            };
            let run = || run_layer(workspace, layer, tests, guests);
            let makes_image = layer == Layer::Lab && layers.contains(&Layer::Deploy);
            if makes_image { beside_the_image(workspace, run) } else { run() }
        };
        let (tally, trouble) = match result {
            Ok(tally) if layer != Layer::Lint && tally == Tally::default() => {
                (tally, Some("no test ran: it proves nothing".to_owned()))
            }
            Ok(tally) => (tally, None),
            Err(error) => (Tally::default(), Some(format!("{error:#}"))),
        };
        if let Some(trouble) = &trouble {
            note(&format!("\n{}: {trouble}\n", layer.name()));
        }
        outcomes.push(Outcome { layer, tally, took: begun.elapsed(), trouble });
    }
    println!("{}", summary(&outcomes));
    Ok(outcomes.iter().all(Outcome::ok))
}

/// Does `what`, which waits more than it computes (pods take their grace periods to die), while the image
/// that a later layer tests is made with what it leaves of the CPUs.
fn beside_the_image(workspace: &Workspace, what: impl FnOnce() -> Result<Tally>) -> Result<Tally> {
    thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread, and so of the compilers that it starts. That it is refused costs time only.
            let _ = rustix::process::nice(19);
            // Its own layer makes it again, which then takes seconds, and reports what is wrong.
            let _ = image::make(workspace, &image::default_file(workspace));
        });
        what()
    })
}

fn needs(layers: &[Layer]) -> Vec<Need> {
    let mut needs = setup::BUILD.to_vec();
    for (layer, more) in [
        (Layer::Lint, setup::LINT),
        (Layer::Lab, setup::LAB),
        (Layer::Lab, setup::VERSIONS),
        (Layer::Deploy, setup::LAB),
        (Layer::Deploy, setup::DEPLOY),
        (Layer::Fuzz, setup::FUZZ),
        (Layer::Vm, setup::VM),
    ] {
        if layers.contains(&layer) {
            needs.extend(more);
        }
    }
    needs
}

fn run_layer(
    workspace: &Workspace,
    layer: Layer,
    tests: &[TestBinary],
    guests: &[Guest],
) -> Result<Tally> {
    if layer == Layer::Deploy {
        image::make(workspace, &image::default_file(workspace))?;
    }
    if layer == Layer::Vm {
        return vm::run(workspace, guests, programs(tests)?);
    }
    let mut tally = Tally::default();
    for test in tests.iter().filter(|test| test.layer() == layer) {
        tally.add(report(test.run(workspace)?));
    }
    if layer == Layer::Unit {
        let mut command = cargo("test");
        command.current_dir(workspace.root()).env("PATH", workspace.path()).args([
            "--workspace",
            "--locked",
            "--doc",
        ]);
        let output = capture("documentation's examples", &mut command)?;
        tally.add(report(Run::of(output.success, output.text)));
    }
    Ok(tally)
}

/// The test binary that loads and proves the kernel programs.
///
/// # Errors
/// When there is none.
pub(crate) fn programs(tests: &[TestBinary]) -> Result<&TestBinary> {
    match tests.iter().find(|test| test.layer() == Layer::Programs) {
        Some(test) => Ok(test),
        None => bail!("agent/tests/programs.rs is not there"),
    }
}

/// Shows what a failed run said.
pub(crate) fn report(run: Run) -> Tally {
    if run.tally.failed > 0 {
        note(run.text.trim_end());
    }
    run.tally
}

fn summary(outcomes: &[Outcome]) -> String {
    let mut lines =
        vec![String::new(), format!("{:<10}{:>8}{:>8}  time", "layer", "passed", "failed")];
    let mut total = Tally::default();
    for outcome in outcomes {
        total.add(outcome.tally);
        if outcome.trouble.is_some() {
            // A layer that could not run is a failure, too.
            total.failed += 1;
        }
        let verdict = match &outcome.trouble {
            None if outcome.ok() => "✔".to_owned(),
            None => "✘".to_owned(),
            Some(trouble) => format!("✘ {}", trouble.lines().next().unwrap_or_default()),
        };
        lines.push(format!(
            "{:<10}{:>8}{:>8}  {:<12}{verdict}",
            outcome.layer.name(),
            outcome.tally.passed,
            outcome.tally.failed,
            elapsed(outcome.took)
        ));
    }
    lines.push(String::new());
    lines.push(format!("{} passed, {} failed", total.passed, total.failed));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(layer: Layer, passed: u64, failed: u64, trouble: Option<&str>) -> Outcome {
        Outcome {
            layer,
            tally: Tally { passed, failed },
            took: Duration::from_secs(1),
            trouble: trouble.map(str::to_owned),
        }
    }

    #[test]
    fn the_last_line_counts_tests_and_layers_that_could_not_run() {
        let text = summary(&[
            outcome(Layer::Unit, 7, 1, None),
            outcome(Layer::Vm, 0, 0, Some("no QEMU\ndetails")),
        ]);
        assert_eq!(text.lines().last(), Some("7 passed, 2 failed"));
        assert!(text.contains("✘ no QEMU") && !text.contains("details"), "{text}");
    }

    #[test]
    fn a_layer_brings_only_its_own_needs() {
        assert!(!needs(&[Layer::Unit]).contains(&Need::Qemu));
        assert!(needs(&[Layer::Vm]).contains(&Need::Qemu));
        assert!(!needs(&[Layer::Lab]).contains(&Need::Release(&setup::KUBECTL)));
        assert!(needs(&[Layer::Deploy]).contains(&Need::Release(&setup::KUBECTL)));
    }
}
