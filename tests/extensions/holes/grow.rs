//! Grows a program from one of the corpus: what it does stays, and what surrounds it changes.
//!
//! Items are found by a parser, and changed as text: by whole items, by bodies of functions, by words.

use std::fmt::Write as _;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use sandstorm_builder::SourceFile;
use syn::spanned::Spanned;

/// Most changes of one program.
const CHANGES: usize = 5;
/// Most layers around a parameter: more than a fixed depth of any rule.
const LAYERS: usize = 14;

/// A program of the corpus: its lines for the crate, and its items.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) name: String,
    head: String,
    items: Vec<String>,
}

/// A grown program, and how it was grown.
pub(super) struct Variant {
    pub(super) changes: Vec<String>,
    pub(super) files: Vec<SourceFile>,
}

impl Program {
    /// Reads a program of one file; `None` if it is not one that parses.
    pub(super) fn read(name: &str, text: &str) -> Option<Program> {
        let is_head = |line: &&str| line.starts_with("#!") || line.starts_with("//!") || line.is_empty();
        let head: Vec<&str> = text.lines().take_while(is_head).filter(|line| line.starts_with("#!")).collect();
        let file = syn::parse_file(text).ok()?;
        let items: Vec<String> = file.items.iter().map(|item| source_of(item, text)).collect::<Option<_>>()?;
        items.iter().any(|item| item.contains("async fn run(")).then_some(())?;
        Some(Program { name: name.to_owned(), head: head.join("\n"), items })
    }

    fn text(&self) -> String {
        self.items.join("\n")
    }

    /// Replaces a word in all items but imports.
    fn rename(&mut self, from: &str, to: &str) {
        for item in self.items.iter_mut().filter(|item| !is_import(item)) {
            *item = with_word(item, from, to);
        }
    }

    /// Applies a change of each function that is picked to its body.
    fn change_bodies(
        &mut self,
        random: &mut StdRng,
        mut change: impl FnMut(&mut StdRng, &syn::ItemFn, &str) -> Option<String>,
    ) {
        for item in &mut self.items {
            let Ok(function) = syn::parse_str::<syn::ItemFn>(item) else { continue };
            if random.random_bool(0.6)
                && let Some(changed) = change(random, &function, item)
                && syn::parse_str::<syn::ItemFn>(&changed).is_ok()
            {
                *item = changed;
            }
        }
    }
}

fn source_of(item: &impl Spanned, text: &str) -> Option<String> {
    text.get(item.span().byte_range()).map(str::to_owned)
}

fn is_import(item: &str) -> bool {
    item.starts_with("use ") || item.starts_with("extern ")
}

/// A text with a word in place of another: names and lifetimes, none of them in the middle of a word.
fn with_word(text: &str, from: &str, to: &str) -> String {
    let part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, behind) = (&rest[..at], &rest[at + from.len()..]);
        out.push_str(before);
        let whole = !out.ends_with(part) && !behind.starts_with(part);
        out.push_str(if whole { to } else { from });
        rest = behind;
    }
    out + rest
}

fn pick<'t>(random: &mut StdRng, list: &[&'t str]) -> &'t str {
    list.choose(random).expect("no list is empty")
}

/// Grows one variant of a program, with a second one beside it at times.
pub(super) fn grow(program: &Program, other: &Program, random: &mut StdRng) -> Variant {
    let mut grown = program.clone();
    let mut changes = vec![program.name.clone()];
    for _ in 0..random.random_range(1..=CHANGES) {
        let name = change(&mut grown, random);
        changes.push(name.to_owned());
    }
    if random.random_ratio(1, 5) {
        changes.push(format!("composed with {}", other.name));
        compose(&mut grown, other);
    }
    let files = arrange(&grown, &mut changes, random);
    Variant { changes, files }
}

fn change(grown: &mut Program, random: &mut StdRng) -> &'static str {
    match random.random_range(0..9) {
        0 => reorder(grown, random),
        1 => rename(grown, random),
        2 => lifetimes(grown, random),
        3 => aliases(grown, random),
        4 => decoys(grown, random),
        5 => wrap_bodies(grown, random),
        6 => wrap_calls(grown, random),
        7 => constants(grown, random),
        _ => nest_parameters(grown, random),
    }
}

fn reorder(grown: &mut Program, random: &mut StdRng) -> &'static str {
    grown.items.shuffle(random);
    "reordered"
}

/// Gives other names to functions, types and traits.
fn rename(grown: &mut Program, random: &mut StdRng) -> &'static str {
    for item in grown.items.clone() {
        let Ok(item) = syn::parse_str::<syn::Item>(&item) else { continue };
        let name = match &item {
            syn::Item::Fn(item) if item.sig.ident != "run" => &item.sig.ident,
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            _ => continue,
        };
        let longer = "x".repeat(random.random_range(0..40));
        grown.rename(
            &name.to_string(),
            &format!("{}{longer}{}", pick(random, &["Item", "r", "_f", "bb", "Own"]), random.random_range(0..1000)),
        );
    }
    "renamed"
}

fn lifetimes(grown: &mut Program, random: &mut StdRng) -> &'static str {
    for lifetime in ["'a", "'b", "'l", "'x"] {
        grown.rename(lifetime, &format!("{lifetime}{}", pick(random, &["_", "0", "static", "_1"])));
    }
    "lifetimes renamed"
}

/// Names types of the language through aliases.
fn aliases(grown: &mut Program, random: &mut StdRng) -> &'static str {
    let number = random.random_range(0..1000);
    let kind = pick(random, &["String", "u64", "usize", "u8", "str"]);
    let (first, second) = (format!("Alias{number}"), format!("Again{number}"));
    grown.rename(kind, &second);
    grown.items.push(format!("type {first} = {kind};\ntype {second} = {first};"));
    "aliases"
}

/// Other widths and counts.
fn constants(grown: &mut Program, random: &mut StdRng) -> &'static str {
    let (from, to) =
        *[("u64", "u32"), ("u64", "u128"), ("8", "3"), ("24", "33"), ("200", "9")].choose(random).expect("some");
    grown.rename(from, to);
    "other widths"
}

/// Code that is fine, and text that looks like what the audit reads.
fn decoys(grown: &mut Program, random: &mut StdRng) -> &'static str {
    let number = random.random_range(0..1000);
    let text = pick(
        random,
        &[
            "pub fn decoyN(x: Option<u8>, y: u8) -> u8 { match x { Some(z) if z > y => z, Some(_) => 1, None => y } }",
            "pub const DECOYN: &str = \"fn f(_1: u8) -> u8 {\\n    bb0: {\\n        return;\\n    }\\n}\\n// MIR FOR CTFE\";",
            "pub fn decoyN() -> &'static str { \"FakeRead(ForMatchGuard, _3); // scope 0 at src/lib.rs:1:1: 1:2\" }",
            "#[derive(Clone, Copy, Debug, PartialEq)] pub enum DecoyN { A(u8), B { x: u16 } }",
            "pub fn decoyN(rows: &[[u8; 2]; 2], at: usize) -> u8 { let one = at % 2; rows[one][one] }",
            "pub struct DecoyN<T>(pub T); impl<T: Clone> DecoyN<T> { pub fn again(&self) -> T { self.0.clone() } }",
            "pub async fn decoyN(x: u8) -> u8 { async move { x }.await + x }",
            "pub mod decoyN { pub fn f(x: &[u8]) -> impl Iterator<Item = u8> { x.iter().map(|y| *y) } }",
        ],
    );
    let at = random.random_range(0..=grown.items.len());
    grown.items.insert(at, text.replace('N', &number.to_string()).replace("RONe", "None"));
    "decoys"
}

/// Puts bodies of functions into what runs them once.
fn wrap_bodies(grown: &mut Program, random: &mut StdRng) -> &'static str {
    grown.change_bodies(random, |random, function, item| {
        let range = function.block.span().byte_range();
        let body = item.get(range.clone())?;
        let wrapped = match function.sig.asyncness {
            Some(_) => pick(
                random,
                &[
                    "{ async move BODY.await }",
                    "{ async { async move BODY.await }.await }",
                    "{ loop { break async move BODY.await } }",
                ],
            ),
            None => pick(
                random,
                &[
                    "{ (move || BODY)() }",
                    "{ let mut wrapped = || BODY; wrapped() }",
                    "{ let wrapped = BODY; wrapped }",
                    "{ match () { () => BODY } }",
                    "{ loop { break BODY } }",
                    "{ if core::hint::black_box(true) BODY else { loop {} } }",
                    "{ (BODY, 0u8).0 }",
                    "{ *alloc::boxed::Box::new(BODY) }",
                    "{ [BODY].into_iter().next().unwrap() }",
                    "{ Some(()).map(|()| BODY).unwrap() }",
                    "{ vec![BODY].pop().unwrap() }",
                    "{ const fn same<T>(x: T) -> T { x } same(BODY) }",
                ],
            ),
        };
        Some(format!("{}{}", &item[..range.start], wrapped.replace("BODY", body)))
    });
    "bodies wrapped"
}

/// Calls `attack` through something else.
fn wrap_calls(grown: &mut Program, random: &mut StdRng) -> &'static str {
    let number = random.random_range(0..1000);
    let Some(at) = grown.items.iter().position(|item| item.starts_with("fn attack() -> ")) else {
        return "nothing to call";
    };
    let Ok(function) = syn::parse_str::<syn::ItemFn>(&grown.items[at]) else { return "nothing to call" };
    let syn::ReturnType::Type(_, kind) = &function.sig.output else { return "nothing to call" };
    let Some(kind) = source_of(kind, &grown.items[at]) else { return "nothing to call" };
    let inner = format!("attack{number}");
    grown.items[at] = with_word(&grown.items[at], "attack", &inner);
    let through = pick(
        random,
        &[
            "fn attack() -> KIND { (|| INNER())() }",
            "struct Through<T>(T); impl<T: Copy> Through<T> { fn go(&self) -> KIND { INNER() } } fn attack() -> KIND { Through(1u8).go() }",
            "trait Go { fn go(&self) -> KIND; } impl Go for u8 { fn go(&self) -> KIND { INNER() } } fn attack() -> KIND { 1u8.go() }",
            "fn once<T, F: FnOnce() -> T>(f: F) -> T { f() } fn attack() -> KIND { once(INNER) }",
            "fn once<T>(f: impl FnOnce() -> T) -> T { f() } fn attack() -> KIND { once(|| once(|| INNER())) }",
            "fn attack() -> KIND { let (found, _) = (INNER(), [0u8; 3]); found }",
            "mod through { pub(super) fn go() -> super::Reply { super::INNER() } } type Reply = KIND; fn attack() -> KIND { through::go() }",
            "fn attack() -> KIND { match 1u8 { x if x > 1 => INNER(), _ => INNER() } }",
            "fn attack() -> KIND { let found = INNER(); let _ = format!(\"{}\", matches!(1u8, 1 | 2)); found }",
        ],
    );
    grown.items.push(through.replace("KIND", &kind).replace("INNER", &inner));
    "calls wrapped"
}

/// Puts parameters of functions behind boxes, references, tuples, fields and arrays.
fn nest_parameters(grown: &mut Program, random: &mut StdRng) -> &'static str {
    let mut number = random.random_range(0..1_000_000);
    grown.change_bodies(random, |random, function, item| {
        number += 1;
        nested(random, function, item, number)
    });
    if grown.text().contains("Nest<") {
        grown.items.push("pub struct Nest<T> { other: u8, inner: T }".to_owned());
        grown.items.dedup();
    }
    "parameters nested"
}

fn nested(random: &mut StdRng, function: &syn::ItemFn, item: &str, number: usize) -> Option<String> {
    let syn::FnArg::Typed(parameter) = function.sig.inputs.iter().collect::<Vec<_>>().choose(random)? else {
        return None;
    };
    let syn::Pat::Ident(pattern) = &*parameter.pat else { return None };
    let (name, kind) = (pattern.ident.to_string(), source_of(&parameter.ty, item)?);
    let (mut wrapped, mut value, mut layers) = (kind, name.clone(), Vec::new());
    let mut before = String::new();
    for layer in 0..random.random_range(1..=LAYERS) {
        let (open, make, access) = *[
            ("alloc::boxed::Box<KIND>", "alloc::boxed::Box::new(VALUE)", "(*PLACE)"),
            ("&mut KIND", "&mut hidden", "(*PLACE)"),
            ("(u8, KIND)", "(1, VALUE)", "PLACE.1"),
            ("Nest<KIND>", "Nest { other: 1, inner: VALUE }", "PLACE.inner"),
            ("[KIND; 1]", "[VALUE]", "PLACE[0]"),
        ]
        .choose(random)?;
        if open.starts_with('&') {
            write!(before, "let mut hidden{layer} = {value}; ").ok()?;
            value = format!("&mut hidden{layer}");
        } else {
            value = make.replace("VALUE", &value);
        }
        wrapped = open.replace("KIND", &wrapped);
        layers.push(access);
    }
    let place = layers.iter().rev().fold(name.clone(), |place, access| access.replace("PLACE", &place));
    let block = function.block.span().byte_range();
    let (signature, body) = (item.get(..block.start)?, item.get(block)?);
    let inner = format!("nested{number}");
    let kind = parameter.ty.span().byte_range();
    let declared = format!("{}{wrapped}{}", signature.get(..kind.start)?, signature.get(kind.end..)?);
    let declared = with_word(&declared, &function.sig.ident.to_string(), &inner);
    let declared = declared.trim_start_matches("pub ").to_owned();
    let arguments: Option<Vec<String>> = function
        .sig
        .inputs
        .iter()
        .map(|input| match input {
            syn::FnArg::Typed(other) => match &*other.pat {
                syn::Pat::Ident(other) if other.ident == pattern.ident => Some(value.clone()),
                syn::Pat::Ident(other) => Some(other.ident.to_string()),
                _ => None,
            },
            syn::FnArg::Receiver(_) => None,
        })
        .collect();
    let wait = if function.sig.asyncness.is_some() { ".await" } else { "" };
    let call = format!("{inner}({}){wait}", arguments?.join(", "));
    Some(format!("{declared}{}\n{signature}{{ {before}{call} }}", with_word(body, &name, &place))).map(|both| {
        // One item: the inner function stands in the outer one.
        let outer = both.rfind(signature).unwrap_or_default();
        let (inner, outer) = both.split_at(outer);
        let (head, rest) = outer.split_at(signature.len());
        format!("{head}{{ {inner} {}", rest.trim_start_matches('{'))
    })
}

/// Puts another program beside it; the call runs both.
fn compose(grown: &mut Program, other: &Program) {
    grown.rename("run", "first_run");
    let items: Vec<&str> = other.items.iter().map(String::as_str).filter(|item| !item.starts_with("extern ")).collect();
    grown.items.push(format!("pub mod other_hole {{\n{}\n}}", items.join("\n")));
    grown.items.push(
        "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { first_run(db, args).await?; other_hole::run(db, args).await }"
            .to_owned(),
    );
}

/// Lays the items out in modules and files.
fn arrange(grown: &Program, changes: &mut Vec<String>, random: &mut StdRng) -> Vec<SourceFile> {
    const ALLOC: &str = "extern crate alloc;";
    let head = format!("{}\n#![allow(warnings)]\n{ALLOC}\n", grown.head.replace("#![allow(warnings)]", ""));
    let items: Vec<&str> = grown.items.iter().map(String::as_str).filter(|item| !item.starts_with(ALLOC)).collect();
    let items = items.join("\n");
    let file = |path: &str, text: String| SourceFile { path: path.to_owned(), text };
    match random.random_range(0..4) {
        0 => {
            changes.push("in modules".to_owned());
            let root = format!("{head}pub mod outer {{ pub mod inner {{\n{items}\n}} }}\npub use outer::inner::run;\n");
            vec![file("src/lib.rs", root)]
        }
        1 => {
            changes.push("in files".to_owned());
            let root = format!("{head}pub mod outer;\npub use outer::inner::run;\n");
            let outer = file("src/outer/mod.rs", "pub mod inner;\n".to_owned());
            vec![file("src/lib.rs", root), outer, file("src/outer/inner.rs", format!("{items}\n"))]
        }
        _ => vec![file("src/lib.rs", format!("{head}{items}\n"))],
    }
}
