//! Stops of containers as kubelets, runtimes and people really make them, and what must not be said of them. Most are from a
//! review that found it said.
use super::world::*;
use coroner_core::{
    ids::Tgid,
    input::*,
    report::ContainerDeath,
    types::{Cause, Verdict},
};

pub(crate) fn show(d: &ContainerDeath) -> String {
    format!(
        "{}: {:?} / {:?} {:?} grace {:?} ratio {:?}\n   {}\n   {}",
        d.name,
        d.verdict,
        d.cause,
        d.cause_source,
        d.grace_seconds,
        d.grace_ratio,
        d.proof.message,
        d.cause_message
    )
}
pub(crate) fn dump(w: &World) -> String {
    let mut s = String::new();
    for d in &w.died {
        s += &format!("DIED {}\n", show(d));
    }
    for e in &w.ended {
        s += &format!("POD {:?} {}\n", e.cause, e.cause_message);
    }
    s
}
pub(crate) fn live(exec: Option<&str>) -> Option<ApiProbe> {
    Some(ApiProbe { exec: exec.map(Into::into), grace_seconds: None, failures: 3 })
}
pub(crate) fn pod_with(world: &World, change: impl Fn(&mut ApiContainer)) -> ApiPod {
    let mut pod = object(1, false, world.at());
    pod.restart_policy = "Always".into();
    let c = pod.containers.get_mut("c").unwrap();
    (c.id, c.started) = (Some(ids(1).2), Some(true));
    change(c);
    pod
}
pub(crate) fn entered(world: &mut World, pid: u32, ns: u32, comm: &str) -> Task {
    let t = task(pid, ns, comm);
    world.kernel(KernelFact::Exec { cgroup: Cgroups::of(1).own, task: t.clone(), parent: shim() });
    t
}
pub(crate) fn leaves(world: &mut World, t: Task, code: u8) {
    world.kernel(KernelFact::Exit {
        cgroup: Cgroups::of(1).own,
        task: t,
        status: ExitStatus::Code(code),
        parent: Some(shim()),
    });
}
pub(crate) fn failed_probes(world: &mut World) {
    for n in 0..3 {
        let t = entered(world, 900 + n, 90 + n, "check");
        world.later(50);
        leaves(world, t, 1);
        world.later(9_950);
    }
}
pub(crate) fn taken(world: &mut World, sig: u8) {
    let k = KernelFact::SignalDelivered {
        cgroup: Cgroups::of(1).own,
        task: init(1),
        signal: sig,
        disposition: Disposition::Handler,
    };
    world.kernel(k);
}
pub(crate) fn next(world: &World) -> CriContainer {
    let _ = world;
    let mut c = container(1, ContainerState::Running);
    c.id = "c".repeat(64).as_str().into();
    c.attempt = 1;
    c
}
pub(crate) fn shows_replacement(world: &mut World, mut pod: ApiPod) {
    let n = next(world);
    world.later(300).lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited), n]);
    world.status(1, 0);
    is_replaced(pod.containers.get_mut("c").unwrap(), 1);
    world.later(200).api(ApiEvent::Applied(pod));
}
pub(crate) fn replaced(world: &mut World, pod: ApiPod) {
    shows_replacement(world, pod);
    world.ticks(120);
}

// F1: a liveness kill whose preStop hook makes PID 1 leave (nginx -s quit).
#[test]
fn f1_hook_of_a_liveness_kill() {
    let mut w = running(1);
    let pod = pod_with(&w, |c| {
        c.liveness = live(Some("check"));
        c.pre_stop = Some(Hook::Exec("nginx".into()));
    });
    w.api(ApiEvent::Applied(pod.clone()));
    failed_probes(&mut w);
    let hook = entered(&mut w, 950, 95, "nginx");
    w.later(20).kernel(signal(Cgroups::of(1).own, init(1), 3, inside(&hook)));
    taken(&mut w, 3);
    w.later(10);
    leaves(&mut w, hook, 0);
    w.later(50).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert_eq!(w.died[0].cause, Cause::Liveness, "\n{}", dump(&w));
}
// F1b: the hook runs `kill 1`, program handles SIGTERM slowly, then runc sends SIGTERM too.
#[test]
fn f1b_hook_kills_1_and_runc_too() {
    let mut w = running(1);
    let pod = pod_with(&w, |c| {
        c.liveness = live(Some("check"));
        c.pre_stop = Some(Hook::Exec("sh".into()));
    });
    w.api(ApiEvent::Applied(pod.clone()));
    failed_probes(&mut w);
    let hook = entered(&mut w, 950, 95, "sh");
    w.later(20).kernel(signal(Cgroups::of(1).own, init(1), 15, inside(&hook)));
    taken(&mut w, 15);
    w.later(10);
    leaves(&mut w, hook, 0);
    w.later(50).term(1, true);
    w.later(500).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert_eq!(w.died[0].cause, Cause::Liveness, "\n{}", dump(&w));
}
// F3: the kubelet (or containerd) restarts while a liveness stop is under way.
#[test]
fn f3_kubelet_restart_during_liveness_stop() {
    let mut w = running(1);
    let mut pod = pod_with(&w, |c| {
        c.liveness = live(Some("check"));
    });
    w.api(ApiEvent::Applied(pod.clone()));
    failed_probes(&mut w);
    w.term(1, true);
    w.later(2000).exits(1, CODE_0);
    w.later(1000).cri(CriEvent::Connected { runtime: "test".into(), process: None });
    w.later(100).lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    w.status(1, 0);
    shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
    w.later(200).api(ApiEvent::Applied(pod.clone()));
    replaced(&mut w, pod);
    assert_eq!(w.died[0].cause, Cause::Liveness, "\n{}", dump(&w));
}
// F4: STOPSIGNAL SIGKILL.
#[test]
fn f4_stopsignal_sigkill() {
    let mut w = running(1);
    let pod = pod_with(&w, |c| {
        c.liveness = live(Some("check"));
        c.stop_signal = Some(9);
    });
    w.api(ApiEvent::Applied(pod.clone()));
    failed_probes(&mut w);
    w.kill(1);
    w.exits(1, KILLED);
    replaced(&mut w, pod);
    assert_eq!(w.died[0].cause, Cause::Liveness, "\n{}", dump(&w));
    assert!(w.died[0].proof.message.ends_with("which is its stop signal."), "{}", dump(&w));
}
// F5: a thread dump (jcmd, jstack: SIGQUIT) 20 s before a crash.
#[test]
fn f5_thread_dump_before_a_crash() {
    for code in [ExitStatus::Code(1), ExitStatus::Signal { signal: 11, core: false }] {
        let mut w = running(1);
        let pod = pod_with(&w, |_| {});
        w.api(ApiEvent::Applied(pod.clone()));
        for n in 0..5 {
            // monitoring does so every 10 s
            let t = entered(&mut w, 950 + n, 95 + n, "jcmd");
            w.later(20).kernel(signal(Cgroups::of(1).own, init(1), 3, inside(&t)));
            taken(&mut w, 3);
            leaves(&mut w, t, 0);
            w.later(9_980);
        }
        w.exits(1, code);
        replaced(&mut w, pod);
        println!("{}", dump(&w));
        assert_ne!(w.died[0].cause, Cause::ExternalStop, "\n{}", dump(&w));
    }
}
// F5b: the same, then SIGKILL at once by the runtime.
#[test]
fn f5b_thread_dump_before_a_sigkill() {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let t = entered(&mut w, 950, 95, "jcmd");
    w.later(20).kernel(signal(Cgroups::of(1).own, init(1), 3, inside(&t)));
    taken(&mut w, 3);
    leaves(&mut w, t, 0);
    w.later(9_980).kill(1);
    w.exits(1, KILLED);
    replaced(&mut w, pod);
    assert_eq!(w.died[0].verdict, Verdict::ForceKilled, "\n{}", dump(&w));
}
pub(crate) fn two(w: &mut World, pod: &mut ApiPod) {
    pod.containers.insert(
        "s".into(),
        ApiContainer { id: Some(sidecar().1), started: Some(true), ..ApiContainer::default() },
    );
    let (cgroup, id, t) = sidecar();
    w.kernel(KernelFact::CgroupCreated {
        cgroup,
        parent: Some(Cgroups::of(1).pod),
        name: id.to_string(),
        scanned: false,
    });
    w.kernel(KernelFact::Exec { cgroup, task: t, parent: shim() });
    w.lists(
        vec![sandbox(1, true)],
        vec![container(1, ContainerState::Running), side(ContainerState::Running)],
    );
    w.api(ApiEvent::Applied(pod.clone()));
    w.ticks(2);
}
pub(crate) fn side_exits(w: &mut World) {
    let (cgroup, _, t) = sidecar();
    w.kernel(KernelFact::Exit { cgroup, task: t, status: CODE_0, parent: Some(shim()) });
    w.kernel(KernelFact::CgroupEmpty { cgroup });
    w.kernel(KernelFact::CgroupRemoved { cgroup });
}
// F6: restartPolicy Never, two main containers: one completes, the other is killed by an exec.
#[test]
fn f6_cause_of_one_is_given_to_the_other() {
    for completes_first in [true, false] {
        let mut w = running(1);
        let mut pod = pod_with(&w, |_| {});
        pod.restart_policy = "Never".into();
        two(&mut w, &mut pod);
        if completes_first {
            side_exits(&mut w);
            w.later(5_000);
        }
        let t = entered(&mut w, 950, 95, "kill");
        w.later(1).kernel(signal(Cgroups::of(1).own, init(1), 15, inside(&t)));
        taken(&mut w, 15);
        w.later(10).exits(1, CODE_0);
        if !completes_first {
            w.later(20_000);
            side_exits(&mut w);
        }
        w.later(200).lists(
            vec![sandbox(1, false)],
            vec![container(1, ContainerState::Exited), side(ContainerState::Exited)],
        );
        w.status(1, 0);
        w.cri(CriEvent::ContainerExited(CriExit {
            container: sidecar().1,
            started: None,
            finished: None,
            exit_code: 0,
            reason: "Completed".into(),
        }));
        shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
        pod.phase = "Succeeded".into();
        w.later(100).api(ApiEvent::Applied(pod));
        w.ticks(120);
        let side = w.died.iter().find(|d| d.name == "s").unwrap();
        assert_eq!(side.cause, Cause::Completed, "\n{}", dump(&w));
    }
}
// F8: container-level restartPolicy Never in a pod with Always; two mains; exec liveness fails.
#[test]
fn f8_container_restart_policy_never() {
    let mut w = running(1);
    let mut pod = pod_with(&w, |c| c.liveness = live(Some("check")));
    two(&mut w, &mut pod);
    failed_probes(&mut w);
    w.term(1, true);
    w.later(500).exits(1, CODE_0);
    w.later(300).lists(
        vec![sandbox(1, true)],
        vec![container(1, ContainerState::Exited), side(ContainerState::Running)],
    );
    w.status(1, 0);
    shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
    w.later(200).api(ApiEvent::Applied(pod));
    w.ticks(120);
    assert_eq!(w.died[0].cause, Cause::Liveness, "\n{}", dump(&w));
}
// F10: kubectl exec POD -- sh -c 'kill 1 &': the subshell has forked and executed nothing.
#[test]
fn f10_subshell_of_an_exec() {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let sh = entered(&mut w, 950, 95, "sh");
    w.later(5).kernel(signal(Cgroups::of(1).own, init(1), 15, inside(&task(951, 96, "sh"))));
    taken(&mut w, 15);
    leaves(&mut w, sh, 0);
    w.later(50).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert!(!dump(&w).contains("no signal had been sent"), "\n{}", dump(&w));
}
// F11: a runtime of another name.
#[test]
fn f11_sysbox() {
    // Which signal it is to send, it says itself.
    for stop_signal in [15, 37] {
        let mut w = running(1);
        let pod = pod_with(&w, |c| c.liveness = live(Some("check")));
        w.api(ApiEvent::Applied(pod.clone()));
        w.cri(CriEvent::StopSignal { container: ids(1).2, signal: stop_signal });
        failed_probes(&mut w);
        let sender = ProcessRef { comm: "sysbox-runc".into(), ..shim() };
        w.kernel(signal(Cgroups::of(1).own, init(1), stop_signal, sender));
        taken(&mut w, stop_signal);
        w.later(500).exits(1, CODE_0);
        replaced(&mut w, pod);
        let died = &w.died[0];
        assert_eq!(
            (died.cause, died.verdict),
            (Cause::Liveness, Verdict::Graceful),
            "{}",
            dump(&w)
        );
    }
}
// F12: a pid of a probe that has ended is used again by the container's own process.
#[test]
fn f12_pid_reuse() {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let t = entered(&mut w, 950, 95, "check");
    w.later(10);
    leaves(&mut w, t, 0);
    w.later(86_400_000);
    let worker = task(950, 500, "worker");
    w.kernel(KernelFact::Exec {
        cgroup: Cgroups::of(1).own,
        task: worker.clone(),
        parent: inside(&init(1)),
    });
    w.later(100).kernel(signal(Cgroups::of(1).own, init(1), 15, inside(&worker)));
    taken(&mut w, 15);
    w.later(50).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert_ne!(w.died[0].cause, Cause::ExternalStop, "\n{}", dump(&w));
}
// F14: a program exits after a SIGHUP from an exec. It may have reloaded: the signal is named, and explains nothing.
#[test]
fn f14_sighup() {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let t = entered(&mut w, 950, 95, "kill");
    w.later(5).kernel(signal(Cgroups::of(1).own, init(1), 1, inside(&t)));
    taken(&mut w, 1);
    w.later(10).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert_eq!(w.died[0].verdict, Verdict::Completed, "\n{}", dump(&w));
    let told = "SIGHUP by kill (pid 950, which had entered the container) had been sent to it 10 ms before";
    assert!(w.died[0].proof.message.contains(told), "\n{}", dump(&w));
}

/// Neither the kubelet nor a runtime: an administrator's shell. Its SIGINT is handled and ends the program, so it is the
/// stop signal, whatever the spec has.
#[test]
fn a_signal_of_an_administrators_shell_is_an_external_stop() {
    for number in [15, 2] {
        let mut w = running(1);
        let pod = pod_with(&w, |_| {});
        w.api(ApiEvent::Applied(pod.clone()));
        let bash = ProcessRef { tgid: Tgid(4242), comm: "bash".into(), ..shim() };
        w.kernel(signal(Cgroups::of(1).own, init(1), number, bash));
        taken(&mut w, number);
        w.later(10).exits(1, CODE_0);
        replaced(&mut w, pod);
        let death = &w.died[0];
        assert_eq!(
            (death.verdict, death.cause),
            (Verdict::Graceful, Cause::ExternalStop),
            "{}",
            dump(&w)
        );
        assert!(death.cause_message.contains("bash (pid 4242)"), "{}", death.cause_message);
    }
}
