//! Checks that the borrow checker's form of every function exists.

use std::collections::HashMap;

use super::mir::{is_head, without_comment};

/// Lines of a function that only returns one value and needs no borrow checker: a struct's or a variant's name used as
/// a function.
const TRIVIAL_LINES: usize = 4;

/// Numbers of functions that share one name.
#[derive(Clone, Copy, Default)]
struct FunctionCount {
    /// Functions in the compiler's dump of the whole source.
    written: usize,
    /// Those of them that must be checked.
    needed: usize,
    /// Read in the borrow checker's form.
    read: usize,
}

/// Names of functions in the compiler's dump of the whole source of which not every body was read. Functions may share
/// a name, and one's file may have overwritten another's. So where one function of a name must be checked, as many
/// bodies must exist as were written.
pub(super) fn missing_bodies<'m>(mir: &'m str, read: &[&str]) -> Vec<&'m str> {
    let mut named: HashMap<&str, FunctionCount> = HashMap::new();
    let mut order = Vec::new();
    let mut lines = mir.lines().peekable();
    // Functions that constants can call are written twice.
    let mut again = false;
    while let Some(line) = lines.next() {
        if line.starts_with("// MIR FOR CTFE") {
            again = true;
            continue;
        }
        if !is_head(line) || is_constant_memory(line) || is_constant(line) {
            continue;
        }
        if !without_comment(line).ends_with('{') {
            // No function's first line as we know them, so what stands below it is not counted.
            let found = named.entry(line).or_insert_with(|| {
                order.push(line);
                FunctionCount::default()
            });
            (found.written, found.needed) = (found.written + 1, found.needed + 1);
            continue;
        }
        let mut inside = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('}')) {
            inside.push(line);
        }
        let name = name(line);
        if std::mem::take(&mut again) {
            continue;
        }
        let found = named.entry(name).or_insert_with(|| {
            order.push(name);
            FunctionCount::default()
        });
        found.written += 1;
        found.needed += usize::from(!is_trivial_body(line, &inside));
    }
    for name in read {
        if let Some(found) = named.get_mut(name) {
            found.read += 1;
        }
    }
    order.retain(|name| named.get(name).is_some_and(|found| found.needed > 0 && found.read != found.written));
    order
}

/// `alloc3 (size: 5, align: 1) { .. }`, `alloc4 (fn: f)`: memory that constants name. No code stands there.
fn is_constant_memory(line: &str) -> bool {
    let number = line.strip_prefix("alloc").unwrap_or_default();
    let rest = number.trim_start_matches(|digit: char| digit.is_ascii_digit());
    rest.len() < number.len() && rest.starts_with(" (") && !without_comment(line).ends_with('{')
}

/// `const f::promoted[0]: &str = const "text";`: a value without a body.
fn is_constant(line: &str) -> bool {
    let line = without_comment(line);
    ["const ", "static "].iter().any(|start| line.starts_with(start))
        && line.contains(" = const ")
        && line.ends_with(';')
}

/// The name of the function with this body.
pub(super) fn name_of(body: &str) -> &str {
    body.lines().find(|line| is_head(line)).map(name).unwrap_or_default()
}

/// `fn NAME(`, `const NAME: `; a name holds brackets that hold anything.
fn name(head: &str) -> &str {
    let name = ["fn ", "const ", "static mut ", "static "].iter().find_map(|start| head.strip_prefix(start));
    let name = name.unwrap_or(head);
    let mut depth = 0_usize;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'{' | b'[' => depth += 1,
            b'>' | b'}' | b']' => depth = depth.saturating_sub(1),
            b'(' if depth == 0 => return name.get(..at).unwrap_or(name),
            b':' if depth == 0 && name.get(at..).is_some_and(|rest| rest.starts_with(": ")) => {
                return name.get(..at).unwrap_or(name);
            }
            _ => {}
        }
    }
    name
}

/// Returns whether a body's places need no check: it returns one value, or it is the constant part of a function that
/// was checked, and has no branch.
fn is_trivial_body(head: &str, inside: &[&str]) -> bool {
    let mut statements = inside.iter().map(|line| line.trim_start()).filter(|line| {
        let declares = ["let ", "debug ", "scope ", "//", "}"].iter().any(|start| line.starts_with(start));
        !declares && !line.is_empty()
    });
    if name(head).contains("::promoted[") {
        return statements.all(|line| !line.starts_with("switchInt("));
    }
    let statements: Vec<&str> = statements.collect();
    statements.len() < TRIVIAL_LINES
        && statements.iter().enumerate().all(|(at, line)| match at {
            0 => line.starts_with("bb0: {"),
            1 => line.starts_with("_0 = ") && !line.contains(" -> "),
            _ => line.starts_with("return;"),
        })
}
