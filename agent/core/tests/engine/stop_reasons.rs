//! Stops whose reason is hard to find: many containers, equal names, pods that end with the stop.

use super::stops::{
    dump, entered, failed_probes, leaves, live, next, pod_with, replaced, show, side_exits, taken,
    two,
};
use super::world::*;
use coroner_core::{
    input::*,
    time::WallTime,
    types::{Cause, MilestoneKind, Verdict},
};

// G1: shared PID namespace: a neighbour's process with the name runc sends SIGHUP (a reload).
#[test]
fn g1_neighbour_named_runc() {
    let mut w = running(1);
    let mut pod = pod_with(&w, |_| {});
    two(&mut w, &mut pod);
    let (cgroup, _, t) = sidecar();
    let sender = ProcessRef {
        tgid: t.tgid,
        comm: "runc".into(),
        cgroup: Some(cgroup),
        in_container: Some(true),
    };
    w.kernel(signal(Cgroups::of(1).own, init(1), 1, sender));
    taken(&mut w, 1);
    w.later(3_600_000);
    w.exits(1, ExitStatus::Code(1));
    let n = next(&w);
    w.later(300).lists(
        vec![sandbox(1, true)],
        vec![container(1, ContainerState::Exited), n, side(ContainerState::Running)],
    );
    w.status(1, 1);
    is_replaced(pod.containers.get_mut("c").unwrap(), 1);
    w.later(200).api(ApiEvent::Applied(pod));
    w.ticks(120);
    assert_eq!((w.died[0].stop_signal, w.died[0].verdict), (15, Verdict::Failed), "\n{}", dump(&w));
}
// G2: an exec of a program with the name runc.
#[test]
fn g2_exec_of_a_program_named_runc() {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let t = entered(&mut w, 950, 95, "runc");
    w.later(5).kernel(signal(Cgroups::of(1).own, init(1), 15, inside(&t)));
    taken(&mut w, 15);
    leaves(&mut w, t, 0);
    w.later(50).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert!(!dump(&w).contains("no signal had been sent"), "\n{}", dump(&w));
}
// G3: attempt u32::MAX.
#[test]
fn g3_attempt_overflow() {
    let mut w = running(1);
    let mut c = container(1, ContainerState::Running);
    c.attempt = u32::MAX;
    w.lists(vec![sandbox(1, true)], vec![c.clone()]);
    w = World::in_sync();
    let at = w.at();
    w.api(ApiEvent::Applied(object(1, false, at)));
    w.starts(1);
    w.lists(vec![sandbox(1, true)], vec![c.clone()]);
    w.term(1, true);
    w.later(500).exits(1, CODE_0);
    c.state = ContainerState::Exited;
    w.later(300).lists(vec![sandbox(1, true)], vec![c]);
    w.status(1, 0);
    w.ticks(300);
}
// G6: Never, http liveness, `crictl stop`; the PLEG sees it 300 ms later.
#[test]
fn g6_crictl_stop_of_never() {
    let mut w = running(1);
    let mut pod = pod_with(&w, |c| c.liveness = live(None));
    pod.restart_policy = "Never".into();
    w.api(ApiEvent::Applied(pod.clone()));
    let of = Cgroups::of(1);
    let pause = task(3, 1, "pause");
    w.kernel(KernelFact::Exec { cgroup: of.pause, task: pause.clone(), parent: shim() });
    w.ticks(60);
    w.term(1, true);
    w.later(500).exits(1, CODE_0);
    w.later(300).kernel(KernelFact::Exit {
        cgroup: of.pause,
        task: pause,
        status: CODE_0,
        parent: Some(shim()),
    });
    w.cgroups_go(1);
    w.stopped(1, 0);
    shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
    pod.phase = "Succeeded".into();
    w.later(100).api(ApiEvent::Applied(pod));
    w.ticks(120);
    assert_ne!(w.ended[0].cause, Cause::Liveness, "\n{}", dump(&w));
}
// G7: one failed run of an exec probe 100 s before a stop, threshold unknown, order lost.
#[test]
fn g7_one_failed_run_proves_liveness() {
    let mut w = running(1);
    let pod = pod_with(&w, |c| c.liveness = live(Some("sh")));
    w.api(ApiEvent::Applied(pod.clone()));
    let t = entered(&mut w, 950, 95, "sh"); // kubectl exec -- sh, left with code 1
    w.later(10);
    leaves(&mut w, t, 1);
    w.later(100_000).term(1, true);
    w.later(500).exits(1, CODE_0);
    replaced(&mut w, pod);
    assert_ne!(w.died[0].cause, Cause::Liveness, "\n{}", dump(&w));
}
// H1: Never, two mains: one is killed by its liveness probe (grace 3), its status shows it, the other completes 20 s later.
#[test]
fn h1_own_report_and_the_pods_disagree() {
    let mut w = running(1);
    let mut pod = pod_with(&w, |c| {
        c.liveness =
            Some(ApiProbe { exec: Some("check".into()), grace_seconds: Some(3), failures: 3 })
    });
    pod.restart_policy = "Never".into();
    two(&mut w, &mut pod);
    failed_probes(&mut w);
    w.term(1, true);
    w.later(2900).exits(1, CODE_0);
    w.later(100).lists(
        vec![sandbox(1, true)],
        vec![container(1, ContainerState::Exited), side(ContainerState::Running)],
    );
    w.status(1, 0);
    shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
    w.later(100).api(ApiEvent::Applied(pod.clone()));
    w.ticks(20);
    side_exits(&mut w);
    w.later(200).lists(
        vec![sandbox(1, false)],
        vec![container(1, ContainerState::Exited), side(ContainerState::Exited)],
    );
    w.cri(CriEvent::ContainerExited(CriExit {
        container: sidecar().1,
        started: None,
        finished: None,
        exit_code: 0,
        reason: "Completed".into(),
    }));
    pod.phase = "Succeeded".into();
    w.later(100).api(ApiEvent::Applied(pod));
    w.ticks(120);
    let inpod = w.ended[0].containers.iter().map(show).collect::<Vec<_>>().join("\n");
    let own = w.died.iter().find(|d| d.name == "c").unwrap();
    let its = w.ended[0].containers.iter().find(|d| d.name == "c").unwrap();
    assert_eq!(
        (own.grace_seconds, own.cause),
        (its.grace_seconds, its.cause),
        "\n{}\nIN POD:\n{inpod}",
        dump(&w)
    );
}
/// `kubectl delete --now`: the kubelet gives 2 s, and the share of the grace is a share of that.
#[test]
fn the_grace_beside_its_share_is_the_one_that_applied() {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let due = WallTime(w.at().0 as i64 + 1_000_000_000);
    let (deletion_timestamp, deletion_grace_seconds) = (Some(due), Some(1));
    let pod = ApiPod { deletion_timestamp, deletion_grace_seconds, ..pod };
    w.api(ApiEvent::Applied(pod.clone()));
    w.term(1, true);
    w.later(1_000).exits(1, CODE_0);
    w.stopped(1, 0);
    w.cgroups_go(1);
    w.api(ApiEvent::Deleted(pod));
    w.ticks(120);
    let died = &w.ended[0].containers[0];
    assert_eq!(
        (w.ended[0].grace_seconds, died.grace_seconds),
        (Some(1), Some(2)),
        "\n{}",
        dump(&w)
    );
    assert!(died.grace_ratio.is_some_and(|ratio| (0.4..0.6).contains(&ratio)), "\n{}", dump(&w));
}
/// A sleep in the spec leaves no trace: it is not said to have run where nobody runs it.
#[test]
fn a_hook_that_nobody_runs_is_not_reported() {
    let told = |end: fn(&mut ApiContainer)| {
        let mut w = running(1);
        let mut pod = pod_with(&w, |c| c.pre_stop = Some(Hook::Sleep(1)));
        w.api(ApiEvent::Applied(pod.clone()));
        w.later(10_000).term(1, true);
        w.later(500).exits(1, CODE_0);
        end(pod.containers.get_mut("c").unwrap());
        w.later(300).api(ApiEvent::Applied(pod.clone()));
        replaced(&mut w, pod);
        let died = &w.died[0];
        let slept = died.milestone(MilestoneKind::PreStopBegan).is_some();
        (died.cause, died.verdict, slept, died.pre_stop.is_some())
    };
    let found_ended = |c: &mut ApiContainer| shows_its_end(c, 1);
    let restarted_with_all = |c: &mut ApiContainer| {
        (c.id, c.restarts) = (None, 1);
        c.waiting = Some("RestartingAllContainers".into());
    };
    let at_once = |_: &mut ApiContainer| {};
    assert_eq!(told(found_ended), (Cause::Restart, Verdict::Graceful, true, true));
    assert_eq!(
        told(restarted_with_all),
        (Cause::RestartAllContainers, Verdict::Graceful, false, true)
    );
    assert_eq!(told(at_once), (Cause::Restart, Verdict::Graceful, true, true));
}
/// `kubectl delete --now` 2 s after a deletion with 30 s: the kubelet gives 2 s more, not 1. In a list, too, it counts
/// from then, although the apiserver keeps when the first request was made.
#[test]
fn a_shortened_grace_is_raised_to_the_floor() {
    [false, true].into_iter().for_each(shortened);
}

fn shortened(is_listed: bool) {
    let mut w = running(1);
    let pod = pod_with(&w, |_| {});
    w.api(ApiEvent::Applied(pod.clone()));
    let asked = w.at().0 as i64;
    let deleted = |seconds: i64| {
        let due = WallTime(asked + seconds * 1_000_000_000);
        let (deletion_timestamp, deletion_grace_seconds) = (Some(due), Some(seconds));
        ApiPod { deletion_timestamp, deletion_grace_seconds, ..pod.clone() }
    };
    w.api(ApiEvent::Applied(deleted(30)));
    w.term(1, true);
    let second = deleted(1);
    w.later(2_000).api(if is_listed {
        ApiEvent::Snapshot { pods: vec![second.clone()] }
    } else {
        ApiEvent::Applied(second.clone())
    });
    w.later(2_000).exits(1, CODE_0);
    w.stopped(1, 0);
    w.cgroups_go(1);
    w.api(ApiEvent::Deleted(second));
    w.ticks(120);
    let ratio = w.ended[0].containers[0].grace_ratio;
    assert!(ratio.is_some_and(|ratio| (0.95..1.05).contains(&ratio)), "{ratio:?}\n{}", dump(&w));
}
