//! `coroner leaks`: lists the leaks of this node, from a running agent or from runtime, apiserver and host.

mod answer;
mod standalone;

use super::{print, print_note, usage};
use crate::{
    config::{
        StandaloneConfig,
        args::{LeaksArgs, ListOutput},
    },
    outputs::report::span,
};
use answer::LeaksAnswer;
use anyhow::{Context, bail};
use coroner_report::{DetectionState, Leak, ListQuery, openapi};
use std::process::ExitCode;

const EXIT_LEAKS: u8 = 3;

pub(super) fn main(args: &LeaksArgs) -> anyhow::Result<ExitCode> {
    let is_table = matches!(args.output, ListOutput::Table | ListOutput::Wide);
    if args.kubelet_log.is_some() && !is_table {
        return Ok(usage("--kubelet-log adds quotes to the text; use it with -o table or wide"));
    }
    let namespace = args.namespaces.chosen();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = if args.standalone {
        match StandaloneConfig::of(args) {
            Err(error) => return Ok(usage(error)),
            Ok(look) => runtime.block_on(standalone::observe(look, namespace)),
        }
    } else {
        runtime.block_on(ask(args, namespace))
    };
    // A survey of the host that hangs (a dead mount) must not keep the process alive.
    runtime.shutdown_background();
    let mut answer = answer?;
    let confirmed = answer.leaks.iter().filter(|leak| leak.resolved_at.is_none()).count();
    if let Some(since) = &args.time.since {
        answer.retain_younger(since);
    }
    print(&answer.text(args)?)?;
    if is_table && answer.is_empty() {
        print_note(&answer.nothing());
    }
    Ok(match args.exit_code && confirmed > 0 {
        true => ExitCode::from(EXIT_LEAKS),
        false => ExitCode::SUCCESS,
    })
}

/// The agent's list, with what is resolved since then if there is a `--since`. With `--exit-code`, an empty list must mean
/// that there is no leak.
async fn ask(args: &LeaksArgs, namespace: Option<&str>) -> anyhow::Result<LeaksAnswer> {
    let conclusive = args.exit_code;
    let query = ListQuery {
        namespace: namespace.map(str::to_owned),
        workload: args.time.workload.clone(),
        until: args.time.until.clone(),
        cause: args.cause.map(|cause| cause.to_string()),
        ..ListQuery::default()
    };
    let is_filtered = ListQuery { namespace: None, ..query.clone() } != ListQuery::default();
    let ask = async |query| args.agent.list::<Leak>(openapi::LEAKS, &query).await;
    let mut list = ask(query.clone())
        .await
        .context("use --standalone to observe this node for two minutes without an agent")?;
    if let Some(since) = &args.time.since {
        let since = ask(ListQuery { since: Some(since.clone()), ..query }).await?.items;
        list.items.extend(since.into_iter().filter(|leak| leak.resolved_at.is_some()));
    }
    let detection = list.detection.unwrap_or_default();
    let answer = LeaksAnswer::new(list.node, detection, list.items, namespace);
    let answer = LeaksAnswer { is_filtered, ..answer };
    let (detection, is_empty) = (&answer.detection, answer.leaks.is_empty());
    let threshold = span(detection.threshold_seconds);
    if detection.state != DetectionState::Possible {
        let why = format!("leak detection is suspended on node {}", answer.node);
        if is_empty {
            bail!("{why}: {}", detection.message);
        }
        let why = format!("{why}; the list shows the leaks confirmed before");
        print_note(&format!("{why}: {}", detection.message));
    } else if is_empty && conclusive && !detection.message.is_empty() {
        bail!("{}", answer.nothing());
    } else if is_empty && conclusive && !detection.has_seen_enough() {
        bail!("{}; ask again after {threshold}", answer.nothing());
    } else if !is_empty && detection.candidate_count > 0 {
        print_note(&format!(
            "{} more leak candidate(s) on this node, observed for less than {threshold}",
            detection.candidate_count
        ));
    }
    Ok(answer)
}
