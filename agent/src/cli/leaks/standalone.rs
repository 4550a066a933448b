//! An answer without an agent: one look, a certain one, or one after the other.

use super::{
    Aim, Answer, Out, Progress, Stop,
    look::{Age, Certainty, FirstLook, LATE, LOOK, Sight},
    onlooker::Onlooker,
};
use crate::{
    cli::remark,
    config::Look,
    outputs::report::{LeakList, span, words},
};
use anyhow::bail;
use coroner_core::leak::{DetectionState, LeakKey};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Between the lists of one look.
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// The sources must answer by then,
const PATIENCE: Duration = Duration::from_secs(15);
/// and must not fail for longer while certainty is waited for.
const OUTAGE: Duration = Duration::from_secs(60);

/// Prints what was found; returns how much is certain. Fails if nothing can be said.
pub(super) async fn answer(
    look: Look,
    namespace: Option<&str>,
    aim: Aim,
    out: &mut Out,
) -> anyhow::Result<usize> {
    let threshold = look.threshold;
    let (short, idle) = match aim {
        Aim::Look => (LOOK.min(threshold), LOOK_IDLE),
        // A short threshold needs lists that are not further apart.
        Aim::Wait | Aim::Watch => (threshold, look.cri.idle.min(threshold).max(LOOK_IDLE)),
    };
    let named = look.cgroup_root.is_some();
    let mut onlooker = Onlooker::start(look, short, idle);
    if let (true, Some(why)) = (named, &onlooker.no_cgroups) {
        bail!("{why}");
    }
    let mut progress = Progress::new();
    ready(&mut onlooker, &mut progress).await?;
    if aim == Aim::Watch {
        progress.wipe();
        return watch(&mut onlooker, namespace, out).await.map(|()| 0);
    }
    look_around(&mut onlooker, aim, &mut progress).await?;
    if aim == Aim::Wait {
        wait(&mut onlooker, threshold, &mut progress).await?;
    }
    progress.wipe();
    let list = onlooker.list();
    let answer = match aim {
        Aim::Look => one_look(list, &onlooker, threshold, namespace),
        _ => Answer::new(list, onlooker.candidates(LOOK), true, namespace),
    };
    out.put(&answer)?;
    doubts(&onlooker);
    if aim == Aim::Look && !answer.candidates.is_empty() {
        remark(&format!(
            "observed for {} only: a candidate may be a late cleanup rather than a leak; use \
             --wait to confirm",
            span(answer.list.judge.watched_seconds)
        ));
    }
    Ok(answer.list.leaks.len())
}

/// What passed for a leak by the short threshold is suspected, no more.
fn one_look(
    mut list: LeakList,
    onlooker: &Onlooker,
    threshold: Duration,
    namespace: Option<&str>,
) -> Answer {
    let mut candidates = std::mem::take(&mut list.leaks);
    candidates.extend(onlooker.candidates(LOOK));
    candidates.sort_by_key(|leak| crate::store::leaks::since(leak));
    list.judge.candidate_count = candidates.len();
    list.judge.threshold_seconds = threshold.as_secs();
    Answer::new(list, candidates, true, namespace)
}

/// Until all sources are in sync.
async fn ready(onlooker: &mut Onlooker, progress: &mut Progress) -> anyhow::Result<()> {
    let begun = Instant::now();
    progress.show("waiting for the runtime and the apiserver");
    loop {
        onlooker.turn().await?;
        if onlooker.gauges().detection_state == DetectionState::Possible {
            return Ok(());
        }
        if onlooker.is_hopeless() || begun.elapsed() >= PATIENCE {
            progress.wipe();
            bail!(onlooker.obstacle());
        }
    }
}

/// Until all has been seen that one look can show.
async fn look_around(
    onlooker: &mut Onlooker,
    aim: Aim,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let (begun, mut first) = (Instant::now(), FirstLook::new(aim));
    progress.show("looking");
    loop {
        steady(onlooker, progress).await?;
        if first.is_over(&sight(onlooker, begun)) {
            break;
        }
    }
    if !onlooker.has_looked_around() {
        progress.wipe();
        remark(
            "could not check in time whether every stopped sandbox still holds its network; use \
             --wait to allow more time",
        );
    }
    Ok(())
}

fn sight(onlooker: &Onlooker, begun: Instant) -> Sight {
    let gauges = onlooker.gauges();
    Sight {
        elapsed: begun.elapsed(),
        watched: gauges.watched,
        whole: onlooker.has_looked_around(),
        candidates: gauges.candidates,
        named: onlooker.candidates(LOOK).len(),
    }
}

/// Until what looks like a leak has done so for the threshold.
async fn wait(
    onlooker: &mut Onlooker,
    threshold: Duration,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    // From now on: only now all has been seen that there is.
    let candidates = ages(onlooker, threshold).into_keys();
    let certainty = Certainty::of(candidates, onlooker.gauges().watched, threshold);
    loop {
        let gauges = onlooker.gauges();
        if certainty.is_reached(gauges.watched, &ages(onlooker, threshold)) {
            return Ok(());
        }
        progress.show(&format!(
            "{} to go; confirmed: {}, candidates: {}",
            span(certainty.to_go(gauges.watched).as_secs()),
            onlooker.list().leaks.len(),
            gauges.candidates
        ));
        steady(onlooker, progress).await?;
    }
}

/// For how long each of what is not certain has looked like a leak.
fn ages(onlooker: &Onlooker, threshold: Duration) -> BTreeMap<LeakKey, Age> {
    let mut ages = BTreeMap::new();
    for (age, at_least) in
        [(Age::Young, Duration::ZERO), (Age::Ripe, threshold), (Age::Late, threshold + LATE)]
    {
        ages.extend(onlooker.candidates(at_least).into_iter().map(|leak| (leak.key.clone(), age)));
    }
    ages
}

/// One turn; through an outage as many as that takes, within reason.
async fn steady(onlooker: &mut Onlooker, progress: &mut Progress) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        onlooker.turn().await?;
        let detection_state = onlooker.gauges().detection_state;
        if detection_state == DetectionState::Possible {
            return Ok(());
        }
        if onlooker.is_hopeless() || begun.elapsed() >= OUTAGE {
            progress.wipe();
            bail!(onlooker.obstacle());
        }
        progress.show(&format!("suspended: {}", words(detection_state.as_str())));
    }
}

/// Until a signal.
async fn watch(
    onlooker: &mut Onlooker,
    namespace: Option<&str>,
    out: &mut Out,
) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let mut possible = true;
    let (begun, mut first) = (Instant::now(), FirstLook::new(Aim::Watch));
    let mut opened = false;
    loop {
        if possible != (onlooker.gauges().detection_state == DetectionState::Possible) {
            possible = !possible;
            match possible {
                true => remark("all sources are in sync again"),
                false => remark(&onlooker.obstacle()),
            }
        }
        if opened || first.is_over(&sight(onlooker, begun)) {
            if !std::mem::replace(&mut opened, true) {
                doubts(onlooker);
            }
            let candidates = onlooker.candidates(LOOK);
            out.put(&Answer::new(onlooker.list(), candidates, true, namespace))?;
        }
        tokio::select! {
            () = stop.wait() => return Ok(()),
            turned = onlooker.turn() => turned?,
        }
    }
}

/// What an answer does not cover.
fn doubts(onlooker: &Onlooker) {
    let unseen = onlooker.unseen();
    if !unseen.is_empty() {
        remark(&format!(
            "could not read: {}; leaks there are not reported. Run as root on the host or set \
             --host-root (--log-level warn shows the cause)",
            unseen.join(", ")
        ));
    }
    if let Some(why) = &onlooker.no_cgroups {
        remark(&format!("pod cgroups are not scanned: {why}"));
    }
}
