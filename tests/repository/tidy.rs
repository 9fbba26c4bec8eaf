//! Promise: the code stays easy to read: files under 600 lines, functions under 70, no open ends, and `unsafe` only in
//! files whose header says what they guarantee.

use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::root;

/// Most lines of a source file: as much as a reader can keep in mind.
const FILE_LINES_LIMIT: usize = 600;
/// Most lines of a function: one screen.
const FUNCTION_LINES_LIMIT: usize = 70;

fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for folder in ["sandstorm-api", "schema", "net", "db", "client", "clients", "ext", "tests", "benches"] {
        collect(&root().join(folder), &mut files);
    }
    assert!(files.len() > 30, "the walk over the sources found next to nothing");
    files
}

fn collect(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("a readable entry").path();
        // The hostile corpus is bad on purpose.
        if path.ends_with("target") || path.ends_with("tests/hostile") {
            continue;
        }
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).expect("a readable file");
            into.push((path.strip_prefix(root()).expect("inside").to_path_buf(), text));
        }
    }
}

struct Functions {
    long: Vec<(String, usize, usize)>,
}

impl Functions {
    fn note(&mut self, name: &syn::Ident, block: &syn::Block) {
        let (start, end) = (block.span().start().line, block.span().end().line);
        if end - start >= FUNCTION_LINES_LIMIT {
            self.long.push((name.to_string(), start, end - start + 1));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.sig.ident, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig.ident, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }
}

#[test]
fn files_are_short() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > FILE_LINES_LIMIT)
        .collect();
    assert!(long.is_empty(), "over {FILE_LINES_LIMIT} lines: {long:#?}");
}

#[test]
fn functions_are_short() {
    let mut long = Vec::new();
    for (path, text) in sources() {
        let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut functions = Functions { long: Vec::new() };
        functions.visit_file(&file);
        long.extend(
            functions.long.into_iter().map(|(name, line, lines)| format!("{}:{line} {name}: {lines}", path.display())),
        );
    }
    assert!(long.is_empty(), "functions of {FUNCTION_LINES_LIMIT} lines or more: {long:#?}");
}

#[test]
fn nothing_is_left_open() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("for ", "now")];
    let mut open = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                open.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:#?}");
}

#[test]
fn unsafe_lives_in_files_that_say_what_they_guarantee() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let allows = text.lines().any(|line| line.trim() == "#![allow(unsafe_code)]");
        if allows
            && !text.lines().take(60).any(|line| line.starts_with("//!") && line.to_lowercase().contains("guarantee"))
        {
            wrong.push(format!(
                "{}: allows unsafe code, but its header does not say what it guarantees",
                path.display()
            ));
        }
    }
    let crates = fs::read_dir(root().join("db")).expect("db/").map(|entry| entry.expect("a readable entry").path());
    let crates = crates.filter(|path| path.join("Cargo.toml").exists()).map(|path| path.join("src/lib.rs"));
    let others = ["sandstorm-api", "schema", "net", "db", "client", "benches/experiments"]
        .map(|name| root().join(name).join("src/lib.rs"));
    for library in crates.filter(|path| path.exists()).chain(others) {
        let text = fs::read_to_string(&library).expect("a crate root");
        let mut files = Vec::new();
        collect(library.parent().expect("a folder"), &mut files);
        let needs_some = files.iter().any(|(_, text)| text.contains("#![allow(unsafe_code)]"));
        // What is forbidden cannot be allowed again by a module.
        let wanted = if needs_some { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
        if !text.lines().any(|line| line == wanted) {
            wrong.push(format!("{}: must have `{wanted}` for the whole crate", library.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_file_with_unsafe_code_is_accounted_for() {
    let page = fs::read_to_string(root().join("docs/soundness.md")).expect("the page on soundness");
    let missing: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| text.contains("allow(unsafe_code)"))
        .map(|(path, _)| path.display().to_string())
        .filter(|path| !page.contains(&format!("`{path}`")))
        .collect();
    assert!(missing.is_empty(), "allow unsafe code and are not in docs/soundness.md: {missing:#?}");
}

#[test]
fn every_test_that_the_page_on_soundness_names_is_there() {
    let page = fs::read_to_string(root().join("docs/soundness.md")).expect("the page on soundness");
    let sources: Vec<String> = sources().into_iter().map(|(_, text)| text).collect();
    let (mut named, mut gone) = (0, Vec::new());
    for line in page.lines().filter(|line| line.starts_with('|')) {
        // The cells of a file: its guarantee, the reason, and the tests that fail otherwise.
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [_, _, _, tests] = cells.as_slice() else { continue };
        for name in tests.split('`').skip(1).step_by(2) {
            named += 1;
            let is_there = match name.split_once('/') {
                Some(_) => root().join(name).exists(),
                None => sources.iter().any(|text| text.contains(&format!("fn {name}("))),
            };
            if !is_there {
                gone.push(name);
            }
        }
    }
    assert!(named > 50, "the page's tables name next to no tests: {named}");
    assert!(gone.is_empty(), "docs/soundness.md names tests that are not there: {gone:#?}");
}

/// What a crate or module exports is read in one list: no `pub use …::*`. Generated bindings are the exception.
#[test]
fn exports_are_listed() {
    struct Globs(Vec<String>);
    impl<'ast> Visit<'ast> for Globs {
        fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
            if !matches!(item.vis, syn::Visibility::Inherited) && has_glob(&item.tree) {
                self.0.push(format!("line {}", item.span().start().line));
            }
        }
    }
    fn has_glob(tree: &syn::UseTree) -> bool {
        match tree {
            syn::UseTree::Glob(_) => true,
            syn::UseTree::Path(path) => has_glob(&path.tree),
            syn::UseTree::Group(group) => group.items.iter().any(has_glob),
            syn::UseTree::Name(_) | syn::UseTree::Rename(_) => false,
        }
    }
    let mut unlisted = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| !path.starts_with("net/dpdk-sys")) {
        let mut globs = Globs(Vec::new());
        globs.visit_file(&syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
        unlisted.extend(globs.0.into_iter().map(|line| format!("{}: {line}", path.display())));
    }
    assert!(unlisted.is_empty(), "names hidden behind `*`: {unlisted:#?}");
}

/// Most columns of a comment: those of the code (`rustfmt.toml`).
const COMMENT_WIDTH: usize = 120;

#[test]
fn comments_keep_within_the_width() {
    let mut wide = Vec::new();
    for (path, text) in sources() {
        let mut fenced = false;
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            if !comment.starts_with("//") {
                fenced = false;
                continue;
            }
            let words = comment.trim_start_matches(['/', '!']).trim_start();
            fenced ^= words.starts_with("```");
            // Code and tables in documentation may be wider, and so may a word that cannot be divided.
            let is_whole = !words.contains(' ') || words.starts_with('|') || fenced;
            if !is_whole && line.chars().count() > COMMENT_WIDTH {
                wide.push(format!("{}:{}: {} columns", path.display(), number + 1, line.chars().count()));
            }
        }
    }
    assert!(wide.is_empty(), "comments over {COMMENT_WIDTH} columns: {wide:#?}");
}

/// Names that two types share, each for a reason. The list only shrinks.
const SHARED_TYPE_NAMES: &[&str] = &[
    // One for each build: with DPDK and without.
    "MemifBackends",
    // The client library's types, beside those for extensions: no program uses both.
    "Direction",
    "Error",
    "Put",
    "Record",
    // The same client, blocking and asynchronous.
    "Client",
    // The control API's, and the runtime's.
    "Budget",
];

/// Benchmarks are separate programs; the experiments are part of the command line.
fn is_benchmark(path: &str) -> bool {
    path.starts_with("benches") && !path.starts_with("benches/experiments")
}

/// The types of a file that a reader of the program meets: not those of its tests.
#[derive(Default)]
struct DefinedTypes(Vec<String>);

/// Whether the compiler leaves an item out of the program.
fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

impl<'ast> Visit<'ast> for DefinedTypes {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test_only(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note(&item.attrs, &item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&item.attrs, &item.ident);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.note(&item.attrs, &item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.note(&item.attrs, &item.ident);
    }
}

impl DefinedTypes {
    fn note(&mut self, attributes: &[syn::Attribute], name: &syn::Ident) {
        if !is_test_only(attributes) {
            self.0.push(name.to_string());
        }
    }
}

#[test]
fn a_type_name_is_defined_once() {
    let mut places: std::collections::BTreeMap<String, Vec<String>> = Default::default();
    for (path, text) in sources() {
        let shown = path.display().to_string();
        if shown.contains("tests") || shown.contains("fuzz") || is_benchmark(&shown) {
            continue;
        }
        let mut types = DefinedTypes::default();
        types.visit_file(&syn::parse_file(&text).unwrap_or_else(|e| panic!("{shown}: {e}")));
        for name in types.0 {
            places.entry(name).or_default().push(shown.clone());
        }
    }
    assert!(places.len() > 2_000, "the walk over the types found next to nothing: {}", places.len());
    let shared: Vec<_> = places.iter().filter(|(_, at)| at.len() > 1).collect();
    let new: Vec<_> = shared.iter().filter(|(name, _)| !SHARED_TYPE_NAMES.contains(&name.as_str())).collect();
    assert!(new.is_empty(), "one name for two types: {new:#?}");
    let gone: Vec<_> = SHARED_TYPE_NAMES.iter().filter(|name| !shared.iter().any(|(at, _)| at == *name)).collect();
    assert!(gone.is_empty(), "no longer shared, take them from the list: {gone:?}");
    assert!(SHARED_TYPE_NAMES.len() <= 7, "the list only shrinks: give the new type a name of its own");
}
