//! The adapter: what it answers about real processes.

use super::network::{TestServer, connect, unshare};
use crate::stage::{self, Pod};
use coroner::sources::{
    kernel::Kernel,
    traffic::{self, Attachment, TrafficOptions},
};
use coroner_core::{
    ids::{SandboxId, Tgid},
    input::{
        ConnectionEvent, Input, Received, TrafficBlindness, TrafficCount, TrafficFact, TrafficPeer,
        TrafficReading,
    },
    output::{CountTraffic, TrafficRequest},
};
use coroner_ebpf::maps::TRAFFIC_MAX;
use tokio::sync::mpsc;

/// The adapter, in a thread of its own.
struct Asked {
    requests: mpsc::Sender<TrafficRequest>,
    answers: mpsc::Receiver<Received>,
    /// Notices signals.
    _kernel: Kernel,
}

impl Asked {
    fn start() -> Self {
        Self::beside(0, "/")
    }

    /// With so many entries of others in the map, and this root of the host's file system.
    fn beside(others: u32, host_root: &str) -> Self {
        let hierarchy = stage::v2();
        let mut kernel = stage::start(&stage::options(&hierarchy));
        let mut counting = kernel.take_counting();
        for netns in 1..=others {
            counting.as_mut().unwrap().insert(netns, &[]).unwrap();
        }
        let (host_root, attachment) = (host_root.into(), Attachment::OnDemand);
        let options = TrafficOptions { host_root, attachment, counting };
        let (to, answers) = mpsc::channel(16);
        let (requests, from) = mpsc::channel(16);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(traffic::run(options, to, from)).unwrap();
        });
        Self { requests, answers, _kernel: kernel }
    }

    fn ask(&mut self, request: TrafficRequest) -> TrafficFact {
        self.ask_of(sandbox(), request)
    }

    fn ask_of(&mut self, sandbox: SandboxId, request: TrafficRequest) -> TrafficFact {
        self.requests.blocking_send(request).unwrap();
        loop {
            match self.answers.blocking_recv().unwrap().input {
                Input::Traffic(event) => {
                    assert_eq!(event.sandbox, sandbox);
                    return event.fact;
                }
                // Of this machine's other connections.
                Input::Lost(_) => {}
                other => panic!("another input: {other:?}"),
            }
        }
    }

    fn read(&mut self) -> TrafficReading {
        self.read_of(sandbox())
    }

    fn read_of(&mut self, sandbox: SandboxId) -> TrafficReading {
        match self.ask_of(sandbox.clone(), TrafficRequest::Read(sandbox)) {
            TrafficFact::Counted { reading } => reading,
            other => panic!("it does not count: {other:?}"),
        }
    }
}

fn sandbox() -> SandboxId {
    SandboxId::new("s")
}

fn count(pid: u32, started: Option<u64>) -> TrafficRequest {
    count_of(sandbox(), pid, started)
}

fn count_of(sandbox: SandboxId, pid: u32, started: Option<u64>) -> TrafficRequest {
    let processes = vec![(Tgid(0x7fff_ffff), None), (Tgid(pid), started)];
    TrafficRequest::Count(CountTraffic { sandbox, processes })
}

fn refused(reason: TrafficBlindness) -> TrafficFact {
    TrafficFact::NotVisible { reason }
}

fn in_a_namespace(test: impl FnOnce() + Send) {
    let ended = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare();
                test();
            })
            .join()
    });
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn of(reading: &TrafficReading, event: ConnectionEvent) -> u64 {
    let of = |one: &&TrafficCount| (one.peer, one.event) == (TrafficPeer::Client, event);
    reading.counts.iter().find(of).map_or(0, |one| one.count)
}

#[test]
fn a_pods_connections_are_counted_from_the_request_on() {
    let _machine = stage::machine();
    let mut asked = Asked::start();
    in_a_namespace(|| {
        let mut server = TestServer::listening("10.0.0.1:8080", None);
        let early = connect("10.0.0.2:0", "10.0.0.1:8080");
        server.act("a");
        let TrafficFact::Began { reading, sees_refusals } =
            asked.ask(count(server.pid.unsigned_abs(), None))
        else {
            panic!("it does not count")
        };
        assert_eq!(sees_refusals, stage::tracepoint("tcp_send_reset").len() >= 3);
        assert_eq!(reading.counts, []);
        let network = reading.network.expect("the process lives");
        assert_eq!((network.established, &*network.listening), (2, &[8080][..]), "both ends");

        let late = connect("10.0.0.2:0", "10.0.0.1:8080");
        server.act("a");
        let pid = server.pid.unsigned_abs();
        server.act("s");
        let reading = asked.read();
        assert_eq!(of(&reading, ConnectionEvent::ListenerClosed), 1);
        assert_eq!(of(&reading, ConnectionEvent::Opened), 1);
        let network = reading.network.expect("the process lives");
        assert_eq!((network.established, network.listening.len()), (4, 0));

        server.kill();
        let reading = asked.read();
        assert_eq!(reading.network, None, "no process is left");
        assert_eq!(of(&reading, ConnectionEvent::CutIdle), 2);
        drop((early, late));
        assert_eq!(asked.ask(count(pid, None)), refused(TrafficBlindness::NoProcess));
        assert_eq!(
            asked.ask(TrafficRequest::Read(sandbox())),
            refused(TrafficBlindness::NoProcess),
            "a new request ends the one before"
        );
    });
}

/// A pod that has just ended may be asked about together with one that has got its namespace's number.
#[test]
fn what_was_counted_outlives_the_number_of_the_namespace() {
    let _machine = stage::machine();
    let mut asked = Asked::start();
    let next = || SandboxId::new("next");
    in_a_namespace(|| {
        let mut server = TestServer::listening("10.0.0.1:8080", None);
        let pid = server.pid.unsigned_abs();
        let began = asked.ask(count(pid, None));
        assert!(matches!(began, TrafficFact::Began { .. }), "{began:?}");
        let first = connect("10.0.0.2:0", "10.0.0.1:8080");
        server.act("a");
        // The same process stands for the other pod's.
        let began = asked.ask_of(next(), count_of(next(), pid, None));
        assert!(matches!(began, TrafficFact::Began { .. }), "{began:?}");
        let others =
            [connect("10.0.0.2:0", "10.0.0.1:8080"), connect("10.0.0.2:0", "10.0.0.1:8080")];
        server.act("aa");
        let opened = |reading| of(&reading, ConnectionEvent::Opened);
        assert_eq!((opened(asked.read()), opened(asked.read_of(next()))), (1, 2));
        asked.requests.blocking_send(TrafficRequest::Forget(sandbox())).unwrap();
        assert_eq!(opened(asked.read_of(next())), 2, "the other pod's count goes on");
        drop((first, others));
    });
}

/// By then a process may have closed them, and there are none of other times.
#[test]
fn the_ports_at_the_stop_signal_are_read_once() {
    let _machine = stage::machine();
    // Also where nobody else has mounted it.
    let hierarchy = stage::v2();
    let mut asked = Asked::start();
    let pod = Pod::make(&hierarchy);
    in_a_namespace(|| {
        let server = TestServer::listening("10.0.0.1:8080", Some(&pod.container.path));
        asked.ask(count(server.pid.unsigned_abs(), None));
        for (is_stop, ports) in [(false, &[][..]), (true, &[8080]), (false, &[])] {
            if is_stop {
                server.signal(libc::SIGTERM);
            }
            let reading = asked.read();
            assert_eq!(reading.network.expect("the process lives").listening, ports);
        }
        drop(server);
    });
}

#[test]
fn the_hosts_namespace_and_another_process_are_refused() {
    let _machine = stage::machine();
    let mut asked = Asked::start();
    let own = std::process::id();
    assert_eq!(asked.ask(count(own, None)), refused(TrafficBlindness::HostNetwork));
    assert_eq!(asked.ask(count(own, Some(1))), refused(TrafficBlindness::NoProcess));
}

/// The pod's namespace may be the host's.
#[test]
fn where_the_hosts_namespace_is_not_known_nothing_is_counted() {
    let _machine = stage::machine();
    let host = tempfile::tempdir().unwrap();
    let mut asked = Asked::beside(0, host.path().to_str().unwrap());
    in_a_namespace(|| {
        let server = TestServer::listening("10.0.0.1:8080", None);
        let pid = server.pid.unsigned_abs();
        std::fs::create_dir(host.path().join("proc")).unwrap();
        let show = |real: u32, number: u32| {
            let shown = host.path().join(format!("proc/{number}"));
            std::os::unix::fs::symlink(format!("/proc/{real}"), shown).unwrap();
        };
        show(pid, pid);
        assert_eq!(asked.ask(count(pid, None)), refused(TrafficBlindness::NoProcess));
        show(std::process::id(), 1);
        let began = asked.ask(count(pid, None));
        assert!(matches!(began, TrafficFact::Began { .. }), "{began:?}");
        drop(server);
    });
}

#[test]
fn what_finds_no_room_is_not_visible_and_takes_none() {
    let _machine = stage::machine();
    let mut asked = Asked::beside(TRAFFIC_MAX, "/");
    in_a_namespace(|| {
        let server = TestServer::listening("10.0.0.1:8080", None);
        let pid = server.pid.unsigned_abs();
        assert_eq!(asked.ask(count(pid, None)), refused(TrafficBlindness::MapFull));
        drop(server);
    });
}
