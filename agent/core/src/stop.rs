//! Why a container was stopped while its pod kept running: the kubelet's reasons (`computePodActions`,
//! `computePodResizeAction` and `SyncPod` in kuberuntime_manager.go, `startContainer` in
//! kuberuntime_container.go) and all others, the strongest evidence first.

use super::{
    api::{Attempt, PodObject, Shown},
    cause::AttributedCause,
    process::{ContainerProcesses, Origin, SI_KERNEL, SentSignal, is_of_the_node},
    signal,
};
use crate::{ids::*, input::*, time::*, types::*};
use std::time::Duration;

/// The grace of a container that is restarted with all others: 0, which the kubelet raises to its floor.
pub const RESTART_ALL_GRACE_SECONDS: i64 = 2;

/// The kubelet itself ends what is left in a pod's cgroup (pod_container_manager_linux.go).
const KUBELET: &str = "kubelet";

/// The kubelet begins to resize a pod at most this long before it stops a container of the pod (40 ms were
/// measured).
const RESIZE_WINDOW: Duration = Duration::from_secs(60);

/// A change of the spec received this long after the stop began may still be its cause: on an idle node the
/// watch was 40 ms late.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// If the kubelet ends a pod, it stops the sandbox right after the last container. If the kubelet finds the
/// pod ended, it stops the sandbox after the next PLEG relist, which comes every second. Used where the status did
/// not show which of the two it was.
const KILLED_WITH: Duration = Duration::from_millis(250);

/// The evidence for the reason of a stop.
#[derive(Clone, Debug)]
pub struct StopEvidence<'a> {
    /// When the stop began.
    pub began: BootTime,
    /// When the container had ended.
    pub ended: Option<BootTime>,
    /// The container's name.
    pub container: &'a str,
    /// What the kernel recorded of the container's processes.
    pub processes: &'a ContainerProcesses,
    /// The stop signal; `None`: it was killed without one.
    pub signal: Option<&'a SentSignal>,
    /// The SIGKILL from outside that ended it, if nothing preceded it.
    pub killed: Option<&'a SentSignal>,
    /// The other container that the sender belongs to, of this pod or another.
    pub neighbour: Option<&'a str>,
    /// The process of the container's preStop hook.
    pub hook: Option<Tgid>,
    /// The kubelet or the runtime was down or restarted during the stop.
    pub interrupted: bool,
    /// The pod's object, where the apiserver has reported it.
    pub object: Option<&'a PodObject>,
    /// What the pod's status showed of this attempt.
    pub attempt: Option<&'a Attempt>,
    /// The source that shows that the sandbox had died before the stop began.
    pub sandbox_died: Option<Source>,
    /// The next attempt of the container has another definition; `None`: not known.
    pub redefined: Option<bool>,
    /// The next attempt is in another sandbox.
    pub moved: bool,
    /// How long after the container the sandbox ended.
    pub sandbox_followed: Option<Duration>,
    /// The reason that an Event of the kubelet states.
    pub stated: Option<AttributedCause>,
    /// The probe whose failure the kubelet posted just before it stopped the container without naming a reason.
    pub unhealthy: Option<Cause>,
}

impl StopEvidence<'_> {
    /// The same, as if the kubelet's Events were missing.
    pub fn without_events(self) -> Self {
        Self { stated: None, unhealthy: None, ..self }
    }

    fn spec(&self) -> Option<&ApiContainer> {
        self.object?.pod.containers.get(self.container)
    }

    fn shown(&self) -> Option<Shown> {
        self.attempt?.ended
    }

    /// The reason that a source names, or that nothing else explains, whether the pod keeps running or not.
    pub fn evident(&self) -> Option<AttributedCause> {
        let by_api = |cause, message: &str| Some(AttributedCause::new(cause, Source::Api, message));
        let by_status = match self.shown() {
            Some(Shown::RestartedWithAll) => by_api(
                Cause::RestartAllContainers,
                "A container of the pod exited with the rule RestartAllContainers: the status shows \
                 RestartingAllContainers.",
            ),
            Some(Shown::PostStartFailed) => by_api(
                Cause::PostStartFailed,
                "Its postStart hook failed: its state.waiting.reason is PostStartHookError.",
            ),
            // Without an answer of the runtime the kubelet makes the same up later, for a container that it stops.
            Some(Shown::StateUnknown) if self.is_shown_before(self.began + WATCH_DELAY) => by_api(
                Cause::Restart,
                "The runtime did not know its state, and the kubelet stops such a container before it \
                 starts it again: the status shows ContainerStatusUnknown.",
            ),
            _ => None,
        };
        let by_sandbox = || {
            let message = "The pod's sandbox had died before the container was stopped: the kubelet replaces both.";
            Some(AttributedCause::new(Cause::SandboxChanged, self.sandbox_died?, message))
        };
        let redefined = || self.redefinition().filter(|reason| reason.source != Source::Inferred);
        let by_another = self.by_another();
        let (seen, inferred) = match by_another {
            Some(other) if other.source == Source::Inferred => (None, Some(other)),
            other => (other, None),
        };
        let reason = seen.or_else(|| self.stated.clone()).or(inferred).or(by_status);
        reason.or_else(by_sandbox).or_else(redefined)
    }

    /// The status showed its end by then, and before the container ended.
    fn is_shown_before(&self, at: BootTime) -> bool {
        let shown = self.attempt.and_then(|attempt| attempt.ended_at);
        shown.is_some_and(|shown| shown <= at && self.ended.is_none_or(|ended| shown < ended))
    }

    /// A sender that cannot act for the kubelet.
    fn by_another(&self) -> Option<AttributedCause> {
        let sent = self.signal.or(self.killed).filter(|sent| sent.signal.code != SI_KERNEL)?;
        let (sender, name) = (&sent.signal.sender, signal::name(sent.signal.signal));
        let (comm, pid) = (&sender.comm, sender.tgid);
        let root = self.processes.root(pid, sent.at);
        let (who, source) = match (sent.origin, self.neighbour) {
            // The kubelet runs the hook, so the hook's signals count as the kubelet's.
            (Origin::Entered, _) if root.is_some() && root == self.hook => return None,
            (Origin::Entered, _) => {
                (format!("{comm} (pid {pid}), which had entered the container,"), Source::Kernel)
            }
            (_, Some(container)) => {
                (format!("{comm} (pid {pid}) of the container {container}"), Source::Kernel)
            }
            // A runtime may have an unknown name.
            _ if !is_of_the_node(comm) => (format!("{comm} (pid {pid})"), Source::Inferred),
            _ => return None,
        };
        let message = format!("{who} sent {name}, and is neither the kubelet nor the runtime.");
        Some(AttributedCause::new(Cause::ExternalStop, source, message))
    }

    /// The runtime sent SIGKILL without a stop signal.
    fn by_runtime(&self) -> Option<AttributedCause> {
        let by = self.killed.filter(|_| self.signal.is_none())?.signal.sender.comm.as_str();
        let message = "Inferred: the runtime sent SIGKILL at once, and the kubelet always requests a timeout \
                        of at least 2 s: `crictl stopp`, `crictl stop --timeout 0`, or the runtime on its own.";
        (by != KUBELET).then(|| AttributedCause::inferred(Cause::ExternalStop, message))
    }

    /// How late the watch was: the time from the container's end to the status that showed it.
    fn watch_delay(&self) -> Duration {
        let shown = self.attempt.and_then(|attempt| attempt.ended_at);
        let late = shown.zip(self.ended).map(|(shown, ended)| shown.since(ended));
        late.unwrap_or_default() + WATCH_DELAY
    }

    /// Its image was changed.
    pub fn redefinition(&self) -> Option<AttributedCause> {
        let changed = self.attempt.and_then(|attempt| attempt.image_changed);
        let before = changed.is_some_and(|at| at <= self.began + self.watch_delay());
        let (source, message) = match (before, self.redefined == Some(true)) {
            (true, true) => (
                Source::Api,
                "The image in the pod's spec was changed before it was stopped, and the next attempt \
                 has another io.kubernetes.container.hash.",
            ),
            (true, false) => (
                Source::Inferred,
                "Inferred: the image in the pod's spec was changed before it was stopped.",
            ),
            // A newer kubelet may compute the hash differently, and the watch may be late.
            (false, true) => (
                Source::Inferred,
                "Inferred: the next attempt has another io.kubernetes.container.hash.",
            ),
            (false, false) => return None,
        };
        Some(AttributedCause::new(Cause::DefinitionChanged, source, message))
    }

    fn resize(&self) -> Option<AttributedCause> {
        let at = self.attempt?.resized?;
        if !(self.began - RESIZE_WINDOW..=self.began + self.watch_delay()).contains(&at) {
            return None;
        }
        let message = "Inferred: its resources were changed, its resizePolicy is RestartContainer, and \
                        the pod had the condition PodResizeInProgress.";
        Some(AttributedCause::inferred(Cause::ResizeRestart, message))
    }

    /// The image was changed before the stop began, and that was received before the deletion request.
    pub fn is_redefined_before(&self, request: BootTime) -> bool {
        let changed = self.attempt.and_then(|attempt| attempt.image_changed);
        changed.is_some_and(|at| at <= self.began + WATCH_DELAY && at < request)
    }

    /// The reason that evidence of its own shows.
    pub fn explained(&self) -> Option<AttributedCause> {
        let failed = || match self.probe(self.spec()?) {
            Probed::Failed(cause, probe) => self.by_failed_runs(cause, probe),
            _ => None,
        };
        let reason = self.evident().or_else(failed).or_else(|| self.redefinition());
        reason.or_else(|| self.resize()).or_else(|| self.by_runtime())
    }

    /// The definition did not change, as far as the sources show it.
    fn is_same(&self) -> bool {
        // The image of a container that ran before the agent may have been changed before, too.
        // Only a status from after its end shows the spec of then.
        let unchanged = || {
            let attempt = self.attempt.filter(|attempt| attempt.ended.is_some());
            attempt.is_some_and(|attempt| attempt.image_changed.is_none())
        };
        match self.redefined {
            Some(redefined) => !redefined,
            None => self.backed_off() || self.processes.found.is_none() && unchanged(),
        }
    }

    /// The next attempt waited in back-off, which the kubelet counts per definition (`GetStableKey`,
    /// kuberuntime_container.go).
    fn backed_off(&self) -> bool {
        self.attempt.is_some_and(|attempt| attempt.backed_off)
    }

    /// The one reason that remains, whatever the order in which the status showed the end: of the kubelet's reasons
    /// (`computePodActions`) only a probe leaves no trace.
    pub fn remaining(&self) -> Option<AttributedCause> {
        let (attempt, spec) = (self.attempt?, self.spec()?);
        // A made-up end has a reason of its own. A postStart hook holds up `started`.
        let is_plain = matches!(attempt.ended, Some(Shown::Terminated | Shown::Unordered))
            && !attempt.resources_changed()
            && (spec.post_start.is_none() || attempt.started == Some(true));
        if !is_plain || self.moved || !self.is_same() {
            return None;
        }
        // Without a next attempt, a deletion that the watch still owes may have stopped it.
        if self.redefined.is_none() && !self.backed_off() {
            return None;
        }
        match self.probe(spec) {
            Probed::Failed(cause, _) if self.hook_ran(spec) => {
                let message = format!(
                    "Inferred: its preStop hook ran, so the kubelet stopped it; it has a {cause} probe, and no \
                     evidence shows another reason."
                );
                Some(AttributedCause::inferred(cause, message))
            }
            Probed::Not(_) if !self.hook_ran(spec) => {
                let message = "Inferred: it has no probe that could have failed, its definition is the same, and its \
                     status names no other reason, so the kubelet had no reason to stop it.";
                Some(AttributedCause::inferred(Cause::ExternalStop, message))
            }
            _ => None,
        }
    }

    /// The kernel saw its preStop hook, by its name. Only the kubelet runs it.
    fn hook_ran(&self, spec: &ApiContainer) -> bool {
        let (Some(Hook::Exec(binary)), Some(hook)) = (&spec.pre_stop, self.hook) else {
            return false;
        };
        let probes = [&spec.liveness, &spec.startup].into_iter().flatten();
        let mut shared = probes.filter(|probe| probe.exec.as_ref() == Some(binary));
        shared.next().is_none()
            && self.processes.exec_processes().any(|one| one.tgid == hook && one.is_named(binary))
    }

    /// The reason in a pod that kept running.
    pub fn reason(&self) -> AttributedCause {
        let probed = self.spec().map(|spec| self.probe(spec));
        let reason = self.explained();
        if let Some(reason) = reason.or_else(|| self.by_next_sandbox()) {
            return reason;
        }
        let Some(probed) = probed else {
            let message = "It was stopped; why, and whether its pod kept running, is not known: the \
                            apiserver has not reported the pod.";
            return AttributedCause::unknown(message);
        };
        let restart = |message: &str| AttributedCause::inferred(self.ambiguous_cause(), message);
        let is_in_order = self.shown() == Some(Shown::Terminated) && !self.interrupted;
        if !is_in_order && let Some(reason) = self.remaining() {
            return reason;
        }
        let image_is_known =
            self.processes.found.is_none() || self.redefined == Some(false) || self.backed_off();
        match (self.shown(), probed) {
            (Some(Shown::Terminated), _) if self.interrupted => restart(
                "The kubelet or the runtime was interrupted during the stop, so the status does not show \
                 whether the kubelet stopped it or found it ended.",
            ),
            (Some(Shown::Terminated), _) => {
                let message = "Inferred: the pod status showed it terminated before the next attempt, so \
                                the kubelet did not stop it (as with `crictl stop`).";
                AttributedCause::inferred(Cause::ExternalStop, message)
            }
            (Some(Shown::StateUnknown), _) => restart(
                "The status showed ContainerStatusUnknown, which the kubelet makes up when the runtime does not know \
                 the container: it does not show why it was stopped.",
            ),
            (Some(Shown::Replaced), Probed::Failed(cause, _)) if image_is_known => {
                let message = format!(
                    "Inferred: it has a {cause} probe, and the kubelet stopped it and started it again at \
                     once: the probe's failure is the most likely reason."
                );
                AttributedCause::inferred(cause, message)
            }
            (_, Probed::Failed(cause, _)) => restart(&format!(
                "It was stopped while its pod kept running: perhaps for its {cause} probe; no evidence excludes \
                 other reasons."
            )),
            (_, Probed::Perhaps) => restart(
                "It was stopped while its pod kept running: by its startup probe, its liveness probe or \
                 something else; no status was received while it ran.",
            ),
            (_, Probed::Not(why)) => restart(&format!(
                "{why}, and its pod kept running: no evidence shows why it was stopped."
            )),
        }
    }

    /// The kubelet's reason in a pod that ended with this container, which is not restarted.
    pub fn of_ended_pod(&self) -> Option<AttributedCause> {
        if let Some(reason) = self.evident().or_else(|| self.by_runtime()) {
            return Some(reason);
        }
        let (object, spec) = (self.object?, self.spec()?);
        let policy = object.pod.restart_policy_of(spec);
        if !matches!(policy, "Never" | "OnFailure") {
            return None;
        }
        let Probed::Failed(cause, probe) = self.probe(spec) else { return None };
        if let Some(reason) = self.by_failed_runs(cause, probe) {
            return Some(reason);
        }
        // With the phase Succeeded, an eviction for its own storage limits is possible as well.
        let shown = self.attempt.and_then(|attempt| attempt.sandbox_stopped);
        let soon = || self.sandbox_followed.is_some_and(|after| after <= KILLED_WITH);
        let with_it = shown.unwrap_or_else(soon);
        if !with_it || object.pod.phase == "Succeeded" {
            return None;
        }
        let more = format!(
            "its sandbox was stopped with it, the pod was not deleted, and its restartPolicy is {policy}."
        );
        // The kubelet names the probe where it starts the container again.
        if policy == "Never" && self.unhealthy == Some(cause) {
            let message = format!(
                "The kubelet's Events: the {cause} probe of {} failed just before the kubelet stopped it; {more}",
                self.container
            );
            return Some(AttributedCause::new(cause, Source::Kubelet, message));
        }
        let message = format!("Inferred: {} has a {cause} probe, {more}", self.container);
        Some(AttributedCause::inferred(cause, message))
    }

    /// The cause for ambiguous evidence: a container that is never restarted was not stopped for a restart.
    fn ambiguous_cause(&self) -> Cause {
        let policy =
            self.object.zip(self.spec()).map(|(object, spec)| object.pod.restart_policy_of(spec));
        if policy == Some("Never") { Cause::Unknown } else { Cause::Restart }
    }

    /// The kubelet also replaces a living sandbox, for example one without an address.
    fn by_next_sandbox(&self) -> Option<AttributedCause> {
        let message = "Inferred: the next attempt is in another sandbox of the pod.";
        self.moved.then(|| AttributedCause::inferred(Cause::SandboxChanged, message))
    }

    /// Enough runs of its exec probe failed to stop the container. Other probes have no process.
    fn by_failed_runs(&self, cause: Cause, probe: &ApiProbe) -> Option<AttributedCause> {
        let binary = probe.exec.as_deref()?;
        let failed = self.processes.failed_probes(binary, self.began);
        let threshold = usize::try_from(probe.failures.max(1)).unwrap_or(usize::MAX);
        let message = format!(
            "The last {failed} run(s) of the exec probe ({binary}) of {} failed just before it was stopped.",
            self.container
        );
        (failed >= threshold).then(|| AttributedCause::new(cause, Source::Kernel, message))
    }

    /// Which probe may have stopped it.
    fn probe<'s>(&self, spec: &'s ApiContainer) -> Probed<'s> {
        let started = self.attempt.and_then(|attempt| attempt.started);
        match (&spec.liveness, &spec.startup, started) {
            (_, Some(startup), Some(false)) => Probed::Failed(Cause::Startup, startup),
            (_, Some(_), None) => Probed::Perhaps,
            (Some(liveness), ..) => Probed::Failed(Cause::Liveness, liveness),
            (None, Some(_), Some(true)) => {
                Probed::Not("It has no liveness probe, its startup probe had succeeded")
            }
            (None, None, _) => Probed::Not("It has no liveness or startup probe"),
        }
    }
}

enum Probed<'s> {
    /// This probe, according to spec and status.
    Failed(Cause, &'s ApiProbe),
    /// The startup probe or the liveness probe.
    Perhaps,
    Not(&'static str),
}
