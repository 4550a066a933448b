//! Pods that serve, and clients that record what became of it: how each way of stopping looks from outside.

use super::stage::{
    client, handles_sigterm, has_exited, run, run_container, sandbox, start, workload,
};
use coroner_cri_api::v1::{
    NamespaceMode, PodSandboxConfig, PodSandboxMetadata, PodSandboxStatusRequest,
    StopContainerRequest, StopPodSandboxRequest, runtime_service_client::RuntimeServiceClient,
};
use coroner_lab_cluster::{
    containerd::Containerd, containerd::ContainerdOptions, image, network::Network,
    traffic::Bounds, traffic::Clients, traffic::ClientsTruth, traffic::Habit, traffic::Load,
    traffic::has_read,
};
use coroner_workload::{network::v6_of, page::boot_now};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use tonic::transport::Channel;

/// Between two connections that arrive.
const EVERY: Duration = Duration::from_millis(20);

/// A pod that serves on port 8080.
struct TrafficServer {
    cri: RuntimeServiceClient<Channel>,
    config: PodSandboxConfig,
    sandbox: String,
    container: String,
    ip: Ipv4Addr,
    network: Network,
}

impl TrafficServer {
    /// Runs it with this command line.
    async fn run(lab: &Containerd, name: &str, command: &str) -> Self {
        let mut cri = client(lab).await;
        let metadata = PodSandboxMetadata {
            name: name.into(),
            namespace: "default".into(),
            uid: format!("uid-{name}"),
            attempt: 0,
        };
        let config = PodSandboxConfig {
            metadata: Some(metadata),
            ..sandbox(&lab.cgroup_parent(), NamespaceMode::Pod)
        };
        let (sandbox, container) = run(&mut cri, &config, &words(command)).await;
        handles_sigterm(&mut cri, &container).await;
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: true };
        let status = cri.pod_sandbox_status(request).await.unwrap().into_inner();
        let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
        let pid = info["pid"].as_i64().unwrap().try_into().unwrap();
        let network = Network::of_process(pid).unwrap();
        let ip = status.status.unwrap().network.unwrap().ip.parse().unwrap();
        Self { cri, config, sandbox, container, ip, network }
    }

    fn v4(&self) -> SocketAddr {
        (self.ip, 8080).into()
    }

    fn v6(&self) -> SocketAddr {
        (v6_of(self.ip), 8080).into()
    }

    /// StopContainer, and when it was called.
    async fn stop(&self) -> u64 {
        let request = StopContainerRequest { container_id: self.container.clone(), timeout: 30 };
        let asked = boot_now();
        self.cri.clone().stop_container(request).await.unwrap();
        asked
    }

    async fn end(self) {
        has_exited(&self.cri, &self.container).await;
        let request = StopPodSandboxRequest { pod_sandbox_id: self.sandbox };
        self.cri.clone().stop_pod_sandbox(request).await.unwrap();
    }
}

fn words(command: &str) -> Vec<&str> {
    std::iter::once(image::PROGRAM).chain(command.split_whitespace()).collect()
}

async fn settled(from: &Network, to: SocketAddr, load: Load) -> Clients {
    let clients = Clients::start(from, to, load).unwrap();
    clients.settled().await.unwrap();
    clients
}

/// The server has ended all.
async fn sum(clients: Clients, stop: u64) -> ClientsTruth {
    clients.ended().await.unwrap();
    let record = clients.finish().await.unwrap();
    let truth = ClientsTruth::of(&record, stop);
    let ends = truth.cut_idle + truth.cut_mid_request + truth.reset + truth.closed_by_client;
    assert_eq!(truth.opened, ends + truth.reset_by_client + truth.failed, "{record:#?}");
    assert_eq!(record.len(), truth.opened + truth.refused, "{record:#?}");
    truth
}

/// Without what lies between two moments.
fn counts(truth: ClientsTruth) -> ClientsTruth {
    ClientsTruth { last_opened: None, refusals: None, ..truth }
}

async fn lab() -> (Containerd, tempfile::TempDir) {
    let parent = tempfile::Builder::new().prefix("clab").tempdir_in("/tmp").unwrap();
    (start(ContainerdOptions::new(parent.path().join("w"), workload())).await, parent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_loses_nothing_and_an_exit_what_is_open() {
    let (lab, _parent) = lab().await;
    let elsewhere = lab.network().other_node(1).unwrap();
    let load = Load::standing([(Habit::Idle, 3), (Habit::Pending, 2), (Habit::Silent, 1)]);

    let server =
        TrafficServer::run(&lab, "drain", "listen --ports 8080 --work 1s --on-stop drain").await;
    let clients = settled(&elsewhere, server.v4(), load.clone()).await;
    // The first ones have their answers; another's is under way.
    let late = settled(&elsewhere, server.v4(), Load::standing([(Habit::Pending, 1)])).await;
    has_read(&server.network, 8080).await.unwrap();
    let stop = server.stop().await;
    let expected =
        ClientsTruth { opened: 1, asked: 1, answered: 1, cut_idle: 1, ..Default::default() };
    assert_eq!(counts(sum(late, stop).await), expected);
    let truth = counts(sum(clients, stop).await);
    let expected =
        ClientsTruth { opened: 6, asked: 5, answered: 5, cut_idle: 6, ..Default::default() };
    assert_eq!(truth, expected);
    server.end().await;

    let server = TrafficServer::run(&lab, "exit", "listen --ports 8080 --sockets 2").await;
    let load = Load::standing([(Habit::Idle, 3)]);
    let clients = settled(lab.network(), server.v4(), load).await;
    let stop = server.stop().await;
    let expected =
        ClientsTruth { opened: 3, asked: 3, answered: 3, cut_idle: 3, ..Default::default() };
    assert_eq!(counts(sum(clients, stop).await), expected);
    server.end().await;
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigkill_cuts_requests_and_resets_what_is_unread() {
    let (lab, _parent) = lab().await;
    assert!(lab.network().addresses().unwrap().v6.is_some(), "this test needs IPv6");
    let kill = async |server: &TrafficServer| {
        let asked = boot_now();
        lab.kill_task(&server.container, "SIGKILL").await.unwrap();
        asked
    };
    let server = TrafficServer::run(&lab, "mid-answer", "listen --ports 8080 --work 1h").await;
    let load = Load::standing([(Habit::Silent, 2), (Habit::Pending, 3), (Habit::HalfClosed, 1)]);
    let clients = settled(lab.network(), server.v6(), load).await;
    has_read(&server.network, 8080).await.unwrap();
    let stop = kill(&server).await;
    let expected =
        ClientsTruth { opened: 6, asked: 4, cut_idle: 2, cut_mid_request: 4, ..Default::default() };
    assert_eq!(counts(sum(clients, stop).await), expected);
    server.end().await;

    for (name, command) in [
        ("unread", "listen --ports 8080 --takes unread"),
        ("unaccepted", "listen --ports 8080 --takes none"),
    ] {
        let server = TrafficServer::run(&lab, name, command).await;
        let clients =
            settled(lab.network(), server.v4(), Load::standing([(Habit::Pending, 2)])).await;
        let stop = kill(&server).await;
        let reset = ClientsTruth { reset: 2, reset_mid_request: 2, ..Default::default() };
        let expected = ClientsTruth { opened: 2, asked: 2, ..reset };
        assert_eq!(counts(sum(clients, stop).await), expected, "{name}");
        server.end().await;
    }

    let server = TrafficServer::run(&lab, "sending", "listen --ports 8080 --bytes 16777216").await;
    let clients = settled(lab.network(), server.v4(), Load::standing([(Habit::Deaf, 1)])).await;
    kill(&server).await;
    let truth = counts(ClientsTruth::of(&clients.finish().await.unwrap(), 0));
    let opened_after_stop = Bounds { least: 1, most: 1 };
    let cut = ClientsTruth { cut_mid_request: 1, ..Default::default() };
    assert_eq!(truth, ClientsTruth { opened: 1, opened_after_stop, asked: 1, ..cut });
    server.end().await;
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_know_yet_are_refused_or_served() {
    let (lab, _parent) = lab().await;
    let load = Load::standing([(Habit::Idle, 2)]).arriving(EVERY, Habit::Once);

    let command = "listen --ports 8080 --on-stop close --for 1500ms";
    let server = TrafficServer::run(&lab, "closes-early", command).await;
    let clients = settled(lab.network(), server.v4(), load.clone()).await;
    clients.stop_arriving_after(Duration::from_secs(1));
    let stop = server.stop().await;
    let truth = sum(clients, stop).await;
    assert!(truth.refused > 0, "{truth:?}");
    assert!(truth.refusals.unwrap().0.after > stop, "{truth:?}");
    assert_eq!((truth.cut_idle, truth.cut_mid_request), (2, 0), "{truth:?}");
    assert_eq!(truth.answered, truth.asked - truth.reset_mid_request, "{truth:?}");
    server.end().await;

    let command = "listen --ports 8080 --on-stop serve --for 1500ms";
    let server = TrafficServer::run(&lab, "serves-on", command).await;
    let clients = settled(lab.network(), server.v4(), load).await;
    clients.stop_arriving_after(Duration::from_secs(1));
    let stop = server.stop().await;
    let truth = sum(clients, stop).await;
    assert!(truth.opened_after_stop.least > 0, "{truth:?}");
    assert_eq!((truth.refused, truth.cut_mid_request, truth.reset), (0, 0, 0), "{truth:?}");
    assert_eq!((truth.answered, truth.cut_idle), (truth.asked, 2), "{truth:?}");
    server.end().await;
    lab.stop().await.unwrap();
}

/// Behind a sidecar nobody is refused: the one that has lost its application answers in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_answers_for_an_application_that_has_gone() {
    let (lab, _parent) = lab().await;
    let app = "listen --ports 8081 --at 127.0.0.1";
    let mut server = TrafficServer::run(&lab, "behind-a-sidecar", app).await;
    let relay = words("relay --ports 8080 --to 8081 --on-stop drain");
    let relay =
        run_container(&mut server.cri, &server.config, &server.sandbox, "relay", &relay).await;
    handles_sigterm(&mut server.cri, &relay).await;
    assert_eq!(server.v4().ip(), IpAddr::V4(server.ip));
    let clients = settled(lab.network(), server.v4(), Load::standing([(Habit::Idle, 2)])).await;
    let stop = server.stop().await;
    let expected =
        ClientsTruth { opened: 2, asked: 2, answered: 2, cut_idle: 2, ..Default::default() };
    assert_eq!(counts(sum(clients, stop).await), expected);
    let clients = settled(lab.network(), server.v4(), Load::standing([(Habit::Idle, 1)])).await;
    let truth = sum(clients, stop).await;
    assert_eq!((truth.answered, truth.answered_badly, truth.cut_idle), (0, 1, 1));
    server.container = relay;
    server.stop().await;
    server.end().await;
    lab.stop().await.unwrap();
}
