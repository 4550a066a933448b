//! Counters whose series do not exist before something is counted, and then show 0 for two minutes: Prometheus'
//! `increase()` ignores the first sample of a series, which would be the event.

use super::{MetricEntry, OTHER, Values};
use parking_lot::Mutex;
use prometheus::{
    CounterVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// For so long a new series shows 0: at least one scrape of every usual interval.
const SHOWN_AS_ZERO: Duration = Duration::from_secs(120);
/// A series on which nothing was counted for so long makes room for a new one: all was scraped by then.
const IDLE: Duration = Duration::from_secs(600);

/// A family of such counters. Of a family with open labels, which a tenant may choose, there are at most so many series:
/// the one that was counted least recently makes room. If none is idle, the new one is counted as `other` of its
/// namespace, of which there may be as many again; then as `other`.
#[derive(Clone, Debug)]
pub(super) struct ZeroFirst {
    family: CounterVec,
    entry: &'static MetricEntry,
    most: Arc<AtomicUsize>,
    series: Arc<Mutex<BTreeMap<Vec<String>, Series>>>,
}

#[derive(Debug)]
struct Series {
    counted: Instant,
    /// What is not shown yet, and since when it is not.
    held: Option<(Instant, f64)>,
}

impl ZeroFirst {
    pub(super) fn new(entry: &'static MetricEntry) -> prometheus::Result<Self> {
        Ok(Self {
            family: CounterVec::new(Opts::new(entry.name, entry.help), entry.labels)?,
            entry,
            most: Arc::new(AtomicUsize::new(usize::MAX)),
            series: Arc::default(),
        })
    }

    /// At most so many series from now on, and those of `other`.
    pub(super) fn bound(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Counts `by`; 0 makes no series.
    pub(super) fn add(&self, labels: &[&str], by: f64) {
        if by <= 0.0 {
            return;
        }
        let now = Instant::now();
        let mut all = self.series.lock();
        let mut labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        let most = self.most.load(Relaxed);
        if !all.contains_key(&labels) && all.len() >= most {
            let oldest = all.iter().min_by_key(|(_, one)| one.counted);
            let idle = oldest.filter(|(_, one)| now.duration_since(one.counted) >= IDLE);
            if let Some(old) = idle.map(|(labels, _)| labels.clone()) {
                all.remove(&old);
                let _ = self.family.remove_label_values(&old); // it exists
            } else {
                self.anonymise(&mut labels, |label| label != "pod_namespace");
                if !all.contains_key(&labels) && all.len() >= most.saturating_mul(2) {
                    self.anonymise(&mut labels, |_| true);
                }
            }
        }
        let counter = self.family.with_label_values(&labels); // at 0, if it is new
        let one = all.entry(labels).or_insert(Series { counted: now, held: Some((now, 0.0)) });
        one.counted = now;
        match &mut one.held {
            Some((_, held)) => *held += by,
            None => counter.inc_by(by),
        }
    }

    /// Of labels whose values are an open set.
    fn anonymise(&self, values: &mut [String], chosen: impl Fn(&str) -> bool) {
        let labels = self.entry.labels.iter().zip(self.entry.values);
        for (value, (label, possible)) in values.iter_mut().zip(labels) {
            if matches!(possible, Values::Open(_)) && chosen(label) {
                OTHER.clone_into(value);
            }
        }
    }
}

#[cfg(test)]
impl ZeroFirst {
    /// What was counted, whether it is shown already or not.
    pub(super) fn counted(&self, labels: &[&str]) -> f64 {
        let held = self
            .series
            .lock()
            .get(&labels.iter().map(|&label| label.to_owned()).collect::<Vec<_>>())
            .and_then(|one| one.held);
        self.family.with_label_values(labels).get() + held.map_or(0.0, |(_, held)| held)
    }
}

impl Collector for ZeroFirst {
    fn desc(&self) -> Vec<&Desc> {
        self.family.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (labels, one) in self.series.lock().iter_mut() {
            let is_due = |(since, _): &mut (Instant, f64)| since.elapsed() >= SHOWN_AS_ZERO;
            if let Some((_, held)) = one.held.take_if(is_due) {
                self.family.with_label_values(labels).inc_by(held);
            }
        }
        self.family.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::metrics::CATALOGUE;
    use prometheus::{Encoder, Registry, TextEncoder};
    use tokio::time::advance;

    /// Deaths, scraped as Prometheus does, without the family's name and head.
    struct Scraped(ZeroFirst, Registry);

    impl Scraped {
        fn new() -> Self {
            let entry = CATALOGUE.iter().find(|one| one.name == "coroner_pod_deletions_total");
            let (family, registry) = (ZeroFirst::new(entry.unwrap()).unwrap(), Registry::new());
            registry.register(Box::new(family.clone())).unwrap();
            Self(family, registry)
        }

        fn count(&self, namespace: &str) {
            self.0.add(&[namespace, "true"], 1.0);
        }

        fn scrape(&self) -> String {
            let mut text = Vec::new();
            TextEncoder::new().encode(&self.1.gather(), &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            let lines = text.lines().filter_map(|line| line.split_once("pod_namespace=\""));
            lines.map(|(_, rest)| rest.replace("\",slow=\"true\"}", "") + "\n").collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_count_is_an_increase_between_two_scrapes() {
        let scraped = Scraped::new();
        assert_eq!(scraped.scrape(), "");
        scraped.count("shop");
        assert_eq!(scraped.scrape(), "shop 0\n");
        advance(Duration::from_secs(119)).await;
        scraped.count("shop");
        assert_eq!(scraped.scrape(), "shop 0\n");
        advance(Duration::from_secs(1)).await;
        assert_eq!(scraped.scrape(), "shop 2\n");
        scraped.count("shop");
        assert_eq!(scraped.scrape(), "shop 3\n", "no longer new");
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_was_counted_least_recently_makes_room_when_it_is_idle() {
        let scraped = Scraped::new();
        scraped.0.bound(2);
        scraped.count("pr-1");
        advance(Duration::from_secs(1)).await;
        for namespace in ["shop", "pr-2", "pr-3", "pr-4"] {
            scraped.count(namespace);
        }
        advance(Duration::from_secs(597)).await;
        for namespace in ["shop", "pr-2", "pr-3", "other"] {
            scraped.count(namespace);
        }
        assert_eq!(scraped.scrape(), "other 2\npr-1 1\npr-2 2\npr-3 2\nshop 2\n", "none is idle");
        advance(Duration::from_secs(3)).await;
        scraped.count("pr-5");
        assert_eq!(scraped.scrape(), "other 2\npr-2 2\npr-3 2\npr-5 0\nshop 2\n");
    }
}
