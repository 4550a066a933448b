//! Which of a container's processes is the main one, what was done to it, and what ended with it.

use coroner_core::testkit::*;

fn own() -> CgroupId {
    Cgroups::of(1).own
}

/// A container whose main process is this one, perhaps not PID 1 of its own.
fn with_main(main: &Task) -> World {
    let mut w = World::in_sync();
    w.cgroups_come(1).kernel(exec(own(), main.clone())).list();
    w
}

/// The main process exits, and the pod goes on.
fn ends<'a>(w: &'a mut World, main: &Task, status: ExitStatus) -> &'a mut World {
    w.is_over(1, status).kernel(exit(own(), main.clone(), status)).empties(1).list().ticks(300)
}

/// A stop signal is not lost among those that the container's master sends its workers, however many, and a worker that
/// was sent one was not left without.
#[test]
fn signals_of_the_containers_own_hide_nothing() {
    let worker = |n| task(1000 + n, 10 + n, "worker");
    let stops = |w: &mut World, workers: std::ops::Range<u32>| {
        for n in workers {
            w.later(100).kernel(signal(own(), worker(n), 15, inside(&init(1))));
        }
    };
    let mut w = World::running(1);
    stops(&mut w, 0..40);
    stops(w.delete(1).later(100).term(1), 40..80);
    w.later(22_000).kill(1).exits(1, KILLED).settles(1).dies(1, "grace_exceeded api_delete");

    let mut w = World::running(1);
    stops(&mut w, 0..1100);
    stops(w.delete(1).later(100).term(1), 2000..2001);
    w.later(1000).main_exits(1, CODE_0);
    w.sends(Signal::to(own(), worker(2000), 9).by_kernel(inside(&init(1)))).empties(1);
    w.settles(1).dies(1, "graceful api_delete");
}

/// A probe was killed once, and since then the exit of each child is recorded.
#[test]
fn a_hook_is_seen_to_end_after_any_number_of_children() {
    let mut w = World::running(1);
    let children = |w: &mut World, from: u32| {
        for n in 0..5000 {
            let (task, parent) = (task(from + n, 10 + n, "worker"), Some(inside(&init(1))));
            w.kernel(KernelFact::Exit { cgroup: own(), task, status: CODE_0, parent });
        }
    };
    children(&mut w, 1000);
    w.status_of(1).pre_stop = exec_hook("sh");
    w.delete(1).later(100).enters(1, 9000, "sh").later(200).leaves(1, 9000, "sh", 0);
    children(&mut w, 10_000);
    w.later(10).term(1).later(100).exits(1, CODE_0).settles(1);
    w.dies(1, "graceful api_delete");
    assert!(w.death(1).milestone(MilestoneKind::PreStopEnded).is_some(), "{w}");
}

/// shareProcessNamespace; it stops a helper that is PID 1 of a namespace of its own (bwrap, unshare -p).
#[test]
fn a_nested_namespace_does_not_usurp_the_main_process() {
    let (main, nested) = (task(15, 7, "app"), task(900, 1, "bwrap"));
    let mut w = with_main(&main);
    w.delete(1).later(100).sends(Signal::to(own(), main.clone(), 15).handler());
    w.kernel(taken(own(), main.clone(), 15));
    w.sends(Signal::to(own(), nested.clone(), 9).by(inside(&main)));
    w.kernel(KernelFact::Exit { cgroup: own(), task: nested, status: KILLED, parent: None });
    w.later(100).is_over(1, CODE_0).kernel(exit(own(), main, CODE_0)).empties(1).settles(1);
    w.dies(1, "graceful api_delete");
}

/// runc's init never became the container's program: exec format error, no such file.
#[test]
fn a_program_that_could_not_start_is_reported() {
    let mut w = World::in_sync();
    let init = task(15, 1, "runc:[2:INIT]");
    w.applied(1).cgroups_come(1).is_over(1, ExitStatus::Code(1));
    w.kernel(exit(own(), init, ExitStatus::Code(1))).empties(1).lists_all();
    w.status(1, 128, "StartError").ticks(90).dies(1, "failed completed");
}

#[test]
fn a_probe_is_not_the_hook_of_a_restart() {
    let mut w =
        World::named(|c| (c.pre_stop, c.liveness) = (exec_hook("sh"), Some(ApiProbe::default())));
    for pid in 500..503 {
        w.enters(1, pid, "sh").later(10).leaves(1, pid, "sh", 1).later(9_990);
    }
    let hook = w.at();
    w.enters(1, 509, "sh").later(3000).leaves(1, 509, "sh", 0);
    w.later(10).term(1).later(100).exits(1, CODE_0).list().ticks(250);
    assert_eq!(w.death(1).milestone(MilestoneKind::PreStopBegan).unwrap().at, hook);
}

/// containerd before 2.0 does not state the image's STOPSIGNAL.
#[test]
fn an_images_stop_signal_is_what_the_runtime_sends() {
    let mut w = World::running(1);
    w.delete(1).later(100).signals(1, 3, runc()).later(500).exits(1, CODE_0).settles(1);
    w.dies(1, "graceful api_delete");
    assert_eq!(w.death(1).stop_signal, 3);
}

/// memory.oom.group (Kubernetes 1.28): the kernel marks every process, the main one among the first.
#[test]
fn an_oom_group_kill_of_many_processes() {
    let mut w = World::running(1);
    let worker = task(100, 7, "worker");
    let others = (101..120).map(|n| task(n, n, "worker"));
    for victim in [worker.clone(), init(1)].into_iter().chain(others) {
        let (cgroup, pid) = (Some(own()), victim.tgid.0);
        w.sends(Signal::to(own(), victim, 9).by_kernel(inside(&worker)));
        w.kernel(KernelFact::OomVictim { cgroup, pid });
    }
    w.exits(1, KILLED).list().ticks(120).dies(1, "oom_killed completed");
}

/// Linux 5.10 names an OOM victim by pid only; a child of the main process was the victim, and containerd says OOMKilled
/// for the container. The process that asked for the memory is the sender.
#[test]
fn an_oom_killed_child_on_5_10_is_no_contradiction() {
    let child = task(500, 9, "worker");
    for sender in [child.clone(), init(1)] {
        let mut w = World::running(1);
        w.sends(Signal::to(own(), child.clone(), 9).by_kernel(inside(&sender)));
        w.kernel(KernelFact::OomVictim { cgroup: None, pid: 500 });
        w.later(500).exits(1, ExitStatus::Code(1)).lists_all().status(1, 1, "OOMKilled").ticks(120);
        w.dies(1, "failed completed");
    }
}

/// PID 1 that does not reap: the kernel "kills" its zombies too, to no effect.
#[test]
fn zombies_were_not_left_without_a_signal() {
    for (is_zombie, expected, left) in [
        (true, "graceful api_delete", 0),
        (false, "graceful api_delete +children_not_signalled", 1),
    ] {
        let mut w = World::running(1);
        let kill = Signal::to(own(), task(500, 9, "sh"), 9).by_kernel(inside(&init(1)));
        w.delete(1).later(300).term(1).later(100).main_exits(1, CODE_0);
        w.sends(if is_zombie { kill.ignored() } else { kill }).empties(1).settles(1);
        assert_eq!(w.dies(1, expected).death(1).children_killed, left);
    }
}

#[test]
fn one_lost_record_hides_a_stop_signal_just_before_and_none_of_last_week() {
    for (before, expected) in
        [(7 * 24 * 3600 * 1000, "failed completed"), (1000, "unknown unknown -deciding_ring_full")]
    {
        let mut w = World::running(1);
        w.lost(LossKind::DecidingRingFull).later(before).ticks(1).exits(1, ExitStatus::Code(3));
        w.list().ticks(120).dies(1, expected);
        if expected.starts_with("unknown") {
            w.says(1, "evidence was lost");
        }
    }
}

/// The exec of the main process was lost, and it is not PID 1: the first probe passes for it, for good.
#[test]
fn a_loss_that_may_have_hidden_the_main_process() {
    let mut w = World::in_sync();
    w.cgroups_come(1).lost(LossKind::DecidingRingFull).later(1000).enters(1, 500, "probe").list();
    w.later(24 * 3600 * 1000).leaves(1, 500, "probe", 0);
    ends(&mut w, &task(15, 15, "app"), ExitStatus::Code(3))
        .dies(1, "unknown unknown -deciding_ring_full");
}

/// A main process that is sent SIGHUP to reload 70 times, by its own children (logrotate) or from outside, and then fails.
#[test]
fn reloads_are_no_loss() {
    for from in [inside(&task(500, 9, "reload")), outside("reloader")] {
        for pause in [10, 60_000] {
            let mut w = World::running(1);
            (0..70).for_each(|_| _ = w.later(pause).signals(1, 1, from.clone()));
            w.later(1000)
                .exits(1, ExitStatus::Code(3))
                .list()
                .ticks(120)
                .dies(1, "failed completed");
        }
    }
}

/// A main process may take any name, or be a program of that name, but is no child of runc; and the agent may have come
/// later than it.
#[test]
fn a_main_process_does_not_hide_behind_the_name_of_runc() {
    for name in ["runc", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]", "memfd:runc"] {
        for (from, scanned) in [("app", false), (name, false), ("app", true)] {
            let main = task(15, 15, from);
            let mut w = if scanned { World::in_sync() } else { with_main(&main) };
            if scanned {
                w.runs(1).kernel(found(1)).list();
            }
            // A probe whose program is not there.
            let (task_, parent) = (task(50, 50, "runc:[2:INIT]"), Some(runc()));
            let status = ExitStatus::Code(1);
            w.later(1000).kernel(KernelFact::Exit { cgroup: own(), task: task_, status, parent });
            w.later(60_000).sends(Signal::to(own(), main.clone(), 15).handler());
            w.later(30_000).sends(Signal::to(own(), main, 9));
            ends(&mut w, &task(15, 15, name), KILLED);
            let case = format!("{name} from {from}, scanned {scanned}\n{w}");
            assert_eq!(w.death(1).exit, Some(KILLED), "{case}");
            assert_ne!(w.death(1).verdict, Verdict::Failed, "{case}");
        }
    }
}

/// Pods that share PIDs have no PID 1 of their own. runc may be in the cgroup already when it executes itself
/// (libcontainer/nsenter/cloned_binary.c): then the name is "exe", a descriptor's number or a memfd's.
#[test]
fn runc_that_executes_itself_is_neither_the_main_process_nor_a_hook() {
    for name in ["exe", "6", "memfd:runc_clon", "runc"] {
        let main = task(15, 15, "app");
        let executes_itself = |w: &mut World, pid| {
            w.kernel(KernelFact::Exec {
                cgroup: own(),
                task: task(pid, pid, name),
                parent: runc(),
            });
            let (task, parent) = (task(pid, pid, "runc:[0:PARENT]"), Some(runc()));
            w.later(3).kernel(KernelFact::Exit { cgroup: own(), task, status: CODE_0, parent });
        };
        let mut w = World::in_sync();
        w.cgroups_come(1)
            .then(|w| executes_itself(w, 11))
            .later(20)
            .kernel(exec(own(), main.clone()));
        w.list().status_of(1).pre_stop = exec_hook("wrapper");
        w.later(1000).delete(1).then(|w| executes_itself(w, 21));
        let hook = task(25, 25, "sh");
        w.later(20).kernel(KernelFact::Exec { cgroup: own(), task: hook.clone(), parent: runc() });
        w.later(500).kernel(exit(own(), hook, ExitStatus::Code(4)));
        w.later(5).sends(Signal::to(own(), main.clone(), 15).handler()).later(2);
        ends(&mut w, &main, ExitStatus::Signal { signal: 15, core: false });
        let death = w.dies(1, "terminated_by_default api_delete").death(1);
        let [began, ended] = [MilestoneKind::PreStopBegan, MilestoneKind::PreStopEnded]
            .map(|kind| death.milestone(kind).expect("a hook").at);
        assert_eq!(ended.since(began).as_millis(), 500, "{name}");
    }
}

/// Pods that share the host's PIDs: a process of the container kills its main process.
#[test]
fn a_kill_from_inside_was_seen() {
    for stopped in [false, true] {
        let main = task(15, 15, "app");
        let mut w = with_main(&main);
        w.later(60_000);
        if stopped {
            w.sends(Signal::to(own(), main.clone(), 15).handler());
        }
        let watchdog = inside(&task(20, 20, "watchdog"));
        w.later(100).sends(Signal::to(own(), main.clone(), 9).by(watchdog));
        let death = ends(&mut w, &main, KILLED).death(1).clone();
        assert_eq!(death.verdict, Verdict::Failed, "{w}");
        w.says(1, "watchdog (pid 20), a process of the container itself");
        assert_eq!(death.proof.message.contains("100 ms after SIGTERM"), stopped, "{w}");
        assert_eq!(death.killer.map(|by| by.comm), Some("watchdog".into()));
    }
}

/// Where `sched_process_exit` has no `group_dead`, both of two threads that leave at once may find themselves the last;
/// the one that is not the leader may come first, before the leader has a status.
#[test]
fn of_two_threads_that_leave_at_once_the_leader_has_the_status() {
    let thread = || exit(own(), Task { tid: 4_711, ..init(1) }, CODE_0);
    let rows: [Story; 2] = [|w| w, |w| w.main_exits(1, ExitStatus::Code(7))];
    for before in rows {
        let mut w = World::running(1);
        before(&mut w).kernel(thread()).exits(1, ExitStatus::Code(7));
        w.stopped(1).phase(1, "Failed").ticks(10).dies(1, "failed completed");
    }
}

/// A container whose path names nobody: the scan finds it and what is below it, the runtime reports which container it
/// is, and its program runs two levels further down.
#[test]
fn a_program_far_below_its_containers_cgroup_is_followed() {
    let mut w = World::in_sync();
    let scan = |w: &mut World| {
        for (cgroup, name) in
            [(501, "/custom/ctr"), (502, "/custom/ctr/a"), (503, "/custom/ctr/a/b")]
        {
            let (parent, cgroup) = (Some(CgroupId(cgroup - 1)), CgroupId(cgroup));
            w.kernel(KernelFact::CgroupCreated {
                cgroup,
                parent,
                name: name.into(),
                scanned: true,
            });
        }
    };
    let (container, cgroup, path) = (ids(1).2, CgroupId(501), String::new());
    w.applied(1).runs(1).then(scan).list();
    // A second look at the same directories changes nothing.
    w.cri(CriEvent::ContainerCgroup { container, cgroup, path }).then(scan);
    let below = CgroupId(503);
    w.kernel(KernelFact::Running { cgroup: below, task: init(1) }).later(600_000).delete(1);
    w.later(100).is_over(1, ExitStatus::Code(3)).kernel(exit(below, init(1), ExitStatus::Code(3)));
    w.kernel(KernelFact::CgroupEmpty { cgroup }).stopped(1).ticks(120);
    assert_eq!(w.death(1).verdict, Verdict::Failed, "{w}");
}

/// systemd in a container, with more units than the engine keeps cgroups of: whether its main process has moved to the
/// first of them, to one that was evicted or to the last, its end is seen, and the report names the loss.
#[test]
fn a_main_process_is_not_lost_among_many_cgroups() {
    for (scope, lost) in [(0, 44), (150, 45), (299, 44)] {
        let mut w = World::running(1);
        for n in 0..300 {
            w.kernel(created(CgroupId(5_000 + n), Some(own()), &format!("unit{n}.service")));
        }
        let cgroup = CgroupId(5_000 + scope);
        let send = |signal| Signal::to(cgroup, init(1), signal).unrecorded();
        w.delete(1).later(100).sends(send(15).ignored()).later(30_000).sends(send(9));
        w.is_over(1, KILLED).kernel(exit(cgroup, init(1), KILLED));
        w.kernel(KernelFact::CgroupEmpty { cgroup: own() }).settles(1);
        w.dies(1, "stop_signal_ignored api_delete -engine_full");
        assert_eq!(w.engine.gauges().losses[&LossKind::EngineFull], lost, "{scope}");
    }
}

fn child(comm: &str, sent: u64) -> KilledProcess {
    KilledProcess { comm: comm.into(), sent }
}

/// So many workers were killed with PID 1, and none of them had been sent anything.
fn killed(killed: u32) -> NamespaceKilled {
    NamespaceKilled {
        cgroup: own(),
        init: init(1).tgid,
        killed,
        entered: 0,
        nested: 0,
        uncertain: false,
        sent: Vec::new(),
        examples: (0..killed.min(8)).map(|_| child("worker", 0)).collect(),
    }
}

/// As many of the killed had been sent SIGTERM.
fn of(count: u32, stop_signals: u32) -> NamespaceKilled {
    NamespaceKilled { sent: vec![SentTo { signal: 15, processes: stop_signals }], ..killed(count) }
}

fn two_are_sent_sigterm(w: &mut World) -> &mut World {
    for pid in [500, 501] {
        w.kernel(signal(own(), task(pid, pid, "worker"), 15, inside(&init(1))));
    }
    w
}

/// What the kernel killed when PID 1 exited, as the programs have counted it.
#[test]
fn what_was_killed_with_the_namespace() {
    let nested = |of| NamespaceKilled { entered: 2, nested: 5, ..of };
    // Only SIGHUP; SIGTERM; nothing.
    let examples = vec![child("logger", 1), child("worker", 1 << 14), child("helper", 0)];
    let nothing: Story = |w| w;
    let spent: Story = |w| {
        let until = w.at() + std::time::Duration::from_secs(1);
        w.kernel(KernelFact::BudgetSpent { cgroup: own(), until })
    };
    let lost: Story = |w| w.lost(LossKind::DecidingRingFull);
    let names = ["worker"; 8].join(", ");
    let workers = format!("300 process(es) ({names}, …) were killed by the kernel");
    for (before, of, children, finding, more) in [
        (nothing, killed(300), 300, workers.as_str(), ""),
        // A server that passes the signal on to its workers, which take too long.
        (nothing, of(300, 300), 300, "", ""),
        (
            nothing,
            NamespaceKilled { examples, ..of(300, 298) },
            300,
            "2 process(es) (logger, helper)",
            "",
        ),
        // Hooks are none of them, and what is nested is only killed.
        (nothing, nested(of(3, 1)), 8, "", ""),
        (nothing, nested(killed(3)), 8, "1 process(es) (worker)", ""),
        // A spent budget hides nothing that is counted; a lost record may.
        (spent, killed(300), 300, workers.as_str(), " -budget_spent"),
        (lost, killed(300), 300, "", " -deciding_ring_full"),
        (nothing, NamespaceKilled { uncertain: true, ..killed(300) }, 300, "", " -budget_spent"),
        // What was recorded of single processes, before the programs knew PID 1, may be among the killed.
        (two_are_sent_sigterm, killed(2), 2, "", ""),
        (two_are_sent_sigterm, killed(3), 3, "1 process(es) (worker)", ""),
        // Another namespace's.
        (nothing, NamespaceKilled { init: Tgid(4711), ..killed(3) }, 0, "", ""),
    ] {
        let mut w = World::running(1);
        before(w.delete(1).later(300).term(1).later(100)).main_exits(1, CODE_0).later(1);
        w.kernel(KernelFact::NamespaceKilled(of)).empties(1).settles(1);
        let found = if finding.is_empty() { "" } else { " +children_not_signalled" };
        let death = w.dies(1, &format!("graceful api_delete{found}{more}")).death(1);
        assert_eq!((death.children_killed, death.exit), (children, Some(CODE_0)));
        assert!(death.findings.first().is_none_or(|one| one.detail.starts_with(finding)), "{w}");
    }
}

/// Containers that the host's kernel does not see into: shown by the runtime handler, by the shim, or by what runs where
/// others have their pause. What the host shows of them looks like a graceful end.
#[test]
fn an_isolated_container_is_not_seen_into() {
    for (handler, shim, pause, program, by) in [
        ("kata-qemu", "", "", "", "runtime handler kata-qemu"),
        ("gvisor", "", "", "", "runtime handler gvisor"),
        ("nvidia", "", "", "", ""),
        ("", "io.containerd.kata.v2", "", "", "runtime io.containerd.kata.v2"),
        ("", "io.containerd.runc.v2", "", "", ""),
        ("", "", "qemu-system-x86", "", "process qemu-system-x86"),
        // A container whose own program is a hypervisor is a container like any other.
        ("", "", "pause", "qemu-system-x86", ""),
    ] {
        let mut w = World::running(1);
        w.sandboxes.get_mut(&1).unwrap().handler = handler.into();
        w.list();
        if !shim.is_empty() {
            w.cri(CriEvent::RuntimeType { container: ids(1).2, runtime: shim.into() });
        }
        for (cgroup, pid, comm) in [(own(), 15, program), (Cgroups::of(1).pause, 13, pause)] {
            if !comm.is_empty() {
                w.kernel(exec(cgroup, task(pid, 1, comm)));
            }
        }
        w.delete(1).stops(1).stopped(1).deleted(1).ticks(60);
        if by.is_empty() {
            w.dies(1, "graceful api_delete");
            continue;
        }
        let death = w.dies(1, "unknown api_delete +unsupported_runtime").says(1, by).death(1);
        assert!(death.exit.is_none(), "the hypervisor's, not the container's");
        assert!(death.findings[0].detail.contains(by), "{w}");
        for kind in [MilestoneKind::TermSent, MilestoneKind::TermHandled, MilestoneKind::Exited] {
            assert_eq!(death.milestone(kind), None);
        }
        assert!(death.milestone(MilestoneKind::CgroupEmpty).is_some(), "when it was over is known");
    }
}
