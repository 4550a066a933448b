//! What was measured → figures. Pure.

use crate::Figure;
use coroner_lab_cluster::apiserver::ApiTraffic;
use std::time::Duration;

const BENCH: &str = "node";
/// What stands beside: see `relist`.
const RELIST: &str = "relist every 1 s";
const MIB: f64 = (1 << 20) as f64;

/// The memory of a process, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Weight {
    /// VmRSS.
    pub(super) resident: u64,
    /// RssAnon: without the pages of its binary.
    pub(super) anonymous: u64,
    /// VmHWM: the most that VmRSS ever was.
    pub(super) peak: u64,
}

/// What a process has used since it began, or between two moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Usage {
    pub(super) cpu: Duration,
    /// Voluntary context switches: how often it had nothing to do any more.
    pub(super) switches: u64,
}

impl Usage {
    /// Since an earlier moment. The switches of threads that ended meanwhile are gone.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// The same stretch of time for the agent and for what stands beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Window {
    pub(super) long: Duration,
    pub(super) agent: Usage,
    pub(super) relist: Usage,
    /// The agent's calls of the CRI.
    pub(super) calls: u64,
    /// The agent's requests to the apiserver.
    pub(super) api: ApiTraffic,
}

/// What the agent was told until everything was known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Start {
    /// By the apiserver.
    pub(super) api: ApiTraffic,
    /// Bytes of the runtime's two full lists.
    pub(super) lists: usize,
}

/// The agent's page of metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Page {
    pub(super) series: usize,
    pub(super) bytes: usize,
    /// How long each of the scrapes took.
    pub(super) took: Vec<Duration>,
}

/// All that one run measures.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeMeasurements {
    pub(super) start: Start,
    /// After the start, when everything was known.
    pub(super) settled: Weight,
    /// At the end, after the terminations.
    pub(super) churned: Weight,
    pub(super) relist: Weight,
    pub(super) idle: Window,
    /// While the kubelet's log grew by [`super::busy_log::RATE`] lines a second.
    pub(super) logged: Window,
    pub(super) churn: Window,
    /// After the terminations: more has been seen, there are more series.
    pub(super) page: Page,
    /// Pods whose termination began while it was measured.
    pub(super) begun: u64,
    /// Pods that were terminated in all, and terminations that the agent counted.
    pub(super) terminated: u64,
    pub(super) counted: u64,
}

/// The figures, those of which something is asked first.
pub(super) fn figures(measured: &NodeMeasurements) -> Vec<Figure> {
    let mib = |name: &str, bytes: u64| Figure::of(BENCH, name, bytes as f64 / MIB, "MiB");
    let NodeMeasurements { start, settled, churned, relist, idle, logged, churn, page, .. } =
        measured;
    let beside = |figure: Figure| figure.beside(RELIST, relist.resident as f64 / MIB);
    let mut figures = vec![
        beside(mib("rss.settled", settled.resident)).at_most(24.0),
        beside(mib("rss.after_churn", churned.resident)).at_most(24.0),
        cpu("idle.cpu", idle).at_most(0.2),
        log_reader(idle, logged).at_most(0.5),
        Figure::of(BENCH, "scrape.series", page.series as f64, "").at_most(500.0),
    ];
    for (name, percent) in [("scrape.p50", 50), ("scrape.p99", 99)] {
        if let Some(took) = percentile(&page.took, percent) {
            figures.push(Figure::of(BENCH, name, took.as_secs_f64() * 1e3, "ms").at_most(5.0));
        }
    }
    let each = |bytes: u64| bytes as f64 / 1024.0 / measured.terminated.max(1) as f64;
    let missed = measured.terminated.abs_diff(measured.counted);
    figures.extend([
        Figure::of(BENCH, "churn.miscounted", missed as f64, "terminations").at_most(0.0),
        cpu("churn.cpu", churn),
        Figure::of(BENCH, "churn.rate", rate(measured.begun, churn.long), "terminations/s"),
        Figure::of(BENCH, "churn.cri_calls", rate(churn.calls, churn.long), "1/s"),
        Figure::of(BENCH, "idle.cri_calls", rate(idle.calls, idle.long), "1/s"),
        Figure::of(BENCH, "idle.switches", rate(idle.agent.switches, idle.long), "1/s"),
        Figure::of(BENCH, "scrape.size", page.bytes as f64 / 1024.0, "KiB"),
        Figure::of(BENCH, "start.api_requests", start.api.requests as f64, ""),
        Figure::of(BENCH, "start.api_size", start.api.bytes as f64 / 1024.0, "KiB"),
        Figure::of(BENCH, "idle.api_size", rate(idle.api.bytes, idle.long), "B/s"),
        Figure::of(BENCH, "churn.api_size", each(churn.api.bytes), "KiB per termination"),
        Figure::of(BENCH, "lists.cri_size", start.lists as f64 / 1024.0, "KiB"),
        mib("rss.settled_anonymous", settled.anonymous),
        mib("rss.after_churn_anonymous", churned.anonymous),
        mib("rss.peak_start", settled.peak),
        mib("rss.peak", churned.peak),
    ]);
    figures
}

/// The agent's CPU time, in percent of one core, beside the other's.
fn cpu(name: &str, window: &Window) -> Figure {
    let percent = |usage: Usage| match window.long {
        Duration::ZERO => 0.0,
        long => usage.cpu.as_secs_f64() / long.as_secs_f64() * 100.0,
    };
    Figure::of(BENCH, name, percent(window.agent), "% of a core")
        .beside(RELIST, percent(window.relist))
}

/// What reading the kubelet's log adds to the idle agent.
fn log_reader(idle: &Window, logged: &Window) -> Figure {
    let added = (cpu("", logged).value - cpu("", idle).value).max(0.0);
    Figure::of(BENCH, "kubelet_log.cpu", added, "% of a core")
}

fn rate(count: u64, long: Duration) -> f64 {
    if long.is_zero() { 0.0 } else { count as f64 / long.as_secs_f64() }
}

/// The smallest of the values that so many percent of them do not exceed.
fn percentile(values: &[Duration], percent: usize) -> Option<Duration> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Samples on a page in the text format of Prometheus.
pub(super) fn series(page: &str) -> usize {
    page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}

/// The sum of a metric over all its series.
pub(super) fn total(page: &str, metric: &str) -> u64 {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(metric)?;
        rest.starts_with(['{', ' ']).then_some(())?;
        rest.rsplit_once(' ')?.1.parse::<f64>().ok()
    });
    values.sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a_total b\n# TYPE a_total counter\na_total{x=\"1 2\"} 3\n\
                        a_total{x=\"2\"} 4\na_total_more 5\n\nb 1e1\n";

    #[test]
    fn a_page_is_counted() {
        assert_eq!(series(PAGE), 4);
        assert_eq!(total(PAGE, "a_total"), 7);
        assert_eq!(total(PAGE, "b"), 10);
        assert_eq!(total(PAGE, "c"), 0);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let ms = |n: u64| Duration::from_millis(n);
        let values: Vec<_> = (1..=100).rev().map(ms).collect();
        assert_eq!(percentile(&values, 50), Some(ms(50)));
        assert_eq!(percentile(&values, 99), Some(ms(99)));
        assert_eq!(percentile(&values[..1], 99), Some(ms(100)));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn goals_are_kept_or_missed() {
        let window = |ms| Window {
            long: Duration::from_secs(10),
            agent: Usage { cpu: Duration::from_millis(ms), switches: 40 },
            relist: Usage { cpu: Duration::from_millis(100), switches: 9 },
            calls: 20,
            api: ApiTraffic { requests: 1, bytes: 50 << 10 },
        };
        let weight = Weight { resident: 20 << 20, anonymous: 8 << 20, peak: 30 << 20 };
        let measured = NodeMeasurements {
            start: Start { api: ApiTraffic { requests: 3, bytes: 1 << 20 }, lists: 2048 },
            settled: weight,
            churned: weight,
            relist: Weight { resident: 10 << 20, ..weight },
            idle: window(10),
            logged: window(70),
            churn: window(500),
            page: Page { series: 400, bytes: 2048, took: vec![Duration::from_millis(6)] },
            begun: 50,
            terminated: 50,
            counted: 49,
        };
        let figures = figures(&measured);
        let find = |name: &str| {
            figures.iter().find(|figure| figure.figure == name).expect("is there").clone()
        };
        assert_eq!((find("rss.settled").value, find("rss.settled").ok), (20.0, Some(true)));
        assert_eq!((find("start.api_requests").value, find("start.api_size").value), (3.0, 1024.0));
        assert_eq!((find("churn.api_size").value, find("lists.cri_size").value), (1.0, 2.0));
        let idle = find("idle.cpu");
        assert!((idle.value - 0.1).abs() < 1e-9 && idle.ok == Some(true), "{idle:?}");
        assert_eq!(idle.beside.and_then(|beside| beside.ratio), Some(0.1));
        let log = find("kubelet_log.cpu");
        assert!((log.value - 0.6).abs() < 1e-9 && log.ok == Some(false), "{log:?}");
        assert_eq!(find("churn.cpu").ok, None);
        assert_eq!(find("churn.rate").value, 5.0);
        assert_eq!(find("idle.switches").value, 4.0);
        assert_eq!(find("scrape.p99").ok, Some(false));
        assert_eq!(find("churn.miscounted").ok, Some(false));
    }

    #[test]
    fn usage_is_a_difference() {
        let usage = |ms, switches| Usage { cpu: Duration::from_millis(ms), switches };
        assert_eq!(usage(7, 9).since(usage(3, 4)), usage(4, 5));
        assert_eq!(usage(7, 1).since(usage(3, 4)), usage(4, 0));
    }
}
