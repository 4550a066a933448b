//! Counts what test binaries say of themselves.

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
    fn no_result_is_nothing() {
        assert_eq!(Tally::of("running 3 tests\nkilled\n"), None);
    }
}
