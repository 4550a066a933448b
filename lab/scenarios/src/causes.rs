//! The group `causes`: every reason for which a container is stopped.

use super::{
    Action, AgentFlags, Scenario, Span, When,
    draft::{Draft, SOON, code, ends_by_itself, runs_on, signal},
    pod::Part,
};
use coroner_core::process::{SIGKILL, SIGTERM};
use coroner_core::types::{
    Cause,
    FindingKind::OutlivedObject,
    PhaseKind::{PreStop, Shutdown},
    Verdict,
};
use coroner_lab_cluster::{controlplane::Disruption, image, kubelet::PodEnding};
use std::time::Duration;

/// Into a container's next life: its end can no longer be taken for that of the life before, as the
/// agent allows the watch a second's lag.
const INTO_THE_NEXT_LIFE: Duration = Duration::from_millis(1300);

/// eviction_manager.go, `evictPod`: a hard threshold grants 1 s.
pub(super) const EVICTED: PodEnding = PodEnding {
    grace: Some(1),
    reason: "Evicted",
    message: "The node was low on resource: memory. ",
    disruption: Some("The node was low on resource: memory. "),
    always_fails: false,
    removes_content: true,
};

/// eviction_manager.go, `emptyDirLimitEviction`: without a condition.
const OVER_LIMIT: PodEnding = PodEnding {
    grace: Some(1),
    reason: "Evicted",
    message: "Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ",
    disruption: None,
    always_fails: false,
    removes_content: true,
};

/// preemption.go, `evictPodsToFreeRequests`.
const PREEMPTED: PodEnding = PodEnding {
    grace: None,
    reason: "Preempting",
    message: "Preempted in order to admit critical pod",
    disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod."),
    always_fails: false,
    removes_content: true,
};

/// nodeshutdown_manager.go, `processShutdownEvent`: what the pod's priority is granted.
const NODE_SHUTDOWN: PodEnding = PodEnding {
    grace: Some(4),
    reason: "Terminated",
    message: "Pod was terminated in response to imminent node shutdown.",
    disruption: Some("Pod was terminated in response to imminent node shutdown."),
    always_fails: false,
    removes_content: false,
};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = without_an_end();
    all.extend(by_others());
    all.extend(by_the_control_plane());
    all.extend(by_the_kubelet());
    all.extend(by_its_words());
    all.into_iter().map(|draft| draft.finish("causes")).collect()
}

/// Deleted when its container has been started again.
fn then_deleted(draft: Draft) -> Draft {
    draft
        .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
        .dies("app", Verdict::Graceful, code(0))
        .spends(Span::about(Shutdown, 0.5))
}

/// Containers that are stopped, or end, in a pod that goes on.
fn without_an_end() -> Vec<Draft> {
    vec![
        then_deleted(
            runs_on("liveness-probe-fails", 5)
                .shows("The liveness probe fails twice: the container is stopped and started again, then deleted.")
                .runs(Part::new("app", "handle --for 500ms").liveness("job --for 10ms --exit 1"))
                .when(When::Handled("app"), Action::IgnoreProbes)
                .died_before("app", Cause::Liveness, Verdict::Graceful, code(0)).within(5),
        ),
        runs_on("liveness-probe-own-grace", 20)
            .shows("The probe has its own grace period of 3 s: SIGKILL comes then, not after the pod's 20 s.")
            .runs(
                Part::new("app", "handle --for 5s")
                    .liveness("job --for 10ms --exit 1")
                    .probe_grace(3),
            )
            .when(When::Handled("app"), Action::IgnoreProbes)
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .died_before("app", Cause::Liveness, Verdict::GraceExceeded, signal(SIGKILL))
            .within(3)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 5.0)),
        runs_on("deleted-while-liveness-stops-it", 15)
            .shows("The pod is deleted during a liveness stop: the kubelet finishes it, starts the container, then stops all.")
            .runs(Part::new("app", "handle --for 3s").liveness("job --for 10ms --exit 1"))
            .runs(Part::new("other", "handle --for 500ms"))
            .when(When::Handled("app"), Action::Delete { grace: None })
            .died_before("app", Cause::Liveness, Verdict::Graceful, code(0))
            .dies("app", Verdict::Graceful, code(0))
            .dies("other", Verdict::Graceful, code(0)),
        runs_on("liveness-http-fails", 5)
            .shows("The httpGet probe succeeds twice, then gets 500: the kernel does not see it.")
            .on_own_network()
            .runs(Part::new("app", "serve --at :: --port {port} --for 0ms --good 2").liveness_http())
            .when(When::Handled("app"), Action::IgnoreProbes)
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .died_before("app", Cause::Liveness, Verdict::Graceful, code(0))
            .within(5)
            .dies("app", Verdict::Graceful, code(0)),
        runs_on("liveness-tcp-own-grace", 20)
            .shows("The tcpSocket probe connects to a closed port; its own grace period is 3 s.")
            .on_own_network()
            .runs(Part::new("app", "handle --for 5s").liveness_tcp().probe_grace(3))
            .when(When::Handled("app"), Action::IgnoreProbes)
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .died_before("app", Cause::Liveness, Verdict::GraceExceeded, signal(SIGKILL))
            .within(3)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 5.0)),
        ends_by_itself("liveness-http-ends-a-job")
            .shows("The httpGet probe fails and the restartPolicy is Never: the kubelet kills the pod.")
            .on_own_network()
            .runs(Part::new("app", "handle --for 500ms --exit 3").liveness_http())
            .caused_by(Cause::Liveness)
            .dies("app", Verdict::Graceful, code(3)),
        runs_on("deleted-in-the-hook-of-a-liveness-stop", 10)
            .shows("The pod is deleted while the preStop hook of a liveness stop runs: the kubelet finishes the stop first.")
            .runs(Part::new("app", "handle --for 500ms").liveness_tcp().pre_stop("sleep --for 3s"))
            .when(When::PreStop("app"), Action::Delete { grace: None })
            .died_before("app", Cause::Liveness, Verdict::Graceful, code(0))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(PreStop, 3.0)),
        ends_by_itself("liveness-probe-ends-a-job")
            .shows("The liveness probe fails and the restartPolicy is Never: the pod ends with the container.")
            .runs(
                Part::new("app", "handle --for 500ms --exit 3")
                    .liveness("job --for 10ms --exit 1"),
            )
            .caused_by(Cause::Liveness)
            .dies("app", Verdict::Graceful, code(3)),
        then_deleted(
            runs_on("startup-probe-fails", 5)
                .shows("The startup probe never succeeds: the container is stopped and started again, then deleted.")
                .runs(Part::new("app", "handle --for 500ms").startup("job --for 10ms --exit 1"))
                .when(When::Handled("app"), Action::IgnoreProbes)
                .died_before("app", Cause::Startup, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("startup-tcp-fails", 5)
                .shows("The tcpSocket startup probe never succeeds: the container is stopped and started again, then deleted.")
                .runs(Part::new("app", "handle --for 500ms").startup_tcp())
                .when(When::Handled("app"), Action::IgnoreProbes)
                .died_before("app", Cause::Startup, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("image-of-a-job-changed", 5)
                .shows("The image is changed and the restartPolicy is Never: the container is started again all the same.")
                .never_restarted()
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::ChangeImage { container: "app", image: image::NEXT })
                .died_before("app", Cause::DefinitionChanged, Verdict::Graceful, code(0)),
        ),
        runs_on("deleted-while-its-image-changes", 15)
            .shows("The pod is deleted during a stop for a changed image: the kubelet finishes it, starts the container, then stops it.")
            .runs(Part::new("app", "handle --for 3s"))
            .after(SOON, Action::ChangeImage { container: "app", image: image::NEXT })
            .when(When::Handled("app"), Action::Delete { grace: None })
            .died_before("app", Cause::DefinitionChanged, Verdict::Graceful, code(0))
            .dies("app", Verdict::Graceful, code(0)),
        then_deleted(
            runs_on("image-changed", 5)
                .shows("The image is changed: the container is stopped and started again, then deleted.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::ChangeImage { container: "app", image: image::NEXT })
                .died_before("app", Cause::DefinitionChanged, Verdict::Graceful, code(0)),
        ),
        runs_on("post-start-fails", 5)
            .shows("The postStart hook fails: the container is stopped, started again, stopped, and deleted in its back-off.")
            .runs(Part::new("app", "handle --for 500ms").post_start("job --for 1s --exit 1"))
            .when(When::Waits("app", "CrashLoopBackOff"), Action::Delete { grace: None })
            .died_before("app", Cause::PostStartFailed, Verdict::Graceful, code(0))
            .died_before("app", Cause::PostStartFailed, Verdict::Graceful, code(0)),
        then_deleted(
            runs_on("sandbox-dies", 5)
                .shows("The sandbox's process is killed: the container is stopped, started again in a new sandbox, then deleted.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::KillSandbox)
                .died_before("app", Cause::SandboxChanged, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("resized-by-restart", 5)
                .shows("The CPU request is changed and the resizePolicy is RestartContainer: the container is stopped and started again.")
                .runs(Part::new("app", "handle --for 500ms").cpu("10m"))
                .after(SOON, Action::Resize { container: "app", cpu: "20m" })
                .died_before("app", Cause::ResizeRestart, Verdict::Graceful, code(0)),
        ),
        runs_on("restarts-all", 2)
            .shows("One container exits with the code of the rule RestartAllContainers: all others are stopped.")
            .runs(Part::new("app", "handle --for 500ms"))
            // Its hook leaves it less than the floor, and does not run for that restart.
            .runs(Part::new("aide", "handle --for 300ms").pre_stop_sleep(1))
            .runs(Part::new("asks", "job --for 6+listed --exit 42").restarts_all_on(42))
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .died_before("asks", Cause::Completed, Verdict::Failed, code(42))
            .died_before("app", Cause::RestartAllContainers, Verdict::Graceful, code(0)).within(2)
            .died_before("aide", Cause::RestartAllContainers, Verdict::Graceful, code(0)).within(2)
            .dies("app", Verdict::Graceful, code(0))
            .dies("aide", Verdict::PrestopExhaustedGrace, code(0))
            .dies("asks", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Span::about(Shutdown, 2.0)),
        runs_on("sidecar-restarts", 5)
            .shows("The native sidecar is killed and started again, whatever the restartPolicy.")
            .never_restarted()
            .runs(Part::new("proxy", "handle --for 500ms").sidecar())
            .runs(Part::new("app", "handle --for 500ms"))
            .after(SOON, Action::Kill { container: "proxy", signal: libc::SIGTERM })
            .when(When::Anew("proxy", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .died_before("proxy", Cause::ExternalStop, Verdict::Graceful, code(0))
            .dies("app", Verdict::Graceful, code(0))
            .dies("proxy", Verdict::Graceful, code(0)),
        runs_on("container-state-unknown", 5)
            .shows("The runtime lost the container's state: the kubelet kills the container before it starts it again.")
            .runs(Part::new("app", "serve --port {port} --for 0ms").liveness_tcp())
            .after(Duration::ZERO, Action::IgnoreProbes)
            .after(Duration::ZERO, Action::KillRuntime)
            .after(Duration::ZERO, Action::LoseStatus { container: "app" })
            .after(Duration::ZERO, Action::StartRuntime)
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .alone()
            .died_before("app", Cause::Restart, Verdict::Graceful, code(0))
            .dies("app", Verdict::Graceful, code(0)),
        runs_on("leaves-and-is-restarted", 2)
            .shows("The container exits with 3 and is started again, without a handler, then deleted.")
            .runs(Part::new("app", "job --for 10+listed --exit 3"))
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .died_before("app", Cause::Completed, Verdict::Failed, code(3))
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Span::about(Shutdown, 2.0)),
    ]
}

/// Containers that somebody else than the kubelet stops.
fn by_others() -> Vec<Draft> {
    let crictl_stop = |timeout| Action::StopContainer { container: "app", timeout };
    let neighbour = |name, life| {
        then_deleted(
            runs_on(name, 5)
                .shares_pid_namespace()
                .runs(Part::new("app", "handle --for 500ms"))
                .runs(Part::new("aide", life))
                .after(SOON, Action::Kill { container: "aide", signal: libc::SIGUSR1 }),
        )
        .dies("aide", Verdict::TerminatedByDefault, signal(SIGTERM))
    };
    vec![
        then_deleted(
            runs_on("scope-stopped", 5)
                .shows("An administrator stops the container's scope: SIGTERM is systemd's, and the kubelet finds it exited.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::StopScope { container: "app" })
                .died_before("app", Cause::ExternalStop, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("crictl-stop", 5)
                .shows("An administrator stops the container through the CRI; the kubelet finds it exited.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, crictl_stop(5))
                .died_before("app", Cause::ExternalStop, Verdict::Graceful, code(0)),
        ),
        then_deleted(
            runs_on("crictl-stop-at-once", 5)
                .shows("An administrator stops the container with a timeout of 0: SIGKILL at once, which no kubelet requests.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, crictl_stop(0))
                .died_before("app", Cause::ExternalStop, Verdict::ForceKilled, signal(SIGKILL)),
        ),
        runs_on("crictl-stop-ends-a-job", 5)
            .shows("crictl stop, and the restartPolicy is Never: the probe, which succeeds, is not the reason.")
            .never_restarted()
            .on_own_network()
            .runs(Part::new("app", "serve --at :: --port {port} --for 0ms --exit 3").liveness_tcp())
            .after(Duration::ZERO, Action::IgnoreProbes)
            .after(SOON, crictl_stop(5))
            .caused_by(Cause::ExternalStop)
            .dies("app", Verdict::Graceful, code(3)),
        then_deleted(
            runs_on("crictl-stopp", 5)
                .shows("An administrator stops the sandbox: SIGKILL at once, then another sandbox.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::StopSandbox)
                .died_before("app", Cause::ExternalStop, Verdict::ForceKilled, signal(SIGKILL)),
        ),
        then_deleted(
            runs_on("ctr-task-kill", 5)
                .shows("ctr makes the runtime send SIGTERM, bypassing the CRI; the kubelet finds the container exited.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::KillTask { container: "app", signal: "SIGTERM" })
                .died_before("app", Cause::ExternalStop, Verdict::Graceful, code(0)),
        ),
        runs_on("deleted-during-crictl-stop", 5)
            .shows("The pod is deleted during an administrator's crictl stop: SIGTERM had been sent before.")
            .runs(Part::new("app", "handle --for 3s"))
            .after(SOON, crictl_stop(10))
            .when(When::Handled("app"), Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0)),
        neighbour("neighbour-terminates-it", "kill-neighbour --of handle")
            .shows("A process of another container, in a shared PID namespace, sends SIGTERM.")
            .died_before("app", Cause::ExternalStop, Verdict::Graceful, code(0)),
        neighbour("neighbour-kills-it", "kill-neighbour --of handle --on 9")
            .shows("A process of another container, in a shared PID namespace, sends SIGKILL.")
            .died_before("app", Cause::ExternalStop, Verdict::ForceKilled, signal(SIGKILL)),
        then_deleted(
            runs_on("kubectl-exec-kill", 5)
                .shows("kubectl exec runs kill 1 in the container: the sender had entered it.")
                .runs(Part::new("app", "handle --for 500ms"))
                .after(SOON, Action::Exec { container: "app", command: "kill --pid 1" })
                .died_before("app", Cause::ExternalStop, Verdict::Graceful, code(0)),
        ),
    ]
}

fn by_the_control_plane() -> Vec<Draft> {
    let disrupted = |name, disruption| {
        runs_on(name, 5)
            .runs(Part::new("app", "handle --for 1s"))
            .after(SOON, Action::Disrupt(disruption))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0))
    };
    vec![
        disrupted("drained", Disruption::Eviction)
            .shows("kubectl drain evicts the pod through the API.")
            .caused_by(Cause::ApiEviction),
        disrupted("preempted", Disruption::Preemption)
            .shows("The scheduler makes room for a pod of higher priority.")
            .caused_by(Cause::Preemption),
        disrupted("tainted", Disruption::Taint)
            .shows("The node gets a taint that the pod does not tolerate.")
            .caused_by(Cause::TaintEviction),
        disrupted("garbage-collected", Disruption::PodGc)
            .shows("The control plane's garbage collector deletes the object; the processes outlive it.")
            .caused_by(Cause::PodGc)
            .finds(OutlivedObject),
    ]
}

fn by_the_kubelet() -> Vec<Draft> {
    let from_manifest = |name| {
        runs_on(name, 5)
            .made_by_manifest()
            .runs(Part::new("app", "handle --for 1s"))
            .caused_by(Cause::StaticRemoved)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0))
    };
    let handled = |name, ending, cause, exit| {
        runs_on(name, 5)
            .after(SOON, Action::End(ending))
            .caused_by(cause)
            .dies("app", Verdict::Graceful, code(exit))
            .spends(Span::about(Shutdown, 1.0))
    };
    vec![
        runs_on("node-pressure", 30)
            .shows("The node is short of memory: the pod is evicted with a grace period of 1 s, raised to the minimum of 2 s.")
            .runs(Part::new("app", "overrun"))
            .after(SOON, Action::End(EVICTED))
            .caused_by(Cause::NodePressureEviction)
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .spends(Span::about(Shutdown, 2.0)),
        runs_on("node-shutdown", 30)
            .shows("The node shuts down: the pod gets the grace period of its priority, not its own.")
            .runs(Part::new("app", "overrun"))
            .after(SOON, Action::End(NODE_SHUTDOWN))
            .caused_by(Cause::NodeShutdown)
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .spends(Span::about(Shutdown, 4.0)),
        handled("node-shutdown-exits-0", NODE_SHUTDOWN, Cause::NodeShutdown, 0)
            .shows("The node shuts down and the container exits with 0: phase Succeeded, only the condition remains.")
            .runs(Part::new("app", "handle --for 1s")),
        handled("kubelet-preempts", PREEMPTED, Cause::KubeletPreemption, 3)
            .shows("The kubelet makes room for a critical pod, and the container exits with 3: status.reason has the cause.")
            .runs(Part::new("app", "handle --for 1s --exit 3")),
        handled("kubelet-preempts-exits-0", PREEMPTED, Cause::KubeletPreemption, 0)
            .shows("The kubelet makes room for a critical pod, and the container exits with 0: only the condition remains.")
            .runs(Part::new("app", "handle --for 1s")),
        handled("over-its-emptydir-limit", OVER_LIMIT, Cause::LocalStorageLimit, 3)
            .shows("The container exceeds its emptyDir limit: evicted, with a reason but no condition.")
            .runs(Part::new("app", "handle --for 1s --exit 3")),
        handled("over-its-emptydir-limit-exits-0", OVER_LIMIT, Cause::LocalStorageLimit, 0)
            .shows("The container exceeds its emptyDir limit and exits with 0: phase Succeeded, and no other evidence.")
            .runs(Part::new("app", "handle --for 1s")),
        runs_on("past-its-deadline", 5)
            .shows("The pod runs longer than activeDeadlineSeconds: phase Failed, although it exits with 0.")
            .never_restarted()
            .deadline(3)
            .runs(Part::new("app", "handle --for 1s"))
            .caused_by(Cause::DeadlineExceeded)
            .dies("app", Verdict::Graceful, code(0))
            .spends(Span::about(Shutdown, 1.0)),
        from_manifest("manifest-removed")
            .shows("A static pod: deleting the mirror pod stops nothing, removing the manifest does.")
            .after(SOON, Action::Delete { grace: None })
            .after(SOON, Action::RemoveManifest),
        from_manifest("manifest-returns")
            .shows("The manifest returns while the pod terminates: two incarnations of the same UID.")
            .after(SOON, Action::RemoveManifest)
            .when(When::Handled("app"), Action::ReturnManifest)
            .when(When::Anew("app", Duration::ZERO), Action::Wait)
            .when(When::Accounted(1), Action::RemoveManifest)
            .lives(2),
        from_manifest("manifest-changes")
            .shows("The manifest is changed: a pod of the same name and another UID replaces the pod.")
            .after(SOON, Action::ChangeManifest)
            .when(When::Anew("app", Duration::ZERO), Action::RemoveManifest)
            .lives(2),
    ]
}

/// A stop of which the kernel sees no reason, with and without the kubelet's Events.
fn by_its_words() -> Vec<Draft> {
    let stopped = |name, flags| {
        runs_on(name, 5)
            .on_own_network()
            .alone()
            .runs(Part::new("app", "serve --at :: --port {port} --for 0ms").liveness_http())
            .after(Duration::ZERO, Action::RestartAgent(flags))
            .after(SOON, Action::Kill { container: "app", signal: libc::SIGUSR1 })
            .died_before("app", Cause::Liveness, Verdict::Graceful, code(0))
            .within(5)
            .when(When::Anew("app", INTO_THE_NEXT_LIFE), Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
    };
    let without_events = AgentFlags { lists_no_events: true, ..AgentFlags::PLAIN };
    vec![
        stopped("only-events-prove-it", AgentFlags::PLAIN)
            .shows("The httpGet probe fails: the pod's Events have the reason.")
            .saying("\"Container app failed liveness probe, will be restarted\""),
        stopped("no-events-prove-it", without_events)
            .shows("The httpGet probe fails, and the agent may not list Events: the cause is inferred.")
            .inferred()
            .saying("The pod's Events, which might prove it, could not be listed."),
    ]
}
