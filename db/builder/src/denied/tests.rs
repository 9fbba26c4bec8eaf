//! Denied patterns, each in sources that have it and in sources that do not.

use proptest::prelude::*;

use super::*;

const RUN: &str = "#![no_std]\nuse sandstorm_api::prelude::*;\n\
                   pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { db.reply(args) }\n";

fn source(text: &str) -> PushedSource {
    let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
    let files = vec![file("src/lib.rs", &format!("{RUN}mod more;\n")), file("src/more.rs", text)];
    PushedSource::new("name = \"x\"", files).expect("a source")
}

/// The places that are refused: file, line and message.
fn refused(text: &str, patterns: &[&str]) -> Vec<(String, u32, String)> {
    let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    match check_denied(&source(text), &patterns) {
        Ok(()) => Vec::new(),
        Err(BuildError::Refused(found)) => {
            assert!(found.iter().all(|one| one.rule.as_deref() == Some("denied")), "{found:?}");
            found.into_iter().map(|one| (one.file, one.line, one.message)).collect()
        }
        Err(error) => panic!("{patterns:?}: {error}"),
    }
}

fn has(text: &str, pattern: &str) -> bool {
    !refused(text, &[pattern]).is_empty()
}

#[test]
fn each_shape_is_found_where_it_is_and_nowhere_else() {
    let plain = "pub struct S { a: u8 }\nimpl S { pub fn new(a: u8) -> S { S { a } } }\nconst X: u8 = 1;";
    for shape in SHAPES {
        let found = refused(shape.example, &[shape.name]);
        let [(file, line, message)] = found.as_slice() else { panic!("{}: {found:?}", shape.name) };
        assert_eq!((file.as_str(), *line), ("src/more.rs", 1), "{}", shape.name);
        assert!(message.contains(shape.name) && message.contains(shape.about), "{message}");
        assert!(!has(plain, shape.name), "{}", shape.name);
        assert!(shape.name.contains('-') && !is_checker_rule(shape.name), "{}", shape.name);
        assert!(DeniedPattern::parse(shape.name).is_ok());
    }
    let names: HashSet<&str> = SHAPES.iter().map(|shape| shape.name).collect();
    assert_eq!(names.len(), SHAPES.len());
}

#[test]
fn the_page_on_security_has_all_shapes_and_no_others() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (_, table) = page.split_once("| shape | what it is |\n|---|---|\n").expect("the table");
    let told: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let rows: Vec<String> = SHAPES.iter().map(|shape| format!("| `{}` | {} |", shape.name, shape.about)).collect();
    assert_eq!(told, rows);
}

#[test]
fn the_arguments_of_macros_hide_nothing() {
    for (pattern, text) in [
        ("match-guard", "fn f(x: u8) -> bool { matches!(x, y if y > 1) }"),
        ("slice-pattern", "fn f(x: &[u8]) -> bool { matches!(x, [_, ..] | []) }"),
        ("index-expression", "fn f(x: &[u8]) { assert!(x[0] > 1, \"{}\", 1); }"),
        ("closure-expression", "fn f() -> String { format!(\"{}\", vec![(|x: u8| x)(1); 3].len()) }"),
        ("match-guard", "fn f(x: u8) { assert_eq!(vec![1, match x { y if y > 1 => 2, _ => 3 }].len(), 2); }"),
        ("cast-expression", "fn f(x: u8) -> String { format!(\"{a}\", a = x as u64) }"),
        ("peekable", "fn f(x: &str) { assert!(x.chars().peekable().peek().is_some()); }"),
    ] {
        assert!(has(text, pattern), "{pattern}: {text}");
    }
    // What is in no known form could be anything.
    for shape in SHAPES {
        assert!(has("fn f() { assert!(a => b); }", shape.name), "{}", shape.name);
        assert!(has("fn f() { matches!(a => b); }", shape.name), "{}", shape.name);
    }
}

#[test]
fn tokens_are_found_in_any_spelling_and_only_as_tokens() {
    for (pattern, text, expected) in [
        ("Cell", "use core::cell::Cell;", true),
        ("core::cell::Cell", "use core::cell::Cell;", true),
        ("core::cell::Cell", "use core::{cell::{Cell as C, RefCell}};", true),
        ("::core::cell::Cell", "use core::cell::*;\nfn f(x: Cell<u8>) {}", true),
        ("core :: cell :: Cell", "fn f(x: core::cell::\n\nCell<u8>) {}", true),
        ("core::cell::Cell", "use core::cell::RefCell;\nconst X: &str = \"Cell\"; // Cell", false),
        ("peekable", "fn f(x: &str) { x.chars().peekable(); }", true),
        ("peekable", "fn f(x: &str) { x.chars().r#peekable(); }", true),
        ("peekable", "fn f(x: &str) { x.chars().peekable_all(); }", false),
        ("dyn $_", "fn f(x: &dyn Debug) {}", true),
        ("impl Drop for", "impl Drop for S { fn drop(&mut self) {} }", true),
        ("impl Drop for", "impl<T> Drop for S<T> { fn drop(&mut self) {} }", false),
        ("impl $* Drop for", "impl<T> Drop for S<T> { fn drop(&mut self) {} }", true),
        ("&'static", "const X: &'static str = \"\";", true),
        ("&'_ mut", "fn f<'a>(x: &'a mut u8) {}", true),
        ("&'_ mut", "fn f(x: &mut u8) {}", false),
        ("for<'_>", "fn f(g: impl for<'b> Fn(&'b u8)) {}", true),
        ("swap(&mut $_, $_)", "fn f(a: &mut u8, b: u8) { swap(&mut a, b); }", true),
        ("swap(&mut $_, $_)", "fn f(a: &mut u8, b: u8) { swap(&mut a.x, b); }", false),
        ("swap(&mut $*, $*)", "fn f(a: &mut u8, b: u8) { swap(&mut a.x, b); }", true),
        ("swap($*)", "fn f() { x(y, { z; swap() }) }", true),
        ("match $* { $* if $* => $* }", "fn f(x: u8) { match x { 1 => 1, y if y > 2 => 2 }; }", true),
        ("match $* { $* if $* => $* }", "fn f(x: u8) { match x { 1 => 1, y => 2 }; }", false),
        ("a $* b $* c", "fn f() { b; c; a; b; b; d; }", false),
        ("a $* b $* c", "fn f() { b; c; a; b; b; c; }", true),
        ("[a $* b]", "fn f() { [a, b, c]; [a, c, b]; }", true),
        ("[a $* b]", "fn f() { [a, b, c]; }", false),
        ("0xFF", "const X: u8 = 0xFF;", true),
        ("X 1", "const X: u8 = 1;", false),
    ] {
        let asked = if pattern == "0xFF" { "= 0xFF $* X" } else { pattern };
        if pattern == "0xFF" {
            assert!(has("const X: u8 = 0xFF + X;", asked));
            continue;
        }
        assert_eq!(has(text, asked), expected, "{pattern}: {text}");
    }
}

#[test]
fn each_pattern_is_told_with_its_place_in_each_file() {
    let text = "fn f() {}\nfn g(x: &[u8]) -> u8 { x[0] }\nfn h() { peekable() }";
    let found = refused(text, &["peekable", "index-expression", "own-trait", "peekable"]);
    let places: Vec<_> = found.iter().map(|(file, line, _)| (file.as_str(), *line)).collect();
    assert_eq!(places, [("src/more.rs", 3), ("src/more.rs", 2)], "once, however often it is denied");
    assert!(found[0].2.contains("`peekable` to native code"), "{found:?}");
    assert_eq!(refused("fn f() {}", &["run"])[0].0, "src/lib.rs");
    assert_eq!(refused("fn f() {}", &[]), []);
}

#[test]
fn what_is_no_pattern_is_refused_with_the_reason() {
    for (text, why) in [
        ("", "neither an identifier"),
        ("..", "neither an identifier"),
        ("$_", "neither an identifier"),
        ("$* ; $*", "neither an identifier"),
        ("(", "a bracket, quote or comment is not closed"),
        ("\"", "a bracket, quote or comment is not closed"),
        ("a $", "`$` stands before"),
        ("a $b", "`$` stands before"),
        ("a ($ +)", "`$` stands before"),
        ("guard", "is a rule of the checker"),
        ("generic-trait", "is a rule of the checker"),
        ("match-gard", "there is no shape of that name; there are: associated-type, "),
    ] {
        let refused = DeniedPattern::parse(text).expect_err(text);
        assert!(refused.contains(why) && !refused.contains('\n'), "{text}: {refused}");
    }
    let long = "a".repeat(DENIED_BYTES + 1);
    assert!(DeniedPattern::parse(&long).expect_err("long").contains("longer than 200 bytes"));
    let many = "a ".repeat(65);
    assert!(DeniedPattern::parse(&many).expect_err("many").contains("more than 64 tokens"));
    assert_eq!(DeniedPattern::parse(" own-trait ").expect("a shape").text(), "own-trait");
    let error = check_denied(&source("fn f() {}"), &["(".to_owned()]).expect_err("it was to be read before");
    assert!(matches!(&error, BuildError::Internal(why) if why.contains("\"(\" cannot be read")), "{error}");
}

#[test]
fn a_source_that_cannot_be_searched_is_refused() {
    for text in ["fn f() { let = ; }", "fn f() {"] {
        let found = refused(text, &["own-trait"]);
        assert!(found.iter().any(|(_, _, message)| message.contains("cannot be searched")), "{text}: {found:?}");
    }
}

#[test]
fn a_long_source_is_searched_in_a_time_that_grows_with_it() {
    // With a search that tries each place of each run this takes days.
    let text = format!("fn f() {{ {} }}", "a ; b ; ".repeat(60_000));
    assert!(!has(&text, "a $* b $* a $* b $* a $* b $* c"));
    assert!(has(&text, "a $* b $* a $* b $* a $* b"));
}

proptest! {
    #[test]
    fn whatever_is_asked_for_has_an_answer(pattern in "[a-d$*_'(){};,:. ]{0,30}", text in "[a-d(){};,:. ]{0,60}") {
        if DeniedPattern::parse(&pattern).is_ok() {
            let _found = check_denied(&source(&text), &[pattern]);
        }
    }

    /// A run of a source's own tokens is found in it.
    #[test]
    fn what_is_there_is_found(words in prop::collection::vec("[a-c]", 1..20), from in 0usize..20, many in 1usize..20) {
        let from = from % words.len();
        let until = (from + many).min(words.len());
        let pattern = words[from..until].join(" ");
        // Not a source that compiles: only its tokens are searched.
        let nodes = read_nodes(words.join(" ").parse().expect("tokens"));
        let read = TokenPattern::parse(&pattern).expect("a pattern");
        prop_assert!(read.find(&nodes).is_some());
    }
}
