//! A world whose sources report every second what is true of it, each with its outages, and answer all requests: for
//! what is leaked, which takes minutes to be sure of.

use super::*;
use crate::{
    ids::PodRef,
    leak::{Leak, LeakKey},
};
use std::{
    collections::BTreeSet,
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// In seconds.
pub const THRESHOLD: u64 = 30;
/// When it begins, seconds after the boot; the kubelet began long before.
const BEGINS: u64 = 100;
const KUBELET_BEGAN: u64 = 10;

/// What is true, and what the engine reported of leaks.
pub struct LeakyNode {
    world: World,
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
    watched: BTreeMap<u64, ApiPod>,
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
}

impl Deref for LeakyNode {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for LeakyNode {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl LeakyNode {
    /// Runtime and apiserver answer, the kubelet runs, and there is nothing.
    pub fn new() -> Self {
        let threshold = Duration::from_secs(THRESHOLD);
        let settings = Settings { leak_threshold: threshold, ..Settings::new(ANCHOR) };
        let process = DaemonProcess { pid: 800, started: KUBELET_BEGAN * 100 };
        let (engine, now) = (Engine::new(settings), BEGINS * 1_000);
        Self {
            world: World { engine, now, ..World::new() },
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
        }
    }

    /// A pod that runs: object, sandbox, container.
    pub fn run(&mut self, n: u64) -> &mut Self {
        self.runs(n).pod(n);
        self
    }

    /// Its sandbox stops, and its containers are removed.
    pub fn stop(&mut self, n: u64) -> &mut Self {
        self.sandbox(n).ready = false;
        let (_, id, _) = ids(n);
        self.containers.retain(|_, container| container.sandbox != id);
        self
    }

    /// Its object goes.
    pub fn delete(&mut self, n: u64) -> &mut Self {
        self.vanishes(n);
        self
    }

    /// The kubelet's garbage collection.
    pub fn collect(&mut self, n: u64) -> &mut Self {
        self.sandboxes.remove(&n);
        self
    }

    /// It has never had a sandbox.
    pub fn is_new(&self, n: u64) -> bool {
        !self.sandboxes.contains_key(&n) && !self.collected.contains(&n)
    }

    /// All of it goes, whatever it was.
    pub fn stop_and_collect(&mut self, n: u64) {
        if self.sandboxes.contains_key(&n) {
            self.stop(n).collect(n);
            self.collected.insert(n);
        }
    }

    /// The agent starts again; the node goes on.
    pub fn restart(&mut self) {
        let (fresh, old) = (Self::new().world, mem::replace(&mut self.world, World::new()));
        let World { now, pods, sandboxes, containers, .. } = old;
        self.world = World { now, pods, sandboxes, containers, ..fresh };
        (self.was_watched, self.was_listed) = (None, None);
        self.leaks.clear();
        self.tell(Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }));
    }

    pub fn sandbox(&mut self, n: u64) -> &mut CriSandbox {
        self.sandboxes.get_mut(&n).expect("it is there")
    }

    /// Seconds pass, and the sources report.
    pub fn seconds(&mut self, n: u64) -> &mut Self {
        for _ in 0..n {
            self.second();
        }
        self
    }

    fn second(&mut self) {
        let second = self.later(1_000).now / 1_000;
        if second == BEGINS + 1 {
            self.tell(Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }));
        }
        self.watch();
        self.runtime();
        let state = self.kubelet.clone();
        self.tell(Input::Host(HostEvent::Daemon { daemon: Daemon::Kubelet, state }));
        if second.is_multiple_of(5) {
            let survey = HostSurvey { asked: self.at(), ..self.survey.clone() };
            self.tell(Input::Host(HostEvent::Survey(survey)));
        }
        self.tell(Input::Tick);
    }

    fn watch(&mut self) {
        if self.watch_is_stalled {
            return;
        }
        match (self.was_watched, self.api_answers) {
            (Some(true), false) => _ = self.breaks(),
            (Some(true), true) => {
                let (pods, watched) = (self.pods.clone(), mem::take(&mut self.watched));
                let gone = watched.iter().filter(|(n, _)| !pods.contains_key(*n));
                gone.for_each(|(_, pod)| _ = self.api(ApiEvent::Deleted(pod.clone())));
                let news = pods.iter().filter(|(n, pod)| watched.get(*n) != Some(*pod));
                news.for_each(|(n, _)| _ = self.applied(*n));
            }
            (_, true) => {
                let (boot_id, kubelet_version) = (self.boot_id.into(), self.version.into());
                let node = ApiNode { boot_id, kubelet_version, ready: Some(true) };
                self.snapshot().api(ApiEvent::Node(node));
            }
            (_, false) => {}
        }
        self.was_watched = Some(self.api_answers);
        if self.api_answers {
            self.watched = self.pods.clone();
        }
        self.answer();
    }

    fn runtime(&mut self) {
        if self.cri_is_stalled {
            return;
        }
        let was_listed = self.was_listed.replace(self.cri_answers);
        if !self.cri_answers {
            if was_listed != Some(false) {
                let code = Some("UNAVAILABLE".to_owned());
                let error = "connection refused".into();
                self.cri(CriEvent::Unreachable { error, code });
            }
        } else {
            if was_listed != Some(true) {
                let process = Some(DaemonProcess { pid: 700, started: self.now / 1_000 });
                self.cri(CriEvent::Connected { runtime: "test".into(), process });
            }
            self.lists_all();
        }
        self.answer();
    }

    /// Somebody says something, and what is asked for then is answered at once.
    pub fn tell(&mut self, input: Input) {
        self.say(input);
        self.answer();
    }

    fn answer(&mut self) {
        for report in mem::take(&mut self.other) {
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
        for request in mem::take(&mut self.requests) {
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
            let is_it =
                |pod: &ApiPod| pod.uid == uid.as_str() || pod.mirror_of.as_ref() == Some(uid);
            self.gets_answer.then(|| self.pods.values().any(is_it))
        };
        let check = |pod: &PodRef| PodCheck { uid: pod.uid.clone(), exists: exists(&pod.uid) };
        let (asked, pods) = (self.at(), pods.iter().map(check).collect());
        self.tell(Input::Api(ApiEvent::Checked { asked, pods }));
    }

    fn inspect(&mut self, id: &SandboxId) {
        self.statuses_asked += 1;
        let Some((pid, ips)) = self.status.clone().filter(|_| self.cri_answers) else { return };
        if !self.sandboxes.values().any(|one| one.id == *id) {
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
        self.tell(Input::Cri(CriEvent::SandboxStatus(status)));
    }

    /// The leak of a pod's sandbox.
    pub fn leak(&self, n: u64) -> Option<&Leak> {
        self.leaks.get(&key(n)).map(|leak| &**leak)
    }

    pub fn finds_nothing(&self) -> bool {
        self.found.is_empty() && self.gone.is_empty()
    }
}

/// A pod's sandbox as a leak.
pub fn key(n: u64) -> LeakKey {
    LeakKey::Sandbox { id: ids(n).1 }
}
