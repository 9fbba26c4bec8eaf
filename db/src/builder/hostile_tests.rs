//! Sources that mean harm, each with the answer that it must get.

use super::tests::{job, sandboxed, source, toolchain};
use super::{BuildError, CompileLimits, Job, Source, check, compile};

/// What must come of a source.
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

fn whole(text: &str) -> Source {
    source(&format!("#![no_std]\n#![allow(warnings)]\nuse sandstorm_api::prelude::*;\n{text}\n{RUN}"))
}

/// The compiler's own limits, tightened: a loop that would use them up must not make this test long.
fn tight() -> Job {
    let limits =
        CompileLimits { cpu: std::time::Duration::from_secs(5), memory_bytes: 1 << 30, ..CompileLimits::default() };
    Job { limits, ..sandboxed().unwrap_or_else(job) }
}

#[track_caller]
fn answered(text: &str, answer: &Answer) {
    let source = whole(text);
    let shown: String = text.chars().take(120).collect();
    let checked = check(&source, &["hmac_sha256".to_owned()]);
    if let Rule(rule) = answer {
        let Err(BuildError::Refused(found)) = &checked else { panic!("`{shown}` passed the checker: {checked:?}") };
        assert!(found.iter().any(|one| one.rule.as_deref() == Some(*rule)), "`{shown}`: {found:?}");
        assert!(found.iter().all(|one| one.rendered.starts_with("error[")), "{found:?}");
        return;
    }
    let built = checked.and_then(|()| compile(toolchain(), &source, &tight()));
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
        // An inner attribute is only one at the head of the file.
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
