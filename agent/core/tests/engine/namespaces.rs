//! What the kernel killed when a container's PID 1 exited, as the programs have counted it.

use super::world::{
    CODE_0, Cgroups, World, container, init, inside, object, running, sandbox, shim, signal, task,
};
use coroner_core::{
    ids::Tgid,
    input::{
        ApiEvent, ContainerState, ExitStatus, Input, KernelFact, KilledProcess, Loss, LossKind,
        NamespaceKilled, SentTo,
    },
    report::ContainerDeath,
    types::{FindingKind, Verdict},
};
use std::time::Duration;

/// So many were killed with the first container's PID 1, and none of them had been sent anything.
fn killed(count: u32) -> NamespaceKilled {
    let worker = || KilledProcess { comm: "worker".into(), sent: 0 };
    NamespaceKilled {
        cgroup: Cgroups::of(1).own,
        init: init(1).tgid,
        killed: count,
        entered: 0,
        nested: 0,
        uncertain: false,
        sent: Vec::new(),
        examples: (0..count.min(8)).map(|_| worker()).collect(),
    }
}

fn sent(processes: u32) -> Vec<SentTo> {
    vec![SentTo { signal: 15, processes }]
}

/// The first container takes SIGTERM and leaves, and with it these end. `happens` before it leaves.
fn stopped(happens: impl FnOnce(&mut World), killed: NamespaceKilled) -> ContainerDeath {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(300).term(1, true);
    happens(world.later(100));
    let cgroup = Cgroups::of(1).own;
    let parent = Some(shim());
    world.kernel(KernelFact::Exit { cgroup, task: init(1), status: CODE_0, parent });
    world.later(1).kernel(KernelFact::NamespaceKilled(killed));
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    world.kernel(KernelFact::CgroupRemoved { cgroup });
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    let death = world.ended[0].containers[0].clone();
    assert_eq!(death.verdict, Verdict::Graceful, "{}", death.proof.message);
    assert_eq!(death.exit, Some(ExitStatus::Code(0)));
    death
}

/// What the finding says, if it is made.
fn finding(death: &ContainerDeath) -> Option<&str> {
    let finding = death.findings.iter().find(|f| f.kind == FindingKind::ChildrenNotSignalled);
    finding.map(|finding| finding.detail.as_str())
}

fn nothing(_: &mut World) {}

#[test]
fn hundreds_that_were_sent_nothing_are_a_finding() {
    let death = stopped(nothing, killed(300));
    assert_eq!(death.children_killed, 300);
    assert_eq!(death.children_names, ["worker"; 8]);
    assert_eq!(death.incomplete, []);
    let workers = ["worker"; 8].join(", ");
    let told = format!(
        "300 process(es) ({workers}, …) were killed by the kernel with the PID namespace; none of \
         them had been sent SIGTERM."
    );
    assert_eq!(finding(&death), Some(told.as_str()));
}

/// A server that passes the signal on to its workers, which take too long.
#[test]
fn those_that_were_sent_the_stop_signal_are_none() {
    let death = stopped(nothing, NamespaceKilled { sent: sent(300), ..killed(300) });
    assert_eq!((death.children_killed, death.children_names.len()), (300, 0));
    assert_eq!((death.incomplete.as_slice(), finding(&death)), (&[][..], None));
}

#[test]
fn those_that_were_not_are_named() {
    let mut of = NamespaceKilled { sent: sent(298), ..killed(300) };
    let example = |comm: &str, sent| KilledProcess { comm: comm.into(), sent };
    // Only SIGHUP; SIGTERM; nothing.
    of.examples = vec![example("logger", 1), example("worker", 1 << 14), example("helper", 0)];
    let death = stopped(nothing, of);
    assert_eq!(death.children_names, ["logger", "helper"]);
    assert!(finding(&death).unwrap().starts_with("2 process(es) (logger, helper) were killed"));
}

#[test]
fn hooks_are_none_and_what_is_nested_is_only_killed() {
    let of = NamespaceKilled { entered: 2, nested: 5, sent: sent(1), ..killed(3) };
    let death = stopped(nothing, of.clone());
    assert_eq!((death.children_killed, finding(&death)), (8, None));
    let death = stopped(nothing, NamespaceKilled { sent: Vec::new(), ..of });
    assert!(finding(&death).unwrap().starts_with("1 process(es) (worker) were killed"));
}

/// What is counted is not hidden by records of the container's own affairs that were lost.
#[test]
fn a_budget_that_is_spent_hides_nothing_that_is_counted() {
    let spent = |world: &mut World| {
        let until = world.at() + Duration::from_secs(1);
        world.kernel(KernelFact::BudgetSpent { cgroup: Cgroups::of(1).own, until });
    };
    let death = stopped(spent, killed(300));
    assert_eq!(death.incomplete, [LossKind::BudgetSpent]);
    assert!(finding(&death).is_some());
    let lost = |world: &mut World| {
        world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 1)));
    };
    let death = stopped(lost, killed(300));
    assert_eq!(death.incomplete, [LossKind::DecidingRingFull]);
    assert_eq!((death.children_killed, finding(&death)), (300, None));
}

#[test]
fn what_was_not_counted_whole_is_no_finding() {
    let death = stopped(nothing, NamespaceKilled { uncertain: true, ..killed(300) });
    assert_eq!((death.children_killed, finding(&death)), (300, None));
    assert_eq!(death.incomplete, [LossKind::BudgetSpent]);
}

/// The agent has just found the container: what it told before the programs knew the main process was
/// not counted by them.
#[test]
fn what_was_told_of_single_processes_may_be_among_the_killed() {
    let own = Cgroups::of(1).own;
    let to_two = |world: &mut World| {
        for pid in [500, 501] {
            let child = task(pid, pid, "worker");
            world.kernel(signal(own, child, 15, inside(&init(1))));
        }
    };
    let death = stopped(to_two, killed(2));
    assert_eq!((death.children_killed, finding(&death)), (2, None));
    let death = stopped(to_two, killed(3));
    assert!(finding(&death).unwrap().starts_with("1 process(es) (worker) were killed"));
}

#[test]
fn another_namespaces_end_is_none_of_the_containers() {
    let death = stopped(nothing, NamespaceKilled { init: Tgid(4711), ..killed(3) });
    assert_eq!((death.children_killed, finding(&death)), (0, None));
}
