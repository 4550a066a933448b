//! The store of the container runtime's answers: sandboxes and containers, with the interval in which each
//! change happened.

mod lists;

use crate::{dirty::Dirty, gaps::Connection, ids::*, input::*, time::*};
pub use lists::{Item, Listed, Lists};

pub type Sandbox = Listed<CriSandbox>;

impl Item for CriSandbox {
    type Id = SandboxId;
    type Parent = PodUid;
    type Status = ();
    type Other = CriContainer;

    fn keys(&self) -> (&SandboxId, &PodUid, Option<WallTime>) {
        (&self.id, &self.pod, self.created)
    }

    fn state(&self) -> ContainerState {
        if self.ready { ContainerState::Running } else { ContainerState::Exited }
    }

    fn mark(&mut self, containers: &Lists<CriContainer>, dirty: &mut Dirty) {
        dirty.pod(&self.pod);
        dirty.containers.extend(containers.ids_of(&self.id).cloned());
    }
}

pub type Container = Listed<CriContainer>;

/// What the runtime reports about a container outside lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContainerStatus {
    /// ContainerStatus after its exit.
    pub exit: Option<CriExit>,
    pub stop_signal: Option<u8>,
    /// The shim that runs it.
    pub runtime_type: Option<String>,
    /// Its image, as the runtime names it, and the image's stop signal.
    pub image: Option<String>,
    pub image_stop_signal: Option<u8>,
}

impl ContainerStatus {
    /// The stop signal that the runtime states, else the spec's, else the image's.
    pub fn stop_signal(&self, by_spec: Option<u8>) -> Option<u8> {
        self.stop_signal.or(by_spec).or(self.image_stop_signal)
    }
}

impl Item for CriContainer {
    type Id = ContainerId;
    type Parent = SandboxId;
    type Status = ContainerStatus;
    type Other = CriSandbox;

    fn keys(&self) -> (&ContainerId, &SandboxId, Option<WallTime>) {
        (&self.id, &self.sandbox, self.created)
    }

    fn state(&self) -> ContainerState {
        self.state
    }

    /// Replaces its ids by its sandbox's, to share their memory.
    fn mark(&mut self, sandboxes: &Lists<CriSandbox>, dirty: &mut Dirty) {
        if let Some((id, sandbox)) = sandboxes.entries().get_key_value(&self.sandbox) {
            self.sandbox = id.clone();
            if self.pod.as_ref() == Some(&sandbox.info.pod) {
                self.pod = Some(sandbox.info.pod.clone());
            }
        }
        dirty.containers.insert(self.id.clone());
        dirty.pods.extend(pod_of(sandboxes, self).cloned());
    }
}

/// All answers of the runtime, by sandbox and container.
#[derive(Clone, Debug, Default)]
pub struct CriState {
    pub sandboxes: Lists<CriSandbox>,
    pub containers: Lists<CriContainer>,
    pub connection: Connection,
    /// Sandboxes that no list can show.
    pub unreadable: u32,
    process: Option<DaemonProcess>,
}

impl CriState {
    pub fn apply(&mut self, at: BootTime, event: CriEvent, dirty: &mut Dirty) {
        dirty.all_reports |= !self.connection.is_up();
        if !matches!(event, CriEvent::Connected { .. } | CriEvent::Unreachable { .. }) {
            // Without a new connection: a call failed, but the runtime ran all along.
            self.connection.up(at, Some(false));
        }
        // It may have been away since its last answer.
        let last_up = self.connection.last_up.unwrap_or(at);
        match event {
            CriEvent::Connected { process, .. } => {
                dirty.all_reports = true;
                let restarted = self.process.zip(process).map(|(before, now)| before != now);
                self.process = process.or(self.process);
                if restarted == Some(true) {
                    // Perhaps so fast that no call failed.
                    let error = "another process answers at the socket".into();
                    self.connection.down(last_up, error, None);
                }
                self.connection.up(at, restarted);
            }
            CriEvent::Unreachable { error, code } => self.connection.down(last_up, error, code),
            CriEvent::Sandboxes { asked, only, sandboxes } => {
                let covered = only.map(|id| vec![id]);
                self.sandboxes.apply((at, asked), covered, sandboxes, &self.containers, dirty);
            }
            CriEvent::Containers { asked, only, containers } => {
                let covered = only.map(|id| self.containers.ids_of(&id).cloned().collect());
                self.containers.apply((at, asked), covered, containers, &self.sandboxes, dirty);
            }
            CriEvent::ContainerExited(exit) => {
                if let Some(known) = self.containers.marked(&exit.container, &self.sandboxes, dirty)
                {
                    let container = known.info.id.clone();
                    known.status.exit = Some(CriExit { container, ..exit });
                }
            }
            CriEvent::StopSignal { container, signal } => {
                if let Some(known) = self.containers.marked(&container, &self.sandboxes, dirty) {
                    known.status.stop_signal = Some(signal);
                }
            }
            CriEvent::Image { container, image, stop_signal } => {
                if let Some(known) = self.containers.marked(&container, &self.sandboxes, dirty) {
                    known.status.image = Some(image);
                    known.status.image_stop_signal = stop_signal;
                }
            }
            CriEvent::RuntimeType { container, runtime } => {
                if let Some(known) = self.containers.marked(&container, &self.sandboxes, dirty) {
                    known.status.runtime_type = Some(runtime);
                }
            }
            CriEvent::UnreadableSandboxes { count } => self.unreadable = count,
            CriEvent::ContainerCgroup { .. } | CriEvent::SandboxStatus(_) => {}
        }
    }

    /// The runtime has answered at least once.
    pub fn was_connected(&self) -> bool {
        self.sandboxes.full.is_some()
    }

    /// The runtime answers, and both lists were requested after its last outage.
    pub fn is_current(&self) -> bool {
        let since = self.connection.last().map_or(BootTime(0), |outage| outage.from);
        self.connection.is_up() && self.has_listed_since(since)
    }

    /// Both full lists were requested after `at`.
    pub fn has_listed_since(&self, at: BootTime) -> bool {
        let since = |asked: Option<BootTime>| asked.is_some_and(|asked| asked >= at);
        since(self.sandboxes.full) && since(self.containers.full)
    }

    pub fn sandbox(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.sandboxes.entries().get(id)
    }

    pub fn container(&self, id: &ContainerId) -> Option<&Container> {
        self.containers.entries().get(id)
    }

    /// A pod's sandboxes, oldest first.
    pub fn sandboxes_of(&self, pod: &PodUid) -> impl DoubleEndedIterator<Item = &Sandbox> {
        self.sandboxes.ids_of(pod).filter_map(|id| self.sandbox(id))
    }

    /// The runtime has listed a sandbox of this pod.
    pub fn has_sandbox(&self, pod: &PodUid) -> bool {
        self.sandboxes.ids_of(pod).next().is_some()
    }

    /// A sandbox's containers, oldest first.
    pub fn containers_of<'a>(
        &'a self,
        sandbox: &SandboxId,
    ) -> impl Iterator<Item = &'a Container> + Clone + use<'a> {
        self.containers.ids_of(sandbox).filter_map(|id| self.container(id))
    }

    pub fn pod_of(&self, id: &ContainerId) -> Option<&PodUid> {
        match self.container(id) {
            Some(container) => pod_of(&self.sandboxes, &container.info),
            // The sandbox's own container has the sandbox's id.
            None => Some(&self.sandboxes.entries().get(id.as_str())?.info.pod),
        }
    }

    /// Evicts a removed sandbox with its containers, and returns the containers.
    pub fn evict(&mut self, id: &SandboxId, dirty: &mut Dirty) -> Vec<ContainerId> {
        let sandbox = self.sandboxes.evict(id);
        dirty.pods.extend(sandbox.map(|sandbox| sandbox.pod));
        let containers: Vec<ContainerId> = self.containers.ids_of(id).cloned().collect();
        containers.iter().for_each(|container| _ = self.containers.evict(container));
        containers
    }
}

fn pod_of<'a>(sandboxes: &'a Lists<CriSandbox>, container: &'a CriContainer) -> Option<&'a PodUid> {
    let sandbox = sandboxes.entries().get(&container.sandbox);
    sandbox.map(|s| &s.info.pod).or(container.pod.as_ref())
}
