//! Whose evidence a loss touches, and where runtime or apiserver say what the kernel contradicts.

use coroner_core::{input::ApiTerminated, testkit::*};
use std::time::Duration;

#[test]
fn a_loss_marks_what_it_may_have_touched() {
    let mut w = World::running(1);
    w.delete(1).say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 3))).later(500);
    w.is_over(1, CODE_0).empties(1).finish(1).ticks(10);
    w.ends("api_delete -deciding_ring_full; c unknown api_delete -deciding_ring_full");
    assert!(w.phase_ms(PhaseKind::Unattributed) > 0);
    assert_eq!(w.engine.gauges().losses[&LossKind::DecidingRingFull], 3);
}

#[test]
fn a_budget_that_is_spent_is_missed_by_nobody_else() {
    let mut w = World::running(1);
    w.applied(2).starts(2).list().later(1000).ticks(1);
    let (cgroup, until) = (Cgroups::of(1).own, w.at() + Duration::from_secs(1));
    w.kernel(KernelFact::BudgetSpent { cgroup, until });
    let loss = Loss { since: Some(w.at()), ..Loss::new(LossKind::BudgetSpent, 40) };
    w.later(100).say(Input::Lost(loss)).later(10).exits(1, ExitStatus::Code(3));
    w.later(10).exits(2, ExitStatus::Code(3)).list().ticks(120);
    w.dies(1, "failed completed -budget_spent").dies(2, "failed completed");
    assert_eq!(w.engine.gauges().losses[&LossKind::BudgetSpent], 40);
}

/// A month later it is forgotten, even if the container had no main process yet: what shows that one is no detail.
#[test]
fn a_budget_that_was_spent_is_not_missed_for_ever() {
    let mut w = World::in_sync();
    w.cgroups_come(1);
    let (cgroup, until) = (Cgroups::of(1).own, w.at() + Duration::from_secs(1));
    w.kernel(KernelFact::BudgetSpent { cgroup, until }).execs(1).list();
    w.later(30 * 24 * 3600 * 1000).exits(1, ExitStatus::Code(3)).list().ticks(120);
    w.dies(1, "failed completed");
}

/// The agent had no processor for some seconds: what was lost is noticed long after the container that it was about has
/// ended. The delivery to a handler was lost.
#[test]
fn a_loss_that_is_noticed_late_touches_all_that_ended_since_the_last_look() {
    for (stalled, expected) in [
        (true, "api_delete -detail_ring_full; c unknown api_delete -detail_ring_full"),
        (false, "api_delete; c completed api_delete"),
    ] {
        let mut w = World::running(1);
        let before = w.at();
        w.later(100).delete(1).later(100).discards(1).later(100).exits(1, CODE_0);
        let after = w.later(3000).at();
        let since = Some(if stalled { before } else { after });
        w.later(1000).say(Input::Lost(Loss { since, ..Loss::new(LossKind::DetailRingFull, 3) }));
        w.finish(1).ticks(20).ends(expected);
    }
}

/// A runtime that is away for longer than an unexplained container is kept while it is there.
#[test]
fn a_death_in_a_long_outage_of_the_runtime_is_reported_after_it() {
    let mut w = World::in_sync();
    w.unreachable().later(100).applied(1).starts(1).later(1000).exits(1, ExitStatus::Code(3));
    w.ticks(600).connects().list().ticks(120).dies(1, "failed completed");
    assert!(w.engine.gauges().losses.is_empty());
}

/// The runtime states another end.
fn states<'a>(w: &'a mut World, code: i32, reason: &str) -> &'a mut World {
    w.sandbox_stops(1).lists_all().status(1, code, reason)
}

fn other_codes(w: &mut World) -> &mut World {
    let (id, reason) = (Some(ids(1).2), "Error".into());
    let end = ApiTerminated { id, exit_code: 137, reason };
    w.status_of(1).terminated.push(end);
    states(w.exits(1, CODE_0), 255, "Error")
}

/// What runtime or apiserver state of a container that handled its stop → what of that the kernel contradicts.
#[test]
fn contradictions() {
    let says_running: Story =
        |w| w.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    let rows: [(Story, &[Contradiction]); 7] = [
        (|w| w.exits(1, CODE_0).stopped(1), &[]),
        (other_codes, &[Contradiction::RuntimeExitCode, Contradiction::ApiExitCode]),
        // An OOM kill that the kernel never made.
        (|w| states(w.exits(1, CODE_0), 0, "OOMKilled"), &[Contradiction::RuntimeOomKilled]),
        // The runtime may need a moment to notice, but not eight seconds.
        (|w| w.exits(1, CODE_0).ticks(4), &[]),
        (|w| w.exits(1, CODE_0).ticks(8), &[Contradiction::RunningWithoutProcesses]),
        (
            |w| w.is_over(1, CODE_0).stopped(1).ticks(8).exits(1, CODE_0),
            &[Contradiction::ExitedWithProcesses],
        ),
        // With records missing, the kernel's side is not proven.
        (|w| states(w.lost(LossKind::DetailRingFull).exits(1, CODE_0), 255, "Error"), &[]),
    ];
    for (number, (happens, expected)) in rows.into_iter().enumerate() {
        let mut w = World::running(1);
        happens(w.delete(1).term(1).later(500));
        if (3..5).contains(&number) {
            says_running(&mut w);
        }
        w.stopped(1).deleted(1).ticks(120);
        let findings = &w.end().containers[0].findings;
        let found: Vec<_> = findings.iter().filter_map(|one| one.contradiction).collect();
        assert_eq!(found, expected, "row {number}\n{w}");
        if expected.len() == 2 {
            let detail = &findings[1].detail;
            assert!(detail.ends_with("the kernel recorded exit code 0."), "{detail}");
        }
    }
}
