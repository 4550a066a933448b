//! What becomes of the containers of a pod that goes on (kuberuntime_manager.go, `computePodActions` and
//! `SyncPod`): which are stopped, and which are started again.

use super::{
    super::{
        grace, order,
        probe::{self, Finding},
        restart,
        status::Underway,
        stop::ContainerStop,
    },
    Worker,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use std::time::Duration;

/// kubecontainer.ErrPostStartHook: state.waiting.reason.
const POST_START_FAILED: &str = "PostStartHookError";
/// A container whose probe failed is started again as one that exited with an error is.
const FAILED: i32 = 1;
/// Seconds: the floor of StopContainer is left, and no time for a preStop hook.
const NO_GRACE: i64 = 0;
/// kubecontainer.ErrCrashLoopBackOff: state.waiting.reason.
const CRASH_LOOP: &str = "CrashLoopBackOff";

impl Worker {
    pub(super) async fn take_probe(&mut self, told: probe::ProbeReport) {
        let Some(name) = self.containers.name_of(&told.id) else { return };
        match told.what {
            Finding::Started => {
                self.containers.has_started(&name);
                self.report(false);
            }
            Finding::Unhealthy(..) if self.wanted.borrow().ignores_probes => {}
            Finding::Unhealthy(probe, grace) => {
                let probe = probe.to_ascii_lowercase();
                let (own, result) = (format!("{:?}", probe), "status=\"unhealthy\"");
                self.log.info_with("SyncLoop (probe)", format_args!("probe={own} {result}"));
                let why = format!("Container {name} failed {probe} probe");
                if restart::is_due(&self.spec(), &name, FAILED) {
                    self.replace(&name, grace, format!("{why}, will be restarted")).await;
                } else {
                    self.stop_for_good(&name, grace, why).await;
                }
            }
        }
    }

    /// A container that is not started again. The last one is stopped with the whole pod (`KillPod`).
    async fn stop_for_good(&mut self, name: &str, grace: Option<i64>, why: String) {
        self.containers.observe().await;
        self.decided(name, &why);
        if self.containers.running().len() > 1 {
            self.stop_one(name, grace, why).await;
            return;
        }
        if let Err(error) = self.try_to_stop().await {
            self.sync_failed(&error);
        }
    }

    /// Of a container's spec only the image and the resources can change (kuberuntime_manager.go,
    /// `containerChanged` and `computePodResizeAction`).
    pub(super) async fn replace_changed(&mut self) {
        for container in order::start_order(&self.spec()) {
            let known = self.containers.image_of(&container.name);
            if known.is_some_and(|image| Some(image) != container.image.as_deref()) {
                let name = &container.name;
                let why = format!("Container {name} definition changed, will be restarted");
                self.replace(name, None, why).await;
            } else if known.is_some()
                && restart::resizes(self.containers.resources_of(&container.name), container)
            {
                self.resize(&container.name).await;
            }
        }
    }

    /// One that is in the state UNKNOWN is killed before it is started again.
    pub(super) async fn replace_unknown(&mut self) {
        for (name, seen) in self.containers.seen() {
            if seen.now.is_unknown {
                let why = "Container is in \"unknown\" state, try killing it before restart";
                self.replace(&name, None, why.into()).await;
            }
        }
    }

    async fn resize(&mut self, name: &str) {
        self.underway = Underway::Resize;
        self.report(false);
        self.log.event("Normal", "ResizeStarted", "Pod resize started");
        let why = format!("Container {name} resize requires restart");
        let stopped = self.stop_one(name, None, why).await;
        self.underway = Underway::Nothing;
        if stopped {
            self.start_again(name).await;
        }
    }

    /// Stops a container, with a grace of its own if there is one, and starts it anew in the same
    /// sync (kuberuntime_manager.go, `SyncPod`).
    async fn replace(&mut self, name: &str, grace: Option<i64>, why: String) {
        self.decided(name, &why);
        if self.stop_one(name, grace, why).await {
            self.start_again(name).await;
        }
    }

    /// A container is to be stopped, for this reason.
    fn decided(&self, name: &str, why: &str) {
        let Some(log) = self.containers.log_of(name) else { return };
        let message = "Message for Container of pod";
        log.decided(message, "containerStatusID", format_args!("containerMessage={why:?}"));
        log.decided("Killing unwanted container for pod", "containerID", "");
    }

    /// A container has exited with a code for which its rules restart all.
    pub(super) fn asks_for_restart_of_all(&self) -> bool {
        let spec = self.spec();
        self.containers.seen().into_iter().any(|(name, seen)| {
            let ended = seen.now.ended.filter(|_| seen.waits.is_none());
            ended.is_some_and(|ended| restart::restarts_all(&spec, &name, ended.exit_code))
        })
    }

    /// One container after the other is stopped, without preStop, and removed; then all are started.
    pub(super) async fn restart_all(&mut self) {
        self.underway = Underway::RestartAll;
        self.report(false);
        let (pod, spec) = (self.wanted.borrow().pod.clone(), self.spec());
        let running = self.containers.running();
        self.log.info("Pod marked for RestartAllContainers");
        for container in order::start_order(&spec) {
            let name = &container.name;
            if let Some(id) = running.get(name) {
                if let Some(log) = self.containers.log_of(name) {
                    log.decided("Killing container before removal", "containerID", "");
                }
                let (name, id, message) = (name.clone(), id.clone(), "killing".into());
                let stop = ContainerStop { name, id, grace: NO_GRACE, overrides: true, message };
                if let Err(error) = self.stopper().one(stop).await {
                    tracing::warn!(pod = self.id.name, error = format!("{error:#}"), "stop");
                }
            }
            self.containers.remove_one(name).await;
        }
        self.underway = Underway::Nothing;
        self.report(false);
        for container in order::start_order(&spec) {
            match self.containers.start(&pod, container).await {
                Ok(()) => self.post_start(container).await,
                Err(error) => return self.failed(&error),
            }
        }
        self.containers.observe().await;
        self.report(false);
    }

    /// The sandbox died: the kubelet stops all that is left of the pod and starts it again in another one.
    pub(super) async fn replace_sandbox(&mut self) {
        self.report(false);
        self.log.info("No ready sandbox for pod can be found. Need to start a new one");
        self.log.info("Stopping PodSandbox for pod, will start new one");
        let changed = "Pod sandbox changed, it will be killed and re-created.";
        self.log.event("Normal", "SandboxChanged", changed);
        if let Err(error) = self.try_to_stop().await {
            self.sync_failed(&error);
            return;
        }
        self.attempt += 1;
        if let Err(error) = self.start().await {
            self.failed(&error);
        }
    }

    /// Stops a container of a pod that goes on, if it runs; false: the runtime failed.
    async fn stop_one(&mut self, name: &str, grace: Option<i64>, message: String) -> bool {
        let spec = self.spec();
        self.containers.observe().await;
        let running = self.containers.running();
        let Some(id) = running.get(name) else { return true };
        let grace = grace::in_force(grace, spec.termination_grace_period_seconds);
        let (name, id) = (name.to_owned(), id.clone());
        let stop = ContainerStop { name, id, grace, overrides: false, message };
        if let Err(error) = self.stopper().one(stop).await {
            self.sync_failed(&error);
            return false;
        }
        self.containers.observe().await;
        true
    }

    /// Runs the postStart hook of a container that was just started. If the hook fails, the kubelet stops
    /// the container again (kuberuntime_container.go, `startContainer`).
    pub(super) async fn post_start(&mut self, container: &Container) {
        if !self.containers.post_start(container).await
            && self.stop_one(&container.name, None, "FailedPostStartHook".into()).await
        {
            self.containers.waits(&container.name, POST_START_FAILED);
        }
    }

    pub(super) async fn restart_ended(&mut self) {
        let spec = self.spec();
        if self.is_complete() {
            return;
        }
        let now = Timestamp::now();
        for (name, seen) in self.containers.seen() {
            let Some(ended) = &seen.now.ended else { continue };
            let rested = Timestamp::from_nanosecond(ended.finished_ns.into())
                .map(|at| now.duration_since(at))
                .ok()
                .and_then(|since| Duration::try_from(since).ok())
                .is_some_and(|since| since >= restart::back_off(seen.restarts));
            if !restart::is_due(&spec, &name, ended.exit_code) {
                continue;
            }
            if rested {
                self.start_again(&name).await;
            } else if self.containers.waits(&name, CRASH_LOOP) {
                self.log.event("Warning", "BackOff", "Back-off restarting failed container");
                self.report(false);
            }
        }
    }

    async fn start_again(&mut self, name: &str) {
        let pod = self.wanted.borrow().pod.clone();
        let spec = self.spec();
        let Some(container) = order::start_order(&spec).into_iter().find(|one| one.name == name)
        else {
            return;
        };
        if let Some(log) = self.containers.log_of(name) {
            let due = "Container of pod is not in the desired state and shall be started";
            log.decided(due, "containerStatusID", "");
        }
        match self.containers.start(&pod, container).await {
            Ok(()) => {
                self.post_start(container).await;
                self.containers.observe().await;
                self.report(false);
            }
            Err(error) => self.failed(&error),
        }
    }
}
