//! What a person who opens a dashboard relies on, and no schema demands.

use super::model::{Dashboard, NAMES, dashboards, folder, label_values, list, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_dashboard_can_be_told_from_others() {
    for Dashboard { name, json } in dashboards() {
        assert_eq!(text(&json, "uid"), format!("coroner-{name}"));
        assert!(list(&json["tags"]).any(|tag| tag == "coroner"), "{name}");
        assert!(json["id"].is_null(), "{name}: an id is one Grafana's own");
        assert_eq!(json["version"], 1, "{name}: Grafana counts on from what it has imported");
        for key in ["title", "description", "refresh"] {
            assert!(!text(&json, key).is_empty(), "{name}: {key}");
        }
        assert!(text(&json["time"], "from").starts_with("now-"), "{name}");
    }
}

#[test]
fn each_dashboard_leads_to_the_others() {
    for Dashboard { name, json } in dashboards() {
        let led: BTreeSet<&str> = list(&json["links"])
            .filter_map(|link| text(link, "url").strip_prefix("/d/coroner-"))
            .collect();
        let others: BTreeSet<&str> = NAMES.into_iter().filter(|other| *other != name).collect();
        assert_eq!(led, others, "{name}");
        for link in list(&json["links"]).filter(|link| text(link, "url").starts_with("/d/")) {
            assert!(link["includeVars"] == true && link["keepTime"] == true, "{name}: {link:#}");
        }
    }
}

#[test]
fn panels_lead_to_pages_that_exist() {
    const PLACES: [&str; 2] = [
        "https://github.com/coroner-dev/coroner/blob/main/",
        "https://github.com/coroner-dev/coroner/tree/main/",
    ];
    let dashboards = dashboards();
    let panels = dashboards.iter().flat_map(Dashboard::panels);
    let links: Vec<&str> =
        panels.flat_map(|panel| list(&panel.json["links"]).map(|link| text(link, "url"))).collect();
    assert!(links.len() > 20, "{links:#?}");
    for url in links {
        let page = PLACES.iter().find_map(|place| url.strip_prefix(place));
        let page = page.unwrap_or_else(|| panic!("{url}: no page of coroner's"));
        assert!(folder().join("..").join(page).is_file(), "{url} does not exist");
    }
}

#[test]
fn every_panel_says_what_it_shows_and_in_which_unit() {
    for dashboard in dashboards() {
        for panel in dashboard.panels() {
            let name = format!("{} / {}", panel.dashboard, panel.title());
            if panel.json["type"] == "text" {
                assert!(!text(&panel.json["options"], "content").is_empty(), "{name}");
                continue;
            }
            let description = text(panel.json, "description");
            assert!(description.ends_with('.'), "{name}: {description:?}");
            let defaults = &panel.json["fieldConfig"]["defaults"];
            assert!(!text(defaults, "unit").is_empty(), "{name}");
            assert!(list(&defaults["thresholds"]["steps"]).next().is_some(), "{name}");
            assert!(list(&panel.json["targets"]).next().is_some(), "{name}: no query");
        }
        for query in dashboard.queries() {
            let one_by_one = ["table", "heatmap"].map(Value::from);
            if !one_by_one.contains(&query.panel.json["type"]) {
                assert!(!text(query.json, "legendFormat").is_empty(), "{}", query.name());
            }
        }
    }
}

/// Who has chosen a namespace sees no figures of others.
#[test]
fn every_query_is_of_the_namespaces_that_were_chosen() {
    for dashboard in dashboards() {
        let choice = dashboard.variables().contains_key("namespace");
        for query in dashboard.queries() {
            let series = query.expression().matches('{').count();
            let chosen = query.expression().matches("namespace=~\"$namespace\"").count();
            assert_eq!(chosen, if choice { series } else { 0 }, "{}", query.name());
        }
    }
}

/// Tables lead to dashboards for what a row is of.
#[test]
fn rows_of_tables_lead_to_dashboards_that_exist() {
    let mut found = 0;
    for panel in dashboards().iter().flat_map(Dashboard::panels) {
        let overrides = list(&panel.json["fieldConfig"]["overrides"]);
        let properties = overrides.flat_map(|one| list(&one["properties"]));
        for link in
            properties.filter(|one| one["id"] == "links").flat_map(|one| list(&one["value"]))
        {
            let Some(rest) = text(link, "url").strip_prefix("/d/coroner-") else { continue };
            let name = rest.split('?').next().unwrap_or_default();
            let dashboard = dashboards().into_iter().find(|one| one.name == name);
            let dashboard = dashboard.unwrap_or_else(|| panic!("{link}: no such dashboard"));
            let (_, variable) =
                rest.split_once("&var-").unwrap_or_else(|| panic!("{link}: of all"));
            let variable = variable.split('=').next().unwrap_or_default();
            assert!(dashboard.variables().contains_key(variable), "{link}");
            found += 1;
        }
    }
    assert!(found >= 4, "{found}");
}

#[test]
fn titles_and_ids_are_unique() {
    for dashboard in dashboards() {
        let mut ids = BTreeSet::new();
        let rows = list(&dashboard.json["panels"]).filter(|panel| panel["type"] == "row");
        for panel in rows.chain(dashboard.panels().map(|panel| panel.json)) {
            let id = panel["id"].as_u64().unwrap_or_else(|| panic!("no id: {panel:#}"));
            assert!(ids.insert(id), "{}: {id} is there twice", dashboard.name);
        }
        let mut titles = BTreeSet::new();
        for panel in dashboard.panels() {
            let (title, kind) = (panel.title().to_owned(), text(panel.json, "type").to_owned());
            assert!(titles.insert((title, kind)), "{}: {} twice", panel.dashboard, panel.title());
        }
    }
}

/// Where a panel begins and how far it goes: x, y, width, height.
fn place(panel: &Value) -> [u64; 4] {
    ["x", "y", "w", "h"]
        .map(|key| panel["gridPos"][key].as_u64().unwrap_or_else(|| panic!("no {key}: {panel:#}")))
}

#[test]
fn no_panel_lies_on_another_or_beyond_the_edge() {
    const WIDTH: u64 = 24;
    for dashboard in dashboards() {
        let mut taken: BTreeMap<(u64, u64), String> = BTreeMap::new();
        // What a folded row holds is laid out below it, as it will be once it is unfolded.
        let rows = list(&dashboard.json["panels"]).filter(|panel| panel["type"] == "row");
        for panel in rows.chain(dashboard.panels().map(|panel| panel.json)) {
            let title = text(panel, "title");
            let [x, y, w, h] = place(panel);
            assert!(w > 0 && h > 0 && x + w <= WIDTH, "{}: {title}", dashboard.name);
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                if let Some(other) = taken.insert(cell, title.to_owned()) {
                    panic!("{}: {title} lies on {other}", dashboard.name);
                }
            }
        }
    }
}

#[test]
fn every_query_asks_the_data_source_that_was_chosen() {
    let chosen = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
    for dashboard in dashboards() {
        assert_eq!(dashboard.variables()["datasource"]["type"], "datasource");
        for query in dashboard.queries() {
            assert_eq!(query.json["datasource"], chosen, "{}", query.name());
            assert_eq!(query.panel.json["datasource"], chosen, "{}", query.name());
            let once = query.json["instant"] == true;
            assert_eq!(query.json["range"], !once, "{}", query.name());
            // Beyond a moment, a rate must fit the time between scrapes.
            assert!(!query.expression().contains("$__interval"), "{}", query.name());
            // Which ten are drawn is decided once, at the range's end.
            let moving = query.expression().replace("[$__range] @ end()", "");
            assert!(once || !moving.contains("$__range"), "{}", query.name());
        }
        for (name, variable) in dashboard.variables() {
            if name != "datasource" {
                assert_eq!(variable["datasource"], chosen, "{name}");
                assert!(label_values(variable).is_some(), "{name}: {variable:#}");
            }
        }
    }
}

/// A store that many clusters share has nodes of the same name, and one cluster's figures in another's.
#[test]
fn every_query_is_of_the_clusters_and_nodes_that_were_chosen() {
    const CHOSEN: &str = "cluster=~\"$cluster\",node=~\"$node\"";
    for query in dashboards().iter().flat_map(Dashboard::queries) {
        let expression = query.expression();
        let metrics = expression.matches('{').count();
        assert_eq!(expression.matches(CHOSEN).count(), metrics, "{}", query.name());
        assert!(metrics > 0, "{}", query.name());
        assert!(!expression.contains("by (node"), "{}: node without cluster", query.name());
    }
}

#[test]
fn every_variable_is_used_and_every_used_one_is_there() {
    for dashboard in dashboards() {
        let expressions: String = dashboard.queries().map(|q| q.expression().to_owned()).collect();
        for variable in dashboard.variables().into_keys().filter(|name| *name != "datasource") {
            assert!(
                expressions.contains(&format!("${variable}\"")),
                "{}: {variable}",
                dashboard.name
            );
        }
        for used in expressions.split('$').skip(1) {
            let name: String = used
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                .collect();
            let known = name.starts_with("__") || dashboard.variables().contains_key(name.as_str());
            assert!(known, "{}: ${name}", dashboard.name);
        }
    }
}
