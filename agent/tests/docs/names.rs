//! What the docs name exists: flags, variables, metrics, commands.

use crate::pages::{self, Page};
use clap::{Command, CommandFactory};
use coroner::{config::args::Cli, outputs::metrics::CATALOGUE};
use std::{collections::BTreeSet, fs, path::PathBuf};

/// The words of `line` that begin with `prefix`, cut where `wanted` ends.
fn words<'a>(
    line: &'a str,
    prefix: &'a str,
    wanted: impl Fn(char) -> bool + Copy + 'a,
) -> impl Iterator<Item = &'a str> {
    line.match_indices(prefix).filter_map(move |(at, _)| {
        let inside = line[..at].chars().next_back().is_some_and(|c| wanted(c) || c == ':');
        let word = &line[at..];
        let end = word.find(|c| !wanted(c)).unwrap_or(word.len());
        (!inside).then_some(&word[..end])
    })
}

fn flags(line: &str) -> impl Iterator<Item = &str> {
    let of_flag = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let begins = |flag: &&str| flag.starts_with(|c: char| c.is_ascii_lowercase());
    words(line, "--", of_flag).map(|flag| &flag[2..]).filter(begins)
}

/// Flags and variables of all commands.
fn known(command: &Command) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut flags, mut variables) =
        (BTreeSet::from(["help".into(), "version".into()]), BTreeSet::new());
    for argument in command.get_arguments() {
        flags.extend(argument.get_long().map(str::to_owned));
        variables.extend(argument.get_env().map(|env| env.to_string_lossy().into_owned()));
    }
    for command in command.get_subcommands() {
        let (more_flags, more_variables) = known(command);
        flags.extend(more_flags);
        variables.extend(more_variables);
    }
    (flags, variables)
}

/// The source of the project's own tools, whose command lines are no library.
fn sources(files: &[&str]) -> String {
    let read = |file: &&str| fs::read_to_string(pages::root().join(file)).unwrap();
    files.iter().map(read).collect()
}

/// The tools take this flag: a field of clap's, or named in their help.
fn is_of_the_tools(source: &str, flag: &str) -> bool {
    let field = format!(" {}:", flag.replace('-', "_"));
    source.contains(&field)
        || words(source, "--", |c| c.is_ascii_lowercase() || c == '-').any(|f| &f[2..] == flag)
}

/// Pages about coroner alone: a flag in a span is its own there. Others speak of kubectl and cargo.
fn speaks_of_coroner(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| word.contains('=') || *word == "$");
    let first = words.next().unwrap_or_default();
    let through_kubectl = line.contains(" -- coroner ");
    first.starts_with("--") || first == "coroner" || first.ends_with("/coroner") || through_kubectl
}

#[test]
fn every_flag_exists() {
    let (known, _) = known(&Cli::command());
    let tools = sources(&["xtask/src/cli.rs", "lab/src/cli.rs"]);
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages::all() {
        for line in page.code().filter(|line| speaks_of_coroner(line)) {
            // Of `kubectl exec … -- coroner …` what is coroner's.
            let own = line.rsplit_once(" -- ").map_or(line, |(_, own)| own);
            let own = own.split(" #").next().unwrap_or(own);
            for flag in flags(own) {
                checked += 1;
                if !known.contains(flag) && !is_of_the_tools(&tools, flag) {
                    wrong.push(format!("{}: --{flag} in `{line}`", page.name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "no such flags:\n{}", wrong.join("\n"));
    assert!(checked > 20, "{checked} flags");
}

/// And the other way round: whoever installs the agent finds each flag that it takes.
#[test]
fn install_md_has_every_flag_of_run() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let page = Page::read(&pages::root().join("docs/install.md"));
    let told: BTreeSet<&str> = page.code().flat_map(flags).collect();
    for argument in run.get_arguments().chain(command.get_arguments()) {
        let Some(flag) = argument.get_long() else { continue };
        let by_itself = ["help", "version"].contains(&flag);
        assert!(by_itself || told.contains(flag), "--{flag} is not in docs/install.md");
    }
}

#[test]
fn every_variable_exists() {
    let (_, known) = known(&Cli::command());
    // Those of the tests and builds are no flags.
    let tools = rust_files(&["xtask", "lab", "agent/build.rs", "agent/tests/random"]);
    let tools: Vec<_> = tools.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    for page in pages::all() {
        for line in page.code() {
            let of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            for variable in words(line, "CORONER_", of_name).filter(|name| *name != "CORONER_") {
                let elsewhere =
                    || tools.iter().any(|text| text.contains(&format!("\"{variable}\"")));
                let exists = known.contains(variable) || elsewhere();
                assert!(exists, "{}: {variable} in `{line}`", page.name());
            }
        }
    }
}

/// The Rust files below these folders.
pub(crate) fn rust_files(below: &[&str]) -> Vec<PathBuf> {
    let root = pages::root();
    below.iter().flat_map(|folder| crate::rust_files::rust_files(&root.join(folder))).collect()
}

#[test]
fn every_metric_exists() {
    let is_known = |name: &str| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let named = |name: &str| CATALOGUE.iter().any(|entry| entry.name == name);
        // `coroner_leak…`, `coroner_leaks_`*: any that begins so.
        let begins = || name.ends_with('_') && CATALOGUE.iter().any(|e| e.name.starts_with(name));
        named(name) || base.is_some_and(named) || begins()
    };
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages::all() {
        for line in page.code() {
            let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            for name in words(line, "coroner_", of_name).filter(|name| *name != "coroner_") {
                checked += 1;
                if !is_known(name) {
                    wrong.push(format!("{}: {name}", page.name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "no such metrics:\n{}", wrong.join("\n"));
    assert!(checked > 20, "{checked} metrics");
}

#[test]
fn every_command_exists() {
    let command = Cli::command();
    let own: BTreeSet<_> = command.get_subcommands().map(Command::get_name).collect();
    let xtask = sources(&["xtask/src/cli.rs"]);
    let is_xtask = |name: &str| {
        let mut letters = name.chars();
        let variant: String =
            letters.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(letters).collect();
        [" {", "(", ","].iter().any(|after| xtask.contains(&format!("    {variant}{after}")))
    };
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_lowercase());
    for page in pages::all() {
        for line in page.code() {
            let all: Vec<_> = line.split_whitespace().collect();
            for (at, (before, word)) in
                all.iter().zip(all.iter().skip(1)).enumerate().filter(|(_, (_, w))| is_name(w))
            {
                // As the first word, or that of `kubectl exec`; not the namespace of that name.
                if *before == "coroner" && (at == 0 || all[at - 1] == "--") {
                    assert!(own.contains(word), "{}: no command {word}: `{line}`", page.name());
                }
                if *before == "xtask" {
                    assert!(is_xtask(word), "{}: no command {word}: `{line}`", page.name());
                }
            }
        }
    }
}

/// A message that is quoted, `…` for what changes, stands in the source.
#[test]
fn every_message_is_one_that_the_agent_has() {
    let source: String = rust_files(&["agent/core/src", "agent/src"])
        .iter()
        .map(|file| unbroken(&fs::read_to_string(file).unwrap()))
        .collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages::all() {
        for quote in &page.quotes {
            let mut parts = quote.split('…').map(str::trim).filter(|part| part.len() > 2);
            checked += 1;
            if !parts.all(|part| source.contains(part)) {
                wrong.push(format!("{}: {quote}", page.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such messages:\n{}", wrong.join("\n"));
    assert!(checked > 20, "{checked} messages");
}

/// Strings that go on in the next line, in one.
fn unbroken(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

#[test]
fn the_checks_can_fail() {
    assert_eq!(unbroken("\"a b \\\n      c\""), "\"a b c\"");
    assert_eq!(Vec::from_iter(flags("coroner run --no-api --x=1 a--b ---")), ["no-api", "x"]);
    for (line, ours) in [
        ("--state-dir DIR", true),
        ("coroner leaks -v", true),
        ("kubectl -n coroner exec ds/coroner -- coroner doctor --json", true),
        ("kubectl apply --server-side -f deploy/coroner.yaml", false),
        ("cargo test -p coroner --test docs", false),
    ] {
        assert_eq!(speaks_of_coroner(line), ours, "{line}");
    }
    assert!(!is_of_the_tools("    deaths: usize,\n", "death"));
    assert!(is_of_the_tools("    no_fail: bool,\n", "no-fail"));
    let page = Page::read(&pages::root().join("README.md"));
    assert!(page.code().count() > 20);
}
