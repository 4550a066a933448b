//! An answer without an agent: one look, a certain one, or one after the other.

use super::{Aim, Answer, Out, Progress, Stop, onlooker::Onlooker};
use crate::{
    cli::remark,
    config::Look,
    domain::leak::Judgement,
    leaks::LeakList,
    report::{span, words},
};
use anyhow::bail;
use std::time::{Duration, Instant};

/// One look: what is left for so long, and is confirmed by the apiserver, may be a leak. Two lists
/// of the runtime at the least.
const LOOK: Duration = Duration::from_secs(3);
/// Between the lists of one look.
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// Whatever else is missing by then, a look is over.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
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
        _ => Answer::new(list, onlooker.suspected(LOOK), true, namespace),
    };
    out.put(&answer)?;
    doubts(&onlooker);
    if aim == Aim::Look && !answer.suspected.is_empty() {
        remark(&format!(
            "suspected: observed for {} only, which does not tell what is late from what was left \
             behind; --wait to be certain",
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
    let mut suspected = std::mem::take(&mut list.leaks);
    suspected.extend(onlooker.suspected(LOOK));
    suspected.sort_by_key(|leak| crate::leaks::since(leak));
    list.judge.suspects = suspected.len();
    list.judge.threshold_seconds = threshold.as_secs();
    Answer::new(list, suspected, true, namespace)
}

/// Until all sources are in sync.
async fn ready(onlooker: &mut Onlooker, progress: &mut Progress) -> anyhow::Result<()> {
    let begun = Instant::now();
    progress.show("waiting for runtime and apiserver");
    loop {
        onlooker.turn().await?;
        if onlooker.gauges().judgement == Judgement::Possible {
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
    let mut first = FirstLook::begin(aim);
    progress.show("looking");
    loop {
        steady(onlooker, progress).await?;
        if first.is_over(onlooker) {
            break;
        }
    }
    if !onlooker.has_looked_around() {
        progress.wipe();
        remark(
            "not all stopped sandboxes could be asked in time whether they still hold their \
             network: --wait gives them more",
        );
    }
    Ok(())
}

/// When the first answer can be given.
struct FirstLook {
    aim: Aim,
    begun: Instant,
    /// All there is has been seen since.
    seen: Option<Instant>,
}

impl FirstLook {
    fn begin(aim: Aim) -> Self {
        Self { aim, begun: Instant::now(), seen: None }
    }

    /// All has been seen, and whatever looks like a leak has done so for long enough to be named;
    /// or it took too long.
    fn is_over(&mut self, onlooker: &Onlooker) -> bool {
        if self.begun.elapsed() >= LONGEST_LOOK {
            return true;
        }
        let gauges = onlooker.gauges();
        if gauges.watched < LOOK || !onlooker.has_looked_around() {
            return false;
        }
        let unnamed = match self.aim {
            // Its threshold is one look: what is left by then awaits the apiserver's word.
            Aim::Look => gauges.suspects,
            Aim::Watch => gauges.suspects.saturating_sub(onlooker.suspected(LOOK).len()),
            // Has its own way to wait for these.
            Aim::Wait => 0,
        };
        // On a busy node there is always something that came but now.
        let seen = self.seen.get_or_insert_with(Instant::now);
        unnamed == 0 || seen.elapsed() >= 2 * LOOK
    }
}

/// Until what looks like a leak has done so for the threshold.
async fn wait(
    onlooker: &mut Onlooker,
    threshold: Duration,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    // From now on: only now all has been seen that there is.
    let due = onlooker.gauges().watched + threshold;
    let mut late = 0;
    loop {
        let gauges = onlooker.gauges();
        let overdue = gauges.watched >= due;
        // The last ones wait for the apiserver's word.
        if overdue && (onlooker.suspected(threshold).is_empty() || late > OUTAGE.as_secs()) {
            return Ok(());
        }
        late += u64::from(overdue);
        progress.show(&format!(
            "{} to go; certain: {}, suspected: {}",
            span(due.saturating_sub(gauges.watched).as_secs()),
            onlooker.list().leaks.len(),
            gauges.suspects
        ));
        steady(onlooker, progress).await?;
    }
}

/// One turn; through an outage as many as that takes, within reason.
async fn steady(onlooker: &mut Onlooker, progress: &mut Progress) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        onlooker.turn().await?;
        let judgement = onlooker.gauges().judgement;
        if judgement == Judgement::Possible {
            return Ok(());
        }
        if onlooker.is_hopeless() || begun.elapsed() >= OUTAGE {
            progress.wipe();
            bail!(onlooker.obstacle());
        }
        progress.show(&format!("suspended: {}", words(judgement.as_str())));
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
    let mut first = FirstLook::begin(Aim::Watch);
    let mut opened = false;
    loop {
        if possible != (onlooker.gauges().judgement == Judgement::Possible) {
            possible = !possible;
            match possible {
                true => remark("all sources are in sync again"),
                false => remark(&onlooker.obstacle()),
            }
        }
        if opened || first.is_over(onlooker) {
            if !std::mem::replace(&mut opened, true) {
                doubts(onlooker);
            }
            let suspected = onlooker.suspected(LOOK);
            out.put(&Answer::new(onlooker.list(), suspected, true, namespace))?;
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
            "could not look at: {}; what is left there is not told (run as root on the host, or \
             give --host-root; --log-level warn says why)",
            unseen.join(", ")
        ));
    }
    if let Some(why) = &onlooker.no_cgroups {
        remark(&format!("pod cgroups are not looked at: {why}"));
    }
}
