//! Every metric, label and value in the rules and in their tests is one of the catalogue's.

use super::files;
use crate::promql::Vocabulary;
use anyhow::{Error, Result, ensure};
use coroner::outputs::metrics::CATALOGUE;
use promql_parser::{
    parser::{self, AggregateExpr, Expr, LabelModifier},
    util::{ExprVisitor, walk_expr},
};
use std::convert::Infallible;

#[test]
fn the_rules_ask_for_what_the_agent_has() -> Result<()> {
    let rules = files::rules(&files::rule_paths()?)?;
    let vocabulary = Vocabulary::new(files::recorded(&rules));
    for rule in rules.iter().chain(&files::rules(&files::example_paths()?)?) {
        let complaints = vocabulary.complaints(&rule.expr);
        ensure!(complaints.is_empty(), "{}\n{}", rule.expr, complaints.join("\n"));
    }
    Ok(())
}

/// Those of docs/metrics.md, which people will copy.
#[test]
fn the_examples_of_the_catalogue_ask_for_what_the_agent_has() -> Result<()> {
    for entry in &CATALOGUE {
        let complaints = Vocabulary::default().complaints(entry.example);
        ensure!(complaints.is_empty(), "{}\n{}", entry.example, complaints.join("\n"));
        ensure!(entry.example.contains(entry.name), "{}: {}", entry.name, entry.example);
    }
    Ok(())
}

/// A test with a series that no agent has proves nothing.
#[test]
fn the_unit_tests_are_of_series_that_the_agent_has() -> Result<()> {
    let vocabulary = Vocabulary::default();
    for case in files::tests()?.iter().flat_map(|file| &file.tests) {
        for series in &case.input_series {
            // The edges are written out here, as Prometheus 2 or 3 has them.
            let complaints: Vec<_> = vocabulary
                .complaints(&series.series)
                .into_iter()
                .filter(|complaint| !complaint.contains("in Prometheus 2"))
                .collect();
            let (name, series) = (&case.name, &series.series);
            ensure!(complaints.is_empty(), "{name}: {series}\n{}", complaints.join("\n"));
        }
    }
    Ok(())
}

/// The agent's pod changes with each rollout: what is by it ends and begins anew.
#[test]
fn no_rule_is_by_what_a_rollout_changes() -> Result<()> {
    for rule in files::rules(&files::rule_paths()?)? {
        let expression = &rule.expr;
        let parsed = parser::parse(expression).map_err(Error::msg)?;
        let mut groupings = Groupings::default();
        let Ok(_) = walk_expr(&mut groupings, &parsed);
        ensure!(!groupings.open, "{expression}: say by which labels, without() keeps the rest");
        for label in ["pod", "instance", "container", "job", "uid"] {
            let found = groupings.labels.iter().any(|by| by == label);
            ensure!(!found, "{expression}: {label} changes with each rollout");
        }
        let selects_itself = matches!(parsed, Expr::VectorSelector(_));
        ensure!(!selects_itself, "{expression}: aggregate it");
    }
    Ok(())
}

/// By which labels an expression aggregates.
#[derive(Default)]
struct Groupings {
    labels: Vec<String>,
    /// Somewhere by all but some.
    open: bool,
}

impl ExprVisitor for Groupings {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        match expression {
            Expr::Aggregate(AggregateExpr {
                modifier: Some(LabelModifier::Include(by)), ..
            }) => {
                self.labels.extend(by.labels.iter().cloned());
            }
            Expr::Aggregate(AggregateExpr {
                modifier: Some(LabelModifier::Exclude(_)), ..
            }) => {
                self.open = true;
            }
            _ => {}
        }
        Ok(true)
    }
}
