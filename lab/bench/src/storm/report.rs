//! What was measured → figures. Pure.

use super::{cost::CpuCost, lines::ToolReport, mix::Totals};
use crate::Figure;
use std::{collections::BTreeMap, time::Duration};

const BENCH: &str = "storm";
/// The unit of CPU: hundredths of the time that one core has.
const PERCENT: &str = "% of a core";
/// What is asked: of coroner's CPU, beside that of the cheapest other.
const SHARE: f64 = 0.5;
/// Losses that the kernel programs count, as `coroner_evidence_lost_total` names them.
pub(super) const DECIDING: &str = "deciding_ring_full";
/// As above.
pub(super) const DETAIL: &str = "detail_ring_full";
/// As above.
pub(super) const BUDGET: &str = "budget_spent";

/// What coroner told of the load: differences of its own counters.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct StormEvidence {
    /// Records that its programs sent.
    pub(super) records: u64,
    /// Losses, by kind.
    pub(super) lost: BTreeMap<String, u64>,
}

impl StormEvidence {
    fn lost(&self, kind: &str) -> u64 {
        self.lost.get(kind).copied().unwrap_or(0)
    }

    /// Records of which there is neither anything to see nor a count. What others do in containers of
    /// this machine meanwhile is seen and counted too, and could hide some.
    fn missing(&self, expected: u64) -> u64 {
        let counted = [DECIDING, DETAIL, BUDGET].iter().map(|kind| self.lost(kind)).sum::<u64>();
        expected.saturating_sub(self.records + counted)
    }

    /// The counters of a page of metrics.
    pub(super) fn read(metrics: &str) -> Self {
        let mut all = Self::default();
        for line in metrics.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            // A counter of whole numbers.
            let value = value as u64;
            if series.starts_with("coroner_kernel_records_total{") {
                all.records += value;
            } else if let Some(labels) = series.strip_prefix("coroner_evidence_lost_total{") {
                let kind = labels.split('"').nth(1).unwrap_or_default();
                *all.lost.entry(kind.into()).or_default() += value;
            }
        }
        all
    }

    /// What came since then.
    pub(super) fn since(&self, then: &Self) -> Self {
        let since =
            |(kind, count): (&String, &u64)| (kind.clone(), count - then.lost(kind).min(*count));
        Self {
            records: self.records.saturating_sub(then.records),
            lost: self.lost.iter().map(since).collect(),
        }
    }
}

/// One run of the load.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct StormRun {
    /// What was sent.
    pub(super) totals: Totals,
    /// For how long.
    pub(super) lasting: Duration,
    /// What the tool cost from the load's beginning until all was told.
    pub(super) cost: CpuCost,
}

impl StormRun {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.lasting.as_secs_f64()
    }

    fn events(&self) -> u64 {
        let all = self.totals.all();
        all.sent() + all.exited()
    }

    /// µs for each signal and each exit of the load, wherever it was.
    fn per_event(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.events().max(1) as f64
    }

    fn of_a_core(&self, time: Duration) -> f64 {
        100.0 * time.as_secs_f64() / self.lasting.as_secs_f64()
    }

    fn achieved(&self, of: &str) -> Vec<Figure> {
        let (inside, outside) = (self.totals.inside(), self.totals.outside);
        [
            ("inside.signals", inside.sent()),
            ("inside.exits", inside.exited()),
            ("outside.signals", outside.sent()),
            ("outside.exits", outside.exited()),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| figure(format!("{of}.rate.{what}"), self.per_second(count), "1/s"))
        .collect()
    }

    /// What the load itself took: the kernel's own work for each signal, and what a tool adds to it
    /// beyond its programs' run time (wake-ups, copies, caches).
    fn load(&self, of: &str) -> Figure {
        let cpu = Duration::from_nanos(self.totals.all().cpu);
        figure(format!("{of}.load_cpu"), self.of_a_core(cpu), PERCENT)
    }

    fn shares(&self, of: &str) -> Vec<Figure> {
        let share = |part, time| figure(format!("{of}.cpu.{part}"), self.of_a_core(time), PERCENT);
        vec![share("programs", self.cost.kernel), share("processes", self.cost.user)]
    }
}

/// All that was measured.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Report {
    /// The load alone.
    pub(super) nothing: StormRun,
    /// The load under coroner, and what it told.
    pub(super) coroner: (StormRun, StormEvidence),
    /// The short burst under coroner.
    pub(super) burst: (StormRun, StormEvidence),
    /// The load under others, by name, and what they told.
    pub(super) others: Vec<(&'static str, StormRun, ToolReport)>,
}

impl Report {
    pub(super) fn figures(&self) -> Vec<Figure> {
        let mut figures = self.nothing.achieved("nothing");
        figures.push(self.nothing.load("nothing"));
        figures.extend(self.coroner());
        for (name, run, told) in &self.others {
            figures.extend(other(name, run, *told));
        }
        figures.extend(self.burst());
        figures
    }

    fn coroner(&self) -> Vec<Figure> {
        let (run, evidence) = &self.coroner;
        let mut figures = run.achieved("coroner");
        figures.push(run.load("coroner"));
        figures.extend(run.shares("coroner"));
        // Who slows the load down gets less of it: that its cost for all is held against coroner's is
        // to coroner's disadvantage.
        let cost = |run: &StormRun| run.of_a_core(run.cost.total());
        let each = |run: &StormRun| run.per_event(run.cost.total());
        let (all, event) = (
            figure("coroner.cpu", cost(run), PERCENT),
            figure("coroner.cpu.event", each(run), "µs"),
        );
        let cheapest = |cost: &dyn Fn(&StormRun) -> f64| {
            let costs = self.others.iter().map(|(name, run, _)| (*name, cost(run)));
            costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("nothing", 0.0))
        };
        let (name, least) = cheapest(&cost);
        figures.push(all.at_most(SHARE * least).beside(name, least));
        let (name, least) = cheapest(&each);
        figures.push(event.beside(name, least));
        figures.extend(losses("coroner", run, evidence));
        figures
    }

    fn burst(&self) -> Vec<Figure> {
        let (run, evidence) = &self.burst;
        let mut figures = run.achieved("burst");
        figures.extend(run.shares("burst"));
        figures.extend(losses("burst", run, evidence));
        figures
    }
}

fn losses(of: &str, run: &StormRun, evidence: &StormEvidence) -> Vec<Figure> {
    let lost = |kind| evidence.lost(kind) as f64;
    let missing = evidence.missing(run.totals.records()) as f64;
    vec![
        figure(format!("{of}.records"), evidence.records as f64, "records"),
        figure(format!("{of}.lost.deciding_ring"), lost(DECIDING), "records").at_most(0.0),
        figure(format!("{of}.lost.detail_ring"), lost(DETAIL), "records"),
        figure(format!("{of}.over_budget"), lost(BUDGET), "records"),
        figure(format!("{of}.lost.uncounted"), missing, "records").at_most(0.0),
    ]
}

fn other(name: &'static str, run: &StormRun, told: ToolReport) -> Vec<Figure> {
    let all = run.totals.all();
    let missing = |sent: u64, told: u64| sent.saturating_sub(told) as f64;
    let mut figures = run.achieved(name);
    figures.push(run.load(name));
    figures.extend(run.shares(name));
    figures.extend([
        figure(format!("{name}.cpu"), run.of_a_core(run.cost.total()), PERCENT),
        figure(format!("{name}.cpu.event"), run.per_event(run.cost.total()), "µs"),
        figure(format!("{name}.lost.signals"), missing(all.sent(), told.signals), "events"),
        figure(format!("{name}.lost.exits"), missing(all.exited(), told.exits), "events"),
        figure(format!("{name}.lost.told"), told.lost as f64, "events"),
    ]);
    figures
}

fn figure(name: impl Into<String>, value: f64, unit: &'static str) -> Figure {
    Figure::of(BENCH, name, value, unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storm::mix::Done;

    fn run(signals: u64, cost_ms: u64) -> StormRun {
        let cost = CpuCost { kernel: Duration::from_millis(cost_ms), user: Duration::ZERO };
        let inside = Done { signals, caught: signals, exits: 100, ..Done::default() };
        let totals = Totals { stopped: inside, ..Totals::default() };
        StormRun { totals, lasting: Duration::from_secs(10), cost }
    }

    fn evidence(records: u64, lost: &[(&str, u64)]) -> StormEvidence {
        let lost = lost.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
        StormEvidence { records, lost }
    }

    fn report() -> Report {
        let told = ToolReport { signals: 600, exits: 100, lost: 250 };
        Report {
            nothing: run(900, 0),
            coroner: (run(900, 5), evidence(1000, &[(BUDGET, 900)])),
            burst: (run(900, 5), evidence(1900, &[])),
            others: vec![("dear", run(900, 100), told), ("cheap", run(900, 12), told)],
        }
    }

    fn value<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
        figures.iter().find(|figure| figure.figure == name).unwrap_or_else(|| panic!("{name}"))
    }

    #[test]
    fn coroner_is_held_against_the_cheapest() {
        let figures = report().figures();
        let cpu = value(&figures, "coroner.cpu");
        assert_eq!((cpu.value, cpu.goal, cpu.ok), (0.05, Some(0.06), Some(true)));
        assert_eq!(cpu.beside.as_ref().unwrap().what, "cheap");
        let event = value(&figures, "coroner.cpu.event");
        assert_eq!((event.value, event.beside.as_ref().unwrap().value), (5.0, 12.0));
        assert_eq!(value(&figures, "dear.lost.signals").value, 300.0);
        assert_eq!(value(&figures, "dear.lost.told").value, 250.0);
        assert_eq!(value(&figures, "nothing.rate.inside.signals").value, 90.0);
        assert_eq!(value(&figures, "coroner.cpu.programs").value, 0.05);
    }

    #[test]
    fn what_is_neither_seen_nor_counted_is_missing() {
        let uncounted = |records, lost: &[_]| {
            let report = Report { coroner: (run(900, 5), evidence(records, lost)), ..report() };
            let figures = report.figures();
            let figure = value(&figures, "coroner.lost.uncounted");
            (figure.value, figure.ok.unwrap())
        };
        // 900 sent, 900 caught, 100 exits of a container that is being stopped.
        assert_eq!(uncounted(1000, &[(BUDGET, 900)]), (0.0, true));
        assert_eq!(uncounted(1000, &[(BUDGET, 800), (DETAIL, 100)]), (0.0, true));
        assert_eq!(uncounted(1000, &[(BUDGET, 800)]), (100.0, false));
        assert_eq!(uncounted(1000, &[("engine_full", 900)]), (900.0, false));
        assert_eq!(uncounted(5000, &[]), (0.0, true), "of others");
    }

    #[test]
    fn a_loss_in_the_deciding_ring_misses_its_goal() {
        let lossy = evidence(1000, &[(BUDGET, 899), (DECIDING, 1)]);
        let figures = Report { coroner: (run(900, 5), lossy), ..report() }.figures();
        assert_eq!(value(&figures, "coroner.lost.deciding_ring").ok, Some(false));
        assert_eq!(value(&figures, "coroner.lost.uncounted").ok, Some(true));
    }

    #[test]
    fn a_page_of_metrics_is_read() {
        let page = "# HELP coroner_kernel_records_total x\n\
                    coroner_kernel_records_total{kind=\"exit\"} 7\n\
                    coroner_kernel_records_total{kind=\"signal_generate\"} 5\n\
                    coroner_evidence_lost_total{kind=\"budget_spent\"} 3\n\
                    coroner_evidence_lost_total{kind=\"deciding_ring_full\"} 0\n\
                    coroner_inputs_total{source=\"kernel\"} 99\n";
        let read = StormEvidence::read(page);
        assert_eq!(read, evidence(12, &[(BUDGET, 3), (DECIDING, 0)]));
        let since =
            StormEvidence::read(&page.replace("} 7", "} 9").replace("} 3", "} 4")).since(&read);
        assert_eq!(since, evidence(2, &[(BUDGET, 1), (DECIDING, 0)]));
    }
}
