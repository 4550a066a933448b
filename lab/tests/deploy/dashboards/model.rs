//! The dashboards as Grafana reads them, as far as the tests need them.

use serde_json::Value;
use std::{collections::BTreeMap, fs, path::PathBuf};

/// The names of the files, without their ends.
pub(crate) const NAMES: [&str; 4] = ["fleet", "namespace", "leaks", "agent"];

/// Where they are.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../dashboards")
}

pub(crate) struct Dashboard {
    pub(crate) name: &'static str,
    pub(crate) json: Value,
}

/// One panel, of a row that is folded too.
pub(crate) struct Panel<'a> {
    pub(crate) dashboard: &'static str,
    pub(crate) json: &'a Value,
}

/// One query of a panel.
pub(crate) struct Query<'a> {
    pub(crate) panel: Panel<'a>,
    pub(crate) json: &'a Value,
}

/// All of them.
pub(crate) fn dashboards() -> Vec<Dashboard> {
    NAMES.into_iter().map(Dashboard::read).collect()
}

/// The elements of a list; of what is none, nothing.
pub(crate) fn list(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

/// A text that must be there.
pub(crate) fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_else(|| panic!("{key} is missing: {of:#}"))
}

impl Dashboard {
    fn read(name: &'static str) -> Self {
        let file = folder().join(format!("{name}.json"));
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        Self { name, json }
    }

    /// Its panels, with those of rows that are folded, and without the rows.
    pub(crate) fn panels(&self) -> impl Iterator<Item = Panel<'_>> {
        list(&self.json["panels"])
            .flat_map(|panel| std::iter::once(panel).chain(list(&panel["panels"])))
            .filter(|panel| panel["type"] != "row")
            .map(|json| Panel { dashboard: self.name, json })
    }

    /// The queries of all its panels.
    pub(crate) fn queries(&self) -> impl Iterator<Item = Query<'_>> {
        self.panels().flat_map(|panel| {
            let Panel { dashboard, json: of } = panel;
            list(&of["targets"])
                .map(move |json| Query { panel: Panel { dashboard, json: of }, json })
        })
    }

    /// Its variables by name.
    pub(crate) fn variables(&self) -> BTreeMap<&str, &Value> {
        list(&self.json["templating"]["list"]).map(|one| (text(one, "name"), one)).collect()
    }
}

impl Panel<'_> {
    pub(crate) fn title(&self) -> &str {
        text(self.json, "title")
    }
}

impl Query<'_> {
    pub(crate) fn expression(&self) -> &str {
        text(self.json, "expr")
    }

    /// Dashboard, panel and letter.
    pub(crate) fn name(&self) -> String {
        let Panel { dashboard, .. } = self.panel;
        format!("{dashboard} / {} / {}", self.panel.title(), text(self.json, "refId"))
    }
}

/// What Grafana puts in the place of variables.
#[derive(Clone, Debug)]
pub(crate) struct Substitution(Vec<(&'static str, String)>);

impl Substitution {
    /// `range`: from the beginning to the end of what is shown, in s; `step`: between two points of
    /// it; `scrape`: between two scrapes. As Grafana's Prometheus data source has it
    /// (`calculateRateInterval`): a rate needs four scrapes, or one more than there are in a step.
    pub(crate) fn new(range: u64, step: u64, scrape: u64) -> Self {
        let rate = (step + scrape).max(4 * scrape);
        // The longer of two that begin alike comes first.
        Self(vec![
            ("$__rate_interval", format!("{rate}s")),
            ("$__interval", format!("{step}s")),
            ("$__range", format!("{range}s")),
        ])
    }

    /// One of the dashboard's own variables.
    pub(crate) fn with(mut self, variable: &'static str, value: &str) -> Self {
        self.0.push((variable, value.to_owned()));
        self
    }

    /// The query that Prometheus gets. Panics where a variable has no value.
    pub(crate) fn apply(&self, expression: &str) -> String {
        let told = self
            .0
            .iter()
            .fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value));
        assert!(!told.contains('$'), "a variable that nobody knows: {told}");
        told
    }
}

/// The metric and the label of `label_values(METRIC, LABEL)`.
pub(crate) fn label_values(variable: &Value) -> Option<(&str, &str)> {
    let query = variable["query"]["query"].as_str()?;
    let inner = query.strip_prefix("label_values(")?.strip_suffix(')')?;
    inner.split_once(", ")
}
