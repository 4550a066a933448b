//! One round: pods come and go, a fault is done meanwhile, all settles, and the judge judges.

use super::{
    ChaosOptions, ChaosTargets, SETTLE, THRESHOLD,
    churn::{Churn, Pod1},
    fault::{Deed, Fault},
    inflict::{Done, Hands},
    judge::{self, Judgement, Life, RoundFacts, Stray, mib},
    vitals::Vitals,
};
use anyhow::Context as _;
use coroner_core::{leak::LeakKey, time::WallTime};
use coroner_lab_cluster::{Cluster, wait::LIMIT};
use coroner_lab_harness::{
    failures::{Failures, Remains},
    monitor::AgentReports,
};
use coroner_lab_scenarios::left;
use rustix::process::{Pid, Signal};
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

/// After the first pod runs, what else is about to die when the fault comes: only so that each round
/// has pods at different stages.
const BEFORE: Duration = Duration::from_millis(1500);
/// After the last pod's end: what looks leaked is reported. A false report that does not come cannot
/// be waited for; one that comes later on a slow machine is found in the next round.
const QUIET: Duration = THRESHOLD.saturating_add(Duration::from_secs(3));
/// How often the lab looks whether that has come.
const LOOK: Duration = Duration::from_millis(300);

/// Complaints that are shown of one round.
pub(super) const MOST_LINES: usize = 20;

/// What came of a round.
#[derive(Debug)]
pub(super) struct RoundOutcome {
    pub(super) fault: &'static str,
    pub(super) done: String,
    pub(super) judgement: Judgement,
    pub(super) after: Vitals,
    /// What the agent counted as lost.
    pub(super) lost: u64,
    /// The longest that the agent took to be ready, from its start or from the fault's end.
    pub(super) ready: Duration,
    pub(super) took: Duration,
    /// Pods that the lab failed to start or to end.
    pub(super) stillborn: Vec<String>,
}

impl RoundOutcome {
    /// For a person.
    pub(super) fn line(&self) -> String {
        let judgement = &self.judgement;
        let mark = if judgement.is_good() { '✔' } else { '✘' };
        let mut text = format!(
            "{mark} {:<20} {:>3} deaths: {} right, {} unknown, {} missing, {} wrong; {} false leaks; \
             {} lost; ready in {:.1} s; {}, {} fds, {} threads; {:.0} s",
            self.fault,
            judgement.deaths,
            judgement.right,
            judgement.unknown,
            judgement.missing,
            judgement.wrong,
            judgement.false_leaks,
            self.lost,
            self.ready.as_secs_f64(),
            mib(self.after.memory),
            self.after.fds,
            self.after.threads,
            self.took.as_secs_f64(),
        );
        if !self.done.is_empty() {
            text.push_str(&format!("; {}", self.done));
        }
        text.push('\n');
        for complaint in judgement.complaints.iter().take(MOST_LINES) {
            text.push_str(&format!("    ✘ {complaint}\n"));
        }
        for goal in &judgement.missed_goals {
            text.push_str(&format!("    goal missed: {goal}\n"));
        }
        for left in &judgement.left_behind {
            text.push_str(&format!("    leaked in truth: {left}\n"));
        }
        for pod in &self.stillborn {
            text.push_str(&format!("    the lab: {pod}\n"));
        }
        text
    }
}

/// All rounds together, for a person.
pub(super) fn summary(outcomes: &[RoundOutcome], seed: u64) -> String {
    let sum = |of: fn(&Judgement) -> usize| -> usize {
        outcomes.iter().map(|outcome| of(&outcome.judgement)).sum()
    };
    let bad: BTreeSet<_> = outcomes
        .iter()
        .filter(|outcome| !outcome.judgement.is_good())
        .map(|outcome| outcome.fault)
        .collect();
    let text = format!(
        "{} rounds, {} deaths: {} right, {} unknown, {} missing, {} wrong; {} false leaks",
        outcomes.len(),
        sum(|j| j.deaths),
        sum(|j| j.right),
        sum(|j| j.unknown),
        sum(|j| j.missing),
        sum(|j| j.wrong),
        sum(|j| j.false_leaks),
    );
    match bad.is_empty() {
        true => format!("{text}: all that is demanded holds"),
        false => {
            format!(
                "{text}: it falls short under {} (--seed {seed})",
                bad.into_iter().collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// Plays rounds, one after the other.
pub(super) struct Round<'a> {
    stage: &'a ChaosTargets<'a>,
    churn: Churn<'a>,
    random: fastrand::Rng,
    /// At rest, when it had warmed up.
    rest: Option<Vitals>,
    /// With what it took after the first round; otherwise somebody else judges what it takes.
    compares: bool,
    options: &'a ChaosOptions,
    failures: Failures,
    /// Reports of leaks that were held against the ground truth.
    known: BTreeSet<(LeakKey, WallTime)>,
}

impl<'a> Round<'a> {
    pub(super) fn on(stage: &'a ChaosTargets<'a>, options: &'a ChaosOptions) -> Self {
        let pages: &Path = &stage.pages.0;
        Self {
            options,
            failures: Failures::new(options.setup.failed.clone(), &options.setup.cluster.work),
            stage,
            churn: Churn::new(stage.lab, pages),
            random: fastrand::Rng::with_seed(options.seed),
            rest: None,
            compares: true,
            known: BTreeSet::new(),
        }
    }

    /// The same, where what it takes is judged over the whole time.
    pub(super) fn of_a_soak(stage: &'a ChaosTargets<'a>, options: &'a ChaosOptions) -> Self {
        Self { compares: false, ..Self::on(stage, options) }
    }

    /// One round of this fault. What it leaves if it fails is kept.
    pub(super) async fn play(&mut self, fault: &'static Fault) -> anyhow::Result<RoundOutcome> {
        let played = self.try_to_play(fault).await;
        if played.is_err() {
            self.keep(fault).await;
        }
        played.with_context(|| format!("under {} (--seed {})", fault.name, self.options.seed))
    }

    async fn keep(&self, fault: &Fault) {
        let (agent, lab) = (self.stage.agent.http(), self.stage.lab);
        let remains = Remains {
            agent: agent.as_ref(),
            kubelet: Some(lab.kubelet()),
            work: Some(self.stage.lab.work()),
        };
        self.failures.save(&format!("chaos-{}", fault.name), remains).await;
    }

    async fn try_to_play(&mut self, fault: &'static Fault) -> anyhow::Result<RoundOutcome> {
        let began = Instant::now();
        let agent = self.stage.agent;
        let before = Vitals::of_agent(agent).await?;
        agent.clear_death_history();
        self.churn.begin();
        let hands =
            Hands { lab: self.stage.lab, churn: &self.churn, agent, between: &self.stage.between };
        let (seed, mut random) = (self.random.u64(..), self.random.fork());
        let churning = self.churn.run(seed);
        let disturbing = async {
            self.churn.one_runs().await;
            tokio::time::sleep(BEFORE).await;
            let done = hands.inflict(fault, &mut random).await;
            self.churn.end();
            hands.mend().await?;
            let ready = agent.ready_within(LIMIT).await;
            done.map(|done| (done, ready))
        };
        let watching = async {
            loop {
                // An agent that died ends the round soon.
                tokio::time::sleep(Duration::from_secs(1)).await;
                if let Err(error) = agent.check() {
                    return error;
                }
            }
        };
        let ((), (done, ready)): ((), (Done, Option<Duration>)) = tokio::select! {
            both = async { tokio::join!(churning, disturbing) } => (both.0, both.1?),
            error = watching => return Err(error),
        };
        let pods = self.churn.pods();
        let mut counted = Vitals::of_agent(agent).await?;
        // Another agent counts from zero.
        let before = if fault.deed.replaces_agent() { Vitals::default() } else { before };
        self.settle(&pods, &before).await?;
        if fault.deed == Deed::SmallRing {
            counted = Vitals::of_agent(agent).await?;
            agent.kill(&[], Duration::ZERO).await?;
            // What the new agent takes at rest, once it has looked at everything.
            tokio::time::sleep(THRESHOLD).await;
        }
        let after = Vitals::of_agent(agent).await?;
        let lost =
            |of: fn(&Vitals) -> u64| of(&counted).max(of(&after)).saturating_sub(of(&before));
        let (lost, lost_deaths) = (lost(Vitals::losses), lost(Vitals::losses_that_decide));
        // One after the other: each takes what was told for itself.
        let lives = lives(self.stage.lab, &pods, fault, &agent.reports().borrow());
        let strays = self.strays();
        let facts = RoundFacts {
            lives,
            strays,
            absences: agent.absences(),
            ready,
            before: self.rest.clone(),
            after: after.clone(),
            lost: lost_deaths,
        };
        let mut judgement = judge::judge_round(fault, &facts);
        if self.options.goals {
            judgement.complaints.append(&mut judgement.missed_goals);
        }
        let failed_before = !judgement.is_good();
        if failed_before {
            self.keep(fault).await;
        }
        judgement.complaints.extend(self.clear().await?);
        if !failed_before && !judgement.is_good() {
            self.keep(fault).await;
        }
        if self.compares {
            self.rest.get_or_insert_with(|| after.clone());
        }
        Ok(RoundOutcome {
            fault: fault.name,
            done: done.what,
            judgement,
            after,
            lost,
            ready: done.ready.max(ready.unwrap_or(LIMIT)),
            took: began.elapsed(),
            stillborn: pods
                .iter()
                .filter_map(|pod| Some(format!("{}: {}", pod.name, pod.failure.as_ref()?)))
                .collect(),
        })
    }

    /// Until the agent has reported all deaths that it owes, and what it would take for leaked it
    /// would have reported.
    async fn settle(&self, pods: &[Pod1], before: &Vitals) -> anyhow::Result<()> {
        tokio::time::sleep(QUIET.max(SETTLE)).await;
        let absences = self.stage.agent.absences();
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            self.stage.agent.check()?;
            let missing = {
                let reports = self.stage.agent.reports();
                let told = reports.borrow();
                let owed = |pod: &Pod1| pod.died.is_some_and(|at| judge::is_owed(at, &absences));
                pods.iter().any(|pod| owed(pod) && !told.death_history.contains_key(&pod.uid))
            };
            // A death whose record the agent has counted as lost never comes.
            let lost = Vitals::of_agent(self.stage.agent).await?.losses_that_decide();
            if !missing || lost > before.losses_that_decide() {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// What was reported as leaked since the last round, and whether it was.
    fn strays(&mut self) -> Vec<Stray> {
        let (reports, starts) = (self.stage.agent.reports(), self.stage.agent.starts());
        let told = reports.borrow();
        let mut strays = Vec::new();
        for (report, leak) in &told.first {
            if self.known.insert(report.clone()) {
                strays.push(Stray {
                    what: format!("{} of {}", leak.class, left::which(&leak.key)),
                    truth: self.stage.truth.of_leak(leak, &starts),
                });
            }
        }
        strays
    }

    /// Clears away all that is reported as leaked, which then must not be reported any more. What
    /// still is, as sentences.
    async fn clear(&self) -> anyhow::Result<Vec<String>> {
        let hand = self.stage.lab.hand();
        let began = Instant::now();
        loop {
            let left = self.stage.agent.reports().borrow().leaks.clone();
            if left.is_empty() {
                return Ok(Vec::new());
            }
            if began.elapsed() > LIMIT {
                let still = left.keys().map(|key| {
                    format!("still reported as leaked, and was cleared away: {}", left::which(key))
                });
                return Ok(still.collect());
            }
            for leak in left.values() {
                let uid = leak.pod.as_ref().map(|pod| pod.uid.as_str());
                match (&leak.key, uid) {
                    (LeakKey::Shim { pid, .. }, _) => kill(*pid),
                    (LeakKey::PodCgroup { pod, .. }, _) => {
                        leak.resources.pids.iter().for_each(|pid| kill(*pid));
                        // Busy still: the next time.
                        let _ = hand.remove_cgroup(pod.as_str()).await;
                    }
                    (LeakKey::Sandbox { .. }, Some(uid)) => {
                        let _ = hand.remove_sandboxes(uid).await;
                    }
                    _ => {}
                }
            }
            self.stage.agent.check()?;
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// SIGKILL; whoever is gone already is as good as killed.
fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// What is known of each pod, for the judge.
fn lives(lab: &Cluster, pods: &[Pod1], fault: &Fault, told: &AgentReports) -> Vec<Life> {
    pods.iter()
        .map(|pod| Life {
            name: pod.name.clone(),
            end: pod.end(lab, fault.deed.may_kill() || pod.failure.is_some()),
            died: pod.died,
            told: told.death_history.get(&pod.uid).cloned().unwrap_or_default(),
        })
        .collect()
}
