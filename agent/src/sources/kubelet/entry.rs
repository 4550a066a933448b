//! From the fields of a line to an entry. Only the fields named here are kept.

use super::{field::Field, scrub};
use coroner_core::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{
        KubeletChange, KubeletEntry, KubeletKillReason, KubeletPodSource, KubeletProbe,
        KubeletStatement as Says, KubeletStep,
    },
};

/// The longest name or id that is kept, bytes. Kubernetes' names have 253 at most.
const MAX_NAME: usize = 253;
/// The longest message that is kept, bytes.
const MAX_MESSAGE: usize = 200;
/// Before the message of an Event that stands for many alike (client-go/tools/record/events_cache.go).
const COMBINED: &str = "(combined from similar events): ";
/// Pods of one line that get an entry each.
pub(super) const MAX_PODS: usize = 256;

/// An entry on its way.
pub(super) struct Draft {
    pub(super) entry: KubeletEntry,
    /// The line is about these pods.
    pods: Option<Vec<(String, String)>>,
    /// Pods of the line beyond [`MAX_PODS`].
    pub(super) pods_left_out: usize,
    /// The reason and kind of an Event's object.
    event: (Option<String>, Option<String>),
}

impl Draft {
    pub(super) fn new(entry: KubeletEntry) -> Self {
        Self { entry, pods: None, pods_left_out: 0, event: (None, None) }
    }

    /// Whether a field of this name is kept.
    pub(super) fn wants(key: &str) -> bool {
        matches!(
            key,
            "pod"
                | "podUID"
                | "podID"
                | "pods"
                | "podName"
                | "mirrorPod"
                | "mirrorPodUID"
                | "containerName"
                | "container"
                | "containerID"
                | "containerStatusID"
                | "podSandboxID"
                | "sandboxID"
                | "gracePeriod"
                | "source"
                | "updateType"
                | "workType"
                | "probeType"
                | "probe"
                | "status"
                | "event"
                | "exitCode"
                | "newState"
                | "containerMessage"
                | "err"
                | "resourceName"
                | "kubeletVersion"
                | "cgroupName"
                | "object"
                | "fieldPath"
                | "kind"
                | "reason"
                | "message"
        )
    }

    /// Takes a field over.
    pub(super) fn set(&mut self, key: &str, field: &Field) {
        let entry = &mut self.entry;
        let text = field.text();
        match key {
            "pod" | "mirrorPod" | "object" => {
                if let Some((namespace, name)) = field.pod() {
                    (entry.namespace, entry.name) = (word(namespace), word(name));
                }
            }
            "podName" => {
                if let Some((name, namespace)) = text.and_then(|text| text.rsplit_once('_')) {
                    (entry.namespace, entry.name) = (word(namespace), word(name));
                }
            }
            "podUID" | "podID" | "mirrorPodUID" => entry.pod = text.and_then(word).map(PodUid::new),
            "pods" => self.set_pods(field),
            "containerName" | "container" => entry.container = text.and_then(word),
            "containerID" | "containerStatusID" => {
                entry.container_id = id(field).map(ContainerId::new)
            }
            "podSandboxID" | "sandboxID" => entry.sandbox = id(field).map(SandboxId::new),
            "gracePeriod" => entry.grace_seconds = text.and_then(|text| text.parse().ok()),
            "exitCode" => entry.exit_code = text.and_then(|text| text.parse().ok()),
            "source" => {
                entry.source = match text {
                    Some("api") => Some(KubeletPodSource::Api),
                    Some("file") => Some(KubeletPodSource::File),
                    Some("http") => Some(KubeletPodSource::Http),
                    _ => None,
                }
            }
            // Elsewhere it is what the update asks for, not the step that begins.
            "updateType" if !matches!(entry.statement, Says::WorkerBegin | Says::WorkerEnd) => {}
            "updateType" | "workType" => {
                entry.step = match text {
                    Some("sync" | "0") => Some(KubeletStep::Sync),
                    Some("terminating" | "1") => Some(KubeletStep::Terminating),
                    Some("terminated" | "2") => Some(KubeletStep::Terminated),
                    _ => None,
                }
            }
            "probeType" | "probe" => entry.probe = text.and_then(probe),
            "status" if entry.statement == Says::SyncLoopProbe => {
                entry.message = text.and_then(word)
            }
            "event" => {
                entry.pod = field.member("ID").and_then(word).map(PodUid::new);
                entry.container_id = field.member("Data").and_then(word).map(ContainerId::new);
                entry.change = match field.member("Type") {
                    Some("ContainerStarted") => Some(KubeletChange::Started),
                    Some("ContainerDied") => Some(KubeletChange::Died),
                    Some("ContainerRemoved") => Some(KubeletChange::Removed),
                    Some("ContainerChanged") => Some(KubeletChange::Unknown),
                    _ => None,
                }
            }
            "newState" => {
                entry.change = match text {
                    Some("running") => Some(KubeletChange::Started),
                    Some("exited") => Some(KubeletChange::Died),
                    Some("non-existent") => Some(KubeletChange::Removed),
                    _ => Some(KubeletChange::Unknown),
                }
            }
            "containerMessage" => self.set_reason(text.unwrap_or_default()),
            "message" if entry.statement == Says::EventKilling => {
                self.set_reason(text.unwrap_or_default());
            }
            "message" if entry.statement == Says::EventUnhealthy => {
                let text = text.map(|text| text.strip_prefix(COMBINED).unwrap_or(text));
                let failed = text.and_then(|text| text.split_once(" probe failed:"));
                entry.probe = failed.and_then(|(which, _)| probe(which));
            }
            "err" => self.set_error(text.unwrap_or_default()),
            "resourceName" | "kubeletVersion" => entry.message = text.map(cut),
            "cgroupName" => entry.pod = pod_of_cgroup(field).map(PodUid::new),
            "fieldPath" => {
                let name = text.and_then(|text| text.split_once('{')?.1.split_once('}'));
                entry.container = name.and_then(|(name, _)| word(name));
            }
            "reason" => self.event.0 = text.and_then(word),
            "kind" => self.event.1 = text.and_then(word),
            _ => {}
        }
    }

    /// The reason of a pod's Event.
    pub(super) fn event_reason(&self) -> Option<&str> {
        let (reason, kind) = &self.event;
        (kind.as_deref() == Some("Pod")).then_some(reason.as_deref()).flatten()
    }

    fn set_pods(&mut self, field: &Field) {
        let Field::List(items) = field else { return };
        let pod = |text: &String| {
            let (namespace, name) = text.split_once('/')?;
            Some((word(namespace)?, word(name)?))
        };
        self.pods_left_out = items.len().saturating_sub(MAX_PODS);
        self.pods = Some(items.iter().take(MAX_PODS).filter_map(pod).collect());
    }

    fn set_reason(&mut self, text: &str) {
        use KubeletKillReason as Reason;
        let reasons = [
            ("failed liveness probe", Reason::LivenessProbe),
            ("failed startup probe", Reason::StartupProbe),
            ("definition changed", Reason::DefinitionChanged),
            ("resize requires restart", Reason::Resize),
            ("try killing it before restart", Reason::UnknownState),
            ("FailedPostStartHook", Reason::PostStartHook),
            ("Stopping container", Reason::Stopping),
        ];
        let known = reasons.iter().find(|(words, _)| text.contains(words));
        self.entry.reason = Some(known.map_or(Reason::Other, |(_, reason)| *reason));
        self.entry.message = Some(cut(&scrub::scrubbed(text)));
    }

    fn set_error(&mut self, text: &str) {
        // The errors of hooks and probes are what a container's command or server printed.
        let private = matches!(
            self.entry.statement,
            Says::HookFailed
                | Says::PreStopFailed
                | Says::PostStartFailed
                | Says::ProbeFailed
                | Says::ProbeErrored
        );
        if private {
            return;
        }
        self.entry.failures = scrub::failures(text);
        self.entry.error = Some(scrub::scrubbed(text)).filter(|text| !text.is_empty());
        if self.entry.statement == Says::BackOff {
            self.name_by_error(text);
        }
        let of_a_sandbox = matches!(
            self.entry.statement,
            Says::RuntimeStopSandboxFailed | Says::RuntimeRunSandboxFailed
        );
        if of_a_sandbox && scrub::is_of_the_network(text) {
            self.entry.statement = Says::CniFailed;
        }
    }

    /// `back-off 10s restarting failed container=a pod=name_namespace(uid)`: the line has nothing else.
    fn name_by_error(&mut self, text: &str) {
        let after = |sign: &str| text.split_once(sign).map(|(_, rest)| rest);
        let container = after(" container=").and_then(|rest| rest.split(' ').next());
        self.entry.container = container.and_then(word).or(self.entry.container.take());
        let pod = after(" pod=").and_then(|rest| rest.split_once('('));
        if let Some((full, uid)) = pod
            && let Some((name, namespace)) = full.rsplit_once('_')
        {
            (self.entry.name, self.entry.namespace) = (word(name), word(namespace));
            self.entry.pod = uid.split(')').next().and_then(word).map(PodUid::new);
        }
    }

    /// The entries of the line: one per pod. `None`: what the line is about could not be read.
    pub(super) fn finish(self) -> Option<Vec<KubeletEntry>> {
        if let Some(pods) = self.pods {
            let of = |(namespace, name): (String, String)| {
                let mut entry = self.entry.clone();
                (entry.namespace, entry.name) = (Some(namespace), Some(name));
                entry
            };
            return Some(pods.into_iter().map(of).collect());
        }
        let entry = self.entry;
        let named = entry.pod.is_some()
            || entry.name.is_some()
            || entry.container_id.is_some()
            || entry.sandbox.is_some();
        (named || is_of_the_kubelet(entry.statement)).then(|| vec![entry])
    }
}

/// Whether a line is about the kubelet as a whole, and names no pod.
fn is_of_the_kubelet(statement: Says) -> bool {
    matches!(
        statement,
        Says::HousekeepingBegin
            | Says::HousekeepingEnd
            | Says::HousekeepingFailed
            | Says::SyncSkipped
            | Says::PlegFailed
            | Says::KubeletVersion
            | Says::KubeletStarted
            | Says::KillPodFailed
            | Says::RuntimeListFailed
            | Says::RuntimeRunSandboxFailed
            | Says::CniFailed
            | Says::RuntimeNotReady
            | Says::NetworkNotReady
            | Says::GcSucceeded
            | Says::GcFailed
            | Says::EvictionDue
            | Says::ShutdownDetected
            | Says::ShutdownBegin
            | Says::ShutdownTimedOut
            | Says::ShutdownEnd
            | Says::UnmountFailed
            | Says::VolumeOperationFailed
            | Says::CgroupFailed
    )
}

fn probe(text: &str) -> Option<KubeletProbe> {
    match text {
        "Liveness" | "liveness" => Some(KubeletProbe::Liveness),
        "Readiness" | "readiness" => Some(KubeletProbe::Readiness),
        "Startup" | "startup" => Some(KubeletProbe::Startup),
        _ => None,
    }
}

/// An id of the runtime: `containerd://ID`, `ID`, or a struct with one.
fn id(field: &Field) -> Option<String> {
    let text = field.member("ID").or(field.text())?;
    word(text.split_once("://").map_or(text, |(_, id)| id))
}

/// The UID in `[kubepods besteffort podUID]` (`pkg/kubelet/cm/types.go`).
fn pod_of_cgroup(field: &Field) -> Option<String> {
    let Field::List(parts) = field else { return None };
    let uid = parts.iter().rev().find_map(|part| part.strip_prefix("pod"))?;
    word(uid)
}

/// A name or an id, if it looks like one.
pub(super) fn word(text: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let fits = !text.is_empty() && text.len() <= MAX_NAME;
    (fits && text.bytes().all(plain)).then(|| text.to_owned())
}

fn cut(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_MESSAGE)];
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
