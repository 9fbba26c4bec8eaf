//! Hostile sources, each with the answer that it must get.

use sandstorm_net::CodeTier;

use super::tests::{source, tight_job, toolchain};
use super::{BuildError, PushedSource, check, compile};

/// The expected result of a source.
#[derive(Debug)]
enum Answer {
    /// The checker refuses it by this rule.
    Rule(&'static str),
    /// The compiler refuses it, or it is ended at a limit.
    NotBuilt,
    /// It is harmless, or its harm is the runtime's business.
    Either,
}
use Answer::{Either, NotBuilt, Rule};

const RUN: &str = "pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> { Ok(()) }\n";

fn whole(text: &str) -> PushedSource {
    source(&format!("#![no_std]\n#![allow(warnings)]\nuse sandstorm_api::prelude::*;\n{text}\n{RUN}"))
}

#[track_caller]
fn answered(text: &str, answer: &Answer) {
    let source = whole(text);
    let shown: String = text.chars().take(120).collect();
    let checked = check(&source, &["hmac_sha256".to_owned()], CodeTier::Native);
    if let Rule(rule) = answer {
        let Err(BuildError::Refused(found)) = &checked else { panic!("`{shown}` passed the checker: {checked:?}") };
        assert!(found.iter().any(|one| one.rule.as_deref() == Some(*rule)), "`{shown}`: {found:?}");
        assert!(found.iter().all(|one| one.rendered.starts_with("error[")), "{found:?}");
        return;
    }
    let built = checked.and_then(|()| compile(toolchain(), &source, &tight_job()));
    match (answer, built) {
        (NotBuilt, Ok(_)) => panic!("`{shown}` was built"),
        (_, Err(BuildError::Internal(why) | BuildError::Sandbox(why))) => panic!("`{shown}`: {why}"),
        _ => {}
    }
}

#[test]
fn what_reads_files_or_the_environment_is_refused() {
    for (text, rule) in [
        ("const X: &str = include_str!(\"/etc/passwd\");", "macro"),
        ("const X: &str = r#include_str!(\"/etc/passwd\");", "macro"),
        ("const X: &str = core::include_str!(\"/etc/passwd\");", "macro"),
        ("const X: &[u8] = ::core::include_bytes!(\"/etc/passwd\");", "macro"),
        ("use core::include_str as vec;\nconst X: &str = vec!(\"/etc/passwd\");", "import"),
        ("use core::{include_bytes as matches};", "import"),
        ("use core::*;", "import"),
        ("use core as c;", "import"),
        ("use {core as c};", "import"),
        ("use core::{self as c};", "import"),
        ("use ::core::include;", "import"),
        ("include!(\"/etc/passwd\");", "macro"),
        ("#[doc = include_str!(\"/etc/passwd\")]\nfn f() {}", "attribute"),
        ("fn f() -> Option<&'static str> { option_env!(\"HOME\") }", "macro"),
        ("fn f() -> &'static str { env!(\"HOME\") }", "macro"),
        ("fn f() { format!(\"{}\", include_str!(\"/etc/passwd\")); }", "macro"),
        ("fn f() { vec![env!(\"HOME\"); 3]; }", "macro"),
        ("fn f() -> bool { matches!(1, x if { include!(\"/etc/passwd\"); true }) }", "macro"),
        ("#[path = \"/etc/passwd\"]\nmod x;", "attribute"),
        ("mod x;", "module-file"),
        ("#[cfg_attr(not(test), path = \"/etc/passwd\")]\nmod x;", "cfg"),
    ] {
        answered(text, &Rule(rule));
    }
}

#[test]
fn what_is_unsafe_in_any_spelling_is_refused() {
    for (text, rule) in [
        ("#[unsafe(naked)]\nextern \"C\" fn f() { core::arch::naked_asm!(\"ret\") }", "attribute"),
        ("#[unsafe(no_mangle)]\nfn f() {}", "attribute"),
        ("#[unsafe(export_name = \"memcpy\")]\nfn f() {}", "attribute"),
        ("#[unsafe(link_section = \".init_array\")]\nconst F: u8 = 1;", "attribute"),
        ("#[no_mangle]\nfn f() {}", "attribute"),
        ("#[link(name = \"c\")]\nunsafe extern \"C\" { safe fn getpid() -> i32; }", "extern"),
        ("extern \"C\" fn f() {}", "extern"),
        ("unsafe fn f() {}", "unsafe"),
        ("unsafe trait T {}", "unsafe"),
        ("struct S;\nunsafe impl Send for S {}", "unsafe"),
        ("fn f() { unsafe {} }", "unsafe"),
        ("fn f() { assert!(unsafe { true }); }", "macro-body"),
        ("fn f() { vec![{ #[cold] fn g() {} 1 }]; }", "macro-body"),
        ("fn f() { core::arch::asm!(\"hlt\") }", "macro"),
        ("use core::arch::asm;", "path"),
        ("use core::arch;", "path"),
        ("use core::{arch::x86_64};", "path"),
        ("fn f() { core::arch::x86_64::__cpuid(0); }", "path"),
        ("fn f() { r#core::r#arch::x86_64::__cpuid(0); }", "path"),
        ("use core::intrinsics;", "path"),
        ("use core::sync::atomic::AtomicU64;", "path"),
        ("use alloc::alloc::alloc;", "path"),
        ("use sandstorm_api::rt::ArenaAllocator;", "path"),
        ("use sandstorm_api::{abi, Db as D};", "path"),
        ("use sandstorm_api::testing::TestStore;", "path"),
        ("sandstorm_api::export!(run, 0);", "macro"),
        ("#[target_feature(enable = \"avx512f\")]\nfn f() {}", "attribute"),
        ("#[global_allocator]\nstatic A: u8 = 1;", "static"),
        ("#[panic_handler]\nfn p(_: &core::panic::PanicInfo) -> ! { loop {} }", "attribute"),
        ("static X: core::cell::Cell<u8> = core::cell::Cell::new(1);", "static"),
        ("static mut X: u8 = 1;", "static"),
        ("fn f() { static X: u8 = 1; }", "static"),
        ("fn f() { const { static X: u8 = 1; } }", "static"),
        ("extern crate std;", "extern-crate"),
        ("extern crate alloc as std;", "extern-crate"),
        ("use std::fs::File;", "std"),
        ("fn f() { ::std::process::exit(1) }", "std"),
        ("#![feature(asm)]", "crate-attribute"),
        ("#![crate_type = \"dylib\"]", "crate-attribute"),
        ("#![recursion_limit = \"100000\"]", "crate-attribute"),
        ("mod m { #![feature(never_type)] }", "crate-attribute"),
        ("#[derive(core::marker::ConstParamTy)]\nstruct S;", "derive"),
        ("#[repr(align(536870912))]\nstruct S;", "attribute"),
    ] {
        // An inner attribute must stand at the head of the file.
        let text = text.strip_prefix("#![").map_or(text.to_owned(), |_| format!("mod inner {{ {text} }}"));
        answered(&text, &Rule(rule));
    }
}

#[test]
fn the_shapes_of_known_soundness_holes_are_refused() {
    for (text, rule) in [
        // 25860
        (
            "fn foo<'a, 'b, T>(_: &'a &'b (), v: &'b T) -> &'a T { v }
          fn bad<'a, T>(x: &'a T) -> &'static T { let f: fn(_, &'a T) -> &'static T = foo; f(&&(), x) }",
            "fn-pointer",
        ),
        ("fn foo<'a, 'b, T>(_: &'a &'b (), v: &'b T) -> &'a T { v }", "nested-lifetime"),
        // 157316
        ("static UNIT: &'static &'static () = &&();", "static"),
        // 84591
        ("trait Sup<'a, 'b, T> { fn get(x: &'b T) -> &'a T; }", "generic-trait"),
        ("fn f<'a, T: for<'b> PartialEq<&'b u8>>(x: T) {}", "for-lifetimes"),
        // 84366
        (
            "trait Give { fn give(&self) -> usize; }
          impl<R, F: Fn() -> R> Give for F { fn give(&self) -> usize { 1 } }",
            "impl-target",
        ),
        ("fn f<F: FnOnce() -> R + 'static, R>(f: F) -> R { f() }", "outlives"),
        ("fn f<F>(f: F) where F: FnOnce() + 'static { f() }", "outlives"),
        ("fn f<'a>(x: &'a str) -> impl FnOnce() -> &'a str + 'static { move || loop {} }", "outlives"),
        // 100051
        ("trait Own { type Out; }", "generic-trait"),
        ("struct S;\ntrait Own { fn f(); }\nimpl<'a, 'b> Own for &'b &'a () { fn f() {} }", "impl-target"),
        ("struct S<T>(T);\nimpl<'a, T> S<T> where &'a T: PartialEq { fn f() {} }", "where"),
        (
            "struct S;\nimpl<'a> Clone for <&'a S as core::ops::Deref>::Target { fn clone(&self) -> S { S } }",
            "impl-target",
        ),
        // 57893
        ("trait Object<U> { type Out; }", "generic-trait"),
        ("trait Object {}\nfn f(x: Box<dyn Object>) {}", "dyn"),
        ("fn f(x: &dyn core::any::Any) {}", "dyn"),
        ("trait Iterator {}\nfn f(x: &dyn Iterator) {}", "trait-name"),
        ("use core::fmt::Pointer as Debug;\nfn f(x: &dyn Debug) {}", "import"),
        (
            "mod a { pub trait E {} }\nmod b { use core::error::Error as E; }\nmod c { use super::a::E; fn f(x: &dyn E) {} }",
            "dyn",
        ),
        (
            "mod a { pub trait Q {} }\nmod b { use core::error::Error as E; }\nmod c { use super::a::Q as E; fn f(x: &dyn E) {} }",
            "dyn",
        ),
        // 90838
        (
            "struct W<'a, T>(&'a T);\nimpl<'a, T> Drop for W<'a, T> where T: 'static { fn drop(&mut self) {} }",
            "outlives",
        ),
        // 114389
        ("trait Eq2 { type This: ?Sized; }\nimpl<T: ?Sized> Eq2 for T { type This = T; }", "generic-trait"),
        // 151637
        ("struct Wrap<T: 'static>(T);\nfn f<T>(x: T) { || Wrap(x); }", "outlives"),
        // 161578, 160599, 161852
        ("fn f(mut x: Option<u8>) -> u8 { match x { Some(y) if { x = None; false } => y, _ => loop {} } }", "guard"),
        ("fn f(x: Option<u8>, n: &mut u8) -> u8 { match x { Some(_) if { *n += 1; true } => 1, _ => 2 } }", "guard"),
        (
            "fn f(x: Option<u8>) -> u8 { match x { Some(_) if (|| panic!())() => 1, Some(_) if { panic!(); } => 2, _ => 3 } }",
            "guard",
        ),
        ("fn f(x: Option<u8>) -> bool { matches!(x, Some(_) if return true) }", "guard"),
        ("fn f(x: Option<u8>) -> bool { format!(\"{}\", matches!(x, Some(_) if loop {})).is_empty() }", "guard"),
        ("fn f(x: &[[u8; 2]]) -> u8 { (x[0])[{ return 1; 0 }] }", "guard"),
        ("fn f(x: &[S]) -> u8 { (*x[0].y)[g(&mut 1)] }", "guard"),
    ] {
        answered(text, &Rule(rule));
    }
}

#[test]
fn what_would_overwhelm_the_checker_is_refused() {
    let parentheses = format!("const X: u8 = {}1{};", "(".repeat(100_000), ")".repeat(100_000));
    let blocks = format!("fn f() {{ {}{} }}", "{".repeat(1_000), "}".repeat(1_000));
    let prefixes = format!("const X: bool = {}true;", "!".repeat(100_000));
    let references = format!("fn f(x: {}u8) {{}}", "&".repeat(100_000));
    let sums = format!("const X: u64 = 0{};", "+1".repeat(50_000));
    let generics = format!("type T = {}u8{};", "Option<".repeat(10_000), ">".repeat(10_000));
    let methods = format!("fn f(x: u8) {{ x{}; }}", ".clone()".repeat(10_000));
    let closures = format!("fn f() {{ let x = {}1; }}", "|x| ".repeat(30_000));
    let elses = format!("fn f(x: u8) {{ if x == 0 {{}} {} }}", "else if x == 1 {} ".repeat(10_000));
    for text in [parentheses, blocks, prefixes, references, sums, generics, methods, closures, elses] {
        answered(&text, &Rule("depth"));
    }
    answered("macro_rules! m { ($($t:tt)*) => { m!($($t)* $($t)*) } }\nm!(x);", &Rule("macro-definition"));
    answered("fn f() { macro_rules! m { () => {} } }", &Rule("macro-definition"));
    answered("macro m() {}", &Rule("special"));
}

/// Every way in which syntax nests: as a text with a head, a repeated part, an end, and a part that closes each
/// repetition.
#[test]
fn whatever_nests_without_bound_is_refused_before_it_is_parsed() {
    const DEEP: usize = 50_000;
    for (head, open, inside, close, end) in [
        ("type T = ", "A<u8,", "u8", ">", ";"),
        ("type T = ", "A<{1},", "u8", ">", ";"),
        ("type T = ", "<A<u8,", "u8", "> as B>::C", ";"),
        ("fn f() { x::<", "A<u8,", "u8", ">", ">(); }"),
        ("fn f() { x as ", "A<u8,", "u8", ">", "; }"),
        ("fn f() { x", " as A<u8, u8>", "", "", "; }"),
        ("fn f() { x", ".g::<u8, u8>()", "", "", "; }"),
        ("fn f() { x", ".g(|a| {})", "", "", "; }"),
        ("fn f() { let x = 1", " + { 1 }", "", "", "; }"),
        ("fn f() { let x = 1", " + g::<u8, u8>()", "", "", "; }"),
        ("fn f() { let x = ", "|a, b| ", "1", "", "; }"),
        ("fn f() { let x = ", "|| ", "1", "", "; }"),
        ("fn f() { let x = ", "|a: A<u8, u8>, b| ", "1", "", "; }"),
        ("fn f() { let x = ", "move |a, b| ", "1", "", "; }"),
        ("fn f() { let x = ", "[1, ", "1", "]", "; }"),
        ("fn f() { let x = ", "(1, ", "1", ")", "; }"),
        ("fn f() { let x = ", "g(1, ", "1", ")", "; }"),
        ("fn f() { let x = ", "S { a: 1, b: ", "1", "}", "; }"),
        ("fn f() { ", "match 1 { 1 => 2, _ => ", "1", "}", "}"),
        ("fn f() { match 1 { ", "A(1, ", "_", ")", " => {} } }"),
        ("fn f() { match 1 { ", "&", "_", "", " => {} } }"),
        ("fn f() { match 1 { ", "a @ ", "_", "", " => {} } }"),
        ("fn f() { ", "if x {} else ", "{}", "", "}"),
        ("fn f() { ", "if { 2; x } { 1 } else ", "{}", "", "}"),
        ("fn f() { ", "if ", "x", "{}", "}"),
        ("fn f() { ", "match ", "x", "{}", "}"),
        ("fn f() { ", "{ 1; ", "1", "}", "}"),
        ("fn f() { ", "loop { 1; ", "1", "}", "}"),
        ("fn f() { ", "return ", "1", "", "; }"),
        ("fn f() { ", "x = ", "1", "", "; }"),
        ("fn f() { ", "x..", "1", "", "; }"),
        ("fn f() { if ", "let A = x && ", "x", "", "{} }"),
        ("fn f() { x", "?", "", "", "; }"),
        ("fn f() { x", "[1]", "", "", "; }"),
        ("fn f() { x", "(1, 2)", "", "", "; }"),
        ("fn f() { x", ".await", "", "", "; }"),
        ("fn f() where ", "A<u8, ", "u8", ">", ": B {}"),
        ("fn f<T: ", "A<u8, B = ", "u8", ">", ">() {}"),
        ("fn f(x: impl ", "Fn(u8, u8) -> impl ", "A", "", ") {}"),
        ("fn f(x: ", "[A<u8, ", "u8", ">; 1]", ") {}"),
        ("fn f() -> ", "A<'a, ", "u8", ">", " {}"),
        ("impl ", "A<u8, ", "u8", ">", " {}"),
        ("#[a(", "b(c, ", "d", ")", ")] fn f() {}"),
        ("use a::", "{b, c::", "d", "}", ";"),
        ("", "mod a { fn f() {} ", "", "}", ""),
        ("", "impl A { fn f() { ", "", "} }", ""),
        ("fn f() { vec![", "vec![1, ", "1", "]", "]; }"),
    ] {
        let times = DEEP.min(super::limits::FILE_BYTES * 9 / 10 / (open.len() + close.len()));
        let text = [head, &open.repeat(times), inside, &close.repeat(times), end].concat();
        answered(&text, &Rule("depth"));
    }
    // The longest rows that pass, nested in each other.
    let rows = format!("fn f() {{ {}1{}; }}", "!(-".repeat(100), ")".repeat(100));
    assert!(matches!(check(&whole(&rows), &[], CodeTier::Native), Ok(())), "{rows}");
    let wide = format!("fn f() {{ let x = [{}]; }}", "a < b, |c, d| c | d, A::<u8, u8>::new(), ".repeat(50));
    assert!(matches!(check(&whole(&wide), &[], CodeTier::Native), Ok(())), "long lists are fine");
    let arms: String = (0..3_000).map(|arm| format!("A | B if x < {arm} => {{}}\n")).collect();
    assert!(
        matches!(check(&whole(&format!("fn f() {{ match x {{ {arms} }} }}")), &[], CodeTier::Native), Ok(())),
        "many arms are fine"
    );
}

/// Long sources without deep nesting, as people and their generators write them.
#[test]
fn what_is_long_and_shallow_is_no_refusal() {
    let links = |count: usize, condition: &str| format!("else if {condition} {{ let y = 1; y }} ").repeat(count);
    let compared = "x == \"some key\" && y.z().len() < 20 && i <= 7";
    let alternatives = " || x == 1".repeat(390);
    let calls = "\n    .with(\"some field\", a + 1)".repeat(300);
    for text in [
        format!("fn f() {{ let x = if x {{ 0 }} {} else {{ 1 }}; }}", links(250, compared)),
        format!("fn f() {{ if x {{ 0 }} {} }}", links(250, "let Some(y) = x && y < 5 && (z || y == [1, 2])")),
        format!("fn f() {{ x == 0{alternatives} }}"),
        format!("fn f() {{ b{calls}; }}"),
    ] {
        check(&whole(&text), &[], CodeTier::Native).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
    // A chain counts one for each link only where nothing follows it.
    let sums =
        |link: &str| format!("fn f() {{ let x = {} 1; }}", format!("{link}{} + ", " + y".repeat(700)).repeat(20));
    for link in [
        "if x { 1 } else { 2 }",
        "if x { 1 } else if x { 1 } else { 2 }",
        "if x { 1 } else if x { 1 }",
        "if x { 1 } else if { x } { 1 }",
        "match x { y if z => {} } else if x { 1 }",
    ] {
        answered(&sums(link), &Rule("depth"));
    }
    let deep = format!("fn f() {{ if x {{ 1 }} {}else if {}x {{ 1 }} }}", links(100, compared), "!".repeat(1_950));
    answered(&deep, &Rule("depth"));
}

/// Attributes on every kind of expression that may have some.
#[test]
fn an_attribute_is_looked_at_wherever_it_stands() {
    for expression in [
        "[1]",
        "async { 1 }",
        "x.await",
        "{ 1 }",
        "break",
        "x(1)",
        "|y| 1",
        "const { 1 }",
        "continue",
        "x.y",
        "for y in x {}",
        "if x {}",
        "x[1]",
        "1",
        "loop {}",
        "panic!()",
        "match x {}",
        "x.y()",
        "(1)",
        "x",
        "&1",
        "[1; 2]",
        "return",
        "S { y: 1 }",
        "x?",
        "(1, 2)",
        "!x",
        "while x {}",
        "'a: loop { break 'a }",
        "x[1][2]",
    ] {
        for text in [format!("loop {{ g(#[naked] {expression}); }}"), format!("loop {{ #[naked] {expression}; }}")] {
            answered(&format!("async fn f() {{ {text} }}"), &Rule("attribute"));
        }
    }
    for text in [
        "fn f() { match x { #[naked] _ => 1 } }",
        "fn f() { S { #[naked] y: 1 }; }",
        "fn f() { let S { #[naked] y } = x; }",
        "fn f(#[naked] x: u8) {}",
        "fn f<#[naked] T>(x: T) {}",
        "enum E { #[naked] A }",
        "struct S { #[naked] a: u8 }",
        "fn f() { #[naked] let x = 1; }",
        "fn f() { |#[naked] x| 1; }",
        "fn f() { match x { #[naked] y if y => 1, _ => 2 } }",
    ] {
        answered(text, &Rule("attribute"));
    }
}

#[test]
fn what_would_overwhelm_the_compiler_ends_within_its_limits() {
    let arms: String = (0..3_000).map(|arm| format!("{arm} => {},\n", arm * 7 % 1_000)).collect();
    answered(&format!("pub fn f(x: u32) -> u32 {{ match x {{ {arms} _ => 0 }} }}"), &Either);
    answered("pub const X: u64 = { let mut n = 0; loop { n += 1; if n == u64::MAX { break } } n };", &NotBuilt);
    answered("pub const X: [u64; 1 << 40] = [1; 1 << 40];", &NotBuilt);
    answered("pub const X: &[u8; 1 << 34] = &[1; 1 << 34];\npub fn f() -> u8 { X[1] }", &NotBuilt);
    answered(
        "pub struct S<T>(T);\npub fn grow<T>(x: T, n: u64) -> u64 { if n == 0 { 0 } else { grow(S(x), n - 1) } }
         pub fn f() -> u64 { grow(1_u8, 9) }",
        &NotBuilt,
    );
    answered(
        "pub struct S<T>(T);\nimpl<T> Clone for S<T> where S<S<T>>: Clone { fn clone(&self) -> S<T> { loop {} } }
              pub fn f(x: &S<u8>) -> S<u8> { x.clone() }",
        &Rule("where"),
    );
    let nested = "Option<".repeat(60) + "u8" + &">".repeat(60);
    answered(&format!("pub type T = {nested};\npub fn f(x: &T) -> bool {{ x.is_some() }}"), &Either);
}
