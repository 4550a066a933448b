//! Every metric, label and value in a dashboard is one of the catalogue's.

use super::model::{Dashboard, NAMES, Substitution, dashboards, label_values, list, text};
use crate::promql::Vocabulary;

/// What is shown in an hour, on a wide console, of a scrape twice a minute.
fn substitution() -> Substitution {
    let all = Substitution::new(3600, 15, 30);
    all.with("$cluster", ".*").with("$node", ".*").with("$namespace", ".*").with("$job", "coroner")
}

#[test]
fn the_panels_ask_for_what_the_agent_has() {
    let vocabulary = Vocabulary::default();
    for query in dashboards().iter().flat_map(Dashboard::queries) {
        let expression = substitution().apply(query.expression());
        let complaints = vocabulary.complaints(&expression);
        assert!(complaints.is_empty(), "{}\n{expression}\n{complaints:#?}", query.name());
    }
}

#[test]
fn the_annotations_ask_for_what_there_is() {
    let vocabulary = Vocabulary::default();
    let mut found = 0;
    for Dashboard { name, json } in dashboards() {
        for annotation in list(&json["annotations"]["list"]).filter(|one| one["expr"].is_string()) {
            let complaints = vocabulary.complaints(&substitution().apply(text(annotation, "expr")));
            assert!(complaints.is_empty(), "{name}: {complaints:#?}");
            found += 1;
        }
    }
    assert!(found >= NAMES.len(), "{found}");
}

#[test]
fn the_variables_have_the_values_of_labels_that_there_are() {
    let vocabulary = Vocabulary::default();
    for dashboard in dashboards() {
        for variable in dashboard.variables().into_values() {
            let Some((metric, label)) = label_values(variable) else { continue };
            let expression = substitution().apply(&format!("sum by ({label}) ({metric})"));
            let complaints = vocabulary.complaints(&expression);
            assert!(complaints.is_empty(), "{}: {complaints:#?}", dashboard.name);
        }
    }
}

/// A rate over fewer than four scrapes is empty where one of them fails.
#[test]
fn variables_become_what_grafana_puts_in_their_place() {
    let told = substitution().apply("rate(x{n=~\"$node\"}[$__rate_interval]) + y offset $__range");
    assert_eq!(told, "rate(x{n=~\".*\"}[120s]) + y offset 3600s");
    let wide = Substitution::new(86_400, 600, 30).apply("$__rate_interval");
    assert_eq!(wide, "630s");
}
