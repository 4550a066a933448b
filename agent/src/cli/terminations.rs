//! `coroner terminations`: asks a running agent over HTTP, prints a table.

use super::args::{ListOutput, TerminationsArgs};
use crate::{
    domain::observation::{MilestoneKind, PodTermination},
    report::seconds,
};
use anyhow::{Context, bail};
use axum::body::Body;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    io::{self, Write},
    time::Duration,
};

/// More than --history can ever hold.
const MAX_BODY: usize = 256 << 20;
/// An agent answers from memory.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn main(args: &TerminationsArgs) -> anyhow::Result<()> {
    let body = fetch(args)?;
    let text = match args.output {
        ListOutput::Json => body,
        form => table(
            &serde_json::from_str::<Vec<PodTermination>>(&body)
                .context("the agent's answer is not understood: is it of another version?")?,
            form,
        ),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    Ok(())
}

fn fetch(args: &TerminationsArgs) -> anyhow::Result<String> {
    let uri = uri(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match tokio::time::timeout(PATIENCE, get(uri.clone())).await {
            Ok(answer) => answer,
            Err(_) => bail!("{uri} did not answer within {} s", PATIENCE.as_secs()),
        }
    })
}

async fn get(uri: Uri) -> anyhow::Result<String> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::get(uri.clone()).body(Body::empty())?;
    let answer = client.request(request).await.with_context(|| {
        format!("no agent answers at {uri}: is `coroner run` running, and --url its address?")
    })?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{uri}: {error}"))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status != StatusCode::OK {
        bail!("{uri} answers {status}: {}", text.trim());
    }
    Ok(text)
}

fn uri(args: &TerminationsArgs) -> anyhow::Result<Uri> {
    let mut query = Vec::new();
    if let Some(namespace) = &args.namespace {
        query.push(format!("namespace={}", encode(namespace)));
    }
    if let Some(limit) = args.limit {
        query.push(format!("limit={limit}"));
    }
    let mut parts = args.url.clone().into_parts();
    let path = format!("/api/v1/terminations?{}", query.join("&"));
    parts.path_and_query = Some(path.parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// Percent-encodes all that a query may not hold as it is.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                (byte as char).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn table(all: &[PodTermination], form: ListOutput) -> String {
    let wide = form == ListOutput::Wide;
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["NAMESPACE", "POD", "CAUSE", "GRACE", "TOOK", "ENDED", "VERDICTS"];
    if wide {
        header.extend(["LONGEST PHASE", "SANDBOX REMOVED", "FINDINGS", "NOTES", "UID"]);
    }
    table.set_header(header);
    for account in all {
        table.add_row(row(account, wide));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn row(account: &PodTermination, wide: bool) -> Vec<String> {
    let line = crate::report::log_line(account);
    let mut row = vec![
        line.namespace,
        line.pod,
        line.cause.to_owned(),
        account.grace_seconds.map_or_else(none, |grace| format!("{grace} s")),
        seconds(account.total()),
        ended(account),
        line.verdicts,
    ];
    if wide {
        let longest = account.phases.iter().max_by_key(|phase| phase.to.since(phase.from));
        row.push(longest.map_or_else(none, |phase| {
            format!("{} {}", phase.kind, seconds(phase.to.since(phase.from)))
        }));
        let removed = account.milestone(MilestoneKind::SandboxRemoved);
        row.push(removed.map_or_else(none, |removed| {
            format!("{:+.3} s", removed.at.signed_since(account.ended) as f64 / 1e9)
        }));
        row.push(if line.findings.is_empty() { none() } else { line.findings });
        let mut notes = Vec::new();
        if line.truncated {
            notes.push("truncated".to_owned());
        }
        if !line.incomplete.is_empty() {
            notes.push(format!("incomplete: {}", line.incomplete));
        }
        row.push(if notes.is_empty() { none() } else { notes.join(", ") });
        row.push(line.uid);
    }
    row
}

fn none() -> String {
    "-".to_owned()
}

/// When it ended, by the node's wall clock, in UTC.
fn ended(account: &PodTermination) -> String {
    let took = i64::try_from(account.total().as_nanos()).unwrap_or(i64::MAX);
    let wall = account.began_wall_ns.saturating_add(took);
    jiff::Timestamp::from_nanosecond(i128::from(wall))
        .map_or_else(|_| none(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn the_question() {
        for url in ["http://h:1", "http://h:1/"] {
            let args = TerminationsArgs {
                url: url.parse().unwrap(),
                namespace: Some("a&b".into()),
                limit: Some(3),
                output: ListOutput::Table,
            };
            let wanted = "http://h:1/api/v1/terminations?namespace=a%26b&limit=3";
            assert_eq!(uri(&args).unwrap().to_string(), wanted);
        }
    }

    #[test]
    fn tables() {
        let all = [
            samples::graceful(),
            samples::with_sandbox_removed(samples::two_containers()),
            samples::second_life(),
        ];
        samples::golden("table.txt", &table(&all, ListOutput::Table));
        samples::golden("table_wide.txt", &table(&all, ListOutput::Wide));
    }

    #[test]
    fn an_empty_list_is_a_header() {
        assert_eq!(table(&[], ListOutput::Table).lines().count(), 1);
    }
}
