//! A list without an agent: the engine runs for `--for` without the kernel side, and with that as its threshold.

use super::LeaksAnswer;
use crate::{
    cli::{observer::Observer, print_note},
    config::StandaloneConfig,
    linux::clock,
    outputs::report::span,
    sources::kernel,
    store::health::Health,
};
use anyhow::bail;
use coroner_core::input::HostSurvey;
use coroner_report::{Detection, DetectionState, Leak};
use std::time::{Duration, Instant};

/// Maximum outage of a source: longer than a survey of a host of which parts hang, 20 s.
const OUTAGE: Duration = Duration::from_secs(30);
/// What is found this late, because its status or the apiserver had to be asked, was still observed for all of the time.
const LAG: Duration = Duration::from_secs(3);
/// How much longer than the threshold to wait for what confirms a candidate that was observed for all of it: the
/// apiserver's answer, and a survey that began after it: a survey begins a minute after the end of the one before, and may
/// take 20 s.
const LATE: Duration = Duration::from_secs(90);

pub(super) async fn observe(
    look: StandaloneConfig,
    namespace: Option<&str>,
) -> anyhow::Result<LeaksAnswer> {
    let threshold = look.threshold;
    let cgroup_root = kernel::hierarchy(look.cgroup_root.as_deref()).map_err(anyhow::Error::msg)?;
    let node = look.kube.as_ref().map_or_else(String::new, |kube| kube.node.clone());
    let span = span(threshold.as_secs());
    print_note(&format!("observing node {node} for {span}, without an agent"));
    let mut observer = Observer::start(look, cgroup_root, Health::new(true, clock::boot_now()));
    let mut in_sync = Instant::now();
    loop {
        if !observer.step().await? {
            continue;
        }
        let now = clock::boot_now();
        let gauges = observer.engine.gauges().leaks;
        match gauges.detection_state {
            DetectionState::Possible => in_sync = Instant::now(),
            state => {
                let is_wrong =
                    matches!(state, DetectionState::NodeMissing | DetectionState::NodeForeign);
                if is_wrong || in_sync.elapsed() >= OUTAGE {
                    let why = observer.health.suspension(now);
                    bail!("leak detection is suspended on node {node}: {why}");
                }
                continue;
            }
        }
        let waits = || {
            let all_of_it = threshold.saturating_sub(LAG);
            !observer.engine.leak_candidates(now, all_of_it).is_empty()
        };
        if gauges.watched >= threshold + LATE || (gauges.watched >= threshold && !waits()) {
            break;
        }
    }
    let unreadable = observer.survey.as_ref().map_or_else(Vec::new, unreadable_parts);
    if !unreadable.is_empty() {
        print_note(&format!(
            "could not read: {}; leaks there are not reported. Run as root on the host or set \
             --host-root (--log-level warn shows the cause)",
            unreadable.join(", ")
        ));
    }
    let message = observer.health.suspension(clock::boot_now());
    let detection = Detection { message, ..observer.store.detection().clone() };
    let leaks = observer.store.oldest_first().iter().map(|leak| Leak::clone(leak)).collect();
    let candidates = observer.engine.leak_candidates(clock::boot_now(), Duration::ZERO);
    Ok(LeaksAnswer::new(node, detection, leaks, namespace).with_candidates(candidates))
}

fn unreadable_parts(survey: &HostSurvey) -> Vec<&'static str> {
    [
        ("shims", survey.shims.is_none()),
        ("network namespaces", survey.netns.is_none()),
        ("pod cgroups", survey.pod_cgroups.is_none()),
        ("volumes", survey.volumes.is_none()),
    ]
    .into_iter()
    .filter_map(|(what, is_unreadable)| is_unreadable.then_some(what))
    .collect()
}
