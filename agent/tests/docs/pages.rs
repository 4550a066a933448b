//! The pages, parsed: headings, links, and what is written as code.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// One file of Markdown.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    /// What a link's fragment may name.
    pub(crate) anchors: BTreeSet<String>,
    /// Where links lead.
    pub(crate) links: Vec<String>,
    /// Code within a line.
    pub(crate) spans: Vec<String>,
    /// Blocks of code that are drawn by nobody, line by line.
    pub(crate) lines: Vec<String>,
    /// Messages of the agent: code in the first column of a table that begins with `the agent reports`.
    pub(crate) quotes: Vec<String>,
}

/// The header of the column that quotes the agent.
const AGENT_REPORTS: &str = "the agent reports";

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All of them: those at the root, and below the folders that hold documentation.
pub(crate) fn all() -> Vec<Page> {
    let markdown = |path: &Path| path.extension().is_some_and(|ext| ext == "md");
    let mut files = entries(&root());
    files.retain(|path| markdown(path));
    let mut open: Vec<_> = ["docs", "dashboards", "deploy"].map(|dir| root().join(dir)).into();
    open.retain(|dir| dir.exists());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(entries(&path));
        } else if markdown(&path) {
            files.push(path);
        }
    }
    assert!(files.len() > 8, "only {files:?}");
    files.sort();
    files.into_iter().map(|path| Page::read(&path)).collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

impl Page {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            anchors: BTreeSet::new(),
            links: Vec::new(),
            spans: Vec::new(),
            lines: Vec::new(),
            quotes: Vec::new(),
        };
        let (mut quoting, mut column) = (false, usize::MAX);
        let mut heading: Option<String> = None;
        let mut code = false;
        let mut seen = BTreeMap::new();
        for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let times: &mut usize = seen.entry(slug.clone()).or_default();
                    let again = if *times == 0 { slug } else { format!("{slug}-{times}") };
                    *times += 1;
                    page.anchors.insert(again);
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let drawn = |info: &str| info == "mermaid";
                    code = !matches!(kind, CodeBlockKind::Fenced(info) if drawn(&info));
                }
                Event::End(TagEnd::CodeBlock) => code = false,
                Event::Start(Tag::Table(_)) => quoting = false,
                Event::Start(Tag::TableHead | Tag::TableRow) => column = 0,
                Event::End(TagEnd::TableCell) => column += 1,
                Event::End(TagEnd::Table) => column = usize::MAX,
                Event::Text(text) if code => page.lines.extend(text.lines().map(str::to_owned)),
                Event::Code(span) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&span);
                    }
                    if quoting && column == 0 {
                        page.quotes.push(span.to_string());
                    }
                    page.spans.push(span.into_string());
                }
                Event::Text(text) => {
                    quoting |= column == 0 && &*text == AGENT_REPORTS;
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Everything that is written as code.
    pub(crate) fn code(&self) -> impl Iterator<Item = &str> {
        self.spans.iter().chain(&self.lines).map(String::as_str)
    }

    /// Its name, for a message.
    pub(crate) fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }
}

/// A heading's anchor, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

#[test]
fn anchors_are_made_as_github_does() {
    let page = Page::parse(
        Path::new("x.md"),
        "# What's `run --json`?\n## Two\n## Two\n[a](b.md#c)\n```\n--x\n```\n```mermaid\nA --y\n```\n\n\
         |the agent reports|do|\n|-|-|\n|`no`|`this`|\n\n|it|do|\n|-|-|\n|`yes`|`that`|\n",
    );
    assert_eq!(Vec::from_iter(&page.anchors), ["two", "two-1", "whats-run---json"]);
    assert_eq!(page.links, ["b.md#c"]);
    assert_eq!(Vec::from_iter(page.code()), ["run --json", "no", "this", "yes", "that", "--x"]);
    assert_eq!(page.quotes, ["no"]);
}
