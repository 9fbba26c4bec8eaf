//! Promise: the page beside a crate names modules and types that are there.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{packages, root};

/// The names in backticks of a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_name_of(name: &str, extra: fn(char) -> bool) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || extra(letter))
}

/// The words of all sources of a crate: what it defines is among them.
fn words_of(folder: &Path, words: &mut HashSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            words_of(&path, words);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a readable file");
            let found = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            words.extend(found.map(str::to_owned));
        }
    }
}

/// Whether a crate has the module: a file, or a folder.
fn has_module(sources: &Path, module: &str) -> bool {
    let path: PathBuf = sources.join(module.replace("::", "/"));
    path.is_dir() || path.with_extension("rs").is_file()
}

/// What the page of a crate names in its table of modules and in its text, and the crate does not have.
fn stale_names(page: &str, sources: &Path) -> (usize, Vec<String>) {
    let mut words = HashSet::new();
    words_of(sources, &mut words);
    let (mut named, mut stale) = (0, Vec::new());
    let mut is_table = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        is_table = line.starts_with('|') && (is_table || ["module", "modules"].contains(&cells[0]));
        if !is_table {
            continue;
        }
        // A module without a path is beside the one before it.
        let mut parent = "";
        for module in quoted(cells[0]).filter(|name| is_name_of(name, |letter| letter == ':')) {
            named += 1;
            let is_sibling = !parent.is_empty() && has_module(sources, &format!("{parent}::{module}"));
            if has_module(sources, module) {
                parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
            } else if !is_sibling {
                stale.push(format!("module {module}"));
            }
        }
        let types = quoted(cells[cells.len() - 1]).filter(|name| is_name_of(name, |_| false));
        stale.extend(types.filter(|name| !words.contains(*name)).map(|name| format!("type {name}")));
    }
    // Paths in the text that begin with a module of the crate.
    for path in quoted(page).filter(|name| name.contains("::") && is_name_of(name, |letter| letter == ':')) {
        let begins_here = path.split("::").next().is_some_and(|first| has_module(sources, first));
        let last = path.rsplit("::").next().unwrap_or_default();
        if begins_here && !has_module(sources, path) && !words.contains(last) {
            stale.push(format!("path {path}"));
        }
    }
    (named, stale)
}

#[test]
fn pages_beside_crates_name_modules_that_are_there() {
    let mut named = 0;
    for (folder, ..) in packages() {
        let folder = root().join(folder);
        let Ok(page) = fs::read_to_string(folder.join("README.md")) else { continue };
        let (modules, stale) = stale_names(&page, &folder.join("src"));
        named += modules;
        assert!(stale.is_empty(), "{}/README.md names what is not there: {stale:#?}", folder.display());
    }
    assert!(named > 100, "the walk over the pages' tables found next to nothing: {named}");
}

#[test]
fn a_module_and_a_type_that_are_not_there_are_found() {
    let table = "| module | what | types |\n|---|---|---|\n| `tidy`, `no_such_module` | | `NoSuch\u{54}ype` |\n";
    let page = format!("{table}\n`tidy::no_such\u{5f}path`");
    let (named, stale) = stale_names(&page, &root().join("tests/repository"));
    assert_eq!((named, stale.len()), (2, 3), "{stale:?}");
}
