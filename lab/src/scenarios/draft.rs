//! A scenario while it is written.

use super::{
    Action, Crowd, Death, Earlier, Expected, ExpectedLeak, ExpectedTraffic, Scenario, Span, Step,
    When,
    pod::{Blueprint, PORT, Part},
};
use coroner_core::{
    input::{ConnectionEvent, ExitStatus},
    types::{Cause, FindingKind, PhaseKind, Verdict},
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
        before_agent: false,
        watched: false,
        clients: Vec::new(),
        expected: Expected {
            terminates: true,
            cause: Cause::ApiDelete,
            containers: Default::default(),
            earlier: None,
            findings: Vec::new(),
            also_allowed: Vec::new(),
            grace: None,
            phases: Vec::new(),
            is_truncated: false,
            loses: false,
            calls: None,
            leaks: Vec::new(),
            traffic: None,
        },
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

/// A scenario without a pod.
pub(super) fn nobody(name: &'static str) -> Draft {
    runs_on(name, 30).never_terminates()
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

    /// The network plugin fails for it.
    pub(super) fn never_starts(mut self) -> Self {
        self.0.blueprint.never_starts = true;
        self.on_own_network()
    }

    pub(super) fn made_by_manifest(mut self) -> Self {
        self.0.blueprint.is_static = true;
        self
    }

    /// The driver does not remove its `sandbox`, or its `containers`.
    pub(super) fn leaves(mut self, what: &'static str) -> Self {
        self.0.blueprint.leaves = Some(what);
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

    /// What it does concerns the whole node: nothing else is played at the same time.
    pub(super) fn alone(mut self) -> Self {
        self.0.alone = true;
        self
    }

    /// Its pod is older than the agent.
    pub(super) fn before_agent(mut self) -> Self {
        self.0.before_agent = true;
        self
    }

    /// Its leaks are watched for longer than the threshold, and then removed.
    pub(super) fn watched(mut self) -> Self {
        self.0.watched = true;
        self
    }

    pub(super) fn at_once(self, act: Action) -> Self {
        self.after(Duration::ZERO, act)
    }

    pub(super) fn after(self, time: Duration, act: Action) -> Self {
        self.when(When::After(time), act)
    }

    pub(super) fn when(mut self, when: When, act: Action) -> Self {
        self.0.steps.push(Step { when, act });
        self
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
        self.0.expected.containers.insert(container, Death { verdict, exit: Some(exit) });
        self
    }

    /// How its container `app` exited is not known.
    pub(super) fn dies_unseen(mut self) -> Self {
        let death = Death { verdict: Verdict::Unknown, exit: None };
        self.0.expected.containers.insert("app", death);
        self
    }

    /// Its container `app` died before, gracefully, and was started again.
    pub(super) fn died_before(mut self, cause: Cause) -> Self {
        let death = Death { verdict: Verdict::Graceful, exit: Some(code(0)) };
        self.0.expected.earlier = Some(Earlier { container: "app", death, cause });
        self
    }

    /// The grace that was granted, seconds.
    pub(super) fn granted(mut self, grace: i64) -> Self {
        self.0.expected.grace = Some(grace);
        self
    }

    /// No termination of the pod may be reported.
    pub(super) fn never_terminates(mut self) -> Self {
        self.0.expected.terminates = false;
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

    pub(super) fn spends(mut self, phase: PhaseKind, seconds: f64) -> Self {
        self.0.expected.phases.push(Span { phase, seconds });
        self
    }

    pub(super) fn truncated(mut self) -> Self {
        self.0.expected.is_truncated = true;
        self
    }

    pub(super) fn loses(mut self) -> Self {
        self.0.expected.loses = true;
        self
    }

    pub(super) fn calls(mut self, at_least: usize) -> Self {
        self.0.expected.calls = Some(at_least);
        self
    }

    pub(super) fn leaks(mut self, leak: ExpectedLeak) -> Self {
        self.0.expected.leaks.push(leak);
        self
    }

    pub(super) fn clients(mut self, clients: Crowd) -> Self {
        self.0.clients.push(clients);
        self.traffic().listening = vec![PORT];
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

    /// So many of them on the node.
    pub(super) fn on_node(mut self, count: u64) -> Self {
        self.traffic().on_node = count;
        self
    }

    /// A part of the advice; `{sleep}` is what the reported times give.
    pub(super) fn advises(mut self, advice: &'static str) -> Self {
        self.traffic().advice = Some(advice);
        self
    }

    pub(super) fn listens_on_nothing(mut self) -> Self {
        self.traffic().listening = Vec::new();
        self
    }

    /// Sockets of connections within the pod.
    pub(super) fn connects_within(mut self, sockets: u64) -> Self {
        self.traffic().within = sockets;
        self
    }

    fn traffic(&mut self) -> &mut ExpectedTraffic {
        self.0.expected.traffic.get_or_insert_default()
    }

    pub(super) fn finish(self, group: &'static str) -> Scenario {
        Scenario { group, ..self.0 }
    }
}
