//! Every link within the project leads to a file, and to a heading of it.

use crate::pages::{self, Page};
use std::path::Path;

#[test]
fn every_link_leads_somewhere() {
    let pages = pages::all();
    let (mut broken, mut followed) = (Vec::new(), 0);
    for page in &pages {
        for link in page.links.iter().filter(|link| !is_elsewhere(link)) {
            followed += 1;
            if let Err(why) = follow(page, link) {
                broken.push(format!("{}: {link}: {why}", page.name()));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    assert!(followed > 20, "{followed} links");
}

fn is_elsewhere(link: &str) -> bool {
    ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

fn follow(page: &Page, link: &str) -> Result<(), String> {
    let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.path.clone(),
        file if file.starts_with('/') => {
            return Err("begins with /: GitHub has no such page".into());
        }
        file => page.path.parent().unwrap_or(Path::new("")).join(file),
    };
    if !target.exists() {
        return Err("there is no such file".into());
    }
    let is_page = target.extension().is_some_and(|ext| ext == "md");
    if fragment.is_empty() || !is_page || Page::read(&target).anchors.contains(fragment) {
        return Ok(());
    }
    Err("there is no such heading".into())
}

/// What is documented can be found: each page is reached from the README.
#[test]
fn every_page_of_docs_is_linked_from_the_readme() {
    let readme = Page::read(&pages::root().join("README.md"));
    for page in pages::all() {
        let name = page.name();
        let linked = readme.links.contains(&name);
        assert!(linked || !name.starts_with("docs/"), "README.md does not link {name}");
    }
}
