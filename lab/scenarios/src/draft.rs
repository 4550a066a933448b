//! A scenario while it is written down.

use super::{
    Action, Death, Earlier, Expected, ExpectedLeak, Scenario, Span, Step, When,
    clients::{Crowd, Ends, ExpectedTraffic, PORT, TRAFFIC_FINDINGS},
    pod::{Blueprint, Part},
};
use coroner_core::{
    input::{ConnectionEvent, ExitStatus, TrafficBlindness},
    types::{Cause, Certainty, FindingKind, Verdict},
};
use std::time::Duration;

/// The ordinary case: a pod that has run for a while before something is done to it.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Its methods read as sentences, in any order.
pub(super) struct Draft(Scenario);

/// A pod with a grace of so many seconds, to which nothing is done.
pub(super) fn runs_on(name: &'static str, grace: i64) -> Draft {
    Draft(Scenario {
        name,
        group: "",
        shows: "",
        steps: Vec::new(),
        alone: false,
        expected: Expected {
            cause: Cause::ApiDelete,
            containers: Default::default(),
            earlier: Vec::new(),
            lives: 1,
            findings: Vec::new(),
            also_allowed: Vec::new(),
            grace: None,
            phases: Vec::new(),
            truncated: false,
            calls: None,
            leaks: Vec::new(),
            traffic: None,
        },
        watched: false,
        clients: Vec::new(),
        copies: 1,
        blueprint: Blueprint::new(grace),
    })
}

/// The same, deleted soon after it runs.
pub(super) fn deleted(name: &'static str, grace: i64) -> Draft {
    runs_on(name, grace).after(SOON, Action::Delete { grace: None })
}

/// A pod that is left alone until it ends, and not restarted.
pub(super) fn ends_by_itself(name: &'static str) -> Draft {
    runs_on(name, 30).never_restarted().caused_by(Cause::Completed)
}

pub(super) fn code(code: u8) -> ExitStatus {
    ExitStatus::Code(code)
}

pub(super) fn signal(signal: u8) -> ExitStatus {
    ExitStatus::Signal { signal, core: false }
}

impl Draft {
    pub(super) fn shows(mut self, shows: &'static str) -> Self {
        self.0.shows = shows;
        self
    }

    pub(super) fn runs(mut self, part: Part) -> Self {
        self.0.blueprint.containers.push(part);
        self
    }

    pub(super) fn never_restarted(mut self) -> Self {
        self.0.blueprint.restart = "Never";
        self
    }

    /// Its activeDeadlineSeconds.
    pub(super) fn deadline(mut self, seconds: i64) -> Self {
        self.0.blueprint.deadline = Some(seconds);
        self
    }

    pub(super) fn shares_pid_namespace(mut self) -> Self {
        self.0.blueprint.share_pid = true;
        self
    }

    pub(super) fn on_host_pid_namespace(mut self) -> Self {
        self.0.blueprint.host_pid = true;
        self
    }

    /// It has a network namespace and an address.
    pub(super) fn on_own_network(mut self) -> Self {
        self.0.blueprint.own_network = true;
        self
    }

    /// Its users are not the machine's, which takes a network of its own.
    pub(super) fn in_user_namespace(mut self) -> Self {
        self.0.blueprint.own_users = true;
        self.on_own_network()
    }

    pub(super) fn made_by_manifest(mut self) -> Self {
        self.0.blueprint.from_manifest = true;
        self
    }

    /// Its faults are the whole node's: nothing else is played at the same time.
    pub(super) fn alone(mut self) -> Self {
        self.0.alone = true;
        self
    }

    pub(super) fn after(self, time: Duration, act: Action) -> Self {
        self.when(When::After(time), act)
    }

    pub(super) fn when(mut self, when: When, act: Action) -> Self {
        self.0.steps.push(Step { when, act });
        self
    }

    /// Done before all else.
    pub(super) fn before(mut self, act: Action) -> Self {
        self.0.steps.insert(0, Step { when: When::After(Duration::ZERO), act });
        self
    }

    /// Its pod is older than the agent.
    pub(super) fn before_agent(self) -> Self {
        self.before(Action::StartAgent)
    }

    pub(super) fn caused_by(mut self, cause: Cause) -> Self {
        self.0.expected.cause = cause;
        self
    }

    pub(super) fn dies(
        mut self,
        container: &'static str,
        verdict: Verdict,
        exit: ExitStatus,
    ) -> Self {
        self.0.expected.containers.insert(container, Death { verdict, exit });
        self
    }

    pub(super) fn died_before(
        mut self,
        container: &'static str,
        cause: Cause,
        verdict: Verdict,
        exit: ExitStatus,
    ) -> Self {
        let death = Death { verdict, exit };
        let (certainty, grace, says) = (Certainty::Proven, None, None);
        let earlier = Earlier { container, death, cause, certainty, grace, says };
        self.0.expected.earlier.push(earlier);
        self
    }

    /// The grace at the pod's end, seconds.
    pub(super) fn granted(mut self, grace: i64) -> Self {
        self.0.expected.grace = Some(grace);
        self
    }

    /// The grace of the earlier death that was named last, seconds.
    pub(super) fn within(self, grace: i64) -> Self {
        self.last_earlier(|earlier| earlier.grace = Some(grace))
    }

    /// The cause of the earlier death that was named last can only be inferred.
    pub(super) fn inferred(self) -> Self {
        self.last_earlier(|earlier| earlier.certainty = Certainty::Inferred)
    }

    /// A part of that cause's message.
    pub(super) fn saying(self, words: &'static str) -> Self {
        self.last_earlier(|earlier| earlier.says = Some(words))
    }

    fn last_earlier(mut self, change: impl FnOnce(&mut Earlier)) -> Self {
        if let Some(earlier) = self.0.expected.earlier.last_mut() {
            change(earlier);
        }
        self
    }

    pub(super) fn lives(mut self, lives: u32) -> Self {
        self.0.expected.lives = lives;
        self
    }

    pub(super) fn finds(mut self, finding: FindingKind) -> Self {
        self.0.expected.findings.push(finding);
        self
    }

    pub(super) fn allows(mut self, finding: FindingKind) -> Self {
        self.0.expected.also_allowed.push(finding);
        self
    }

    pub(super) fn spends(mut self, span: Span) -> Self {
        self.0.expected.phases.push(span);
        self
    }

    pub(super) fn truncated(mut self) -> Self {
        self.0.expected.truncated = true;
        self
    }

    pub(super) fn calls(mut self, at_least: usize) -> Self {
        self.0.expected.calls = Some(at_least);
        self
    }

    /// Nobody may tell of its end.
    pub(super) fn never_ends(mut self) -> Self {
        self.0.expected.lives = 0;
        self
    }

    pub(super) fn leaks(mut self, leak: ExpectedLeak) -> Self {
        self.0.expected.leaks.push(leak);
        self
    }

    /// It has clients, of which all is compared.
    pub(super) fn clients(mut self, clients: Crowd) -> Self {
        self.0.clients.push(clients);
        self.traffic().listening = vec![PORT];
        self
    }

    /// How it ends what is open; if nothing is said, by its exit.
    pub(super) fn ends_connections(mut self, ends: Ends) -> Self {
        self.traffic().ends = ends;
        self
    }

    /// So often each of these happened to its clients.
    pub(super) fn counts(
        mut self,
        counts: impl IntoIterator<Item = (ConnectionEvent, u64)>,
    ) -> Self {
        self.traffic().counts.extend(counts);
        self
    }

    /// A part of the advice; `{sleep}` is what the reported times give.
    pub(super) fn advises(mut self, advice: &'static str) -> Self {
        self.traffic().advice = Some(advice);
        self
    }

    /// Other ports than the one that serves.
    pub(super) fn listens_on(mut self, ports: impl Into<Vec<u16>>) -> Self {
        self.traffic().listening = ports.into();
        self
    }

    /// Sockets of connections within the pod.
    pub(super) fn connects_within(mut self, sockets: u64) -> Self {
        self.traffic().within = sockets;
        self
    }

    pub(super) fn not_visible(mut self, reason: TrafficBlindness) -> Self {
        self.traffic().not_visible = Some(reason);
        self
    }

    /// The findings about connections are those of the clients' record.
    pub(super) fn finds_what_was_recorded(mut self) -> Self {
        self.traffic().finds_what_was_recorded = true;
        self.0.expected.also_allowed.extend(TRAFFIC_FINDINGS);
        self
    }

    /// So many pods, which are deleted at once.
    pub(super) fn copies(mut self, copies: usize) -> Self {
        self.0.copies = copies;
        self.0.expected.also_allowed.push(FindingKind::Contradiction);
        self
    }

    fn traffic(&mut self) -> &mut ExpectedTraffic {
        self.0.expected.traffic.get_or_insert_default()
    }

    /// What is left of it is watched for longer than the threshold, and then cleaned up.
    pub(super) fn watched(mut self) -> Self {
        self.0.watched = true;
        self
    }

    pub(super) fn held_by_finalizer(mut self, name: &'static str) -> Self {
        self.0.blueprint.finalizer = Some(name);
        self
    }

    /// Made by a controller of this kind and name.
    pub(super) fn owned_by(mut self, kind: &'static str, name: &'static str) -> Self {
        self.0.blueprint.owner = Some((kind, name));
        self
    }

    pub(super) fn finish(self, group: &'static str) -> Scenario {
        Scenario { group, ..self.0 }
    }
}
