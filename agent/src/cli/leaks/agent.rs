//! A running agent's answer.

use super::{Answer, Mode, Printer, Progress, Stop};
use crate::{
    cli::print_note,
    outputs::report::{LeakList, span, words},
};
use anyhow::{Context, bail};
use coroner_api::{ListQuery, client::Agent, leaks::Leak, openapi};
use coroner_core::leak::DetectionState;
use std::time::Duration;
use tokio::time::sleep;

/// It changes but once a second.
const PAUSE: Duration = Duration::from_secs(1);

/// Prints the agent's list and returns the number of confirmed leaks.
pub(super) async fn answer(
    agent: &Agent,
    namespace: Option<&str>,
    mode: Mode,
    out: &mut Printer,
) -> anyhow::Result<usize> {
    let mut list = ask(agent, namespace).await?;
    if mode == Mode::Watch {
        return watch(agent, namespace, list, out).await.map(|()| 0);
    }
    let mut progress = Progress::new();
    while mode == Mode::Wait && is_early(&list) {
        let detection = &list.progress;
        let (watched, threshold) =
            (span(detection.watched_seconds), span(detection.threshold_seconds));
        progress.show(&format!("leak detection has been active for {watched} of {threshold}"));
        sleep(PAUSE).await;
        list = ask(agent, namespace).await?;
    }
    progress.wipe();
    let detection_state = list.progress.detection_state;
    if detection_state != DetectionState::Possible {
        let why = words(detection_state.as_str());
        if list.leaks.is_empty() {
            bail!(
                "leak detection is suspended: {why}; see {} for the cause and the remedy",
                agent.page("/readyz")?
            );
        }
        print_note(&format!(
            "leak detection is suspended ({why}); the list shows the leaks confirmed before. See \
             {} for the cause",
            agent.page("/readyz")?
        ));
    }
    let certain = list.leaks.len();
    let answer = Answer::new(list, Vec::new(), false, namespace);
    out.put(&answer)?;
    let progress = &answer.list.progress;
    if certain > 0 && progress.candidate_count > 0 && mode != Mode::Watch {
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

async fn ask(agent: &Agent, namespace: Option<&str>) -> anyhow::Result<LeakList> {
    let query = ListQuery { namespace: namespace.map(str::to_owned), ..ListQuery::default() };
    let asked = agent.list::<Leak>(openapi::LEAKS, &query).await;
    asked.map(Into::into).context("use --standalone to scan without an agent")
}

/// Until a signal. An agent that does not answer may be restarting.
async fn watch(
    agent: &Agent,
    namespace: Option<&str>,
    first: LeakList,
    out: &mut Printer,
) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let mut list = Some(first);
    let mut silent = false;
    loop {
        if let Some(list) = list.take() {
            out.put(&Answer::new(list, Vec::new(), false, namespace))?;
        }
        tokio::select! {
            () = stop.wait() => return Ok(()),
            () = sleep(PAUSE) => {}
        }
        match ask(agent, namespace).await {
            Ok(answer) => (list, silent) = (Some(answer), false),
            Err(error) if !silent => {
                print_note(&format!("{error:#}; retrying every second"));
                silent = true;
            }
            Err(_) => {}
        }
    }
}
