//! Promise: inside a crate the files depend on each other one way. Two files that need each other are one thing in two
//! files, or something that both need has no file of its own yet.
//!
//! An arrow goes from a file that names an item to the file that defines it, through any re-exports. Methods and fields
//! are not names of their own, so they make no arrow; nor does `pub use`, nor code for tests alone. A module and its
//! inner modules count as one thing from outside. A file's use of the files of the modules around it makes no arrow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

/// Remaining cycles of files, by crate. The list only shrinks.
const KNOWN_CIRCLES: &[(&str, &[&str])] = &[];

/// Texts of a crate by their paths below its `src`.
type Sources = BTreeMap<PathBuf, String>;
/// From one file to another, and the names that the first uses of the second.
type Arrows = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// Most imports in a chain of imports.
const IMPORT_STEPS: usize = 16;

/// A module, which is a file or a part of one.
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    /// By name; two where the build configuration decides.
    children: BTreeMap<String, Vec<usize>>,
    items: BTreeSet<String>,
    imports: BTreeMap<String, Vec<Vec<String>>>,
    globs: Vec<Vec<String>>,
    /// Paths that its code names.
    named: BTreeSet<Vec<String>>,
}

/// The modules of a crate, the root first.
struct ModuleTree<'s> {
    sources: &'s Sources,
    modules: Vec<Module>,
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        _ => false,
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::{Const, Enum, Fn, Impl, Macro, Mod, Static, Struct, Trait, Type, Use};
    match item {
        Const(item) => &item.attrs,
        Enum(item) => &item.attrs,
        Fn(item) => &item.attrs,
        Impl(item) => &item.attrs,
        Macro(item) => &item.attrs,
        Mod(item) => &item.attrs,
        Static(item) => &item.attrs,
        Struct(item) => &item.attrs,
        Trait(item) => &item.attrs,
        Type(item) => &item.attrs,
        Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    use syn::Item::{Const, Enum, Fn, Static, Struct, Trait, Type, Union};
    let ident = match item {
        Const(item) => &item.ident,
        Enum(item) => &item.ident,
        Fn(item) => &item.sig.ident,
        Static(item) => &item.ident,
        Struct(item) => &item.ident,
        Trait(item) => &item.ident,
        Type(item) => &item.ident,
        Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The paths that code names anywhere: in expressions, types, patterns, and macro arguments.
#[derive(Default)]
struct NamedPaths(BTreeSet<Vec<String>>);

impl NamedPaths {
    /// Paths in macro arguments, which are not parsed: names with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.0.insert(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.0.insert(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.0.insert(path);
    }
}

impl<'ast> Visit<'ast> for NamedPaths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        // Modules and imports are recorded separately.
        let elsewhere = matches!(item, syn::Item::Mod(_) | syn::Item::Use(_));
        if !elsewhere && !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.0.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        self.tokens(found.tokens.clone());
        syn::visit::visit_macro(self, found);
    }
}

/// Imports inside functions count as the module's.
#[derive(Default)]
struct Imports<'ast>(Vec<&'ast syn::ItemUse>);

impl<'ast> Visit<'ast> for Imports<'ast> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !matches!(item, syn::Item::Mod(_)) && !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.0.push(item);
    }
}

impl Module {
    fn import(&mut self, before: &[String], tree: &syn::UseTree, is_reexport: bool) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&with(&path.ident), &path.tree, is_reexport),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.import(before, item, is_reexport));
            }
            syn::UseTree::Glob(_) => self.globs.push(before.to_vec()),
            syn::UseTree::Name(found) if found.ident == "self" => {
                if let Some(last) = before.last() {
                    self.imports.entry(last.clone()).or_default().push(before.to_vec());
                }
            }
            syn::UseTree::Name(found) => self.import_as(found.ident.to_string(), with(&found.ident), is_reexport),
            syn::UseTree::Rename(found) => self.import_as(found.rename.to_string(), with(&found.ident), is_reexport),
        }
    }

    fn import_as(&mut self, name: String, path: Vec<String>, is_reexport: bool) {
        if !is_reexport {
            self.named.insert(path.clone());
        }
        self.imports.entry(name).or_default().push(path);
    }
}

impl<'s> ModuleTree<'s> {
    /// The modules of the crate whose root is that file.
    fn new(sources: &'s Sources, root: &str) -> ModuleTree<'s> {
        let mut tree = ModuleTree { sources, modules: Vec::new() };
        tree.add_file(Path::new(root), Path::new(""), None);
        tree
    }

    /// Adds a file, whose modules lie in `folder`.
    fn add_file(&mut self, file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text = self.sources.get(file).unwrap_or_else(|| panic!("no file {}", file.display()));
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add_items(&parsed.items, file, folder, parent)
    }

    fn add_items(&mut self, items: &[syn::Item], file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let (mut paths, mut imports) = (NamedPaths::default(), Imports::default());
        for item in items {
            paths.visit_item(item);
            imports.visit_item(item);
        }
        let mut module = Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            items: items.iter().filter(|item| !is_for_tests(attributes(item))).filter_map(name_of).collect(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            named: paths.0,
        };
        for found in imports.0.into_iter().filter(|found| found.leading_colon.is_none()) {
            module.import(&[], &found.tree, !matches!(found.vis, syn::Visibility::Inherited));
        }
        let at = self.modules.len();
        self.modules.push(module);
        for item in items {
            if let syn::Item::Mod(found) = item
                && !is_for_tests(&found.attrs)
            {
                let child = self.add_child(found, file, folder, at);
                self.modules[at].children.entry(found.ident.to_string()).or_default().push(child);
            }
        }
        at
    }

    fn add_child(&mut self, found: &syn::ItemMod, file: &Path, folder: &Path, parent: usize) -> usize {
        let inside = folder.join(found.ident.to_string());
        if let Some((_, items)) = &found.content {
            return self.add_items(items, file, &inside, Some(parent));
        }
        let messages = found.attrs.iter().find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
                _ => None,
            },
            _ => None,
        });
        let here = file.parent().unwrap_or(Path::new(""));
        let candidates = match messages {
            Some(messages) => vec![here.join(messages)],
            None => vec![inside.with_extension("rs"), inside.join("mod.rs")],
        };
        let child = candidates.iter().find(|path| self.sources.contains_key(*path));
        let child = child.unwrap_or_else(|| panic!("{}: no file for the module {}", file.display(), found.ident));
        self.add_file(child, &inside, Some(parent))
    }

    /// The module that a path leads to.
    fn module_at(&self, from: usize, path: &[String], steps: usize) -> Option<usize> {
        let mut at = from;
        for (index, part) in path.iter().enumerate() {
            let module = &self.modules[at];
            at = match part.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => module.parent?,
                name => match module.children.get(name) {
                    Some(children) => children[0],
                    None => {
                        let import = module.imports.get(name).filter(|_| steps > 0)?.first()?;
                        let whole = [import, &path[index + 1..]].concat();
                        return self.module_at(at, &whole, steps - 1);
                    }
                },
            };
        }
        Some(at)
    }

    /// The module that defines the item which a path names, and the item's name. `None`: it is of another crate, or no
    /// item.
    fn owner<'p>(&'p self, from: usize, path: &'p [String], steps: usize) -> Option<(usize, &'p str)> {
        let (part, rest) = path.split_first()?;
        let module = &self.modules[from];
        match part.as_str() {
            "crate" => return self.owner(0, rest, steps),
            "self" => return self.owner(from, rest, steps),
            "super" => return self.owner(module.parent?, rest, steps),
            _ => {}
        }
        if let Some(children) = module.children.get(part)
            && let Some(found) = children.iter().find_map(|child| self.owner(*child, rest, steps))
        {
            return Some(found);
        }
        if module.items.contains(part) {
            return Some((from, part));
        }
        if steps == 0 {
            return None;
        }
        let imported = module.imports.get(part).into_iter().flatten().find_map(|import| {
            // An import of one name by that name, such as of another crate.
            if import.len() == 1 {
                return None;
            }
            let (owner, name) = self.owner_through(from, import, rest, steps - 1)?;
            Some((owner, name))
        });
        imported.or_else(|| {
            module.globs.iter().find_map(|glob| {
                let target = self.module_at(from, glob, steps - 1).filter(|target| *target != from)?;
                self.owner(target, path, steps - 1)
            })
        })
    }

    /// As [`ModuleTree::owner`], through an import: its target is an item, or a module on the path to it.
    fn owner_through<'p>(
        &'p self,
        from: usize,
        import: &'p [String],
        rest: &'p [String],
        steps: usize,
    ) -> Option<(usize, &'p str)> {
        match self.module_at(from, import, steps) {
            Some(module) => self.owner(module, rest, steps),
            None => self.owner(from, import, steps),
        }
    }

    fn is_around(&self, outer: usize, mut inner: usize) -> bool {
        while let Some(parent) = self.modules[inner].parent {
            if self.modules[parent].file == self.modules[outer].file {
                return true;
            }
            inner = parent;
        }
        false
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, module) in self.modules.iter().enumerate() {
            for path in &module.named {
                let Some((to, name)) = self.owner(from, path, IMPORT_STEPS) else { continue };
                let target = &self.modules[to].file;
                if *target != module.file && !self.is_around(to, from) {
                    let ends = (module.file.clone(), target.clone());
                    arrows.entry(ends).or_default().insert(name.to_owned());
                }
            }
        }
        arrows
    }
}

/// Files that depend on each other in a cycle, each set sorted.
fn circles(arrows: &Arrows) -> Vec<Vec<PathBuf>> {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached = |start: &Path| -> BTreeSet<PathBuf> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            for to in next.get(file).into_iter().flatten() {
                if seen.insert((*to).to_owned()) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&Path, BTreeSet<PathBuf>> = next.keys().map(|file| (*file, reached(file))).collect();
    let mut found: Vec<Vec<PathBuf>> = Vec::new();
    for (file, to) in &reach {
        if !to.contains(*file) || found.iter().flatten().any(|known| known == file) {
            continue;
        }
        found.push(
            to.iter()
                .filter(|other| reach.get(other.as_path()).is_some_and(|back| back.contains(*file)))
                .cloned()
                .collect(),
        );
    }
    found
}

/// The errors of a crate: cycles that are not listed, and listed ones that do not exist.
fn complaints(name: &str, sources: &Sources, known: &[(&str, &[&str])]) -> Vec<String> {
    let mut arrows = Arrows::new();
    for root in ["lib.rs", "main.rs"] {
        if sources.contains_key(Path::new(root)) {
            arrows.extend(ModuleTree::new(sources, root).arrows());
        }
    }
    let found = circles(&arrows);
    let known = known.iter().filter(|(of, _)| *of == name).map(|(_, files)| files.iter().map(PathBuf::from).collect());
    let known: Vec<Vec<PathBuf>> = known.collect();
    let mut wrong = Vec::new();
    for circle in found.iter().filter(|circle| !known.contains(circle)) {
        let mut text = format!("{name}: a circle of {} files:\n", circle.len());
        for ((from, to), names) in &arrows {
            if circle.contains(from) && circle.contains(to) {
                let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                text += &format!("  {} -> {}: {names}\n", from.display(), to.display());
            }
        }
        wrong.push(text + "  Move what both need into a file of its own, below both.");
    }
    for circle in known.iter().filter(|circle| !found.contains(circle)) {
        wrong.push(format!(
            "{name}: this listed circle is no longer there, or has other files; list what is left: {circle:?}"
        ));
    }
    wrong
}

fn collect(folder: &Path, below: &Path, into: &mut Sources) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(&path, below, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let inside = path.strip_prefix(below).expect("a file below").to_owned();
            into.insert(inside, fs::read_to_string(&path).expect("a readable file"));
        }
    }
}

/// The workspace's crates, by their folders.
fn crates() -> Vec<String> {
    let root = super::root();
    let mut found = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            let is_ours = path.file_name().is_some_and(|name| name != "target" && name != "tests" && name != "src");
            if is_ours && path.join("Cargo.toml").exists() {
                if path.join("src").exists() {
                    found.push(path.strip_prefix(&root).expect("a folder inside").display().to_string());
                }
                open.push(path);
            } else if path.ends_with("ext") && path.is_dir() {
                open.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn files_of_a_crate_depend_on_each_other_one_way() {
    let crates = crates();
    for expected in ["net", "client", "sandstorm-api", "db", "db/store", "ext/tao"] {
        assert!(crates.iter().any(|name| name == expected), "{expected} is not among {crates:?}");
    }
    for (name, _) in KNOWN_CIRCLES {
        assert!(crates.iter().any(|there| there == name), "no crate {name}");
    }
    let mut wrong = Vec::new();
    for name in crates {
        let (mut sources, folder) = (Sources::new(), super::root().join(&name).join("src"));
        collect(&folder, &folder, &mut sources);
        wrong.extend(complaints(&name, &sources, KNOWN_CIRCLES));
    }
    assert!(wrong.is_empty(), "{} complaints:\n{}", wrong.len(), wrong.join("\n"));
}

fn made_up(files: &[(&str, &str)]) -> Sources {
    files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
}

#[test]
fn a_circle_is_found_however_the_files_name_each_other() {
    let bird = ("bird.rs", "use crate::egg::Egg;\npub struct Bird(Egg);");
    for egg in [
        "pub struct Egg; fn hatch() -> crate::bird::Bird { loop {} }",
        "use super::bird;\npub struct Egg; fn hatch() -> bird::Bird { loop {} }",
        "use super::{bird::{self as hen}};\npub struct Egg; fn hatch() -> hen::Bird { loop {} }",
        "use crate::*;\npub struct Egg; fn hatch() -> Bird { loop {} }",
        "pub struct Egg; fn hatch() { println!(\"{}\", size_of::<crate::Bird>()) }",
        "pub struct Egg; fn hatch() { use crate::Bird as Hen; }",
        "pub struct Egg; mod inside { fn hatch(_: super::super::bird::Bird) {} }",
    ] {
        let sources = made_up(&[("lib.rs", "mod bird; mod egg; pub use bird::Bird;"), bird, ("egg.rs", egg)]);
        let wrong = complaints("farm", &sources, &[]);
        assert_eq!(wrong.len(), 1, "{egg}: {wrong:?}");
        assert!(
            wrong[0].contains("bird.rs -> egg.rs: Egg") && wrong[0].contains("egg.rs -> bird.rs: Bird"),
            "{wrong:?}"
        );
        let listed: &[(&str, &[&str])] = &[("farm", &["bird.rs", "egg.rs"])];
        assert!(complaints("farm", &sources, listed).is_empty(), "{egg}: a listed circle is let through");
        assert_eq!(complaints("barn", &sources, listed).len(), 1, "{egg}: in its own crate alone");
    }
}

#[test]
fn a_circle_of_three_files_in_folders_is_one() {
    let sources = made_up(&[
        ("main.rs", "mod a; mod b;"),
        ("a/mod.rs", "pub mod deep;"),
        ("a/deep.rs", "pub const A: u8 = crate::b::B;"),
        ("b.rs", "mod c; pub const B: u8 = c::C;"),
        ("b/c.rs", "pub const C: u8 = super::super::a::deep::A;"),
    ]);
    let wrong = complaints("farm", &sources, &[]);
    assert!(wrong.len() == 1 && wrong[0].contains("a circle of 3 files"), "{wrong:?}");
}

#[test]
fn arrows_one_way_of_tests_and_to_the_module_around_are_no_circle() {
    let sources = made_up(&[
        ("lib.rs", "mod bird; mod egg; pub use egg::Egg; pub struct Farm; fn count() { bird::count() }"),
        ("bird.rs", "mod wing; use crate::Egg; use std::fmt; pub fn count() { wing::flap() } pub struct Bird(Egg);"),
        ("bird/wing.rs", "use super::Bird; pub fn flap(_: crate::Farm, _: Bird) {}"),
        (
            "egg.rs",
            "pub struct Egg; #[cfg(test)] mod tests { use crate::bird::Bird; }\n#[cfg(test)] fn f(_: crate::bird::Bird) {}",
        ),
    ]);
    assert_eq!(complaints("farm", &sources, &[]), Vec::<String>::new());
}

#[test]
fn a_listed_circle_that_is_gone_is_a_complaint() {
    let sources = made_up(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "pub struct B;")]);
    let wrong = complaints("farm", &sources, &[("farm", &["a.rs", "b.rs"])]);
    assert!(wrong.len() == 1 && wrong[0].contains("no longer there"), "{wrong:?}");
}
