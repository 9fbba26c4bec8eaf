//! The table of what the checker refuses: the one place that says it, with an example refused and one near it that
//! passes. `docs/checker.md` is made from it, and a test holds both examples of every rule to what they say.
//!
//! Rules of [`NATIVE`] are there because the compiler alone keeps a native extension from what is not its tenant's, and
//! the shapes that they refuse get past the compiler. A sandboxed extension is confined whatever it does. So the rules
//! of its tier protect the builder, and keep to what the sandbox offers.

use sandstorm_net::CodeTier;

/// The tiers of rules that apply everywhere.
const BOTH: &[CodeTier] = &[CodeTier::Sandboxed, CodeTier::Native];
/// The tiers of rules that close holes of the compiler.
const NATIVE: &[CodeTier] = &[CodeTier::Native];
/// The tiers of rules about what is refused whole in the native tier.
const SANDBOXED: &[CodeTier] = &[CodeTier::Sandboxed];

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Short name, shown in brackets.
    pub id: &'static str,
    /// The tiers whose sources it is applied to.
    pub tiers: &'static [CodeTier],
    /// One sentence: what is refused and why, or what to write instead.
    pub reason: &'static str,
    /// Refused by this rule. Stands in `src/lib.rs` after `use sandstorm_api::prelude::*;`.
    pub refused: &'static str,
    /// Near it, and fine.
    pub passes: &'static str,
}

impl Rule {
    /// Returns whether the rule is applied to sources of a tier.
    pub fn applies(&self, tier: CodeTier) -> bool {
        self.tiers.contains(&tier)
    }
}

macro_rules! rules {
    ($($name:ident: $tiers:ident $id:literal, $reason:literal, $refused:literal, $passes:literal;)*) => {
        $(
            #[doc = $reason]
            pub static $name: Rule =
                Rule { id: $id, tiers: $tiers, reason: $reason, refused: $refused, passes: $passes };
        )*
        /// All rules.
        pub static RULES: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    SYNTAX: BOTH "syntax", "this is not Rust as the checker reads it",
        "fn f() { let = ; }",
        "fn f() -> u8 { 1 }";
    DEPTH: BOTH "depth", "this nests too deeply or is too long a chain: split it",
        "const X: u8 = !!!!REPEAT(2000, !)1;",
        "const X: u8 = !!!!1;";
    NO_STD: BOTH "no-std", "the root file must start with `#![no_std]`",
        "#![forbid(unsafe_code)]",
        "#![no_std]\n#![forbid(unsafe_code)]";
    ATTRIBUTE: BOTH "attribute", "this attribute is not on the list of harmless ones",
        "#[unsafe(naked)]\nextern \"C\" fn f() {}",
        "#[inline(never)]\nfn f() {}";
    CRATE_ATTRIBUTE: BOTH "crate-attribute", "only lint levels, documentation and `no_std` may be set for a whole file",
        "#![recursion_limit = \"1000000\"]",
        "#![no_std]\n#![allow(dead_code)]";
    CFG: BOTH "cfg", "only `cfg(test)` and `cfg(not(test))` may choose what is compiled",
        "#[cfg(target_os = \"linux\")]\nfn f() {}",
        "#[cfg(test)]\nmod tests {}";
    DERIVE: BOTH "derive", "only the usual traits of core can be derived",
        "#[derive(Clone, Helper)]\nstruct S;",
        "#[derive(Clone, Debug, PartialEq)]\nstruct S;";
    UNSAFE: BOTH "unsafe",
        "unsafe code has no place in an extension: write safe Rust, such as `get` and `first_chunk` in place of pointers",
        "fn f() -> u8 { unsafe { 1 } }",
        "fn f() -> u8 { { 1 } }";
    MACRO: BOTH "macro", "this macro is not on the list of harmless ones",
        "const X: &str = include_str!(\"/etc/passwd\");",
        "fn f() -> String { format!(\"{}\", 1) }";
    MACRO_BODY: BOTH "macro-body", "the arguments of this macro must be plain expressions",
        "fn f() { assert!(1 => 2); }",
        "fn f() { assert!(1 < 2, \"{}\", 3); }";
    MACRO_DEFINITION: NATIVE "macro-definition", "a native extension defines no macros: their expansion can hide and multiply anything",
        "macro_rules! twice { ($e:expr) => { $e; $e } }",
        "fn twice(mut f: impl FnMut()) { f(); f(); }";
    MACRO_TOKENS: SANDBOXED "macro-tokens", "what a macro of your own becomes is not read, so some words and forms cannot stand in it, or in what it is given",
        "macro_rules! first { ($list:expr) => { unsafe { *$list.get_unchecked(0) } } }",
        "macro_rules! id { ($name:ident) => { #[derive(Clone, Copy, Debug)] struct $name(u64); } }\nid!(User);\nmacro_rules! twice { ($e:expr) => { ($e, $e) } }\nfn f() { let _ = twice!(format!(\"{:?}\", User(1))); }";
    AWAIT: BOTH "await", "this is thrown away before it was awaited, so it does nothing: end it with `.await`, and then with `?`, or keep `let _ =` to ignore its result",
        "async fn own(db: Db<'_>) { let _ = db.now_ms(); }\nasync fn f(db: Db<'_>, table: TableId) { let _ = db.put(table, b\"k\", b\"v\").if_absent(); let _ = own(db); }",
        "async fn own(db: Db<'_>) { let _ = db.now_ms(); }\nasync fn f(db: Db<'_>, table: TableId) { let _ = db.put(table, b\"k\", b\"v\").if_absent().await; let _ = own(db).await; let _ = db.reply(b\"x\"); let _ = db.transaction().put(table, b\"k\", b\"v\"); let _ = Some(1).map(|one| one + 1); let _later = db.get(table, b\"k\"); let _ = _later.await; }";
    IDENTIFIER: BOTH "identifier", "names are of ASCII letters: the compiler takes some others for the same letter",
        "fn \u{e9}() {}",
        "fn e() {}";
    IMPORT: BOTH "import", "this import would hide what a name stands for",
        "use core::include_str as format;",
        "use core::cmp::Ordering as Order;";
    PATH: BOTH "path", "this part of a library is not open to extensions",
        "use core::arch::x86_64::__cpuid;",
        "use core::cmp::Ordering;";
    STD: BOTH "std", "there is no `std` here: use `core`, `alloc` or the API's prelude",
        "use std::collections::HashMap;",
        "use alloc::collections::BTreeMap as Map;\nextern crate alloc;";
    EXTERN_CRATE: BOTH "extern-crate", "only `extern crate alloc;` is allowed: name libraries in extension.toml",
        "extern crate std;",
        "extern crate alloc;";
    EXTERN: BOTH "extern", "functions of another language cannot be declared or defined",
        "extern \"C\" { fn getpid() -> i32; }",
        "fn getpid() -> i32 { 1 }";
    STATIC: NATIVE "static", "a native extension has no statics, which would outlive an invocation: use `const`",
        "static LIMIT: u32 = 5;",
        "const LIMIT: u32 = 5;";
    UNION: BOTH "union", "unions are only of use to unsafe code",
        "union U { a: u8, b: i8 }",
        "enum U { A(u8), B(i8) }";
    MODULE_FILE: BOTH "module-file", "every `mod name;` needs its file among those pushed, and every file its `mod`",
        "mod missing;",
        "mod present { pub fn f() {} }";
    RAW_POINTER: NATIVE "raw-pointer", "raw pointers are only of use to unsafe code",
        "fn f(x: *const u8) -> bool { x.is_null() }",
        "fn f(x: Option<&u8>) -> bool { x.is_none() }";
    ADDRESS: NATIVE "address", "addresses tell where the server's memory lies, and comparing them is miscompiled (rust-lang issue 107975)",
        "fn f(x: &[u8]) -> usize { x.as_ptr() as usize }",
        "fn f(x: &[u8]) -> usize { x.len() }\nfn g(x: &[u8]) -> String { format!(\"{x:?} {:>8}\", 1) }";
    ERASED: NATIVE "erased", "a closure's type does not say how long what it returns lives (rust-lang issue 84366): keep such a value only where its own type is named, and make objects from types without parameters",
        "fn f(x: &str) -> usize { x.split(',').map(|part| part.trim()).peekable().count() }\nfn k(x: &str) -> usize { x.lines().map(|line| line.split(' ')).flatten().count() }\nfn g<T: core::fmt::Debug>(x: Box<T>) -> Box<T> { Box::leak(x); loop {} }",
        "fn f(x: &str) -> Option<char> { x.chars().filter(|one| *one != ' ').peekable().next() }\nfn n(x: &[u64]) -> impl Iterator<Item = u64> { x.iter().map(|x| x + 1) }\nfn m(x: &[u64]) -> Option<u64> { n(x).peekable().peek().copied() }\nfn k(x: &str) -> usize { x.lines().flat_map(|line| line.split(' ')).count() }\nfn g(step: u64) -> Box<dyn Fn(u64) -> u64> { Box::new(move |x| x + step) }\nfn h<T: core::fmt::Debug>(x: &T) -> String { let shown: &dyn core::fmt::Debug = x; format!(\"{shown:?}\") }";
    INDEX: NATIVE "index", "what an index does to the place that it stands in is missed by the compiler (rust-lang issue 160525), and an `.await` makes it forget other indexes of that place: work the index out before, in a variable",
        "fn f(mut rows: [[String; 1]; 1]) -> usize { rows[0][match rows { [row] => row.len() }].len() }",
        "fn f(mut rows: [[String; 1]; 1]) -> usize { rows[0][{ 0 }].push('x'); let [[cell]] = rows; cell.len() }\nasync fn g(rows: &[[u64; 2]], at: usize) -> u64 { yield_now().await; rows[at][1] }";
    JUMP: NATIVE "jump", "a jump out of what a call is given makes the compiler forget a borrow (rust-lang issue 160598): work the argument out before, in a variable",
        "fn f(mut x: Vec<u8>, y: Option<u8>) { loop { x.push(match y { Some(y) => y, None => break }); } }",
        "fn f(mut x: Vec<u8>, y: Option<u8>) -> Option<Vec<u8>> { loop { let Some(y) = y else { break }; x.push(y); x.push(loop { break y }) } x.push(y?); Some(x) }";
    GUARD: NATIVE "guard", "a guard, or an index of an index, may only look: the compiler does not notice all that it changes or leaves (rust-lang issues 161578, 160599, 161852): work it out before, in a variable",
        "fn f(mut x: Option<u8>) -> u8 { match x { Some(_) if { x = None; false } && panic!() => 0, Some(y) => y, None => 1 } }\nfn g(x: &[[u8; 2]], y: Option<usize>) -> Option<u8> { Some(x[0][y?]) }",
        "fn f(x: Option<u8>, seen: &[u8]) -> u8 { match x { Some(y) if y > 1 && !seen.iter().any(|one| *one == y) => 0, Some(y) => y, None => 1 } }\nfn g(x: &[[u8; 2]], y: Option<usize>) -> Option<u8> { let y = y?; Some(x[0][y + 1]) }";
    STALE: NATIVE "stale", "what a guard or index changes can be used as if it were checked (rust-lang issues 160599, 161578, 161852): change it before or after",
        "enum Never {}\nfn never() -> Never { loop {} }\nfn f(mut x: Option<String>) -> usize { match x { Some(_) if x.take().is_none() && match never() {} => 0, Some(ref x) => x.len(), None => 1 } }",
        "fn f(mut x: Option<String>) -> usize { if let Some(y) = &x && y.is_empty() { x = None; } match x { Some(ref x) if x.len() > 1 => x.len(), _ => 1 } }\nfn g(mut x: &[u8]) -> u8 { let mut sum = 0; while let [first, rest @ ..] = x { sum += first; x = rest; } sum + x[0] }";
    UNKNOWN_MIR: NATIVE "unknown-mir", "the compiler's intermediate form of this has something that the audit cannot follow to its end: write it in a simpler way, or in smaller functions",
        "fn f(x: REPEAT(300, &)u8) -> u8 { REPEAT(300, *)x }",
        "fn f(x: REPEAT(9, &)u8) -> u8 { REPEAT(9, *)x }";
    FN_POINTER: NATIVE "fn-pointer", "function pointers lose bounds of lifetimes (rust-lang issues 25860, 157316): take `impl Fn` instead",
        "fn call(f: fn(u8) -> u8) -> u8 { f(1) }",
        "fn call(f: impl Fn(u8) -> u8) -> u8 { f(1) }";
    FOR_LIFETIMES: NATIVE "for-lifetimes", "`for<…>` bounds lose bounds of lifetimes (rust-lang issues 84591, 100051): leave lifetimes out",
        "fn call<F: for<'a> Fn(&'a [u8]) -> &'a [u8]>(f: F) -> usize { f(b\"x\").len() }",
        "fn call<F: Fn(&[u8]) -> &[u8]>(f: F) -> usize { f(b\"x\").len() }";
    DYN: NATIVE "dyn", "only objects of well-known traits of core are allowed (rust-lang issue 57893)",
        "trait Shape { fn area(&self) -> u64; }\nfn f(s: &dyn Shape) -> u64 { s.area() }",
        "trait Shape { fn area(&self) -> u64; }\nfn f(s: &impl Shape) -> u64 { s.area() }\nfn g(s: &dyn core::fmt::Debug) -> String { format!(\"{s:?}\") }";
    GENERIC_TRAIT: NATIVE "generic-trait", "traits of your own can have no parameters or associated types (rust-lang issues 84591, 100051)",
        "trait Convert<T> { fn convert(self) -> T; }",
        "trait Convert { fn convert(&self) -> u64; }\nstruct S<T>(T);\nimpl<T: Copy + Into<u64>> Convert for S<T> { fn convert(&self) -> u64 { self.0.into() } }";
    TRAIT_NAME: NATIVE "trait-name", "a trait of your own cannot have the name of a well-known one",
        "trait Display { fn show(&self); }",
        "trait Show { fn show(&self); }";
    IMPL_TARGET: NATIVE "impl-target", "traits can be implemented for named types, references to such, slices, arrays and tuples only (rust-lang issues 84366, 100051)",
        "trait Size { fn size(&self) -> usize; }\nimpl<T: AsRef<[u8]>> Size for T { fn size(&self) -> usize { self.as_ref().len() } }",
        "trait Size { fn size(&self) -> usize; }\nimpl Size for Vec<u8> { fn size(&self) -> usize { self.len() } }\nimpl Size for &Vec<u8> { fn size(&self) -> usize { self.len() } }";
    PROJECTION: NATIVE "projection", "an associated type can only be taken of a type parameter, and not where it would be kept or stand behind a lifetime (rust-lang issues 100051, 84366): name the type itself, or a parameter of its own",
        "struct Lazy<F>(F);\nimpl<T: Iterator, F: Fn() -> T> IntoIterator for Lazy<F> { type Item = T::Item; type IntoIter = T; fn into_iter(self) -> T { (self.0)() } }\nfn f(x: <Vec<u8> as IntoIterator>::Item) -> u8 { x }\nstruct Pairs<I: Iterator> { rest: I, last: Option<I::Item> }\nfn k<I: Iterator>(x: I) -> impl Iterator<Item = I::Item> { x.skip(1) }",
        "fn f<I: Iterator>(mut x: I) -> Option<<I as Iterator>::Item> { x.next() }\nfn g() -> u8 { <u8 as Default>::default() }\nstruct Pairs<T, I: Iterator<Item = T>> { rest: I, last: Option<T> }\nimpl<T, I: Iterator<Item = T>> IntoIterator for Pairs<T, I> { type Item = T; type IntoIter = I; fn into_iter(self) -> I { self.rest } }\nfn h<I: Iterator>(mut x: I, keep: impl Fn(&I::Item) -> bool) -> Vec<I::Item> { x.filter(|one| keep(one)).collect() }\nfn k<T, I: Iterator<Item = T>>(x: I) -> impl Iterator<Item = T> { x.skip(1) }";
    WHERE: NATIVE "where", "a `where` clause can only bound a type parameter or its associated type",
        "fn f<'a, T>(x: &'a T) -> bool where &'a T: PartialEq { x == x }",
        "fn f<T>(x: &T) -> bool where T: PartialEq { x == x }";
    OUTLIVES: NATIVE "outlives", "types cannot be bounded by lifetimes (rust-lang issue 84366): the compiler infers what is needed, and `impl Trait` captures it",
        "fn f<T: 'static>(x: T) -> T { x }\nfn g<T: Copy + Into<u64>>(x: T, y: &u64) -> impl Iterator<Item = u64> + use<T> { core::iter::once(x.into()) }",
        "fn f<'a, 'b: 'a>(x: &'a str, y: &'b str) -> &'a str { if x.is_empty() { x } else { y } }\nfn g(x: &[u64], y: u64) -> impl Iterator<Item = u64> + use<> { core::iter::once(y) }";
    SELF_LIFETIME: NATIVE "self-lifetime", "in a method of a trait of your own no lifetime stands around `Self`, or is in what is given where other arguments are `Self`, but that of the receiver and of a plain `&Self`: it would be a bound that the compiler gets wrong (rust-lang issues 84366, 151637)",
        "trait Keep: Sized { fn keep(self, like: Option<&Self>) -> &str; }\nimpl Keep for &str { fn keep(self, _: Option<&Self>) -> &str { self } }\ntrait Last: Sized { fn last(self) -> Option<&'static Self> { None } }",
        "trait Keep: Sized { fn keep(self, like: Option<Self>) -> Self; fn text(&self) -> &str; fn next(&mut self) -> Option<&mut Self>; fn closer(&self, to: &Self) -> bool; fn all(found: Vec<Self>) -> Result<Self, Error>; fn each(self, look: impl FnMut(&Self) -> bool) -> Each<Self>; }\nstruct Each<T>(Vec<T>);";
    ASSOCIATED_BOUND: NATIVE "associated-bound", "an associated type, and what a trait's method gives as `impl Trait`, can be bounded by well-known traits of core only (rust-lang issue 84366): write a parameter for it, `I: Iterator<Item = T>, T: Show`",
        "trait Show { fn show(&self) -> String; }\nfn f<I: Iterator<Item: Show>>(mut x: I) -> Option<String> { x.next().map(|one| one.show()) }\nfn g<I: Iterator>(x: I) -> Vec<String> where I::Item: Show { x.map(|one| one.show()).collect() }",
        "trait Show { fn show(&self) -> String; }\nfn f<T: Show, I: Iterator<Item = T>>(mut x: I) -> Option<String> { x.next().map(|one| one.show()) }\nfn g<I: Iterator>(x: I) -> Vec<String> where I::Item: Into<u64> + Ord { x.map(|one| one.into().to_string()).collect() }";
    CLOSURE_RESULT: NATIVE "closure-result", "no lifetime can stand around a type parameter in what a closure is said to give (rust-lang issue 151637): leave the type out, it is inferred",
        "fn f<T: Copy>(x: T) -> bool { let none = || -> Option<&'static T> { None }; true }",
        "fn f<T: Copy>(x: T) -> Option<T> { let same = |one: T| -> Option<T> { Some(one) }; same(x) }\nfn g(x: &str) -> &str { let same = |one| -> &str { x }; same(1) }";
    IMPL_PARAMETER: NATIVE "impl-parameter", "a parameter that only the result of an `Fn(…)` names is not looked at where an implementation is used (rust-lang issues 84366, 151637): name it in the type that the trait is for",
        "trait Run { fn run(self); }\nstruct Job<F>(F);\nimpl<R, F: FnOnce() -> R> Run for Job<F> { fn run(self) { (self.0)(); } }",
        "trait Run { fn run(self); }\nstruct Job<F, R>(F, Option<R>);\nimpl<R, F: FnOnce() -> R> Run for Job<F, R> { fn run(self) { (self.0)(); } }\nimpl<'a, R, F: FnMut() -> R> Iterator for Job<F, R> { type Item = R; fn next(&mut self) -> Option<R> { Some((self.0)()) } }";
    ALIAS: NATIVE "alias", "an alias cannot hide `'static` around a parameter (rust-lang issue 84366): write it where the alias is used",
        "type Last<T> = Option<&'static T>;",
        "type Last<'a, T> = Option<&'a T>;\ntype Names<T> = Vec<(T, &'static str)>;";
    NESTED_LIFETIME: NATIVE "nested-lifetime", "a named reference around another lifetime implies a bound that can get lost (rust-lang issue 25860): write the bound, `'inner: 'outer`, or `'static` inside of `'static`",
        "fn f<'a, 'b>(_: &'a &'b (), v: &'b u8) -> &'a u8 { v }",
        "fn f<'a, 'b: 'a>(_: &'a &'b (), v: &'b u8) -> &'a u8 { v }\nfn g<'a>(words: &[&'a str]) -> Option<&'a str> { words.first().copied() }";
    SPECIAL: BOTH "special", "this part of the language is not stable or not looked into by the checker",
        "fn f() { let x = &raw const 1; }",
        "fn f() { let x = &1; }";
}
