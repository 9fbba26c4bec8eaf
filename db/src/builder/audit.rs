//! A second look at a source, after the compiler has worked out its types: function pointers that nobody spelled.
//!
//! `[f, g][0]` has a function pointer's type although none is written, and assigning another function to it loses the
//! bounds of that function's lifetimes (rust-lang issues 25860, 157316: use after free in safe code). No syntax tree
//! shows it. The compiler's own intermediate form (`--emit=mir`, without optimisation) does: each such conversion is one
//! line of it. Text of the tenant's that looks like such a line is refused too, which harms nobody.

use super::Source;
use super::check::rules::FN_POINTER;
use super::diagnostic::Diagnostic;

/// Conversions of a function or closure to a pointer.
const CONVERSIONS: [&str; 3] =
    ["PointerCoercion(ReifyFnPointer", "PointerCoercion(ClosureFnPointer", "PointerCoercion(UnsafeFnPointer"];

/// Every function that converts one to a pointer, refused.
pub(super) fn function_pointers(mir: &str, source: &Source) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    let mut body = "";
    for line in mir.lines() {
        if !line.starts_with([' ', '}']) && line.ends_with('{') {
            body = line;
        }
        if !CONVERSIONS.iter().any(|conversion| line.contains(conversion)) {
            continue;
        }
        let diagnostic = refusal(body, source);
        if !found.contains(&diagnostic) {
            found.push(diagnostic);
        }
    }
    found
}

/// A refusal at the function whose body's first line this is: `fn outer::{closure#0}(_1: …) -> … {`.
fn refusal(body: &str, source: &Source) -> Diagnostic {
    let name = body.split_once("fn ").map_or(body, |(_, rest)| rest);
    let end = name.find(['(', '{', '<']).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or(name).trim_end_matches("::").rsplit("::").next().unwrap_or(name).trim();
    let message = format!("{}: in `{name}` a function or closure becomes a pointer", FN_POINTER.reason);
    let declaration = format!("fn {name}");
    for file in &source.files {
        if let Some(at) = file.text.find(&declaration).filter(|_| !name.is_empty()) {
            return Diagnostic::refused(&file.path, &file.text, at..at + declaration.len(), FN_POINTER.id, &message);
        }
    }
    Diagnostic::refused(super::ROOT_FILE, "", 0..0, FN_POINTER.id, &message)
}
