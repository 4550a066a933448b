//! A run of scenarios: the cluster, the real agent, every scenario, and what came out of it. What `cargo xtask run`
//! executes.

mod clock;
mod leaks;
mod live;
pub mod outcome;
mod play;
pub mod report;
pub mod scenario;
mod spans;

use crate::{
    agent::{self, Agent},
    console::Console,
    environment::{AGENT_LOG, Environment, Setup, interrupted, unless_interrupted, went_wrong},
    failures::{Failures, Remains},
    ground_truth::GroundTruth,
    monitor::{AgentMonitor, THRESHOLD},
};
use coroner_core::{
    leak::Leak,
    types::{MilestoneKind, Source},
};
use coroner_lab_cluster::{Cluster, delay::Delays, kubelet, wait};
use coroner_lab_scenarios as scenarios;
use coroner_lab_scenarios::{Scenario, left};
use futures::{StreamExt as _, stream::FuturesUnordered};
use outcome::{Note, ScenarioOutcome};
use play::Playing;
use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Of so many pods whose connections were counted, at least one must show what was open at the end, and half must have
/// been counted from before the stop signal.
const MANY: usize = 10;
/// How long the lab's collector may take for what is left when all scenarios have ended.
const COLLECTION: Duration = Duration::from_secs(60);
/// Failures that are of no single scenario: the folders in which they are kept.
const WHOLE: &str = "run";
const STRAYS: &str = "of-no-scenario";

/// What a run of scenarios is asked to do.
#[derive(Clone, Debug)]
pub struct RunOptions {
    pub scenarios: Vec<Scenario>,
    /// Leave everything up until Ctrl-C.
    pub keep: bool,
    /// Where the agent listens; `None`: a port that is free.
    pub listen: Option<SocketAddr>,
    /// How late the agent's sources answer. What is expected of times is that of punctual ones, and is not compared then.
    pub delays: Delays,
    /// A real node instead of the lab.
    pub real: Option<RealNode>,
}

/// A real node to observe.
#[derive(Clone, Debug)]
pub struct RealNode {
    /// Its runtime's socket.
    pub cri: String,
    /// A way to its apiserver.
    pub kubeconfig: PathBuf,
    /// Its name.
    pub node: String,
}

/// Plays the scenarios. True: everything agreed. Whatever happens, nothing is left behind.
pub async fn run(setup: &Setup, options: &RunOptions) -> anyhow::Result<bool> {
    let mut environment = Environment::new(setup)?;
    if let Some(node) = &options.real {
        live::observe(environment, setup, options.listen, node).await?;
        return Ok(true);
    }
    let mut options = options.clone();
    if options.delays.any() {
        options.scenarios.iter_mut().for_each(|scenario| scenario.expected.ignore_times());
    }
    let (console, work) = (environment.console, environment.work());
    let failures = Failures::new(setup.failed.clone(), &work);
    let mut monitor = None;
    let played = play(setup, &options, &failures, &mut environment, &mut monitor);
    let result = unless_interrupted(console, played).await;
    if went_wrong(&result) {
        let up = (environment.cluster(), monitor.as_ref());
        save(&failures, WHOLE, up, &work).await;
    }
    if options.keep && result.is_ok() {
        console.print(&whereabouts(environment.cluster(), monitor.as_ref()).await);
        interrupted().await;
    }
    if let Some(monitor) = monitor {
        monitor.stop().await;
    }
    // Whatever failed is kept elsewhere.
    let result = environment.tear_down(result, false).await;
    let _ = fs::remove_file(work.join(AGENT_LOG));
    let _ = fs::remove_dir(work);
    result
}

async fn play(
    setup: &Setup,
    options: &RunOptions,
    failures: &Failures,
    environment: &mut Environment,
    monitor: &mut Option<AgentMonitor>,
) -> anyhow::Result<bool> {
    let console = environment.console;
    let work = environment.work();
    let lab = environment.set_up().await?;
    if options.delays.any() {
        lab.delay(options.delays).await?;
    }
    let (lab, work) = (&*lab, &work);
    start_resident(lab).await?;
    let scenarios: Vec<&Scenario> =
        options.scenarios.iter().filter(|one| can_be_played(one, lab, console)).collect();
    let mut begun: BTreeMap<&str, Playing<'_>> = BTreeMap::new();
    for &scenario in &scenarios {
        if let Some(steps) = scenario.around_agent().0 {
            console.step(&format!("starting {} before the agent", scenario.name));
            let mut playing = Playing::begin(scenario, scenario.name, lab).await?;
            playing.act(steps, None).await?;
            begun.insert(scenario.name, playing);
        }
    }
    let truth = GroundTruth::of(lab, THRESHOLD);
    console.step("starting the agent");
    let agent = agent::AgentOptions { listen: options.listen, ..Environment::agent(setup, lab) };
    let watcher = &*monitor.insert(AgentMonitor::for_scenarios(lab, agent).await?);
    let ready = watcher.of_agent(|agent| agent.ready_after()).await?;
    console.step(&format!("the agent is ready after {:.2} s", ready.as_secs_f64()));

    // What breaks the node would break the others: one at a time, when these have ended.
    let (alone, at_once): (Vec<&Scenario>, Vec<&Scenario>) =
        scenarios.iter().partition(|scenario| scenario.alone);
    console.step(&format!("playing {} scenarios at once", at_once.len()));
    let rounds = std::iter::once(at_once).chain(alone.into_iter().map(|one| vec![one]));
    let mut outcomes: BTreeMap<&str, ScenarioOutcome> = BTreeMap::new();
    let mut look = tokio::time::interval(Duration::from_secs(1));
    for round in rounds {
        let mut playing: FuturesUnordered<_> = round
            .into_iter()
            .map(|scenario| {
                let begun = begun.remove(scenario.name);
                scenario::from_begin_to_end(scenario, lab, watcher, &truth, begun)
            })
            .collect();
        loop {
            tokio::select! {
                next = playing.next() => {
                    let Some(mut outcome) = next else { break };
                    if !outcome.ok {
                        let up = (Some(lab), Some(watcher));
                        outcome.kept = save(failures, outcome.scenario, up, work).await;
                    }
                    report::outcome(console, &outcome, scenarios.len() == 1);
                    console.object(&outcome);
                    outcomes.insert(outcome.scenario, outcome);
                }
                _ = look.tick() => watcher.check()?,
            }
        }
        lab.run_kubelet(kubelet::VERSION)?;
        watcher.run_plainly().await?;
    }
    let in_order: Vec<ScenarioOutcome> =
        options.scenarios.iter().filter_map(|s| outcomes.remove(s.name)).collect();
    report::table(console, &in_order);
    console.print(&watcher.of_agent(|agent| facts(lab, agent, &in_order)).await?);
    watcher.check()?;
    let strays = strays(watcher, &truth, &in_order).await;
    for leak in &strays {
        let what = left::which(&leak.key);
        console.print(&format!("✘ {} of {what}, of no scenario\n", leak.class));
        console.print(&console.leak(leak));
        console.object(&Note::Stray { stray: leak });
    }
    if !strays.is_empty() {
        save(failures, STRAYS, (Some(lab), Some(watcher)), work).await;
    }
    let (known, all) = still_open(&in_order);
    let sees_the_end = known > 0 || all < MANY;
    if !sees_the_end {
        console.print(&format!("✘ for none of {all} pods it is known what was open at the end\n"));
    }
    let counted: Vec<_> = in_order.iter().filter_map(counted_pod).collect();
    let is_in_time = are_counted_in_time(&counted);
    if !is_in_time {
        let late = in_order.iter().filter(|outcome| outcome.excused);
        let names: Vec<_> = late.map(|outcome| outcome.scenario).collect();
        console.print(&format!("✘ counted too late: the connections of {}\n", names.join(", ")));
    }
    Ok(sees_the_end && is_in_time && strays.is_empty() && in_order.iter().all(|outcome| outcome.ok))
}

/// Starts the pod that every node has.
pub async fn start_resident(lab: &Cluster) -> anyhow::Result<()> {
    let resident = scenarios::resident();
    Playing::begin(&resident, resident.name, lab).await?;
    Ok(())
}

/// A pod whose connections can be counted.
#[derive(Clone, Copy)]
struct CountedPod {
    /// Counting began after its stop signal.
    is_late: bool,
    /// The agent had received the deletion request before.
    was_requested: bool,
}

fn counted_pod(outcome: &ScenarioOutcome) -> Option<CountedPod> {
    outcome.expected.traffic.as_ref().filter(|traffic| traffic.not_visible.is_none())?;
    let report = outcome.timeline.as_ref()?;
    let request = report.milestone(MilestoneKind::DeleteRequested);
    let was_requested = request.is_some_and(|request| request.source != Source::Inferred);
    Some(CountedPod { is_late: outcome.excused, was_requested })
}

/// Enough pods were counted from before their stop signal. Of few pods, of which one has a preStop hook, one is enough,
/// or that the requests came late. A single pod may have none.
fn are_counted_in_time(pods: &[CountedPod]) -> bool {
    let late = pods.iter().filter(|pod| pod.is_late).count();
    match pods.len() {
        0 | 1 => true,
        MANY.. => late * 2 <= pods.len(),
        few => late < few || !pods.iter().any(|pod| pod.was_requested),
    }
}

/// Of how many pods it is known which connections outlived them, and of how many it could be.
fn still_open(outcomes: &[ScenarioOutcome]) -> (usize, usize) {
    let seen = outcomes.iter().filter_map(|outcome| outcome.timeline.as_ref()?.traffic.as_ref());
    let all: Vec<_> = seen.filter(|traffic| traffic.not_visible.is_none()).collect();
    (all.iter().filter(|traffic| traffic.still_open.is_some()).count(), all.len())
}

/// Where what is up can be reached.
async fn whereabouts(lab: Option<&Cluster>, monitor: Option<&AgentMonitor>) -> String {
    let mut text = String::from("\nleft up until Ctrl-C:\n");
    if let Some(monitor) = monitor
        && let Ok(url) = monitor.of_agent(|agent| agent.url()).await
    {
        text.push_str(&format!("  agent       {url}\n"));
    }
    if let Some(lab) = lab {
        text.push_str(&format!(
            "  apiserver   {}\n  kubeconfig  {}\n  CRI         {}\n",
            lab.url(),
            lab.kubeconfig().display(),
            lab.cri()
        ));
    }
    text
}

/// Keeps what a failure leaves, of what is up.
async fn save(
    failures: &Failures,
    name: &str,
    (lab, monitor): (Option<&Cluster>, Option<&AgentMonitor>),
    work: &Path,
) -> Option<PathBuf> {
    let agent = match monitor {
        Some(monitor) => monitor.of_agent(Agent::http).await.ok(),
        None => None,
    };
    let kubelet = lab.map(Cluster::kubelet);
    failures.save(name, Remains { agent: agent.as_ref(), kubelet, work: Some(work) }).await
}

/// Leaks that the agent reported, that are of no scenario and none by the ground truth. A busy node has many sandboxes
/// to remove, so some of them count as leaked before their turn comes: they have as long as the collector may take.
pub async fn strays(
    monitor: &AgentMonitor,
    truth: &GroundTruth,
    outcomes: &[ScenarioOutcome],
) -> Vec<Leak> {
    let known = |leak: &&Leak| {
        outcomes.iter().any(|outcome| outcome.leaks.iter().any(|own| own.key == leak.key))
    };
    let stray = |leak: &&Leak| !known(leak) && !truth.was_leaked_for_a_while(leak);
    let all = || -> Vec<Leak> {
        monitor.reports().borrow().ever.values().filter(stray).cloned().collect()
    };
    let none = || Ok(all().is_empty().then_some(()));
    // What is there after that is reported.
    let _ = wait::until_within(COLLECTION, "the collector has removed what is left", none).await;
    all()
}

/// Says why, if not.
fn can_be_played(scenario: &Scenario, lab: &Cluster, console: Console) -> bool {
    let missing = if scenario.needs_memory_limit() && !lab.can_limit_memory() {
        "no memory controller here, neither on cgroup2 nor on v1, so that no container can be limited"
    } else if scenario.needs_user_namespace() && !lab.has_user_namespaces() {
        "of the lab's versions of containerd only 1.7 gives a pod a user namespace with runc 1.1"
    } else if scenario.needs_systemd() && !lab.has_systemd() {
        "it takes --cgroup-driver systemd"
    } else {
        return true;
    };
    console.step(&format!("leaving out {}: {missing}", scenario.name));
    console.object(&Note::LeftOut { scenario: scenario.name, left_out: missing });
    false
}

/// Figures beside the scenarios: printed, never asserted.
fn facts(lab: &Cluster, agent: &Agent, outcomes: &[ScenarioOutcome]) -> String {
    let mut text = String::from("\n");
    if let Some((now, peak)) = agent.memory() {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        text.push_str(&format!(
            "agent: {:.1} MiB resident (at most {:.1}), ready {:.2} s after its start\n",
            mib(now),
            mib(peak),
            agent.ready_after().as_secs_f64()
        ));
    }
    let (known, all) = still_open(outcomes);
    if all > 0 {
        text.push_str(&format!("what was open at the end is known of {known} of {all} pods\n"));
    }
    let differences: Vec<(&str, MilestoneKind, i64)> = outcomes
        .iter()
        // Where there is only one life, and one log of it.
        .filter(|outcome| outcome.expected.earlier.is_empty() && outcome.expected.lives == 1)
        .filter_map(|outcome| Some((outcome.scenario, outcome.timeline.as_ref()?)))
        .flat_map(|(name, timeline)| {
            scenario::clock_differences(lab, timeline)
                .into_iter()
                .map(move |(kind, difference)| (name, kind, difference))
        })
        .collect();
    if let Some((name, kind, worst)) =
        differences.iter().max_by_key(|(_, _, difference)| difference.unsigned_abs())
    {
        text.push_str(&format!(
            "times: {} compared with the workloads' own record, the greatest difference is \
             {:+.3} ms ({kind} of {name})\n",
            differences.len(),
            *worst as f64 / 1e6
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use coroner_api::terminations::Termination;
    use coroner_core::report::PodTermination;
    use coroner_lab_scenarios::clients::compare;
    use serde_json::{Value, json};

    /// A report whose connections were counted like this.
    fn termination(traffic: Value) -> PodTermination {
        const REPORT: &str = include_str!("../../../../agent/api/tests/v1/termination.json");
        let mut report: Value = serde_json::from_str(REPORT).unwrap();
        report["traffic"] = traffic;
        let report: Termination = serde_json::from_value(report).unwrap();
        PodTermination::from(report)
    }

    #[test]
    fn enough_pods_are_counted_in_time() {
        let pod = |is_late, was_requested| super::CountedPod { is_late, was_requested };
        let (early, late, late_request) = (pod(false, true), pod(true, true), pod(true, false));
        for (pods, enough) in [
            (vec![], true),
            (vec![late], true),
            (vec![late; 2], false),
            (vec![late_request; 2], true),
            (vec![early, late, late], true),
            ([vec![early; 5], vec![late; 5]].concat(), true),
            ([vec![early; 5], vec![late_request; 6]].concat(), false),
        ] {
            assert_eq!(super::are_counted_in_time(&pods), enough, "{} pods", pods.len());
        }
    }

    #[test]
    fn counting_began_late_if_it_was_after_the_stop_or_never() {
        let at = |ns: u64| json!({ "time": "2026-11-26T18:34:58Z", "bootNs": ns });
        for (since, blind, late) in [
            (10, Value::Null, false),
            (25, Value::Null, true),
            (25, json!("too_late"), true),
            (10, json!("no_process"), true),
            (10, json!("host_network"), false),
        ] {
            let report = termination(json!({
                "notVisible": blind, "since": at(since), "until": at(30), "stopped": at(20),
                "seesRefusals": true, "counts": [],
            }));
            assert_eq!(compare::began_late(&report), late, "{since} {blind}");
        }
    }
}
