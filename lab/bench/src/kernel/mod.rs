//! `cargo xtask bench kernel`: what do the kernel programs cost whom they run in? Nanoseconds for
//! each event, by the kernel's own count, beside an empty program on the same hook and for the same
//! events. docs/performance.md says what each figure is.
//!
//! [`actor`] and [`stage`] act, [`crate::programs`] collects; [`case`] and [`report`] are
//! pure.

pub mod actor;
mod case;
mod empty;
mod report;
mod stage;
mod transitions;

use super::{
    programs::{self, Program, Statistics},
    publish,
};
use anyhow::{Context as _, bail};
use case::{CASES, CasePlace, KernelEvent};
use coroner_lab_cluster::port::Port;
use coroner_lab_harness::{
    agent::{Http, die_with_parent},
    console::Console,
    environment::{Environment, Setup, unless_interrupted},
};
use empty::Empty;
use report::{Costs, Three};
use stage::KernelScenes;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// Medians of as many are steady to some percent.
pub const ROUNDS: u32 = 9;

/// How long the agent may take until its programs are attached and proven.
const PATIENCE: Duration = Duration::from_secs(30);
/// What it says then.
const ATTACHED: &str = "kernel programs attached";

/// Runs the benchmark. True: no goal was missed. Whatever happens, nothing is left behind.
pub async fn run(setup: &Setup, rounds: u32) -> anyhow::Result<bool> {
    let environment = Environment::new(setup)?;
    let (console, log) = (environment.console, environment.log());
    // What is up goes when the future goes.
    let result = unless_interrupted(console, measure(setup, rounds, &log, console)).await;
    let (costs, programs) = environment.tear_down(result, false).await?;
    let mut figures = report::figures(&costs, &programs);
    console.step("counting connections");
    figures.extend(transitions::measure(&cgroup2()?, rounds)?);
    publish(console, setup.json, &figures)
}

async fn measure(
    setup: &Setup,
    rounds: u32,
    log: &Path,
    console: Console,
) -> anyhow::Result<(Costs, Vec<Program>)> {
    let root = cgroup2()?;
    let _statistics = Statistics::enable()?;
    let hooks = case::hooks();
    // The kernel runs the programs of a hook in the order in which they were attached.
    let first = Ours::attach(&hooks)?;
    console.step("starting the agent, on cgroup2, without a runtime and an apiserver");
    let agent = AgentProcess::start(&setup.agent, &root, log).await?;
    let last = Ours::attach(&hooks)?;
    let mut stage = KernelScenes::build(&root, &setup.program).await?;
    let look = || look(&first, &agent, &last);

    let acts = case::acts();
    let (mut costs, mut lives) = (Costs::new(), 0);
    for round in 0..=rounds {
        console.step(&match round {
            0 => "warming up".to_owned(),
            round => format!("round {round} of {rounds}"),
        });
        let mut before = look()?;
        next_budget().await;
        for (place, act) in &acts {
            stage.act(*place, *act, times(*act)).await?;
            let after = look()?;
            if (*place, *act) == (CasePlace::Inside, KernelEvent::Lives) {
                lives += times(*act);
            }
            let done = CASES
                .iter()
                .enumerate()
                .filter(|(_, case)| (case.place, case.act) == (*place, *act));
            for (index, case) in done {
                let Some((one, other)) = before.get(case.hook).zip(after.get(case.hook)) else {
                    bail!("no program on {}", case.hook);
                };
                let cost = report::cost(one, other, times(*act)).with_context(|| {
                    format!("not all of {} were counted on {}", times(*act), case.hook)
                })?;
                if round > 0 {
                    costs.entry(index).or_default().push(cost);
                }
            }
            before = after;
        }
    }
    agent.has_heard_of(lives).await?;
    let programs = programs::by_hook(programs::of_process(agent.pid()?)?);
    Ok((costs, programs.into_values().collect()))
}

/// How often something is done in a round: often enough for the clock, and no more records at once
/// than the rings hold.
fn times(act: KernelEvent) -> u32 {
    match act {
        KernelEvent::Exits => 1000,
        KernelEvent::Chatter => 20_000,
        KernelEvent::Kill | KernelEvent::Term | KernelEvent::HandledBeyond => 4000,
        // With a pause after each.
        KernelEvent::TermPaced => 50,
        // One record when it is sent and one when it is delivered: less than half of the budget.
        KernelEvent::Handled => 100,
        KernelEvent::Lives => 50,
    }
}

/// Waits for the beginning of the stretch of time for which each container has a budget.
async fn next_budget() {
    let window = 1 << coroner_ebpf::WINDOW_SHIFT;
    let left = window - coroner::linux::clock::boot_now().0 % window;
    tokio::time::sleep(Duration::from_nanos(left)).await;
}

/// Empty programs, and which they are.
struct Ours {
    _empty: Empty,
    ids: BTreeSet<u32>,
}

impl Ours {
    fn attach(hooks: &[&str]) -> anyhow::Result<Self> {
        let own = std::process::id();
        let before = programs::of_process(own)?.iter().map(|program| program.id).collect();
        let empty = Empty::attach(hooks)?;
        let new = programs::newer_of_process(own, &before)?;
        Ok(Self { _empty: empty, ids: new.iter().map(|program| program.id).collect() })
    }
}

/// What the kernel says of the programs of each hook now.
fn look(
    first: &Ours,
    agent: &AgentProcess,
    last: &Ours,
) -> anyhow::Result<BTreeMap<String, Three>> {
    let ours = programs::of_process(std::process::id())?;
    let of = |ids: &BTreeSet<u32>, hook: &str| {
        ours.iter().find(|program| ids.contains(&program.id) && program.hook == hook).cloned()
    };
    let three = |program: Program| {
        let (one, other) = (of(&first.ids, &program.hook)?, of(&last.ids, &program.hook)?);
        Some((program.hook.clone(), [one, program, other]))
    };
    let agents = programs::by_hook(programs::of_process(agent.pid()?)?);
    Ok(agents.into_values().filter_map(three).collect())
}

/// The agent's process. Dropped, it is killed.
pub(super) struct AgentProcess {
    child: Child,
    http: Http,
    _port: Port,
}

impl AgentProcess {
    /// Starts one without a runtime and an apiserver, whose programs are attached and proven.
    pub(super) async fn start(binary: &Path, root: &Path, log: &Path) -> anyhow::Result<Self> {
        let port = Port::reserve()?;
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(binary);
        command
            .args(["run", "--no-api", "--runtime-endpoint", "/nowhere/cri.sock", "--node", "bench"])
            .args(["--listen", "127.0.0.1:0", "--socket", "off"])
            .args(["--api-listen", &port.address().to_string()])
            .arg("--cgroup-root")
            .arg(root)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let mut child = command.spawn().with_context(|| {
            format!(
                "cannot start the agent {}: build it (cargo xtask build) or name it with --agent",
                binary.display()
            )
        })?;
        let began = Instant::now();
        loop {
            let said = fs::read_to_string(log).unwrap_or_default();
            if said.contains(ATTACHED) {
                return Ok(Self { child, http: Http::new(port.address()), _port: port });
            }
            match child.try_wait()? {
                Some(status) => bail!("the agent ended at once ({status}):\n{said}"),
                None if began.elapsed() > PATIENCE => {
                    bail!("the agent has not attached its programs after {PATIENCE:?}:\n{said}")
                }
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the agent has died")
    }

    /// What happened inside was inside for the agent too: at least so many exits came to it.
    async fn has_heard_of(&self, exits: u32) -> anyhow::Result<()> {
        // What comes soon after another is read within 100 ms.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (_, page) = self.http.page("/metrics").await?;
        let page = String::from_utf8_lossy(&page);
        let told = page.lines().find_map(|line| {
            line.strip_prefix(r#"coroner_kernel_records_total{kind="exit"}"#)?.trim().parse().ok()
        });
        match told {
            Some(told) if f64::from(exits) <= told => Ok(()),
            told => bail!("{exits} main processes ended, and the agent has heard of {told:?}"),
        }
    }
}

/// Where cgroup2 is mounted.
pub(super) fn cgroup2() -> anyhow::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let point = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == "cgroup2").then(|| point.into())
    });
    point.context("cgroup2 is not mounted here: mount -t cgroup2 none /sys/fs/cgroup/unified")
}
