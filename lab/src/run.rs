//! A run of scenarios: the lab, the real agent, every scenario, and what came out of it. What `cargo xtask run` executes.

use crate::{
    agent::{Agent, AgentOptions},
    compare,
    console::{self, Console, Outcome},
    failures,
    lab::{Lab, LabOptions},
    monitor::AgentMonitor,
    play::{Account, Playing},
    scenarios::{self, Scenario},
    wait,
};
use anyhow::{Context as _, Result};
use coroner_core::{leak::Leak, types::MilestoneKind};
use futures::{StreamExt as _, stream::FuturesUnordered};
use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};

/// Of so many pods whose connections were counted, half must have been counted from before the stop signal.
const MANY: usize = 4;

/// What every run needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Objects on stdout, everything else on stderr.
    pub is_json: bool,
    /// The agent's binary.
    pub agent: PathBuf,
    pub lab: LabOptions,
    /// Where a folder is kept for each failure; `None`: in the target directory.
    pub failed: Option<PathBuf>,
    /// What is to be known of the choice of the runtime.
    pub note: Option<String>,
}

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub scenarios: Vec<Scenario>,
    /// Leave everything up until Ctrl-C.
    pub keep: bool,
    /// Where the agent listens; `None`: a port that is free.
    pub listen: Option<SocketAddr>,
}

/// A real node to observe.
#[derive(Clone, Debug)]
pub struct RealNode {
    pub cri: String,
    pub kubeconfig: PathBuf,
    pub name: String,
}

/// Ctrl-C or SIGTERM ended the run.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Resolves at Ctrl-C or SIGTERM.
async fn interrupted() {
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Starts the lab, does this, and takes the lab down whatever comes of it.
pub async fn in_lab<T>(
    setup: &Setup,
    what: impl AsyncFnOnce(&Lab, Console) -> Result<T>,
) -> Result<T> {
    let console = Console::new(setup.is_json);
    setup.note.iter().for_each(|note| console.step(note));
    let mut lab = None;
    let done = async {
        let lab = lab.insert(Lab::start(setup.lab.clone(), &|text| console.step(text)).await?);
        what(lab, console).await
    };
    let result = tokio::select! {
        result = done => result,
        () = interrupted() => Err(Interrupted.into()),
    };
    let Some(lab) = lab else { return result };
    console.step("taking the lab down");
    let stopped = lab.stop().await.context("the lab was not taken down completely");
    let value = result?;
    stopped.map(|()| value)
}

/// Plays the scenarios. True: all agreed.
pub async fn run(setup: &Setup, options: &RunOptions) -> Result<bool> {
    in_lab(setup, async |lab, console| {
        let mut session = Session::new(setup, lab, console);
        let played = session.start(options).await;
        if played.is_err() {
            session.save("run").await;
        }
        let is_ok = played?;
        if options.keep {
            console.print(&session.whereabouts().await);
            interrupted().await;
        }
        session.stop().await;
        Ok(is_ok)
    })
    .await
}

/// The agent on a lab, and the scenarios that are played with it.
pub struct Session<'a> {
    setup: &'a Setup,
    lab: &'a Lab,
    console: Console,
    pub agent: Option<AgentMonitor>,
    /// Leaks that are of a scenario.
    known: HashSet<String>,
}

impl<'a> Session<'a> {
    pub fn new(setup: &'a Setup, lab: &'a Lab, console: Console) -> Self {
        Self { setup, lab, console, agent: None, known: HashSet::new() }
    }

    /// Starts the agent, and plays the scenarios once.
    async fn start(&mut self, options: &RunOptions) -> Result<bool> {
        let scenarios = self.playable(&options.scenarios);
        let outcomes = self.play_first(&scenarios, options.listen).await?;
        self.console.table(&outcomes);
        self.console.print(&self.facts(&outcomes).await?);
        let unexpected_leaks = self.unexpected_leaks();
        unexpected_leaks.iter().for_each(|leak| self.console.unexpected_leak(leak));
        if !unexpected_leaks.is_empty() {
            self.save("of-no-scenario").await;
        }
        let is_in_time = self.are_counted_in_time(&outcomes);
        Ok(is_in_time && unexpected_leaks.is_empty() && outcomes.iter().all(Outcome::is_ok))
    }

    /// Without those that need what this machine does not have.
    pub fn playable(&self, all: &[Scenario]) -> Vec<Scenario> {
        let (out, playable): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|scenario| {
            scenario.needs_memory_limit() && !self.lab.cgroups.can_limit_memory()
        });
        let missing = "no memory controller here, neither on cgroup2 nor on v1: boot without cgroup_disable=memory, or \
                       mount the controller (mount -t cgroup -o memory cgroup DIRECTORY)";
        for scenario in &out {
            self.console.step(&format!("leaving out {}: {missing}", scenario.name));
            self.console.object(&console::left_out(scenario, missing));
        }
        playable
    }

    /// Makes the pods that are older than the agent, starts the agent, and plays all.
    pub async fn play_first(
        &mut self,
        scenarios: &[Scenario],
        listen: Option<SocketAddr>,
    ) -> Result<Vec<Outcome>> {
        let (lab, console) = (self.lab, self.console);
        let resident = scenarios::resident();
        Playing::begin(&resident, lab).await?;
        let mut begun = BTreeMap::new();
        for scenario in scenarios.iter().filter(|scenario| scenario.before_agent) {
            console.step(&format!("starting {} before the agent", scenario.name));
            begun.insert(scenario.name, Playing::begin(scenario, lab).await?);
        }
        console.step("starting the agent");
        let options = AgentOptions { listen, ..AgentOptions::on(lab, &self.setup.agent) };
        let agent = self.agent.insert(AgentMonitor::start(lab, options).await?);
        let ready = agent.of_agent(|agent| agent.ready_after).await?;
        console.step(&format!("the agent is ready after {:.2} s", ready.as_secs_f64()));
        self.play(scenarios, begun).await
    }

    /// Plays the scenarios: those that concern the whole node one after the other, when the others have ended.
    pub async fn play<'b>(
        &mut self,
        scenarios: &'b [Scenario],
        mut begun: BTreeMap<&str, Playing<'b>>,
    ) -> Result<Vec<Outcome>>
    where
        'a: 'b,
    {
        let agent = self.agent.as_ref().context("the agent was not started")?;
        let (alone, at_once): (Vec<_>, Vec<_>) = scenarios.iter().partition(|one| one.alone);
        self.console.step(&format!("playing {} scenarios at once", at_once.len()));
        let rounds = std::iter::once(at_once).chain(alone.into_iter().map(|one| vec![one]));
        let mut outcomes = Vec::new();
        let mut look = tokio::time::interval(Duration::from_secs(1));
        for round in rounds {
            let mut playing: FuturesUnordered<_> = round
                .iter()
                .map(|scenario| one(scenario, self.lab, agent, begun.remove(scenario.name)))
                .collect();
            loop {
                tokio::select! {
                    next = playing.next() => {
                        let Some((mut outcome, leaks)) = next else { break };
                        self.known.extend(leaks);
                        if !outcome.is_ok() {
                            outcome.kept = self.save(outcome.scenario.name).await;
                        }
                        self.console.outcome(&outcome, scenarios.len() == 1);
                        outcomes.push(outcome);
                    }
                    _ = look.tick() => agent.check()?,
                }
            }
            if round.iter().any(|scenario| scenario.needs_own_agent()) {
                agent.restart(&[]).await?;
            }
        }
        let place =
            |outcome: &Outcome| scenarios.iter().position(|one| one.name == outcome.scenario.name);
        outcomes.sort_by_key(place);
        Ok(outcomes)
    }

    /// Leaks that the agent reported, and that are of no scenario.
    pub fn unexpected_leaks(&self) -> Vec<Leak> {
        let Some(agent) = &self.agent else { return Vec::new() };
        let reports = agent.reports();
        let reports = reports.borrow();
        let all =
            reports.ever.values().filter(|leak| !self.known.contains(&compare::which(&leak.key)));
        all.cloned().collect()
    }

    /// Enough pods were counted from before their stop signal.
    fn are_counted_in_time(&self, outcomes: &[Outcome]) -> bool {
        let counted = outcomes.iter().filter(|outcome| outcome.scenario.expected.traffic.is_some());
        let counted: Vec<_> = counted.filter_map(|one| one.account.termination.as_ref()).collect();
        let late = counted.iter().filter(|report| compare::began_late(report)).count();
        let is_in_time = counted.len() < MANY || late * 2 <= counted.len();
        if !is_in_time {
            let all = counted.len();
            self.console.print(&format!(
                "✘ the connections of {late} of {all} pods were counted too late\n"
            ));
        }
        is_in_time
    }

    /// Figures beside the scenarios: printed, never asserted.
    async fn facts(&self, outcomes: &[Outcome]) -> Result<String> {
        let agent = self.agent.as_ref().context("the agent was not started")?;
        let mut text = agent
            .of_agent(|agent| {
                let mib = |key| agent.status(key).unwrap_or_default() as f64 / 1024.0;
                let (now, most, ready) = (mib("VmRSS:"), mib("VmHWM:"), agent.ready_after.as_secs_f64());
                format!("\nagent: {now:.1} MiB resident (at most {most:.1}), ready {ready:.2} s after its start\n")
            })
            .await?;
        let differences: Vec<(&str, MilestoneKind, i64)> = outcomes
            .iter()
            // Of more than one attempt there is more than one log.
            .filter(|outcome| outcome.scenario.expected.earlier.is_none())
            .flat_map(|outcome| {
                let all = compare::clock_differences(&outcome.account).into_iter();
                all.map(|(kind, ns)| (outcome.scenario.name, kind, ns))
            })
            .collect();
        if let Some((name, kind, ns)) = differences.iter().max_by_key(|(.., ns)| ns.unsigned_abs())
        {
            text.push_str(&format!(
                "times: {} compared with the workloads' own record, the greatest difference is \
                 {:+.3} ms ({kind} of {name})\n",
                differences.len(),
                *ns as f64 / 1e6
            ));
        }
        Ok(text)
    }

    /// Where what is up can be reached.
    async fn whereabouts(&self) -> String {
        let (lab, mut text) = (self.lab, String::from("\nup until Ctrl-C:\n"));
        if let Some(agent) = &self.agent
            && let Ok(url) = agent.of_agent(Agent::url).await
        {
            text.push_str(&format!("  agent       {url}\n"));
        }
        text.push_str(&format!(
            "  apiserver   http://{}\n  kubeconfig  {}\n  CRI         {}\n",
            lab.apiserver(),
            lab.kubeconfig().display(),
            lab.endpoint()
        ));
        text
    }

    async fn save(&self, name: &str) -> Option<PathBuf> {
        let directory = failures::directory(self.setup.failed.clone());
        let http = self.agent.as_ref().and_then(AgentMonitor::http);
        failures::save(&directory, name, self.lab, http).await
    }

    /// Stops the agent, which need not report the end of the lab.
    pub async fn stop(self) {
        if let Some(agent) = self.agent {
            agent.stop().await;
        }
    }
}

/// Plays one scenario and compares what was reported with what was expected. Also: its leaks, by name.
pub async fn one(
    scenario: &Scenario,
    lab: &Lab,
    agent: &AgentMonitor,
    begun: Option<Playing<'_>>,
) -> (Outcome, Vec<String>) {
    let mut account = Account::default();
    let mut leaks = Vec::new();
    let mut points = Vec::new();
    let played = async {
        let mut playing = match begun {
            Some(playing) => playing,
            None => Playing::begin(scenario, lab).await?,
        };
        let told = async {
            playing.act(agent).await?;
            playing.account(agent).await
        };
        let told = told.await;
        let cleared = playing.clear(agent).await;
        let own = agent
            .reports()
            .borrow()
            .ever
            .values()
            .filter(|leak| playing.owns(leak))
            .cloned()
            .collect::<Vec<_>>();
        leaks.extend(own.iter().map(|leak| compare::which(&leak.key)));
        account = told?;
        cleared.context("it was not cleaned up")
    };
    match played.await {
        Ok(()) => points.extend(compare::disagreements(scenario, &account, !lab.delay.is_zero())),
        Err(error) => points.push(format!("{error:#}")),
    }
    let scenario = scenario.clone();
    (Outcome { scenario, account, disagreements: points, kept: None }, leaks)
}

/// Observes a real node, without a lab: prints what terminates there until Ctrl-C.
pub async fn observe(setup: &Setup, listen: Option<SocketAddr>, node: &RealNode) -> Result<bool> {
    let console = Console::new(setup.is_json);
    let log = std::env::temp_dir().join(format!("coroner-lab-agent-{}.log", std::process::id()));
    console.step(&format!(
        "starting the agent on node {}; its log is {}",
        node.name,
        log.display()
    ));
    let mut agent = Agent::start(&AgentOptions {
        binary: setup.agent.clone(),
        listen,
        node: node.name.clone(),
        cri: node.cri.clone(),
        kubeconfig: node.kubeconfig.clone(),
        flags: Vec::new(),
        log,
    })
    .await?;
    console.step(&format!(
        "ready at {}; delete a pod of this node to see it, Ctrl-C to stop",
        agent.url()
    ));
    let monitor = AgentMonitor::of(Some(agent.http()), None);
    let mut reports = monitor.reports();
    let mut printed = HashSet::new();
    let result = loop {
        tokio::select! {
            () = interrupted() => break Ok(true),
            _ = wait::event("another look", tokio::time::sleep(Duration::from_secs(1))) => {
                if let Err(error) = agent.check() {
                    break Err(error);
                }
            }
        }
        let now = reports.borrow_and_update();
        let mut new: Vec<_> = now
            .pods
            .iter()
            .flat_map(|(uid, all)| all.iter().map(move |one| (uid, one)))
            .filter(|(uid, one)| printed.insert(((*uid).clone(), one.life)))
            .collect();
        new.sort_by_key(|(_, report)| report.ended);
        new.iter().for_each(|(_, report)| console.termination(report));
    };
    agent.stop().await;
    result
}
