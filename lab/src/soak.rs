//! `cargo xtask soak`: repeats the catalogue for a time with one agent, and prints the slopes of what it takes of the
//! machine and of what it loses.

use crate::{
    console::Outcome,
    monitor::AgentMonitor,
    run::{Session, Setup, in_lab},
    scenarios,
};
use anyhow::{Context as _, Result};
use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

/// This share of the time warms up and does not count.
const WARM_UP: f64 = 0.25;

/// One measurement: seconds since the beginning, then values.
struct Sample {
    at: f64,
    /// Anonymous memory, MiB: file pages (the binary itself) come and go with the machine's memory.
    memory: f64,
    fds: f64,
    lost: f64,
}

/// True: all scenarios of all rounds agreed.
pub async fn run(setup: &Setup, long: Duration) -> Result<bool> {
    in_lab(setup, async |lab, console| {
        let mut all = scenarios::catalogue();
        // One agent all the time; and each round of a static pod has the same UID, which is a hash of its manifest.
        all.retain(|one| !one.needs_own_agent() && !one.before_agent && !one.is_static());
        let mut session = Session::new(setup, lab, console);
        let all = session.playable(&all);
        let began = Instant::now();
        let (mut samples, mut is_ok) = (Vec::new(), true);
        while samples.is_empty() || began.elapsed() < long {
            let outcomes = match samples.is_empty() {
                true => session.play_first(&all, None).await?,
                false => session.play(&all, BTreeMap::new()).await?,
            };
            is_ok &= outcomes.iter().all(Outcome::is_ok) && session.unexpected_leaks().is_empty();
            let sample = measure(session.agent.as_ref().context("no agent")?, began).await?;
            console.print(&format!(
                "\nround {}: {:.0} s, {} of {} right, {:.1} MiB, {} descriptors, {} records lost\n",
                samples.len() + 1,
                sample.at,
                outcomes.iter().filter(|one| one.is_ok()).count(),
                outcomes.len(),
                sample.memory,
                sample.fds,
                sample.lost,
            ));
            samples.push(sample);
        }
        let print = |what: &str, of: fn(&Sample) -> f64| {
            let slope = slope(&samples, of).map(|slope| format!("{:+.2} an hour", slope * 3600.0));
            console.print(&format!("{what}: {}\n", slope.as_deref().unwrap_or("too few rounds")));
        };
        print("MiB", |sample| sample.memory);
        print("descriptors", |sample| sample.fds);
        print("records lost", |sample| sample.lost);
        session.stop().await;
        Ok(is_ok)
    })
    .await
}

async fn measure(agent: &AgentMonitor, began: Instant) -> Result<Sample> {
    let (memory, fds) = agent
        .of_agent(|agent| {
            let fds = agent.pid().and_then(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
            (agent.status("RssAnon:"), fds.map_or(0, Iterator::count))
        })
        .await?;
    let http = agent.http().context("the agent does not run")?;
    Ok(Sample {
        at: began.elapsed().as_secs_f64(),
        memory: memory.unwrap_or_default() as f64 / 1024.0,
        fds: fds as f64,
        lost: http.metric("coroner_evidence_lost_total", "").await?,
    })
}

/// The median of the slopes between all pairs of samples after the warm-up (Theil and Sen), per second.
fn slope(samples: &[Sample], of: fn(&Sample) -> f64) -> Option<f64> {
    let warm = samples.last()?.at * WARM_UP;
    let after: Vec<&Sample> = samples.iter().filter(|sample| sample.at >= warm).collect();
    let pairs = after.iter().enumerate().flat_map(|(index, one)| {
        after[index + 1..].iter().map(|other| (of(other) - of(one)) / (other.at - one.at))
    });
    let mut slopes: Vec<f64> = pairs.collect();
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied()
}
