//! The alert and recording rules of `dashboards/rules`, run by Prometheus' own tool: the oldest that docs/alerts.md names, and
//! the newest.

use crate::{
    chart::{OPERATOR, named, rendered},
    tools::{PROMTOOL, PROMTOOL_OLDEST, hold, workspace},
};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The files of a folder below `dashboards/rules`, by name.
pub(crate) fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = workspace().join("dashboards/rules").join(folder);
    let entries = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    Ok(files)
}

pub(crate) fn read(file: &Path) -> Result<Value> {
    serde_saphyr::from_str(&fs::read_to_string(file)?).with_context(|| file.display().to_string())
}

fn promtool(arguments: &[&str], files: &[PathBuf]) -> Result<()> {
    for tool in [PROMTOOL_OLDEST, PROMTOOL] {
        let program = tool.find()?;
        let output = Command::new(&program).args(arguments).args(files).output()?;
        let texts = [output.stdout, output.stderr];
        let texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{}: {}", program.display(), texts.concat());
    }
    Ok(())
}

fn check(files: &[PathBuf]) -> Result<()> {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], files)
}

#[test]
fn prometheus_takes_every_rule() -> Result<()> {
    check(&files("")?)
}

#[test]
fn the_unit_tests_pass() -> Result<()> {
    promtool(&["test", "rules"], &files("tests")?)
}

/// The chart's PrometheusRule: a number of the values replaces the threshold of that name, and nothing else.
#[test]
fn values_change_the_rules_that_they_name() -> Result<()> {
    let rules = |values: Value| -> Result<String> {
        let objects = rendered(&OPERATOR, &json!({"rules": values}))?;
        let text = serde_json::to_string_pretty(&named(&objects, "PrometheusRule")?["spec"])?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("rules.yaml"); // JSON is YAML, too
        fs::write(&file, &text)?;
        check(&[file])?;
        Ok(text)
    };
    let before = rules(json!({}))?;
    let mut groups = Vec::new();
    for file in files("")? {
        groups.extend(read(&file)?["groups"].as_array().context("no groups")?.clone());
    }
    assert_eq!(serde_json::from_str::<Value>(&before)?, json!({"groups": groups}));
    let after = rules(json!({"settings": {
        "leakingSandboxes": 17, "dashboards": "https://grafana.corp/", "runbooks": "https://books.corp/",
    }}))?;
    let expected = before
        .replace("10 # leakingSandboxes", "17 # leakingSandboxes")
        .replace("\"dashboard\": \"", "\"dashboard_url\": \"https://grafana.corp")
        .replace(
            "https://github.com/coroner-dev/coroner/blob/main/dashboards/runbooks",
            "https://books.corp",
        );
    assert_ne!(before, after);
    assert_eq!(after, expected);
    let without = rules(json!({"disabled": ["CoronerEvidenceLost"]}))?;
    assert!(
        before.contains("\"CoronerEvidenceLost\"") && !without.contains("\"CoronerEvidenceLost\"")
    );
    let changed = rules(json!({"overrides": {"CoronerEvidenceLost": {"for": "9h"}}}))?;
    assert!(!before.contains("\"9h\"") && changed.contains("\"9h\""));
    for wrong in [
        json!({"settings": {"leakingSandbox": 17}}),
        json!({"disabled": ["CoronerEvidenceLoss"]}),
        json!({"overrides": {"CoronerEvidenceLoss": {}}}),
    ] {
        assert!(rules(wrong.clone()).is_err(), "{wrong}");
    }
    Ok(())
}

const BEGIN: &str = "<!-- begin: made of dashboards/rules by `cargo xtask docs` -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn generated_tables_list_every_rule() -> Result<()> {
    let page = fs::read_to_string(workspace().join("docs/alerts.md"))?;
    let (before, rest) = page.split_once(BEGIN).context("no begin mark")?;
    let (_, after) = rest.split_once(END).context("no end mark")?;
    let (mut alerts, mut series) = (String::new(), String::new());
    for file in files("")? {
        let groups = read(&file)?["groups"].clone();
        let groups = groups.as_array().into_iter().flatten();
        for rule in groups.flat_map(|group| group["rules"].as_array().into_iter().flatten()) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if let Some(name) = rule["record"].as_str() {
                let expr = text(&rule["expr"]);
                let expr: Vec<_> = expr.split_whitespace().collect();
                writeln!(series, "| `{name}` | `{}` |", expr.join(" ").replace('|', "\\|"))?;
                continue;
            }
            let keep = rule["keep_firing_for"].as_str().map(|keep| format!(", then kept {keep}"));
            writeln!(
                alerts,
                "| [{name}](../dashboards/runbooks/{name}.md) | {} | {}{} | {} |",
                text(&rule["labels"]["severity"]),
                text(&rule["for"]),
                keep.unwrap_or_default(),
                text(&rule["annotations"]["summary"]),
                name = text(&rule["alert"]),
            )?;
        }
    }
    let alerts = format!("| alert | severity | for | summary |\n|---|---|---|---|\n{alerts}");
    let series = format!("| recorded series | expression |\n|---|---|\n{series}");
    hold("docs/alerts.md", &format!("{before}{BEGIN}\n{alerts}\n{series}\n{END}{after}"))
}
