//! What `docs/scale.json` holds. Pure.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::arrival::Manners;

/// One node's figures, the fleet, and how an agent behaves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Nodes of the fleet.
    pub(crate) nodes: f64,
    /// Pods of each: as many as the measured one had.
    pub(crate) pods: f64,
    /// How long a pod lives, hours.
    pub(crate) pod_lives: f64,
    /// How fast the controller of DaemonSets makes pods, 1/s.
    pub(crate) rollout: f64,
    /// What one agent does.
    pub(crate) manners: Manners,
    /// Between two GETs of the Node object.
    pub(crate) node_every: Duration,
    /// One Event on a pod, once the burst is spent.
    pub(crate) event_every: Duration,
    /// Requests until an agent knows its node, and the bytes of their answers.
    pub(crate) start: (f64, f64),
    /// Bytes a second from the apiserver while nothing happens.
    pub(crate) idle: f64,
    /// Bytes from the apiserver for a termination and the pod that replaces it.
    pub(crate) termination: f64,
    /// Samples of a scrape, and its bytes.
    pub(crate) scrape: (f64, f64),
    /// Calls of the CRI a second: idle, and while pods are terminated,
    pub(crate) calls: (f64, f64),
    /// so many a second.
    pub(crate) churn: f64,
    /// Bytes of the two full lists of the CRI.
    pub(crate) lists: f64,
    /// Between two full lists.
    pub(crate) lists_every: Duration,
}

const KIB: f64 = 1024.0;

/// What is taken from the benchmark `node`.
pub(super) const USED: [&str; 10] = [
    "start.api_requests",
    "start.api_size",
    "idle.api_size",
    "churn.api_size",
    "scrape.series",
    "scrape.size",
    "idle.cri_calls",
    "churn.cri_calls",
    "churn.rate",
    "lists.cri_size",
];

impl Figures {
    /// Reads them.
    ///
    /// # Errors
    /// At the first that is missing or no positive number.
    pub(crate) fn of(file: &Value) -> Result<Self> {
        let number = |part: &str, name: &str| {
            let value = &file[part][name];
            let value = value.get("value").unwrap_or(value);
            let number = value.as_f64().with_context(|| format!("no {part}.{name}"))?;
            ensure!(number > 0.0, "{part}.{name} is {number}");
            Ok(number)
        };
        let seconds = |name: &str| number("agent", name).map(Duration::from_secs_f64);
        let measured = |name: &str| number("measured", name);
        Ok(Self {
            nodes: number("fleet", "nodes")?,
            pods: number("fleet", "pods")?,
            pod_lives: number("fleet", "pod_lives_hours")?,
            rollout: number("fleet", "daemonset_pods_per_second")?,
            manners: Manners {
                min_pause: seconds("min_pause_seconds")?,
                max_pause: seconds("max_pause_seconds")?,
                spread: seconds("spread_seconds")?,
                watch: (seconds("watch_least_seconds")?, seconds("watch_most_seconds")?),
            },
            node_every: seconds("node_every_seconds")?,
            event_every: seconds("event_every_seconds")?,
            start: (measured("start.api_requests")?, measured("start.api_size")? * KIB),
            idle: measured("idle.api_size")?,
            termination: measured("churn.api_size")? * KIB,
            scrape: (measured("scrape.series")?, measured("scrape.size")? * KIB),
            calls: (measured("idle.cri_calls")?, measured("churn.cri_calls")?),
            churn: measured("churn.rate")?,
            lists: measured("lists.cri_size")? * KIB,
            lists_every: seconds("lists_every_seconds")?,
        })
    }

    /// Pods that end in a second, in the whole fleet.
    pub(crate) fn terminations(&self) -> f64 {
        self.nodes * self.pods / (self.pod_lives * 3600.0)
    }

    /// Watches renewed in a second. The mean of 1/x over lengths that are all as likely.
    pub(crate) fn renewals(&self) -> f64 {
        let (least, most) = self.manners.watch;
        let (least, most) = (least.as_secs_f64(), most.as_secs_f64());
        let each = if most > least { (most / least).ln() / (most - least) } else { 1.0 / most };
        self.nodes * each
    }

    /// GETs of Node objects in a second.
    pub(crate) fn node_gets(&self) -> f64 {
        self.nodes / self.node_every.as_secs_f64()
    }

    /// Samples and bytes a second that a Prometheus takes in which scrapes this often.
    pub(crate) fn scraped(&self, every: f64) -> (f64, f64) {
        (self.nodes * self.scrape.0 / every, self.nodes * self.scrape.1 / every)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn sample() -> Value {
        let value = |value: f64| json!({ "value": value, "unit": "" });
        json!({
            "fleet": {
                "nodes": 100, "pods": 10, "pod_lives_hours": 1, "daemonset_pods_per_second": 20,
            },
            "agent": {
                "min_pause_seconds": 0.2, "max_pause_seconds": 5, "spread_seconds": 2,
                "watch_least_seconds": 90, "watch_most_seconds": 120, "node_every_seconds": 300,
                "event_every_seconds": 30, "lists_every_seconds": 10,
            },
            "measured": {
                "start.api_requests": value(3.0), "start.api_size": value(100.0),
                "idle.api_size": value(20.0), "churn.api_size": value(50.0),
                "scrape.series": value(300.0), "scrape.size": value(30.0),
                "idle.cri_calls": value(0.2), "churn.cri_calls": value(40.0),
                "churn.rate": value(5.0), "lists.cri_size": value(64.0),
            },
        })
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9 * other.abs()
    }

    #[test]
    fn a_fleet_is_its_nodes() {
        let figures = Figures::of(&sample()).expect("figures");
        assert!(close(figures.terminations(), 1000.0 / 3600.0));
        assert!(close(figures.node_gets(), 1.0 / 3.0));
        assert!(close(figures.scraped(30.0).0, 1000.0));
        assert!(close(figures.scraped(30.0).1, 102_400.0));
        let renewals = figures.renewals();
        assert!(renewals > 100.0 / 120.0 && renewals < 100.0 / 90.0, "{renewals}");
        let same = Manners {
            watch: (Duration::from_secs(120), Duration::from_secs(120)),
            ..figures.manners
        };
        assert!(close(Figures { manners: same, ..figures }.renewals(), 100.0 / 120.0));
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        for (part, name) in [("fleet", "nodes"), ("agent", "spread_seconds")] {
            let mut file = sample();
            file[part][name] = Value::Null;
            let error = Figures::of(&file).expect_err("missing").to_string();
            assert_eq!(error, format!("no {part}.{name}"));
        }
        let mut file = sample();
        file["measured"]["scrape.size"]["value"] = json!(-1);
        assert!(Figures::of(&file).is_err());
    }
}
