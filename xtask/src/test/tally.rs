//! Reads what test binaries say of themselves.

/// Tests that passed, failed, or did not run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many passed.
    pub(crate) passed: u64,
    /// How many failed; a binary that died without a result counts as one.
    pub(crate) failed: u64,
    /// How many said themselves that they do not run.
    pub(crate) ignored: u64,
    /// How many were left out by the binary's arguments.
    pub(crate) filtered: u64,
}

impl Tally {
    /// Sums the `test result:` lines of a run, wherever in its output they stand; `None`: there is none.
    pub(crate) fn of(output: &str) -> Option<Self> {
        let (mut tally, mut any) = (Self::default(), false);
        for line in output.lines() {
            // A test's own output may precede it on the line.
            let Some((_, result)) = line.split_once("test result: ") else {
                continue;
            };
            any = true;
            tally.passed += number_before(result, "passed");
            tally.failed += number_before(result, "failed");
            tally.ignored += number_before(result, "ignored");
            tally.filtered += number_before(result, "filtered");
        }
        any.then_some(tally)
    }

    /// Adds what another run counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.filtered += other.filtered;
    }
}

/// What the reason of one failed test takes at least, in characters: others are left out before it takes less.
const LEAST_CHARACTERS: usize = 300;
/// How much follows a panic that is printed where it happens.
const PANIC_LINES: usize = 4;
/// How much of the end is repeated where no test says why it failed.
const END_LINES: usize = 12;

/// Why a run failed, in about so many characters: what its failed tests said, without stack backtraces, or
/// else the end of it all.
pub(crate) fn reasons(output: &str, characters: usize) -> String {
    let lines = without_backtraces(output);
    let told = lines.iter().copied().skip_while(|line| *line != "failures:").skip(1);
    let mut tests: Vec<Vec<&str>> = Vec::new();
    // The names of all of them follow, under the same heading.
    for line in told.take_while(|line| *line != "failures:") {
        match tests.last_mut() {
            _ if line.starts_with("---- ") => tests.push(vec![line]),
            Some(test) => test.push(line),
            None => {}
        }
    }
    if tests.is_empty() {
        // With --nocapture it is said where it happens.
        let panics = lines.iter().enumerate().filter(|(_, line)| line.contains("panicked at "));
        tests =
            panics.map(|(at, _)| lines[at..lines.len().min(at + PANIC_LINES)].to_vec()).collect();
    }
    if tests.is_empty() {
        tests.push(lines[lines.len().saturating_sub(END_LINES)..].to_vec());
    }
    let most = (characters / LEAST_CHARACTERS).max(1);
    let more = tests.len().saturating_sub(most);
    tests.truncate(most);
    let each = characters / tests.len();
    let mut told: Vec<String> =
        tests.iter().map(|test| shortened(&test.join("\n"), each)).collect();
    if more > 0 {
        told.push(format!("[… and {more} more]"));
    }
    told.join("\n")
}

/// All lines but empty ones and stack backtraces, of which each frame is indented.
fn without_backtraces(output: &str) -> Vec<&str> {
    let mut is_backtrace = false;
    let mut is_told = |line: &&str| {
        let begins = line.trim().eq_ignore_ascii_case("stack backtrace:");
        is_backtrace = begins || is_backtrace && line.starts_with(' ');
        !is_backtrace && !line.trim().is_empty() && !line.starts_with("note: ")
    };
    output.lines().filter(|line| is_told(line)).collect()
}

/// The begin and the end of it, if it has more characters than this.
fn shortened(text: &str, characters: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= characters {
        return text.to_owned();
    }
    let half = characters / 2;
    let (begin, end) = (&all[..half], &all[all.len() - half..]);
    begin.iter().chain(&[' ', '[', '…', ']', ' ']).chain(end).collect()
}

fn number_before(text: &str, word: &str) -> u64 {
    let words: Vec<&str> = text.split([' ', ';']).filter(|w| !w.is_empty()).collect();
    words.windows(2).find(|pair| pair[1] == word).and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            noise test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out\n";
        let sum = Tally { passed: 7, failed: 2, ignored: 1, filtered: 5 };
        assert_eq!(Tally::of(output), Some(sum));
    }

    #[test]
    fn reasons_are_what_failed_tests_said() {
        let said: String = (1..=60).map(|line| format!("line {line}\n")).collect();
        let output = format!(
            "running 3 tests\nfailures:\n\n---- one stdout ----\n\npanicked at a.rs:1:\nno\nstack backtrace:\n   \
             0: main\n             at ./a.rs:1:2\nnote: Some\nError: no\n\nCaused by:\n    0: a\n    1: b\n---- two ----\n{said}\n\n\
             failures:\n    one\n    two\n"
        );
        let expected = "---- one stdout ----\npanicked at a.rs:1:\nno\nError: no\nCaused by:\n    0: a\n    1: b\n---- two ----\nline 1\n\
            line 2";
        let reasons = reasons(&output, 600);
        assert!(reasons.starts_with(expected), "{reasons}");
        assert!(reasons.contains(" […] ") && reasons.ends_with("\nline 60"), "{reasons}");
    }

    #[test]
    fn where_no_test_said_why_the_end_is_the_reason() {
        let said: String = (1..=20).map(|line| format!("line {line}\n")).collect();
        // As with --nocapture.
        let output = format!(
            "{said}\nfailures:\n\nfailures:\n    one\n\ntest result: FAILED. 0 passed; 1 failed\n"
        );
        let reasons = reasons(&output, 999);
        assert_eq!(reasons.lines().count(), END_LINES);
        assert!(reasons.starts_with("line 13\n") && reasons.ends_with("1 failed"), "{reasons}");
        let output = output.replace("line 3\n", "thread 'main' panicked at a.rs:1:\nno\n");
        let panic = "thread 'main' panicked at a.rs:1:\nno\nline 4\nline 5";
        assert_eq!(super::reasons(&output, 999), panic);
    }

    #[test]
    fn reasons_are_bounded() {
        let tests: String =
            (1..=99).map(|n| format!("---- {n} ----\n{}\n", "ö".repeat(999))).collect();
        let reasons = reasons(&format!("failures:\n{tests}failures:\n"), 1000);
        assert!(
            reasons.chars().count() < 1100 && reasons.ends_with("[… and 96 more]"),
            "{reasons}"
        );
    }

    #[test]
    fn no_result_is_nothing() {
        assert_eq!(Tally::of("running 3 tests\nkilled\n"), None);
    }
}
