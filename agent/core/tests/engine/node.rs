//! A node as it truly is, and the adapters that tell the engine of it as far as they can: the
//! runtime's lists and the apiserver's watch, each with its outages, and answers to all questions.

use super::world::{container, ids, object, sandbox};
use coroner_core::{
    engine::{Engine, Settings},
    ids::{PodRef, PodUid, SandboxId},
    input::{
        ApiEvent, ApiNode, ApiPod, ContainerState, CriContainer, CriEvent, CriSandbox,
        CriSandboxStatus, Daemon, DaemonProcess, DaemonState, HostEvent, HostSurvey, Input,
        PodCheck, Received, SandboxNetwork,
    },
    leak::{Leak, LeakKey},
    output::{CriRequest, Report, Request},
    time::{Anchor, BootTime},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// In seconds.
pub(crate) const THRESHOLD: u64 = 30;
/// The kubelet began this long after the boot, seconds.
const KUBELET_BEGAN: u64 = 10;

/// The truth, and what the engine made of it.
pub(crate) struct LeakyNode {
    pub(crate) engine: Engine,
    /// Seconds since the boot.
    pub(crate) now: u64,
    pub(crate) pods: BTreeMap<PodUid, ApiPod>,
    pub(crate) sandboxes: BTreeMap<SandboxId, CriSandbox>,
    pub(crate) containers: Vec<CriContainer>,
    pub(crate) networks: BTreeMap<SandboxId, SandboxNetwork>,
    collected: BTreeSet<u64>,
    pub(crate) survey: HostSurvey,
    pub(crate) kubelet: DaemonState,
    pub(crate) boot_id: &'static str,
    pub(crate) api_answers: bool,
    /// The watch stands and carries nothing.
    pub(crate) watch_is_stalled: bool,
    pub(crate) cri_answers: bool,
    /// It neither answers nor fails.
    pub(crate) cri_is_stalled: bool,
    /// The apiserver answers gets, whatever becomes of the watch.
    pub(crate) gets_answer: bool,
    /// What the watch has shown.
    watched: BTreeMap<PodUid, ApiPod>,
    api_told: Option<bool>,
    cri_told: Option<bool>,
    /// Leaks that were told, as they were told last.
    pub(crate) leaks: BTreeMap<LeakKey, Arc<Leak>>,
    /// How often which was found, and gone.
    pub(crate) found: Vec<LeakKey>,
    pub(crate) gone: Vec<LeakKey>,
    /// Pods that the apiserver was asked about.
    pub(crate) asked: BTreeSet<PodUid>,
    pub(crate) statuses_asked: usize,
}

impl LeakyNode {
    /// Runtime and apiserver answer, the kubelet runs, and there is nothing.
    pub(crate) fn new() -> Self {
        let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
        let threshold = Duration::from_secs(THRESHOLD);
        let settings = Settings { leak_threshold: threshold, ..Settings::new(anchor) };
        let process = DaemonProcess { pid: 800, started: KUBELET_BEGAN * 100 };
        Self {
            engine: Engine::new(settings),
            now: 100,
            pods: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            containers: Vec::new(),
            networks: BTreeMap::new(),
            collected: BTreeSet::new(),
            survey: HostSurvey::default(),
            kubelet: DaemonState::Running { process },
            boot_id: "b",
            api_answers: true,
            watch_is_stalled: false,
            cri_answers: true,
            cri_is_stalled: false,
            gets_answer: true,
            watched: BTreeMap::new(),
            api_told: None,
            cri_told: None,
            leaks: BTreeMap::new(),
            found: Vec::new(),
            gone: Vec::new(),
            asked: BTreeSet::new(),
            statuses_asked: 0,
        }
    }

    pub(crate) fn at(&self) -> BootTime {
        BootTime(self.now * 1_000_000_000)
    }

    /// A pod that runs: object, sandbox, container.
    pub(crate) fn run(&mut self, n: u64) -> &mut Self {
        self.create(n);
        self.sandboxes.insert(ids(n).1, sandbox(n, true));
        self.containers.push(container(n, ContainerState::Running));
        self
    }

    /// Its object.
    pub(crate) fn create(&mut self, n: u64) {
        let pod = ApiPod { name: format!("p{n}"), ..object(n, false, self.at()) };
        self.pods.insert(ids(n).0, pod);
    }

    /// Its sandbox stops, and its containers are removed.
    pub(crate) fn stop(&mut self, n: u64) -> &mut Self {
        self.sandbox(n).ready = false;
        let (_, id, _) = ids(n);
        self.containers.retain(|container| container.sandbox != id);
        self
    }

    /// Its object goes.
    pub(crate) fn delete(&mut self, n: u64) -> &mut Self {
        self.pods.remove(&ids(n).0);
        self
    }

    /// The kubelet's garbage collection.
    pub(crate) fn collect(&mut self, n: u64) -> &mut Self {
        self.sandboxes.remove(&ids(n).1);
        self
    }

    /// It has never had a sandbox.
    pub(crate) fn is_new(&self, n: u64) -> bool {
        !self.sandboxes.contains_key(&ids(n).1) && !self.collected.contains(&n)
    }

    /// All of it goes, whatever it was.
    pub(crate) fn stop_and_collect(&mut self, n: u64) {
        if self.sandboxes.contains_key(&ids(n).1) {
            self.stop(n).collect(n);
            self.collected.insert(n);
        }
    }

    /// The agent starts anew and knows nothing; the node goes on.
    pub(crate) fn restart(&mut self) {
        let fresh = Self::new();
        self.engine = fresh.engine;
        (self.api_told, self.cri_told) = (None, None);
        self.leaks.clear();
        self.say(Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }));
    }

    /// The kubelet as it was from the beginning.
    pub(crate) fn first_kubelet(&self) -> DaemonState {
        Self::new().kubelet
    }

    pub(crate) fn sandbox(&mut self, n: u64) -> &mut CriSandbox {
        self.sandboxes.get_mut(&ids(n).1).expect("it is there")
    }

    /// Seconds pass, and the adapters tell.
    pub(crate) fn seconds(&mut self, n: u64) -> &mut Self {
        for _ in 0..n {
            self.second();
        }
        self
    }

    fn second(&mut self) {
        self.now += 1;
        if self.now == 101 {
            self.say(Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }));
        }
        self.tell_api();
        self.tell_cri();
        let state = self.kubelet.clone();
        self.say(Input::Host(HostEvent::Daemon { daemon: Daemon::Kubelet, state }));
        if self.now.is_multiple_of(5) {
            let survey = HostSurvey { asked: self.at(), ..self.survey.clone() };
            self.say(Input::Host(HostEvent::Survey(survey)));
        }
        self.say(Input::Tick);
    }

    fn tell_api(&mut self) {
        if self.watch_is_stalled {
            return;
        }
        if !self.api_answers {
            if self.api_told == Some(true) {
                self.say(Input::Api(ApiEvent::OutOfSync { error: "refused".into() }));
            }
            self.api_told = Some(false);
            return;
        }
        if self.api_told != Some(true) {
            let pods = self.pods.values().cloned().collect();
            self.say(Input::Api(ApiEvent::Snapshot { pods }));
            let boot_id = self.boot_id.into();
            let kubelet_version = "v1.23.1".into();
            let node = ApiNode { boot_id, kubelet_version, ready: Some(true) };
            self.say(Input::Api(ApiEvent::Node(node)));
        } else {
            let gone: Vec<ApiPod> = self
                .watched
                .iter()
                .filter(|(uid, _)| !self.pods.contains_key(*uid))
                .map(|(_, pod)| pod.clone())
                .collect();
            let news: Vec<ApiPod> = self
                .pods
                .iter()
                .filter(|(uid, pod)| self.watched.get(*uid) != Some(*pod))
                .map(|(_, pod)| pod.clone())
                .collect();
            gone.into_iter().for_each(|pod| self.say(Input::Api(ApiEvent::Deleted(pod))));
            news.into_iter().for_each(|pod| self.say(Input::Api(ApiEvent::Applied(pod))));
        }
        self.api_told = Some(true);
        self.watched = self.pods.clone();
    }

    fn tell_cri(&mut self) {
        if self.cri_is_stalled {
            return;
        }
        if !self.cri_answers {
            if self.cri_told != Some(false) {
                let code = Some("UNAVAILABLE".to_owned());
                let error = "connection refused".into();
                self.say(Input::Cri(CriEvent::Unreachable { error, code }));
            }
            self.cri_told = Some(false);
            return;
        }
        if self.cri_told != Some(true) {
            let process = Some(DaemonProcess { pid: 700, started: self.now });
            self.say(Input::Cri(CriEvent::Connected { runtime: "test".into(), process }));
        }
        self.cri_told = Some(true);
        let asked = self.at();
        let sandboxes = self.sandboxes.values().cloned().collect();
        self.say(Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes }));
        let containers = self.containers.clone();
        self.say(Input::Cri(CriEvent::Containers { asked, only: None, containers }));
    }

    pub(crate) fn say(&mut self, input: Input) {
        let at = self.at();
        let outputs = self.engine.step(Received { at, input });
        for report in outputs.reports {
            match report {
                Report::LeakOpened(leak) => {
                    self.found.push(leak.key.clone());
                    let before = self.leaks.insert(leak.key.clone(), leak);
                    assert!(before.is_none(), "found twice: {before:?}");
                }
                Report::LeakChanged(leak) => {
                    let before = self.leaks.insert(leak.key.clone(), leak);
                    assert!(before.is_some(), "changed before it was found");
                }
                Report::LeakResolved(leak) => {
                    self.gone.push(leak.key.clone());
                    assert!(self.leaks.remove(&leak.key).is_some(), "gone before it was found");
                }
                _ => {}
            }
        }
        for request in outputs.requests {
            match request {
                Request::VerifyPods(pods) => self.check(&pods),
                Request::Cri(CriRequest::SandboxStatus(id)) => self.inspect(&id),
                _ => {}
            }
        }
    }

    fn check(&mut self, pods: &[PodRef]) {
        self.asked.extend(pods.iter().map(|pod| pod.uid.clone()));
        let exists = |uid: &PodUid| {
            let known = |pod: &ApiPod| pod.mirror_of.as_ref() == Some(uid);
            self.pods.contains_key(uid) || self.pods.values().any(known)
        };
        let pods = pods
            .iter()
            .map(|pod| PodCheck {
                uid: pod.uid.clone(),
                exists: self.gets_answer.then(|| exists(&pod.uid)),
            })
            .collect();
        let asked = self.at();
        self.say(Input::Api(ApiEvent::Checked { asked, pods }));
    }

    fn inspect(&mut self, id: &SandboxId) {
        self.statuses_asked += 1;
        if !self.cri_answers || !self.sandboxes.contains_key(id) {
            return;
        }
        let closed =
            SandboxNetwork::Own { path: Some("/run/netns/cni-x".into()), closed: Some(true) };
        let status = CriSandboxStatus {
            sandbox: id.clone(),
            asked: self.at(),
            pid: None,
            ips: vec!["10.0.0.9".into(), "fd00::9".into()],
            network: self.networks.get(id).cloned().unwrap_or(closed),
        };
        self.say(Input::Cri(CriEvent::SandboxStatus(status)));
    }

    /// The leak of a pod's sandbox.
    pub(crate) fn leak(&self, n: u64) -> Option<&Leak> {
        self.leaks.get(&key(n)).map(|leak| &**leak)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.found.is_empty() && self.gone.is_empty()
    }
}

/// A pod's sandbox as a leak.
pub(crate) fn key(n: u64) -> LeakKey {
    LeakKey::Sandbox { id: ids(n).1 }
}
