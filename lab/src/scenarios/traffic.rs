//! The group `traffic`: pods that serve, and what their termination costs their clients, who keep their own record.

use super::{
    Crowd, Origin, Scenario,
    draft::{Draft, code, deleted, signal},
    pod::Part,
};
use crate::clients::{
    Habit::{self, Idle, Pending, Silent},
    Load,
};
use coroner_core::{
    input::ConnectionEvent as E,
    process::SIGKILL,
    types::{
        FindingKind::{ConnectionsCut, ConnectionsRefused, LateConnections, ListenerClosedEarly},
        Verdict,
    },
};
use std::time::Duration;

const LAG: Duration = Duration::from_secs(2);

impl Crowd {
    fn of(standing: impl IntoIterator<Item = (Habit, usize)>) -> Self {
        let load = Load { standing: standing.into_iter().collect(), arrives: false };
        Self { from: Origin::Elsewhere, over_v6: false, load, lag: Duration::ZERO }
    }

    fn on_node(self) -> Self {
        Self { from: Origin::Node, ..self }
    }

    fn over_v6(self) -> Self {
        Self { over_v6: true, ..self }
    }

    /// Connections arrive until so long after the pod's stop began: its preStop hook, or else its stop signal.
    fn arriving(self, lag: Duration) -> Self {
        Self { load: Load { arrives: true, ..self.load }, lag, ..self }
    }
}

/// A pod of one container that serves and is deleted.
fn serves(name: &'static str, grace: i64, command: &'static str) -> Draft {
    deleted(name, grace).runs(Part::new("app", command)).on_own_network()
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let graceful = |draft: Draft| draft.dies("app", Verdict::Graceful, code(0));
    let all = [
        graceful(serves("drains-well", 10, "listen --ports 8080 --work 2s --on-stop drain"))
            .shows("The process closes its listener, answers what was asked, and exits: no client loses anything.")
            .clients(Crowd::of([(Idle, 3), (Silent, 1), (Pending, 2)]))
            .counts([(E::ListenerClosed, 1)])
            .advises("none; no client connected while the pod terminated."),
        graceful(serves("exits-with-idle-connections", 5, "listen --ports 8080"))
            .shows("The process exits with idle keep-alive connections open: cut, but no request is lost.")
            .clients(Crowd::of([(Idle, 3), (Silent, 2)]))
            .counts([(E::CutIdle, 5), (E::ListenerCut, 1)]),
        graceful(serves("exits-with-requests", 5, "listen --ports 8080 --work 1h"))
            .shows("The process exits while requests are unanswered: each client sees the connection end instead.")
            .clients(Crowd::of([(Silent, 2), (Pending, 4)]))
            .finds(ConnectionsCut)
            .counts([(E::CutIdle, 2), (E::Cut, 4), (E::ListenerCut, 1)]),
        serves("killed-in-mid-answer", 2, "listen --ports 8080 --work 1h --on-stop serve")
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .shows("SIGKILL ends the process in the middle of requests, two of them from the node.")
            .clients(Crowd::of([(Pending, 3)]))
            .clients(Crowd::of([(Pending, 2)]).on_node())
            .on_node(2)
            .finds(ConnectionsCut)
            .counts([(E::Cut, 5), (E::ListenerCut, 1)]),
        graceful(serves("closes-its-listener", 10, "listen --ports 8080 --on-stop close --for 3s"))
            .shows("The process closes its listener on SIGTERM while clients still connect: they are refused.")
            .clients(Crowd::of([(Idle, 2)]).arriving(LAG))
            .finds(ConnectionsRefused)
            .finds(ListenerClosedEarly)
            .counts([(E::CutIdle, 2), (E::ListenerClosed, 1)])
            .advises("a preStop sleep of {sleep} would have covered them"),
        graceful(serves("clients-come-late", 5, "listen --ports 8080 --on-stop serve --for 4s"))
            .shows("Clients connect for 2 s after the stop signal, because endpoint removal reaches them that late.")
            .clients(Crowd::of([(Idle, 1)]).arriving(LAG))
            .finds(LateConnections)
            .counts([(E::CutIdle, 1), (E::ListenerCut, 1)])
            .advises("a preStop sleep of {sleep} would have covered them. Its own shutdown takes"),
        graceful(
            deleted("prestop-covers-clients", 10)
                .runs(Part::new("app", "listen --ports 8080").pre_stop_sleep(4))
                .on_own_network(),
        )
        .shows("A preStop sleep of 4 s covers clients that connect for 2 s: none is refused, none is late.")
        .clients(Crowd::of([(Idle, 1)]).arriving(LAG))
        .counts([(E::CutIdle, 1), (E::ListenerCut, 1)])
        .advises("none; no client connected after the stop signal."),
        deleted("sidecar-proxy", 10)
            .shows("A sidecar proxies all clients: its connections to the application are internal.")
            .on_own_network()
            .runs(Part::new("proxy", "relay --ports 8080 --to 8081 --on-stop drain").sidecar())
            .runs(Part::new("app", "listen --ports 8081 --at 127.0.0.1"))
            .dies("proxy", Verdict::Graceful, code(0))
            .dies("app", Verdict::Graceful, code(0))
            .clients(Crowd::of([(Idle, 3)]))
            .connects_within(6)
            .counts([(E::ListenerClosed, 1)]),
        graceful(serves("nothing-listens", 5, "handle --for 2s"))
            .shows("The pod listens on no port: each client is refused, before the stop signal and after it.")
            .clients(Crowd::of([]).arriving(LAG / 2))
            .listens_on_nothing()
            .advises("none; the pod listened on no port"),
        graceful(serves("over-ipv6", 10, "listen --ports 8080 --on-stop close --for 2s"))
            .shows("Clients use IPv6: some are cut, and some refused.")
            .clients(Crowd::of([(Idle, 2)]).over_v6().arriving(LAG / 2))
            .finds(ConnectionsRefused)
            .finds(ListenerClosedEarly)
            .counts([(E::CutIdle, 2), (E::ListenerClosed, 1)]),
    ];
    all.into_iter().map(|draft| draft.finish("traffic")).collect()
}
