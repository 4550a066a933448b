//! docs/dashboards.md says of each panel who acts on it and how.

use super::model::{Dashboard, dashboards, folder, text};
use std::collections::BTreeSet;

/// The panels that a section of the page lists. A stat and a table of one title are told apart by
/// their type in parentheses.
fn listed(page: &str, title: &str) -> BTreeSet<String> {
    let (_, section) = page.split_once(&format!("\n## {title}\n")).expect(title);
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut panels = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 3 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
        assert!(panels.insert(cells[0].to_owned()), "twice: {row}");
    }
    panels
}

#[test]
fn every_panel_is_in_the_docs_with_who_acts_on_it() {
    let page = std::fs::read_to_string(folder().join("../docs/dashboards.md")).unwrap();
    for dashboard in dashboards() {
        let Dashboard { name, json } = &dashboard;
        let title = text(json, "title").trim_start_matches("coroner / ");
        let titles = || dashboard.panels().map(|panel| panel.title().to_owned());
        let shown: BTreeSet<String> = dashboard
            .panels()
            .map(|panel| match titles().filter(|title| title == panel.title()).count() {
                1 => panel.title().to_owned(),
                _ => format!("{} ({})", panel.title(), text(panel.json, "type")),
            })
            .collect();
        assert_eq!(listed(&page, title), shown, "{name}");
    }
}
