//! What is made of the rules: the PrometheusRule object, and the tables of docs/alerts.md.

use super::files::{self, Group, Rule, RuleFile};
use crate::manifest::PrometheusRule;
use anyhow::{Context as _, Result, ensure};
use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Writes the file under `UPDATE_GOLDEN`, else compares.
pub(crate) fn is_fresh(path: &Path, text: &str) -> Result<()> {
    if env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, text).with_context(|| path.display().to_string());
    }
    let present = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    ensure!(
        present == text,
        "{} is not what dashboards/rules makes of it; UPDATE_GOLDEN=1 cargo test -p coroner-lab \
         --test rules writes it",
        path.display()
    );
    Ok(())
}

const OBJECT: &str = "\
# Made of dashboards/rules/*.yaml by `cargo xtask docs`: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: coroner
  namespace: coroner
  labels:
    app.kubernetes.io/name: coroner
spec:
  groups:
";

fn manifest() -> PathBuf {
    files::workspace().join("deploy/monitoring/prometheusrule.yaml")
}

/// The files' own text, comments and all, two columns further in.
fn object() -> Result<String> {
    let mut object = OBJECT.to_owned();
    for path in files::rule_paths()? {
        let text = fs::read_to_string(&path)?;
        let (head, groups) = text.split_once("groups:\n").context("a rule file has groups")?;
        let comment = head.lines().map(|line| format!("    {line}"));
        let groups = groups.lines().map(|line| format!("  {line}"));
        for line in comment.chain(groups) {
            object.push_str(line.trim_end());
            object.push('\n');
        }
    }
    Ok(object)
}

#[test]
fn the_prometheusrule_is_what_the_rule_files_are() -> Result<()> {
    is_fresh(&manifest(), &object()?)?;
    let object: PrometheusRule = files::read(&manifest())?;
    let mut groups: Vec<Group> = Vec::new();
    for path in files::rule_paths()? {
        groups.extend(files::read::<RuleFile>(&path)?.groups);
    }
    ensure!(object.spec.groups == groups, "the object says other things than the rule files");
    Ok(())
}

const BEGIN: &str = "<!-- begin: made of dashboards/rules by `cargo xtask docs` -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn the_docs_list_every_rule() -> Result<()> {
    let path = files::workspace().join("docs/alerts.md");
    let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (before, rest) = page.split_once(BEGIN).context("docs/alerts.md has no begin mark")?;
    let (_, after) = rest.split_once(END).context("docs/alerts.md has no end mark")?;
    is_fresh(&path, &format!("{before}{BEGIN}{}{END}{after}", tables()?))
}

fn tables() -> Result<String> {
    let rules = files::rules(&files::rule_paths()?)?;
    let mut text = "\n| alert | severity | for | summary |\n|---|---|---|---|\n".to_owned();
    for rule in &rules {
        let Some(alert) = &rule.alert else { continue };
        let of = |map: &std::collections::BTreeMap<String, String>, key: &str| {
            map.get(key).cloned().unwrap_or_default()
        };
        let hold = rule.hold.clone().unwrap_or_default();
        let keep = rule.keep_firing_for.as_ref().map(|keep| format!(", then kept {keep}"));
        writeln!(
            text,
            "| [{alert}](../dashboards/runbooks/{alert}.md) | {} | {hold}{} | {} |",
            of(&rule.labels, "severity"),
            keep.unwrap_or_default(),
            for_a_person(&of(&rule.annotations, "summary"))
        )?;
    }
    text += "\n| recorded series | expression |\n|---|---|\n";
    for rule in &rules {
        let Some(record) = &rule.record else { continue };
        writeln!(text, "| `{record}{}` | `{}` |", added(rule), in_a_line(&rule.expr))?;
    }
    text.push('\n');
    Ok(text)
}

/// The labels that the rule adds.
fn added(rule: &Rule) -> String {
    let labels: Vec<_> =
        rule.labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// A table's cell: one line, and no bar that would end it.
fn in_a_line(expression: &str) -> String {
    expression.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A template with its variables' names in the place of their values: `{{ $labels.node }}` → *node*.
fn for_a_person(template: &str) -> String {
    let mut pieces = template.split("{{");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (variable, rest) = piece.split_once("}}").unwrap_or((piece, ""));
        let name = variable.split('|').next().unwrap_or_default().trim();
        let name = name.strip_prefix("$labels.").unwrap_or(name.trim_start_matches('$'));
        text += &format!("*{name}*{rest}");
    }
    text
}
