//! Design invariant 5: any interleaving that keeps each source's own order, and delivers each input
//! within the settle window, gives the same accounts.

use super::{Said, collect, names, random::cases, recordings};
use coroner_core::{
    engine::{Engine, Settings},
    input::{Input, Received},
    output::Outputs,
    report::PodTermination,
    time::{Anchor, BootTime},
    types::MilestoneKind,
};
use proptest::prelude::*;
use std::time::Duration;

/// Below the settle window of 5 s, less the tick.
const MOST_LATE_MS: u64 = 3_900;

/// Delivers each source's inputs in its own order, each late by at most [`MOST_LATE_MS`].
fn deliver(inputs: &[Received], mut seed: u64) -> Vec<(BootTime, Received)> {
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut last = [BootTime(0); 3];
    let mut late = [0_u64; 3];
    let mut schedule: Vec<(BootTime, Received)> = inputs
        .iter()
        .map(|input| {
            let source = match input.input {
                Input::Kernel(_) => 0,
                Input::Cri(_) => 1,
                _ => 2,
            };
            // Lateness changes now and then, as that of a busy adapter does.
            if random().is_multiple_of(8) {
                late[source] = random() % MOST_LATE_MS;
            }
            let due = input.at + Duration::from_millis(late[source]);
            last[source] = last[source].max(due);
            (last[source], input.clone())
        })
        .collect();
    schedule.sort_by_key(|(due, _)| *due);
    schedule
}

fn run(anchor: Anchor, schedule: Vec<(BootTime, Received)>) -> Said {
    let mut engine = Engine::new(Settings::new(anchor));
    let mut out = Outputs::default();
    let second = Duration::from_secs(1);
    let mut tick = schedule[0].0 + second;
    let end = schedule[schedule.len() - 1].0 + Duration::from_secs(60);
    for (due, input) in schedule {
        while tick <= due {
            out.append(engine.step(Received { at: tick, input: Input::Tick }));
            tick = tick + second;
        }
        out.append(engine.step(input));
    }
    while tick <= end {
        out.append(engine.step(Received { at: tick, input: Input::Tick }));
        tick = tick + second;
    }
    collect(out)
}

/// The second tail is reported when it comes, as an update: when the account is given, it may be
/// there or not. Everything else must be the same, in the first account as in the last.
fn without_tail(mut end: PodTermination) -> PodTermination {
    end.milestones.retain(|m| {
        !matches!(m.kind, MilestoneKind::SandboxRemoved | MilestoneKind::CgroupRemoved)
    });
    end
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn any_interleaving_gives_the_same_accounts(seed in 1_u64.., name in prop::sample::select(names())) {
        let recording = recordings::load(&name);
        let in_order = recording.inputs.iter().map(|i| (i.at, i.clone())).collect();
        let expected = run(recording.anchor, in_order);
        let shuffled = run(recording.anchor, deliver(&recording.inputs, seed));
        prop_assert_eq!(shuffled.late, 0, "late evidence within the settle window");
        let flat = |said: Said| {
            let ends = said.terminations.into_values().flatten().map(without_tail);
            // A death is reported when the evidence of its own container is there.
            let mut deaths: Vec<_> = said.deaths.into_values().flatten().collect();
            deaths.sort_by(|a, b| a.id.cmp(&b.id));
            (ends.collect::<Vec<_>>(), deaths)
        };
        prop_assert_eq!(flat(shuffled), flat(expected));
    }
}
