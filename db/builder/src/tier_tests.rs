//! Tests of the sandboxed tier's rules: ordinary Rust passes and becomes a module, and what would reach the builder
//! does not.

use std::path::Path;

use sandstorm_net::CodeTier;

use super::module_tests::shape;
use super::tests::{job, source, tight_job, toolchain};
use super::{BuildError, MANIFEST_FILE, PushedSource, ROOT_FILE, SourceFile};
use super::{build_module, check};

/// The corpora must not shrink unnoticed.
const LEAST_PROGRAMS: usize = 120;
const LEAST_PATTERNS: usize = 10;

const RUN: &str = "pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> { Ok(()) }\n";

fn whole(text: &str) -> PushedSource {
    source(&format!(
        "#![no_std]\n#![allow(warnings)]\nextern crate alloc;\nuse sandstorm_api::prelude::*;\n{text}\n{RUN}"
    ))
}

/// The rules by which the sandboxed tier refuses a source.
fn refusals(text: &str) -> Vec<String> {
    match check(&whole(text), &["hmac_sha256".to_owned()], CodeTier::Sandboxed) {
        Ok(()) => Vec::new(),
        Err(BuildError::Refused(found)) => found.into_iter().filter_map(|one| one.rule).collect(),
        Err(other) => panic!("{other}"),
    }
}

/// What the native tier refuses, and people write all the time: the files of `tests/patterns`, which
/// `tests/extensions/patterns.rs` calls as well.
fn patterns() -> Vec<(String, PushedSource)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/patterns");
    let entries = std::fs::read_dir(folder).expect("the folder");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        (path.display().to_string(), source(&std::fs::read_to_string(&path).expect("text")))
    };
    entries.map(read).collect()
}

#[test]
fn ordinary_rust_passes_where_the_second_wall_stands() {
    let patterns = patterns();
    assert!(patterns.len() >= LEAST_PATTERNS, "{} patterns: the corpus has shrunk", patterns.len());
    for (what, pushed) in patterns {
        check(&pushed, &[], CodeTier::Sandboxed).unwrap_or_else(|error| panic!("{what}: {error}"));
        let built = build_module(toolchain(), &pushed, &job()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(shape(&built.wasm).foreign.is_empty(), "{what}");
        let native = check(&pushed, &[], CodeTier::Native);
        assert!(matches!(native, Err(BuildError::Refused(_))), "{what} passes in the native tier as well: {native:?}");
    }
}

#[test]
fn what_reaches_the_builder_is_refused_in_both_tiers() {
    for (text, rule) in [
        ("const X: &str = include_str!(\"/etc/passwd\");", "macro"),
        ("static X: &str = include_str!(\"/etc/passwd\");", "macro"),
        ("static X: fn(u8) -> [u8; { include!(\"/etc/passwd\") }] = f;", "macro"),
        ("fn f(x: *const [u8; { env!(\"HOME\").len() }]) {}", "macro"),
        ("fn f(x: impl for<#[naked] 'a> Fn(&'a u8)) {}", "attribute"),
        ("#[unsafe(link_section = \"x\")]\nstatic X: u8 = 1;", "attribute"),
        ("use core::include_str as pin;", "import"),
        ("use core::include_str as own;\nmacro_rules! own { () => {} }", "import"),
        ("use core as c;", "import"),
        ("fn f() { core::arch::wasm32::memory_grow(0, 1); }", "path"),
        ("fn f() { core::intrinsics::abort() }", "path"),
        ("fn f(x: unsafe fn(u8)) {}", "unsafe"),
        ("fn f(x: extern \"C\" fn(u8)) {}", "extern"),
        ("sandstorm_api::export!(run, 0);", "macro"),
        ("fn f() { unknown!() }", "macro"),
        ("unknown! {}", "macro"),
        ("fn f(x: unknown!()) {}", "macro"),
        ("#[cfg(test)]\nmacro_rules! own { () => {} }\nfn f() { own!() }", "macro"),
    ] {
        let found = refusals(text);
        assert!(found.iter().any(|one| one == rule), "`{text}`: {found:?}");
    }
}

/// A macro moves tokens about. None of these may pass, however they would come together.
#[test]
fn what_a_macro_could_put_together_is_refused() {
    for text in [
        // Words, in a definition and in a call.
        "macro_rules! own { () => { unsafe {} } }",
        "macro_rules! own { ($x:tt) => { $x {} } }\nfn f() { own!(unsafe) }",
        "macro_rules! own { ($x:tt) => { $x {} } }\nfn f() { own!(r#unsafe) }",
        "macro_rules! own { ($($x:tt)*) => { $($x)* } }\nown! { mod tests; }",
        "macro_rules! own { ($($x:tt)*) => { $($x)* } }\nown! { extern \"C\" { safe fn f(); } }",
        "macro_rules! own { ($x:ident) => { $x!(\"/etc/passwd\") } }\nconst X: &str = own!(include_str);",
        "macro_rules! own { ($x:ident) => { core::$x::wasm32::memory_grow(0, 1) } }\nfn f() { own!(arch); }",
        "macro_rules! own { () => { use core as c; } }\nown!();",
        "macro_rules! own { () => { macro_rules! other { () => {} } } }",
        "macro_rules! own { (unsafe) => {} }",
        // Names of listed macros, by which calls are read as expressions.
        "macro_rules! vec { ($($x:tt)*) => { $($x)* } }",
        "macro_rules! pin { () => {} }",
        "macro_rules! include_str { () => {} }",
        // Calls whose name is given, or of nothing that is known.
        "macro_rules! own { ($x:ident) => { $x!() } }",
        "macro_rules! own { ($($x:ident)*) => { $($x)*! {} } }",
        "macro_rules! own { () => { unknown!() } }",
        "macro_rules! own { ($x:expr) => { $x } }\nfn f() { own!(unknown!()) }",
        // Attributes: not on the list, with variables, or where a macro could take them apart.
        "macro_rules! own { () => { #[naked] fn g() {} } }",
        "macro_rules! own { ($x:meta) => { #[$x] fn g() {} } }",
        "macro_rules! own { ($x:literal) => { #[doc = $x] fn g() {} } }",
        "macro_rules! own { () => { #![allow(warnings)] } }",
        "macro_rules! own { ($x:tt $y:tt) => { $x [naked] fn g() {} } }\nown!(# [inline]);",
        "macro_rules! own { ($x:tt $y:tt) => { $x [naked] fn g() {} } }\nown!([inline] #);",
        "macro_rules! own { ($x:item) => { $x } }\nown! { /// Text.\nfn g() {} }",
        "macro_rules! own { ($x:tt) => { #[inline] fn g() {} } }",
        "macro_rules! own { ($x:r#tt) => { #[inline] fn g() {} } }",
        "macro_rules! other { () => {} }\nmacro_rules! own { () => { other!(#[inline] fn g() {}); } }",
        "macro_rules! other { () => {} }\nmacro_rules! own { () => { other! { fn g() { { #[inline] fn h() {} } } } } }",
        "macro_rules! other { () => {} }\nmacro_rules! own { () => { other! name { #[inline] fn g() {} } } }",
        "macro_rules! other { () => {} }\nmacro_rules! own { ($($x:ident),*) => { $(other! $x)|* { #[inline] fn g() {} } } }",
        "macro_rules! other { () => {} }\nmacro_rules! own { ($($x:ident),*) => { other! $( { #[inline] fn g() {} } )* } }",
        // What is no definition.
        "macro_rules! { () => {} }",
        "macro_rules! own { () = {} }",
        "macro_rules! own { () => {} () => {} }",
        "fn f() { macro_rules! {} }",
    ] {
        let found = refusals(text);
        let expected = ["macro-tokens", "macro", "attribute", "syntax"];
        assert!(found.iter().any(|one| expected.contains(&one.as_str())), "`{text}`: {found:?}");
    }
}

#[test]
fn macros_are_found_wherever_they_are_defined_and_called() {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let root = format!(
        "#![no_std]\n#[macro_use]\nmod macros;\nmod other;\nuse sandstorm_api::prelude::*;
         fn f(x: byte!()) -> bool {{ matches!(x, one!()) && other::g() != [one!(), crate::macros::two!()] }}
         struct S;\nimpl S {{ getter!(one); }}\ntrait T {{ getter!(two); }}\n{RUN}"
    );
    let macros = "macro_rules! byte { () => { u8 } }\nmacro_rules! one { () => { 1 } }
        macro_rules! getter { ($name:ident) => { fn $name(&self) -> bool { if !self.ready() { return false; } 1 != 2 } } }
        macro_rules! count { () => { 0 }; ($first:tt $($rest:tt)*) => { 1 + count!($($rest)*) }; }
        macro_rules! two { () => { count!(a b) } }\npub(crate) use two;";
    let other =
        "pub fn g() -> [u8; 2] { macro_rules! local { ($($x:expr),* $(,)?) => { [$($x),*] }; } local!(one!(), 3,) }";
    let files = vec![file(ROOT_FILE, &root), file("src/macros.rs", macros), file("src/other.rs", other)];
    let source = PushedSource::new("name = \"test\"", files).expect("a source");
    check(&source, &[], CodeTier::Sandboxed).unwrap_or_else(|error| panic!("{error}"));
    let text = root.replace("getter!(one);", "fn ready(&self) -> bool { true } getter!(one);");
    let text = text.replace("getter!(two);", "fn ready(&self) -> bool; getter!(two);");
    let files = vec![file(ROOT_FILE, &text), file("src/macros.rs", macros), file("src/other.rs", other)];
    let source = PushedSource::new("name = \"test\"", files).expect("a source");
    build_module(toolchain(), &source, &job()).unwrap_or_else(|error| panic!("{error}"));
}

/// Programs whose harm is to be done while they are compiled, in the format that `tests/hostile/README.md` describes.
fn hostile() -> Vec<(String, Result<PushedSource, BuildError>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile/compile_time");
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("an entry").path();
        let text = repeated(&std::fs::read_to_string(&path).expect("text"));
        let (mut manifest, mut files) = ("name = \"hostile\"\n".to_owned(), Vec::new());
        for (number, part) in text.split("\n//@ file: ").enumerate() {
            let (name, text) = if number == 0 { (ROOT_FILE, part) } else { part.split_once('\n').expect("a line") };
            if name == MANIFEST_FILE {
                manifest = text.to_owned();
            } else {
                files.push(SourceFile { path: name.to_owned(), text: text.to_owned() });
            }
        }
        programs.push((path.display().to_string(), PushedSource::new(&manifest, files)));
    }
    programs
}

/// Expands `<<<N*TEXT>>>`, in which `{n}` is the number of the repetition.
fn repeated(text: &str) -> String {
    let Some((before, behind)) = text.split_once("<<<") else { return text.to_owned() };
    let (count, behind) = behind.split_once('*').expect("`<<<N*TEXT>>>`");
    let (body, behind) = behind.split_once(">>>").expect("`<<<N*TEXT>>>`");
    // `<<<2*>>>>` repeats the last possible `>`.
    let (body, behind) = match behind.strip_prefix('>') {
        Some(behind) => (format!("{body}>"), behind),
        None => (body.to_owned(), behind),
    };
    let count: u32 = count.parse().expect("a count");
    let expanded: String = (0..count).map(|number| body.replace("{n}", &number.to_string())).collect();
    format!("{before}{expanded}{}", repeated(behind))
}

#[test]
fn programs_hostile_to_the_compiler_are_refused_or_become_harmless_modules() {
    let job = tight_job();
    let programs = hostile();
    assert!(programs.len() >= LEAST_PROGRAMS, "{} programs: the corpus has shrunk", programs.len());
    for (name, program) in programs {
        let built = program.and_then(|source| {
            check(&source, &toolchain().crate_names(&source)?, CodeTier::Sandboxed)?;
            build_module(toolchain(), &source, &job)
        });
        match built {
            Ok(built) => {
                let foreign = shape(&built.wasm).foreign;
                eprintln!("{name}: a module of {} bytes", built.wasm.len());
                assert!(foreign.is_empty(), "{name}: {foreign:?}");
            }
            Err(BuildError::Refused(_) | BuildError::Compile(_) | BuildError::Limit(_)) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}
