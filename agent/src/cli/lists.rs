//! `coroner terminations` and `coroner deaths`: the lists of a running agent, once or as they grow.

use super::{
    columns::Columns,
    follow::follow,
    output::{document, json_line},
    print, print_note,
};
use crate::config::args::{ListArgs, ListOutput};
use crate::outputs::report::{self, ended_at, printable, seconds};
use coroner_report::{
    ContainerDeath, List, ListQuery, MilestoneKind, PodRef, PodTermination, openapi,
};
use serde::{Serialize, de::DeserializeOwned};

pub(super) trait Row: Serialize + DeserializeOwned + 'static {
    const PATH: &'static str;
    const NOUN: &'static str;
    const TRY: &'static str;
    fn header(wide: bool) -> Vec<&'static str>;
    fn row(&self, wide: bool) -> Vec<String>;
    fn node(&self) -> &str;
    /// What `explain` takes.
    fn name(&self) -> String;
}

impl Row for PodTermination {
    const PATH: &'static str = openapi::TERMINATIONS;
    const NOUN: &'static str = "pod terminations";
    const TRY: &'static str = "delete a pod on this node to see one";

    fn header(wide: bool) -> Vec<&'static str> {
        let mut header = vec!["NAMESPACE", "POD", "CAUSE", "GRACE", "TOOK", "ENDED", "VERDICTS"];
        if wide {
            header.extend(["LONGEST PHASE", "SANDBOX REMOVED", "FINDINGS", "NOTES", "UID"]);
        }
        header
    }

    fn row(&self, wide: bool) -> Vec<String> {
        let line = report::log_line(self);
        let mut row = vec![
            line.namespace,
            line.pod,
            line.cause.to_owned(),
            self.grace_seconds.map_or_else(none, |grace| format!("{grace} s")),
            seconds(self.took),
            ended_at(self).unwrap_or_else(none),
            line.verdicts,
        ];
        if wide {
            let longest = self.phases.iter().max_by_key(|phase| phase.took);
            row.push(
                longest
                    .map_or_else(none, |phase| format!("{} {}", phase.kind, seconds(phase.took))),
            );
            let removed = self.milestone(MilestoneKind::SandboxRemoved);
            row.push(removed.map_or_else(none, |removed| {
                format!("{:+.3} s", removed.at.signed_since(self.ended) as f64 / 1e9)
            }));
            row.push(or_none(&line.findings));
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
            row.push(or_none(&notes.join(", ")));
            row.push(line.uid);
        }
        row
    }

    fn node(&self) -> &str {
        &self.node
    }

    fn name(&self) -> String {
        pod_name(Some(&self.pod))
    }
}

impl Row for ContainerDeath {
    const PATH: &'static str = openapi::DEATHS;
    const NOUN: &'static str = "container deaths";
    const TRY: &'static str = "delete a pod on this node to see those of its containers";

    fn header(wide: bool) -> Vec<&'static str> {
        let mut header = vec!["NAMESPACE", "POD", "CONTAINER", "VERDICT", "CAUSE", "EXIT", "DIED"];
        if wide {
            header.extend(["FINDINGS", "PROOF", "ID"]);
        }
        header
    }

    fn row(&self, wide: bool) -> Vec<String> {
        let pod = self.pod.as_ref();
        let died = self.milestones.iter().map(|one| one.at).max();
        let died = died.and_then(|at| report::utc(at.time.0, 0));
        let mut row = vec![
            pod.map_or_else(none, |pod| or_none(&pod.namespace)),
            pod.map_or_else(none, |pod| or_none(&pod.name)),
            printable(report::container_name(self)),
            self.verdict.to_string(),
            self.cause.to_string(),
            self.exit.map_or_else(none, report::exit),
            died.unwrap_or_else(none),
        ];
        if wide {
            let findings: Vec<_> = self.findings.iter().map(|one| one.kind.to_string()).collect();
            row.extend([or_none(&findings.join(" ")), or_none(&self.proof.message)]);
            row.push(printable(self.id.as_str()));
        }
        row
    }

    fn node(&self) -> &str {
        &self.node
    }

    fn name(&self) -> String {
        pod_name(self.pod.as_ref()) + "/" + &printable(&self.name)
    }
}

pub(super) fn pod_name(pod: Option<&PodRef>) -> String {
    pod.map_or_else(none, |pod| printable(&format!("{}/{}", pod.namespace, pod.name)))
}

pub(super) fn main<T: Row>(args: &ListArgs) -> anyhow::Result<()> {
    let query = ListQuery {
        namespace: args.namespaces.chosen().map(str::to_owned),
        pod: args.pod.clone(),
        workload: args.time.workload.clone(),
        since: args.time.since.clone(),
        until: args.time.until.clone(),
        container: args.container.clone(),
        verdict: args.verdict.map(|verdict| verdict.to_string()),
        cause: args.cause.map(|cause| cause.to_string()),
        finding: args.finding.map(|finding| finding.to_string()),
        over: args.over.map(|over| format!("{}ms", over.as_millis())),
        sort: args.sort_by,
        limit: args.limit,
        ..ListQuery::default()
    };
    if args.watch {
        let mut columns = columns::<T>(args);
        return super::wait(follow::<T>(&args.agent, T::PATH, &query, |mut list| {
            if list.complete {
                list.items.reverse(); // the oldest first, as what follows
            }
            print(&watched(&mut columns, &list.items, args)?)
        }));
    }
    let list: List<T> = super::wait(args.agent.list(T::PATH, &query))?;
    if list.items.is_empty() && !matches!(args.output, ListOutput::Json | ListOutput::Yaml) {
        print_note(&nothing(&list, T::NOUN, T::TRY, query != ListQuery::default()));
    }
    if list.more && args.limit.is_none() {
        print_note(&format!(
            "only the first {} are shown; use filters (--since, --over, …), or --limit for more",
            list.items.len()
        ));
    }
    print(&match args.output {
        ListOutput::Table | ListOutput::Wide => columns::<T>(args).rows(rows(&list.items, args)),
        ListOutput::Name => list.items.iter().map(|item| item.name() + "\n").collect(),
        form => document(&list, form == ListOutput::Yaml)?,
    })
}

/// `hint`: how to get some.
pub(super) fn nothing<T>(list: &List<T>, noun: &str, hint: &str, is_filtered: bool) -> String {
    let node = &list.node;
    let Some(since) = list.observed_since else {
        return format!("the agent does not observe node {node} yet; run `coroner doctor` there");
    };
    let since = report::utc(since.time.0, 0).unwrap_or_default();
    let which = if is_filtered { " that match" } else { "" };
    format!("no {noun}{which} on node {node}, observed since {since}; {hint}")
}

fn columns<T: Row>(args: &ListArgs) -> Columns {
    let wide = args.output == ListOutput::Wide;
    let mut header = T::header(wide);
    header.extend(wide.then_some("NODE"));
    Columns::new(header)
}

fn rows<T: Row>(items: &[T], args: &ListArgs) -> impl Iterator<Item = Vec<String>> {
    let wide = args.output == ListOutput::Wide;
    items.iter().map(move |item| {
        let mut row = item.row(wide);
        row.extend(wide.then(|| or_none(item.node())));
        row
    })
}

fn watched<T: Row>(columns: &mut Columns, items: &[T], args: &ListArgs) -> anyhow::Result<String> {
    Ok(match args.output {
        ListOutput::Table | ListOutput::Wide => columns.rows(rows(items, args)),
        ListOutput::Name => items.iter().map(|item| item.name() + "\n").collect(),
        ListOutput::Json => items.iter().map(json_line).collect::<anyhow::Result<String>>()?,
        ListOutput::Yaml => {
            let documents = items.iter().map(|item| Ok(document(item, true)? + "---\n"));
            documents.collect::<anyhow::Result<String>>()?
        }
    })
}

/// Of a recording.
pub(super) fn termination_table(all: &[PodTermination], wide: bool) -> String {
    Columns::new(PodTermination::header(wide)).rows(all.iter().map(|report| report.row(wide)))
}

pub(super) fn or_none(text: &str) -> String {
    if text.is_empty() { none() } else { printable(text) }
}

pub(super) fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;

    #[test]
    fn tables() {
        let all = [samples::graceful(), samples::sandbox_removed(), samples::second_life()];
        samples::golden("table.txt", &termination_table(&all, false));
        samples::golden("table_wide.txt", &termination_table(&all, true));
        let deaths = all.iter().flat_map(|report| &report.containers);
        let deaths: Vec<_> = deaths.map(|death| death.row(true)).collect();
        let table = Columns::new(ContainerDeath::header(true)).rows(deaths.into_iter());
        samples::golden("deaths_wide.txt", &table);
    }
}
