//! `coroner replay`: says again what the agent said while it recorded.

use super::{lists::termination_table, output::json_line, print, print_note};
use crate::config::args::{ReplayArgs, ReplayOutput};
use crate::outputs::{
    recording::{Reader, replay::Replay},
    report,
};
use anyhow::Context;
use std::path::Path;

pub(super) fn main(args: &ReplayArgs) -> anyhow::Result<()> {
    let mut reader = open(&args.file)?;
    let mut replay = Replay::new(reader.header());
    replay.run(&mut reader);
    let open_at_end = replay.open();
    print(&text(&replay, args.output)?)?;
    print_note(&reader.status().to_string());
    if replay.timelines().next().is_none() {
        print_note("the recording contains no pod termination");
    }
    if open_at_end > 0 {
        print_note(&format!(
            "{open_at_end} pods were still terminating at the end of the recording; \
             `coroner explain POD --from FILE` reports them as they are"
        ));
    }
    Ok(())
}

/// A recording, or why not, with the file's name.
pub(super) fn open(file: &Path) -> anyhow::Result<Reader> {
    Reader::open(file).with_context(|| format!("cannot replay {}", file.display()))
}

fn text(replay: &Replay, form: ReplayOutput) -> anyhow::Result<String> {
    match form {
        ReplayOutput::Json => replay.timelines().map(|account| json_line(&**account)).collect(),
        ReplayOutput::Text => {
            let style = report::stdout_style();
            let all = replay.timelines();
            let all: Vec<_> = all.map(|one| report::explain(one, &[], false, &style)).collect();
            Ok(all.join("\n"))
        }
        ReplayOutput::Table | ReplayOutput::Wide => {
            let newest_first: Vec<_> =
                replay.timelines().rev().map(|one| (**one).clone()).collect();
            Ok(termination_table(&newest_first, form == ReplayOutput::Wide))
        }
    }
}
