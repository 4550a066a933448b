//! docs/kubelet.md: its tables are made from the patterns that the agent reads the kubelet's log by.

use coroner::sources::kubelet::table::{EVENT, EVENT_LEVEL, Logged, event_reasons, patterns};
use coroner_core::{input::KubeletStatement, types::StageKind};
use std::{env, fmt::Write as _, fs, path::Path};

/// The tables come between these lines.
const BEGIN: &str = "<!-- made by agent/tests/docs/kubelet.rs: UPDATE_GOLDEN=1 writes it again -->";

fn versions(logged: &Logged) -> String {
    match (logged.first, logged.last) {
        (23, 36) => "all".to_owned(),
        (first, 36) => format!("1.{first} on"),
        (23, last) => format!("to 1.{last}"),
        (first, last) if first == last => format!("1.{first}"),
        (first, last) => format!("1.{first}–1.{last}"),
    }
}

/// A line of the table for each place that logs a message.
fn tables() -> String {
    let mut text = String::from(
        "| message | kubelets | `-v` | upstream | coroner's name |\n|---|---|---:|---|---|\n",
    );
    for pattern in patterns() {
        for logged in pattern.logged {
            let (versions, level) = (versions(logged), logged.level);
            let message = pattern.text;
            writeln!(
                text,
                "| {message} | {versions} | {level} | {}, {} | `{}` |",
                logged.file, logged.function, pattern.statement
            )
            .unwrap();
        }
    }
    text.push_str("\n| Event | coroner's name |\n|---|---|\n");
    for (reason, statement) in event_reasons() {
        writeln!(text, "| {reason} | `{statement}` |").unwrap();
    }
    text
}

#[test]
fn kubelet_md_has_every_message() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubelet.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, _) = page.split_once(BEGIN).expect("the marker");
    let wanted = format!("{before}{BEGIN}\n\n{}", tables());
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/kubelet.md is stale: UPDATE_GOLDEN=1 writes it again");
}

#[test]
fn kubelet_md_names_statements_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubelet.md");
    let page = fs::read_to_string(path).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |"));
    for row in rows {
        let name = row.trim_end_matches("` |").rsplit('`').next().unwrap_or_default();
        let is_stage = StageKind::ALL.iter().any(|one| one.as_str() == name);
        assert!(is_stage || KubeletStatement::ALL.iter().any(|one| one.as_str() == name), "{row}");
    }
    for stage in StageKind::ALL {
        let cell = format!("`{stage}`");
        let mut rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        assert!(rows.any(|first| first.contains(&cell)), "{stage} has no row");
    }
}

#[test]
fn the_steps_of_kubelet_md_have_the_message_and_verbosity_of_the_newest_kubelet() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubelet.md");
    let page = fs::read_to_string(path).unwrap();
    let mut steps = 0;
    for row in page.lines() {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [step, message, level, name] = cells[..] else { continue };
        if step.parse::<u8>().is_err() {
            continue;
        }
        steps += 1;
        let of = |text: &[u8], statement: KubeletStatement| {
            message.as_bytes().starts_with(text) && name == format!("`{statement}`")
        };
        let logged = patterns().find(|known| of(known.text.as_bytes(), known.statement));
        let logged = logged.map(|known| known.logged.iter().max_by_key(|one| one.last).unwrap());
        let event = || event_reasons().any(|(_, statement)| of(EVENT, statement));
        let wanted = logged.map(|one| (one.last, one.level));
        let wanted = wanted.or_else(|| event().then_some((36, EVENT_LEVEL)));
        assert_eq!(wanted, Some((36, level.parse().unwrap())), "{row}");
    }
    assert!(steps > 90, "{steps}");
}
