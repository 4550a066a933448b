//! What a person sees. With `--json` it goes to stderr, and stdout belongs to the objects.

use coroner::outputs::report::{self, Style};
use coroner_api::terminations::Termination;
use coroner_core::{leak::Leak, report::PodTermination, time::WallTime};
use serde::Serialize;
use std::{
    io::{self, Write as _},
    time::Instant,
};

/// Where the lines go.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    json: bool,
    began: Instant,
}

impl Console {
    /// `json`: stdout is for objects only.
    pub fn new(json: bool) -> Self {
        Self { json, began: Instant::now() }
    }

    /// A line of progress, with the seconds since the start.
    pub fn step(&self, what: &str) {
        self.print(&format!("[{:5.1} s] {what}\n", self.began.elapsed().as_secs_f64()));
    }

    /// Text as it is. A reader that went away is no reason to stop: the lab must be taken down.
    pub fn print(&self, text: &str) {
        if self.json {
            let _ = io::stderr().write_all(text.as_bytes());
        } else {
            let _ = io::stdout().write_all(text.as_bytes());
        }
    }

    /// One object on stdout, on a line of its own.
    pub fn object(&self, object: &impl Serialize) {
        if self.json
            && let Ok(line) = serde_json::to_string(object)
        {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// One timeline on stdout, on a line of its own.
    pub fn timeline(&self, timeline: &PodTermination) {
        if let Ok(line) = serde_json::to_string(&Termination::from(timeline)) {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// A termination as `coroner` itself shows it.
    pub fn waterfall(&self, timeline: &PodTermination) -> String {
        let style = if self.json { Style::default() } else { Style::for_stdout() };
        report::termination(timeline, &style)
    }

    /// A termination as `coroner explain` shows it.
    pub fn explanation(&self, timeline: &PodTermination) -> String {
        let style = if self.json { Style::default() } else { Style::for_stdout() };
        report::explain(timeline, &[], &style)
    }

    /// Something that was left behind, as `coroner` itself shows it.
    pub fn leak(&self, leak: &Leak) -> String {
        let style = if self.json { Style::default() } else { Style::for_stdout() };
        let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        report::leak(leak, WallTime(now), &style)
    }
}
