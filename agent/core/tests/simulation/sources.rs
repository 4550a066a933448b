//! What the sources tell of the truth, and when.

use super::{
    plan::{Fault, Lost, Plan},
    truth::{InRuntime, Truth, seems_main},
};
use coroner_core::testkit::*;
use std::{collections::BTreeSet, ops::Range};

/// The inputs of a whole history in the order in which they come, and when the last source had told all.
pub(crate) fn inputs(plan: &Plan, truth: &Truth) -> (Vec<Received>, u64) {
    let mut random = fastrand::Rng::with_seed(plan.jitter ^ 1);
    let mut inputs: Vec<(u64, Input)> = Vec::new();
    let starts = match plan.fault {
        Fault::AgentStarts { from } => truth.story.saturating_add_signed(from),
        _ => truth.object[0].0 - 1_000,
    };
    let api = watch(plan.fault, plan.skew, truth, starts, &mut random);
    let complete = api.last().map_or(0, |(at, _)| *at).max(truth.over) + 2_000;
    kernel(truth, starts, &mut inputs);
    match plan.fault {
        Fault::RecordsLost { of, from, lasts } => {
            let from = truth.story.saturating_add_signed(from);
            lose(of, from..from + lasts, &mut random, &mut inputs);
        }
        Fault::Clocks { from, step } => {
            let at = truth.story.saturating_add_signed(from).max(starts + 1);
            let wall_ns = (at as i64 + step) * 1_000_000;
            inputs.push((at, Input::Clock(Anchor { boot_ns: at * 1_000_000, wall_ns })));
        }
        _ => {}
    }
    let all_listed = runtime(plan.fault, truth, starts, complete, &mut random, &mut inputs);
    inputs.extend(api.into_iter().map(|(at, event)| (at, Input::Api(event))));
    let complete = complete.max(all_listed);
    inputs.sort_by_key(|(at, _)| *at);
    let inputs = inputs.into_iter().map(|(at, input)| Received { at: ms(at), input });
    (with_ticks(inputs.collect(), complete), complete)
}

/// A tick each second until long after all sources had reported all.
pub(crate) fn with_ticks(mut inputs: Vec<Received>, complete: u64) -> Vec<Received> {
    let seconds = inputs[0].at.0 / 1_000_000_000 + 1..(complete + 200_000) / 1000;
    inputs.extend(seconds.map(|second| Received { at: ms(second * 1000), input: Input::Tick }));
    inputs.sort_by_key(|one| one.at);
    inputs
}

fn kernel(truth: &Truth, starts: u64, inputs: &mut Vec<(u64, Input)>) {
    let mut tell = |told: u64, time: u64, fact: KernelFact| {
        inputs.push((told, Input::Kernel(KernelEvent { time: ms(time), fact })));
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

/// Loses half of these records in this time. The reader looks for losses once a second.
fn lose(of: Lost, when: Range<u64>, random: &mut fastrand::Rng, inputs: &mut Vec<(u64, Input)>) {
    let goes_to = |fact: &KernelFact| match fact {
        KernelFact::Exit { .. } | KernelFact::Exec { .. } if of == Lost::Skipped => Some(of),
        KernelFact::SignalGenerated(_)
        | KernelFact::OomVictim { .. }
        | KernelFact::CgroupEmpty { .. } => Some(Lost::DecidingRing),
        KernelFact::Exit { task, .. } | KernelFact::Exec { task, .. } if seems_main(task) => {
            Some(Lost::DecidingRing)
        }
        KernelFact::Exit { .. } | KernelFact::Exec { .. } => Some(Lost::DetailRing),
        KernelFact::SignalDelivered { .. } => Some(Lost::DetailRing),
        _ => None,
    };
    let mut lost = BTreeSet::new();
    inputs.retain(|(at, input)| {
        let Input::Kernel(KernelEvent { fact, .. }) = input else { return true };
        let is_lost = when.contains(at) && goes_to(fact) == Some(of) && random.bool();
        if is_lost {
            lost.insert(at / 1000 + 1);
        }
        !is_lost
    });
    let kind = match of {
        Lost::DecidingRing => LossKind::DecidingRingFull,
        Lost::DetailRing => LossKind::DetailRingFull,
        Lost::Skipped => LossKind::ProgramSkipped,
    };
    inputs.extend(
        lost.into_iter()
            .map(|second| (second * 1000 + random.u64(0..50), Input::Lost(Loss::new(kind, 1)))),
    );
}

/// Lists soon after each change, and every five seconds; one call at a time. When the last was answered.
fn runtime(
    fault: Fault,
    truth: &Truth,
    starts: u64,
    complete: u64,
    random: &mut fastrand::Rng,
    inputs: &mut Vec<(u64, Input)>,
) -> u64 {
    let process = |pid| Some(DaemonProcess { pid, started: u64::from(pid) });
    let connected =
        |pid| Input::Cri(CriEvent::Connected { runtime: "test".into(), process: process(pid) });
    let unreachable = |code: &str| {
        let (error, code) = ("no answer".into(), Some(code.into()));
        Input::Cri(CriEvent::Unreachable { error, code })
    };
    inputs.push((starts, connected(1)));
    let soon: Vec<u64> = truth.runtime.iter().map(|(at, _)| at + random.u64(5..300)).collect();
    let late = if let Fault::LateRuntime { by } = fault { by } else { 0 };
    let (hung, down) = match fault {
        Fault::RuntimeHangs { from, lasts } => (truth.after_story(from, lasts), 0..0),
        Fault::RuntimeKilled { from, lasts } => (0..0, truth.after_story(from, lasts)),
        _ => (0..0, 0..0),
    };
    // Two lists have to lack what is gone.
    let until = complete.max(hung.end).max(down.end) + 60_000 + 4 * late;
    let regular = (0..).map(|n| starts + 10 + n * 5_000).take_while(|at| *at < until);
    let mut wanted: Vec<u64> = soon.into_iter().chain(regular).filter(|at| *at >= starts).collect();
    wanted.sort_unstable();
    let (mut free, mut exits, mut lacked, mut is_new) = (0, BTreeSet::new(), None, false);
    let mut answered = starts;
    for at in wanted {
        if at < free {
            continue;
        }
        if down.contains(&at) {
            inputs.push((at + 1, unreachable("UNAVAILABLE")));
            continue;
        }
        // It may be back before anybody notices: only its process is another.
        if !down.is_empty() && at >= down.end && !std::mem::replace(&mut is_new, true) {
            inputs.push((at, connected(2)));
        }
        let mut shows = at;
        answered = at + random.u64(1..20) + late;
        if hung.contains(&at) {
            // The adapter gives up after a minute.
            if at + 60_000 < hung.end {
                free = at + 60_000;
                inputs.push((free, unreachable("DEADLINE_EXCEEDED")));
                continue;
            }
            answered = hung.end;
            shows = random.u64(at..=answered);
        }
        free = answered;
        let (mut sandboxes, mut containers) = truth.listed(shows);
        if matches!(fault, Fault::ListLacks) && random.u8(..) < 60 {
            let entry = random.usize(..=containers.len());
            let id = containers.get(entry).map(|container| container.id.clone());
            if lacked == Some(id.clone()) {
                lacked = None;
            } else {
                match &id {
                    Some(id) => containers.retain(|container| container.id != *id),
                    None => sandboxes.truncate(0),
                }
                lacked = Some(id);
            }
        } else {
            lacked = None;
        }
        let (asked, only) = (ms(at), None);
        inputs.push((answered, Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes })));
        inputs.push((answered, Input::Cri(CriEvent::Containers { asked, only, containers })));
        for (when, change) in &truth.runtime {
            if let InRuntime::Exited(index, code) = change
                && *when <= shows
                && exits.insert(*index)
            {
                let removed = |(gone, change): &(u64, InRuntime)| {
                    *gone <= shows && matches!(change, InRuntime::Removed(one) if one == index)
                };
                if truth.runtime.iter().any(removed) {
                    continue;
                }
                let exit = CriExit {
                    container: ContainerId::new(truth.attempts[*index].id.as_str()),
                    exit_code: *code,
                    reason: truth.attempts[*index].exit_reason().into(),
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
    skew: i64,
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
    let shown = starts.saturating_add_signed(skew) / 1_000;
    let clock = ApiEvent::Clock { asked: ms(starts), date: WallTime::from_secs(shown as i64) };
    let mut told = vec![(starts + 5, clock), (starts + 5, snapshot(starts))];
    let mut free = starts + 5;
    let mut deliver = |told: &mut Vec<(u64, ApiEvent)>, at: u64, event: ApiEvent| {
        free = free.max(at);
        told.push((free, event));
    };
    let mut prompt = || random.u64(5..90);
    let (from, lasts, queue, hung, listed) = match fault {
        Fault::Nothing
        | Fault::LateRuntime { .. }
        | Fault::ListLacks
        | Fault::RuntimeHangs { .. }
        | Fault::RuntimeKilled { .. }
        | Fault::RecordsLost { .. }
        | Fault::Clocks { .. }
        | Fault::AgentStarts { .. } => {
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
