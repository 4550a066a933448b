//! docs/kubelet.md: its table is made from the messages that `--kubelet-log` reads.

use coroner::cli::kubelet_log::table::{MESSAGES, Message};
use std::{env, fmt::Write as _, fs, path::Path};

/// The table comes after this line.
const BEGIN: &str = "<!-- made by agent/tests/docs/kubelet.rs: UPDATE_GOLDEN=1 writes it again -->";

fn versions(message: &Message) -> String {
    match message.versions {
        (23, 36) => "all".to_owned(),
        (first, 36) => format!("1.{first} on"),
        (_, last) => format!("to 1.{last}"),
    }
}

fn table() -> String {
    let mut text = String::from("| message | kubelets | `-v` | states |\n|---|---|---:|---|\n");
    for message in MESSAGES {
        let stage = message.stage.map(|(_, stage)| format!("stage `{stage}`"));
        let why = message.why.map(|_| "why something is not removed".to_owned());
        let success = (stage.is_none() && why.is_none()).then(|| "a success".to_owned());
        let states: Vec<_> = stage.into_iter().chain(why).chain(success).collect();
        let (versions, level, states) = (versions(message), message.level, states.join("; "));
        writeln!(text, "| {} | {versions} | {level} | {states} |", message.text).unwrap();
    }
    text
}

#[test]
fn kubelet_md_has_every_message() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubelet.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, _) = page.split_once(BEGIN).expect("the marker");
    let wanted = format!("{before}{BEGIN}\n\n{}", table());
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/kubelet.md is stale: UPDATE_GOLDEN=1 writes it again");
}
