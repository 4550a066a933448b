//! The adapter: what it answers about real processes.

use super::network::{CLIENT, SERVER, TestServer, connect, unshare};
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
use std::path::Path;
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

    fn ask(&mut self, sandbox: &str, request: TrafficRequest) -> TrafficFact {
        self.requests.blocking_send(request).unwrap();
        loop {
            match self.answers.blocking_recv().unwrap().input {
                Input::Traffic(event) => {
                    assert_eq!(event.sandbox.as_str(), sandbox);
                    return event.fact;
                }
                // Of this machine's other connections.
                Input::Lost(_) => {}
                other => panic!("another input: {other:?}"),
            }
        }
    }

    /// Has the connections of a sandbox counted that has this process, and one that is gone.
    fn count(&mut self, sandbox: &str, pid: u32, started: Option<u64>) -> TrafficFact {
        let processes = vec![(Tgid(0x7fff_ffff), None), (Tgid(pid), started)];
        let request = CountTraffic { sandbox: SandboxId::new(sandbox), processes };
        self.ask(sandbox, TrafficRequest::Count(request))
    }

    fn begins(&mut self, sandbox: &str, pid: u32) {
        let answer = self.count(sandbox, pid, None);
        assert!(matches!(answer, TrafficFact::Began { .. }), "it does not count: {answer:?}");
    }

    fn read(&mut self, sandbox: &str) -> TrafficReading {
        match self.ask(sandbox, TrafficRequest::Read(SandboxId::new(sandbox))) {
            TrafficFact::Counted { reading } => reading,
            other => panic!("it does not count: {other:?}"),
        }
    }
}

fn refused(reason: TrafficBlindness) -> TrafficFact {
    TrafficFact::NotVisible { reason }
}

/// Runs a test with a server in a network namespace of its own, and its pid.
fn with_server(cgroup: Option<&Path>, test: impl FnOnce(TestServer, u32) + Send) {
    let run = || {
        unshare();
        let server = TestServer::listening(SERVER, cgroup);
        let pid = server.pid.unsigned_abs();
        test(server, pid);
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn of(reading: &TrafficReading, event: ConnectionEvent) -> u64 {
    let of = |one: &&TrafficCount| (one.peer, one.event) == (TrafficPeer::Client, event);
    reading.counts.iter().find(of).map_or(0, |one| one.count)
}

/// A pod that has just ended may be asked about together with one that has got its namespace's number.
#[test]
fn what_was_counted_outlives_the_number_of_the_namespace() {
    let _machine = stage::machine();
    let mut asked = Asked::start();
    with_server(None, |mut server, pid| {
        asked.begins("s", pid);
        let first = connect(CLIENT, SERVER);
        server.act("a");
        // The same process stands for the other pod's.
        asked.begins("next", pid);
        let others = [connect(CLIENT, SERVER), connect(CLIENT, SERVER)];
        server.act("aa");
        let opened = |reading| of(&reading, ConnectionEvent::Opened);
        assert_eq!((opened(asked.read("s")), opened(asked.read("next"))), (1, 2));
        asked.requests.blocking_send(TrafficRequest::Forget(SandboxId::new("s"))).unwrap();
        assert_eq!(opened(asked.read("next")), 2, "the other pod's count goes on");
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
    with_server(Some(&pod.container.path), |server, pid| {
        asked.begins("s", pid);
        for (is_stop, ports) in [(false, &[][..]), (true, &[8080]), (false, &[])] {
            if is_stop {
                server.signal(libc::SIGTERM);
            }
            let network = asked.read("s").network.expect("the process lives");
            assert_eq!(network.listening, ports);
        }
    });
}

#[test]
fn the_hosts_namespace_another_process_and_what_finds_no_room_are_refused() {
    let _machine = stage::machine();
    let mut asked = Asked::beside(TRAFFIC_MAX, "/");
    let own = std::process::id();
    assert_eq!(asked.count("s", own, None), refused(TrafficBlindness::HostNetwork));
    assert_eq!(asked.count("s", own, Some(1)), refused(TrafficBlindness::NoProcess));
    with_server(None, |_server, pid| {
        assert_eq!(asked.count("s", pid, None), refused(TrafficBlindness::MapFull));
    });
}

/// The pod's namespace may be the host's.
#[test]
fn where_the_hosts_namespace_is_not_known_nothing_is_counted() {
    let _machine = stage::machine();
    let host = tempfile::tempdir().unwrap();
    let mut asked = Asked::beside(0, host.path().to_str().unwrap());
    with_server(None, |_server, pid| {
        std::fs::create_dir(host.path().join("proc")).unwrap();
        let show = |real: u32, number: u32| {
            let shown = host.path().join(format!("proc/{number}"));
            std::os::unix::fs::symlink(format!("/proc/{real}"), shown).unwrap();
        };
        show(pid, pid);
        assert_eq!(asked.count("s", pid, None), refused(TrafficBlindness::NoProcess));
        show(std::process::id(), 1);
        asked.begins("s", pid);
    });
}
