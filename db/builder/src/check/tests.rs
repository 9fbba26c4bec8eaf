//! Tests of every rule against its own examples.

use super::super::tests::{job, source, toolchain};
use super::super::{BuildError, build_module, compile};
use super::rules::{RULES, Rule};
use super::*;

/// An example as a whole source. `REPEAT(n, x)` stands for x n times.
fn example(text: &str) -> PushedSource {
    let mut text = text.to_owned();
    while let Some(start) = text.find("REPEAT(") {
        let end = start + text[start..].find(')').expect("a closing bracket");
        let (count, what) = text[start + 7..end].split_once(", ").expect("two arguments");
        let repeated = what.repeat(count.parse().expect("a number"));
        text.replace_range(start..=end, &repeated);
    }
    let head = if text.starts_with("#![") { "" } else { "#![no_std]\n" };
    let attributes: Vec<&str> = text.lines().take_while(|line| line.starts_with("#![")).collect();
    let rest = &text[attributes.iter().map(|line| line.len() + 1).sum::<usize>().min(text.len())..];
    source(&format!(
        "{head}{}\n#![allow(warnings)]\nuse sandstorm_api::prelude::*;\n{rest}\n\
         pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> {{ Ok(()) }}\n",
        attributes.join("\n")
    ))
}

fn refusals(text: &str, tier: CodeTier) -> Vec<String> {
    match check(&example(text), &["hmac_sha256".to_owned()], tier) {
        Ok(()) => Vec::new(),
        Err(BuildError::Refused(found)) => found.into_iter().filter_map(|one| one.rule).collect(),
        Err(other) => panic!("{other}"),
    }
}

/// The rules by which the audit of the compiler's intermediate form refuses a source.
fn audited(text: &str) -> Vec<String> {
    match compile(toolchain(), &example(text), &job()) {
        Err(BuildError::Refused(found)) => found.into_iter().filter_map(|one| one.rule).collect(),
        _ => Vec::new(),
    }
}

fn checked(rule: &Rule, tier: CodeTier) -> Result<(), String> {
    let source = example(rule.passes);
    let found = match refusals(rule.refused, tier) {
        found if found.is_empty() && tier == CodeTier::Native => audited(rule.refused),
        found => found,
    };
    if found.iter().any(|id| id == rule.id) != rule.applies(tier) {
        return Err(format!("{}, {tier}: `{}` is refused by {found:?}", rule.id, rule.refused));
    }
    if tier == CodeTier::Native && !rule.applies(tier) {
        return Ok(());
    }
    let found = refusals(rule.passes, tier);
    if !found.is_empty() {
        return Err(format!("{}, {tier}: `{}` must pass, but is refused by {found:?}", rule.id, rule.passes));
    }
    let built = match tier {
        CodeTier::Sandboxed => build_module(toolchain(), &source, &job()).map(|_| ()),
        CodeTier::Native => compile(toolchain(), &source, &job()).map(|_| ()),
    };
    built.map_err(|error| format!("{}, {tier}: `{}` must compile: {error}", rule.id, rule.passes))
}

/// A rule that does not apply to the sandboxed tier refuses nothing there, and what passes in the native tier passes
/// there, too.
#[test]
fn every_rule_refuses_its_example_and_passes_the_one_near_it() {
    for tier in [CodeTier::Native, CodeTier::Sandboxed] {
        let wrong: Vec<String> = RULES.iter().filter_map(|rule| checked(rule, tier).err()).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The page for readers, made from the table.
fn page() -> String {
    let mut page = String::from(
        "# What the checker refuses\n\n\
         Made from the table in `db/builder/src/check/rules.rs` by its test: `UPDATE_DOCS=1 cargo test -p sandstorm-builder --lib\n\
         the_checker_page` writes it anew.\n\n\
         A push is read as a syntax tree, whole, before any compiler runs. What the lists of harmless attributes, macros,\n\
         items, types and paths (`lists.rs`) do not name is refused, with file, line and the offending text. Items under\n\
         `#[cfg(test)]` are left alone: the server never compiles them.\n\n\
         Each rule says in which tiers it applies. Rules of both protect the builder, or keep to what an extension is given.\n\
         Rules of the native tier alone are there because the compiler's word is all that keeps a native extension from what\n\
         is not its tenant's, and safe Rust has holes ([unsound.md](unsound.md)). In that tier, after the tree, the compiler's\n\
         own intermediate form is looked through (`db/builder/src/audit.rs`) for what no syntax shows: function pointers,\n\
         addresses, objects made of type parameters, what indexes do to the places they stand in, and places that are used\n\
         after they changed. A sandboxed extension is confined whatever its source does, so nothing is audited there.\n",
    );
    for rule in RULES {
        page.push_str(&format!(
            "\n## {}\n\nTiers: {}. {}.\n\n```rust\n// refused\n{}\n\n// passes\n{}\n```\n",
            rule.id,
            rule.tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(", "),
            capital(rule.reason),
            rule.refused,
            rule.passes
        ));
    }
    page
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[test]
fn the_checker_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checker.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).expect("docs/checker.md");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == page(), "docs/checker.md is not what the table says: run this test with UPDATE_DOCS=1");
}

#[test]
fn the_names_of_rules_are_unique() {
    let names: HashSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(names.len(), RULES.len());
}

#[test]
fn modules_in_several_files_are_followed() {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let root = "#![no_std]\nmod shapes;\n#[cfg(test)]\nmod tests;\n";
    let files = |circle: &str| {
        vec![
            file("src/lib.rs", root),
            file("src/shapes.rs", "pub mod circle;\npub mod inner { pub mod deep; }\n"),
            file("src/shapes/circle.rs", circle),
            file("src/shapes/inner/deep.rs", "pub fn f() {}"),
            file("src/tests.rs", "use sandstorm_api::testing::TestStore; extern crate std;"),
        ]
    };
    let source = |files| PushedSource::new("name = \"test\"", files).expect("a source");
    check(&source(files("pub fn area() {}")), &[], CodeTier::Native).unwrap_or_else(|error| panic!("{error}"));
    let Err(BuildError::Refused(found)) = check(&source(files("static X: u8 = 1;")), &[], CodeTier::Native) else {
        panic!("passed")
    };
    assert_eq!((found[0].file.as_str(), found[0].rule.as_deref()), ("src/shapes/circle.rs", Some("static")));
    let mut lost = files("");
    lost.push(file("src/lost.rs", "pub fn f() {}"));
    let Err(BuildError::Refused(found)) = check(&source(lost), &[], CodeTier::Native) else { panic!("passed") };
    assert_eq!((found[0].file.as_str(), found[0].rule.as_deref()), ("src/lost.rs", Some("module-file")));
}

#[test]
fn every_refusal_is_reported_with_its_text() {
    let text = "static A: u8 = 1;\nfn f(x: *const u8) { unsafe {} }\n";
    let Err(BuildError::Refused(found)) = check(&example(text), &[], CodeTier::Native) else { panic!("passed") };
    let rules: Vec<&str> = found.iter().filter_map(|one| one.rule.as_deref()).collect();
    assert_eq!(rules, ["static", "raw-pointer", "unsafe"]);
    assert!(
        found[1].rendered.contains("fn f(x: *const u8) { unsafe {} }\n  |         ^^^^^^^^^\n"),
        "{}",
        found[1].rendered
    );
}

/// A name hides no lifetime if no file declares it otherwise.
#[test]
fn the_macro_of_typed_values_is_given_names_alone() {
    let refused = |text: &str, tier| {
        let text = format!("#![no_std]\nuse sandstorm_api::prelude::*;\n{text}");
        match check(&source(&text), &[], tier) {
            Ok(()) => None,
            Err(BuildError::Refused(found)) => Some(found[0].message.clone()),
            Err(other) => panic!("{other}"),
        }
    };
    for tier in [CodeTier::Native, CodeTier::Sandboxed] {
        for text in [
            "pub struct A { pub x: u8 }\ntyped!(struct A { x });",
            "mod inner { pub struct A { pub r#type: u8, pub y: u8 } sandstorm_api::typed! { struct A { r#type, y, } } }",
            "pub enum E { A, B(u8, u8), C { x: u8 } }\ntyped!(enum E { A, B(one, other), C { x } });",
        ] {
            assert_eq!(refused(text, tier), None, "{text}");
        }
        for text in [
            "typed!(struct A { x: unsafe { 1 } });",
            "typed!(struct A { x(y) });",
            "typed!(struct A(x));",
            "typed!(struct A { #[inline] x });",
            "typed!(enum E { A(B(c)) });",
            "typed!(enum E { A[b] });",
            "typed!(enum E { A = 1 });",
            "typed!(@kind);",
            "typed!(union A { x });",
            "typed!(struct A { x } struct B { y });",
        ] {
            assert!(refused(text, tier).expect(text).contains("typed!(struct Account"), "{text}");
        }
        let other = refused("use alloc::format as typed;", tier).expect("a name that is taken");
        assert!(other.contains("this name is taken"), "{other}");
        assert!(refused("other::typed!(struct A { x });", tier).is_some());
    }
    let own = "macro_rules! typed { ($x:ident) => {} }";
    assert!(refused(own, CodeTier::Sandboxed).expect("its name is taken").contains("this name is taken"));
}

#[test]
fn names_of_types_are_looked_up_in_all_files() {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let answer = |used: &str, other: &str| {
        let root = format!(
            "#![no_std]\nmod other;\nuse sandstorm_api::prelude::*;\ntrait Own: Sized {{ fn own(self, of: {used}); }}\nstruct Pair<T>(T);\n"
        );
        let source = PushedSource::new("name = \"test\"", vec![file("src/lib.rs", &root), file("src/other.rs", other)]);
        match check(&source.expect("a source"), &[], CodeTier::Native) {
            Ok(()) => String::new(),
            Err(BuildError::Refused(found)) => found.into_iter().filter_map(|one| one.rule).collect(),
            Err(other) => panic!("{other}"),
        }
    };
    for (used, other) in [
        ("Option<Self>", ""),
        ("Vec<Pair<Self>>", ""),
        ("Pair<Self>", "use super::Pair;"),
        ("core::option::Option<Self>", "use core::cell::Ref;"),
        ("Result<Self>", "type Result<T> = core::result::Result<T, u8>;"),
        ("(Self, impl Fn(&Self) -> u8)", ""),
    ] {
        assert_eq!(answer(used, other), "", "{used} and {other}");
    }
    for (used, other) in [
        ("Wrap<Self>", ""),
        ("Pair<Self>", "struct Pair<'a, T>(&'a T);"),
        ("Pair<Self>", "type Pair<T> = super::Wrap<T>;"),
        ("Pair<Self>", "pub use super::Wrap as Pair;"),
        ("Pair<Self>", "use core::cell; pub use cell::Pair;"),
        ("Pair<Self>", "use core::cell as c; pub use c::*;"),
        ("other::Pair<Self>", ""),
        ("Vec<Self>", "pub use core::cell::Ref as Vec;"),
        ("Vec<Self>", "enum Vec<'a, T> { A(&'a T) }"),
        ("core::cell::Ref<Self>", ""),
        ("Option<&Self>", ""),
        ("&[Self]", ""),
        ("&'static Self", ""),
        ("impl Fn(&'static Self)", ""),
    ] {
        assert!(answer(used, other).contains("self-lifetime"), "{used} and {other}");
    }
}

/// The list of type parameters for the audit needs no syntax tree.
#[test]
fn type_parameters_are_found_wherever_their_items_stand() {
    let text = "fn f<'a, A: Into<B>, const N: usize>() { any! { impl<C, D: Fn(u8) -> Vec<E>, F> Trait<G> for H<I> {} struct S<J>; } a < K, L > (M) }";
    let tokens = TokenStream::from_str(text).expect("tokens");
    let mut found = tokens::type_parameters(&tokens);
    found.sort();
    assert_eq!(found, ["A", "C", "D", "F", "J"]);
}
