//! What the sources tell of the truth, and when.

use super::{
    plan::{Fault, Plan},
    truth::{InRuntime, Truth},
};
use coroner_core::{
    ids::ContainerId,
    input::{ApiEvent, CriEvent, CriExit, Input, KernelEvent, KernelFact, Received},
    time::BootTime,
};
use std::collections::BTreeSet;

fn boot(ms: u64) -> BootTime {
    BootTime(ms * 1_000_000)
}

/// The inputs of a whole history in the order in which they come, and when the last source had told all.
pub(crate) fn inputs(plan: &Plan, truth: &Truth) -> (Vec<Received>, u64) {
    let mut random = fastrand::Rng::with_seed(plan.jitter ^ 1);
    let mut inputs: Vec<(u64, Input)> = Vec::new();
    let starts = match plan.fault {
        Fault::AgentStarts { from } => truth.story.saturating_add_signed(from),
        _ => truth.object[0].0 - 1_000,
    };
    let api = watch(plan.fault, truth, starts, &mut random);
    let complete = api.last().map_or(0, |(at, _)| *at).max(truth.over) + 2_000;
    kernel(truth, starts, &mut inputs);
    let late = if let Fault::LateRuntime { by } = plan.fault { by } else { 0 };
    let all_listed = runtime(truth, starts, complete, late, &mut random, &mut inputs);
    inputs.extend(api.into_iter().map(|(at, event)| (at, Input::Api(event))));
    let complete = complete.max(all_listed);
    inputs.sort_by_key(|(at, _)| *at);
    let inputs = inputs.into_iter().map(|(at, input)| Received { at: boot(at), input });
    (with_ticks(inputs.collect(), complete), complete)
}

/// A tick each second until long after all sources had reported all.
pub(crate) fn with_ticks(mut inputs: Vec<Received>, complete: u64) -> Vec<Received> {
    let seconds = inputs[0].at.0 / 1_000_000_000 + 1..(complete + 200_000) / 1000;
    inputs.extend(seconds.map(|second| Received { at: boot(second * 1000), input: Input::Tick }));
    inputs.sort_by_key(|one| one.at);
    inputs
}

fn kernel(truth: &Truth, starts: u64, inputs: &mut Vec<(u64, Input)>) {
    let mut tell = |told: u64, time: u64, fact: KernelFact| {
        inputs.push((told, Input::Kernel(KernelEvent { time: boot(time), fact })));
    };
    let (before, after): (Vec<_>, Vec<_>) = truth.kernel.iter().partition(|(at, _)| *at < starts);
    let removed: BTreeSet<_> = before
        .iter()
        .filter_map(|(_, fact)| match fact {
            KernelFact::CgroupRemoved { cgroup } => Some(*cgroup),
            _ => None,
        })
        .collect();
    // What the agent finds when it starts.
    for (_, fact) in &before {
        if let KernelFact::CgroupCreated { cgroup, parent, name, .. } = fact
            && !removed.contains(cgroup)
        {
            let (cgroup, parent, name) = (*cgroup, *parent, name.clone());
            tell(starts, starts, KernelFact::CgroupCreated { cgroup, parent, name, scanned: true });
        }
    }
    for one in &truth.attempts {
        if one.began < starts && one.end.as_ref().is_none_or(|end| end.at > starts) {
            let fact = KernelFact::Running { cgroup: one.cgroup, task: one.task.clone() };
            tell(starts, starts, fact);
        }
    }
    for (at, fact) in after {
        tell(at + 1, *at, fact.clone());
    }
}

/// Lists soon after each change, and every five seconds; one call at a time. When the last was answered.
fn runtime(
    truth: &Truth,
    starts: u64,
    complete: u64,
    late: u64,
    random: &mut fastrand::Rng,
    inputs: &mut Vec<(u64, Input)>,
) -> u64 {
    let connected = CriEvent::Connected { runtime: "test".into(), process: None };
    inputs.push((starts, Input::Cri(connected)));
    let soon: Vec<u64> = truth.runtime.iter().map(|(at, _)| at + random.u64(5..300)).collect();
    // Two lists have to lack what is gone.
    let until = complete + 60_000 + 4 * late;
    let regular = (0..).map(|n| starts + 10 + n * 5_000).take_while(|at| *at < until);
    let mut wanted: Vec<u64> = soon.into_iter().chain(regular).filter(|at| *at >= starts).collect();
    wanted.sort_unstable();
    let (mut free, mut exits) = (0, BTreeSet::new());
    let mut answered = starts;
    for at in wanted {
        if at < free {
            continue;
        }
        answered = at + random.u64(1..20) + late;
        free = answered;
        let (sandboxes, containers) = truth.listed(at);
        let (asked, only) = (boot(at), None);
        inputs.push((answered, Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes })));
        inputs.push((answered, Input::Cri(CriEvent::Containers { asked, only, containers })));
        for (when, change) in &truth.runtime {
            if let InRuntime::Exited(index, code) = change
                && *when <= at
                && exits.insert(*index)
            {
                let removed = |(gone, change): &(u64, InRuntime)| {
                    *gone <= at && matches!(change, InRuntime::Removed(one) if one == index)
                };
                if truth.runtime.iter().any(removed) {
                    continue;
                }
                let exit = CriExit {
                    container: ContainerId::new(truth.attempts[*index].id.as_str()),
                    started: None,
                    finished: None,
                    exit_code: *code,
                    reason: if *code == 0 { "Completed" } else { "Error" }.into(),
                };
                inputs.push((answered + late / 2, Input::Cri(CriEvent::ContainerExited(exit))));
            }
        }
    }
    answered + late
}

/// What the watch delivers, and when.
fn watch(
    fault: Fault,
    truth: &Truth,
    starts: u64,
    random: &mut fastrand::Rng,
) -> Vec<(u64, ApiEvent)> {
    let snapshot = |at: u64| ApiEvent::Snapshot {
        pods: truth
            .object_at(at)
            .filter(|_| truth.object[0].0 <= at)
            .cloned()
            .into_iter()
            .collect(),
    };
    let last = &truth.object[truth.object.len() - 1].1;
    let events = truth.object.iter().map(|(at, pod)| (*at, ApiEvent::Applied(pod.clone())));
    let gone = truth.gone.map(|at| (at, ApiEvent::Deleted(last.clone())));
    let events: Vec<(u64, ApiEvent)> = events.chain(gone).filter(|(at, _)| *at > starts).collect();
    let mut told = vec![(starts, snapshot(starts))];
    let mut free = starts;
    let mut deliver = |told: &mut Vec<(u64, ApiEvent)>, at: u64, event: ApiEvent| {
        free = free.max(at);
        told.push((free, event));
    };
    let mut prompt = || random.u64(5..90);
    let (from, lasts, queue, hung, listed) = match fault {
        Fault::Nothing | Fault::LateRuntime { .. } | Fault::AgentStarts { .. } => {
            for (at, event) in events {
                deliver(&mut told, at + prompt(), event);
            }
            return told;
        }
        Fault::Late { by } => {
            for (at, event) in events {
                let late = if at + 1_000 >= truth.story { by } else { 0 };
                deliver(&mut told, at + prompt() + late, event);
            }
            return told;
        }
        Fault::Resumed { from, lasts, queue } => (from, lasts, queue, false, false),
        Fault::HungResumed { from, lasts, queue } => (from, lasts, queue, true, false),
        Fault::Relisted { from, lasts } => (from, lasts, 0, false, true),
        Fault::HungRelisted { from, lasts } => (from, lasts, 0, true, true),
    };
    let from = truth.story.saturating_add_signed(from).max(starts + 1);
    let error = || ApiEvent::OutOfSync { error: "connection refused".into() };
    // A watch that hangs is noticed at the end; then it takes a moment.
    let (noticed, back) =
        if hung { (from + lasts, from + lasts + 1_000) } else { (from, from + lasts) };
    let (mut broken, mut is_back) = (false, false);
    for (at, event) in events {
        if at >= from && !broken {
            broken = true;
            deliver(&mut told, noticed, error());
        }
        if at >= back && !is_back {
            is_back = true;
            let again = if listed { snapshot(back) } else { ApiEvent::Resumed };
            deliver(&mut told, back, again);
        }
        if at < from || at >= back {
            deliver(&mut told, at + prompt(), event);
        } else if !listed {
            if !is_back {
                is_back = true;
                deliver(&mut told, back, ApiEvent::Resumed);
            }
            let share = (at - from) as f64 / (back - from) as f64;
            deliver(&mut told, back + (queue as f64 * share) as u64, event);
        }
    }
    if !broken {
        deliver(&mut told, noticed, error());
    }
    if !is_back {
        let again = if listed { snapshot(back) } else { ApiEvent::Resumed };
        deliver(&mut told, back, again);
    }
    told
}
