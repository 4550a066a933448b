//! Connections that are counted: real ones, in a network namespace of their own. Both ends are in it: the server's
//! counts as one of a client, the client's as outbound.

mod adapter;
pub(crate) mod network;
mod wire;

use crate::stage::{self, Pod, Session, with_cgroup2};
use coroner::sources::kernel::counting::{AddressKind, EntryKey};
use coroner_core::input::{ConnectionEvent::*, KernelFact, TrafficPeer::*};
use network::{
    CLIENT, SERVER, TestNetwork, TestServer, connect, drain, in_network, ip, reset, try_connect,
    unshare,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    time::Duration,
};

/// Runs a test in a marked network namespace.
fn counted(test: fn(&mut TestNetwork<'_>)) {
    with_cgroup2(|hierarchy| {
        let mut kernel = stage::start(&stage::options(hierarchy));
        in_network(&mut kernel, &[], test);
    });
}

#[test]
fn connections_that_the_application_closes() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let clients: Vec<_> = (0..3).map(|_| connect(CLIENT, SERVER)).collect();
        server.act("aaaccc");
        clients.into_iter().for_each(drain);
        server.act("s");
        network.expect_pod(&[
            (Client, &[(Opened, 3), (Closed, 3), (ListenerClosed, 1)]),
            (Outbound, &[(Opened, 3), (PeerClosed, 3)]),
        ]);
        assert_eq!(try_connect(CLIENT, SERVER).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn idle_connections_that_an_exit_cuts() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let new = connect(CLIENT, SERVER);
        server.act("a");
        let mut old = connect(CLIENT, SERVER);
        old.write_all(b"?").unwrap();
        server.act("arwk");
        old.read_exact(&mut [0]).unwrap();
        server.exit();
        drain(new);
        drain(old);
        network.expect_pod(&[
            (Client, &[(Opened, 2), (CutIdle, 2), (ListenerCut, 1)]),
            (Outbound, &[(Opened, 2), (PeerClosed, 2)]),
        ]);
    });
}

#[test]
fn a_request_that_sigkill_leaves_unanswered() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let mut client = connect(CLIENT, SERVER);
        client.write_all(b"?").unwrap();
        server.act("ar");
        server.kill();
        drain(client);
        network.expect_pod(&[
            (Client, &[(Opened, 1), (CutRequest, 1), (ListenerCut, 1)]),
            (Outbound, &[(Opened, 1), (PeerClosed, 1)]),
        ]);
    });
}

#[test]
fn an_answer_that_is_being_sent_when_the_process_exits() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let client = connect(CLIENT, SERVER);
        server.act("af");
        server.kill();
        drain(client);
        network.expect_pod(&[
            (Client, &[(Opened, 1), (CutSending, 1), (ListenerCut, 1)]),
            (Outbound, &[(Opened, 1), (PeerClosed, 1)]),
        ]);
    });
}

#[test]
fn a_request_that_was_never_read() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let mut client = connect(CLIENT, SERVER);
        client.write_all(b"?").unwrap();
        server.act("a");
        server.kill();
        drain(client);
        network.expect_pod(&[
            (Client, &[(Opened, 1), (CutUnread, 1), (ListenerCut, 1)]),
            (Outbound, &[(Opened, 1), (PeerReset, 1)]),
        ]);
    });
}

#[test]
fn connections_that_nobody_accepted() {
    counted(|network| {
        let server = TestServer::listening(SERVER, None);
        let first = connect(CLIENT, SERVER);
        server.kill();
        drain(first);
        let mut server = TestServer::listening(SERVER, None);
        let second = connect(CLIENT, SERVER);
        server.act("s");
        drain(second);
        network.expect_pod(&[
            (Client, &[(Opened, 2), (Unaccepted, 2), (ListenerCut, 1), (ListenerClosed, 1)]),
            (Outbound, &[(Opened, 2), (PeerReset, 2)]),
        ]);
    });
}

#[test]
fn connections_that_their_clients_have_closed_and_nobody_has_accepted_or_read() {
    counted(|network| {
        // In the queue of a listener that the application closes, and of one that goes with its process.
        let mut server = TestServer::listening(SERVER, None);
        drop(connect(CLIENT, SERVER));
        network.expect_pod(&[
            (Client, &[(Opened, 1), (PeerClosed, 1)]),
            (Outbound, &[(Opened, 1), (Closed, 1)]),
        ]);
        server.act("s");
        let server = TestServer::listening(SERVER, None);
        drop(connect(CLIENT, SERVER));
        network.expect_pod(&[
            (Client, &[(Opened, 2), (PeerClosed, 2), (ResetHalfClosed, 1), (ListenerClosed, 1)]),
            (Outbound, &[(Opened, 2), (Closed, 2)]),
        ]);
        server.kill();
        // Accepted, and closed without reading what was sent.
        let mut server = TestServer::listening(SERVER, None);
        let mut client = connect(CLIENT, SERVER);
        client.write_all(b"?").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        server.act("ac");
        drain(client);
        network.expect_pod(&[
            (Client, &[(Opened, 3), (PeerClosed, 3), (ResetHalfClosed, 3)]),
            (Client, &[(ListenerClosed, 1), (ListenerCut, 1)]),
            (Outbound, &[(Opened, 3), (Closed, 3)]),
        ]);
    });
}

#[test]
fn clients_that_half_close_and_wait() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let clients: Vec<_> = ["", "read", "unread"]
            .into_iter()
            .map(|request| {
                let mut client = connect(CLIENT, SERVER);
                client.write_all(request.as_bytes()).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                server.act(if request == "read" { "ar" } else { "a" });
                client
            })
            .collect();
        // The end of what the clients send has come.
        network.expect_pod(&[
            (Client, &[(Opened, 3), (PeerClosed, 3)]),
            (Outbound, &[(Opened, 3), (Closed, 3)]),
        ]);
        server.kill();
        clients.into_iter().for_each(drain);
        network.expect_pod(&[
            (Client, &[(Opened, 3), (PeerClosed, 3), (ListenerCut, 1)]),
            (Client, &[(CutHalfClosed, 1), (CutHalfClosedUnread, 1)]),
            (Outbound, &[(Opened, 3), (Closed, 3)]),
        ]);
    });
}

#[test]
fn a_reset_that_the_process_asked_for_loses_only_what_has_no_answer() {
    counted(|network| {
        network.ignore_crossing();
        let mut server = TestServer::listening(SERVER, None);
        let all = [("", "az"), ("?", "arwkz"), ("?", "arz"), ("?", "az"), ("?", "arwfz")];
        let clients: Vec<_> = all
            .into_iter()
            .flat_map(|(request, orders)| [(request, orders, false), (request, orders, true)])
            .map(|(request, orders, half_closes)| {
                let mut client = connect(CLIENT, SERVER);
                client.write_all(request.as_bytes()).unwrap();
                if half_closes {
                    client.shutdown(Shutdown::Write).unwrap();
                }
                server.act(orders);
                client
            })
            .collect();
        let (mut client, mut outbound) =
            (vec![(Opened, 10), (PeerClosed, 5)], vec![(Opened, 10), (Closed, 5)]);
        network.expect_pod(&[(Client, &client), (Outbound, &outbound)]);
        server.kill();
        clients.into_iter().for_each(drain);
        client.extend([(Reset, 2), (ResetHalfClosed, 2), (ListenerCut, 1)]);
        client.extend([(CutUnread, 3), (CutHalfClosedUnread, 3)]);
        outbound.push((PeerReset, 5));
        network.expect_pod(&[(Client, &client), (Outbound, &outbound)]);
    });
}

#[test]
fn resets_of_either_end_and_clients_that_close_first() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        server.serve(CLIENT, SERVER, "azc");
        let client = connect(CLIENT, SERVER);
        server.act("a");
        reset(client);
        let client = connect(CLIENT, SERVER);
        server.act("a");
        drop(client);
        let expected: [(_, &[_]); 2] = [
            (Client, &[(Opened, 3), (Reset, 1), (PeerReset, 1), (PeerClosed, 1)]),
            (Outbound, &[(Opened, 3), (PeerReset, 1), (Reset, 1), (Closed, 1)]),
        ];
        network.expect_pod(&expected);
        // The application closes what the client had closed: nothing new.
        server.act("c");
        network.expect_pod(&expected);
    });
}

#[test]
fn what_stays_in_the_pod_is_internal() {
    counted(|network| {
        for (server, client) in [
            ("127.0.0.1:8080", "127.0.0.1:0"),
            ("[::1]:8080", "[::1]:0"),
            (SERVER, "10.0.0.1:0"),
            ("0.0.0.0:8081", "127.0.0.1:0"),
        ] {
            let mut listener = TestServer::listening(server, None);
            let to = server.replace("0.0.0.0", "127.0.0.6");
            let client = connect(client, &to);
            listener.act("a");
            listener.kill();
            drain(client);
        }
        // Listeners on loopback are nobody's outside.
        network
            .expect_pod(&[(Internal, &[(Opened, 8), (Ended, 8)]), (Client, &[(ListenerCut, 2)])]);
    });
}

#[test]
fn ipv6_and_mapped_addresses() {
    counted(|network| {
        for (server, from, to) in [
            ("[fd00::1]:8080", "[fd00::2]:0", "[fd00::1]:8080"),
            ("[::]:8081", "[fd00::2]:0", "[fd00::1]:8081"),
            ("[::]:8082", CLIENT, "10.0.0.1:8082"),
        ] {
            let mut server = TestServer::listening(server, None);
            let client = connect(from, to);
            server.act("a");
            server.kill();
            drain(client);
        }
        network.expect_pod(&[
            (Client, &[(Opened, 3), (CutIdle, 3), (ListenerCut, 3)]),
            (Outbound, &[(Opened, 3), (PeerClosed, 3)]),
        ]);
    });
}

#[test]
fn what_the_pod_opens_itself_is_outbound() {
    counted(|network| {
        let mut other = TestServer::listening("10.0.0.1:9090", None);
        let mut pod = TestServer::listening(SERVER, None);
        pod.act("o");
        other.act("a");
        pod.kill();
        network.expect_pod(&[
            (Outbound, &[(Opened, 1), (CutIdle, 1)]),
            (Client, &[(Opened, 1), (PeerClosed, 1), (ListenerCut, 1)]),
        ]);
    });
}

#[test]
fn the_node_and_pods_that_are_terminating_are_told_apart() {
    use AddressKind as A;
    counted(|network| {
        let mut server = TestServer::listening("[::]:8080", None);
        // What an address is named, and what is forgotten before a client comes from it: pods can have any address.
        let clients: [(_, &[_], &[_]); 5] = [
            ("10.0.0.3:0", &[A::Terminating, A::Node], &[]),
            ("10.0.0.3:0", &[A::Node, A::Terminating], &[A::Terminating]),
            ("10.0.0.4:0", &[A::Terminating, A::Terminating], &[A::Terminating]),
            ("[fd00::2]:0", &[A::Node], &[A::Terminating]),
            ("10.0.0.3:0", &[A::Node], &[A::Node]),
        ];
        for (address, names, gone) in clients {
            let ip = ip(address);
            for kind in names {
                network.counting.name_address(ip, *kind).unwrap();
            }
            for kind in gone {
                network.counting.forget_address(ip, *kind);
            }
            let to = if address.starts_with('[') { "[fd00::1]:8080" } else { SERVER };
            server.serve(address, to, "ac");
            for kind in names {
                network.counting.forget_address(ip, *kind);
            }
        }
        network.expect_pod(&[
            (Node, &[(Opened, 3), (Closed, 3)]),
            (Terminating, &[(Opened, 1), (Ended, 1)]),
            (Client, &[(Opened, 1), (Closed, 1)]),
            (Outbound, &[(Opened, 5), (PeerClosed, 5)]),
        ]);
    });
}

#[test]
fn the_programs_notice_the_stop_and_count_for_each_container() {
    with_cgroup2(|hierarchy| {
        let mut kernel = stage::start(&stage::options(hierarchy));
        let pod = Pod::make(hierarchy);
        let other = pod.pod.child(&"f".repeat(64));
        let (own, sidecar) = (pod.container.id, other.id);
        in_network(&mut kernel, &[own, sidecar], |network| {
            let mut server = TestServer::listening(SERVER, Some(&pod.container.path));
            let nested = other.child("nested");
            let mut beside = TestServer::listening("10.0.0.1:8081", Some(&nested.path));
            for is_stopping in [false, true] {
                if is_stopping {
                    server.signal(libc::SIGTERM);
                }
                server.serve(CLIENT, SERVER, "ac");
                beside.serve(CLIENT, "10.0.0.1:8081", "ac");
            }
            network.expect(&[
                (None, Outbound, Opened, 4),
                (None, Outbound, PeerClosed, 4),
                (Some(own), Client, Opened, 1),
                (Some(own), Client, OpenedAfterStop, 1),
                (Some(own), Client, Closed, 2),
                // The pod is stopping, whichever container was first.
                (Some(sidecar), Client, Opened, 1),
                (Some(sidecar), Client, OpenedAfterStop, 1),
                (Some(sidecar), Client, Closed, 2),
            ]);
            server.kill();
            beside.kill();
        });
        drop((other, pod));
    });
}

#[test]
fn signals_are_reported_as_before_where_nothing_is_marked() {
    with_cgroup2(|hierarchy| {
        let mut session = Session::start(hierarchy);
        let pod = Pod::make(hierarchy);
        let server = TestServer::listening("127.0.0.1:0", Some(&pod.container.path));
        server.signal(libc::SIGTERM);
        session.until("the signal", |fact| matches!(fact, KernelFact::SignalGenerated(_)));
        server.kill();
        drop(pod);
    });
}

/// The kernel gives the lowest number that is free, so a new pod has often that of one that has just gone.
#[test]
fn a_namespace_with_the_number_of_one_that_is_gone_is_not_counted() {
    counted(|network| {
        let serve = || {
            let mut server = TestServer::listening(SERVER, None);
            server.serve(CLIENT, SERVER, "ac");
            server.act("s");
        };
        let once: [(_, &[_]); 2] = [
            (Client, &[(Opened, 1), (Closed, 1), (ListenerClosed, 1)]),
            (Outbound, &[(Opened, 1), (PeerClosed, 1)]),
        ];
        serve();
        network.expect_pod(&once);
        stage::wait_for(Duration::from_millis(10), || {
            let is_again = unshare() == network.netns;
            is_again
                .then_some(())
                .ok_or_else(|| format!("no namespace had the number {}", network.netns))
        });
        serve();
        network.expect_pod(&once);
        // With an entry of its own it is.
        let key = EntryKey { netns: network.netns, cgroup: None };
        network.counting.remove(key);
        network.counting.insert(key, &[]).unwrap();
        serve();
        network.expect_pod(&once);
    });
}
