//! A node full of leaked sandboxes: how long a tick takes.

use super::measure::cpu_time;
use crate::figure::median;
use coroner_core::{
    engine::{Engine, Settings},
    ids::{ContainerId, PodUid, SandboxId},
    input::{
        ApiEvent, ApiNode, ApiPod, ContainerState, CriContainer, CriEvent, CriSandbox,
        CriSandboxStatus, HostEvent, HostSurvey, Input, PodCheck, Received, SandboxNetwork,
    },
    output::{CriRequest, Report, Request},
    time::{Anchor, BootTime, WallTime},
};
use std::time::Duration;

const BOOT_ID: &str = "2f1f5a6e-6a5c-4b44-9d3f-5f0f3c2b7a11";
/// How long something must look like a leak, seconds.
const THRESHOLD: u64 = 30;
/// How long the node is watched, seconds: until all leaks are reported, and longer.
const WATCHED: u64 = 200;
/// A full list comes after so many seconds, and a look at the host.
const LIST: u64 = 10;
const SURVEY: u64 = 30;

/// The sandboxes, none of which runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaked {
    pub(super) pods: u64,
    /// Sandboxes of each.
    pub(super) each: u64,
    /// The pods exist, so that each keeps its newest sandbox rightly.
    pub(super) exist: bool,
}

/// CPU seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ticks {
    /// The first one, which sees all of them for the first time.
    pub(super) first: f64,
    /// The median of the others.
    pub(super) median: f64,
    /// 99 in 100 of the others take less.
    pub(super) p99: f64,
    /// Leaks that were reported.
    pub(super) found: usize,
}

struct LeakedNode {
    engine: Engine,
    at: BootTime,
    ticks: Vec<f64>,
    found: usize,
}

impl Leaked {
    /// Measures each tick, from the first list on.
    pub(super) fn measure(self) -> Ticks {
        let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
        let leak_threshold = Duration::from_secs(THRESHOLD);
        let settings = Settings { leak_threshold, ..Settings::new(anchor) };
        let (at, ticks) = (BootTime(0), Vec::new());
        let mut node = LeakedNode { engine: Engine::new(settings), at, ticks, found: 0 };
        let connected = CriEvent::Connected { runtime: "containerd".to_owned(), process: None };
        let kubelet_version = "v1.23.1".to_owned();
        let (boot_id, ready) = (BOOT_ID.to_owned(), Some(true));
        for input in [
            Input::Host(HostEvent::Boot { boot_id: Some(boot_id.clone()) }),
            Input::Cri(connected),
            Input::Api(ApiEvent::Snapshot { pods: self.objects().collect() }),
            Input::Api(ApiEvent::Node(ApiNode { boot_id, kubelet_version, ready })),
        ] {
            node.take(input);
        }
        for second in 0..WATCHED {
            node.at = BootTime((100 + second) * 1_000_000_000);
            if second % LIST == 0 {
                let (asked, only) = (node.at, None);
                let sandboxes = self.sandboxes().collect();
                node.take(Input::Cri(CriEvent::Sandboxes { asked, only, sandboxes }));
                let (only, containers) = (None, self.containers().collect());
                node.take(Input::Cri(CriEvent::Containers { asked, only, containers }));
            }
            if second % SURVEY == 0 {
                let survey = HostSurvey { asked: node.at, ..HostSurvey::default() };
                node.take(Input::Host(HostEvent::Survey(survey)));
            }
            node.take(Input::Tick);
        }
        let mut ticks = node.ticks.split_off(1);
        ticks.sort_by(f64::total_cmp);
        let first = node.ticks.first().copied().unwrap_or_default();
        let p99 = ticks.get(ticks.len() * 99 / 100).copied().unwrap_or_default();
        Ticks { first, median: median(ticks), p99, found: node.found }
    }

    fn all(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.pods).flat_map(move |pod| (0..self.each).map(move |n| (pod, pod * self.each + n)))
    }

    fn sandboxes(self) -> impl Iterator<Item = CriSandbox> {
        self.all().map(move |(pod, n)| CriSandbox {
            id: SandboxId::new(id(n, 1)),
            pod: PodUid::new(uid(pod)),
            name: name(pod),
            namespace: namespace(pod),
            attempt: u32::try_from(n % self.each).unwrap_or_default(),
            ready: false,
            created: WallTime(n as i64),
            handler: String::new(),
            config_source: Some("api".to_owned()),
        })
    }

    /// One in each sandbox of a pod that is gone.
    fn containers(self) -> impl Iterator<Item = CriContainer> {
        self.all().filter(move |_| !self.exist).map(|(pod, n)| CriContainer {
            id: ContainerId::new(id(n, 2)),
            sandbox: SandboxId::new(id(n, 1)),
            name: "server".to_owned(),
            attempt: 0,
            state: ContainerState::Exited,
            created: WallTime(n as i64),
            pod: Some(PodUid::new(uid(pod))),
            hash: None,
            grace_seconds: Some(30),
            pre_stop: None,
        })
    }

    fn objects(self) -> impl Iterator<Item = ApiPod> {
        (0..self.pods).filter(move |_| self.exist).map(|pod| ApiPod {
            uid: uid(pod),
            namespace: namespace(pod),
            name: name(pod),
            phase: "Running".to_owned(),
            ..ApiPod::default()
        })
    }
}

impl LeakedNode {
    /// The engine takes it, and what it asks for is answered.
    fn take(&mut self, input: Input) {
        let (at, is_tick) = (self.at, matches!(input, Input::Tick));
        let began = cpu_time();
        let out = self.engine.step(Received { at, input });
        if is_tick {
            self.ticks.push((cpu_time() - began).as_secs_f64());
        }
        let opened = |report: &&Report| matches!(report, Report::LeakOpened(_));
        self.found += out.reports.iter().filter(opened).count();
        for request in out.requests {
            match request {
                Request::VerifyPods(pods) => {
                    let checks = pods.into_iter().map(|pod| pod.uid);
                    let pods = checks.map(|uid| PodCheck { uid, exists: Some(false) }).collect();
                    self.take(Input::Api(ApiEvent::Checked { asked: at, pods }));
                }
                Request::Cri(CriRequest::SandboxStatus(sandbox)) => {
                    let network = SandboxNetwork::Own { path: None, closed: Some(true) };
                    let ips = Vec::new();
                    let status = CriSandboxStatus { sandbox, asked: at, pid: None, ips, network };
                    self.take(Input::Cri(CriEvent::SandboxStatus(status)));
                }
                _ => {}
            }
        }
    }
}

/// 64 hex digits that spread as real ids do.
fn id(n: u64, what: u64) -> String {
    let spread = (n ^ what.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!("{spread:016x}{n:016x}{what:032x}")
}

fn uid(pod: u64) -> String {
    let spread = pod.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    format!("{spread:08x}-2fbd-4d9b-bd7a-{pod:012x}")
}

fn name(pod: u64) -> String {
    format!("deployment-7d9c6b8f5d-{pod:05}")
}

fn namespace(pod: u64) -> String {
    format!("namespace-{:02}", pod % 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_newest_sandbox_of_a_pod_that_exists_are_leaked() {
        for (pods, each, exist, found) in [(20, 1, false, 20), (2, 10, true, 18)] {
            assert_eq!(Leaked { pods, each, exist }.measure().found, found);
        }
    }
}
