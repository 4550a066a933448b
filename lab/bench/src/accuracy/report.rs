//! Deaths → figures → what a person sees. Pure.

use super::{
    super::figure::{self, Figure},
    death::{Claim, CpuLoad, Death},
    interval::Spread,
};
use comfy_table::CellAlignment;
use coroner_lab_scenarios::death_mode::DeathMode;

/// The benchmark's name.
const BENCH: &str = "accuracy";

/// How far a claim was from the truth, over all deaths of which both are known.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Row {
    claim: Claim,
    load: CpuLoad,
    /// What it is wrong by at least.
    error: Spread,
    /// What it can be wrong by at most.
    at_most: Spread,
}

/// All figures of a run. `failed`: deaths that could not be made or observed.
pub(super) fn figures(deaths: &[Death], failed: usize) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows(deaths) {
        let name = |what: &str| format!("{}.{}.{what}", row.load.name(), row.claim.name());
        figures.push(Figure::of(BENCH, name("samples"), row.error.samples as f64, "deaths"));
        figures.push(Figure::of(BENCH, name("error_p50"), ms(row.error.p50), "ms"));
        let p99 = Figure::of(BENCH, name("error_p99"), ms(row.error.p99), "ms");
        figures.push(match row.claim.goal() {
            Some(goal) => p99.at_most(goal),
            None => p99,
        });
        figures.push(Figure::of(BENCH, name("error_max"), ms(row.error.max), "ms"));
        figures.push(Figure::of(BENCH, name("at_most_p50"), ms(row.at_most.p50), "ms"));
        figures.push(Figure::of(BENCH, name("at_most_p99"), ms(row.at_most.p99), "ms"));
    }
    for (load, what, spread) in truths(deaths) {
        let name = |part: &str| format!("{}.{}_{part}", load.name(), what.name());
        figures.push(Figure::of(BENCH, name("p50"), ms(spread.p50), "ms"));
        figures.push(Figure::of(BENCH, name("p99"), ms(spread.p99), "ms"));
        figures.push(Figure::of(BENCH, name("max"), ms(spread.max), "ms"));
    }
    let count = |name: &str, value: usize| {
        Figure::of(BENCH, format!("deaths.{name}"), value as f64, "deaths")
    };
    figures.push(count("measured", deaths.len()));
    figures.push(count("failed", failed).at_most(0.0));
    figures.push(count("without_empty", deaths.iter().filter(silent).count()).at_most(0.0));
    figures.push(count("wrong_verdict", deaths.iter().filter(wrong).count()).at_most(0.0));
    figures
}

/// What a person sees.
pub(super) fn table(deaths: &[Death], figures: &[Figure]) -> String {
    let rows = rows(deaths);
    let mut table = figure::plain_table();
    table.set_header([
        "ms from the truth",
        "",
        "deaths",
        "p50",
        "p99",
        "max",
        "at most p50",
        "p99",
        "× CgroupEmpty",
    ]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in &rows {
        table.add_row([
            row.claim.title().to_owned(),
            row.load.name().to_owned(),
            row.error.samples.to_string(),
            shown(row.error.p50),
            shown(row.error.p99),
            shown(row.error.max),
            shown(row.at_most.p50),
            shown(row.at_most.p99),
            ratio(row, &rows),
        ]);
    }
    let mut text = format!("{table}\n\n");
    for (load, what, spread) in truths(deaths) {
        text.push_str(&format!(
            "{:<5} {:<52} p50 {:>9}  p99 {:>9}  max {:>9} ms\n",
            load.name(),
            what.title(),
            shown(spread.p50),
            shown(spread.p99),
            shown(spread.max),
        ));
    }
    text.push_str(&widths(deaths));
    text.push('\n');
    for death in deaths.iter().filter(wrong) {
        if let Some(account) = &death.account {
            text.push_str(&format!(
                "✘ {} ({}): {}, expected {}\n",
                death.way.name(),
                death.load.name(),
                account.verdict,
                death.way.verdict()
            ));
        }
    }
    for death in deaths.iter().filter(silent) {
        text.push_str(&format!(
            "✘ {} ({}): the agent does not tell when it was empty\n",
            death.way.name(),
            death.load.name()
        ));
    }
    for figure in figures {
        if let (Some(goal), Some(ok)) = (figure.goal_in_words(), figure.ok) {
            let mark = if ok { "✔" } else { "✘" };
            text.push_str(&format!(
                "{mark} {:<36} {:>9} {} (goal: {goal})\n",
                figure.figure,
                figure::shown(figure.value),
                figure.unit
            ));
        }
    }
    text
}

fn rows(deaths: &[Death]) -> Vec<Row> {
    let mut rows = Vec::new();
    for claim in Claim::ALL {
        for load in CpuLoad::ALL {
            let claims = || {
                deaths.iter().filter(|death| death.load == load).filter_map(|death| claim.of(death))
            };
            let error = Spread::of(claims().map(|(truth, at)| truth.distance(at)).collect());
            let at_most = Spread::of(claims().map(|(truth, at)| truth.farthest(at)).collect());
            if let (Some(error), Some(at_most)) = (error, at_most) {
                rows.push(Row { claim, load, error, at_most });
            }
        }
    }
    rows
}

/// What says how much the comparison is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Truth {
    /// From the last heartbeat to the readable pidfd.
    Width,
    /// From the agent's TermSent to the handler's own record.
    Delivery,
}

impl Truth {
    fn name(self) -> &'static str {
        match self {
            Self::Width => "truth_width",
            Self::Delivery => "term_sent_to_handler",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Width => "truth: last heartbeat → observer's pidfd readable",
            Self::Delivery => "signal: TermSent → first instruction of the handler",
        }
    }

    fn of(self, death: &Death) -> Option<u64> {
        match self {
            Self::Width => Some(death.truth.width()),
            Self::Delivery => death.handled?.to.checked_sub(death.account.as_ref()?.term_sent?),
        }
    }
}

fn truths(deaths: &[Death]) -> Vec<(CpuLoad, Truth, Spread)> {
    let mut truths = Vec::new();
    for what in [Truth::Width, Truth::Delivery] {
        for load in CpuLoad::ALL {
            let of_load = deaths.iter().filter(|death| death.load == load);
            let spread = Spread::of(of_load.filter_map(|death| what.of(death)).collect());
            truths.extend(spread.map(|spread| (load, what, spread)));
        }
    }
    truths
}

/// How sharp the truth is for each way to die, the sharpest first: what takes long between the last
/// heartbeat and the end takes long in the kernel.
fn widths(deaths: &[Death]) -> String {
    let mut by_way: Vec<(u64, DeathMode)> = DeathMode::ALL
        .into_iter()
        .filter_map(|way| {
            let of_way = deaths.iter().filter(|death| death.way == way);
            let width = Spread::of(of_way.map(|death| death.truth.width()).collect())?;
            Some((width.p50, way))
        })
        .collect();
    by_way.sort_unstable();
    let mut text = String::new();
    for (index, ways) in by_way.chunks(6).enumerate() {
        text.push_str(if index == 0 {
            "      truth by way, p50:"
        } else {
            "                        "
        });
        for (width, way) in ways {
            text.push_str(&format!(" {} {}", way.name(), shown(*width)));
        }
        text.push('\n');
    }
    text
}

/// The agent gave no account, or one that does not know when the container was empty.
fn silent(death: &&Death) -> bool {
    death.account.and_then(|account| account.empty).is_none()
}

fn wrong(death: &&Death) -> bool {
    death.account.is_some_and(|account| account.verdict != death.way.verdict())
}

/// How many times as far as coroner's CgroupEmpty can be, under the same load: by the median, because
/// the 99th percentile of the truth's own width is that of one way to die.
fn ratio(row: &Row, rows: &[Row]) -> String {
    let own = rows.iter().find(|own| own.claim == Claim::CgroupEmpty && own.load == row.load);
    match own {
        Some(own) if row.claim.is_of_death() && own.at_most.p50 > 0 => {
            let times = row.at_most.p50 as f64 / own.at_most.p50 as f64;
            if times < 10.0 { format!("{times:.1}") } else { format!("{times:.0}") }
        }
        _ => "–".into(),
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn shown(ns: u64) -> String {
    match ms(ns) {
        0.0 => "0".into(),
        many if many >= 100.0 => format!("{many:.0}"),
        some => format!("{some:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::death::tests::sample, *};
    use coroner_lab_scenarios::death_mode::DeathMode;

    fn value(figures: &[Figure], name: &str) -> f64 {
        match figures.iter().find(|figure| figure.figure == name) {
            Some(figure) => figure.value,
            None => panic!("{name} is missing"),
        }
    }

    #[test]
    fn figures_are_named_after_load_claim_and_statistic() {
        let deaths =
            [sample(DeathMode::Graceful, CpuLoad::Idle), sample(DeathMode::Crashed, CpuLoad::Busy)];
        let figures = figures(&deaths, 0);
        assert_eq!(value(&figures, "idle.cgroup_empty.error_p99"), 0.0);
        assert_eq!(value(&figures, "idle.cgroup_empty.at_most_p50"), 0.005);
        assert_eq!(value(&figures, "load.cri_finished_at.error_max"), 2.0);
        assert_eq!(value(&figures, "load.relist_1s.error_p50"), 500.0);
        assert_eq!(value(&figures, "idle.api_finished_at.error_p50"), 1.0);
        assert_eq!(value(&figures, "load.truth_width_max"), 0.01);
        assert_eq!(value(&figures, "deaths.measured"), 2.0);
        assert!(
            figures.iter().all(|f| !f.figure.contains("api_object_gone")),
            "nobody was deleted"
        );
        assert!(figure::all_met(&figures));
    }

    #[test]
    fn late_silent_wrong_and_failed_deaths_miss_their_goals() {
        let mut late = sample(DeathMode::Graceful, CpuLoad::Idle);
        late.account.as_mut().unwrap().empty = Some(1_010_000 + 1_000_001);
        let mut silent = sample(DeathMode::Graceful, CpuLoad::Idle);
        silent.account = None;
        let mut never_empty = sample(DeathMode::Graceful, CpuLoad::Idle);
        never_empty.account.as_mut().unwrap().empty = None;
        let mut wrong = sample(DeathMode::StopSignalIgnored, CpuLoad::Idle);
        wrong.account.as_mut().unwrap().verdict = DeathMode::GraceExceeded.verdict();
        for (deaths, failed, missed) in [
            (vec![late], 0, "idle.cgroup_empty.error_p99"),
            (vec![silent], 0, "deaths.without_empty"),
            (vec![never_empty], 0, "deaths.without_empty"),
            (vec![wrong], 0, "deaths.wrong_verdict"),
            (vec![], 1, "deaths.failed"),
        ] {
            let figures = figures(&deaths, failed);
            let names: Vec<_> =
                figures.iter().filter(|f| f.ok == Some(false)).map(|f| f.figure.as_str()).collect();
            assert_eq!(names, [missed]);
            assert!(table(&deaths, &figures).contains(&format!("✘ {missed}")));
        }
    }

    #[test]
    fn the_table_is_aligned_and_compares_with_empty() {
        let deaths = [sample(DeathMode::Graceful, CpuLoad::Idle)];
        let figures = figures(&deaths, 0);
        let text = table(&deaths, &figures);
        let line = |start: &str| {
            let found = text.lines().find(|line| line.trim_start().starts_with(start));
            found.unwrap_or_else(|| panic!("{start} is missing in\n{text}"))
        };
        let words: Vec<_> = line("CRI: finished_at").split_whitespace().collect();
        assert_eq!(words[2..], ["idle", "1", "2.000", "2.000", "2.000", "2.010", "2.010", "402"]);
        let words: Vec<_> = line("coroner: CgroupEmpty").split_whitespace().collect();
        assert_eq!(words[2..], ["idle", "1", "0", "0", "0", "0.005", "0.005", "1.0"]);
        let width = |line: &str| line.chars().count();
        assert_eq!(width(line("CRI: finished_at")), width(line("API: finishedAt")));
        assert!(line("truth by way").ends_with("graceful 0.010"));
        assert!(line("✔ deaths.wrong_verdict").contains("0 deaths (goal: at most 0)"));
    }
}
