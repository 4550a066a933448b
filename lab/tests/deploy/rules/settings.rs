//! What users set: the addresses that alerts link to, and thresholds.
//!
//! In an expression, a threshold is alone on its line, and a comment behind it is the setting's name. That
//! is all that a kustomize component, a chart or sed needs in order to replace it.

use super::{
    files::{self, RuleFile},
    generated::is_fresh,
};
use crate::{manifest::PrometheusRule, tools::Tool};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
    process::Command,
};

const HEAD: &str = "\
# Puts the values of the ConfigMap coroner-alert-settings into the alerts; values.yaml explains them, and how to use
# this component. Made of dashboards/rules/*.yaml by `cargo xtask docs`.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
replacements:
";

/// A setting's place: where in the object, and between which delimiters.
struct RulePlace {
    path: String,
    delimiter: &'static str,
    index: usize,
}

/// Every setting with its default and its places.
fn settings() -> Result<BTreeMap<String, (String, Vec<RulePlace>)>> {
    let mut settings: BTreeMap<String, (String, Vec<RulePlace>)> = BTreeMap::new();
    for path in files::rule_paths()? {
        for group in files::read::<RuleFile>(&path)?.groups {
            for rule in group.rules {
                let Some(alert) = rule.alert else { continue };
                let base = format!("spec.groups.[name={}].rules.[alert={alert}]", group.name);
                for (index, line) in rule.expr.lines().enumerate() {
                    let Some((value, name)) = line.split_once(" # ") else { continue };
                    let entry = settings.entry(name.to_owned());
                    let (default, places) =
                        entry.or_insert_with(|| (value.trim().to_owned(), Vec::new()));
                    ensure!(default == value.trim(), "{alert}: {name} is {default} elsewhere");
                    value.trim().parse::<f64>().with_context(|| format!("{alert}: {line}"))?;
                    places.push(RulePlace {
                        path: format!("{base}.expr"),
                        delimiter: "\\n",
                        index,
                    });
                }
                for (name, key, delimiter) in [
                    ("runbooks", "runbook_url", "/Coroner"),
                    ("dashboards", "dashboard_url", "/d/coroner-"),
                ] {
                    let url =
                        rule.annotations.get(key).with_context(|| format!("{alert}: {key}"))?;
                    let (value, _) = url.split_once(delimiter).context("a link that can be set")?;
                    let entry = settings.entry(name.to_owned());
                    let (default, places) = entry.or_insert_with(|| (value.to_owned(), Vec::new()));
                    ensure!(default == value, "{alert}: {key} is {default} elsewhere");
                    let path = format!("{base}.annotations.{key}");
                    places.push(RulePlace { path, delimiter, index: 0 });
                }
            }
        }
    }
    Ok(settings)
}

fn folder() -> PathBuf {
    files::workspace().join("deploy/monitoring/settings")
}

#[test]
fn generated_component_has_every_place_of_every_setting() -> Result<()> {
    let mut text = HEAD.to_owned();
    for (name, (_, places)) in settings()? {
        writeln!(
            text,
            "- source: {{kind: ConfigMap, name: coroner-alert-settings, fieldPath: data.{name}}}"
        )?;
        writeln!(text, "  targets:")?;
        for (delimiter, index) in
            places.iter().map(|place| (place.delimiter, place.index)).collect::<BTreeSet<_>>()
        {
            writeln!(text, "  - select: {{kind: PrometheusRule, name: coroner}}")?;
            writeln!(text, "    options: {{delimiter: \"{delimiter}\", index: {index}}}")?;
            writeln!(text, "    fieldPaths:")?;
            for place in places.iter().filter(|p| (p.delimiter, p.index) == (delimiter, index)) {
                writeln!(text, "    - {}", place.path)?;
            }
        }
    }
    is_fresh(&folder().join("kustomization.yaml"), &text)
}

#[derive(Deserialize)]
struct ReplacementValues {
    data: BTreeMap<String, String>,
}

#[test]
fn the_values_are_the_defaults() -> Result<()> {
    let values: ReplacementValues = files::read(&folder().join("values.yaml"))?;
    let defaults = settings()?.into_iter().map(|(name, (default, _))| (name, default));
    assert_eq!(values.data, defaults.collect());
    Ok(())
}

/// As a user's kustomization has them: every value is another one, and nothing else is.
#[test]
fn what_is_set_is_in_the_rules() -> Result<()> {
    let work = tempfile::tempdir()?;
    let mut values = fs::read_to_string(folder().join("values.yaml"))?;
    let other = |name: &str, default: &str| match default.parse::<f64>() {
        Ok(number) => format!("{}", number + 7.0),
        Err(_) => format!("https://{name}.example.org"),
    };
    for (name, (default, _)) in settings()? {
        let line = |value: &str| format!("\n  {name}: {value}\n");
        let quoted = [format!("\"{default}\""), default.clone()];
        let before = quoted.iter().map(|value| line(value)).find(|line| values.contains(line));
        let before = before.with_context(|| format!("values.yaml: {name}"))?;
        values = values.replace(&before, &line(&format!("\"{}\"", other(&name, &default))));
    }
    fs::write(work.path().join("values.yaml"), values)?;
    // Kustomize takes other folders by relative paths only.
    let up = "/..".repeat(fs::canonicalize(work.path())?.components().count());
    let monitoring = fs::canonicalize(files::workspace().join("deploy/monitoring"))?;
    let monitoring = format!(".{up}{}", monitoring.display());
    fs::write(
        work.path().join("kustomization.yaml"),
        format!("resources: [{monitoring}, values.yaml]\ncomponents: [{monitoring}/settings]\n"),
    )?;
    let output = Command::new(Tool::Kubectl.find()?).arg("kustomize").arg(work.path()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    ensure!(!text.contains("kind: ConfigMap"), "{text}");
    let object = text
        .split("\n---\n")
        .find(|object| object.contains("kind: PrometheusRule"))
        .context("no PrometheusRule")?;

    let changed = serde_saphyr::from_str::<PrometheusRule>(object)?.spec.groups;
    let mut expected = Vec::new();
    for path in files::rule_paths()? {
        expected.extend(files::read::<RuleFile>(&path)?.groups);
    }
    for rule in expected.iter_mut().flat_map(|group| &mut group.rules) {
        for (name, (default, _)) in settings()? {
            let value = other(&name, &default);
            let lines = rule.expr.lines().map(|line| match line.split_once(" # ") {
                Some((_, of)) if of == name => value.clone(),
                _ => line.to_owned(),
            });
            rule.expr = lines.collect::<Vec<_>>().join("\n");
            for url in rule.annotations.values_mut() {
                *url =
                    url.replace(&default, if default.contains("//") { &value } else { &default });
            }
        }
    }
    assert_eq!(changed, expected);
    Ok(())
}
