//! What tests came to.

use std::fs;

use crate::{
    steps::{note, tail},
    workspace::Workspace,
};

/// How much is printed of why a test binary failed, characters.
const REASON: usize = 500;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Why, for each test binary and each step that failed.
    pub(crate) reasons: Vec<String>,
}

impl Tally {
    /// Something that has no tests, and failed.
    pub(crate) fn of_failure(reason: String) -> Self {
        Self { passed: 0, failed: 1, reasons: vec![reason] }
    }

    /// Reads what a test binary printed. An ignored test is a failure, and so is a binary that fails without a failed
    /// test, or succeeds without having passed as many as `least`. The text of a failure is kept in `target/failed`.
    pub(crate) fn of_run(
        workspace: &Workspace,
        name: &str,
        (success, text): &(bool, String),
        least: u64,
    ) -> Self {
        // A test's own output may precede the result on its line.
        let results = text.lines().filter_map(|line| line.split_once("test result: "));
        let results: Vec<_> = results.map(|(_, result)| result).collect();
        let sum = |word| results.iter().map(|result| number_before(result, word)).sum::<u64>();
        let (passed, mut failed, ignored) = (sum("passed"), sum("failed"), sum("ignored"));
        let why = match () {
            () if failed > 0 => excerpt(text),
            () if !success => tail(text, 12),
            () if ignored > 0 => format!("{ignored} tests are ignored, and prove nothing"),
            () if results.is_empty() || passed < least => {
                format!("{passed} tests passed, and not {least} at least")
            }
            () => return Self { passed, ..Self::default() },
        };
        failed = failed.max(ignored).max(1);
        let file = workspace.failed().join(format!("{name}.log"));
        let kept = fs::create_dir_all(workspace.failed()).and_then(|()| fs::write(&file, text));
        if let Err(error) = kept {
            note(&format!("cannot keep the output in {}: {error}", file.display()));
        }
        let why: String = why.chars().take(REASON).collect();
        let reason = format!("{name} (all of its output: {}):\n{why}", file.display());
        Self { passed, failed, reasons: vec![reason] }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.reasons.extend(other.reasons);
    }
}

/// The first lines of what each failed test printed.
fn excerpt(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_mark =
        |line: &str| ["---- ", "panicked at ", "Error: "].iter().any(|mark| line.contains(mark));
    let marks = (0..lines.len()).filter(|at| is_mark(lines[*at]));
    let mut shown = Vec::new();
    for at in marks.flat_map(|at| at..lines.len().min(at + 4)) {
        if shown.last().is_none_or(|last| *last < at) {
            shown.push(at);
        }
    }
    shown.into_iter().map(|at| lines[at]).collect::<Vec<_>>().join("\n")
}

fn number_before(text: &str, word: &str) -> u64 {
    let words: Vec<&str> = text.split([' ', ';']).filter(|word| !word.is_empty()).collect();
    let found = words.windows(2).find(|pair| pair[1] == word);
    found.and_then(|pair| pair[0].parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mistake here would let a gate pass that ran nothing.
    #[test]
    fn a_run_that_proves_nothing_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(folder.path());
        let run = |success, text: &str, least| {
            let tally = Tally::of_run(&workspace, "a", &(success, text.to_owned()), least);
            (tally.passed, tally.failed)
        };
        let result = |passed, failed, ignored| {
            format!(
                "x test result: ok. {passed} passed; {failed} failed; {ignored} ignored; 0 measured\n"
            )
        };
        assert_eq!(run(true, &result(2, 0, 0), 1), (2, 0));
        assert_eq!(run(true, &result(0, 0, 0), 0), (0, 0), "a library without tests");
        assert_eq!(run(true, &result(0, 0, 0), 1), (0, 1), "no test ran");
        assert_eq!(run(true, "", 0), (0, 1), "it printed no result");
        assert_eq!(run(true, &result(2, 0, 1), 1), (2, 1), "an ignored test");
        assert_eq!(run(false, &result(2, 0, 0), 1), (2, 1), "it died");
        assert_eq!(run(false, &(result(2, 1, 0) + &result(1, 2, 0)), 1), (3, 3));
    }
}
