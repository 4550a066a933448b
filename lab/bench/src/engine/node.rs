//! The node of the benchmark: pods that stay for as long as it runs, and what is heard of them.

use super::shift::STAYING_CGROUPS;
use coroner_core::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    input::{
        ApiContainer, ApiEvent, ApiNode, ApiPod, ApiProbe, ContainerState, CriContainer,
        CriSandbox, DaemonProcess, ExitStatus, HostEvent, HostSurvey, Input, KernelEvent,
        KernelFact, NetNamespace, PodCgroup, ProcessRef, Received, Shim, Task,
    },
    time::{BootTime, WallTime},
};
use std::time::Duration;

/// Containers of each pod: half of them have a sidecar's worth of company.
const CONTAINERS: u64 = 2;
/// Namespaces that the pods are in.
const NAMESPACES: u64 = 30;
/// One container in so many has exec probes: one for its liveness and one for its readiness.
const PROBED: u64 = 3;
const PROBES: u32 = 2;
/// The default `periodSeconds` of a probe.
const PERIOD: Duration = Duration::from_secs(10);
/// Cgroups of a pod: its own, the sandbox's, the containers'.
const CGROUPS: u64 = 2 + CONTAINERS;
/// The cgroup of those who are in no container.
const OUTSIDE: CgroupId = CgroupId(1);
const BOOT_ID: &str = "2f1f5a6e-6a5c-4b44-9d3f-5f0f3c2b7a11";

/// The pods that stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputSource {
    pods: u64,
    created: WallTime,
}

impl InputSource {
    /// A node with so many pods, all of which run.
    pub(super) fn new(pods: u64, created: WallTime) -> Self {
        Self { pods, created }
    }

    /// As ListPodSandbox lists them.
    pub(super) fn sandboxes(&self) -> impl Iterator<Item = CriSandbox> {
        let created = self.created;
        (0..self.pods).map(move |n| CriSandbox {
            id: SandboxId::new(sandbox(n)),
            pod: PodUid::new(uid(n)),
            name: name(n),
            namespace: namespace(n),
            attempt: 0,
            ready: true,
            created,
            handler: String::new(),
            config_source: Some("api".to_owned()),
        })
    }

    /// As ListContainers lists them.
    pub(super) fn containers(&self) -> impl Iterator<Item = CriContainer> {
        let created = self.created;
        self.all().map(move |(n, c)| CriContainer {
            id: ContainerId::new(container(n, c)),
            sandbox: SandboxId::new(sandbox(n)),
            name: container_name(c),
            attempt: 0,
            state: ContainerState::Running,
            created,
            pod: Some(PodUid::new(uid(n))),
            hash: None,
            grace_seconds: Some(30),
            pre_stop: None,
        })
    }

    /// As the apiserver lists them.
    pub(super) fn objects(&self) -> impl Iterator<Item = ApiPod> {
        (0..self.pods).map(|n| {
            let containers = (0..CONTAINERS).map(|c| {
                let id = Some(ContainerId::new(container(n, c)));
                let probed = is_probed(n, c);
                let liveness = probed
                    .then(|| ApiProbe { exec: Some("probe".to_owned()), ..ApiProbe::default() });
                let started = Some(true);
                let known = ApiContainer { id, started, liveness, ..ApiContainer::default() };
                (container_name(c), known)
            });
            ApiPod {
                uid: uid(n),
                namespace: namespace(n),
                name: name(n),
                grace_seconds: Some(30),
                restart_policy: "Always".into(),
                phase: "Running".to_owned(),
                containers: containers.collect(),
                ..ApiPod::default()
            }
        })
    }

    /// What the engine hears before anything else: that it may judge, and which cgroups there are.
    pub(super) fn beginning(&self, at: BootTime) -> Vec<Received> {
        let boot = HostEvent::Boot { boot_id: Some(BOOT_ID.to_owned()) };
        let node = ApiNode {
            boot_id: BOOT_ID.to_owned(),
            kubelet_version: "v1.33.4".to_owned(),
            ready: Some(true),
        };
        let mut told = vec![Input::Host(boot), Input::Api(ApiEvent::Node(node))];
        let mut scanned = |cgroup, name: String| {
            let fact = KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: true };
            told.push(Input::Kernel(KernelEvent { time: at, fact }));
        };
        for n in 0..self.pods {
            let path = format!("/kubepods/burstable/pod{}", uid(n));
            scanned(cgroup(n, 0), path.clone());
            scanned(cgroup(n, 1), format!("{path}/{}", sandbox(n)));
            for c in 0..CONTAINERS {
                scanned(cgroup(n, 2 + c), format!("{path}/{}", container(n, c)));
            }
        }
        for (n, c) in self.all() {
            let (tgid, comm) = (pid(n, c), "server");
            let task = task(tgid, Some(1), at.0, comm);
            let fact = KernelFact::Running { cgroup: cgroup(n, 2 + c), task };
            told.push(Input::Kernel(KernelEvent { time: at, fact }));
        }
        told.into_iter().map(|input| Received { at, input }).collect()
    }

    /// The records of the exec probes in this time: of each, what the kernel programs tell of runc
    /// and of the probe itself.
    pub(super) fn probes(&self, from: BootTime, to: BootTime) -> Vec<Received> {
        let probed: Vec<_> = self.all().filter(|(n, c)| is_probed(*n, *c)).collect();
        let probes = PROBES * u32::try_from(probed.len()).unwrap_or(u32::MAX / PROBES);
        let apart = PERIOD / probes.max(1);
        let mut records = Vec::new();
        let mut at = from;
        for (turn, (n, c)) in probed.iter().cycle().enumerate() {
            if at >= to || probed.is_empty() {
                break;
            }
            records.extend(probe(at, cgroup(*n, 2 + c), turn as u32));
            at = at + apart;
        }
        records
    }

    /// What a look at the host finds: a shim, a namespace in use and a cgroup of each pod.
    pub(super) fn survey(&self, asked: BootTime) -> HostEvent {
        let shim = |n| Shim {
            process: DaemonProcess { pid: 100_000 + n as u32, started: 1_000 },
            comm: "containerd-shim".to_owned(),
            id: sandbox(n),
            children: 3,
        };
        let namespace = |n| NetNamespace {
            name: format!("cni-{}", uid(n)),
            inode: Some(4_026_532_000 + n),
            processes: 3,
        };
        let group = |n| PodCgroup {
            pod: PodUid::new(uid(n)),
            cgroup: cgroup(n, 0),
            path: format!("/kubepods/burstable/pod{}", uid(n)),
            tasks: 3,
            pids: Vec::new(),
        };
        HostEvent::Survey(HostSurvey {
            asked,
            shims: Some((0..self.pods).map(shim).collect()),
            netns: Some((0..self.pods).map(namespace).collect()),
            pod_cgroups: Some((0..self.pods).map(group).collect()),
            volumes: Some(Vec::new()),
        })
    }

    fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.pods).flat_map(|n| (0..CONTAINERS).map(move |c| (n, c)))
    }
}

/// One run of an exec probe, as the programs tell of it.
fn probe(at: BootTime, cgroup: CgroupId, turn: u32) -> Vec<Received> {
    let runc = 2_000_000 + 4 * turn;
    let outside = |comm: &str| ProcessRef {
        tgid: Tgid(runc),
        comm: comm.to_owned(),
        cgroup: Some(OUTSIDE),
        in_container: Some(false),
    };
    let began = at.0;
    let exit = |pid, ns_pid, comm: &str, parent: &str| KernelFact::Exit {
        cgroup,
        task: task(pid, Some(ns_pid), began, comm),
        status: ExitStatus::Code(0),
        parent: Some(outside(parent)),
    };
    let exec = |pid, ns_pid, comm: &str, parent: &str| KernelFact::Exec {
        cgroup,
        task: task(pid, Some(ns_pid), began, comm),
        parent: outside(parent),
    };
    let facts = [
        exec(runc + 1, runc + 1, "runc", "runc"),
        exit(runc + 2, runc + 2, "runc:[1:CHILD]", "runc"),
        exit(runc + 1, runc + 1, "runc:[0:PARENT]", "runc"),
        exec(runc + 3, 20, "probe", "containerd-shim"),
        exit(runc + 3, 20, "probe", "containerd-shim"),
    ];
    let told = facts.into_iter().zip(0_u64..).map(|(fact, n)| {
        let time = at + Duration::from_millis(2 * n);
        let kernel = KernelEvent { time, fact };
        Received { at: time + Duration::from_millis(1), input: Input::Kernel(kernel) }
    });
    told.collect()
}

fn task(pid: u32, ns_pid: Option<u32>, started: u64, comm: &str) -> Task {
    Task { tgid: Tgid(pid), tid: pid, ns_pid, started: Some(started), comm: comm.to_owned() }
}

fn is_probed(n: u64, c: u64) -> bool {
    (n * CONTAINERS + c).is_multiple_of(PROBED)
}

fn pid(n: u64, c: u64) -> u32 {
    u32::try_from(1 + n * CONTAINERS + c).unwrap_or(u32::MAX)
}

fn cgroup(n: u64, place: u64) -> CgroupId {
    CgroupId(STAYING_CGROUPS + n * CGROUPS + place)
}

// Ids of the right length that no recording has.

fn uid(n: u64) -> String {
    format!("s{n:07x}-2fbd-4d9b-bd7a-3575697a4184")
}

fn sandbox(n: u64) -> String {
    format!("s{n:015x}{:048x}", 1)
}

fn container(n: u64, c: u64) -> String {
    format!("s{n:015x}{:048x}", 2 + c)
}

fn name(n: u64) -> String {
    format!("deployment-{:03}-7d9c6b8f5d-{n:05}", n / 5)
}

fn namespace(n: u64) -> String {
    format!("namespace-{:02}", n % NAMESPACES)
}

fn container_name(c: u64) -> String {
    ["server", "sidecar"].get(c as usize).map_or_else(|| format!("c{c}"), |&name| name.to_owned())
}
