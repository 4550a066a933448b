//! What the agent takes of the machine at one moment, and what it counts as lost.

use anyhow::Context as _;
use coroner_core::input::LossKind;
use coroner_lab_harness::{agent::Http, monitor::AgentMonitor};
use std::{collections::BTreeMap, fs};

/// At one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Vitals {
    /// RssAnon of its process, bytes: what it has allocated and touched. File pages (the binary
    /// itself) come and go with the machine's memory.
    pub(super) memory: u64,
    /// Open descriptors.
    pub(super) fds: u64,
    pub(super) threads: u64,
    /// Series on /metrics.
    pub(super) series: u64,
    /// What it counts as lost, by kind.
    pub(super) lost: BTreeMap<String, u64>,
    /// Terminations of pods that it has told.
    pub(super) terminations: u64,
}

impl Vitals {
    /// Of the running agent.
    pub(super) async fn of_agent(agent: &AgentMonitor) -> anyhow::Result<Self> {
        let (pid, http) = agent.of_agent(|agent| (agent.pid(), agent.http())).await?;
        Self::of(&http, pid.context("the agent does not run")?).await
    }

    /// Of the agent that answers at `http` and is this process.
    async fn of(http: &Http, pid: u32) -> anyhow::Result<Self> {
        let (_, body) = http.page("/metrics").await?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .context("the agent's process cannot be looked at")?;
        let fds = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        let mut vitals = Self::parse(&String::from_utf8_lossy(&body), &status);
        vitals.fds = fds as u64;
        Ok(vitals)
    }

    fn parse(metrics: &str, status: &str) -> Self {
        let of_status = |key: &str| -> u64 {
            let value = status.lines().find_map(|line| line.strip_prefix(key));
            let number = value.and_then(|value| value.split_whitespace().next());
            number.and_then(|number| number.parse().ok()).unwrap_or_default()
        };
        let mut vitals = Self {
            memory: of_status("RssAnon:") << 10,
            threads: of_status("Threads:"),
            ..Default::default()
        };
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            vitals.series += 1;
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let value = value.parse::<f64>().unwrap_or_default() as u64;
            if name.starts_with("coroner_pod_terminations_total") {
                vitals.terminations += value;
            }
            if name.starts_with("coroner_evidence_lost_total")
                && value > 0
                && let Some(kind) = name.split('"').nth(1)
            {
                vitals.lost.insert(kind.to_owned(), value);
            }
        }
        vitals
    }

    /// All losses together.
    pub(super) fn losses(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Those that may have kept a death from being told.
    pub(super) fn losses_that_decide(&self) -> u64 {
        use LossKind::{CgroupMapFull, DecidingRingFull, EngineFull, ProgramSkipped, Undecodable};
        [DecidingRingFull, ProgramSkipped, CgroupMapFull, Undecodable, EngineFull]
            .iter()
            .filter_map(|kind| self.lost.get(kind.as_str()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stands_in_the_two_texts() {
        let metrics = "# HELP x\n# TYPE x counter\n\
                       coroner_evidence_lost_total{kind=\"detail_ring_full\"} 12\n\
                       coroner_evidence_lost_total{kind=\"undecodable\"} 0\n\
                       coroner_pod_terminations_total{cause=\"api_delete\"} 3\n\
                       coroner_pod_terminations_total{cause=\"completed\"} 1\n\
                       coroner_ready 1\n";
        let status = "Name:\tcoroner\nRssAnon:\t    1024 kB\nThreads:\t4\n";
        let vitals = Vitals::parse(metrics, status);
        assert_eq!((vitals.memory, vitals.threads, vitals.series), (1 << 20, 4, 5));
        assert_eq!(vitals.terminations, 4);
        assert_eq!(vitals.lost, BTreeMap::from([("detail_ring_full".to_owned(), 12)]));
        assert_eq!((vitals.losses(), vitals.losses_that_decide()), (12, 0));
        let metrics = metrics.replace("undecodable\"} 0", "deciding_ring_full\"} 3");
        let vitals = Vitals::parse(&metrics, status);
        assert_eq!((vitals.losses(), vitals.losses_that_decide()), (15, 3));
        assert_eq!(Vitals::parse("", ""), Vitals::default());
    }
}
