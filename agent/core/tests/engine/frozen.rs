//! Containers that the freezer keeps from ending.

use super::lingering::{detail, hangs, started};
use super::world::{CODE_0, Cgroups, KILLED, World, runc, running, signal};
use coroner_core::{
    input::{Disposition, Input, KernelFact, Loss, LossKind, ProcProcess, TaskState},
    types::{FindingKind, Verdict},
};

/// SIGTERM to a program that has a handler, which does not run.
fn term_waits(world: &mut World) {
    world.kernel(signal(Cgroups::of(1).own, started(), 15, runc()));
}

fn freezes(world: &mut World, frozen: bool) {
    world.kernel(KernelFact::CgroupFrozen { cgroup: Cgroups::of(1).own, frozen });
}

/// SIGKILL finds SIGTERM still pending, and ends it although it is frozen (cgroup v2).
fn killed_while_it_waits(world: &mut World) {
    let KernelFact::SignalGenerated(mut kill) = signal(Cgroups::of(1).own, started(), 9, runc())
    else {
        unreachable!()
    };
    kill.state.as_mut().unwrap().pending = 1 << 14;
    world.kernel(KernelFact::SignalGenerated(kill));
    world.later(1).exits(1, KILLED);
}

#[test]
fn what_is_frozen_at_the_stop_looks_blocked_and_is_explained() {
    let mut world = running(1);
    freezes(&mut world, true);
    world.later(3000).deleted();
    term_waits(&mut world);
    world.later(30_000);
    killed_while_it_waits(&mut world);
    let death = world.settles(137);
    assert_eq!(death.verdict, Verdict::StopSignalBlocked, "{}", death.proof.message);
    assert_eq!(
        detail(&death, FindingKind::Frozen),
        Some(
            "Its cgroup was frozen 3.0 s before SIGTERM came, until it exited: a frozen \
             process runs no handler, so a signal waits until it is thawed."
        )
    );
    assert_eq!(detail(&death, FindingKind::Unkillable), None);
}

#[test]
fn what_is_thawed_in_time_is_graceful() {
    let mut world = running(1);
    world.deleted();
    freezes(&mut world, true);
    world.later(500);
    term_waits(&mut world);
    world.later(5000);
    freezes(&mut world, false);
    let (cgroup, disposition) = (Cgroups::of(1).own, Disposition::Handler);
    world.kernel(KernelFact::SignalDelivered { cgroup, task: started(), signal: 15, disposition });
    world.later(10).exits(1, CODE_0);
    let death = world.settles(0);
    assert_eq!(death.verdict, Verdict::Graceful, "{}", death.proof.message);
    let finding = detail(&death, FindingKind::Frozen).unwrap();
    let told = "Its cgroup was frozen 500 ms before SIGTERM came, and thawed 5.0 s after it:";
    assert!(finding.starts_with(told), "{finding}");
}

#[test]
fn a_thaw_that_may_have_been_lost_is_no_freeze() {
    let mut world = running(1);
    freezes(&mut world, true);
    world.say(Input::Lost(Loss::new(LossKind::DetailRingFull, 1)));
    world.later(3000).deleted();
    world.term(1, true);
    world.later(10).exits(1, CODE_0);
    let death = world.settles(0);
    assert_eq!(detail(&death, FindingKind::Frozen), None);
}

#[test]
fn frozen_on_the_way_out() {
    let mut world = running(1);
    world.deleted();
    world.term(1, true);
    world.later(1000);
    freezes(&mut world, true);
    world.later(29_000).killed();
    world.exits(1, KILLED);
    let death = world.settles(137);
    assert_eq!(death.verdict, Verdict::GraceExceeded);
    let finding = detail(&death, FindingKind::Frozen).unwrap();
    let told = "Its cgroup was frozen 1.0 s after SIGTERM, until it exited:";
    assert!(finding.starts_with(told), "{finding}");
}

#[test]
fn what_was_frozen_before_the_agent_is_known_by_its_thaw() {
    let mut world = running(1);
    world.deleted();
    term_waits(&mut world);
    world.later(2000);
    freezes(&mut world, false);
    world.later(10).exits(1, CODE_0);
    let death = world.settles(0);
    let finding = detail(&death, FindingKind::Frozen).unwrap();
    assert!(finding.contains("since before the agent looked, and thawed 2.0 s"), "{finding}");
}

#[test]
fn a_runtime_that_freezes_to_kill_explains_nothing() {
    let mut world = running(1);
    freezes(&mut world, true);
    world.later(60_000);
    freezes(&mut world, false);
    world.later(1000).deleted();
    world.term(1, true);
    world.later(30_000);
    freezes(&mut world, true);
    world.later(3).killed();
    freezes(&mut world, false);
    world.later(1).exits(1, KILLED);
    let death = world.settles(137);
    assert_eq!(detail(&death, FindingKind::Frozen), None);
}

#[test]
fn the_v1_freezer_is_found_by_looking() {
    // It has no record: a stop signal that nobody answers is reason enough to look.
    let mut world = running(1);
    world.deleted();
    term_waits(&mut world);
    world.ticks(2);
    assert_eq!(world.wanted().len(), 1);
    let asleep = ProcProcess {
        state: TaskState::Uninterruptible,
        wchan: Some("__refrigerator".into()),
        stack: vec![],
        ..hangs()
    };
    world.shows_freezer(1, vec![asleep.clone()], Some(true));
    assert_eq!(world.unkillable(), 0, "nobody has sent SIGKILL");
    world.later(28_000).killed();
    world.ticks(3);
    world.shows_freezer(1, vec![asleep], Some(true));
    assert_eq!(world.unkillable(), 1);
    world.ticks(2);
    world.exits(1, KILLED); // thawed
    let death = world.settles(137);
    let frozen = detail(&death, FindingKind::Frozen).unwrap();
    assert!(frozen.starts_with("Its cgroup was found frozen 2.0 s after SIGTERM"), "{frozen}");
    let unkillable = detail(&death, FindingKind::Unkillable).unwrap();
    assert!(unkillable.contains("app (pid 15) in state D"), "{unkillable}");
    assert!(unkillable.contains("in __refrigerator, seen last after 3.0 s"), "{unkillable}");
}

#[test]
fn an_answered_signal_is_no_reason_to_look() {
    let mut world = running(1);
    world.deleted();
    world.term(1, true);
    world.ticks(20);
    assert_eq!(world.wanted(), []);
    let mut world = running(1);
    world.deleted();
    world.term(1, false);
    world.ticks(20);
    assert_eq!(world.wanted(), [], "thrown away: there is nothing to wait for");
}
