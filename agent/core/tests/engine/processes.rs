//! Which of a container's processes is the main one, and what was done to it.

use super::world::{
    CODE_0, Cgroups, KILLED, World, container, ids, init, inside, object, runc, running, sandbox,
    shim, signal, task,
};
use coroner_core::{
    ids::Tgid,
    input::{
        ApiEvent, ContainerState, CriEvent, CriExit, Disposition, ExitStatus, Hook, KernelFact,
        ProcessRef, SignalGenerated, SignalResult, TargetState, Task,
    },
    types::{FindingKind, MilestoneKind, Verdict},
};

/// SIGKILL that the kernel sends by itself, on behalf of a process of the first container.
fn by_kernel(target: Task, sender: &Task, result: SignalResult) -> KernelFact {
    let state = TargetState {
        unkillable: false,
        group_exit: true,
        disposition: Disposition::Default,
        blocked: false,
        pending: 0,
    };
    KernelFact::SignalGenerated(SignalGenerated {
        cgroup: Cgroups::of(1).own,
        target,
        signal: 9,
        code: 0x80,
        group: true,
        result,
        sender: inside(sender),
        state: Some(state),
    })
}

/// The first container has exited; its pod goes on.
pub(crate) fn exited(world: &mut World, code: i32) {
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, code);
}

#[test]
fn a_stop_signal_is_not_lost_among_the_containers_own() {
    let mut world = running(1);
    let own = Cgroups::of(1).own;
    let child = |n: u32| task(1000 + n, 10 + n, "worker");
    let master = || inside(&init(1));
    for n in 0..40 {
        world.later(1000).kernel(signal(own, child(n), 15, master()));
    } // recycled workers
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(100).term(1, true);
    for n in 40..80 {
        world.kernel(signal(own, child(n), 15, master()));
    } // the master stops its workers
    world.later(30_000).kill(1);
    world.exits(1, ExitStatus::Signal { signal: 9, core: false });
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 137);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    assert_eq!(world.died[0].verdict, Verdict::GraceExceeded, "{}", world.died[0].proof.message);
}

#[test]
fn workers_that_were_signalled_are_not_forgotten() {
    let mut world = running(1);
    let own = Cgroups::of(1).own;
    let child = |n: u32| task(1000 + n, 10 + n, "worker");
    let master = || inside(&init(1));
    for n in 0..1100 {
        world.later(100).kernel(signal(own, child(n), 15, master()));
    }
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(100).term(1, true);
    world.kernel(signal(own, child(2000), 15, master()));
    world.later(1000).kernel(KernelFact::Exit {
        cgroup: own,
        task: init(1),
        status: CODE_0,
        parent: Some(shim()),
    });
    let KernelFact::SignalGenerated(mut s) = signal(own, child(2000), 9, master()) else {
        unreachable!()
    };
    s.code = 0x80;
    world.kernel(KernelFact::SignalGenerated(s));
    world.kernel(KernelFact::CgroupEmpty { cgroup: own });
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    assert!(world.died[0].findings.is_empty(), "{:?}", world.died[0].findings);
}

/// A probe was killed once, and since then the end of each child is told. Whoever comes from outside
/// later on is seen to end all the same.
#[test]
fn a_hook_is_seen_to_end_after_any_number_of_children() {
    let mut world = running(1);
    let own = Cgroups::of(1).own;
    let ends = |task: Task, parent| KernelFact::Exit { cgroup: own, task, status: CODE_0, parent };
    for n in 0..5000 {
        world.kernel(ends(task(1000 + n, 10 + n, "worker"), Some(inside(&init(1)))));
    }
    let mut pod = object(1, true, world.at());
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::Exec("sh".into()));
    world.api(ApiEvent::Applied(pod.clone()));
    let hook = task(9000, 8000, "sh");
    world.later(100).kernel(KernelFact::Exec { cgroup: own, task: hook.clone(), parent: shim() });
    world.later(200).kernel(ends(hook, Some(shim())));
    for n in 0..5000 {
        world.kernel(ends(task(10_000 + n, 10 + n, "worker"), Some(inside(&init(1)))));
    }
    world.later(10).term(1, true);
    world.later(100).exits(1, CODE_0);
    world.stopped(1, 0);
    world.later(100).api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let died = &world.died[0];
    assert!(died.findings.is_empty(), "{:?}", died.findings);
    assert!(died.milestones.iter().any(|m| m.kind == MilestoneKind::PreStopEnded), "{died:?}");
    assert_eq!(died.verdict, Verdict::Graceful, "{}", died.proof.message);
}

#[test]
fn a_nested_namespace_does_not_usurp_the_main_process() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.cgroups_come(1);
    let of = Cgroups::of(1);
    let main = Task { ns_pid: Some(7), ..init(1) }; // shareProcessNamespace
    world.kernel(KernelFact::Exec { cgroup: of.own, task: main.clone(), parent: shim() });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(100).kernel(signal(of.own, main.clone(), 15, runc()));
    world.kernel(KernelFact::SignalDelivered {
        cgroup: of.own,
        task: main.clone(),
        signal: 15,
        disposition: Disposition::Handler,
    });
    // it stops its sandboxed helper, which is PID 1 of a namespace of its own (bwrap, unshare -p)
    let nested =
        Task { tgid: Tgid(900), tid: 900, ns_pid: Some(1), started: None, comm: "bwrap".into() };
    world.kernel(signal(
        of.own,
        nested.clone(),
        9,
        ProcessRef {
            tgid: main.tgid,
            comm: "app".into(),
            cgroup: Some(of.own),
            in_container: Some(true),
        },
    ));
    world.kernel(KernelFact::Exit {
        cgroup: of.own,
        task: nested,
        status: ExitStatus::Signal { signal: 9, core: false },
        parent: None,
    });
    world.later(100).kernel(KernelFact::Exit {
        cgroup: of.own,
        task: main,
        status: CODE_0,
        parent: Some(shim()),
    });
    world.kernel(KernelFact::CgroupEmpty { cgroup: of.own });
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    assert_eq!(world.died[0].verdict, Verdict::Graceful, "{}", world.died[0].proof.message);
}

#[test]
fn a_program_named_like_a_runtime_is_seen() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.starts(1);
    let t = Task { comm: "crunch-numbers".into(), ..init(1) };
    let cgroup = Cgroups::of(1).own;
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.later(1000).kernel(KernelFact::Exit {
        cgroup,
        task: t,
        status: CODE_0,
        parent: Some(shim()),
    });
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    let mut o = object(1, false, world.at());
    o.phase = "Succeeded".into();
    world.api(ApiEvent::Applied(o));
    world.ticks(60);
    assert_eq!(world.died[0].verdict, Verdict::Completed, "{}", world.died[0].proof.message);
}

#[test]
fn a_program_that_could_not_start_is_told() {
    // runc's init never became the container's program: exec format error, no such file.
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.starts(2); // unrelated
    world.cgroups_come(1);
    let of = Cgroups::of(1);
    let t = Task { comm: "runc:[2:INIT]".into(), ..init(1) };
    world.kernel(KernelFact::Exit {
        cgroup: of.own,
        task: t,
        status: ExitStatus::Code(1),
        parent: Some(shim()),
    });
    world.kernel(KernelFact::CgroupEmpty { cgroup: of.own });
    world.kernel(KernelFact::CgroupRemoved { cgroup: of.own });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.cri(CriEvent::ContainerExited(CriExit {
        container: ids(1).2,
        started: None,
        finished: None,
        exit_code: 128,
        reason: "StartError".into(),
    }));
    world.ticks(90);
    assert_ne!(world.died[0].verdict, Verdict::Unknown, "{}", world.died[0].proof.message);
}

#[test]
fn a_probe_is_not_the_hook_of_a_restart() {
    let mut world = running(1);
    let own = Cgroups::of(1).own;
    let sh = |n: u32| Task {
        tgid: Tgid(500 + n),
        tid: 500 + n,
        ns_pid: Some(50 + n),
        started: None,
        comm: "sh".into(),
    };
    let mut o = object(1, false, world.at());
    {
        let c = o.containers.get_mut("c").unwrap();
        c.pre_stop = Some(Hook::Exec("sh".into()));
        c.liveness = Some(coroner_core::input::ApiProbe::default());
    }
    world.api(ApiEvent::Applied(o));
    for n in 0..3 {
        world.kernel(KernelFact::Exec { cgroup: own, task: sh(n), parent: shim() });
        world.later(10).kernel(KernelFact::Exit {
            cgroup: own,
            task: sh(n),
            status: ExitStatus::Code(1),
            parent: Some(shim()),
        });
        world.later(9_990);
    }
    world.kernel(KernelFact::Exec { cgroup: own, task: sh(9), parent: shim() }); // the hook
    let hook = world.at();
    world.later(3000).kernel(KernelFact::Exit {
        cgroup: own,
        task: sh(9),
        status: CODE_0,
        parent: Some(shim()),
    });
    world.later(10).term(1, true);
    world.later(100).exits(1, CODE_0);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(250);
    let began = world.died[0].milestone(MilestoneKind::PreStopBegan).unwrap().at;
    assert_eq!(began, hook, "{} s off", hook.since(began).as_secs());
}

/// containerd before 2.0 does not tell the image's STOPSIGNAL.
#[test]
fn an_images_stop_signal_is_what_the_runtime_sends() {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    let cgroup = Cgroups::of(1).own;
    world.later(100).kernel(signal(cgroup, init(1), 3, runc()));
    let (task, disposition) = (init(1), Disposition::Handler);
    world.kernel(KernelFact::SignalDelivered { cgroup, task, signal: 3, disposition });
    world.later(500).exits(1, CODE_0);
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    let death = &world.died[0];
    assert_eq!((death.verdict, death.stop_signal), (Verdict::Graceful, 3));
}

/// memory.oom.group (Kubernetes 1.28 on cgroup v2): the kernel marks every process, the main one
/// among the first.
#[test]
fn an_oom_group_kill_of_many_processes() {
    let mut world = running(1);
    let worker = task(100, 7, "worker");
    let cgroup = Some(Cgroups::of(1).own);
    let others = (101..120).map(|n| task(n, n, "worker"));
    for victim in [worker.clone(), init(1)].into_iter().chain(others) {
        let pid = victim.tgid.0;
        world.kernel(by_kernel(victim, &worker, SignalResult::Delivered));
        world.kernel(KernelFact::OomVictim { cgroup, pid });
    }
    world.exits(1, KILLED);
    exited(&mut world, 137);
    world.ticks(120);
    let death = &world.died[0];
    assert_eq!(death.verdict, Verdict::OomKilled, "{}", death.proof.message);
}

/// Linux 5.10 names an OOM victim by pid only; a child of the main process was the victim, and
/// containerd says OOMKilled for the container. Whoever asked for the memory is the sender.
#[test]
fn an_oom_killed_child_on_5_10_is_no_contradiction() {
    let child = task(500, 9, "worker");
    for sender in [child.clone(), init(1)] {
        let mut world = running(1);
        world.kernel(by_kernel(child.clone(), &sender, SignalResult::Delivered));
        world.kernel(KernelFact::OomVictim { cgroup: None, pid: 500 });
        world.later(500).exits(1, ExitStatus::Code(1));
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
        world.cri(CriEvent::ContainerExited(CriExit {
            container: ids(1).2,
            started: None,
            finished: None,
            exit_code: 1,
            reason: "OOMKilled".into(),
        }));
        world.ticks(120);
        assert_eq!(world.died[0].findings, []);
    }
}

/// PID 1 that does not reap: the kernel "kills" its zombies too, to no effect.
#[test]
fn zombies_were_not_left_without_a_signal() {
    let cgroup = Cgroups::of(1).own;
    for (result, left) in [(SignalResult::Ignored, 0), (SignalResult::Delivered, 1)] {
        let mut world = running(1);
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        world.later(300).term(1, true);
        let (task_1, status) = (init(1), CODE_0);
        let exit = KernelFact::Exit { cgroup, task: task_1, status, parent: Some(shim()) };
        world.later(100).kernel(exit);
        world.kernel(by_kernel(task(500, 9, "sh"), &init(1), result));
        world.kernel(KernelFact::CgroupEmpty { cgroup });
        world.kernel(KernelFact::CgroupRemoved { cgroup });
        world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
        world.status(1, 0);
        world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
        world.ticks(60);
        let death = &world.ended[0].containers[0];
        let found =
            death.findings.iter().filter(|f| f.kind == FindingKind::ChildrenNotSignalled).count();
        assert_eq!((found, death.children_killed), (left, left as u32));
    }
}
