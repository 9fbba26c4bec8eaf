//! Generated variants of the soundness holes of guards and indexes. Whatever surrounds a place, and in whatever
//! function, each is refused by the syntax check, and by the audit alone. They come in the same order each time;
//! `SANDSTORM_DEEP=1` makes many more.

use sandstorm_net::CodeTier;

use super::tests::{job, source, toolchain};
use super::{BuildError, PushedSource, check, compile};

/// Variants in an ordinary run, and in a deep one: each runs the compiler twice.
const VARIANTS: usize = 24;
const DEEP_VARIANTS: usize = 600;
/// Most layers around the matched value.
const LAYERS: u64 = 20;
/// An ordinary run changes every so many programs of the corpus.
const EVERY: usize = 12;

fn deep() -> bool {
    std::env::var_os("SANDSTORM_DEEP").is_some()
}

/// Pseudo-random numbers, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_of<'t>(&mut self, list: &[&'t str]) -> &'t str {
        list[usize::try_from(self.below(list.len() as u64)).expect("small")]
    }
}

const HEAD: &str = "#![no_std]\n#![allow(warnings)]\nuse sandstorm_api::prelude::*;\n";
const RUN: &str = "pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> { Ok(()) }\n";
const KEPT: &str = "#[repr(C)] pub enum Kept<'a> { Slice(&'a [u8]), Words(usize, usize) }
impl<'a> Kept<'a> { fn forget(&mut self) -> bool { *self = Kept::Words(1, 2); true } }
pub enum Never {}
pub fn never() -> Never { loop {} }\n";

/// A value to match: the items that it needs, its type, and the place in it, from a variable `x`.
struct Shape {
    items: String,
    kind: String,
    place: String,
}

fn shape(numbers: &mut Numbers) -> Shape {
    let layers = 1 + numbers.below(LAYERS);
    let mut around: Vec<(u64, String)> = Vec::new();
    let mut shape = Shape { items: KEPT.to_owned(), kind: "Kept<'a>".to_owned(), place: String::new() };
    for layer in 0..layers {
        let letters = numbers.one_of(&["1", "1", "1", "300", "4200"]).parse().expect("a number");
        let name = format!("{}{layer}", "N".repeat(letters));
        let kind = shape.kind;
        let which = numbers.below(7);
        shape.kind = match which {
            0 | 1 => format!("Box<{kind}>"),
            2 | 3 => format!("&'a mut {kind}"),
            4 => {
                shape.items.push_str(&format!("pub struct {name}<'a> {{ pub other: u8, pub inner: {kind} }}\n"));
                format!("{name}<'a>")
            }
            5 => format!("(u8, {kind})"),
            _ => format!("[{kind}; 2]"),
        };
        around.push((which, name));
    }
    let mut place = "x".to_owned();
    for (which, _) in around.iter().rev() {
        place = match which {
            0..=3 => format!("(*{place})"),
            4 => format!("{place}.inner"),
            5 => format!("{place}.1"),
            _ => format!("{place}[at]"),
        };
    }
    Shape { place, ..shape }
}

/// A whole source: a match whose first arm has this guard, in one of several kinds of function.
fn program(shape: &Shape, guard: &str, numbers: &mut Numbers) -> String {
    let Shape { items, kind, place } = shape;
    let body = format!(
        "match {place} {{ Kept::Slice(_) if {guard} => 0, Kept::Slice(ref found) => found.len(), Kept::Words(one, _) => one }}"
    );
    let function = match numbers.below(6) {
        0 => format!("pub fn hole<'a>(mut x: {kind}, at: usize) -> usize {{ {body} }}"),
        1 => format!(
            "pub fn hole<'a>(mut x: {kind}, at: usize) -> usize {{ let mut inner = move || {{ {body} }}; inner() }}"
        ),
        2 => format!("pub async fn hole<'a>(mut x: {kind}, at: usize) -> usize {{ {body} }}"),
        3 => format!("pub async fn hole<'a>(mut x: {kind}, at: usize) -> usize {{ async move {{ {body} }}.await }}"),
        4 => format!(
            "pub struct Holder<T>(T);\nimpl<T: Copy> Holder<T> {{ pub fn hole<'a>(&self, mut x: {kind}, at: usize) -> usize {{ {body} }} }}"
        ),
        _ => {
            format!("pub mod inner {{ use super::*; pub fn hole<'a>(mut x: {kind}, at: usize) -> usize {{ {body} }} }}")
        }
    };
    let alloc = numbers.one_of(&["", "extern crate alloc;\n"]);
    format!("{HEAD}{alloc}{items}{function}\n{RUN}")
}

/// The rules of the audit that refuse a program where the syntax shows nothing.
fn audited(source: &PushedSource) -> Result<(), String> {
    match compile(toolchain(), source, &job()) {
        Ok(_) => Ok(()),
        Err(BuildError::Refused(found)) => {
            Err(found.first().and_then(|one| one.rule.clone()).unwrap_or_else(|| "no rule".to_owned()))
        }
        Err(BuildError::Compile(found)) => {
            Err(format!("compiler: {}", found.first().map(|one| one.message.as_str()).unwrap_or_default()))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_form_of_a_changing_guard_is_refused_by_the_audit_alone() {
    let mut numbers = Numbers(7);
    let mut by_audit = 0;
    let count = if deep() { DEEP_VARIANTS } else { VARIANTS };
    for _ in 0..count {
        let shape = shape(&mut numbers);
        let place = &shape.place;
        let change = match numbers.below(4) {
            0 => format!("{{ {place} = Kept::Words(1, 2); true }}"),
            1 => format!("{place}.forget()"),
            2 => format!("(|| {place}.forget())()"),
            _ => format!("matches!(core::mem::replace(&mut {place}, Kept::Words(1, 2)), _)"),
        };
        let end = numbers.one_of(&["panic!()", "match never() {}", "return 1", "loop {}", "{ never(); true }"]);
        let text = program(&shape, &format!("{change} && {end}"), &mut numbers);
        match audited(&source(&text)) {
            Ok(()) => panic!("this was built:\n{text}"),
            Err(rule) if rule == "stale" || rule == "index" => by_audit += 1,
            Err(rule) => assert!(rule.starts_with("compiler: "), "refused by {rule}:\n{text}"),
        }
        // The same guard without the forbidden action passes: it was not refused for its form.
        let text = program(&shape, "at > 3", &mut numbers);
        let fine = source(&text);
        let answer =
            check(&fine, &[], CodeTier::Native).map_err(|error| error.to_string()).and_then(|()| audited(&fine));
        assert_eq!(answer, Ok(()), "\n{text}");
    }
    assert!(by_audit * 2 > count, "the compiler refuses most of these itself: {by_audit} of {count}");
}

/// The compiler writes no file whose name is too long, and does not report it.
#[test]
fn a_function_that_the_compiler_did_not_write_down_is_refused() {
    let long = "m".repeat(250);
    let text = format!("{HEAD}pub mod {long} {{ pub fn f(x: u8) -> u8 {{ if x > 1 {{ x }} else {{ 1 }} }} }}\n{RUN}");
    assert_eq!(audited(&source(&text)), Err("unknown-mir".to_owned()));
    assert_eq!(audited(&source(&text.replace(&long, "m"))), Ok(()));
}

/// Programs of the corpus, in forms that change nothing for a reader and much for a text search.
#[test]
fn programs_of_the_corpus_are_refused_in_every_form() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/hostile/soundness");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for (number, path) in paths.iter().enumerate() {
        let text = std::fs::read_to_string(path).expect("text");
        let first = text.lines().next().unwrap_or_default();
        let refused = ["refused", "compile-error"].iter().any(|end| first.starts_with(&format!("//! expect: {end}")));
        let plain = !text.contains("<<<") && !text.contains("//@ file") && !first.contains(" or ");
        if !refused || !plain || (!deep() && number % EVERY != 0) {
            continue;
        }
        for (form, text) in forms(&text) {
            let source = source(&text);
            let answer = check(&source, &[], CodeTier::Native)
                .map_err(|error| error.to_string())
                .and_then(|()| audited(&source));
            assert!(answer.is_err(), "{} as {form} was built:\n{text}", path.display());
        }
    }
}

fn forms(text: &str) -> Vec<(&'static str, String)> {
    const ALLOC: &str = "extern crate alloc;\n";
    let head: String = text
        .lines()
        .take_while(|line| line.starts_with('#') || line.starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let rest = text.get(head.len()..).unwrap_or_default();
    let rest = rest.replace(ALLOC, "");
    // Its head belongs to the crate; the rest may stand in a module.
    // What a crate's root names by `extern crate` is known in its modules as well.
    let long = "M".repeat(100);
    vec![
        ("with alloc", format!("{head}{ALLOC}{rest}")),
        ("without alloc", format!("{head}{rest}")),
        (
            "in modules",
            format!("{head}{ALLOC}pub mod {long} {{ pub mod inner {{\n{rest}\n}} }}\npub use {long}::inner::run;\n"),
        ),
    ]
}
