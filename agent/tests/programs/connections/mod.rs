//! Connections that are counted: real ones, in a network namespace of their own. Both ends are in it; the client's has no
//! port on which anybody listens, and is not counted.

mod adapter;
pub(crate) mod network;

use crate::stage::{self, Pod, with_cgroup2};
use coroner_core::input::{ConnectionEvent::*, TrafficPeer::*};
use network::{
    CLIENT, SERVER, TestNetwork, TestServer, connect, drain, in_network, ip, try_connect, unshare,
};
use std::{
    io::{ErrorKind, Write},
    net::Shutdown,
    time::Duration,
};

/// Runs a test in a marked network namespace.
fn counted(test: fn(&mut TestNetwork<'_>)) {
    with_cgroup2(|hierarchy| {
        let mut kernel = stage::start(&stage::options(hierarchy));
        in_network(&mut kernel, test);
    });
}

#[test]
fn what_the_exit_of_a_process_costs_a_client() {
    counted(|network| {
        let requests = [
            // What the server does of: accept, read, write, wait until that was acknowledged, fill, ask for a reset.
            ("", "", None), // nobody had accepted it
            ("", "a", Some(CutIdle)),
            ("?", "arwk", Some(CutIdle)),
            ("", "af", Some(CutIdle)), // the kernel delivers it
            ("?", "ar", Some(Cut)),
            ("?", "a", Some(Cut)),
            // A reset that the process asked for loses only what has no answer.
            ("", "az", None),
            ("?", "arwkz", None),
            ("?", "arz", Some(Cut)),
            ("?", "arwfz", Some(Cut)),
        ];
        for (request, orders, cost) in requests {
            for half_closes in [false, true] {
                network.start_over();
                let mut server = TestServer::listening(SERVER, None);
                let mut client = connect(CLIENT, SERVER);
                client.write_all(request.as_bytes()).unwrap();
                if half_closes {
                    client.shutdown(Shutdown::Write).unwrap();
                }
                server.act(orders);
                server.kill();
                drain(client);
                let mut expected = vec![(Client, Opened, 1), (Client, ListenerCut, 1)];
                // The kernel cannot tell a client that waits from one that has closed.
                let cost = cost.filter(|_| !half_closes);
                expected.extend(cost.map(|cost| (Client, cost, 1)));
                eprintln!("{request:?} {orders:?} {half_closes}");
                network.expect(&expected);
            }
        }
    });
}

#[test]
fn what_the_application_closes_costs_nothing() {
    counted(|network| {
        let mut server = TestServer::listening(SERVER, None);
        let clients: Vec<_> = (0..3).map(|_| connect(CLIENT, SERVER)).collect();
        server.act("aaaccc");
        clients.into_iter().for_each(drain);
        server.act("s");
        network.expect(&[(Client, Opened, 3), (Client, ListenerClosed, 1)]);
        assert_eq!(try_connect(CLIENT, SERVER).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mut server = TestServer::listening(SERVER, None);
        let client = connect(CLIENT, SERVER);
        server.act("a");
        server.exit();
        drain(client);
        network.expect(&[
            (Client, Opened, 4),
            (Client, CutIdle, 1),
            (Client, ListenerClosed, 1),
            (Client, ListenerCut, 1),
        ]);
    });
}

#[test]
fn what_stays_in_the_pod_or_is_opened_by_it_is_no_clients() {
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
        network.expect(&[(Client, ListenerCut, 2)]);
        network.start_over();
        let mut other = TestServer::listening("10.0.0.1:9090", None);
        let mut pod = TestServer::listening(SERVER, None);
        pod.act("o");
        other.act("a");
        pod.kill();
        network.expect(&[(Client, Opened, 1), (Client, ListenerCut, 1)]);
    });
}

#[test]
fn ipv6_and_mapped_addresses_and_the_nodes_own() {
    counted(|network| {
        let own = [ip("10.0.0.3:0"), ip("[fd00::2]:0")];
        own.iter().for_each(|address| network.counting.add_node_address(*address).unwrap());
        for (server, from, to) in [
            ("[fd00::1]:8080", "[fd00::2]:0", "[fd00::1]:8080"),
            ("[::]:8081", "[fd00::2]:0", "[fd00::1]:8081"),
            ("[::]:8082", "10.0.0.3:0", "10.0.0.1:8082"),
            ("[::]:8083", CLIENT, "10.0.0.1:8083"),
        ] {
            let mut server = TestServer::listening(server, None);
            let client = connect(from, to);
            server.act("a");
            server.kill();
            drain(client);
        }
        own.iter().for_each(|address| network.counting.remove_node_address(*address));
        let mut server = TestServer::listening(SERVER, None);
        server.serve("10.0.0.3:0", SERVER, "ac");
        network.expect(&[
            (Client, Opened, 2),
            (Client, CutIdle, 1),
            (Client, ListenerCut, 4),
            (Node, Opened, 3),
            (Node, CutIdle, 3),
        ]);
    });
}

#[test]
fn the_programs_notice_the_stop() {
    with_cgroup2(|hierarchy| {
        let mut kernel = stage::start(&stage::options(hierarchy));
        let pod = Pod::make(hierarchy);
        in_network(&mut kernel, |network| {
            let mut server = TestServer::listening(SERVER, Some(&pod.container.path));
            server.serve(CLIENT, SERVER, "ac");
            server.signal(libc::SIGTERM);
            server.serve(CLIENT, SERVER, "ac");
            network.expect(&[(Client, Opened, 1), (Client, OpenedAfterStop, 1)]);
            server.kill();
        });
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
        let once = [(Client, Opened, 1), (Client, ListenerClosed, 1)];
        serve();
        network.expect(&once);
        stage::wait_for(Duration::from_millis(10), || {
            let is_again = unshare() == network.netns;
            is_again
                .then_some(())
                .ok_or_else(|| format!("no namespace had the number {}", network.netns))
        });
        serve();
        network.expect(&once);
        // With an entry of its own it is.
        network.start_over();
        serve();
        network.expect(&once);
    });
}
