//! The group `traffic`: pods that serve, and what their end costs their clients, who keep their own record.

mod mixes;

use super::{
    Scenario,
    clients::{Crowd, Ends},
    draft::{Draft, code, deleted, signal},
    pod::Part,
};
use coroner_core::{
    input::{ConnectionEvent as E, TrafficBlindness},
    process::SIGKILL,
    types::{
        FindingKind::{ConnectionsCut, ConnectionsRefused, LateConnections, ListenerClosedEarly},
        Verdict,
    },
};
use coroner_lab_cluster::traffic::Habit::{HalfClosed, Idle, Pending, Silent};
use std::time::Duration;

/// A pod of one container that serves and is deleted.
fn serves(name: &'static str, grace: i64, command: &'static str) -> Draft {
    deleted(name, grace).runs(Part::new("app", command)).on_own_network()
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let second = Duration::from_secs(1);
    let graceful = |draft: Draft| draft.dies("app", Verdict::Graceful, code(0));
    let all = [
        graceful(serves("drains-well", 10, "listen --ports 8080 --work 2s --on-stop drain"))
            .shows("The process closes its listener, answers what was asked, and exits: nobody loses anything.")
            .clients(Crowd::of([(Idle, 3), (Silent, 1)]))
            .clients(Crowd::of([(Pending, 2)]))
            .ends_connections(Ends::InOrder)
            .counts([(E::Closed, 6), (E::ListenerClosed, 1)])
            .advises("none; no client connected while the pod terminated."),
        graceful(serves("exits-with-idle-connections", 5, "listen --ports 8080"))
            .shows("The process exits with idle keep-alive connections open: cut, but no request is lost.")
            .clients(Crowd::of([(Idle, 3), (Silent, 2)]))
            .counts([(E::CutIdle, 5), (E::ListenerCut, 1)]),
        graceful(serves("exits-with-requests", 5, "listen --ports 8080 --work 1h"))
            .shows("The process exits while requests are unanswered: each client sees the connection end instead.")
            .clients(Crowd::of([(Silent, 2), (Pending, 4), (HalfClosed, 1)]))
            .finds(ConnectionsCut)
            .counts([(E::CutIdle, 2), (E::CutRequest, 4), (E::CutHalfClosed, 1), (E::ListenerCut, 1)]),
        serves("killed-in-mid-answer", 2, "listen --ports 8080 --work 1h --on-stop serve")
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .shows("SIGKILL ends the process in the middle of requests.")
            .clients(Crowd::of([(Pending, 3)]))
            .clients(Crowd::of([(Pending, 2)]).on_node())
            .finds(ConnectionsCut)
            .counts([(E::CutRequest, 5), (E::ListenerCut, 1)]),
        graceful(serves("closes-its-listener", 10, "listen --ports 8080 --on-stop close --for 3s"))
            .shows("The process closes its listener on SIGTERM while clients still connect: they are refused.")
            .clients(Crowd::of([(Idle, 2)]).arriving(2 * second))
            .finds(ConnectionsRefused)
            .finds(ListenerClosedEarly)
            .counts([(E::CutIdle, 2), (E::ListenerClosed, 1)])
            .advises("a preStop sleep of {sleep} would have covered them"),
        graceful(serves("clients-come-late", 5, "listen --ports 8080 --on-stop serve --for 4s"))
            .shows("Clients connect for 2 s after the stop signal, because endpoint removal reaches them that late.")
            .clients(Crowd::of([(Idle, 1)]).arriving(2 * second))
            .finds(LateConnections)
            .counts([(E::CutIdle, 1), (E::ListenerCut, 1)])
            .advises("a preStop sleep of {sleep} would have covered them. Its own shutdown takes"),
        graceful(
            deleted("prestop-covers-clients", 10)
                .runs(Part::new("app", "listen --ports 8080").pre_stop_sleep(4))
                .on_own_network(),
        )
        .shows("A preStop sleep of 4 s covers clients that connect for 2 s: none is refused, none is late.")
        .clients(Crowd::of([(Idle, 1)]).arriving(2 * second))
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
            .ends_connections(Ends::InOrder)
            .connects_within(6)
            .counts([(E::Closed, 3), (E::ListenerClosed, 1)]),
        graceful(serves("neighbour-in-a-storm", 5, "listen --ports 8080 --work 1h"))
            .shows("Another pod gets as many connections as the node can take, while this one terminates.")
            .clients(Crowd::of([(Silent, 3), (Pending, 2)]))
            .clients(Crowd::storm(second))
            .alone()
            .finds(ConnectionsCut)
            .counts([(E::CutIdle, 3), (E::CutRequest, 2), (E::ListenerCut, 1)]),
        graceful(serves("nothing-listens", 5, "handle --for 2s"))
            .shows("The pod listens on no port: each client is refused, before the stop signal and after it.")
            .clients(Crowd::of([]).arriving(second))
            .listens_on([])
            .advises("none; the pod listened on no port"),
        graceful(serves("over-ipv6", 10, "listen --ports 8080 --on-stop close --for 2s"))
            .shows("Clients use IPv6: some are cut, and some refused.")
            .clients(Crowd::of([(Idle, 2)]).over_v6().arriving(second))
            .finds(ConnectionsRefused)
            .finds(ListenerClosedEarly)
            .counts([(E::CutIdle, 2), (E::ListenerClosed, 1)]),
        graceful(deleted("serves-on-host-network", 5).runs(Part::new("app", "listen --ports 8080")))
            .shows("With hostNetwork the pod's connections are the node's: they are not visible.")
            .clients(Crowd::of([(Idle, 2)]).on_node())
            .not_visible(TrafficBlindness::HostNetwork),
        graceful(serves("job-is-cut", 5, "listen --ports 8080 --work 1h"))
            .shows("The pod belongs to a Job: its connections are counted, and make no finding.")
            .owned_by("Job", "job-is-cut")
            .clients(Crowd::of([(Pending, 2)]))
            .counts([(E::CutRequest, 2), (E::ListenerCut, 1)]),
        graceful(
            deleted("many-at-once", 30)
                // The agent begins with one after the other.
                .runs(Part::new("app", "listen --ports 8080 --work 1h").pre_stop_sleep(5))
                .on_own_network(),
        )
        .shows("120 pods are deleted at once: the connections of each are counted.")
        .copies(120)
            .alone()
            .clients(Crowd::of([(Silent, 1), (Pending, 2)]))
            .finds(ConnectionsCut)
            .counts([(E::CutIdle, 1), (E::CutRequest, 2), (E::ListenerCut, 1)]),
    ];
    all.into_iter().chain(mixes::scenarios()).map(|draft| draft.finish("traffic")).collect()
}
