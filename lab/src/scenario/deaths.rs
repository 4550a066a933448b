//! The group `deaths`: every way in which a container ends.

use super::{
    Act, Death, Expected, Scenario, Span,
    pod::{Blueprint, Part},
};
use coroner::domain::{
    input::ExitStatus,
    observation::{
        Cause,
        FindingKind::{self, ChildrenNotSignalled, OutlivedObject, PrestopCutOff},
        PhaseKind::{PreStop, Shutdown},
        Verdict,
    },
};
use std::time::Duration;

const SIGSEGV: u8 = 11;
const SIGKILL: u8 = 9;

/// Long enough after Running for the workload to have its handlers in place.
const SOON: Duration = Duration::from_secs(1);

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        deleted("handles-sigterm", 10)
            .shows("preStop for 5 s, then the handler takes SIGTERM and leaves within the grace.")
            .runs(
                Part::new("app", "handle --for 2s")
                    .post_start("sleep --for 5s")
                    .pre_stop("sleep --for 5s"),
            )
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(PreStop, 5.0))
            .spends(Span::about(Shutdown, 2.0)),
        deleted("prestop-exhausts-grace", 10)
            .shows("A preStop hook longer than the grace leaves SIGTERM the floor of 2 s.")
            .runs(Part::new("app", "handle --for 1s").pre_stop("sleep --for 15s"))
            .dies("app", Verdict::PrestopExhaustedGrace, code(0))
            .finds(PrestopCutOff)
            // The hook itself, which dies with the PID namespace.
            .allows(ChildrenNotSignalled)
            .spends(Span::about(PreStop, 10.0))
            .spends(Span::about(Shutdown, 1.0)),
        deleted("slower-than-grace", 8)
            .shows("preStop took 5 s of 8, the shutdown wants 10 s more: SIGKILL after 3 s.")
            .runs(Part::new("app", "handle --for 10s").pre_stop("sleep --for 5s"))
            .dies("app", Verdict::Overran, signal(SIGKILL))
            .spends(Span::about(PreStop, 5.0))
            .spends(Span::about(Shutdown, 3.0)),
        deleted("sigterm-ignored", 5)
            .shows("PID 1 without a handler: the kernel throws SIGTERM away, SIGKILL ends it.")
            .runs(Part::new("app", "ignore"))
            .dies("app", Verdict::Ignored, signal(SIGKILL))
            .spends(Span::about(Shutdown, 5.0)),
        Draft { act: Act::ForceDelete { after: SOON }, ..deleted("force-delete", 30) }
            .shows("A force delete takes the object away at once; its processes outlive it.")
            .runs(Part::new("app", "handle --for 1s"))
            .caused_by(Cause::ForceDelete)
            .dies("app", Verdict::Graceful, code(0))
            .finds(OutlivedObject)
            .spends(Span::about(Shutdown, 1.0)),
        ends_by_itself("oom-killed")
            .shows("The memory limit is 32 MiB, it touches 64: the OOM killer chooses its init.")
            .runs(Part::new("app", "oom --after 1500ms --mib 64").memory("32Mi"))
            .dies("app", Verdict::OomKilled, signal(SIGKILL)),
        ends_by_itself("crash")
            .shows("It writes to memory that it may not write to: SIGSEGV of its own making.")
            .runs(Part::new("app", "crash --after 1s"))
            .dies("app", Verdict::Crashed, signal(SIGSEGV)),
        ends_by_itself("job-completes")
            .shows("A job does its work and leaves with 0: nobody sent it anything.")
            .runs(Part::new("app", "job --for 2s"))
            .dies("app", Verdict::Completed, code(0)),
        deleted("two-deaths-in-one-pod", 6)
            .shows("Of two containers one leaves on SIGTERM, the other holds the pod up.")
            .runs(Part::new("good", "handle --for 1s"))
            .runs(Part::new("bad", "ignore"))
            .dies("good", Verdict::Graceful, code(0))
            .dies("bad", Verdict::Ignored, signal(SIGKILL))
            .spends(Span::about(Shutdown, 6.0)),
        deleted("one-of-two-overruns", 8)
            .shows("A hook of 3 s, then a handler that wants 10 s more: one of two holds the pod up until SIGKILL.")
            .runs(Part::new("web", "handle --for 10s").pre_stop("sleep --for 3s"))
            .runs(Part::new("log", "handle --for 1s"))
            .dies("web", Verdict::Overran, signal(SIGKILL))
            .dies("log", Verdict::Graceful, code(0))
            .spends(Span::about(PreStop, 3.0))
            .spends(Span::about(Shutdown, 5.0)),
        deleted("leader-exits-first", 6)
            .shows("The leading thread ends first, another one works on: the process dies with the last.")
            .runs(Part::new("app", "leader-exits --for 1s --exit 3"))
            .dies("app", Verdict::Graceful, code(3))
            .spends(Span::about(Shutdown, 1.0)),
        deleted("sigwait", 6)
            .shows("SIGTERM is blocked and taken by sigwait: no handler ever runs.")
            .runs(Part::new("app", "sigwait --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0)),
        deleted("signalfd", 6)
            .shows("SIGTERM is blocked and read from a signalfd: no handler ever runs.")
            .runs(Part::new("app", "signalfd --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0)),
        deleted("go-style", 6)
            .shows("As Go's runtime: handles SIGTERM, raises it on itself, leaves with 2.")
            .runs(Part::new("app", "go-style --for 1s"))
            .dies("app", Verdict::Graceful, code(2))
            .spends(Span::about(Shutdown, 1.0)),
        deleted("shell-not-forwarding", 5)
            .shows("A shell as PID 1 passes nothing on: its child never hears of SIGTERM.")
            .runs(Part::new("app", "shell --child handle --for 1s"))
            .dies("app", Verdict::Ignored, signal(SIGKILL))
            .finds(ChildrenNotSignalled)
            .spends(Span::about(Shutdown, 5.0)),
        Draft { before_agent: true, ..deleted("started-before-agent", 6) }
            .shows("The container is older than the agent, which knows all the same how it dies.")
            .runs(Part::new("app", "handle --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0)),
    ]
    .into_iter()
    .map(Draft::finish)
    .collect()
}

/// A scenario while it is written down.
struct Draft {
    name: &'static str,
    shows: &'static str,
    act: Act,
    before_agent: bool,
    expected: Expected,
    blueprint: Blueprint,
}

/// A pod with a grace of so many seconds that is deleted soon after it runs.
fn deleted(name: &'static str, grace: i64) -> Draft {
    Draft {
        name,
        shows: "",
        act: Act::Delete { after: SOON },
        before_agent: false,
        expected: Expected {
            cause: Cause::ApiDelete,
            containers: Default::default(),
            findings: Vec::new(),
            also_allowed: Vec::new(),
            phases: Vec::new(),
        },
        blueprint: Blueprint { grace, restart: true, containers: Vec::new() },
    }
}

/// A pod that is left alone until it ends.
fn ends_by_itself(name: &'static str) -> Draft {
    let mut draft = deleted(name, 30).caused_by(Cause::Completed);
    draft.act = Act::Nothing;
    draft.blueprint.restart = false;
    draft
}

fn code(code: u8) -> ExitStatus {
    ExitStatus::Code(code)
}

fn signal(signal: u8) -> ExitStatus {
    ExitStatus::Signal { signal, core: false }
}

impl Draft {
    fn shows(self, shows: &'static str) -> Self {
        Self { shows, ..self }
    }

    fn runs(mut self, part: Part) -> Self {
        self.blueprint.containers.push(part);
        self
    }

    fn caused_by(mut self, cause: Cause) -> Self {
        self.expected.cause = cause;
        self
    }

    fn dies(mut self, container: &'static str, verdict: Verdict, exit: ExitStatus) -> Self {
        self.expected.containers.insert(container, Death { verdict, exit });
        self
    }

    fn finds(mut self, finding: FindingKind) -> Self {
        self.expected.findings.push(finding);
        self
    }

    fn allows(mut self, finding: FindingKind) -> Self {
        self.expected.also_allowed.push(finding);
        self
    }

    fn spends(mut self, span: Span) -> Self {
        self.expected.phases.push(span);
        self
    }

    fn finish(self) -> Scenario {
        Scenario {
            name: self.name,
            group: "deaths",
            shows: self.shows,
            before_agent: self.before_agent,
            act: self.act,
            expected: self.expected,
            blueprint: self.blueprint,
        }
    }
}
