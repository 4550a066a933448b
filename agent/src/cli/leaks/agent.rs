//! A running agent's answer.

use super::{LeaksAnswer, Mode, Printer, Progress};
use crate::{
    app::stop::StopSignals,
    cli::{follow::follow, print_note},
    outputs::report::{LeakList, span},
};
use anyhow::{Context, bail};
use coroner_api::{ListQuery, client::AgentAddress, leaks::Leak, openapi};
use coroner_core::leak::DetectionState;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

/// Between two looks at the progress.
const PAUSE: Duration = Duration::from_secs(1);
const NO_AGENT: &str = "use --standalone to scan without an agent";

/// Prints the agent's list and returns the number of confirmed leaks.
pub(super) async fn answer(
    agent: &AgentAddress,
    namespace: Option<&str>,
    mode: Mode,
    out: &mut Printer,
) -> anyhow::Result<usize> {
    let query = ListQuery { namespace: namespace.map(str::to_owned), ..ListQuery::default() };
    if mode == Mode::Watch {
        return watch(agent, &query, out).await.map(|()| 0);
    }
    let mut list = ask(agent, &query).await?;
    let mut progress = Progress::new();
    while mode == Mode::Wait && is_early(&list) {
        let detection = &list.progress;
        let (watched, threshold) =
            (span(detection.watched_seconds), span(detection.threshold_seconds));
        progress.show(&format!("leak detection has been active for {watched} of {threshold}"));
        sleep(PAUSE).await;
        list = ask(agent, &query).await?;
    }
    progress.wipe();
    let detection_state = list.progress.detection_state;
    if detection_state != DetectionState::Possible {
        let why = format!("leak detection is suspended on node {}", list.node);
        if list.leaks.is_empty() {
            bail!("{why}: {}", list.suspension);
        }
        print_note(&format!(
            "{why}; the list shows the leaks confirmed before: {}",
            list.suspension
        ));
    }
    let certain = list.leaks.len();
    let answer = LeaksAnswer::new(list, Vec::new(), false, namespace);
    out.put(&answer)?;
    let progress = &answer.list.progress;
    if certain > 0 && progress.candidate_count > 0 {
        let (n, threshold) = (progress.candidate_count, span(progress.threshold_seconds));
        print_note(&format!(
            "{n} more leak candidate(s) on this node, observed for less than {threshold}"
        ));
    }
    Ok(certain)
}

/// It has not watched for long enough to know.
fn is_early(list: &LeakList) -> bool {
    list.progress.detection_state == DetectionState::Possible && !list.progress.has_seen_enough()
}

async fn ask(agent: &AgentAddress, query: &ListQuery) -> anyhow::Result<LeakList> {
    agent.list::<Leak>(openapi::LEAKS, query).await.map(Into::into).context(NO_AGENT)
}

/// Until a signal.
async fn watch(agent: &AgentAddress, query: &ListQuery, out: &mut Printer) -> anyhow::Result<()> {
    let mut stop = StopSignals::of_command()?;
    let mut leaks = BTreeMap::new();
    let watched = follow::<Leak>(agent, openapi::LEAKS, query, |mut list| {
        if list.complete {
            leaks.clear();
        }
        for leak in std::mem::take(&mut list.items) {
            let key = serde_json::to_string(&leak.key)?;
            if leak.resolved {
                leaks.remove(&key)
            } else {
                leaks.insert(key, leak)
            };
        }
        list.items = leaks.values().cloned().collect();
        let namespace = query.namespace.as_deref();
        out.put(&LeaksAnswer::new(list.into(), Vec::new(), false, namespace))
    });
    tokio::select! {
        _ = stop.wait() => Ok(()),
        ended = watched => ended.context(NO_AGENT),
    }
}
