//! What libFuzzer says at the end of a run → what it came to. Pure, save that an input is read.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};

/// Fewer executions than so many a second, and next to nothing was tried. The slowest target makes
/// hundreds on an idle machine.
const FEWEST_A_SECOND: u64 = 2;
/// An input of more bytes than this is not shown as text.
const SHOWN: usize = 16 << 10;
/// So much of its output is shown of a target that failed.
const TAIL_LINES: usize = 40;

/// What one target's runs came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FuzzOutcome {
    /// Its name.
    pub(crate) target: String,
    executions: u64,
    time: Duration,
    /// Edges of the code that were reached.
    coverage: u64,
    /// Those that the last run found, beyond what the inputs it began with reach.
    new_edges: u64,
    /// Those, with how often and with which operands.
    features: u64,
    memory_mib: u64,
    trouble: Option<String>,
}

impl FuzzOutcome {
    /// Reads what a run wrote, and the input that broke it.
    ///
    /// # Errors
    /// When that input cannot be read.
    pub(crate) fn of(target: &str, time: Duration, success: bool, text: &str) -> Result<Self> {
        let stat = |name: &str| number(text, &format!("stat::{name}:"));
        let executions = stat("number_of_executed_units").unwrap_or_default();
        // The last: an input that was merely slow is written down too, and the run goes on.
        let artifact = text.lines().rev().find_map(|line| {
            line.split_once("Test unit written to ").map(|(_, path)| PathBuf::from(path.trim()))
        });
        let trouble = match artifact.filter(|_| !success) {
            Some(path) => {
                let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                Some(reproducer(target, &path.display().to_string(), &bytes, text))
            }
            None if !success => Some(format!("fuzz target {target} failed:\n{}", tail(text))),
            None => few(executions, time).map(|why| format!("fuzz target {target}: {why}")),
        };
        let coverage = last(text, "cov:");
        Ok(Self {
            target: target.to_owned(),
            executions,
            time,
            coverage,
            new_edges: coverage - first(text, "cov:").min(coverage),
            features: last(text, "ft:"),
            memory_mib: stat("peak_rss_mb").unwrap_or_default(),
            trouble,
        })
    }

    /// Why it failed, with all that is needed to see it again.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether more runs are of no use: it failed, or the last run found nothing and enough were made.
    pub(crate) fn is_quiet(&self, executions: u64) -> bool {
        self.trouble.is_some() || (self.new_edges == 0 && self.executions >= executions)
    }

    /// This and a later run of the same target.
    pub(crate) fn then(self, later: Self) -> Self {
        Self {
            executions: self.executions + later.executions,
            time: self.time + later.time,
            memory_mib: self.memory_mib.max(later.memory_mib),
            ..later
        }
    }

    /// One line between two runs.
    pub(crate) fn progress(&self) -> String {
        format!(
            "fuzz target {}: {} new edges of {}, {} executions so far",
            self.target, self.new_edges, self.coverage, self.executions
        )
    }
}

/// Why so few executions prove nothing.
fn few(executions: u64, time: Duration) -> Option<String> {
    let wanted = FEWEST_A_SECOND * time.as_secs();
    (executions < wanted).then(|| {
        format!(
            "{executions} executions in {} s prove nothing (at least {wanted} are wanted): did it \
             run at all, or is an input of its corpus slow?",
            time.as_secs()
        )
    })
}

fn reproducer(target: &str, path: &str, bytes: &[u8], text: &str) -> String {
    let shown = if bytes.len() <= SHOWN {
        let coded = base64(bytes);
        format!(
            "\nthe input, in base64:\n{coded}\nelsewhere: echo {coded} | base64 --decode >input; \
             cargo xtask fuzz {target} --input input"
        )
    } else {
        String::new()
    };
    format!(
        "fuzz target {target} broke on {} bytes: {path}\n{}\n\
         to see it again: cargo xtask fuzz {target} --input {path}{shown}",
        bytes.len(),
        tail(text)
    )
}

/// What the target itself said: the panic's message and the stack, without the statistics.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(['#', '\t']) && !line.starts_with("stat::"))
        .collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// The number behind `name`, in a line of its own.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The number behind `name` in the last line of progress that has it.
fn last(text: &str, name: &str) -> u64 {
    text.lines().rev().find_map(|line| progress_number(line, name)).unwrap_or_default()
}

/// The same in the line that libFuzzer writes once it has executed the inputs it began with.
fn first(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.contains("\tINITED "));
    line.and_then(|line| progress_number(line, name)).unwrap_or_default()
}

fn progress_number(line: &str, name: &str) -> Option<u64> {
    let mut words = line.strip_prefix('#')?.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| -> String {
        let all = group.iter().chain(&[0, 0]).take(3);
        let word = all.fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let digit = |at: usize| match at {
            at if at > group.len() => '=',
            at => char::from(DIGITS[(word >> (18 - 6 * at) & 63) as usize]),
        };
        (0..4).map(digit).collect()
    };
    bytes.chunks(3).map(group).collect()
}

/// All of them, for a person.
pub(crate) fn table(outcomes: &[FuzzOutcome]) -> String {
    let mut lines = vec![
        String::new(),
        format!(
            "{:<14}{:>12}{:>9}{:>10}{:>8}{:>11}{:>10}{:>6}",
            "fuzz target",
            "executions",
            "minutes",
            "a second",
            "edges",
            "last found",
            "features",
            "MiB"
        ),
    ];
    for outcome in outcomes {
        lines.push(format!(
            "{:<14}{:>12}{:>9}{:>10}{:>8}{:>11}{:>10}{:>6}  {}",
            outcome.target,
            outcome.executions,
            format!("{}m{:02}s", outcome.time.as_secs() / 60, outcome.time.as_secs() % 60),
            outcome.executions / outcome.time.as_secs().max(1),
            outcome.coverage,
            outcome.new_edges,
            outcome.features,
            outcome.memory_mib,
            if outcome.trouble.is_none() { '✔' } else { '✘' }
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const WELL: &str = "\
INFO: Seed: 1
#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 40Mb
#4096\tpulse  cov: 90 ft: 200 corp: 7/80b lim: 40 exec/s: 2048 rss: 41Mb
#9000\tDONE   cov: 97 ft: 311 corp: 9/99b lim: 80 exec/s: 150 rss: 44Mb
Done 9000 runs in 60 second(s)
stat::number_of_executed_units: 9000
stat::average_exec_per_sec:     150
stat::peak_rss_mb:              44
";

    #[test]
    fn a_run_that_found_nothing_is_counted() {
        let outcome = FuzzOutcome::of("btf", MINUTE, true, WELL).expect("nothing to read");
        assert_eq!(outcome.trouble(), None);
        let told = (outcome.executions, outcome.coverage, outcome.features, outcome.memory_mib);
        assert_eq!(told, (9000, 97, 311, 44));
        let text = table(std::slice::from_ref(&outcome));
        assert!(text.contains("9000") && text.contains("150") && text.ends_with('✔'), "{text}");
    }

    #[test]
    fn a_target_is_quiet_after_a_run_without_a_new_edge() {
        let run = |text: &str| FuzzOutcome::of("btf", MINUTE, true, text).expect("nothing to read");
        let (found, quiet) = (run(WELL), run(&WELL.replace("cov: 97", "cov: 10")));
        assert_eq!((found.new_edges, quiet.new_edges), (87, 0));
        assert!(!found.is_quiet(9000) && quiet.is_quiet(9000) && !quiet.is_quiet(9001));
        let both = found.clone().then(quiet);
        assert_eq!((both.executions, both.time), (18_000, MINUTE * 2));
        assert!(both.is_quiet(18_000) && !both.is_quiet(18_001));
        assert!(!both.then(found).is_quiet(9000), "the last run counts");
        let broken = FuzzOutcome::of("btf", MINUTE, false, "no such file").expect("read");
        assert!(broken.is_quiet(9000), "a target that fails is not run again");
    }

    #[test]
    fn a_crash_is_told_with_all_that_it_takes_to_see_it_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let input = folder.path().join("crash-1");
        fs::write(&input, b"ab\xff").expect("written");
        let text = format!(
            "thread '<unnamed>' panicked at agent/src/x.rs:1:1:\noverflow\n{WELL}\
             artifact_prefix='x/'; Test unit written to {}\n",
            input.display()
        );
        let outcome = FuzzOutcome::of("btf", MINUTE, false, &text).expect("read");
        let trouble = outcome.trouble().expect("it broke");
        let command = format!("cargo xtask fuzz btf --input {}", input.display());
        assert!(trouble.contains(&command) && trouble.contains("YWL/"), "{trouble}");
        assert!(trouble.contains("overflow") && !trouble.contains("pulse"), "{trouble}");
        assert!(table(&[outcome]).ends_with('✘'));
        fs::remove_file(&input).expect("removed");
        assert!(
            FuzzOutcome::of("btf", MINUTE, false, &text).is_err(),
            "an input that is not there"
        );
    }

    #[test]
    fn a_target_that_did_not_run_fails() {
        let trouble = |success, text: &str| {
            let outcome = FuzzOutcome::of("btf", MINUTE, success, text).expect("nothing to read");
            outcome.trouble().map(str::to_owned)
        };
        let slow = WELL.replace(" 9000\n", " 119\n");
        assert!(trouble(true, &slow).is_some_and(|why| why.contains("at least 120")));
        assert!(trouble(true, "").is_some_and(|why| why.contains("0 executions")));
        assert!(trouble(false, "no such file").is_some_and(|why| why.contains("no such file")));
    }

    #[test]
    fn base64_is_padded() {
        for (bytes, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), coded);
        }
    }
}
