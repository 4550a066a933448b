//! `cargo xtask bench kernel`: ns that the agent's programs add to each event, for the processes that cause it, beside an
//! empty program on the same hook and for the same events.
//!
//! The kernel runs the programs of a hook in the order in which they were attached: an empty one, the agent's, another
//! empty one. The first bears what it costs to be the first, so that the other two are comparable.

mod connections;
mod empty;

use crate::bench::{
    cgroup::{self, Cgroups},
    load::{self, Load, LoadEvent, Work},
    programs::{self, Statistics},
    table::{percentile, shown, table},
};
use anyhow::Context as _;
use coroner::{
    linux::clock::boot_now,
    sources::kernel::{self, Kernel, KernelOptions},
};
use coroner_core::input::{Input, KernelEvent, KernelFact, Received};
use coroner_ebpf::{WINDOW_SHIFT, maps::SIGNAL_WAKE_PAUSE};
use empty::Empty;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{process::Child, sync::mpsc, task::JoinHandle};

/// The result is the median of as many rounds.
const ROUNDS: usize = 9;
/// So long after a record that woke it, the reader has read everything and sleeps, and the next record wakes it again.
const PAUSE: Duration = Duration::from_nanos(SIGNAL_WAKE_PAUSE / 4 * 5);

#[derive(Clone, Copy)]
enum CaseEvent {
    Exit,
    Raise(i32),
    Term,
    Container,
}

/// Events of one kind and at one place, and the hooks that they run.
struct Case {
    title: &'static str,
    is_inside: bool,
    event: CaseEvent,
    times: u64,
    every: Duration,
    hooks: &'static [&'static str],
}

const fn case(
    title: &'static str,
    is_inside: bool,
    event: CaseEvent,
    times: u64,
    hooks: &'static [&'static str],
) -> Case {
    Case { title, is_inside, event, times, every: Duration::ZERO, hooks }
}

const EXIT: &str = "sched_process_exit";
const EXEC: &str = "sched_process_exec";
const SEND: &str = "signal_generate";
const TAKE: &str = "signal_deliver";
const HANDLED: CaseEvent = CaseEvent::Raise(libc::SIGTERM);
const MASKED: CaseEvent = CaseEvent::Raise(libc::SIGURG);
const OF_SIGNAL: &[&str] = &[SEND, TAKE];
const OF_CGROUP: &[&str] = &["cgroup_mkdir", EXEC, EXIT, "cgroup_notify_populated", "cgroup_rmdir"];
const HOOKS: [&str; 7] =
    [EXIT, EXEC, SEND, TAKE, "cgroup_mkdir", "cgroup_notify_populated", "cgroup_rmdir"];

/// In this order in each round: first the signals that must be within the container's budget of records, last those
/// that exceed it. As often as the clock needs, and with fewer records than the rings hold.
const CASES: [Case; 12] = [
    case("a handled SIGTERM, reported", true, HANDLED, 100, OF_SIGNAL),
    case("a handled SIGTERM", false, HANDLED, 100, OF_SIGNAL),
    case("a masked signal (SIGURG)", false, MASKED, 20_000, OF_SIGNAL),
    case("a masked signal (SIGURG)", true, MASKED, 20_000, OF_SIGNAL),
    case("an ignored SIGTERM", false, CaseEvent::Term, 4000, &[SEND]),
    case("an ignored SIGTERM, the reader is awake", true, CaseEvent::Term, 4000, &[SEND]),
    Case {
        every: PAUSE,
        ..case("an ignored SIGTERM, the reader is woken", true, CaseEvent::Term, 50, &[SEND])
    },
    case("a child exits", false, CaseEvent::Exit, 1000, &[EXIT]),
    case("a child exits", true, CaseEvent::Exit, 1000, &[EXIT]),
    case("a cgroup, a process in it", false, CaseEvent::Container, 50, OF_CGROUP),
    case("a container", true, CaseEvent::Container, 50, OF_CGROUP),
    case("a handled SIGTERM, beyond the budget", true, HANDLED, 4000, OF_SIGNAL),
];

pub(crate) async fn measure(brief: bool) -> anyhow::Result<String> {
    let rounds = if brief { 1 } else { ROUNDS };
    let root = cgroup::mount_point()?;
    let cgroups = Cgroups::make()?;
    let _counted = programs::count_runs()?;
    let own = std::process::id();

    let asking = asking(&cgroups, rounds).await?;
    let _first = Empty::attach(&HOOKS)?;
    let before = programs::of_process(own)?;
    let options = KernelOptions { cgroup_root: Some(root), ..KernelOptions::default() };
    let mut kernel = kernel::start(&options)?;
    let mut programs = programs::of_process(own)?;
    programs.retain(|id, _| !before.contains_key(id));
    let last = Empty::attach(&HOOKS)?;
    let counting = kernel.take_counting().context("no programs that count connections")?;
    let agent = Reader::start(kernel);
    let mut sources = EventSources::start(&cgroups).await?;

    // Of each case and hook: ns of the agent's programs and of the empty one, round after round.
    let mut costs = CASES.map(|case| vec![[const { Vec::new() }; 2]; case.hooks.len()]);
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}{}", if round == 0 { ", to warm up" } else { "" });
        next_budget().await;
        for (case, costs) in CASES.iter().zip(&mut costs) {
            let then = Statistics::read();
            sources.make(case, &cgroups).await?;
            let now = Statistics::read();
            for (hook, cost) in case.hooks.iter().zip(costs) {
                let on_hook = programs.iter().filter(|(_, on)| on.as_deref() == Some(hook));
                let ours = now.since(&then, on_hook.map(|(id, _)| id));
                let empty = now.since(&then, &[last.on(hook)?]);
                for (cost, runs) in cost.iter_mut().zip([ours, empty]) {
                    let (missed, title) = (runs.count < case.times, case.title);
                    anyhow::ensure!(!missed, "{hook} ran {} times during: {title}", runs.count);
                    if round > 0 {
                        cost.push(runs.time.as_nanos() as f64 / runs.count as f64);
                    }
                }
            }
        }
    }
    agent.has_seen(50 * (rounds as u64 + 1)).await?;
    drop((agent, sources));

    let mut rows = vec![asking];
    for (case, costs) in CASES.iter().zip(costs) {
        for (hook, [ours, empty]) in case.hooks.iter().zip(costs) {
            let (ours, empty) = (percentile(&ours, 50), percentile(&empty, 50));
            let place = if case.is_inside { "container" } else { "elsewhere" };
            rows.push(vec![
                case.title.into(),
                place.into(),
                (*hook).into(),
                shown(ours - empty),
                shown(empty),
            ]);
        }
    }
    rows.extend(connections::measure(counting, rounds)?);
    let header = ["event", "where", "hook", "coroner adds, ns", "an empty program, ns"];
    Ok(table(&header, rows))
}

/// A row: what any program costs at an exit that asks for the process' cgroup, which the agent's must.
async fn asking(cgroups: &Cgroups, rounds: usize) -> anyhow::Result<Vec<String>> {
    let _first = Empty::attach(&[EXIT])?;
    let all = [Empty::asking(&[EXIT])?, Empty::attach(&[EXIT])?];
    let mut load = Load::start(&cgroups.service()).await?;
    load::pin(Some(load.pid()?)).context("cannot keep a process on one CPU")?;
    let mut costs = [const { Vec::new() }; 2];
    for round in 0..=rounds {
        let then = Statistics::read();
        load.work(Work { event: LoadEvent::Exit, times: 1000, every: Duration::ZERO }).await?;
        let now = Statistics::read();
        for (cost, program) in costs.iter_mut().zip(&all).filter(|_| round > 0) {
            let runs = now.since(&then, &[program.on(EXIT)?]);
            cost.push(runs.time.as_nanos() as f64 / runs.count as f64);
        }
    }
    let [asks, empty] = costs.map(|all| percentile(&all, 50));
    let title = "a child exits, only the cgroup's ID is read";
    Ok(vec![title.into(), "elsewhere".into(), EXIT.into(), shown(asks - empty), shown(empty)])
}

/// Waits until containers have a new budget of records.
async fn next_budget() {
    let window = 1 << WINDOW_SHIFT;
    tokio::time::sleep(Duration::from_nanos(window - boot_now().0 % window)).await;
}

/// Reads the rings, as in the agent, and drops what it reads.
struct Reader {
    exits: Arc<AtomicU64>,
    _commands: mpsc::Sender<kernel::KernelCommand>,
    tasks: [JoinHandle<()>; 2],
}

impl Reader {
    fn start(kernel: Kernel) -> Self {
        let exits = Arc::<AtomicU64>::default();
        let (to, mut from) = mpsc::channel(1024);
        let (commands, received) = mpsc::channel(1);
        let reading = tokio::spawn(async move {
            if let Err(error) = kernel.run(to, received).await {
                eprintln!("the reader failed: {error:#}");
            }
        });
        let counted = Arc::clone(&exits);
        let dropping = tokio::spawn(async move {
            while let Some(Received { input, .. }) = from.recv().await {
                if matches!(input, Input::Kernel(KernelEvent { fact: KernelFact::Exit { .. }, .. }))
                {
                    counted.fetch_add(1, Relaxed);
                }
            }
        });
        Self { exits, _commands: commands, tasks: [reading, dropping] }
    }

    /// The events in containers were of containers for the programs, too: they reported each main process's exit.
    async fn has_seen(&self, exits: u64) -> anyhow::Result<()> {
        // A record that does not wake the reader is read within 100 ms.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let seen = self.exits.load(Relaxed);
        anyhow::ensure!(
            seen >= exits,
            "{exits} main processes exited, the programs reported {seen}"
        );
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Who makes the events: one process outside, one in a container, and in each place one that ignores SIGTERM. That of the
/// container is in a container of its own, because after a SIGTERM from outside all exits of a container are reported.
struct EventSources {
    outside: Load,
    inside: Load,
    ignorers: [Child; 2],
}

impl EventSources {
    async fn start(cgroups: &Cgroups) -> anyhow::Result<Self> {
        let sources = Self {
            outside: Load::start(&cgroups.service()).await?,
            inside: Load::start(&cgroups.container(1)?).await?,
            ignorers: [load::ignorer(&cgroups.service())?, load::ignorer(&cgroups.container(2)?)?],
        };
        for load in [&sources.outside, &sources.inside] {
            load::pin(Some(load.pid()?)).context("cannot keep a process on one CPU")?;
        }
        Ok(sources)
    }

    async fn make(&mut self, case: &Case, cgroups: &Cgroups) -> anyhow::Result<()> {
        let ignorer = self.ignorers[usize::from(case.is_inside)].id();
        let event = match case.event {
            CaseEvent::Exit => LoadEvent::Exit,
            CaseEvent::Raise(signal) => LoadEvent::Raise(signal),
            CaseEvent::Term => {
                LoadEvent::Send(libc::SIGTERM, vec![ignorer.context("a process exited")?])
            }
            // Names of the same length, so that both are as long to parse.
            CaseEvent::Container if case.is_inside => LoadEvent::Container(cgroups.pod()),
            CaseEvent::Container => LoadEvent::Container(cgroups.elsewhere()),
        };
        let is_actor_outside =
            !case.is_inside || matches!(case.event, CaseEvent::Term | CaseEvent::Container);
        let actor = if is_actor_outside { &mut self.outside } else { &mut self.inside };
        actor.work(Work { event, times: case.times, every: case.every }).await
    }
}
