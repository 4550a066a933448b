//! Every alert has what whoever is woken by it needs, and is proven to fire and to be silent.

use super::files::{self, Rule};
use anyhow::{Context as _, Result, ensure};
use promql_parser::{
    parser::{self, Expr, VectorSelector},
    util::{ExprVisitor, walk_expr},
};
use std::{collections::BTreeSet, convert::Infallible, fs};

const RUNBOOKS: &str = "https://github.com/coroner-dev/coroner/blob/main/dashboards/runbooks";

/// The deployed ones, and those that are off by default; the example of an objective has names of its own.
fn alerts() -> Result<Vec<(String, Rule)>> {
    let rules = files::rules(&[files::rule_paths()?, files::example_paths()?].concat())?;
    let alerts = rules.into_iter().filter_map(|rule| Some((rule.alert.clone()?, rule)));
    Ok(alerts.filter(|(name, _)| name.starts_with("Coroner")).collect())
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_it_means() -> Result<()> {
    for (name, rule) in alerts()? {
        let severity = rule.labels.get("severity").map(String::as_str);
        let known = ["critical", "warning", "info"].map(Some).contains(&severity);
        ensure!(known, "{name}: severity is critical, warning or info, not {severity:?}");
        ensure!(rule.hold.is_some(), "{name}: without `for`, one scrape is enough");
        for annotation in ["summary", "description"] {
            let text = rule.annotations.get(annotation).map(String::as_str).unwrap_or_default();
            ensure!(text.ends_with('.'), "{name}: its {annotation} is to be a sentence: {text:?}");
        }
        // Alertmanager takes it as the headline of a group, whose alerts are of many nodes.
        let summary = rule.annotations.get("summary").map(String::as_str).unwrap_or_default();
        ensure!(!summary.contains("{{"), "{name}: its summary is to be static: {summary:?}");
        let url = rule.annotations.get("runbook_url").map(String::as_str).unwrap_or_default();
        ensure!(url == format!("{RUNBOOKS}/{name}.md"), "{name}: its runbook_url is {url:?}");
        let url = rule.annotations.get("dashboard_url").map(String::as_str).unwrap_or_default();
        let uid = url.split_once("/d/coroner-").map_or("", |(_, rest)| rest);
        let uid = uid.split(['?', '{']).next().unwrap_or_default();
        let file = files::workspace().join(format!("dashboards/{uid}.json"));
        ensure!(file.is_file(), "{name}: its dashboard_url is of no dashboard: {url:?}");
    }
    Ok(())
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() -> Result<()> {
    let folder = files::workspace().join("dashboards/runbooks");
    let mut runbooks = BTreeSet::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?;
        let alert = name.strip_suffix(".md").context("a runbook is a *.md")?;
        let text = fs::read_to_string(&path)?;
        ensure!(text.starts_with(&format!("# {alert}\n")), "{name} does not begin with its name");
        for heading in ["Meaning", "How to check", "What to do", "False alarms"] {
            ensure!(text.contains(&format!("\n## {heading}\n")), "{name} has no part {heading:?}");
        }
        runbooks.insert(alert.to_owned());
    }
    let alerts: BTreeSet<String> = alerts()?.into_iter().map(|(name, _)| name).collect();
    let only = |these: &BTreeSet<String>, others| these.difference(others).cloned().collect();
    let (without, lonely): (Vec<_>, Vec<_>) = (only(&alerts, &runbooks), only(&runbooks, &alerts));
    ensure!(without.is_empty(), "no runbook in {}: {without:?}", folder.display());
    ensure!(lonely.is_empty(), "no alert has these runbooks: {lonely:?}");
    Ok(())
}

#[test]
fn every_alert_is_seen_to_fire_and_to_be_silent() -> Result<()> {
    let tests = files::tests()?;
    let asked = |name: &str, fires: bool| {
        tests
            .iter()
            .flat_map(|file| &file.tests)
            .flat_map(|case| &case.alert_rule_test)
            .any(|asked| asked.alertname == name && asked.exp_alerts.is_empty() != fires)
    };
    let examples = files::rules(&files::example_paths()?)?;
    let shown = examples.into_iter().filter_map(|rule| rule.alert);
    for name in alerts()?.into_iter().map(|(name, _)| name).chain(shown) {
        ensure!(asked(&name, true), "no unit test in which {name} fires");
        ensure!(asked(&name, false), "no unit test in which {name} is silent");
    }
    Ok(())
}

/// By itself, or through what is made of it.
#[test]
fn whatever_is_recorded_is_tested() -> Result<()> {
    let rules = files::rules(&files::rule_paths()?)?;
    let mut used = Used::default();
    for case in files::tests()?.iter().flat_map(|file| &file.tests) {
        for test in &case.promql_expr_test {
            used.note(&test.expr)?;
        }
    }
    for rule in &rules {
        used.note(&rule.expr)?;
    }
    for name in files::recorded(&rules) {
        ensure!(used.has(&name), "no unit test asks for {name}, and no rule uses it");
    }
    Ok(())
}

/// A recorded series costs an evaluation a minute, and means something only to who reads it: an alert, or
/// the example of an objective.
#[test]
fn whatever_is_recorded_is_used_by_an_alert() -> Result<()> {
    let rules = files::rules(&[files::rule_paths()?, files::example_paths()?].concat())?;
    let mut used = Used::default();
    for rule in &rules {
        used.note(&rule.expr)?;
    }
    for name in files::recorded(&rules) {
        ensure!(used.has(&name), "no alert, no rule and no example uses {name}");
    }
    Ok(())
}

/// What expressions select.
#[derive(Default)]
struct Used(Vec<VectorSelector>);

impl Used {
    fn note(&mut self, expression: &str) -> Result<()> {
        let parsed =
            parser::parse(expression).map_err(anyhow::Error::msg).context(expression.to_owned())?;
        let Ok(_) = walk_expr(self, &parsed);
        Ok(())
    }

    fn has(&self, metric: &str) -> bool {
        self.0.iter().any(|selector| {
            let mut names = selector.matchers.matchers.iter().filter(|m| m.name == "__name__");
            selector.name.as_deref() == Some(metric)
                || names.any(|matcher| matcher.is_match(metric))
        })
    }
}

impl ExprVisitor for Used {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        match expression {
            Expr::VectorSelector(selector) => self.0.push(selector.clone()),
            Expr::MatrixSelector(matrix) => self.0.push(matrix.vs.clone()),
            _ => {}
        }
        Ok(true)
    }
}
