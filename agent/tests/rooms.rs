//! Imports go one way between the rooms of the agent, and in no crate of the product in a circle.

use crate::rust_files::rust_files;
use proc_macro2::{TokenStream, TokenTree};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, mem,
    path::{Path, PathBuf},
};

/// What each room may import, beside itself.
const ROOMS: [(&str, &[&str]); 8] = [
    ("linux", &[]),
    ("printable", &[]),
    ("sources", &["linux", "printable"]),
    ("store", &["linux", "sources"]),
    ("outputs", &["linux", "printable", "sources", "store"]),
    ("config", &["outputs", "sources"]),
    ("app", &["config", "linux", "outputs", "sources", "store"]),
    ("cli", &["app", "config", "linux", "outputs", "sources", "store"]),
];

#[test]
fn data_goes_one_way() {
    for (module, imports) in imports("agent/src") {
        let Some(room) = module.first() else { continue };
        let (_, allowed) = ROOMS.iter().find(|(name, _)| name == room).expect("a room");
        let wrong = imports.iter().find(|to| to[0] != *room && !allowed.contains(&&*to[0]));
        assert_eq!(wrong, None, "{module:?} may not import it");
    }
}

#[test]
fn no_import_goes_in_a_circle() {
    for src in ["agent/src", "agent/core/src", "agent/report/src", "ebpf/src"] {
        let mut graph = imports(src);
        assert!(graph.len() > 5, "{src}");
        // A module that imports none of those left is in no circle.
        while let Some(free) = graph.iter().find(|(_, to)| to.is_empty()).map(|(m, _)| m.clone()) {
            graph.remove(&free);
            graph.values_mut().for_each(|to| _ = to.remove(&free));
        }
        assert!(graph.is_empty(), "{src}: in a circle, or importing one: {graph:#?}");
    }
}

type Module = Vec<String>;

/// The modules below a folder, and what each imports of others than those that it is in, its tests apart.
fn imports(src: &str) -> BTreeMap<Module, BTreeSet<Module>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(src);
    let module = |file: &PathBuf| -> Module {
        let path = file.strip_prefix(&src).unwrap().with_extension("");
        let names = path.iter().map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| !["mod", "lib", "main"].contains(&&**name)).collect()
    };
    let files = rust_files(&src).into_iter().map(|file| (module(&file), file));
    let files = files.filter(|(module, _)| !module.iter().any(|name| name == "tests"));
    let files: BTreeMap<Module, PathBuf> = files.collect();
    let of_file = |(own, file): (&Module, &PathBuf)| {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        let mut found = Vec::new();
        paths(&[], code.parse().unwrap(), &mut found);
        let modules = found.into_iter().filter_map(|path| {
            let ups = path.iter().take_while(|name| *name == "super").count();
            let mut path = match path[0].as_str() {
                "crate" => path[1..].to_vec(),
                _ => [&own[..own.len() - ups], &path[ups..]].concat(),
            };
            while !files.contains_key(&path) {
                path.pop()?;
            }
            (!own.starts_with(&path)).then_some(path)
        });
        (own.clone(), modules.collect())
    };
    files.iter().map(of_file).collect()
}

/// Finds `a::b` in code, those in the braces of `before::{…}` from there.
fn paths(before: &[String], tokens: TokenStream, found: &mut Vec<Module>) {
    let (mut path, mut colons) = (before.to_vec(), 0);
    for token in tokens {
        let before_it = mem::replace(&mut colons, 0);
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons = before_it + 1,
            TokenTree::Ident(name) if before_it == 2 => path.push(name.to_string()),
            TokenTree::Ident(name) => {
                found.push(mem::replace(&mut path, [before, &[name.to_string()]].concat()));
            }
            TokenTree::Group(group) if before_it == 2 => paths(&path, group.stream(), found),
            TokenTree::Group(group) => paths(&[], group.stream(), found),
            _ => {}
        }
    }
    found.push(path);
    found.retain(|path| path.len() > 1);
}
