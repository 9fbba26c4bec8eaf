//! A second look at a source, after the compiler has worked out its types: what no syntax tree shows.
//!
//! `[f, g][0]` has a function pointer's type although none is written, and assigning another function to it loses the
//! bounds of that function's lifetimes (rust-lang issues 25860, 157316: use after free in safe code). A closure claims to
//! outlive what it returns (84366), so a generic function can be led to believe that a short-lived value lives long; it does
//! harm where the value's type is forgotten: in an owned `dyn`, or in a `Peekable` or `Flatten` whose type names the closure
//! alone. And
//! addresses: comparing them is miscompiled (107975), printing them tells where the server's memory lies.
//!
//! The compiler's own intermediate form (`--emit=mir`, without optimisation) shows all of these: each is one line of it.
//! Text of the tenant's that looks like such a line is refused too, which harms nobody.

use std::collections::{HashMap, HashSet};

use super::Source;
use super::check::rules::{ADDRESS, ERASED, FN_POINTER, Rule};
use super::diagnostic::Diagnostic;

/// Conversions of a function or closure to a pointer.
const FUNCTION_POINTERS: [&str; 3] =
    ["PointerCoercion(ReifyFnPointer", "PointerCoercion(ClosureFnPointer", "PointerCoercion(UnsafeFnPointer"];

/// Addresses as numbers or text.
const ADDRESSES: [&str; 5] = [
    "(PointerExposeProvenance)",
    "(PointerWithExposedProvenance)",
    "::new_pointer::<",
    " as Pointer>::",
    " as core::fmt::Pointer>::",
];

/// Types whose debug text holds addresses.
const SHOW_ADDRESSES: [&str; 2] = ["Waker", "Context<"];

/// Calls of what makes a reference as long as one likes, or forgets lifetimes of types.
const ERASING: [&str; 4] = ["::leak(", "::leak::<", "::downcast", "::into_raw"];

/// Iterators that keep what an iterator gives, and name that iterator alone.
const KEEPING: [&str; 2] = ["Peekable", "Flatten"];

/// One function of the intermediate form.
struct Body<'a> {
    /// Its first line: `fn outer::{closure#0}(_1: …) -> … {`.
    head: &'a str,
    lines: Vec<&'a str>,
    /// Types of its locals: `_3`, and what stands behind the colon.
    locals: HashMap<&'a str, &'a str>,
}

/// Everything that is to be refused. `parameters` are the names of all type parameters of the source.
pub(super) fn refused(mir: &str, source: &Source, parameters: &HashSet<String>) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    for body in bodies(mir) {
        for line in body.head_and_lines() {
            let Some((rule, what)) = body.refused(line, parameters) else { continue };
            let diagnostic = refusal(rule, what, body.head, source);
            if !found.contains(&diagnostic) {
                found.push(diagnostic);
            }
        }
    }
    found
}

fn bodies(mir: &str) -> Vec<Body<'_>> {
    let mut bodies: Vec<Body<'_>> = Vec::new();
    for line in mir.lines() {
        if !line.starts_with([' ', '}', '/']) && line.ends_with('{') {
            bodies.push(Body { head: line, lines: Vec::new(), locals: HashMap::new() });
            continue;
        }
        let Some(body) = bodies.last_mut() else { continue };
        let text = line.trim_start();
        if let Some((name, kind)) = text.strip_prefix("let ").and_then(|rest| rest.split_once(": ")) {
            body.locals.insert(name.trim_start_matches("mut "), kind.trim_end_matches(';'));
        }
        body.lines.push(text);
    }
    for body in &mut bodies {
        body.add_arguments();
    }
    bodies
}

impl<'a> Body<'a> {
    /// Arguments are declared in the head alone. Where a type ends does not matter: a longer text names no less.
    fn add_arguments(&mut self) {
        let starts: Vec<usize> = self.head.match_indices('_').map(|(at, _)| at).collect();
        for start in starts {
            let Some(rest) = self.head.get(start..) else { continue };
            let Some((name, kind)) = rest.split_once(": ") else { continue };
            let number = name.strip_prefix('_').unwrap_or_default();
            if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
                let end = kind.find(", _").unwrap_or(kind.len());
                self.locals.insert(name, kind.get(..end).unwrap_or(kind));
            }
        }
    }

    fn head_and_lines(&self) -> impl Iterator<Item = &'a str> + use<'a, '_> {
        std::iter::once(self.head).chain(self.lines.iter().copied())
    }

    /// What is wrong with a line.
    fn refused(&self, line: &str, parameters: &HashSet<String>) -> Option<(&'static Rule, &'static str)> {
        if FUNCTION_POINTERS.iter().any(|conversion| line.contains(conversion)) {
            return Some((&FN_POINTER, "a function or closure becomes a pointer"));
        }
        if ADDRESSES.iter().any(|address| line.contains(address)) {
            return Some((&ADDRESS, "an address becomes a number or text"));
        }
        if self.tells_a_pointer(line) {
            return Some((&ADDRESS, "a call has to do with raw pointers"));
        }
        if self.shows_a_waker(line) {
            return Some((&ADDRESS, "a waker or context, whose text holds addresses, is shown"));
        }
        if is_call(line) && ERASING.iter().any(|function| line.contains(function)) {
            return Some((&ERASED, "memory is leaked or an object gets its type back"));
        }
        if holds_a_closures_item(line) {
            return Some((
                &ERASED,
                "an iterator made of closures becomes `Peekable` or `Flatten` (write `flat_map`, or collect first)",
            ));
        }
        if self.erases(line, parameters) {
            return Some((&ERASED, "a value of a type parameter or of its associated type becomes an object"));
        }
        None
    }

    /// A call that takes or gives a raw pointer. Boxes have some inside, but no call of the tenant's takes those.
    fn tells_a_pointer(&self, line: &str) -> bool {
        const POINTERS: [&str; 3] = ["*const ", "*mut ", "NonNull<"];
        if !is_call(line) {
            return false;
        }
        let result =
            line.split_once(" = ").and_then(|(result, _)| self.locals.get(result)).copied().unwrap_or_default();
        POINTERS.iter().any(|pointer| line.contains(pointer) || result.contains(pointer))
    }

    fn shows_a_waker(&self, line: &str) -> bool {
        let shown = |text: &str| SHOW_ADDRESSES.iter().any(|kind| text.contains(kind));
        if line.contains("PointerCoercion(Unsize") {
            return line.contains("dyn core::fmt::Debug") && shown(self.operand(line));
        }
        // The function's own arguments, not those of the type that it belongs to: `Option::<Waker>::take` is harmless.
        let Some((callee, _)) = line.split_once(">(").filter(|_| is_call(line)) else { return false };
        let given = callee.rfind("::<").and_then(|at| callee.get(at..)).unwrap_or_default();
        shown(given) && !callee.contains("= core::mem::")
    }

    /// The type of what a conversion converts: `_0 = move _3 as Box<dyn …>`, `copy (_1.0: T) as …`.
    fn operand<'l>(&self, line: &'l str) -> &'l str
    where
        'a: 'l,
    {
        let Some((_, right)) = line.split_once(" = ") else { return line };
        let from = right.trim_start_matches("move ").trim_start_matches("copy ");
        let name = from.split([' ', ';']).next().unwrap_or_default();
        self.locals.get(name).copied().unwrap_or(from)
    }

    /// An owned object of what may be, or hold, a value of a type parameter.
    fn erases(&self, line: &str, parameters: &HashSet<String>) -> bool {
        let generic = |text: &str| is_generic(text, parameters);
        if is_call(line) {
            let error = line.contains("dyn core::error::Error") || line.contains("dyn Error");
            return error && generic(line);
        }
        if !line.contains("PointerCoercion(Unsize") {
            return false;
        }
        let Some((_, target)) = line.split_once(" as ") else { return false };
        let owned = !target.starts_with('&') && !target.starts_with("core::pin::Pin<&");
        if !owned || !target.contains("dyn ") {
            return false;
        }
        let operand = self.operand(line);
        let hides = operand.contains('{');
        generic(operand) || (hides && self.head_and_lines().any(generic))
    }
}

/// Whether a line calls something: `_3 = f(move _1) -> [return: bb1, unwind unreachable];`.
fn is_call(line: &str) -> bool {
    line.contains(") -> [return") || line.contains(") -> unwind") || line.contains(") -> bb")
}

/// `Peekable<…>` or `Flatten<…>` around a closure's type.
fn holds_a_closures_item(line: &str) -> bool {
    KEEPING.iter().flat_map(|keeping| line.match_indices(keeping)).any(|(at, keeping)| {
        let rest = line.get(at + keeping.len()..).unwrap_or_default();
        let rest = rest.strip_prefix("::").unwrap_or(rest);
        let inside = rest.strip_prefix('<').map(bracketed).unwrap_or_default();
        inside.contains("{closure") || has_impl_trait(inside)
    })
}

/// The text up to the `>` that closes a bracket which is open; the `>` of an arrow closes none.
fn bracketed(text: &str) -> &str {
    let mut depth = 1_usize;
    let mut before = ' ';
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(..at).unwrap_or(text);
        }
        before = character;
    }
    text
}

/// Whether a text names a type parameter, an associated type of one, or a parameter that is an `impl Trait`.
fn is_generic(text: &str, parameters: &HashSet<String>) -> bool {
    has_impl_trait(text)
        || text
            .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            .any(|word| word == "Self" || parameters.contains(word))
}

/// `impl Fn(u8)`, `impl core::fmt::Debug`, `impl for<'a> Fn(&'a u8)`; not `<impl at src/lib.rs:1:2: 3:4>`, nor `<impl [u8]>` or
/// `<impl str>`, which are the heads of implementations.
fn has_impl_trait(text: &str) -> bool {
    text.match_indices("impl ").any(|(at, found)| {
        let rest = text.get(at + found.len()..).unwrap_or_default();
        let word = rest.split(|character: char| !character.is_ascii_alphanumeric() && character != '_').next();
        let word = word.unwrap_or_default();
        let behind = rest.get(word.len()..).unwrap_or_default();
        rest.starts_with(|first: char| first.is_ascii_uppercase() || first == '?')
            || behind.starts_with("::")
            || rest.starts_with("for<")
    })
}

/// A refusal at the function whose body's first line this is.
fn refusal(rule: &'static Rule, what: &str, head: &str, source: &Source) -> Diagnostic {
    let name = head.split_once("fn ").map_or(head, |(_, rest)| rest);
    let end = name.find(['(', '{', '<']).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or(name).trim_end_matches("::").rsplit("::").next().unwrap_or(name).trim();
    let message = format!("{}: in `{name}` {what}", rule.reason);
    let declaration = format!("fn {name}");
    for file in &source.files {
        if let Some(at) = file.text.find(&declaration).filter(|_| !name.is_empty()) {
            return Diagnostic::refused(&file.path, &file.text, at..at + declaration.len(), rule.id, &message);
        }
    }
    Diagnostic::refused(super::ROOT_FILE, "", 0..0, rule.id, &message)
}
