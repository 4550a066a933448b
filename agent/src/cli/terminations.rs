//! `coroner terminations`: asks a running agent over HTTP, prints a table.

use super::columns::columns;
use crate::config::args::{ListOutput, TerminationsArgs};
use crate::outputs::report::{ended_at, seconds};
use coroner_api::{List, ListQuery, openapi, terminations::Termination};
use coroner_core::{report::PodTermination, types::MilestoneKind};
use std::{
    borrow::Borrow,
    io::{self, Write},
};

pub(super) fn main(args: &TerminationsArgs) -> anyhow::Result<()> {
    let agent = super::agent(&args.agent)?;
    let query =
        ListQuery { namespace: args.namespace.clone(), limit: args.limit, ..ListQuery::default() };
    let list: List<Termination> = super::wait(agent.list(openapi::TERMINATIONS, &query))?;
    let text = match args.output {
        ListOutput::Json => serde_json::to_string(&list)?,
        form => {
            let all: Vec<PodTermination> = list.items.into_iter().map(Into::into).collect();
            table(&all, form == ListOutput::Wide)
        }
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    Ok(())
}

/// One row an account; `wide` has more columns.
pub(super) fn table(all: &[impl Borrow<PodTermination>], wide: bool) -> String {
    let mut header = vec!["NAMESPACE", "POD", "CAUSE", "GRACE", "TOOK", "ENDED", "VERDICTS"];
    if wide {
        header.extend(["LONGEST PHASE", "SANDBOX REMOVED", "FINDINGS", "NOTES", "UID"]);
    }
    columns(header, all.iter().map(|account| row(account.borrow(), wide)))
}

fn row(account: &PodTermination, wide: bool) -> Vec<String> {
    let line = crate::outputs::report::log_line(account);
    let mut row = vec![
        line.namespace,
        line.pod,
        line.cause.to_owned(),
        account.grace_seconds.map_or_else(none, |grace| format!("{grace} s")),
        seconds(account.total()),
        ended_at(account).unwrap_or_else(none),
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
        if !line.is_final {
            notes.push("not final".to_owned());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;

    #[test]
    fn tables() {
        let all = [
            samples::graceful(),
            samples::with_sandbox_removed(samples::two_containers()),
            samples::second_life(),
        ];
        samples::golden("table.txt", &table(&all, false));
        samples::golden("table_wide.txt", &table(&all, true));
    }

    #[test]
    fn an_empty_list_is_a_header() {
        assert_eq!(table(&[] as &[PodTermination], false).lines().count(), 1);
    }
}
