//! A node whose sources report every second what is true of it, each with its outages, and answer all requests: for
//! what is leaked, which takes minutes to be sure of.

use super::*;
use crate::{
    ids::PodRef,
    leak::{Leak, LeakKey},
};
use std::{collections::BTreeSet, sync::Arc};

/// In seconds.
pub const THRESHOLD: u64 = 30;
/// The kubelet began this long after the boot, seconds.
const KUBELET_BEGAN: u64 = 10;

/// What is true, and what the engine reported.
pub struct LeakyNode {
    pub engine: Engine,
    /// Seconds since the boot.
    pub now: u64,
    pub pods: BTreeMap<PodUid, ApiPod>,
    pub sandboxes: BTreeMap<SandboxId, CriSandbox>,
    pub containers: Vec<CriContainer>,
    pub networks: BTreeMap<SandboxId, SandboxNetwork>,
    /// What the runtime states of each sandbox; `None`: it answers no request for a status.
    pub status: Option<(Option<u32>, Vec<&'static str>)>,
    collected: BTreeSet<u64>,
    pub survey: HostSurvey,
    pub kubelet: DaemonState,
    pub boot_id: &'static str,
    pub version: &'static str,
    pub api_answers: bool,
    /// The watch stands and carries nothing.
    pub watch_is_stalled: bool,
    pub cri_answers: bool,
    /// It neither answers nor fails.
    pub cri_is_stalled: bool,
    /// The apiserver answers gets, whatever becomes of the watch.
    pub gets_answer: bool,
    /// What the watch has shown.
    watched: BTreeMap<PodUid, ApiPod>,
    was_watched: Option<bool>,
    was_listed: Option<bool>,
    /// Leaks, as they were reported last.
    pub leaks: BTreeMap<LeakKey, Arc<Leak>>,
    /// Which were found, and which are gone, in order.
    pub found: Vec<LeakKey>,
    pub gone: Vec<LeakKey>,
    /// Pods that the apiserver was asked about.
    pub asked: BTreeSet<PodUid>,
    pub statuses_asked: usize,
    checks: Checks,
}

impl LeakyNode {
    /// Runtime and apiserver answer, the kubelet runs, and there is nothing.
    pub fn new() -> Self {
        let threshold = Duration::from_secs(THRESHOLD);
        let settings = Settings { leak_threshold: threshold, ..Settings::new(ANCHOR) };
        let process = DaemonProcess { pid: 800, started: KUBELET_BEGAN * 100 };
        Self {
            engine: Engine::new(settings),
            now: 100,
            pods: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            containers: Vec::new(),
            networks: BTreeMap::new(),
            status: Some((None, vec!["10.0.0.9", "fd00::9"])),
            collected: BTreeSet::new(),
            survey: HostSurvey::default(),
            kubelet: DaemonState::Running { process },
            boot_id: "b",
            version: "v1.23.1",
            api_answers: true,
            watch_is_stalled: false,
            cri_answers: true,
            cri_is_stalled: false,
            gets_answer: true,
            watched: BTreeMap::new(),
            was_watched: None,
            was_listed: None,
            leaks: BTreeMap::new(),
            found: Vec::new(),
            gone: Vec::new(),
            asked: BTreeSet::new(),
            statuses_asked: 0,
            checks: Checks::default(),
        }
    }

    pub fn at(&self) -> BootTime {
        BootTime(self.now * 1_000_000_000)
    }

    /// A pod that runs: object, sandbox, container.
    pub fn run(&mut self, n: u64) -> &mut Self {
        self.create(n);
        self.sandboxes.insert(ids(n).1, sandbox(n, true));
        self.containers.push(container(n, ContainerState::Running));
        self
    }

    /// Its object.
    pub fn create(&mut self, n: u64) {
        let pod = ApiPod { name: format!("p{n}"), ..object(n, false, self.at()) };
        self.pods.insert(ids(n).0, pod);
    }

    /// Its sandbox stops, and its containers are removed.
    pub fn stop(&mut self, n: u64) -> &mut Self {
        self.sandbox(n).ready = false;
        let (_, id, _) = ids(n);
        self.containers.retain(|container| container.sandbox != id);
        self
    }

    /// Its object goes.
    pub fn delete(&mut self, n: u64) -> &mut Self {
        self.pods.remove(&ids(n).0);
        self
    }

    /// The kubelet's garbage collection.
    pub fn collect(&mut self, n: u64) -> &mut Self {
        self.sandboxes.remove(&ids(n).1);
        self
    }

    /// It has never had a sandbox.
    pub fn is_new(&self, n: u64) -> bool {
        !self.sandboxes.contains_key(&ids(n).1) && !self.collected.contains(&n)
    }

    /// All of it goes, whatever it was.
    pub fn stop_and_collect(&mut self, n: u64) {
        if self.sandboxes.contains_key(&ids(n).1) {
            self.stop(n).collect(n);
            self.collected.insert(n);
        }
    }

    /// The agent starts again; the node goes on.
    pub fn restart(&mut self) {
        let fresh = Self::new();
        self.engine = fresh.engine;
        (self.was_watched, self.was_listed, self.checks) = (None, None, Checks::default());
        self.leaks.clear();
        self.say(Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }));
    }

    /// The kubelet as it was from the beginning.
    pub fn first_kubelet(&self) -> DaemonState {
        Self::new().kubelet
    }

    pub fn sandbox(&mut self, n: u64) -> &mut CriSandbox {
        self.sandboxes.get_mut(&ids(n).1).expect("it is there")
    }

    /// Seconds pass, and the sources report.
    pub fn seconds(&mut self, n: u64) -> &mut Self {
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
        self.watch();
        self.runtime();
        let state = self.kubelet.clone();
        self.say(Input::Host(HostEvent::Daemon { daemon: Daemon::Kubelet, state }));
        if self.now.is_multiple_of(5) {
            let survey = HostSurvey { asked: self.at(), ..self.survey.clone() };
            self.say(Input::Host(HostEvent::Survey(survey)));
        }
        self.say(Input::Tick);
    }

    fn watch(&mut self) {
        if self.watch_is_stalled {
            return;
        }
        if !self.api_answers {
            if self.was_watched == Some(true) {
                self.say(Input::Api(ApiEvent::OutOfSync { error: "refused".into() }));
            }
            self.was_watched = Some(false);
            return;
        }
        if self.was_watched != Some(true) {
            let pods = self.pods.values().cloned().collect();
            self.say(Input::Api(ApiEvent::Snapshot { pods }));
            let boot_id = self.boot_id.into();
            let kubelet_version = self.version.into();
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
        self.was_watched = Some(true);
        self.watched = self.pods.clone();
    }

    fn runtime(&mut self) {
        if self.cri_is_stalled {
            return;
        }
        if !self.cri_answers {
            if self.was_listed != Some(false) {
                let code = Some("UNAVAILABLE".to_owned());
                let error = "connection refused".into();
                self.say(Input::Cri(CriEvent::Unreachable { error, code }));
            }
            self.was_listed = Some(false);
            return;
        }
        if self.was_listed != Some(true) {
            let process = Some(DaemonProcess { pid: 700, started: self.now });
            self.say(Input::Cri(CriEvent::Connected { runtime: "test".into(), process }));
        }
        self.was_listed = Some(true);
        let asked = self.at();
        let sandboxes = self.sandboxes.values().cloned().collect();
        self.say(Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes }));
        let containers = self.containers.clone();
        self.say(Input::Cri(CriEvent::Containers { asked, only: None, containers }));
    }

    pub fn say(&mut self, input: Input) {
        let at = self.at();
        let outputs = self.engine.step(Received { at, input });
        for report in outputs.reports {
            self.checks.report(&report);
            match report {
                Report::LeakOpened(leak) => {
                    self.found.push(leak.key.clone());
                    self.leaks.insert(leak.key.clone(), leak);
                }
                Report::LeakChanged(leak) => _ = self.leaks.insert(leak.key.clone(), leak),
                Report::LeakResolved(leak) => {
                    self.gone.push(leak.key.clone());
                    self.leaks.remove(&leak.key);
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
        let Some((pid, ips)) = self.status.clone().filter(|_| self.cri_answers) else { return };
        if !self.sandboxes.contains_key(id) {
            return;
        }
        let closed =
            SandboxNetwork::Own { path: Some("/run/netns/cni-x".into()), closed: Some(true) };
        let status = CriSandboxStatus {
            sandbox: id.clone(),
            asked: self.at(),
            pid,
            ips: ips.into_iter().map(str::to_owned).collect(),
            network: self.networks.get(id).cloned().unwrap_or(closed),
        };
        self.say(Input::Cri(CriEvent::SandboxStatus(status)));
    }

    /// The leak of a pod's sandbox.
    pub fn leak(&self, n: u64) -> Option<&Leak> {
        self.leaks.get(&key(n)).map(|leak| &**leak)
    }

    pub fn is_quiet(&self) -> bool {
        self.found.is_empty() && self.gone.is_empty()
    }
}

/// A pod's sandbox as a leak.
pub fn key(n: u64) -> LeakKey {
    LeakKey::Sandbox { id: ids(n).1 }
}
