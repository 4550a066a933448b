//! The figures as a page. Pure.

use std::{fmt::Write as _, time::Duration};

use super::{
    arrival::{self, Arrivals, Manners},
    figures::Figures,
};

/// Of the simulation: any other gives another fleet of the same kind.
const SEED: u64 = 20_261_121;

/// `docs/scale.md`.
pub(crate) fn page(figures: &Figures) -> String {
    let mut text = String::from(HEAD);
    let f = figures;
    let _ = writeln!(
        text,
        "The fleet has **{} nodes of {} pods**. Where churn matters, each pod runs for {} hours, which \
         makes {} terminations per second in the whole fleet, each followed by a new pod.\n",
        count(f.nodes),
        count(f.pods),
        count(f.pod_lives),
        rate(f.terminations())
    );
    apiserver(&mut text, f);
    at_once(&mut text, f);
    prometheus(&mut text, f);
    runtime(&mut text, f);
    events(&mut text, f);
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn apiserver(text: &mut String, f: &Figures) {
    let start = f.start.1;
    *text += "## Steady load on the apiserver\n\n| | one node | the fleet |\n|---|---:|---:|\n";
    let mut row = |what: &str, one: String, all: String| {
        let _ = writeln!(text, "| {what} | {one} | {all} |");
    };
    row("watches of pods, by `spec.nodeName`", "1".into(), count(f.nodes));
    let renewals = f.renewals();
    let (least, most) = f.manners.watch;
    row(
        &format!("watches renewed, each after {} to {} s", least.as_secs(), most.as_secs()),
        every(renewals / f.nodes),
        format!("{}/s", rate(renewals)),
    );
    row(
        "GETs of the agent's Node",
        every(1.0 / f.node_every.as_secs_f64()),
        format!("{}/s", rate(f.node_gets())),
    );
    row("bytes while nothing happens", per_second(f.idle), per_second(f.idle * f.nodes));
    row(
        "bytes for a termination and the new pod",
        bytes(f.termination),
        format!("{} at that churn", per_second(f.termination * f.terminations())),
    );
    row(
        "at startup: requests, bytes",
        format!("{}, {}", count(f.start.0), bytes(start)),
        format!("{}, {}", count(f.start.0 * f.nodes), bytes(start * f.nodes)),
    );
    *text += "\nThe watch is of the same kind as the kubelet's: the apiserver's watch cache indexes pods by node, so that \
              a change of a pod is sent to one agent and evaluated for no other. Bookmarks are most of the idle bytes. \
              The measured apiserver, that of the lab, sends one every 10 s, a real one about one a minute. Its Node \
              is small: a real one of 30 KiB, read every 300 s, adds 100 B/s.\n\n";
}

fn at_once(text: &mut String, f: &Figures) {
    let nodes = f.nodes as usize;
    let after = f.manners;
    let watch = (after.watch.1, after.watch.1);
    let before = Manners { spread: Duration::ZERO, watch, ..after };
    let _ = write!(
        text,
        "## Peak load on the apiserver\n\n\
         This is a simulation of {} agents with the pauses of `agent/src/sources/kube/watch.rs` (after a failure {} s, \
         doubled up to {} s, plus as much again at random), with seed {SEED}. *Spread* includes the agent's measures for \
         fleets: a random pause of up to {} s before the first list and after each failure, and watches of different \
         lengths. *Without* omits them. The peak is the maximum number of requests within one second.\n\n\
         | event | peak without | peak spread | last request after |\n|---|---:|---:|---:|\n",
        count(f.nodes),
        after.min_pause.as_secs_f64(),
        after.max_pause.as_secs_f64(),
        after.spread.as_secs_f64(),
    );
    let mut row = |what: &str, simulate: &dyn Fn(&Manners) -> Arrivals, last: bool| {
        let (before, after) = (simulate(&before), simulate(&after));
        let last = if last { format!("{:.1} s", after.last()) } else { String::new() };
        let (before, after) = (before.peak() as f64, after.peak() as f64);
        let _ = writeln!(text, "| {what} | {}/s | {}/s | {last} |", count(before), count(after));
    };
    row("all agents start at once: lists", &|m| arrival::start(nodes, m, SEED), true);
    for long in [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(60)] {
        row(
            &format!("all watches break, and no apiserver answers for {} s", long.as_secs_f64()),
            &|m| arrival::outage(nodes, long, m, SEED),
            true,
        );
    }
    let day = Duration::from_secs(24 * 3600);
    row(
        "a day after all agents started at once: renewed watches",
        &|m| arrival::renewals(nodes, day, m, SEED),
        false,
    );
    let all = f.nodes * f.pods;
    let _ = write!(
        text,
        "\nA rollout with `maxUnavailable: 100%` does not start all agents at once: the DaemonSet controller creates {} \
         pods per second (`kube-api-qps` of kube-controller-manager), so that the fleet's lists arrive at that rate for {}. \
         The DaemonSet of `deploy/base` replaces a tenth of the nodes at a time.\n\n\
         The cost of a list matters more than its time. The agent requests the first list with `resourceVersion=0` and \
         without pages: any apiserver answers from its watch cache, by its index of nodes, and reads {} pods for each \
         agent. With pages of 500 and without a version, which is the default of kube-rs, the apiserver reads every pod \
         of the cluster from etcd, page by page, until it has those of one node: {} pods for each of {} agents, {:.1} \
         billion in total instead of {}. A stale answer does no harm to the first list: there is no earlier state that \
         it could revert, the watch delivers what is missing, and no leak that depends on the absence of a pod is \
         reported before etcd itself has confirmed it (`agent/src/sources/kube/lookup.rs`). After the watch has lost its \
         position, the agent requests the list without a version, so that no stale state returns, and in pages. Before \
         Kubernetes 1.31 each page is read from etcd, so that the whole fleet reads every pod. The same applies to the list \
         that checks more than ten leak candidates at once. From 1.31 on, such lists are answered from the cache, too.\n\n",
        count(f.rollout),
        minutes(f.nodes / f.rollout),
        count(f.pods),
        count(all),
        count(f.nodes),
        all * f.nodes / 1e9,
        count(all),
    );
}

fn prometheus(text: &mut String, f: &Figures) {
    let (series, size) = f.scrape;
    let _ = write!(
        text,
        "## Prometheus\n\nOne node has {} series; a scrape has {}, uncompressed. The fleet has {} series.\n\n\
         | scrape interval | samples | bytes |\n|---:|---:|---:|\n",
        count(series),
        bytes(size),
        count(series * f.nodes),
    );
    for every in [15.0, 30.0, 60.0] {
        let (samples, bytes) = f.scraped(every);
        let _ = writeln!(text, "| {every} s | {}/s | {} |", count(samples), per_second(bytes));
    }
    *text += "\nOnly leaks have series of their own, at most `--leak-series` of them: the number of series grows neither \
              with the number of pods nor with time.\n\n";
}

fn runtime(text: &mut String, f: &Figures) {
    let (idle, churn) = f.calls;
    let lists = f.lists / f.lists_every.as_secs_f64();
    let _ = write!(
        text,
        "## The container runtime of one node\n\n| | calls | bytes |\n|---|---:|---:|\n\
         | idle (two full lists every {} s are most of the bytes) | {}/s | {} |\n\
         | {} terminations per second | {}/s | |\n\
         | per termination | {} | |\n\n\
         At the fleet's churn, a node has a termination every {}: {} more calls per second than an idle node. The \
         runtime is not shared, so its load does not grow with the fleet.\n\n",
        f.lists_every.as_secs(),
        rate(idle),
        per_second(lists),
        rate(f.churn),
        rate(churn),
        rate((churn - idle).max(0.0) / f.churn),
        minutes(f.nodes / f.terminations()),
        rate((churn - idle).max(0.0) / f.churn * f.terminations() / f.nodes),
    );
}

fn events(text: &mut String, f: &Figures) {
    let most = f.nodes / f.event_every.as_secs_f64();
    let _ = write!(
        text,
        "## Events\n\nEvents exist only with `--events`. After a burst, an agent creates at most one Event on pods every {} s: \
         {}/s in the fleet if problems persist on every node, whatever the churn. If each termination of the churn above \
         created an Event, there would be {}/s.\n",
        f.event_every.as_secs(),
        rate(most),
        rate(f.terminations().min(most)),
    );
}

const HEAD: &str = "\
<!-- Written by `cargo xtask scale` from docs/scale.json. Do not edit: xtask/src/scale. -->

# Scale

This page shows the load that a fleet of agents puts on the components that they share. `cargo xtask scale` computes every
figure from measurements of one agent in [scale.json](scale.json). `cargo xtask scale --measure` runs `cargo xtask bench node`
with 110 pods of two containers ([what it measures](performance.md#node)) and replaces the measurements. The pauses are those of
the agent; a test compares them with the file.

";

/// A whole number with its thousands apart.
fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits that count.
fn rate(value: f64) -> String {
    match value {
        value if value >= 100.0 => count(value),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

fn every(per_second: f64) -> String {
    format!("one every {:.0} s", 1.0 / per_second)
}

fn minutes(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} minutes", seconds / 60.0)
    }
}

fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = value;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 10.0 { 1 } else { 0 };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn per_second(value: f64) -> String {
    bytes(value) + "/s"
}

#[cfg(test)]
mod tests {
    use super::{super::figures::tests::sample, *};

    #[test]
    fn the_same_figures_give_the_same_page() {
        let figures = Figures::of(&sample()).expect("figures");
        let text = page(&figures);
        assert_eq!(text, page(&figures));
        for part in
            ["**100 nodes of 10 pods**", "| 15 s | 2,000/s | 200 KiB/s |", "one every 300 s"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with(".\n") && !text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!((count(5_000.0), count(1_234_567.4)), ("5,000".into(), "1,234,567".into()));
        assert_eq!((count(0.0), count(110.0)), ("0".into(), "110".into()));
        assert_eq!(
            (rate(47.61), rate(0.2), rate(0.0012)),
            ("47.6".into(), "0.20".into(), "0.0012".into())
        );
        assert_eq!((bytes(512.0), bytes(1536.0)), ("512 B".into(), "1.5 KiB".into()));
        assert_eq!(bytes(3.0 * 1024.0 * 1024.0 * 100.0), "300 MiB");
        assert_eq!((minutes(90.0), minutes(250.0)), ("90 s".into(), "4 minutes".into()));
    }
}
