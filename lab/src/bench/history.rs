//! How far the history reaches, and the agent's memory with a full one.

use crate::bench::{lab::BenchLab, node::fill, process, table::shown};
use anyhow::Context as _;
use coroner::store::history::{Filter, History, HistoryOptions, Kind};
use coroner_report::{Anchor, ContainerDeath, PodTermination};
use std::{path::Path, time::Duration};

/// The default of `--history-size`.
const MIB: u64 = 64;
/// A node that is fuller than most.
const PODS: usize = 250;
const DEATHS_PER_DAY: f64 = 2400.0;

/// Fills a history with copies of these reports, and starts an agent on it.
pub(super) async fn measure(
    lab: &BenchLab<'_>,
    (terminations, deaths): (Vec<PodTermination>, Vec<ContainerDeath>),
    files: &Path,
    brief: bool,
) -> anyhow::Result<String> {
    let (mib, pods) = if brief { (4, 30) } else { (MIB, PODS) };
    lab.step(&format!("filling a history of {mib} MiB"));
    let state = files.join("full");
    let (directory, bytes) = (Some(state.clone()), mib << 20);
    let (history, _) =
        History::open(HistoryOptions { directory, bytes, ..HistoryOptions::default() })?;
    let mut known = 0;
    for copy in 0.. {
        for (number, report) in terminations.iter().enumerate() {
            let mut report = report.clone();
            report.pod.uid = format!("{copy:08}-0000-4000-8000-{number:012}").as_str().into();
            history.terminated(Box::new(report), true);
        }
        for death in &deaths {
            let id = format!("{copy:08}{}", death.id.as_str().get(8..).unwrap_or_default());
            history
                .died(Box::new(ContainerDeath { id: id.as_str().into(), ..death.clone() }), true);
        }
        history.flush().await;
        let all = history.select(Kind::Death, Filter::default(), Anchor::default());
        let all = all.await.map_err(anyhow::Error::msg)?.ids.len();
        if all <= known {
            break; // the oldest made room
        }
        known = all;
    }
    history.end().await;
    let days = known as f64 * (MIB as f64 / mib as f64) / DEATHS_PER_DAY;

    fill(lab, pods).await?;
    let flags = [format!("--state-dir={}", state.display()), format!("--history-size={mib}MiB")];
    let agent = lab.agent(None, &flags).await?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let idle = process::memory(agent.pid()?)?[0];
    let all = agent.page("/api/v1/deaths?limit=1000000").await?;
    let items: serde_json::Value = serde_json::from_str(&all)?;
    let read = items["items"].as_array().context("no list")?.len();
    let after = process::memory(agent.pid()?)?[0];
    agent.stop().await;
    let shown = |bytes: u64| shown(bytes as f64 / (1 << 20) as f64);
    Ok(format!(
        "{MIB} MiB reach back {days:.1} days at 100 deaths an hour; with {pods} pods and a history of {mib} MiB the agent has {} MiB, \
         after an answer of {read} deaths {} MiB\n",
        shown(idle),
        shown(after),
    ))
}
