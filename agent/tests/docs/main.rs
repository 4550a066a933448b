//! What the docs name exists: targets of links, flags, metrics. `cargo xtask docs` writes the generated pages, and the
//! tests beside what they are made of fail while one is stale.

mod kubelet;

use clap::{Command, CommandFactory};
use coroner::{config::args::Cli, outputs::metrics::CATALOGUE};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// One file of Markdown.
struct Page {
    path: PathBuf,
    /// What a link's fragment may name.
    anchors: BTreeSet<String>,
    /// Where links lead.
    links: Vec<String>,
    /// Code within a line, and lines of blocks.
    code: Vec<String>,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let mut page = Self { path, anchors: BTreeSet::new(), links: Vec::new(), code: Vec::new() };
        let (mut heading, mut is_code) = (None::<String>, false);
        let mut seen = BTreeMap::<String, usize>::new();
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let times = seen.entry(slug.clone()).or_default();
                    *times += 1;
                    let earlier = *times - 1;
                    page.anchors.insert(if earlier == 0 {
                        slug
                    } else {
                        format!("{slug}-{earlier}")
                    });
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    is_code = !matches!(kind, CodeBlockKind::Fenced(info) if &*info == "mermaid");
                }
                Event::End(TagEnd::CodeBlock) => is_code = false,
                Event::Text(text) if is_code => page.code.extend(text.lines().map(str::to_owned)),
                Event::Text(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
                // What is gone is named there, and only there.
                Event::Code(_) if page.anchors.contains("renamed-and-removed") => {}
                Event::Code(span) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&span));
                    page.code.push(span.into_string());
                }
                _ => {}
            }
        }
        page
    }
}

/// A heading's anchor, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Those at the root, and below the folders that hold documentation.
fn pages() -> Vec<Page> {
    let mut files = vec![];
    let mut open = vec![(root(), false)];
    while let Some((folder, is_whole)) = open.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_docs = ["docs", "dashboards", "deploy"].iter().any(|dir| path.ends_with(dir));
            if path.is_dir() && (is_whole || is_docs) {
                open.push((path, true));
            } else if path.extension().is_some_and(|ext| ext == "md") {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 8, "only {files:?}");
    files.into_iter().map(Page::read).collect()
}

/// Each word of the pages' code that begins with `prefix` and goes on with what is `wanted`, with what stands before it.
fn check(prefix: &str, wanted: fn(char) -> bool, mut exists: impl FnMut(&str, &str) -> bool) {
    let mut checked = 0;
    for page in pages() {
        for line in &page.code {
            for (at, _) in line.match_indices(prefix) {
                let rest = &line[at + prefix.len()..];
                let word = &rest[..rest.find(|c| !wanted(c)).unwrap_or(rest.len())];
                let is_inside = line[..at].ends_with(|c| wanted(c) || c == ':');
                if !is_inside && word.starts_with(|c: char| c.is_ascii_lowercase()) {
                    checked += 1;
                    let is_there = exists(&line[..at], word);
                    assert!(is_there, "{}: no {prefix}{word} in `{line}`", page.path.display());
                }
            }
        }
    }
    assert!(checked > 20, "{checked} of {prefix}");
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let own = page.path.clone();
            let target = if file.is_empty() { own } else { page.path.with_file_name(file) };
            let is_page = target.extension().is_some_and(|ext| ext == "md");
            let is_there = target.exists()
                && (fragment.is_empty()
                    || !is_page
                    || Page::read(target).anchors.contains(fragment));
            if !is_there {
                broken.push(format!("{}: {link}", page.path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn every_flag_exists() {
    fn flags(command: &Command) -> Vec<String> {
        let own = command.get_arguments().filter_map(|argument| argument.get_long());
        own.map(str::to_owned).chain(command.get_subcommands().flat_map(flags)).collect()
    }
    let cli = Cli::command();
    // The project's tools are no library: a flag is a field of clap's.
    let tools = ["xtask/src/cli.rs", "lab/src/cli.rs"];
    let tools = tools.map(|path| fs::read_to_string(root().join(path)).unwrap());
    let of_tool = |flag: &str| {
        let names = [format!(" {}:", flag.replace('-', "_")), format!("long = \"{flag}\"")];
        tools.iter().any(|tool| names.iter().any(|name| tool.contains(name)))
    };
    check(
        "--",
        |c| c.is_ascii_alphanumeric() || c == '-',
        |before, flag| {
            let words: Vec<&str> = before.split_whitespace().collect();
            let ends = |word: &&str| ["|", "--", "&&", "sudo", "#"].contains(word);
            let begin = words.iter().rposition(ends).map_or(0, |at| at + 1);
            let is_set = |word: &&&str| word.contains('=');
            let command = words[begin..].iter().skip_while(is_set).copied().collect::<Vec<_>>();
            let is_global = |flag| cli.get_arguments().any(|one| one.get_long() == Some(flag));
            let of = |command: &Command| flags(command).iter().any(|one| one == flag);
            match command[..] {
                _ if ["help", "version"].contains(&flag) || is_global(flag) => true,
                ["cargo", "xtask", ..] => of_tool(flag),
                [name, ref rest @ ..] if name == "coroner" || name.ends_with("/coroner") => {
                    rest.iter().find_map(|word| cli.find_subcommand(word)).is_some_and(of)
                }
                // One without its command; a flag of kubectl, cargo or helm is theirs.
                [first, ..] if !first.starts_with("--") => true,
                _ => of(&cli) || of_tool(flag),
            }
        },
    );
}

#[test]
fn every_metric_exists() {
    // Attributes of what is exported, as Loki names them.
    let exported = include_str!("../golden/otlp.txt").replace('.', "_");
    check(
        "coroner_",
        |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_',
        |_, name| {
            if name == "recording" || exported.contains(&format!(" coroner_{name}=")) {
                return true; // the first field of a recording
            }
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            CATALOGUE.iter().filter_map(|entry| entry.name.strip_prefix("coroner_")).any(|known| {
                // `coroner_leak…`, `coroner_leaks_*`: any that begins so.
                known == name
                    || Some(known) == base
                    || name.ends_with('_') && known.starts_with(name)
            })
        },
    );
}
