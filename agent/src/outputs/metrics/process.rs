//! What this process costs: as the prometheus crate tells it, but for the CPU time, of which it tells
//! whole seconds only. The agent uses one in some minutes: a rate of that is zero, or far too much.

use prometheus::{
    core::{Collector, Desc},
    process_collector::ProcessCollector,
    proto::{Counter, MetricFamily},
};
use rustix::time::{ClockId, clock_gettime};

const CPU: &str = "process_cpu_seconds_total";

pub(super) struct ProcessMetrics(ProcessCollector);

impl ProcessMetrics {
    pub(super) fn this() -> Self {
        Self(ProcessCollector::for_self())
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let mut exact = Counter::default();
        exact.set_value(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9);
        for family in families.iter_mut().filter(|family| family.name() == CPU) {
            for metric in family.mut_metric() {
                metric.set_counter(exact.clone());
            }
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_has_fractions() {
        let process = ProcessMetrics::this();
        let cpu_seconds = || {
            let families = process.collect();
            let cpu = families.iter().find(|family| family.name() == CPU).unwrap();
            cpu.get_metric()[0].get_counter().get_value()
        };
        let before = cpu_seconds();
        // A test that has just begun has not used a second.
        assert!(before > 0.0 && before.fract() > 0.0, "{before}");
        assert!(cpu_seconds() > before, "it is not cpu_seconds anew");
    }
}
