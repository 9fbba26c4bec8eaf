//! Parses the text after ` = `: values, borrows and calls.

use std::collections::HashMap;

use super::place::place;
use super::text::MirCursor;
use super::{MirPlace, PlaceAccess, UnknownMir};

/// The kind of value that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RvalueKind {
    Value,
    Call,
    Yield,
}

/// Types of discriminants.
const INTEGERS: [&str; 12] = ["isize", "i8", "i16", "i32", "i64", "i128", "usize", "u8", "u16", "u32", "u64", "u128"];

/// Borrows: their prefixes and kinds, the longer first.
const BORROWS: [(&str, PlaceAccess); 8] = [
    ("&raw const (fake) ", PlaceAccess::LengthPointer),
    ("&raw mut (fake) ", PlaceAccess::MutBorrow),
    ("&raw const ", PlaceAccess::SharedBorrow),
    ("&raw mut ", PlaceAccess::MutBorrow),
    ("&fake shallow ", PlaceAccess::FakeBorrow),
    ("&fake deep ", PlaceAccess::FakeBorrow),
    ("&mut ", PlaceAccess::MutBorrow),
    ("&", PlaceAccess::SharedBorrow),
];

/// Parses the right side of an assignment, up to its semicolon or, for a call, its targets.
pub(super) fn rvalue(
    text: &mut MirCursor<'_>,
    accesses: &mut Vec<(PlaceAccess, MirPlace)>,
    target: &MirPlace,
    locals: &HashMap<u32, String>,
) -> Result<RvalueKind, UnknownMir> {
    for (start, access) in BORROWS {
        if text.eat(start) {
            accesses.push((access, place(text)?));
            return value(text);
        }
    }
    if text.starts("copy ") || text.starts("move ") {
        operand(text, accesses, b"; (")?;
        if text.starts("(") {
            text.expect("(")?;
            operands(text, accesses, b')')?;
            return Ok(RvalueKind::Call);
        }
        return cast(text);
    }
    if text.eat("const ") {
        text.until(b";")?;
        return value(text);
    }
    if text.eat("yield(") {
        operands(text, accesses, b')')?;
        return Ok(RvalueKind::Yield);
    }
    if text.starts("(") || text.starts("[") {
        return list(text, accesses);
    }
    // A struct of the tenant's may have one of these names; its value is then no integer.
    let kind = if target.way.is_empty() { locals.get(&target.local).map(String::as_str) } else { None };
    let integer = kind.is_some_and(|kind| INTEGERS.contains(&kind));
    if integer && (text.starts("discriminant(_") || text.starts("discriminant((")) {
        text.expect("discriminant(")?;
        accesses.push((PlaceAccess::Discriminant, place(text)?));
        text.expect(")")?;
        return value(text);
    }
    if integer && kind == Some("usize") && text.starts("PtrMetadata(") {
        text.expect("PtrMetadata(")?;
        let mut read = Vec::new();
        operand(text, &mut read, b")")?;
        text.expect(")")?;
        for (access, pointer) in read {
            accesses.push((PlaceAccess::Length, pointer.dereferenced()));
            accesses.push((access, pointer));
        }
        return value(text);
    }
    named(text, accesses)
}

fn value(text: &MirCursor<'_>) -> Result<RvalueKind, UnknownMir> {
    if text.starts(";") { Ok(RvalueKind::Value) } else { Err(text.unknown()) }
}

/// Parses `;`, or ` as Type (Kind);`
fn cast(text: &mut MirCursor<'_>) -> Result<RvalueKind, UnknownMir> {
    if text.eat(" as ") {
        text.until(b";")?;
    }
    value(text)
}

/// Parses `(move _1, copy _2)`, `[move _1; 3]`.
fn list(text: &mut MirCursor<'_>, accesses: &mut Vec<(PlaceAccess, MirPlace)>) -> Result<RvalueKind, UnknownMir> {
    let close = if text.eat("(") { b')' } else { b']' };
    if close == b']' {
        text.expect("[")?;
    }
    operands(text, accesses, close)?;
    value(text)
}

/// Parses a value or call that begins with its name: `Some(copy _1)`, `Lt(move _1, const 2)`, `Path { field: copy _1
/// }`, `f(copy _1) -> …`.
fn named(text: &mut MirCursor<'_>, accesses: &mut Vec<(PlaceAccess, MirPlace)>) -> Result<RvalueKind, UnknownMir> {
    // The type of a closure or future: `{closure@src/lib.rs:1:2: 3:4} { x: copy _1 }`.
    if text.starts("{") {
        text.expect("{")?;
        let kind = text.until(b"}")?;
        if !["closure@", "coroutine@", "async ", "coroutine-closure@"].iter().any(|start| kind.starts_with(start)) {
            return Err(UnknownMir::of(kind));
        }
        text.expect("}")?;
    }
    let path = text.until(b"( ;{")?;
    if path.ends_with('!') {
        return Err(UnknownMir::of(path));
    }
    loop {
        if text.eat("(") {
            operands(text, accesses, b')')?;
            return if text.starts(" -> ") { Ok(RvalueKind::Call) } else { value(text) };
        }
        if text.eat(" { ") {
            fields(text, accesses)?;
            return value(text);
        }
        if text.starts("{") {
            // `f::{closure#0}(…)`
            text.expect("{")?;
            text.until(b"}")?;
            text.expect("}")?;
            text.until(b"( ;{")?;
            continue;
        }
        // A function that is converted to a pointer, which another rule refuses.
        return cast(text);
    }
}

/// Parses `x: copy _1, y: move _2 }`.
fn fields(text: &mut MirCursor<'_>, accesses: &mut Vec<(PlaceAccess, MirPlace)>) -> Result<(), UnknownMir> {
    loop {
        let field = text.until(b":")?;
        if !field.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'#') {
            return Err(UnknownMir::of(field));
        }
        text.expect(": ")?;
        operand(text, accesses, b",}")?;
        // A constant extends to the bracket.
        text.eat(" ");
        if text.eat("}") {
            return Ok(());
        }
        text.expect(", ")?;
    }
}

/// Parses operands up to and including the closing bracket.
pub(super) fn operands(
    text: &mut MirCursor<'_>,
    accesses: &mut Vec<(PlaceAccess, MirPlace)>,
    close: u8,
) -> Result<(), UnknownMir> {
    let stops = [b',', b';', close];
    let closing = if close == b')' { ")" } else { "]" };
    loop {
        if text.eat(closing) {
            return Ok(());
        }
        operand(text, accesses, &stops)?;
        if text.eat("; ") {
            // The repeat count: a constant.
            text.until(&[close])?;
        } else if text.eat(",") {
            // `(copy _1,)` is a tuple of one.
            text.eat(" ");
        } else if !text.starts(closing) {
            return Err(text.unknown());
        }
    }
}

/// Parses one operand: a place that is copied or moved, or a constant, which ends at one of these bytes.
pub(super) fn operand(
    text: &mut MirCursor<'_>,
    accesses: &mut Vec<(PlaceAccess, MirPlace)>,
    stops: &[u8],
) -> Result<(), UnknownMir> {
    if text.eat("copy ") {
        accesses.push((PlaceAccess::Copied, place(text)?));
        return Ok(());
    }
    if text.eat("move ") {
        accesses.push((PlaceAccess::Moved, place(text)?));
        return Ok(());
    }
    let constant = text.until(stops)?;
    if constant.is_empty() || names_place(constant) { Err(UnknownMir::of(constant)) } else { Ok(()) }
}

/// Returns whether a text that should be a constant begins as a place does: it would be an access that no check sees.
fn names_place(text: &str) -> bool {
    let inside = text.trim_start_matches(['(', '*', '&']);
    inside.strip_prefix('_').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}
