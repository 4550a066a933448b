//! Why a container was stopped while its pod kept running: the reasons for which a kubelet stops a
//! container of such a pod (`computePodActions`, `computePodResizeAction` and `SyncPod` in
//! kuberuntime_manager.go, `startContainer` in kuberuntime_container.go), and all others. The strongest
//! evidence comes first.

use super::{
    ids::Tgid,
    input::{ApiContainer, ApiProbe},
    object::{Attempt, Object, Shown},
    observation::{Cause, Reason, Source},
    process::{Origin, Processes, SI_KERNEL, Sent, is_of_the_node},
    signal,
    time::BootTime,
};
use std::time::Duration;

/// The grace of a container that is restarted with all others: none, which is the kubelet's floor.
pub const RESTART_ALL_GRACE_SECONDS: i64 = 2;

/// The kubelet itself ends what is left in a pod's cgroup (pod_container_manager_linux.go).
const KUBELET: &str = "kubelet";

/// The kubelet begins to resize a pod this long before it stops a container of it, at most (40 ms were seen).
const RESIZE_WINDOW: Duration = Duration::from_secs(60);

/// A spec's change that was received so long after the stop began may have been its cause: the watch was
/// seen to be 40 ms behind on an idle node.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// The kubelet stops the sandbox as soon as the last container of a pod that it kills has ended; the
/// sandbox of a pod that it finds ended follows after the next relist of its PLEG, which comes every second.
const KILLED_WITH: Duration = Duration::from_millis(250);

/// What the reason for a stop rests on.
#[derive(Clone, Debug)]
pub struct Stop<'a> {
    /// When it began.
    pub began: BootTime,
    /// When the container had ended.
    pub ended: Option<BootTime>,
    /// The container's name.
    pub container: &'a str,
    /// What the kernel recorded of the container's processes.
    pub processes: &'a Processes,
    /// The stop signal; `None`: it was killed without one.
    pub signal: Option<&'a Sent>,
    /// The SIGKILL from outside that ended it, if nothing came before.
    pub killed: Option<&'a Sent>,
    /// The other container that the sender belongs to, of this pod or another.
    pub neighbour: Option<&'a str>,
    /// The process of its preStop hook.
    pub hook: Option<Tgid>,
    /// The kubelet or the runtime was away or restarted while it was being stopped.
    pub interrupted: bool,
    /// The pod's object, where the apiserver has reported it.
    pub object: Option<&'a Object>,
    /// What its status showed of this attempt.
    pub attempt: Option<&'a Attempt>,
    /// The pod's sandbox had died before the stop began, according to this source.
    pub sandbox_died: Option<Source>,
    /// The next attempt of the container has another definition.
    pub redefined: bool,
    /// It is in another sandbox.
    pub moved: bool,
    /// How long after the container its sandbox ended.
    pub sandbox_followed: Option<Duration>,
}

impl Stop<'_> {
    fn spec(&self) -> Option<&ApiContainer> {
        self.object?.pod.containers.get(self.container)
    }

    fn shown(&self) -> Option<Shown> {
        self.attempt?.ended
    }

    /// The reason that a source names, or that nothing else can explain, whatever becomes of the pod.
    pub fn evident(&self) -> Option<Reason> {
        let shown = self.shown();
        if let Some(reason) = self.by_another() {
            return Some(reason);
        }
        if shown == Some(Shown::RestartedWithAll) {
            let sentence = "A container of the pod exited with the rule RestartAllContainers: the \
                            status shows RestartingAllContainers.";
            return Some(Reason::new(Cause::RestartAllContainers, Source::Api, sentence));
        }
        if shown == Some(Shown::PostStartFailed) {
            let sentence =
                "Its postStart hook failed: its state.waiting.reason is PostStartHookError.";
            return Some(Reason::new(Cause::PostStartFailed, Source::Api, sentence));
        }
        if let Some(source) = self.sandbox_died {
            let sentence = "The pod's sandbox had died before the container was stopped: the kubelet \
                            replaces both.";
            return Some(Reason::new(Cause::SandboxChanged, source, sentence));
        }
        self.redefinition().filter(|reason| reason.source != Source::Inferred)
    }

    /// The sender cannot act for the kubelet.
    fn by_another(&self) -> Option<Reason> {
        let sent = self.signal.or(self.killed).filter(|sent| sent.signal.code != SI_KERNEL)?;
        let (sender, name) = (&sent.signal.sender, signal::name(sent.signal.signal));
        let (comm, pid) = (&sender.comm, sender.tgid);
        let root = self.processes.root(pid, sent.at);
        let (who, source) = match (sent.origin, self.neighbour) {
            // What the kubelet's hook does, the kubelet does.
            (Origin::Entered, _) if root.is_some() && root == self.hook => return None,
            (Origin::Entered, _) => {
                (format!("{comm} (pid {pid}), which had entered the container,"), Source::Kernel)
            }
            (_, Some(container)) => {
                (format!("{comm} (pid {pid}) of the container {container}"), Source::Kernel)
            }
            // A runtime may have a name that is not known here.
            _ if !is_of_the_node(comm) => (format!("{comm} (pid {pid})"), Source::Inferred),
            _ => return None,
        };
        let sentence = format!("{who} sent {name}, and is neither the kubelet nor the runtime.");
        Some(Reason::new(Cause::ExternalStop, source, sentence))
    }

    /// The runtime killed it without a stop signal.
    fn by_runtime(&self) -> Option<Reason> {
        let by = self.killed.filter(|_| self.signal.is_none())?.signal.sender.comm.as_str();
        let sentence = "Inferred: the runtime sent SIGKILL at once, and the kubelet always requests a timeout \
                        of at least 2 s: `crictl stopp`, `crictl stop --timeout 0`, or the runtime by \
                        itself.";
        (by != KUBELET).then(|| Reason::new(Cause::ExternalStop, Source::Inferred, sentence))
    }

    /// By how much the watch was late at that time: so long after the container's end its status showed that.
    fn watch_delay(&self) -> Duration {
        let shown = self.attempt.and_then(|attempt| attempt.ended_at);
        let late = shown.zip(self.ended).map(|(shown, ended)| shown.since(ended));
        late.unwrap_or_default() + WATCH_DELAY
    }

    fn redefinition(&self) -> Option<Reason> {
        let changed = self.attempt.and_then(|attempt| attempt.image_changed);
        let before = changed.is_some_and(|at| at <= self.began + self.watch_delay());
        let (source, sentence) = match (before, self.redefined) {
            (true, true) => (
                Source::Api,
                "The image in the pod's spec was changed before it was stopped, and the next attempt \
                 has another io.kubernetes.container.hash.",
            ),
            (true, false) => (
                Source::Inferred,
                "Inferred: the image in the pod's spec was changed before it was stopped.",
            ),
            // A newer kubelet may compute the hash in another way; and the watch may be late.
            (false, true) => (
                Source::Inferred,
                "Inferred: the next attempt has another io.kubernetes.container.hash.",
            ),
            (false, false) => return None,
        };
        Some(Reason::new(Cause::DefinitionChanged, source, sentence))
    }

    fn resize(&self) -> Option<Reason> {
        let at = self.attempt?.resized?;
        if !(self.began - RESIZE_WINDOW..=self.began + self.watch_delay()).contains(&at) {
            return None;
        }
        let sentence = "Inferred: its resources were changed, its resizePolicy is RestartContainer, and \
                        the pod had the condition PodResizeInProgress.";
        Some(Reason::new(Cause::ResizeRestart, Source::Inferred, sentence))
    }

    /// Why it was stopped in a pod that kept running.
    pub fn reason(&self) -> Reason {
        if let Some(reason) = self.evident() {
            return reason;
        }
        let shown = self.shown();
        let probed = self.spec().map(|spec| self.probe(spec));
        if let Some(Probed::Failed(cause, probe)) = &probed
            && let Some(reason) = self.by_failed_runs(*cause, probe)
        {
            return reason;
        }
        let weaker = self.redefinition().or_else(|| self.resize()).or_else(|| self.by_runtime());
        if let Some(reason) = weaker.or_else(|| self.by_next_sandbox()) {
            return reason;
        }
        let Some(probed) = probed else {
            let sentence = "It was stopped; why, and whether its pod kept running, is not known: the \
                            apiserver has not reported the pod.";
            return Reason::new(Cause::Unknown, Source::Inferred, sentence);
        };
        let restart = |sentence: String| Reason::new(self.untold(), Source::Inferred, sentence);
        match (shown, probed) {
            (Some(Shown::Terminated), _) if self.interrupted => restart(
                "The kubelet or the runtime was interrupted during the stop, so the status does not show \
                 whether the kubelet stopped it or found it ended."
                    .into(),
            ),
            (Some(Shown::Terminated), _) => {
                let sentence = "Inferred: the pod status showed it terminated before the next attempt, so \
                                the kubelet did not stop it (as with `crictl stop`).";
                Reason::new(Cause::ExternalStop, Source::Inferred, sentence)
            }
            (Some(Shown::Replaced), Probed::Failed(cause, _)) => {
                let sentence = format!(
                    "Inferred: it has a {cause} probe, and the kubelet stopped it and started it again at \
                     once: the probe's failure is the most likely reason."
                );
                Reason::new(cause, Source::Inferred, sentence)
            }
            (_, Probed::Failed(cause, _)) => restart(format!(
                "It was stopped while its pod kept running: perhaps for its {cause} probe; the status does \
                 not show whether the kubelet stopped it or found it ended."
            )),
            (_, Probed::Perhaps) => restart(
                "It was stopped while its pod kept running: by its startup probe, its liveness probe or \
                 something else; no status was received while it ran."
                    .into(),
            ),
            (_, Probed::Not(why)) => restart(format!(
                "{why}, and its pod kept running: no evidence shows why it was stopped."
            )),
        }
    }

    /// Why the kubelet stopped it in a pod that ended with it: it does not restart it.
    pub fn of_ended_pod(&self) -> Option<Reason> {
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
        // With the phase Succeeded it may have been evicted for its own storage limits as well.
        let with_it = self.sandbox_followed.is_some_and(|after| after <= KILLED_WITH);
        if !with_it || object.pod.phase == "Succeeded" {
            return None;
        }
        let sentence = format!(
            "Inferred: {} has a {cause} probe, its sandbox was stopped with it, the pod was not deleted, and \
             its restartPolicy is {policy}.",
            self.container
        );
        Some(Reason::new(cause, Source::Inferred, sentence))
    }

    /// Fallback cause where the evidence is ambiguous: one that is not restarted was not stopped for that.
    fn untold(&self) -> Cause {
        let policy =
            self.object.zip(self.spec()).map(|(object, spec)| object.pod.restart_policy_of(spec));
        if policy == Some("Never") { Cause::Unknown } else { Cause::Restart }
    }

    /// The next attempt is in another sandbox: the kubelet also replaces one that lives, without an address
    /// for example.
    fn by_next_sandbox(&self) -> Option<Reason> {
        let sentence = "Inferred: the next attempt is in another sandbox of the pod.";
        self.moved.then(|| Reason::new(Cause::SandboxChanged, Source::Inferred, sentence))
    }

    /// As many runs of its exec probe failed as stop a container. Of other probes the kernel sees nothing.
    fn by_failed_runs(&self, cause: Cause, probe: &ApiProbe) -> Option<Reason> {
        let binary = probe.exec.as_deref()?;
        let failed = self.processes.failed_probes(binary, self.began);
        let threshold = usize::try_from(probe.failures.max(1)).unwrap_or(usize::MAX);
        let sentence = format!(
            "The last {failed} run(s) of the exec probe ({binary}) of {} failed just before it was stopped.",
            self.container
        );
        (failed >= threshold).then(|| Reason::new(cause, Source::Kernel, sentence))
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
    /// This one, as far as the spec and the status say.
    Failed(Cause, &'s ApiProbe),
    /// Its startup probe or its liveness probe.
    Perhaps,
    Not(&'static str),
}
