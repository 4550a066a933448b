//! One round: pods come and go, a fault is done meanwhile, all settles, and the judge judges.

use super::{
    Stage,
    churn::{Churn, Pod1},
    fault::{Deed, Fault},
    inflict::{Done, Hands},
    judge::{self, Facts, Judgement, Life, READY_WITHIN, Stray, mib},
    vitals::Vitals,
    watched::{SETTLE, THRESHOLD, Told, ToldLeak},
};
use crate::{scenario::left, tour::lab::Lab};
use coroner::domain::leak::LeakKey;
use rustix::process::{Pid, Signal};
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    time::{Duration, Instant},
};

/// The churn before the fault: what is about to die when it comes.
const BEFORE: Duration = Duration::from_millis(1500);
/// After the last pod's end: the last account is closed, and what looks left behind is told.
const QUIET: Duration = THRESHOLD.saturating_add(Duration::from_secs(3));
/// How long the agent may go on telling of what was cleared away.
const TO_CLEAR: Duration = Duration::from_secs(20);
/// How long the last accounts may take beyond that.
const TO_TELL: Duration = Duration::from_secs(10);

/// Complaints that are shown of one round.
pub(super) const MOST_LINES: usize = 20;

/// What came of a round.
#[derive(Debug)]
pub(super) struct Outcome {
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

impl Outcome {
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
        for left in &judgement.left_behind {
            text.push_str(&format!("    left behind in truth: {left}\n"));
        }
        for pod in &self.stillborn {
            text.push_str(&format!("    the lab: {pod}\n"));
        }
        text
    }
}

/// All rounds together, for a person.
pub(super) fn summary(outcomes: &[Outcome]) -> String {
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
                "{text}: it falls short under {}",
                bad.into_iter().collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// Plays rounds, one after the other.
pub(super) struct Round<'a> {
    stage: &'a Stage,
    churn: Churn<'a>,
    random: fastrand::Rng,
    /// At rest, when it had warmed up.
    rest: Option<Vitals>,
    /// With what it took after the first round; otherwise somebody else judges what it takes.
    compares: bool,
    /// What was told as left behind before: told once.
    known: BTreeSet<LeakKey>,
}

impl<'a> Round<'a> {
    pub(super) fn on(stage: &'a Stage, seed: u64) -> Self {
        let pages: &Path = &stage.pages.0;
        Self {
            stage,
            churn: Churn::new(&stage.lab, pages),
            random: fastrand::Rng::with_seed(seed),
            rest: None,
            compares: true,
            known: BTreeSet::new(),
        }
    }

    /// The same, where what it takes is judged over the whole time.
    pub(super) fn of_a_soak(stage: &'a Stage, seed: u64) -> Self {
        Self { compares: false, ..Self::on(stage, seed) }
    }

    /// One round of this fault.
    pub(super) async fn play(&mut self, fault: &'static Fault) -> anyhow::Result<Outcome> {
        let began = Instant::now();
        let agent = &self.stage.agent;
        let before = agent.vitals().await?;
        agent.told().deaths.clear();
        self.churn.begin();
        let hands =
            Hands { lab: &self.stage.lab, churn: &self.churn, agent, between: &self.stage.between };
        let (seed, mut random) = (self.random.u64(..), self.random.fork());
        let churning = self.churn.run(seed);
        let disturbing = async {
            tokio::time::sleep(BEFORE).await;
            let done = hands.inflict(fault, &mut random).await;
            self.churn.end();
            hands.mend().await?;
            let ready = agent.ready_within(READY_WITHIN).await;
            done.map(|done| (done, ready))
        };
        let watching = async {
            loop {
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
        let mut counted = agent.vitals().await?;
        self.settle(&pods).await?;
        if fault.deed == Deed::SmallRing {
            counted = agent.vitals().await?;
            agent.kill(&[], Duration::ZERO).await?;
            tokio::time::sleep(THRESHOLD).await;
        }
        let after = agent.vitals().await?;
        let lost = |of: fn(&Vitals) -> u64| {
            // Another agent counts from zero.
            let before = if fault.deed.replaces_agent() { 0 } else { of(&before) };
            of(&counted).max(of(&after)).saturating_sub(before)
        };
        let (lost, lost_deaths) = (lost(Vitals::losses), lost(Vitals::losses_that_decide));
        // One after the other: each takes what was told for itself.
        let lives = lives(&self.stage.lab, &pods, fault, &agent.told());
        let strays = self.strays(&pods);
        let facts = Facts {
            lives,
            strays,
            absences: agent.absences(),
            ready,
            before: self.rest.clone(),
            after: after.clone(),
            lost: lost_deaths,
        };
        let mut judgement = judge::judge_round(fault, &facts);
        if !judgement.left_behind.is_empty() {
            judgement.complaints.extend(self.clear().await?);
        }
        if self.compares {
            self.rest.get_or_insert_with(|| after.clone());
        }
        Ok(Outcome {
            fault: fault.name,
            done: done.what,
            judgement,
            after,
            lost,
            ready: done.ready.max(ready.unwrap_or(READY_WITHIN)),
            took: began.elapsed(),
            stillborn: pods
                .iter()
                .filter_map(|pod| Some(format!("{}: {}", pod.name, pod.failure.as_ref()?)))
                .collect(),
        })
    }

    /// Until the agent has told all that it will tell, and what it would take for left behind it
    /// would have told.
    async fn settle(&self, pods: &[Pod1]) -> anyhow::Result<()> {
        tokio::time::sleep(QUIET.max(SETTLE)).await;
        let began = Instant::now();
        while began.elapsed() < TO_TELL {
            self.stage.agent.check()?;
            let all = {
                let told = self.stage.agent.told();
                let mut died = pods.iter().filter(|pod| pod.died.is_some());
                died.all(|pod| told.deaths.contains_key(&pod.uid))
            };
            if all {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// What was told as left behind since the last round, and whether it was.
    fn strays(&mut self, pods: &[Pod1]) -> Vec<Stray> {
        let gone: HashMap<&str, u64> =
            pods.iter().filter_map(|pod| Some((pod.uid.as_str(), pod.gone?))).collect();
        let told = self.stage.agent.told();
        let mut strays = Vec::new();
        for (key, first) in &told.leaks {
            if self.known.insert(key.clone()) {
                strays.push(Stray {
                    what: format!("{} of {}", first.leak.class, left::which(key)),
                    proof: self.proof(first, &gone),
                });
            }
        }
        strays
    }

    /// Clears away what was left behind in truth, which then must not be told any more. What is
    /// told still, as sentences.
    async fn clear(&self) -> anyhow::Result<Vec<String>> {
        let hand = self.stage.lab.hand();
        let left: Vec<ToldLeak> = {
            let told = self.stage.agent.told();
            told.left.iter().filter_map(|key| told.leaks.get(key).cloned()).collect()
        };
        let began = Instant::now();
        loop {
            for ToldLeak { leak, .. } in &left {
                let uid = leak.pod.as_ref().map(|pod| pod.uid.as_str());
                match (&leak.key, uid) {
                    (LeakKey::Shim { pid, .. }, _) => kill(*pid),
                    (LeakKey::PodCgroup { .. }, Some(uid)) => {
                        leak.holds.pids.iter().for_each(|pid| kill(*pid));
                        // Busy still: the next time.
                        let _ = hand.remove_cgroup(uid).await;
                    }
                    (LeakKey::Sandbox { .. }, Some(uid)) => {
                        let _ = hand.remove_sandboxes(uid).await;
                    }
                    _ => {}
                }
            }
            let still = self.stage.agent.told().left.clone();
            if still.is_empty() {
                return Ok(Vec::new());
            }
            if began.elapsed() > TO_CLEAR {
                let told = still.iter().map(|key| {
                    format!("told as left behind, and was cleared away: {}", left::which(key))
                });
                return Ok(told.collect());
            }
            self.stage.agent.check()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// What shows that it was left behind when that was told.
    fn proof(&self, told: &ToldLeak, gone: &HashMap<&str, u64>) -> Option<String> {
        if let LeakKey::Shim { pid, id, .. } = &told.leak.key {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            return command.contains(id.as_str()).then(|| "its process lives".to_owned());
        }
        let uid = told.leak.pod.as_ref().map(|pod| pod.uid.as_str())?;
        let since = told.at.checked_sub(*gone.get(uid)?)?;
        let since = Duration::from_nanos(since);
        (since >= THRESHOLD / 2)
            .then(|| format!("told {:.1} s after its pod's object went", since.as_secs_f64()))
    }
}

/// SIGKILL; whoever is gone already is as good as killed.
fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// What is known of each pod, for the judge.
fn lives(lab: &Lab, pods: &[Pod1], fault: &Fault, told: &Told) -> Vec<Life> {
    pods.iter()
        .map(|pod| Life {
            name: pod.name.clone(),
            end: pod.end(lab, fault.excuses.kills || pod.failure.is_some()),
            died: pod.died,
            told: told.deaths.get(&pod.uid).cloned().unwrap_or_default(),
        })
        .collect()
}
