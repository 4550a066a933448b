//! A recorded input as another node would have had it: later, of other pods and other processes.

use coroner_core::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    input::{
        ApiEvent, ApiPod, CriContainer, CriEvent, CriSandbox, Input, KernelEvent, KernelFact,
        ProcessRef, Received, Task,
    },
    time::{BootTime, WallTime},
};

/// Ids that begin so are those of pods that stay, and remain as they are: no hex digit.
pub(super) const STAYS: char = 's';
/// Cgroups from here on are those of pods that stay.
pub(super) const STAYING_CGROUPS: u64 = 1 << 60;
/// How many cgroups apart two rounds are.
const CGROUPS: u64 = 1 << 20;
/// How many processes apart two rounds are, and where their numbers begin anew (`PID_MAX_LIMIT`).
const PIDS: u32 = 1_000;
const PID_MAX: u32 = 1 << 22;
/// Digits of an id in which the round stands.
const DIGITS: usize = 8;

/// From the recording to one round of its replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub(super) round: u32,
    /// How much later, ns.
    pub(super) by: u64,
    /// Cgroups below are of the node and remain as they are.
    pub(super) first_cgroup: CgroupId,
}

impl Shift {
    /// A copy that shares nothing with the original but the ids of pods that stay, as if an adapter
    /// had just made it: that of the runtime keeps the ids of its last list.
    pub(super) fn copy(&self, received: &Received) -> Received {
        let mut copy = received.clone();
        copy.at = self.time(copy.at);
        match &mut copy.input {
            Input::Kernel(event) => self.kernel(event),
            Input::Cri(event) => self.cri(event),
            Input::Api(event) => self.api(event),
            Input::Host(_)
            | Input::Kubelet(_)
            | Input::Proc(_)
            | Input::Traffic(_)
            | Input::Recalled { .. }
            | Input::Clock(_)
            | Input::Lost(_)
            | Input::Tick => {}
        }
        copy
    }

    fn time(&self, at: BootTime) -> BootTime {
        BootTime(at.0 + self.by)
    }

    fn wall(&self, at: &mut WallTime) {
        at.0 = at.0.saturating_add_unsigned(self.by);
    }

    /// The id in this round: the same length, and other digits at its beginning. `None`: as it is.
    fn text(&self, id: &str) -> Option<String> {
        let (head, tail) = id.split_at_checked(DIGITS)?;
        (!head.starts_with(STAYS)).then(|| format!("{:08x}{tail}", self.round))
    }

    fn string(&self, id: &mut String) {
        if let Some(text) = self.text(id) {
            *id = text;
        }
    }

    fn pod(&self, id: &mut PodUid) {
        if let Some(text) = self.text(id.as_str()) {
            *id = PodUid::new(text);
        }
    }

    fn sandbox(&self, id: &mut SandboxId) {
        if let Some(text) = self.text(id.as_str()) {
            *id = SandboxId::new(text);
        }
    }

    fn container(&self, id: &mut ContainerId) {
        if let Some(text) = self.text(id.as_str()) {
            *id = ContainerId::new(text);
        }
    }

    fn cgroup(&self, id: &mut CgroupId) {
        if (self.first_cgroup.0..STAYING_CGROUPS).contains(&id.0) {
            id.0 += u64::from(self.round) * CGROUPS;
        }
    }

    fn tgid(&self, tgid: &mut Tgid) {
        self.pid(&mut tgid.0);
    }

    fn pid(&self, pid: &mut u32) {
        if *pid > PIDS {
            *pid = PIDS + pid.wrapping_add(self.round.wrapping_mul(PIDS)) % (PID_MAX - PIDS);
        }
    }

    fn task(&self, task: &mut Task) {
        self.tgid(&mut task.tgid);
        self.pid(&mut task.tid);
        if let Some(started) = &mut task.started {
            *started += self.by;
        }
    }

    fn sender(&self, sender: &mut ProcessRef) {
        self.tgid(&mut sender.tgid);
        sender.cgroup.iter_mut().for_each(|cgroup| self.cgroup(cgroup));
    }

    fn kernel(&self, event: &mut KernelEvent) {
        event.time = self.time(event.time);
        match &mut event.fact {
            KernelFact::CgroupCreated { cgroup, parent, name, .. } => {
                self.cgroup(cgroup);
                parent.iter_mut().for_each(|parent| self.cgroup(parent));
                if let Some(uid) = name.strip_prefix("pod").and_then(|uid| self.text(uid)) {
                    *name = format!("pod{uid}");
                } else if name.len() == 64 {
                    self.string(name);
                }
            }
            KernelFact::CgroupRemoved { cgroup }
            | KernelFact::CgroupEmpty { cgroup }
            | KernelFact::CgroupFrozen { cgroup, .. }
            | KernelFact::BudgetSpent { cgroup, .. } => self.cgroup(cgroup),
            KernelFact::SignalGenerated(signal) => {
                self.cgroup(&mut signal.cgroup);
                self.task(&mut signal.target);
                self.sender(&mut signal.sender);
            }
            KernelFact::NamespaceKilled(killed) => {
                self.cgroup(&mut killed.cgroup);
                self.tgid(&mut killed.init);
            }
            KernelFact::SignalDelivered { cgroup, task, .. }
            | KernelFact::Running { cgroup, task } => {
                self.cgroup(cgroup);
                self.task(task);
            }
            KernelFact::Exec { cgroup, task, parent } => {
                self.cgroup(cgroup);
                self.task(task);
                self.sender(parent);
            }
            KernelFact::Exit { cgroup, task, parent, .. } => {
                self.cgroup(cgroup);
                self.task(task);
                parent.iter_mut().for_each(|parent| self.sender(parent));
            }
            KernelFact::OomVictim { cgroup, pid } => {
                cgroup.iter_mut().for_each(|cgroup| self.cgroup(cgroup));
                self.pid(pid);
            }
        }
    }

    fn cri(&self, event: &mut CriEvent) {
        match event {
            CriEvent::Sandboxes { asked, only, sandboxes } => {
                *asked = self.time(*asked);
                only.iter_mut().for_each(|id| self.sandbox(id));
                sandboxes.iter_mut().for_each(|sandbox| self.listed_sandbox(sandbox));
            }
            CriEvent::Containers { asked, only, containers } => {
                *asked = self.time(*asked);
                only.iter_mut().for_each(|id| self.sandbox(id));
                containers.iter_mut().for_each(|container| self.listed_container(container));
            }
            CriEvent::ContainerExited(exit) => {
                self.container(&mut exit.container);
                exit.started.iter_mut().for_each(|at| self.wall(at));
                exit.finished.iter_mut().for_each(|at| self.wall(at));
            }
            CriEvent::RuntimeType { container, .. } | CriEvent::StopSignal { container, .. } => {
                self.container(container);
            }
            CriEvent::ContainerCgroup { container, cgroup, .. } => {
                self.container(container);
                self.cgroup(cgroup);
            }
            CriEvent::SandboxStatus(status) => {
                self.sandbox(&mut status.sandbox);
                status.asked = self.time(status.asked);
            }
            CriEvent::SandboxStatusRefused { sandbox, .. } => self.sandbox(sandbox),
            CriEvent::Connected { .. } | CriEvent::Unreachable { .. } => {}
        }
    }

    fn listed_sandbox(&self, sandbox: &mut CriSandbox) {
        let stays = sandbox.id.as_str().starts_with(STAYS);
        self.sandbox(&mut sandbox.id);
        self.pod(&mut sandbox.pod);
        if !stays {
            self.wall(&mut sandbox.created);
        }
    }

    fn listed_container(&self, container: &mut CriContainer) {
        let stays = container.id.as_str().starts_with(STAYS);
        self.container(&mut container.id);
        self.sandbox(&mut container.sandbox);
        container.pod.iter_mut().for_each(|pod| self.pod(pod));
        if !stays {
            self.wall(&mut container.created);
        }
    }

    fn api(&self, event: &mut ApiEvent) {
        match event {
            ApiEvent::Snapshot { pods } => pods.iter_mut().for_each(|pod| self.object(pod)),
            ApiEvent::Applied(pod) | ApiEvent::Deleted(pod) => self.object(pod),
            ApiEvent::Checked { asked, pods } => {
                *asked = self.time(*asked);
                pods.iter_mut().for_each(|pod| self.pod(&mut pod.uid));
            }
            ApiEvent::OutOfSync { .. }
            | ApiEvent::Resumed
            | ApiEvent::Node(_)
            | ApiEvent::NodeUnknown { .. } => {}
        }
    }

    fn object(&self, pod: &mut ApiPod) {
        self.string(&mut pod.uid);
        pod.mirror_of.iter_mut().for_each(|uid| self.pod(uid));
        pod.deletion_timestamp.iter_mut().for_each(|at| self.wall(at));
        for container in pod.containers.values_mut() {
            container.id.iter_mut().for_each(|id| self.container(id));
            for ended in &mut container.terminated {
                ended.id.iter_mut().for_each(|id| self.container(id));
                ended.finished.iter_mut().for_each(|at| self.wall(at));
            }
        }
    }
}
