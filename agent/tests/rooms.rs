//! The rooms of the source tree: which may import which, no import cycles, and each foreign library in its own room.

mod rust_files;

use rust_files::rust_files;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{Attribute, Item, ItemMod, UseTree, visit::Visit};

type Module = Vec<String>;

/// What each room of the agent may import, beside itself.
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

/// Each foreign library, by how its paths begin, and the rooms that may know it.
const LIBRARIES: [(&[&str], &[&str]); 3] = [
    (&["aya::", "aya_log::"], &["sources/kernel"]),
    (&["tonic::", "coroner_cri_api::"], &["sources/cri"]),
    (&["k8s_openapi::", "kube::Client"], &["sources/kube", "outputs/events"]),
];

/// The crates of the repository, but for the generated one and xtask.
const CRATES: [&str; 13] = [
    "agent",
    "agent/api",
    "agent/core",
    "ebpf",
    "fuzz/targets",
    "image",
    "lab",
    "lab/bench",
    "lab/chaos",
    "lab/cluster",
    "lab/harness",
    "lab/scenarios",
    "lab/workload",
];

/// The names that were defined most often when they were first counted, `Options` 18 times. Each may be defined
/// once in the repository; every other name, in three crates at most.
const WORN_OUT: [&str; 34] = [
    "Agent", "Answer", "Bench", "Cgroup", "Closed", "Command", "Counters", "End", "Facts",
    "Failure", "Files", "Found", "Held", "Host", "Kind", "Line", "Node", "Object", "Options",
    "Outcome", "Process", "Record", "Request", "Run", "Running", "Seen", "Shared", "Source",
    "Stage", "State", "Stop", "Told", "Wanted", "Watched",
];

/// The lab's crates, and which of the others each may depend on.
const LAB: [(&str, &[&str]); 5] = [
    ("cluster", &[]),
    ("scenarios", &["cluster"]),
    ("harness", &["cluster", "scenarios"]),
    ("chaos", &["cluster", "harness", "scenarios"]),
    ("bench", &["cluster", "harness", "scenarios"]),
];

#[test]
fn data_goes_one_way() {
    let mut wrong = Vec::new();
    for (module, imports) in imports(&root("agent/src")) {
        let Some(room) = module.first() else { continue };
        let allowed = ROOMS.iter().find(|(name, _)| name == room);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{room} is no room"));
        let other = |to: &&Module| to[0] != *room && !allowed.contains(&to[0].as_str());
        wrong.extend(imports.iter().filter(other).map(|to| arrow(&module, to)));
    }
    assert!(wrong.is_empty(), "not allowed:\n{}", wrong.join("\n"));
}

#[test]
fn no_import_goes_in_a_circle() {
    let (mut modules, mut circles) = (0, String::new());
    for krate in CRATES {
        let mut graph = imports(&root(krate).join("src"));
        modules += graph.len();
        // What imports nothing that is left is in no cycle; nor is what nothing left imports.
        loop {
            let left: BTreeSet<Module> = graph.keys().cloned().collect();
            let imported: BTreeSet<Module> = graph.values().flatten().cloned().collect();
            graph.retain(|module, imports| {
                imports.retain(|to| left.contains(to));
                !imports.is_empty() && imported.contains(module)
            });
            if graph.len() == left.len() {
                break;
            }
        }
        let arrows = graph.iter().flat_map(|(from, to)| to.iter().map(move |to| arrow(from, to)));
        circles.extend(arrows.map(|arrow| format!("{krate}: {arrow}\n")));
    }
    assert!(circles.is_empty(), "\n{circles}");
    assert!(modules > 300, "found {modules} modules");
}

#[test]
fn a_crate_of_the_lab_depends_on_those_below_it() {
    for (krate, below) in LAB {
        let manifest = fs::read_to_string(root("lab").join(krate).join("Cargo.toml")).unwrap();
        let of_lab = manifest.lines().filter_map(|line| line.strip_prefix("coroner-lab-"));
        let names = of_lab.filter_map(|line| line.strip_suffix(".workspace = true"));
        let wrong: Vec<&str> = names.filter(|name| !below.contains(name)).collect();
        assert!(wrong.is_empty(), "{krate} depends on {wrong:?}");
    }
}

#[test]
fn only_its_own_room_knows_a_library() {
    let src = root("agent/src");
    for (libraries, rooms) in LIBRARIES {
        let mut inside = 0;
        for file in rust_files(&src) {
            let text = fs::read_to_string(&file).unwrap();
            let used = text.lines().filter(|line| libraries.iter().any(|l| line.contains(l)));
            match rooms.iter().any(|room| file.starts_with(src.join(room))) {
                true => inside += used.count(),
                false => assert_eq!(used.count(), 0, "{} uses {libraries:?}", file.display()),
            }
        }
        assert!(inside > 0, "{rooms:?} do not use {libraries:?}");
    }
}

#[test]
fn no_name_is_defined_twice_in_a_crate() {
    let (mut twice, mut everywhere) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for name in CRATES.iter().chain(&["xtask"]) {
        // Each file or folder among the tests and examples is a crate, and a library's program is another one.
        let targets = ["tests", "examples"].map(|folder| root(name).join(folder));
        let targets = targets.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        for krate in targets.map(|entry| entry.unwrap().path()).chain([root(name).join("src")]) {
            let mut names = TypeNames::default();
            for file in rust_files(&krate) {
                let text = fs::read_to_string(&file).unwrap();
                let parsed = syn::parse_file(&text);
                names.visit_file(&parsed.unwrap_or_else(|e| panic!("{}: {e}", file.display())));
            }
            for (of, count) in names.0 {
                if count > 1 {
                    twice.push(format!("{of} ×{count} in {}", krate.display()));
                }
                everywhere.entry(of).or_default().push(krate.display().to_string());
            }
        }
    }
    assert_eq!(twice, Vec::<String>::new());
    everywhere.retain(|of, crates| {
        let most = if WORN_OUT.contains(&of.as_str()) { 1 } else { 3 };
        crates.len() > most
    });
    assert_eq!(everywhere, BTreeMap::new(), "defined in too many crates");
}

/// How often each type or trait is defined.
#[derive(Default)]
struct TypeNames(BTreeMap<String, usize>);

impl TypeNames {
    fn count(&mut self, name: &syn::Ident) {
        *self.0.entry(name.to_string()).or_default() += 1;
    }
}

impl<'ast> Visit<'ast> for TypeNames {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.count(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.count(&item.ident);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.count(&item.ident);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.count(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.count(&item.ident);
        syn::visit::visit_item_trait(self, item);
    }
}

fn root(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of)
}

fn arrow(from: &Module, to: &Module) -> String {
    format!("{} -> {}", from.join("::"), to.join("::"))
}

/// The modules of a crate, by file, and what each imports of the others, its tests apart. What a module takes from
/// those that it is in is not counted.
fn imports(src: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let module = |file: &PathBuf| -> Module {
        let path = file.strip_prefix(src).unwrap().with_extension("");
        let names = path.iter().map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
    };
    let files: BTreeMap<Module, PathBuf> =
        rust_files(src).into_iter().map(|file| (module(&file), file)).collect();
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let of_file = |(module, file): (&Module, &PathBuf)| {
        let text = fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut found = Imports { module: module.clone(), modules: &modules, to: BTreeSet::new() };
        found.visit_file(&parsed);
        (module.clone(), found.to)
    };
    files.iter().map(of_file).collect()
}

struct Imports<'a> {
    /// The module, with those inside its file.
    module: Module,
    modules: &'a BTreeSet<Module>,
    to: BTreeSet<Module>,
}

impl Imports<'_> {
    fn add(&mut self, path: &[String]) {
        let own = self.module.as_slice();
        let ups = path.iter().take_while(|name| *name == "super").count();
        let mut to = match path.first().map(String::as_str) {
            Some("crate") => path[1..].to_vec(),
            Some("super") => [&own[..own.len() - ups], &path[ups..]].concat(),
            Some("self") => [own, &path[1..]].concat(),
            _ => [own, path].concat(),
        };
        while !self.modules.contains(&to) && to.pop().is_some() {}
        if !own.starts_with(&to) {
            self.to.insert(to);
        }
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(name) => self.add(&with(&name.ident)),
            UseTree::Glob(_) => self.add(before),
            UseTree::Group(group) => group.items.iter().for_each(|one| self.add_tree(before, one)),
        }
    }
}

impl Visit<'_> for Imports<'_> {
    fn visit_item(&mut self, item: &Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &[],
        };
        let is_test = |one: &Attribute| {
            one.path().is_ident("cfg")
                && one.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("test"))
        };
        if !attributes.iter().any(is_test) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if item.content.is_some() {
            self.module.push(item.ident.to_string());
            syn::visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.segments.len() > 1 {
            let names: Vec<String> =
                path.segments.iter().map(|one| one.ident.to_string()).collect();
            self.add(&names);
        }
        syn::visit::visit_path(self, path);
    }
}
