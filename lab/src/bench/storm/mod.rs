//! `cargo xtask bench storm`: CPU and losses in the same storm of signals and exits without a tool, with coroner, and with
//! `sigsnoop` and `exitsnoop` of libbpf-tools.

mod snoops;

use crate::bench::{
    cgroup::Cgroups,
    lab::{BenchLab, MeasuredAgent},
    load::{Done, Load, LoadEvent, Order, Work},
    process, programs,
    programs::Statistics,
    table::{shown, table},
};
use coroner::linux::clock::boot_now;
use snoops::{Events, Snoops};
use std::time::Duration;

/// Containers with a process that takes part.
const CONTAINERS: usize = 10;
/// Processes outside containers that take part.
const OUTSIDE: usize = 2;
/// From the order to the beginning: all have read theirs by then.
const NOTICE: Duration = Duration::from_millis(300);
/// From the end until a tool has reported everything: coroner has read its rings, the others have emptied their buffers.
const SETTLE: Duration = Duration::from_secs(2);
/// Records of each container whose only process executes a program and exits: the cgroup is made, exec, exit, the cgroup is
/// empty, the cgroup is removed.
const RECORDS_OF_CONTAINER: u64 = 5;
/// Losses that the kernel programs count, as `coroner_evidence_lost_total` names them.
const LOSSES: [&str; 3] = ["deciding_ring_full", "detail_ring_full", "budget_spent"];

/// What was done in one run of the load, what it cost a tool, and what coroner reported.
struct StormRun {
    events: Events,
    /// How many records coroner's programs have to make of it, or to count as lost.
    expected: u64,
    /// How many they made, and how many of each of [`LOSSES`] they counted.
    found: [u64; 4],
    lasting: Duration,
    programs: Duration,
    processes: Duration,
}

pub(crate) async fn measure(lab: &BenchLab<'_>, brief: bool) -> anyhow::Result<String> {
    let lasting = Duration::from_secs(if brief { 2 } else { 30 });
    let _counted = programs::count_runs()?;
    lab.step("the load, without a tool");
    let alone = run_load(lasting, &[], None).await?;

    let agent = lab.agent(None, &[]).await?;
    lab.step("the load, with coroner");
    let coroner = run_load(lasting, &[agent.pid()?], Some(&agent)).await?;
    agent.stop().await;
    let [records, deciding, detail, budget] = coroner.found;
    let lost = coroner.expected.saturating_sub(coroner.found.iter().sum());

    let tools = Snoops::start().await?;
    lab.step("the load, with sigsnoop and exitsnoop");
    let snoops = run_load(lasting, &tools.pids(), None).await?;
    let printed = tools.stop().await?;
    let unprinted = snoops.events.signals.saturating_sub(printed.signals)
        + snoops.events.exits.saturating_sub(printed.exits);

    let rows = [
        ("no tool", &alone, "–".to_owned()),
        ("coroner", &coroner, lost.to_string()),
        ("sigsnoop and exitsnoop", &snoops, unprinted.to_string()),
    ];
    let rows = rows.map(|(name, run, lost)| row(name, run, lost)).into();
    let header = [
        "",
        "CPU, % of a core",
        "in programs",
        "in processes",
        "µs per event",
        "signals/s",
        "exits/s",
        "lost without a count",
    ];
    Ok(format!(
        "{}\ncoroner reported {records} records of containers' events. It counted as lost: {budget} beyond the budget of \
         their container, {deciding} deciding ones and {detail} others for which a ring had no room.\n",
        table(&header, rows)
    ))
}

fn row(name: &str, run: &StormRun, lost: String) -> Vec<String> {
    let seconds = run.lasting.as_secs_f64();
    let share = |time: Duration| shown(100.0 * time.as_secs_f64() / seconds);
    let rate = |count: u64| format!("{:.0}", count as f64 / seconds);
    let (all, events) = (run.programs + run.processes, run.events);
    let each = all.as_secs_f64() * 1e6 / (events.signals + events.exits).max(1) as f64;
    vec![
        name.into(),
        share(all),
        share(run.programs),
        share(run.processes),
        shown(each),
        rate(events.signals),
        rate(events.exits),
        lost,
    ]
}

/// The load: 200,000 signals and 5,000 exits per second outside containers. In containers 19,000 signals that a process
/// sends itself, 1,000 SIGTERMs from outside, 1,950 exits of children, and 50 containers that come and go. `pids`: the
/// tool's processes, which are `agent`'s if it is coroner.
async fn run_load(
    lasting: Duration,
    pids: &[u32],
    agent: Option<&MeasuredAgent>,
) -> anyhow::Result<StormRun> {
    let cgroups = Cgroups::make()?;
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for number in 0..CONTAINERS {
        inside.push(Load::start(&cgroups.container(number)?).await?);
    }
    for _ in 0..OUTSIDE {
        outside.push(Load::start(&cgroups.service()).await?);
    }
    let mut runtime = Load::start(&cgroups.service()).await?;
    let stopped = inside.iter().map(Load::pid).collect::<anyhow::Result<Vec<_>>>()?;
    // After a SIGTERM from outside, all exits of a container are reported.
    runtime
        .work(Work {
            event: LoadEvent::Send(libc::SIGTERM, stopped.clone()),
            times: 10,
            every: Duration::ZERO,
        })
        .await?;
    tokio::time::sleep(SETTLE).await;

    let mut of_tool = Vec::new();
    for pid in pids {
        of_tool.extend(programs::of_process(*pid)?.into_keys());
    }
    let used = || pids.iter().map(|pid| process::cpu(*pid)).sum::<anyhow::Result<Duration>>();
    let found = records_and_losses(agent).await?;
    let (programs_then, processes_then) = (Statistics::read(), used()?);
    let from = boot_now().0 + u64::try_from(NOTICE.as_nanos())?;
    let order = |works: &[Work]| Order { from, lasting, works: works.to_vec() };
    let signals = |rate: f64, among: usize| {
        Work::per_second(LoadEvent::Raise(libc::SIGHUP), rate / among as f64)
    };
    let exits = |rate: f64, among: usize| Work::per_second(LoadEvent::Exit, rate / among as f64);
    for load in &mut inside {
        load.order(&order(&[signals(19e3, CONTAINERS), exits(1950.0, CONTAINERS)])).await?;
    }
    for load in &mut outside {
        load.order(&order(&[signals(200e3, OUTSIDE), exits(5e3, OUTSIDE)])).await?;
    }
    let stops = Work::per_second(LoadEvent::Send(libc::SIGTERM, stopped), 1000.0);
    let containers = Work::per_second(LoadEvent::Container(cgroups.pod()), 50.0);
    runtime.order(&order(&[stops, containers])).await?;

    let (inside, outside) = (all_done(&mut inside).await?, all_done(&mut outside).await?);
    let runtime = runtime.done().await?;

    let (stops, containers) = (runtime.times[0], runtime.times[1]);
    tokio::time::sleep(SETTLE).await;
    let (programs_now, processes_now) = (Statistics::read(), used()?);
    let found_now = records_and_losses(agent).await?;
    Ok(StormRun {
        events: Events {
            signals: inside.times[0] + outside.times[0] + stops,
            exits: inside.times[1] + outside.times[1],
        },
        expected: inside.times[0]
            + inside.caught
            + inside.times[1]
            + stops
            + RECORDS_OF_CONTAINER * containers,
        found: std::array::from_fn(|n| found_now[n] - found[n]),
        lasting,
        programs: programs_now.since(&programs_then, &of_tool).time,
        processes: processes_now.saturating_sub(processes_then),
    })
}

/// The sum of what these have done, each of its two works.
async fn all_done(loads: &mut [Load]) -> anyhow::Result<Done> {
    let mut all = Done { times: vec![0, 0], caught: 0 };
    for load in loads {
        let done = load.done().await?;
        all.times.iter_mut().zip(done.times).for_each(|(all, one)| *all += one);
        all.caught += done.caught;
    }
    Ok(all)
}

/// Records that the programs sent, and [`LOSSES`].
async fn records_and_losses(agent: Option<&MeasuredAgent>) -> anyhow::Result<[u64; 4]> {
    let mut counts = [0; 4];
    let Some(agent) = agent else { return Ok(counts) };
    counts[0] = agent.metric("coroner_kernel_records_total", "").await?;
    for (count, kind) in counts[1..].iter_mut().zip(LOSSES) {
        *count = agent.metric("coroner_evidence_lost_total", &format!("kind=\"{kind}\"")).await?;
    }
    Ok(counts)
}
