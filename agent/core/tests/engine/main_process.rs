//! Which process is the main one, and when it ended, with records missing.

use super::processes::exited;
use super::world::{
    CODE_0, Cgroups, KILLED, World, container, ids, init, inside, object, runc, running, sandbox,
    shim, signal, task,
};
use coroner_core::{
    ids::CgroupId,
    input::{
        ApiEvent, ContainerState, CriEvent, Disposition, ExitStatus, Hook, Input, KernelEvent,
        KernelFact, Loss, LossKind, ProcessRef, SignalGenerated, SignalResult, Task,
    },
    types::{MilestoneKind, Verdict},
};

/// The first container's cgroup, new or found by the scan; each test names its program.
fn cgroup_comes(world: &mut World, scanned: bool) -> CgroupId {
    let cgroup = Cgroups::of(1).own;
    let name = format!("/kubepods/pod{}/{}", ids(1).0, ids(1).2);
    world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned });
    cgroup
}

/// One lost record, a week before the container ends, hides no stop signal; one just before may.
#[test]
fn a_loss_of_last_week_hides_nothing_today() {
    let week = 7 * 24 * 3600 * 1000;
    let lost = vec![LossKind::DecidingRingFull];
    for (before, verdict, incomplete) in
        [(week, Verdict::Failed, Vec::new()), (1000, Verdict::Unknown, lost)]
    {
        let mut world = running(1);
        world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 1)));
        world.later(before).ticks(1);
        world.exits(1, ExitStatus::Code(3));
        exited(&mut world, 3);
        world.ticks(120);
        let death = &world.died[0];
        assert_eq!((death.verdict, &death.incomplete), (verdict, &incomplete));
    }
}

/// What was lost before the main process was known makes it uncertain for good.
#[test]
fn a_loss_that_may_have_hidden_the_main_process() {
    let mut world = World::in_sync();
    let cgroup = cgroup_comes(&mut world, false);
    world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 1)));
    // Its exec was lost, and it is not PID 1: the first probe passes for it.
    let probe = task(500, 500, "probe");
    world.later(1000).kernel(KernelFact::Exec { cgroup, task: probe, parent: shim() });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.later(24 * 3600 * 1000);
    let exit = |task, status| KernelFact::Exit { cgroup, task, status, parent: Some(shim()) };
    world.kernel(exit(task(500, 500, "probe"), CODE_0));
    world.kernel(exit(task(15, 15, "app"), ExitStatus::Code(3)));
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    exited(&mut world, 3);
    world.ticks(120);
    let death = &world.died[0];
    assert_eq!(death.verdict, Verdict::Unknown, "{}", death.proof.message);
    assert_eq!(death.findings, []);
}

/// A main process that is told to reload 70 times, by its own children (logrotate, a config
/// reloader) or from outside, and then fails: nothing that decides was dropped.
#[test]
fn reloads_are_no_loss() {
    let outside = ProcessRef { comm: "reloader".into(), ..shim() };
    for from in [inside(&task(500, 9, "reload")), outside] {
        for pause in [10, 60_000] {
            let mut world = running(1);
            let cgroup = Cgroups::of(1).own;
            for _ in 0..70 {
                world.later(pause).kernel(signal(cgroup, init(1), 1, from.clone()));
                let (signal, disposition) = (1, Disposition::Handler);
                let task = init(1);
                world.kernel(KernelFact::SignalDelivered { cgroup, task, signal, disposition });
            }
            world.later(1000).exits(1, ExitStatus::Code(3));
            exited(&mut world, 3);
            world.ticks(120);
            let death = &world.died[0];
            assert_eq!(death.verdict, Verdict::Failed, "{}", death.proof.message);
        }
    }
}

/// A main process may take any name, or be a program of that name, but is no child of runc; and the agent may have come
/// later than it.
#[test]
fn a_main_process_does_not_hide_behind_the_name_of_runc() {
    for name in ["runc", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]", "memfd:runc"] {
        for (from, scanned) in [("app", false), (name, false), ("app", true)] {
            let case = format!("{name} from {from}, scanned {scanned}");
            let mut world = World::in_sync();
            let (cgroup, main) = (cgroup_comes(&mut world, scanned), task(15, 15, from));
            if !scanned {
                world.kernel(KernelFact::Exec { cgroup, task: main.clone(), parent: shim() });
            }
            world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
            // A probe whose program is not there.
            let (probe, parent) = (task(50, 50, "runc:[2:INIT]"), Some(runc()));
            let status = ExitStatus::Code(1);
            world.later(1000).kernel(KernelFact::Exit { cgroup, task: probe, status, parent });
            world.later(60_000).kernel(signal(cgroup, main.clone(), 15, runc()));
            world.later(30_000).kernel(signal(cgroup, main, 9, runc()));
            let (task, parent) = (task(15, 15, name), Some(shim()));
            world.kernel(KernelFact::Exit { cgroup, task, status: KILLED, parent });
            world.kernel(KernelFact::CgroupEmpty { cgroup });
            exited(&mut world, 137);
            world.ticks(300);
            let death = &world.died[0];
            assert_eq!(death.exit, Some(KILLED), "{case}: {}", death.proof.message);
            assert_ne!(death.verdict, Verdict::Failed, "{case}: {}", death.proof.message);
        }
    }
}

/// Pods that share PIDs have no PID 1 of their own. runc may be in the cgroup already when it executes
/// itself (libcontainer/nsenter/cloned_binary.c): then the name is "exe", a descriptor's number or a memfd's.
#[test]
fn runc_that_executes_itself_is_neither_the_main_process_nor_a_hook() {
    for name in ["exe", "6", "memfd:runc_clon", "runc"] {
        let mut world = World::in_sync();
        let (cgroup, main) = (cgroup_comes(&mut world, false), task(15, 15, "app"));
        let enters = |world: &mut World, pid| {
            world.kernel(KernelFact::Exec { cgroup, task: task(pid, pid, name), parent: runc() });
            let (task, parent) = (task(pid, pid, "runc:[0:PARENT]"), Some(runc()));
            world.later(3).kernel(KernelFact::Exit { cgroup, task, status: CODE_0, parent });
        };
        enters(&mut world, 11);
        world.later(20).kernel(KernelFact::Exec { cgroup, task: main.clone(), parent: shim() });
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        let mut pod = object(1, true, world.later(1000).at());
        pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::Exec("wrapper".into()));
        world.api(ApiEvent::Applied(pod));
        enters(&mut world, 21);
        let hook = || task(25, 25, "sh");
        world.later(20).kernel(KernelFact::Exec { cgroup, task: hook(), parent: runc() });
        let (status, parent) = (ExitStatus::Code(4), Some(shim()));
        world.later(500).kernel(KernelFact::Exit { cgroup, task: hook(), status, parent });
        world.later(5).kernel(signal(cgroup, main.clone(), 15, runc()));
        let status = ExitStatus::Signal { signal: 15, core: false };
        let (task, parent) = (main, Some(shim()));
        world.later(2).kernel(KernelFact::Exit { cgroup, task, status, parent });
        world.kernel(KernelFact::CgroupEmpty { cgroup });
        exited(&mut world, 143);
        world.ticks(300);
        let death = &world.died[0];
        assert_eq!(death.verdict, Verdict::TerminatedByDefault, "{name}: {}", death.proof.message);
        assert_eq!(death.findings, [], "{name}");
        let began = death.milestone(MilestoneKind::PreStopBegan).map(|began| began.at);
        let ended = death.milestone(MilestoneKind::PreStopEnded).map(|ended| ended.at);
        assert_eq!(began.zip(ended).map(|(b, e)| e.since(b).as_millis()), Some(500), "{name}");
    }
}

/// Pods that share the host's PIDs: a process of the container kills its main process.
#[test]
fn a_kill_from_inside_was_seen() {
    for stopped in [false, true] {
        let mut world = World::in_sync();
        let (cgroup, main) = (cgroup_comes(&mut world, false), task(15, 15, "app"));
        world.kernel(KernelFact::Exec { cgroup, task: main.clone(), parent: shim() });
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        world.later(60_000);
        if stopped {
            world.kernel(signal(cgroup, main.clone(), 15, runc()));
        }
        let watchdog = inside(&task(20, 20, "watchdog"));
        world.later(100).kernel(signal(cgroup, main.clone(), 9, watchdog));
        let (task, parent) = (main, Some(shim()));
        world.kernel(KernelFact::Exit { cgroup, task, status: KILLED, parent });
        world.kernel(KernelFact::CgroupEmpty { cgroup });
        exited(&mut world, 137);
        world.ticks(300);
        let death = &world.died[0];
        let message = &death.proof.message;
        assert_eq!(death.verdict, Verdict::Failed, "{message}");
        assert!(
            message.contains("watchdog (pid 20), a process of the container itself"),
            "{message}"
        );
        assert_eq!(message.contains("100 ms after SIGTERM"), stopped, "{message}");
        assert_eq!(death.killer.as_ref().map(|by| by.comm.as_str()), Some("watchdog"));
    }
}

/// Where `sched_process_exit` has no `group_dead`, both of two threads that leave at once may find
/// themselves the last; the one that is not the leader may come before the leader has a status.
#[test]
fn of_two_threads_that_leave_at_once_the_leader_knows_the_status() {
    let mut world = running(1);
    let cgroup = Cgroups::of(1).own;
    let thread = Task { tid: 4_711, ..init(1) };
    world.kernel(KernelFact::Exit { cgroup, task: thread, status: CODE_0, parent: Some(shim()) });
    world.exits(1, ExitStatus::Code(7));
    world.later(100).stopped(1, 7);
    let mut ended = object(1, false, world.at());
    ended.phase = "Failed".into();
    world.api(ApiEvent::Applied(ended));
    world.ticks(10);
    assert_eq!(world.ended[0].containers[0].verdict, Verdict::Failed);
}

/// A container whose path names nobody: the scan finds it and what is below it, the runtime reports
/// which container it is, and its program runs two levels further down.
#[test]
fn a_program_far_below_its_containers_cgroup_is_followed() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    let (own, child, grandchild) = (CgroupId(501), CgroupId(502), CgroupId(503));
    let found = [(own, 500, "/custom/ctr"), (child, 501, "/custom/ctr/a")];
    let found = found.into_iter().chain([(grandchild, 502, "/custom/ctr/a/b")]);
    let scan: Vec<KernelFact> = found
        .map(|(cgroup, parent, name)| {
            let (parent, name) = (Some(CgroupId(parent)), name.to_owned());
            KernelFact::CgroupCreated { cgroup, parent, name, scanned: true }
        })
        .collect();
    for fact in scan.iter().cloned() {
        world.kernel(fact);
    }
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.cri(CriEvent::ContainerCgroup { container: ids(1).2, cgroup: own, path: String::new() });
    // A second look at the same directories changes nothing.
    for fact in scan {
        world.kernel(fact);
    }
    world.kernel(KernelFact::Running { cgroup: grandchild, task: init(1) });
    world.later(600_000).api(ApiEvent::Applied(object(1, true, at)));
    let exit = KernelFact::Exit {
        cgroup: grandchild,
        task: init(1),
        status: ExitStatus::Code(3),
        parent: Some(shim()),
    };
    world.later(100).kernel(exit);
    world.kernel(KernelFact::CgroupEmpty { cgroup: own });
    world.stopped(1, 3);
    world.ticks(120);
    assert_eq!(world.died[0].verdict, Verdict::Failed, "{}", world.died[0].proof.message);
}

/// systemd in a container, with more units than the engine keeps cgroups of: whether its main process
/// has moved to the first of them, to one that was evicted or to the last, its end is seen, and the report names the loss.
#[test]
fn a_main_process_is_not_lost_among_many_cgroups() {
    for (scope, lost) in [(0, 44), (150, 45), (299, 44)] {
        let mut world = running(1);
        let own = Cgroups::of(1).own;
        for n in 0..300 {
            let (cgroup, name) = (CgroupId(5_000 + n), format!("unit{n}.service"));
            let parent = Some(own);
            world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
        }
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        let cgroup = CgroupId(5_000 + scope);
        let runc = |signal| SignalGenerated {
            cgroup,
            target: init(1),
            signal,
            code: 0,
            group: true,
            result: if signal == 9 { SignalResult::Delivered } else { SignalResult::Ignored },
            sender: runc(),
            state: None,
        };
        world.later(100).kernel(KernelFact::SignalGenerated(runc(15)));
        world.later(30_000).kernel(KernelFact::SignalGenerated(runc(9)));
        let (task, parent) = (init(1), Some(shim()));
        world.kernel(KernelFact::Exit { cgroup, task, status: KILLED, parent });
        world.kernel(KernelFact::CgroupEmpty { cgroup: own });
        world.stopped(1, 137);
        let at = world.at();
        world.api(ApiEvent::Deleted(object(1, true, at)));
        world.ticks(60);
        let death = &world.died[0];
        assert_eq!(death.verdict, Verdict::StopSignalIgnored, "{scope}: {}", death.proof.message);
        assert_eq!(death.incomplete, [LossKind::EngineFull], "{scope}");
        assert_eq!(world.engine.gauges().losses[&LossKind::EngineFull], lost, "{scope}");
    }
}

/// A cgroup that empties before the container's program is moved into it: the container has not ended.
#[test]
fn a_cgroup_that_was_empty_before_its_program_ran_has_not_ended() {
    for late in [false, true] {
        let mut world = World::in_sync();
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, false, at)));
        world.cgroups_come(1);
        let cgroup = Cgroups::of(1).own;
        world.later(100);
        if !late {
            world.kernel(KernelFact::CgroupEmpty { cgroup });
        }
        let emptied = world.at();
        world.later(100);
        world.kernel(KernelFact::Exec { cgroup, task: init(1), parent: shim() });
        if late {
            // The rings are drained in turns.
            let fact = KernelFact::CgroupEmpty { cgroup };
            world.say(Input::Kernel(KernelEvent { time: emptied, fact }));
        }
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        world.ticks(120);
        assert!(world.died.is_empty(), "{}", world.died[0].proof.message);
        world.exits(1, ExitStatus::Code(3));
        exited(&mut world, 3);
        world.ticks(120);
        assert_eq!(world.died.len(), 1);
        assert_eq!(world.died[0].verdict, Verdict::Failed);
    }
}
