//! The group `deaths`: every way in which a container ends, and the ways of a preStop hook.

use super::{
    Action, Scenario, When,
    draft::{Draft, SOON, code, deleted, ends_by_itself, runs_on, signal},
    pod::Part,
};
use crate::image;
use coroner_core::{
    process::{SIGKILL, SIGTERM},
    types::{
        Cause,
        FindingKind::{ChildrenNotSignalled, DeadlineMissed, OutlivedObject, PrestopCutOff},
        PhaseKind::{PostStart, PreStop, Shutdown},
        Verdict,
    },
};
use std::time::Duration;

const SIGSEGV: u8 = 11;

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = the_first();
    all.extend(signals());
    all.extend(hooks());
    all.into_iter().map(|draft| draft.finish("deaths")).collect()
}

/// What everybody should have seen.
fn the_first() -> Vec<Draft> {
    vec![
        deleted("handles-sigterm", 10)
            .shows("preStop takes 5 s, then the process handles SIGTERM and exits within the grace period.")
            .runs(
                Part::new("app", "handle --for 2s")
                    .post_start("sleep --for 5s")
                    .pre_stop("sleep --for 5s"),
            )
            .dies("app", Verdict::Graceful, code(0))
            .spends(PreStop, 5.0)
            .spends(Shutdown, 2.0),
        runs_on("deleted-during-post-start", 10)
            .shows("The pod is deleted while its postStart hook runs: the kubelet waits for the hook, then stops the pod.")
            .runs(Part::new("app", "handle --for 500ms").post_start("sleep --for 6s"))
            .when(When::PostStart, Action::Delete { grace: None })
            .dies("app", Verdict::Graceful, code(0))
            .spends(PostStart, 5.5),
        deleted("prestop-exhausts-grace", 10)
            .shows("A preStop hook longer than the grace period leaves only the minimum of 2 s for SIGTERM.")
            .runs(Part::new("app", "handle --for 1s").pre_stop("sleep --for 15s"))
            .dies("app", Verdict::PrestopExhaustedGrace, code(0))
            .finds(PrestopCutOff)
            // The hook itself, which dies with the PID namespace.
            .allows(ChildrenNotSignalled)
            .spends(PreStop, 10.0)
            .spends(Shutdown, 1.0),
        deleted("slower-than-grace", 8)
            .shows("preStop takes 5 s of 8, and the shutdown needs 10 s more: SIGKILL comes after 3 s.")
            .runs(Part::new("app", "handle --for 10s").pre_stop("sleep --for 5s"))
            .owned_by("StatefulSet", "db")
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .spends(PreStop, 5.0)
            .spends(Shutdown, 3.0),
        deleted("sigterm-ignored", 5)
            .shows("PID 1 has no handler: the kernel discards SIGTERM, and SIGKILL ends the process.")
            .runs(Part::new("app", "ignore"))
            .owned_by("StatefulSet", "db")
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Shutdown, 5.0),
        runs_on("force-delete", 30)
            .shows("A force deletion removes the object at once; the processes outlive it.")
            .runs(Part::new("app", "handle --for 1s"))
            .after(SOON, Action::Delete { grace: Some(0) })
            .caused_by(Cause::ForceDelete)
            .dies("app", Verdict::Graceful, code(0))
            .finds(OutlivedObject)
            .spends(Shutdown, 1.0),
        ends_by_itself("oom-killed")
            .shows("The memory limit is 32 MiB and the process uses 64: the OOM killer selects the init.")
            // Its limit is set when it runs: the kubelet has some seconds for that.
            .runs(Part::new("app", "oom --after 5s --mib 64").memory("32Mi"))
            .owned_by("StatefulSet", "db")
            .dies("app", Verdict::OomKilled, signal(SIGKILL)),
        ends_by_itself("crash")
            .shows("The process writes to read-only memory and causes SIGSEGV.")
            .runs(Part::new("app", "crash --after 1s"))
            .owned_by("StatefulSet", "db")
            .dies("app", Verdict::Crashed, signal(SIGSEGV)),
        ends_by_itself("job-completes")
            .shows("A job completes and exits with 0: no signal was sent.")
            .runs(Part::new("app", "job --for 2s"))
            .dies("app", Verdict::Completed, code(0)),
        deleted("two-deaths-in-one-pod", 6)
            .shows("One of two containers exits on SIGTERM, the other delays the pod.")
            .runs(Part::new("good", "handle --for 1s"))
            .runs(Part::new("bad", "ignore"))
            .dies("good", Verdict::Graceful, code(0))
            .dies("bad", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Shutdown, 6.0),
        deleted("one-of-two-overruns", 8)
            .shows("A hook of 3 s, then a handler that needs 10 s more: one of two containers delays the pod until SIGKILL.")
            .runs(Part::new("web", "handle --for 10s").pre_stop("sleep --for 3s"))
            .runs(Part::new("log", "handle --for 1s"))
            .dies("web", Verdict::GraceExceeded, signal(SIGKILL))
            .dies("log", Verdict::Graceful, code(0))
            .spends(PreStop, 3.0)
            .spends(Shutdown, 5.0),
        deleted("leader-exits-first", 6)
            .shows("The leading thread exits first, and another one keeps working: the process ends with the last thread.")
            .runs(Part::new("app", "leader-exits --for 1s --exit 3"))
            .dies("app", Verdict::Graceful, code(3))
            .spends(Shutdown, 1.0),
        deleted("sigwait", 6)
            .shows("SIGTERM is blocked and taken by sigwait: no handler ever runs.")
            .runs(Part::new("app", "sigwait --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 1.0),
        deleted("signalfd", 6)
            .shows("SIGTERM is blocked and read from a signalfd: no handler ever runs.")
            .runs(Part::new("app", "signalfd --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 1.0),
        deleted("go-style", 6)
            .shows("As Go's runtime does: the process handles SIGTERM, raises it on itself, and exits with 2.")
            .runs(Part::new("app", "go-style --for 1s"))
            .dies("app", Verdict::Graceful, code(2))
            .spends(Shutdown, 1.0),
        deleted("shell-not-forwarding", 5)
            .shows("A shell as PID 1 does not forward SIGTERM: its child never receives it.")
            .runs(Part::new("app", "shell --child handle --for 1s"))
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .finds(ChildrenNotSignalled)
            .spends(Shutdown, 5.0),
        deleted("started-before-agent", 6)
            .before_agent()
            .shows("The container is older than the agent, which determines the verdict all the same.")
            .runs(Part::new("app", "handle --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 1.0),
    ]
}

/// What else can become of a signal.
fn signals() -> Vec<Draft> {
    vec![
        deleted("sig-ign", 3)
            .shows("The process has set SIGTERM to SIG_IGN: the kernel discards it.")
            .runs(Part::new("app", "sig-ign"))
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Shutdown, 3.0),
        deleted("blocked", 3)
            .shows("The process blocks SIGTERM and never takes it: the signal is still pending when SIGKILL comes.")
            .runs(Part::new("app", "block"))
            .dies("app", Verdict::StopSignalBlocked, signal(SIGKILL))
            .spends(Shutdown, 3.0),
        deleted("blocked-in-one-thread", 3)
            .shows("The leading thread blocks SIGTERM, another one does not: the kernel queues it, and that thread discards it.")
            .runs(Part::new("app", "block-leader"))
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Shutdown, 3.0),
        deleted("image-stop-signal", 5)
            .shows("The image's STOPSIGNAL is SIGQUIT, which the process handles; SIGTERM is never sent.")
            .runs(Part::new("app", "handle --for 1s --on 3").image(image::SIGQUIT))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 1.0),
        deleted("stop-signal-of-the-spec", 3)
            .shows("lifecycle.stopSignal is SIGUSR1, which this runtime does not support: the process ignores SIGTERM.")
            .runs(Part::new("app", "handle --for 500ms --on 10").stop_signal("SIGUSR1"))
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Shutdown, 3.0),
        runs_on("deleted-now", 30)
            .shows("kubectl delete --now requests a grace period of 1 s; the kubelet grants 2.")
            .runs(Part::new("app", "ignore"))
            .after(SOON, Action::Delete { grace: Some(1) })
            .granted(2)
            .dies("app", Verdict::StopSignalIgnored, signal(SIGKILL))
            .spends(Shutdown, 2.0),
        deleted("exits-with-143", 5)
            .shows("The process handles SIGTERM and exits with 143, as shells do: no signal ended it.")
            .runs(Part::new("app", "handle --for 500ms --exit 143"))
            .dies("app", Verdict::Graceful, code(143)),
        deleted("shared-pid-namespace", 5)
            .shows("With shareProcessNamespace the process is not PID 1: SIGTERM's default action ends it.")
            .runs(Part::new("app", "default"))
            .owned_by("StatefulSet", "db")
            .shares_pid_namespace()
            .dies("app", Verdict::TerminatedByDefault, signal(SIGTERM)),
        deleted("host-pid-namespace", 5)
            .shows("With hostPID the process is not PID 1, either, and handles SIGTERM as usual.")
            .runs(Part::new("app", "handle --for 1s"))
            .on_host_pid_namespace()
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 1.0),
        deleted("children-not-signalled", 5)
            .shows("The process exits on SIGTERM without signalling its 300 children: the kernel kills them.")
            .runs(Part::new("app", "spawn --children 300 --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .finds(ChildrenNotSignalled)
            .spends(Shutdown, 1.0),
        runs_on("killed-from-outside", 30)
            .shows("A process on the node sends SIGKILL: neither the kubelet nor the runtime.")
            .runs(Part::new("app", "handle --for 1s"))
            .never_restarted()
            .after(SOON, Action::Kill { container: "app", signal: libc::SIGKILL })
            .caused_by(Cause::ExternalStop)
            .dies("app", Verdict::ForceKilled, signal(SIGKILL)),
        ends_by_itself("job-fails")
            .shows("A job exits with 7: no signal was sent.")
            .runs(Part::new("app", "job --for 1s --exit 7"))
            .dies("app", Verdict::Failed, code(7)),
        deleted("grace-shortened", 15)
            .shows("A second deletion moves the deadline to now; the kubelet is already waiting and keeps the old one.")
            .runs(Part::new("app", "overrun"))
            .after(Duration::from_secs(2), Action::Delete { grace: Some(1) })
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .finds(DeadlineMissed)
            .spends(Shutdown, 15.0),
        deleted("calls-the-apiserver", 4)
            .shows("The process calls the apiserver during the whole grace period: alive, and answered, until SIGKILL.")
            .runs(Part::new("app", "call --every 200ms"))
            .dies("app", Verdict::GraceExceeded, signal(SIGKILL))
            .spends(Shutdown, 4.0)
            // Some twenty on a machine that never pauses.
            .calls(3),
    ]
}

/// What else a preStop hook can be, and in which order containers are stopped.
fn hooks() -> Vec<Draft> {
    vec![
        deleted("prestop-sleep", 8)
            .shows("A sleep action is not a process: 3 s without any event, then SIGTERM.")
            .runs(Part::new("app", "handle --for 1s").pre_stop_sleep(3))
            .dies("app", Verdict::Graceful, code(0))
            .spends(Shutdown, 1.0),
        deleted("prestop-signals-it", 8)
            .shows("The hook sends SIGQUIT to PID 1, as nginx -s quit does: the process exits before SIGTERM.")
            .runs(
                Part::new("app", "handle --for 1s --on 3").pre_stop("kill --pid 1 --on 3 --for 5s"),
            )
            .dies("app", Verdict::Graceful, code(0))
            // The hook itself, which dies with the PID namespace.
            .allows(ChildrenNotSignalled),
        deleted("prestop-http", 8)
            .shows("An httpGet hook runs in the kubelet: the container answers it after 2 s.")
            .on_own_network()
            .runs(Part::new("app", "serve --port 8080 --for 2s").pre_stop_http())
            .dies("app", Verdict::Graceful, code(0)),
        deleted("sidecars-last", 8)
            .shows("Sidecars get SIGTERM after all other containers have exited, the last one started first.")
            .runs(Part::new("proxy", "handle --for 500ms").sidecar())
            .runs(Part::new("logs", "handle --for 500ms").sidecar())
            .runs(Part::new("app", "handle --for 1s"))
            .dies("app", Verdict::Graceful, code(0))
            .dies("logs", Verdict::Graceful, code(0))
            .dies("proxy", Verdict::Graceful, code(0)),
        ends_by_itself("job-with-sidecar")
            .shows("The job completes, so the kubelet stops its sidecar: the pod has completed.")
            .runs(Part::new("proxy", "handle --for 500ms").sidecar())
            .runs(Part::new("app", "job --for 2s"))
            .dies("app", Verdict::Completed, code(0))
            .dies("proxy", Verdict::Graceful, code(0)),
    ]
}
