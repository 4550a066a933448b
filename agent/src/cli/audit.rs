//! `coroner audit`: how the running containers will respond to their stop signal.

use super::{
    columns::Columns,
    lists::{none, nothing, or_none, pod_name},
    output::document,
    print, print_note,
};
use crate::{
    config::args::{AuditArgs, AuditOutput},
    outputs::report::printable,
};
use coroner_report::{
    Audit, List, ListQuery, StopResponse, Workload,
    audit::{AuditGroup, SpecPatch, grouped},
    openapi, signal,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn main(args: &AuditArgs) -> anyhow::Result<()> {
    let query = ListQuery {
        namespace: args.namespaces.chosen().map(str::to_owned),
        pod: args.pod.clone(),
        workload: args.workload.clone(),
        container: args.container.clone(),
        response: args.response,
        ..ListQuery::default()
    };
    let list: List<Audit> = super::wait(args.agent.list(openapi::AUDIT, &query))?;
    if list.items.is_empty() && !matches!(args.output, AuditOutput::Json | AuditOutput::Yaml) {
        let hint = "a container is read when it is ready and older than --audit-age";
        print_note(&nothing(&list, "audits", hint, query != ListQuery::default()));
    }
    print(&match args.output {
        AuditOutput::Table => table(&list.items, false),
        AuditOutput::Wide => table(&list.items, true),
        AuditOutput::Name => list.items.iter().map(name).collect(),
        AuditOutput::Patch => patches(&list.items),
        AuditOutput::Json => document(&list, false)?,
        AuditOutput::Yaml => document(&list, true)?,
    })
}

fn name(audit: &Audit) -> String {
    format!("{}/{}\n", pod_name(Some(&audit.pod)), printable(&audit.name))
}

/// One line for each workload and container.
pub(super) fn table(all: &[Audit], wide: bool) -> String {
    let mut header =
        vec!["NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "SIGNAL", "RESPONSE", "CERTAIN", "FIX"];
    if wide {
        header.extend(["WHY", "WARNINGS", "PATCH", "NODE"]);
    }
    Columns::new(header).rows(grouped(all).iter().map(|group| row(group, wide)))
}

fn row(group: &AuditGroup<'_>, wide: bool) -> Vec<String> {
    let of = group.first;
    let is_one = group.workloads == 1;
    let workload = match &of.workload {
        _ if !is_one => format!("{} workloads", group.workloads),
        Some(workload) => workload.to_string(),
        None => format!("Pod/{}", of.pod.name),
    };
    let fix = of.fix.as_deref().unwrap_or(match of.response {
        StopResponse::Waits | StopResponse::HasHandler => "none known to be needed",
        _ => "-",
    });
    let mut row = vec![
        if is_one { or_none(&of.pod.namespace) } else { none() },
        or_none(&workload),
        or_none(&of.name),
        group.pods.to_string(),
        signal::name(of.stop_signal),
        of.response.to_string(),
        if of.certain { "yes" } else { "no" }.to_owned(),
        or_none(fix),
    ];
    if wide {
        let patch = of.patch.as_ref().and_then(|patch| serde_json::to_string(patch).ok());
        row.extend([or_none(&of.why), or_none(&of.warnings.join(" "))]);
        row.extend([or_none(&patch.unwrap_or_default()), or_none(&of.node)]);
    }
    row
}

/// One command for each workload. Only kinds whose pod template can be changed, and names that no shell takes for more than
/// a name.
fn patches(all: &[Audit]) -> String {
    let is_plain = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        !name.starts_with('-') && name.bytes().all(is_plain)
    };
    let mut workloads: BTreeMap<_, SpecPatch> = BTreeMap::new();
    for one in all {
        let Some((of, patch)) = one.workload.as_ref().zip(one.patch.as_ref()) else { continue };
        if [&*one.pod.namespace, &*of.name, &*one.name].into_iter().all(is_plain) {
            workloads.entry((&one.pod.namespace, of)).or_default().merge(patch);
        }
    }
    let command = |((namespace, of), patch): ((&String, &Workload), SpecPatch)| {
        let (kind, name) = (of.kind.to_lowercase(), &of.name);
        let patch = template(of, serde_json::to_value(patch).ok()?)?;
        Some(format!("kubectl -n {namespace} patch {kind} {name} --type strategic -p '{patch}'\n"))
    };
    workloads.into_iter().filter_map(command).collect()
}

fn template(workload: &Workload, pod: Value) -> Option<Value> {
    let template = json!({ "spec": { "template": { "spec": pod } } });
    match &*workload.kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" => {
            Some(template)
        }
        "CronJob" => Some(json!({ "spec": { "jobTemplate": template } })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;

    /// A report's JSON, as an agent sends it.
    fn audit(pod: &str, workload: Value, name: &str, more: Value) -> Audit {
        let pod = json!({ "namespace": "shop", "name": pod, "uid": pod });
        let mut audit = json!({
            "node": "n1", "id": name, "name": name, "pod": pod, "workload": workload,
            "kind": "main", "image": "proxy:1", "response": "ignores", "certain": true,
            "stopSignal": 15, "graceSeconds": 30, "why": "PID 1 (sh) has no handler for SIGTERM.",
            "read": { "time": "2026-11-28T21:27:00Z", "bootNs": 1 },
        });
        let more = more.as_object().into_iter().flatten();
        more.for_each(|(key, value)| audit[key] = value.clone());
        serde_json::from_value(audit).unwrap()
    }

    #[test]
    fn workloads_and_their_patches() {
        let of = |kind: &str, name: &str| json!({ "kind": kind, "name": name });
        let share = json!({ "fix": "Handle it.", "patch": { "shareProcessNamespace": true } });
        let grace = json!({ "response": "has_handler", "certain": false,
            "warnings": ["The grace period is 0."], "patch": { "terminationGracePeriodSeconds": 30 } });
        let waits = json!({ "response": "waits", "certain": false,
            "patch": { "terminationGracePeriodSeconds": 45 } });
        let all = [
            audit("web-1", of("Deployment", "web"), "app", share.clone()),
            audit("web-2", of("Deployment", "web"), "app", share.clone()),
            audit("web-1", of("Deployment", "web"), "proxy", waits.clone()),
            audit("db-0", of("StatefulSet", "db"), "proxy", waits),
            audit("db-0", of("StatefulSet", "db"), "app", grace.clone()),
            audit("nightly-1", of("CronJob", "nightly"), "job", grace.clone()),
            audit("bare", Value::Null, "app", share.clone()),
            audit("x", of("Deployment", "a';reboot'\u{1b}[2J"), "app", share),
            audit(
                "later",
                of("Rollout", "later"),
                "app",
                json!({ "response": "of_a_later_version" }),
            ),
        ];
        samples::golden("audit.txt", &table(&all, false));
        samples::golden("audit_wide.txt", &table(&all, true));
        samples::golden("audit_patches.txt", &patches(&all));
    }
}
