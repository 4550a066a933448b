//! Plays a scenario from its beginning to its end, and compares what came out with what was expected.

use super::{
    clock,
    leaks::ScenarioLeaks,
    outcome::ScenarioOutcome,
    play::{Account, Playing, lines, pod_id},
    spans,
};
use crate::{ground_truth::GroundTruth, monitor::AgentMonitor};
use coroner_core::{report::PodTermination, types::MilestoneKind};
use coroner_lab_cluster::Cluster;
use coroner_lab_scenarios::{
    Expected, Scenario, Span,
    clients::compare,
    judge::{self, ObservedReport, Revisions},
};
use futures::{StreamExt as _, future::join_all, stream};

/// So many pods of a scenario are made at the same time.
const AT_ONCE: usize = 8;

/// Plays a scenario and compares what came out of it with what was expected.
pub async fn from_begin_to_end(
    scenario: &Scenario,
    lab: &Cluster,
    watcher: &AgentMonitor,
    truth: &GroundTruth,
    begun: Option<Playing<'_>>,
) -> ScenarioOutcome {
    let names: Vec<String> = scenario.pods().collect();
    // All of them run before the first is acted upon.
    let begun: Vec<_> = match begun {
        Some(playing) => vec![Ok(playing)],
        None => {
            let begins = names.iter().map(|name| Playing::begin(scenario, name, lab));
            stream::iter(begins).buffered(AT_ONCE).collect().await
        }
    };
    let outcomes = begun.into_iter().map(|one| play(scenario, lab, watcher, truth, one));
    let outcomes = join_all(outcomes).await;
    let (excused, all) = (outcomes.iter().filter(|one| one.excused).count(), outcomes.len());
    let mut outcomes = outcomes.into_iter();
    let mut whole = outcomes.next().expect("it has a name");
    whole.disagreements.extend(outcomes.flat_map(|other| other.disagreements));
    // Of many it is not the first that counts.
    whole.excused &= all == 1;
    if all > 1 && excused * 2 > all {
        whole.disagreements.push(format!("{excused} of {all} pods: connections counted too late"));
    }
    whole.ok = whole.disagreements.is_empty();
    whole
}

/// Plays one of its pods, which runs.
async fn play(
    scenario: &Scenario,
    lab: &Cluster,
    watcher: &AgentMonitor,
    truth: &GroundTruth,
    begun: anyhow::Result<Playing<'_>>,
) -> ScenarioOutcome {
    let mut accounts = watcher.reports();
    let mut left = ScenarioLeaks::default();
    let account = async {
        let mut playing = begun?;
        let played = async {
            if scenario.around_agent().0.is_some() {
                playing.is_listed().await; // what ran before the agent did
            }
            playing.act(scenario.around_agent().1, Some(watcher)).await?;
            if scenario.expected.lives == 0 {
                left = playing.watch(&mut accounts, truth).await;
                return playing.account(&mut accounts).await;
            }
            let account = playing.account(&mut accounts).await?;
            if scenario.watched {
                left = playing.watch(&mut accounts, truth).await;
            }
            anyhow::Ok(account)
        }
        .await;
        if scenario.watched {
            let cleared = playing.clear(&mut accounts).await;
            left.note_end(&playing.things, &accounts.borrow(), truth, cleared);
        }
        played
    };
    let account = account.await;
    outcome(scenario, lab, account, left)
}

/// Compares an account with what was expected.
fn outcome(
    scenario: &Scenario,
    lab: &Cluster,
    account: anyhow::Result<Account>,
    left: ScenarioLeaks,
) -> ScenarioOutcome {
    let mut expected = scenario.expected.clone();
    let mut excused = false;
    let (timeline, observed, mut disagreements) = match account {
        Ok(mut account) => {
            let mut points = Vec::new();
            let mut observed = None;
            if expected.lives == 0 {
                // What was left by hand ends when it is cleaned up.
                if scenario.has_pod() && !account.lives.is_empty() {
                    points.push("an end of the pod was told that nobody expected".into());
                }
                account.lives.clear();
            }
            for life in &account.lives {
                let mut seen = ObservedReport::of(life, &account.earlier);
                let repeats = !lab.delays().runtime.is_zero();
                seen.earlier = judge::as_expected(&expected.earlier, seen.earlier, repeats);
                expected.phases = phases(&scenario.expected, lab, life);
                if expected.traffic.is_some() && compare::began_late(life) {
                    excused = true;
                    expected.excuse_traffic();
                }
                points.extend(judge::disagreements(&expected, &seen));
                points.extend(too_few_calls(&expected, lab, life));
                if let Some(traffic) = &expected.traffic {
                    points.extend(compare::disagreements(traffic, &account.clients, life));
                }
                if lab.delays().any() {
                    points.extend(Revisions::of(life, &account.first).disagreements(&expected));
                }
                observed = Some(seen);
            }
            (account.lives.pop(), observed, points)
        }
        Err(error) => (None, None, vec![format!("{error:#}")]),
    };
    disagreements.extend(left.points);
    ScenarioOutcome {
        scenario: scenario.name,
        group: scenario.group,
        shows: scenario.shows,
        expected,
        observed,
        ok: disagreements.is_empty(),
        disagreements,
        timeline,
        watched: scenario.watched,
        excused,
        leaks: left.leaks,
        kept: None,
    }
}

/// What the phases of this life may have taken, as the lab has recorded it.
fn phases(expected: &Expected, lab: &Cluster, timeline: &PodTermination) -> Vec<Span> {
    let id = timeline.critical.as_ref();
    let critical = timeline.containers.iter().find(|death| Some(&death.id) == id);
    let Some(critical) = critical else { return expected.phases.clone() };
    let stops = lab.kubelet().stops(critical.id.as_str());
    let lines = lines(&pod_id(timeline).log_file(lab.logs(), &critical.name));
    let deleted = lab.deleted_at(&pod_id(timeline).name);
    expected.phases.iter().map(|span| spans::fit(*span, deleted, &stops, &lines)).collect()
}

fn too_few_calls(expected: &Expected, lab: &Cluster, timeline: &PodTermination) -> Option<String> {
    let wanted = expected.calls?;
    let id = pod_id(timeline);
    let calls: usize = timeline
        .containers
        .iter()
        .map(|death| clock::calls(death, &lines(&id.log_file(lab.logs(), &death.name))))
        .sum();
    (calls < wanted).then(|| {
        format!(
            "{calls} calls to the apiserver between handler and end, expected {wanted} at least"
        )
    })
}

/// How far the agent's times are from the workload's own, ns.
pub fn clock_differences(lab: &Cluster, timeline: &PodTermination) -> Vec<(MilestoneKind, i64)> {
    let id = pod_id(timeline);
    timeline
        .containers
        .iter()
        .flat_map(|death| clock::differences(death, &lines(&id.log_file(lab.logs(), &death.name))))
        .collect()
}
