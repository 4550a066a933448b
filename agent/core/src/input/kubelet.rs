//! The kubelet's own account: what it writes into its log of its pods. No verdict depends on it, and what it does
//! not contain may not have been logged at its verbosity.

use super::{KubeletStatement, labels};
use crate::{ids::*, time::*};
use serde::{Deserialize, Serialize};

/// News of the kubelet's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kubelet", rename_all = "snake_case")]
pub enum KubeletEvent {
    /// The log is read from this moment on: at the start, and again after an outage.
    Reading {
        /// Where the log is.
        origin: KubeletLogOrigin,
        /// The first moment of which lines are read.
        since: BootTime,
    },
    /// A line that the agent knows, about a pod or about the kubelet as a whole.
    Entry(Box<KubeletEntry>),
    /// The first line of this level was read of a run of the kubelet, which runs with `-v` of at least this. What needs
    /// more is not logged, as far as is known.
    Verbosity {
        /// The level of the line.
        at_least: u8,
    },
    /// Lines that were not read.
    Gap {
        /// Nothing is missing before this moment.
        from: BootTime,
        /// Nothing is missing after this moment.
        to: BootTime,
        /// How many lines; 0: unknown.
        lines: u64,
        /// Why.
        cause: KubeletLogGap,
    },
    /// The log cannot be read now.
    Unreadable {
        /// What happened.
        error: String,
    },
    /// Whether the agent looks up the Events of pods, at the engine's request.
    Lookup {
        /// It does.
        lists: bool,
    },
    /// The Events that the kubelet has posted about a pod.
    Events {
        /// The pod's UID in the runtime.
        pod: PodUid,
        /// When the apiserver was asked.
        asked: BootTime,
        /// What they say; `None`: they were not listed.
        entries: Option<Vec<KubeletEntry>>,
    },
    /// The kubelet's API may be asked, at the engine's request.
    Askable,
    /// The answer of the kubelet's API.
    Known {
        /// When the kubelet was asked.
        asked: BootTime,
        /// The UIDs that were asked for, each with whether the kubelet has the pod.
        pods: Vec<(PodUid, bool)>,
    },
}

labels! {
    /// Where the kubelet's log is.
    pub enum KubeletLogOrigin {
        /// In files of the systemd journal.
        Journal = "journal",
        /// In a plain file.
        File = "file",
        /// On standard input.
        Stdin = "stdin",
    }

    /// Why lines of the kubelet's log are missing.
    pub enum KubeletLogGap {
        /// More lines came than the agent's budget allows.
        Budget = "budget",
        /// journald's rate limit suppressed them.
        RateLimit = "rate_limit",
        /// The log was rotated or truncated before it was read to its end.
        Rotated = "rotated",
        /// Part of the log cannot be read.
        Damaged = "damaged",
        /// It was not read at all.
        NotRead = "not_read",
    }

    /// Where the kubelet has a pod from.
    pub enum KubeletPodSource {
        /// The apiserver: an ordinary pod, or a mirror pod.
        Api = "api",
        /// A manifest in a file.
        File = "file",
        /// A manifest from a web server.
        Http = "http",
    }

    /// A step of a pod worker.
    pub enum KubeletStep {
        /// The pod is started or kept running.
        Sync = "sync",
        /// Its containers are stopped.
        Terminating = "terminating",
        /// What remains of the pod is cleaned up.
        Terminated = "terminated",
    }

    /// A kind of probe.
    pub enum KubeletProbe {
        /// Liveness.
        Liveness = "liveness",
        /// Readiness.
        Readiness = "readiness",
        /// Startup.
        Startup = "startup",
    }

    /// What the kubelet's lifecycle event generator reports of a container or sandbox.
    pub enum KubeletChange {
        /// It runs.
        Started = "started",
        /// It ended.
        Died = "died",
        /// It is removed.
        Removed = "removed",
        /// Its state is not known.
        Unknown = "unknown",
    }

    /// Why the kubelet stops a container, in its own words.
    pub enum KubeletKillReason {
        /// "Container … failed liveness probe, will be restarted".
        LivenessProbe = "liveness_probe",
        /// "Container … failed startup probe, will be restarted".
        StartupProbe = "startup_probe",
        /// "Container … definition changed, will be restarted".
        DefinitionChanged = "definition_changed",
        /// "Container … resize requires restart".
        Resize = "resize",
        /// "Container is in … state, try killing it before restart".
        UnknownState = "unknown_state",
        /// "FailedPostStartHook".
        PostStartHook = "post_start_hook",
        /// "Stopping container …": the pod is stopped, or has a new sandbox.
        Stopping = "stopping",
        /// Other words, which [`KubeletEntry::message`] has.
        Other = "other",
    }
}

/// An action of the kubelet that failed, as its error names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KubeletFailure {
    /// `KillContainer`, `KillPodSandbox`, `StartContainer`, ….
    pub action: String,
    /// The container's name, or the pod's UID.
    pub target: String,
    /// `KillContainerError`, `CrashLoopBackOff`, ….
    pub reason: String,
}

/// A line of the kubelet's log. Only these fields are kept of it: command lines, the output of probes, patches and
/// annotations never are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KubeletEntry {
    /// When the line was written.
    pub time: BootTime,
    /// How far `time` may be off, in both directions, ns.
    pub uncertainty_ns: u64,
    /// The wall clock that the line has.
    pub wall: WallTime,
    /// What the line says.
    pub statement: KubeletStatement,
    /// The pod's UID in the runtime, or that of a mirror pod's object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodUid>,
    /// The pod's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The container's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The container, or a sandbox where the line does not tell which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<ContainerId>,
    /// The sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The grace period, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// The source that the pod is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<KubeletPodSource>,
    /// The step of the pod worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<KubeletStep>,
    /// The kind of probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<KubeletProbe>,
    /// What happened to the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<KubeletChange>,
    /// The container's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why the container is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<KubeletKillReason>,
    /// The kubelet's own words, where they are more than the statement: why a container is stopped, the resource
    /// that is short, the kubelet's version. Cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How often an Event had been posted by then, with the same words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posted: Option<u32>,
    /// The actions that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<KubeletFailure>,
    /// The error of the runtime, of the apiserver or of Linux. Cut, and never of a hook or a probe. Of most
    /// statements a recording has its kind only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
