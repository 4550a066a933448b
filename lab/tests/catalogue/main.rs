//! The whole catalogue, played for real: private containerd and runc, the real agent with its
//! kernel programs, real deaths. Each scenario on each version of containerd is a test of its own:
//! `containerd-1.7/sigterm-ignored`. Needs root, and what `cargo xtask build` makes.

#[path = "../shared/binaries.rs"]
mod binaries;
mod run;
mod usage;

use coroner_lab_cluster::containerd;
use coroner_lab_scenarios::{Scenario, catalogue};
use libtest_mimic::Arguments;
use run::{LabRun, Late};
use std::{
    collections::BTreeSet,
    env,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, Scope},
};

/// The versions that coroner is tested with: `cargo xtask setup` brings them.
const VERSIONS: [&str; 3] = ["1.6", "1.7", "2"];
/// How many labs play at once, unless [`AT_ONCE`] says otherwise.
const LABS: usize = 3;
/// The same where most of them wait for late answers.
const LATE_LABS: usize = 6;
/// Another number, in the environment.
const AT_ONCE: &str = "CORONER_LAB_AT_ONCE";
/// In the environment: also what the gate has no time for. `cargo xtask test --long` sets it.
const LONG: &str = "CORONER_TEST_LONG";
/// How late the answers of the agent's sources are.
const DELAYS: [&str; 3] = ["3s", "9s", "30s"];
/// How many scenarios a lab plays whose runtime answers late: the agent has one call of each kind under way,
/// so that each container that dies at the same time is one delay more.
const WITH_LATE_RUNTIME: usize = 11;
/// The seeded connections of the gate.
const IN_GATE_MIXES: [&str; 2] = ["mix-01", "mix-07"];
/// The only delay of the gate.
const IN_GATE: (Late, &str) = (Late::Apiserver, "9s");

/// What is played on all versions: what is left behind is the runtime's doing, and one of each kind of
/// the rest.
fn is_about_the_runtime(scenario: &Scenario) -> bool {
    let named = [
        "handles-sigterm",
        "sigterm-ignored",
        "oom-killed",
        "runtime-killed",
        "exits-with-requests",
        "prestop-covers-clients",
    ];
    scenario.group == "leaks" || named.contains(&scenario.name)
}

/// What is played on nodes that are made in another way, as far as it can be played at once: one scenario that needs
/// the node for itself takes as long as all of these.
fn is_about_the_node(scenario: &Scenario) -> bool {
    is_about_the_runtime(scenario)
        && (!scenario.alone || ["orphan-shim", "runtime-killed"].contains(&scenario.name))
}

/// What ends clients' connections, of which the gate has no time for all.
fn is_about_traffic(scenario: &Scenario) -> bool {
    scenario.group == "traffic"
}

fn is_in_gate(scenario: &Scenario) -> bool {
    let is_more_of_the_same = scenario.alone
        || scenario.name.starts_with("mix-") && !IN_GATE_MIXES.contains(&scenario.name);
    !is_about_traffic(scenario) || !is_more_of_the_same
}

/// On cgroup v1 the container of a connection is not known; the rest is the same.
fn is_in_gate_on_v1(scenario: &Scenario) -> bool {
    ["exits-with-requests", "prestop-covers-clients", "sidecar-proxy"].contains(&scenario.name)
}

/// What is played with sources whose answers come late: verdicts and causes must be the same.
fn is_about_a_death(scenario: &Scenario) -> bool {
    ["deaths", "causes"].contains(&scenario.group) && !scenario.alone
}

/// Sources that fail while their answers are late. An agent that starts late is ready only after the pod's
/// end, and so has nothing to report.
fn is_about_a_fault(scenario: &Scenario) -> bool {
    scenario.group == "faults" && scenario.around_agent().0.is_none()
}

/// All of it on the machine's own version, what is about the runtime on the others, what ends connections also on
/// cgroup v1, deaths behind sources that are late, and what only some nodes can play on one of those.
fn runs() -> anyhow::Result<Vec<Arc<LabRun>>> {
    let own = containerd::version(&containerd::ContainerdOptions::new("", "").containerd)?;
    let is_own = |version: &&str| own.starts_with(&format!("{version}."));
    let name = VERSIONS.iter().find(|version| is_own(version)).map_or(own.as_str(), |one| one);
    let (all, long) = (catalogue(), is_long());
    let in_this = all.iter().filter(|one| long || is_in_gate(one));
    let (special, all): (Vec<_>, Vec<_>) = in_this.partition(|one| one.is_special());
    let is_for_others =
        |one: &&Scenario| is_about_the_runtime(one) || long && is_about_traffic(one);
    let about_runtime: Vec<_> = all.iter().copied().filter(is_for_others).collect();
    let is_for_v1 = |one: &&Scenario| is_in_gate_on_v1(one) || long && is_about_traffic(one);
    let on_v1 = LabRun::new(name, None, all.iter().copied().filter(is_for_v1)).on_v1();
    anyhow::ensure!(about_runtime.len() >= 4, "{about_runtime:?}");
    let is_on_another_node = |one: &&Scenario| is_about_the_node(one) || long;
    let on_another_node = || all.iter().copied().filter(is_on_another_node);
    let on_crun = LabRun::new(name, None, on_another_node()).on_crun();
    let nested = LabRun::new(name, None, on_another_node()).nested();
    let of_systemd = special.iter().copied().filter(|one| one.needs_systemd());
    let on_systemd = LabRun::new("2", Some("2"), on_another_node().chain(of_systemd)).on_systemd();
    let others = VERSIONS.iter().filter(|version| !is_own(version));
    let others = others.map(|other| {
        let more = special.iter().copied().filter(|one| can_have_users(one, other));
        LabRun::new(other, Some(other), about_runtime.iter().copied().chain(more))
    });
    let is_played_late = |one: &&Scenario| is_about_a_death(one) || long && is_about_a_fault(one);
    let delays = DELAYS.iter().flat_map(|by| Late::ALL.map(|which| (which, *by)));
    let played_late: Vec<&Scenario> = all.iter().copied().filter(is_played_late).collect();
    let late = delays.filter(|delay| long || *delay == IN_GATE).flat_map(|(which, by)| {
        let run = |scenarios: &[&Scenario], part| {
            LabRun::new(name, None, scenarios.iter().copied()).late(which, by, part)
        };
        if which == Late::Apiserver {
            return vec![run(&played_late, None)];
        }
        let parts = played_late.chunks(WITH_LATE_RUNTIME).enumerate();
        parts.map(|(number, scenarios)| run(scenarios, Some(number + 1))).collect()
    });
    let of_own = special.iter().copied().filter(|one| can_have_users(one, name));
    let runs: Vec<_> = std::iter::once(LabRun::new(name, None, all.iter().copied().chain(of_own)))
        .chain(others)
        .chain([on_v1, on_crun, nested, on_systemd])
        .chain(late)
        .map(Arc::new)
        .collect();
    let is_missed = |one: &&&Scenario| !runs.iter().any(|run| run.plays(one.name));
    let missed: Vec<_> = special.iter().filter(is_missed).map(|one| one.name).collect();
    anyhow::ensure!(missed.is_empty(), "no run plays {missed:?}");
    Ok(runs)
}

fn can_have_users(scenario: &Scenario, version: &str) -> bool {
    scenario.needs_user_namespace() && containerd::has_user_namespaces(version)
}

fn is_long() -> bool {
    env::var_os(LONG).is_some()
}

fn labs_at_once() -> anyhow::Result<usize> {
    let Some(wanted) = env::var_os(AT_ONCE) else {
        return Ok(if is_long() { LATE_LABS } else { LABS });
    };
    let number = wanted.to_str().and_then(|wanted| wanted.parse().ok()).filter(|labs| *labs > 0);
    number.ok_or_else(|| anyhow::anyhow!("{AT_ONCE} is {wanted:?}, not a number of labs"))
}

/// Plays the runs that tests want, in the background: the tests wait for what they need of them.
fn play<'s>(
    scope: &'s Scope<'s, '_>,
    runs: Vec<(Arc<LabRun>, BTreeSet<String>)>,
    labs: usize,
    aloud: bool,
) {
    let ahead = Arc::new(Mutex::new(runs.into_iter()));
    for _ in 0..labs {
        let ahead = Arc::clone(&ahead);
        scope.spawn(move || {
            let next = || ahead.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((run, wanted)) = next() {
                run.play(&wanted, aloud);
            }
        });
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::from_args();
    let labs = labs_at_once()?;
    let (mut trials, mut wanted) = (usage::trials(), Vec::new());
    for run in runs()? {
        let of_run = run.trials();
        let chosen = of_run.iter().filter(|trial| !arguments.is_filtered_out(trial));
        let names: BTreeSet<String> = chosen.map(|trial| trial.name().to_owned()).collect();
        if !names.is_empty() {
            wanted.push((run, names));
        }
        trials.extend(of_run);
    }
    // The labs are taken down before it ends.
    Ok(thread::scope(|scope| {
        if !arguments.list && !wanted.is_empty() {
            binaries::demand_root();
            // Fails here if a binary is missing: in the background, the tests would wait for ever.
            binaries::flags(std::path::Path::new(""));
            play(scope, wanted, labs, arguments.nocapture);
        }
        libtest_mimic::run(&arguments, trials).exit_code()
    }))
}
