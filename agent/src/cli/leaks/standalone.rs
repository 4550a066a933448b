//! An answer without an agent: one look, a certain one, or one after the other.

use super::{
    LeaksAnswer, Mode, Printer, Progress,
    scanner::StandaloneScanner,
    timing::{Age, ConfirmationWait, FirstScan, LATE, SCAN_THRESHOLD, ScanProgress},
};
use crate::{
    app::stop::StopSignals,
    cli::print_note,
    config::StandaloneConfig,
    outputs::report::{LeakList, span, words},
};
use anyhow::bail;
use coroner_core::leak::{DetectionState, LeakKey};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Interval of lists during a scan.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for the first answers of the sources: longer than a survey of a host of which parts hang, 20 s.
const TIMEOUT: Duration = Duration::from_secs(25);
/// Maximum outage of a source while waiting for confirmation.
const OUTAGE: Duration = Duration::from_secs(60);

/// Prints the leaks and returns the number of confirmed leaks.
pub(super) async fn answer(
    look: StandaloneConfig,
    namespace: Option<&str>,
    mode: Mode,
    out: &mut Printer,
) -> anyhow::Result<usize> {
    let threshold = look.threshold;
    let (short, idle) = match mode {
        Mode::Once => (SCAN_THRESHOLD.min(threshold), SCAN_INTERVAL),
        // A short threshold needs lists that are not further apart.
        Mode::Wait | Mode::Watch => (threshold, look.cri.idle.min(threshold).max(SCAN_INTERVAL)),
    };
    let mut scanner = StandaloneScanner::start(look, short, idle)?;
    let mut progress = Progress::new();
    ready(&mut scanner, &mut progress).await?;
    if mode == Mode::Watch {
        progress.wipe();
        return watch(&mut scanner, namespace, out).await.map(|()| 0);
    }
    scan(&mut scanner, mode, &mut progress).await?;
    if mode == Mode::Wait {
        wait(&mut scanner, threshold, &mut progress).await?;
    }
    progress.wipe();
    let list = scanner.list();
    let answer = match mode {
        Mode::Once => single_scan(list, &scanner, threshold, namespace),
        _ => LeaksAnswer::new(list, scanner.candidates(SCAN_THRESHOLD), true, namespace),
    };
    out.put(&answer)?;
    print_unreadable_parts(&scanner);
    if mode == Mode::Once && !answer.candidates.is_empty() {
        print_note(&format!(
            "observed for {} only: a candidate may be a late cleanup rather than a leak; use \
             --wait to confirm",
            span(answer.list.progress.watched_seconds)
        ));
    }
    Ok(answer.list.leaks.len())
}

/// Turns leaks that reached only the short threshold of a scan back into candidates.
fn single_scan(
    mut list: LeakList,
    scanner: &StandaloneScanner,
    threshold: Duration,
    namespace: Option<&str>,
) -> LeaksAnswer {
    let mut candidates = std::mem::take(&mut list.leaks);
    candidates.extend(scanner.candidates(SCAN_THRESHOLD));
    candidates.sort_by_key(|leak| crate::store::leaks::since(leak));
    list.progress.candidate_count = candidates.len();
    list.progress.threshold_seconds = threshold.as_secs();
    LeaksAnswer::new(list, candidates, true, namespace)
}

/// Waits until all sources are in sync.
async fn ready(scanner: &mut StandaloneScanner, progress: &mut Progress) -> anyhow::Result<()> {
    let begun = Instant::now();
    progress.show("waiting for the runtime, the apiserver and a survey of the host");
    loop {
        scanner.tick().await?;
        if scanner.gauges().detection_state == DetectionState::Possible {
            return Ok(());
        }
        if scanner.is_misconfigured() || begun.elapsed() >= TIMEOUT {
            progress.wipe();
            bail!(scanner.suspension_reason());
        }
    }
}

/// Runs until the scan is complete.
async fn scan(
    scanner: &mut StandaloneScanner,
    mode: Mode,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let (begun, mut first) = (Instant::now(), FirstScan::new(mode));
    progress.show("looking");
    loop {
        tick_in_sync(scanner, progress).await?;
        if first.is_over(&scan_progress(scanner, begun)) {
            break;
        }
    }
    if !scanner.is_scan_complete() {
        progress.wipe();
        print_note(
            "could not check in time whether every stopped sandbox still holds its network; use \
             --wait to allow more time",
        );
    }
    Ok(())
}

fn scan_progress(scanner: &StandaloneScanner, begun: Instant) -> ScanProgress {
    let gauges = scanner.gauges();
    ScanProgress {
        elapsed: begun.elapsed(),
        watched: gauges.watched,
        whole: scanner.is_scan_complete(),
        candidates: gauges.candidates,
        named: scanner.candidates(SCAN_THRESHOLD).len(),
    }
}

/// Waits until all candidates are confirmed or gone.
async fn wait(
    scanner: &mut StandaloneScanner,
    threshold: Duration,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    // Starts now, because the scan is complete only now.
    let candidates = ages(scanner, threshold).into_keys();
    let confirmation = ConfirmationWait::of(candidates, scanner.gauges().watched, threshold);
    loop {
        let gauges = scanner.gauges();
        if confirmation.is_reached(gauges.watched, &ages(scanner, threshold)) {
            return Ok(());
        }
        progress.show(&format!(
            "{} to go; confirmed: {}, candidates: {}",
            span(confirmation.to_go(gauges.watched).as_secs()),
            scanner.list().leaks.len(),
            gauges.candidates
        ));
        tick_in_sync(scanner, progress).await?;
    }
}

/// The age of each candidate.
fn ages(scanner: &StandaloneScanner, threshold: Duration) -> BTreeMap<LeakKey, Age> {
    let mut ages = BTreeMap::new();
    for (age, at_least) in
        [(Age::Young, Duration::ZERO), (Age::Ripe, threshold), (Age::Late, threshold + LATE)]
    {
        ages.extend(scanner.candidates(at_least).into_iter().map(|leak| (leak.key.clone(), age)));
    }
    ages
}

/// Runs one tick, or as many as an outage takes, up to [`OUTAGE`].
async fn tick_in_sync(
    scanner: &mut StandaloneScanner,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        scanner.tick().await?;
        let detection_state = scanner.gauges().detection_state;
        if detection_state == DetectionState::Possible {
            return Ok(());
        }
        if scanner.is_misconfigured() || begun.elapsed() >= OUTAGE {
            progress.wipe();
            bail!(scanner.suspension_reason());
        }
        progress.show(&format!("suspended: {}", words(detection_state.as_str())));
    }
}

/// Prints changes until a signal.
async fn watch(
    scanner: &mut StandaloneScanner,
    namespace: Option<&str>,
    out: &mut Printer,
) -> anyhow::Result<()> {
    let mut stop = StopSignals::of_command()?;
    let mut possible = true;
    let (begun, mut first) = (Instant::now(), FirstScan::new(Mode::Watch));
    let mut opened = false;
    loop {
        if possible != (scanner.gauges().detection_state == DetectionState::Possible) {
            possible = !possible;
            match possible {
                true => print_note("all sources are in sync again"),
                false => print_note(&scanner.suspension_reason()),
            }
        }
        if opened || first.is_over(&scan_progress(scanner, begun)) {
            if !std::mem::replace(&mut opened, true) {
                print_unreadable_parts(scanner);
            }
            let candidates = scanner.candidates(SCAN_THRESHOLD);
            out.put(&LeaksAnswer::new(scanner.list(), candidates, true, namespace))?;
        }
        tokio::select! {
            _ = stop.wait() => return Ok(()),
            turned = scanner.tick() => turned?,
        }
    }
}

/// Prints which parts of the host the list does not cover.
fn print_unreadable_parts(scanner: &StandaloneScanner) {
    let unreadable_parts = scanner.unreadable_parts();
    if !unreadable_parts.is_empty() {
        print_note(&format!(
            "could not read: {}; leaks there are not reported. Run as root on the host or set \
             --host-root (--log-level warn shows the cause)",
            unreadable_parts.join(", ")
        ));
    }
}
