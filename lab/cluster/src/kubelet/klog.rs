//! What the kubelet says of its own work: its log, in klog's form and with the messages of kubelet 1.36 at `-v=4`
//! (docs/kubelet.md), and its Events.

use super::{api::Api, translate::PodId};
use jiff::Timestamp;
use serde_json::json;
use std::{
    fmt,
    fs::{self, File},
    io::Write as _,
    panic::Location,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// A log of this length, bytes, is renamed, and the one before it removed.
const ROTATED_AT: u64 = 16 << 20;

/// The log; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct KubeletLog(Option<Arc<Mutex<LogFile>>>);

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl KubeletLog {
    /// Written to this file.
    pub(super) fn to(path: PathBuf) -> std::io::Result<Self> {
        let file = File::create(&path)?;
        Ok(Self(Some(Arc::new(Mutex::new(LogFile { path, file, length: 0 })))))
    }

    #[track_caller]
    pub(super) fn info(&self, message: &str, fields: impl fmt::Display) {
        self.line('I', message, fields);
    }

    #[track_caller]
    pub(super) fn error(&self, message: &str, fields: impl fmt::Display) {
        self.line('E', message, fields);
    }

    /// A message of the sync loop about one pod.
    #[track_caller]
    pub(super) fn sync_loop(&self, what: &str, source: &str, pod: &PodId) {
        let fields = format_args!("source=\"{source}\" pods=[\"{}/{}\"]", pod.namespace, pod.name);
        self.info(&format!("SyncLoop {what}"), fields);
    }

    #[track_caller]
    fn line(&self, severity: char, message: &str, fields: impl fmt::Display) {
        let Some(log) = &self.0 else { return };
        let caller = Location::caller();
        let file = Path::new(caller.file()).file_name().unwrap_or_default().display();
        let (thread, line) = (std::process::id(), caller.line());
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: times do not go back. The log has no year and no zone; the lab's is UTC.
        let time = Timestamp::now().strftime("%m%d %H:%M:%S%.6f").to_string();
        let text = format!("{severity}{time} {thread:7} {file}:{line}] {message:?} {fields}\n");
        if let Err(error) = log.append(text.as_bytes()) {
            tracing::warn!(%error, "the kubelet's log");
        }
    }
}

impl LogFile {
    fn append(&mut self, line: &[u8]) -> std::io::Result<()> {
        if self.length > ROTATED_AT {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            (self.file, self.length) = (File::create(&self.path)?, 0);
        }
        self.length += line.len() as u64;
        self.file.write_all(line)
    }
}

/// What the kubelet says of one pod.
#[derive(Clone)]
pub(super) struct PodLog {
    pub(super) log: KubeletLog,
    api: Arc<dyn Api>,
    node: String,
    pod: PodId,
    /// `pod="…" podUID="…"`.
    names: String,
}

impl PodLog {
    pub(super) fn new(log: KubeletLog, api: Arc<dyn Api>, node: String, pod: PodId) -> Self {
        let names = format!("pod=\"{}/{}\" podUID=\"{}\"", pod.namespace, pod.name, pod.uid);
        Self { log, api, node, pod, names }
    }

    /// A message about the pod.
    #[track_caller]
    pub(super) fn info(&self, message: &str) {
        self.log.info(message, &self.names);
    }

    /// The same, with further fields.
    #[track_caller]
    pub(super) fn info_with(&self, message: &str, more: impl fmt::Display) {
        self.log.info(message, format_args!("{} {more}", self.names));
    }

    /// The same, with a grace period in seconds.
    #[track_caller]
    pub(super) fn grace(&self, message: &str, seconds: i64) {
        self.info_with(message, format_args!("gracePeriod={seconds}"));
    }

    /// An error about the pod.
    #[track_caller]
    pub(super) fn error(&self, message: &str, err: impl fmt::Display) {
        self.log.error(message, format_args!("err={:?} {}", err.to_string(), self.names));
    }

    /// The eviction manager reclaims memory, and this pod is the first to go.
    #[track_caller]
    pub(super) fn evicts(&self) {
        let short = "resourceName=\"memory\"";
        self.log.info("Eviction manager: must evict pod(s) to reclaim", short);
        let pods = format_args!("pods=[\"{}/{}\"]", self.pod.namespace, self.pod.name);
        self.log.info("Eviction manager: pods ranked for eviction", pods);
    }

    /// The pod worker begins a step.
    #[track_caller]
    pub(super) fn begins(&self, step: &str) {
        self.info_with("Processing pod event", format_args!("updateType={step:?}"));
    }

    /// The pod worker ends a step.
    #[track_caller]
    pub(super) fn ends(&self, step: &str) {
        self.info_with("Processing pod event done", format_args!("updateType={step:?}"));
    }

    /// Posts an Event about the pod, and logs it (client-go/tools/record).
    #[track_caller]
    pub(super) fn event(&self, kind: &str, reason: &str, message: &str) {
        self.event_of("", kind, reason, message);
    }

    #[track_caller]
    fn event_of(&self, field: &str, kind: &str, reason: &str, message: &str) {
        let PodId { namespace, name, uid } = &self.pod;
        self.log.info(
            "Event occurred",
            format_args!(
                "object=\"{namespace}/{name}\" fieldPath={field:?} kind=\"Pod\" apiVersion=\"v1\" \
                 type={kind:?} reason={reason:?} message={message:?}"
            ),
        );
        let now = Timestamp::now();
        let second = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.api.post_event(json!({
            "metadata": { "namespace": namespace, "name": format!("{name}.{:x}", now.as_nanosecond()) },
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name, "uid": uid,
                "fieldPath": field,
            },
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": second, "lastTimestamp": second,
            "source": { "component": "kubelet", "host": self.node }, "reportingComponent": "kubelet",
        }));
    }

    /// The lifecycle event generator reports a container or a sandbox that has changed; with an exit code, that it
    /// has exited. `is_known`: the pod has not been removed from its source.
    #[track_caller]
    pub(super) fn pleg(&self, id: &str, what: &str, exit: Option<i32>, is_known: bool) {
        let uid = &self.pod.uid;
        if let Some(code) = exit {
            let fields = format_args!("podID={uid:?} containerID={id:?} exitCode={code}");
            self.log.info("Generic (PLEG): container finished", fields);
        }
        let event = format!("event={{\"ID\":{uid:?},\"Type\":{what:?},\"Data\":{id:?}}}");
        if is_known {
            let fields = format_args!("pod=\"{}/{}\" {event}", self.pod.namespace, self.pod.name);
            self.log.info("SyncLoop (PLEG): event for pod", fields);
        } else {
            let message = "SyncLoop (PLEG): pod does not exist, ignore irrelevant event";
            self.log.info(message, event);
        }
    }

    /// What the kubelet says of a container of the pod.
    pub(super) fn of_container(&self, name: &str, id: &str) -> ContainerLog {
        let names =
            format!("{} containerName={name:?} containerID=\"containerd://{id}\"", self.names);
        ContainerLog { pod: self.clone(), name: name.into(), id: id.into(), names }
    }
}

/// What the kubelet says of one container.
#[derive(Clone)]
pub(super) struct ContainerLog {
    pod: PodLog,
    name: String,
    id: String,
    names: String,
}

impl ContainerLog {
    #[track_caller]
    pub(super) fn info(&self, message: &str) {
        self.pod.log.info(message, &self.names);
    }

    #[track_caller]
    fn info_with(&self, message: &str, more: impl fmt::Display) {
        self.pod.log.info(message, format_args!("{} {more}", self.names));
    }

    /// With a grace period in seconds.
    #[track_caller]
    pub(super) fn grace(&self, message: &str, seconds: i64) {
        self.info_with(message, format_args!("gracePeriod={seconds}"));
    }

    #[track_caller]
    pub(super) fn error(&self, message: &str, err: impl fmt::Display) {
        self.pod.log.error(message, format_args!("err={:?} {}", err.to_string(), self.names));
    }

    /// Posts an Event about the container, and logs it.
    #[track_caller]
    pub(super) fn event(&self, kind: &str, reason: &str, message: &str) {
        self.pod.event_of(&format!("spec.containers{{{}}}", self.name), kind, reason, message);
    }

    /// The synchronisation of the pod decides about it (kuberuntime_manager.go).
    #[track_caller]
    pub(super) fn decided(&self, message: &str, id_key: &str, more: impl fmt::Display) {
        let PodId { namespace, name, .. } = &self.pod.pod;
        let own = &self.name;
        let id = format!("{id_key}={{\"Type\":\"containerd\",\"ID\":{:?}}}", self.id);
        let fields = format!("containerName={own:?} {id} pod=\"{namespace}/{name}\" {more}");
        self.pod.log.info(message, fields);
    }

    /// A run of one of its probes failed (prober.go).
    #[track_caller]
    pub(super) fn probe_failed(&self, probe: &str, output: &str) {
        let fields = format_args!("probeType={probe:?} probeResult=\"failure\" output={output:?}");
        self.info_with("Probe failed", fields);
        self.event("Warning", "Unhealthy", &format!("{probe} probe failed: {output}"));
    }
}
