//! The audit of the compiler's output: it checks a source after type inference, for what no syntax tree shows.
//!
//! `[f, g][0]` has a function pointer's type although none is written, and assigning another function to it loses the
//! bounds of that function's lifetimes (rust-lang issues 25860, 157316: use after free in safe code). A closure claims
//! to outlive what it returns (84366), so a generic function can be led to believe that a short-lived value lives long.
//! The harm is done where the value's type is forgotten: in an owned `dyn`, or in a `Peekable` or `Flatten` whose type
//! names the closure alone, which this looks for; and in traits of the tenant's own, which `check::witnesses` refuses.
//! The same holds for `async` blocks and closures, and for functions. Addresses are refused, too: comparing them is
//! miscompiled (107975), and printing them reveals where the server's memory lies. The compiler's own intermediate form
//! (`--emit=mir`, without optimisation) shows all of these, each in one line. Text of the tenant's that looks like such
//! a line is refused too, which does no harm.
//!
//! That form also shows, as the borrow checker gets it, what each place is used for; [`mir`] reads it into a structure.
//! [`guards`] checks what a guard or an index does to the place that was matched or indexed. [`stale`] checks for uses
//! of a place that were not checked again after a change. [`indexing`] checks indexes of indexes. A function that is
//! missing in one of the two forms is refused, and so is everything that cannot be parsed.

mod coverage;
mod guards;
mod indexing;
mod mir;
mod stale;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::check::PRIMITIVES;
use super::check::rules::{ADDRESS, ERASED, FN_POINTER, Rule, UNKNOWN_MIR};
use super::diagnostic::Diagnostic;
use super::{BuildError, PushedSource, limits};
use mir::UnknownMir;

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

/// Types of core and alloc that may hold a waker, in the compiler's spelling before a call.
const HARMLESS: [&str; 10] = ["Option", "Poll", "Result", "Pin", "Vec", "Box", "VecDeque", "RefCell", "Cell", "Ready"];

/// Functions of core that show their type's contents, and those that show one half of a `Result`.
const FORMAT_CALLS: [&str; 2] = [">::fmt(", ">::to_string("];
const ERROR_FORMAT_CALLS: [&str; 2] = [">::unwrap(", ">::expect("];
const OK_FORMAT_CALLS: [&str; 2] = [">::unwrap_err(", ">::expect_err("];

/// Calls that make a reference of any lifetime, or forget the lifetimes of types.
const LIFETIME_ERASING_CALLS: [&str; 4] = ["::leak(", "::leak::<", "::downcast", "::into_raw"];

/// Iterators that store another iterator's items, and name only that iterator.
const BUFFERING_ITERATORS: [&str; 2] = ["Peekable", "Flatten"];

/// Types that do not say how long their results live: closures, and the types of `async` blocks and closures.
const UNNAMED_TYPES: [&str; 4] = ["{closure", "{async", "{coroutine", "{gen"];

/// One function of the intermediate form.
struct MirTextBody<'a> {
    /// Its first line: `fn outer::{closure#0}(_1: …) -> … {`.
    head: &'a str,
    lines: Vec<&'a str>,
    /// The types of its locals: `_3`, and the text after the colon.
    locals: HashMap<&'a str, &'a str>,
}

/// Facts about the whole source.
struct SourceFacts<'a> {
    /// Names of its type parameters.
    parameters: &'a HashSet<String>,
    /// Closures, `{closure@src/lib.rs:1:2: 1:5}`, whose results hold no reference of any kind.
    plain: HashSet<&'a str>,
}

/// A finding about one statement.
#[derive(Debug)]
struct AuditFinding {
    rule: &'static Rule,
    what: String,
    /// The statement's source location: `src/lib.rs:1:2: 3:4`.
    from: String,
}

impl AuditFinding {
    fn new(rule: &'static Rule, what: &str, from: &str) -> AuditFinding {
        AuditFinding { rule, what: what.to_owned(), from: from.to_owned() }
    }
}

/// The compiler's dump of a source.
pub(super) struct MirDump {
    /// All functions, as text, before optimisation.
    pub(super) text: String,
    /// Each function, as the borrow checker gets it.
    pub(super) bodies: Vec<String>,
}

/// The compiler skips names that the file system cannot hold: a function's path in the crate is the name of its file.
const MISSING_BODY_HINT: &str = "the compiler did not write it down: its path, with the modules and functions around it, must be shorter than 200 letters";

/// Returns everything to refuse. `parameters` are the names of all type parameters of the source.
///
/// # Errors
/// `Limit` if it does not finish by `until`.
pub(super) fn audit_source(
    forms: &MirDump,
    source: &PushedSource,
    parameters: &HashSet<String>,
    until: Instant,
) -> Result<Vec<Diagnostic>, BuildError> {
    let mut found = audit_text(&forms.text, source, parameters, until)?;
    let mut names = Vec::new();
    for text in &forms.bodies {
        check_deadline(until)?;
        let name = coverage::name_of(text);
        let wrong = audit_body(text).unwrap_or_else(|UnknownMir { text, from }| {
            vec![AuditFinding::new(&UNKNOWN_MIR, &format!("there is {text:?}"), &from)]
        });
        for one in wrong.iter().take(limits::MAX_DIAGNOSTICS) {
            let diagnostic = diagnostic_for_finding(one, name, source);
            if !found.contains(&diagnostic) {
                found.push(diagnostic);
            }
        }
        names.push(name);
    }
    for missing in coverage::missing_bodies(&forms.text, &names).into_iter().take(limits::MAX_DIAGNOSTICS) {
        found.push(diagnostic_for_finding(&AuditFinding::new(&UNKNOWN_MIR, MISSING_BODY_HINT, ""), missing, source));
    }
    found.truncate(limits::MAX_DIAGNOSTICS);
    Ok(found)
}

fn check_deadline(until: Instant) -> Result<(), BuildError> {
    match Instant::now() < until {
        true => Ok(()),
        false => Err(BuildError::Limit("looking through what the compiler made of it takes too long".to_owned())),
    }
}

/// Findings about the places of a function.
fn audit_body(text: &str) -> Result<Vec<AuditFinding>, UnknownMir> {
    let body = mir::MirBody::read(text)?;
    let found = [guards::check_guards(&body)?, stale::check_stale(&body)?, indexing::check_indexing(&body)?];
    Ok(found.into_iter().flatten().collect())
}

/// Findings that single lines show.
fn audit_text(
    mir: &str,
    source: &PushedSource,
    parameters: &HashSet<String>,
    until: Instant,
) -> Result<Vec<Diagnostic>, BuildError> {
    let mut found: Vec<Diagnostic> = Vec::new();
    let bodies = bodies(mir);
    let known = SourceFacts { parameters, plain: plain_closures(&bodies, parameters) };
    for body in bodies {
        check_deadline(until)?;
        for line in body.head_and_lines() {
            let Some((rule, what)) = body.refused(line, &known) else { continue };
            let diagnostic = diagnostic_for_function(rule, what, body.head, source);
            if !found.contains(&diagnostic) {
                found.push(diagnostic);
            }
        }
        if found.len() >= limits::MAX_DIAGNOSTICS {
            break;
        }
    }
    Ok(found)
}

fn bodies(mir: &str) -> Vec<MirTextBody<'_>> {
    let mut bodies: Vec<MirTextBody<'_>> = Vec::new();
    for line in mir.lines().map(mir::without_comment) {
        if !line.starts_with([' ', '}', '/']) && line.ends_with('{') {
            bodies.push(MirTextBody { head: line, lines: Vec::new(), locals: HashMap::new() });
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

impl<'a> MirTextBody<'a> {
    /// Arguments are declared in the head alone. The end of a type does not matter: a longer text names no less.
    fn add_arguments(&mut self) {
        for (start, _) in self.head.match_indices('_') {
            // Digits first: a name may have any number of underscores.
            let rest = self.head.get(start..).unwrap_or_default();
            let digits = rest.bytes().skip(1).take_while(u8::is_ascii_digit).count();
            let Some((name, rest)) = rest.split_at_checked(1 + digits).filter(|_| digits > 0) else { continue };
            let Some(kind) = rest.strip_prefix(": ") else { continue };
            let end = kind.find(", _").unwrap_or(kind.len());
            self.locals.insert(name, kind.get(..end).unwrap_or(kind));
        }
    }

    fn head_and_lines(&self) -> impl Iterator<Item = &'a str> + use<'a, '_> {
        std::iter::once(self.head).chain(self.lines.iter().copied())
    }

    /// Returns the finding of a line, if there is one.
    fn refused(&self, line: &str, known: &SourceFacts<'_>) -> Option<(&'static Rule, &'static str)> {
        if FUNCTION_POINTERS.iter().any(|conversion| line.contains(conversion)) {
            return Some((&FN_POINTER, "a function or closure becomes a pointer"));
        }
        if ADDRESSES.iter().any(|address| line.contains(address)) {
            return Some((&ADDRESS, "an address becomes a number or text"));
        }
        if self.passes_raw_pointer(line) {
            return Some((&ADDRESS, "a call has to do with raw pointers"));
        }
        if self.formats_waker(line) {
            return Some((&ADDRESS, "a waker or context, whose text holds addresses, is shown"));
        }
        if is_call(line) && LIFETIME_ERASING_CALLS.iter().any(|function| line.contains(function)) {
            return Some((&ERASED, "memory is leaked or an object gets its type back"));
        }
        if buffers_closure_item(line, known) {
            return Some((
                &ERASED,
                "an iterator made of closures that give references becomes `Peekable` or `Flatten` (write `flat_map`, or \
                 collect first)",
            ));
        }
        if self.erases_type_parameter(line, known.parameters) {
            return Some((&ERASED, "a value of a type parameter or of its associated type becomes an object"));
        }
        if !self.shows_types(line) {
            return Some((&UNKNOWN_MIR, "there is a call or conversion whose place has no type"));
        }
        None
    }

    /// Returns whether a line tells the types that the rules above look at: of what a call returns, and of what becomes
    /// an object.
    fn shows_types(&self, line: &str) -> bool {
        let known = |place: &str| self.kind_of(place).is_some();
        if line.contains("PointerCoercion(Unsize") {
            let operand = line.split_once(" = ").map(|(_, right)| right).unwrap_or_default();
            let constant = operand.starts_with("const ");
            return constant || ["move ", "copy "].iter().any(|how| operand.strip_prefix(how).is_some_and(known));
        }
        match line.split_once(" = ") {
            Some((result, _)) if is_call(line) && result.starts_with(['_', '(']) => known(result),
            _ => true,
        }
    }

    /// The type of the place at the start of a text: `_3`, `(_1.0: Type)`; for `(*_3)`, `_3[_4]` and further, the type
    /// of the local, which names no less.
    fn kind_of(&self, text: &str) -> Option<&'a str> {
        let local = text.trim_start_matches(['(', '*']);
        let digits = local.strip_prefix('_')?.bytes().take_while(u8::is_ascii_digit).count();
        self.locals.get(local.get(..=digits)?).copied()
    }

    /// Returns whether a call takes or returns a raw pointer. Boxes contain some, but no call of the tenant's takes
    /// those.
    fn passes_raw_pointer(&self, line: &str) -> bool {
        const POINTERS: [&str; 3] = ["*const ", "*mut ", "NonNull<"];
        if !is_call(line) {
            return false;
        }
        let result = line.split_once(" = ").and_then(|(result, _)| self.kind_of(result)).unwrap_or_default();
        POINTERS.iter().any(|pointer| line.contains(pointer) || result.contains(pointer))
    }

    fn formats_waker(&self, line: &str) -> bool {
        let shown = |text: &str| SHOW_ADDRESSES.iter().any(|kind| text.contains(kind));
        if is_waker_argument_of_custom_type(line) {
            return true;
        }
        if line.contains("PointerCoercion(Unsize") {
            return line.contains("dyn core::fmt::Debug") && shown(&self.operand(line));
        }
        let of = |functions: &[&str]| functions.iter().find_map(|one| line.split_once(one)).map(|(of, _)| of);
        if is_call(line)
            && (of(&FORMAT_CALLS).is_some_and(shown)
                || of(&ERROR_FORMAT_CALLS).is_some_and(|of| shown(halves(of).1))
                || of(&OK_FORMAT_CALLS).is_some_and(|of| shown(halves(of).0)))
        {
            return true;
        }
        // Only the function's own arguments count, not those of the type that it belongs to: `Option::<Waker>::take` is
        // harmless.
        let Some((callee, _)) = line.split_once(">(").filter(|_| is_call(line)) else { return false };
        let given = callee.rfind("::<").and_then(|at| callee.get(at..)).unwrap_or_default();
        shown(given) && !callee.contains("= core::mem::")
    }

    /// The type of a conversion's operand: `_0 = move _3 as Box<dyn …>`. Of a place in a local, `copy (_1.0: T) as …`,
    /// it is the local's, with the text of the place, which names the types of its fields.
    fn operand(&self, line: &str) -> String {
        let Some((_, right)) = line.split_once(" = ") else { return line.to_owned() };
        let from = right.trim_start_matches("move ").trim_start_matches("copy ");
        match self.kind_of(from) {
            Some(kind) if from.starts_with('_') => kind.to_owned(),
            kind => format!("{} {from}", kind.unwrap_or_default()),
        }
    }

    /// Returns whether a line makes an owned object of a value whose type may be, or contain, a type parameter.
    fn erases_type_parameter(&self, line: &str, parameters: &HashSet<String>) -> bool {
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
        generic(&operand) || (hides && self.head_and_lines().any(generic))
    }
}

/// Returns whether a waker or context is an argument of a type or function outside of core. No line shows what such a
/// type or function does with its parameter.
fn is_waker_argument_of_custom_type(line: &str) -> bool {
    SHOW_ADDRESSES.iter().flat_map(|kind| line.match_indices(kind)).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        let mut depth = 0_usize;
        before.char_indices().rev().any(|(at, character)| {
            let arrow = before.get(..at).is_some_and(|rest| rest.ends_with(['-', '=']));
            match character {
                '>' if !arrow => depth += 1,
                '<' if depth > 0 => depth -= 1,
                '<' => return !is_core_path(before.get(..at).unwrap_or_default()),
                _ => {}
            }
            false
        })
    })
}

/// Returns whether the path at the end of a text is core's or alloc's, or no path.
fn is_core_path(text: &str) -> bool {
    let text = text.strip_suffix("::").unwrap_or(text);
    let in_path = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | ':');
    let path = text.rsplit(|character: char| !in_path(character)).next().unwrap_or_default();
    path.is_empty()
        || ["core::", "alloc::", "std::"].iter().any(|library| path.starts_with(library))
        || HARMLESS.contains(&path)
}

/// Returns whether a line is a call: `_3 = f(move _1) -> [return: bb1, unwind unreachable];`.
fn is_call(line: &str) -> bool {
    line.contains(") -> [return") || line.contains(") -> unwind") || line.contains(") -> bb")
}

/// Returns whether a line has `Peekable<…>` or `Flatten<…>` around a type that does not say how long its items live.
fn buffers_closure_item(line: &str, known: &SourceFacts<'_>) -> bool {
    BUFFERING_ITERATORS.iter().flat_map(|keeping| line.match_indices(keeping)).any(|(at, keeping)| {
        let rest = line.get(at + keeping.len()..).unwrap_or_default();
        let rest = rest.strip_prefix("::").unwrap_or(rest);
        let inside = rest.strip_prefix('<').map(bracketed).unwrap_or_default();
        let silent = |(at, _): (usize, &str)| {
            let rest = inside.get(at..).unwrap_or_default();
            rest.split_inclusive('}').next().is_none_or(|closure| !known.plain.contains(closure))
        };
        let hidden = |(at, found): (usize, &str)| {
            let rest = inside.get(at + found.len()..).unwrap_or_default();
            is_impl_trait(inside, at)
                && !rest
                    .strip_prefix("Iterator<Item = ")
                    .is_some_and(|item| is_lifetime_free(bracketed(item), known.parameters))
        };
        let function = |(at, _): (usize, &str)| !gives_what_it_takes(inside, at, known.parameters);
        UNNAMED_TYPES.iter().flat_map(|kind| inside.match_indices(kind)).any(silent)
            || inside.match_indices("fn(").any(function)
            || inside.match_indices("impl ").any(hidden)
    })
}

/// Returns whether a function item, `for<'a> fn(&'a str) -> Chars<'a> {core::str::<impl str>::chars}`, returns only
/// lifetimes that it takes at each call. Others are part of its type, and do not limit how long that type lives
/// (rust-lang issue 84366).
fn gives_what_it_takes(text: &str, at: usize, parameters: &HashSet<String>) -> bool {
    let (before, rest) = text.split_at(at);
    let Some(behind) = rest.strip_prefix("fn(").and_then(behind_bracket) else { return false };
    let result = match behind.strip_prefix(" -> ") {
        Some(result) => result.split(" {").next().unwrap_or_default(),
        None => return behind.starts_with(" {"),
    };
    let quantified = before.strip_suffix("> ").and_then(|before| before.rsplit_once("for<")).map(|(_, own)| own);
    let mut result = result.to_owned();
    for lifetime in quantified.unwrap_or_default().split(", ").filter(|lifetime| lifetime.len() > 1) {
        for form in [format!("&{lifetime} mut "), format!("&{lifetime} ")] {
            result = result.replace(&form, "");
        }
        for end in [",", ">"] {
            result = result.replace(&format!("{lifetime}{end}"), end);
        }
    }
    is_lifetime_free(&result, parameters)
}

/// The text after the `)` that closes an open bracket.
fn behind_bracket(text: &str) -> Option<&str> {
    let mut depth = 1_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(at + 1..);
        }
    }
    None
}

/// Returns whether a type holds no lifetime, whatever its parameters are.
fn is_lifetime_free(kind: &str, parameters: &HashSet<String>) -> bool {
    let holds = ["&", "'", "*", "{", "dyn ", "impl ", "fn("];
    !holds.iter().any(|one| kind.contains(one)) && !is_generic(kind, parameters)
}

/// Closures whose results hold no lifetime, by what their bodies' first lines say:
/// `fn f::{closure#0}(_1: &mut {closure@src/lib.rs:1:2: 1:5}, _2: &str) -> u64 {`.
fn plain_closures<'a>(bodies: &[MirTextBody<'a>], parameters: &HashSet<String>) -> HashSet<&'a str> {
    let (mut plain, mut others) = (HashSet::new(), HashSet::new());
    for body in bodies {
        let Some((_, arguments)) = body.head.split_once("}(_1: ") else { continue };
        let own = arguments.trim_start_matches("&mut ").trim_start_matches('&');
        let Some(closure) = own.split_inclusive('}').next().filter(|own| own.starts_with("{closure@")) else {
            continue;
        };
        let behind = behind_bracket(arguments).unwrap_or_default();
        let result = behind.strip_prefix(" -> ").unwrap_or("{{");
        let result = result.strip_suffix(" {").unwrap_or(result);
        if is_lifetime_free(result, parameters) {
            plain.insert(closure)
        } else {
            others.insert(closure)
        };
    }
    plain.difference(&others).copied().collect()
}

/// The two arguments of `Result::<…, …>`: the text before and after the first comma outside of brackets.
fn halves(text: &str) -> (&str, &str) {
    // The value of an `Option` is taken out, and not shown.
    let Some((_, text)) = text.split_once("Result::<") else {
        return if text.contains("Option::<") { ("", "") } else { (text, text) };
    };
    let (mut depth, mut before) = (0_usize, ' ');
    for (at, character) in text.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return text.split_at(at),
            _ => {}
        }
        before = character;
    }
    (text, text)
}

/// The text up to the `>` that closes an open bracket; the `>` of an arrow closes none.
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

/// Returns whether a text names a type parameter, an associated type of one, or a parameter that is an `impl Trait`.
fn is_generic(text: &str, parameters: &HashSet<String>) -> bool {
    has_impl_trait(text)
        || text
            .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            .any(|word| word == "Self" || parameters.contains(word))
}

/// `impl Fn(u8)`, `impl 'a + show`, `impl (Debug)`: all but `<impl at src/lib.rs:1:2: 3:4>`, and heads of core's
/// implementations for its own types, `core::str::<impl str>::trim`, `core::slice::<impl [T]>::iter`.
fn has_impl_trait(text: &str) -> bool {
    text.match_indices("impl ").any(|(at, _)| is_impl_trait(text, at))
}

/// Returns whether the `impl ` at an offset of a text begins an `impl Trait`. No trait of the tenant's has the name of
/// a type of the language.
fn is_impl_trait(text: &str, at: usize) -> bool {
    let (before, rest) = text.split_at(at);
    let (Some(path), Some(rest)) = (before.strip_suffix('<'), rest.strip_prefix("impl ")) else { return true };
    let primitive = || PRIMITIVES.iter().filter_map(|name| rest.strip_prefix(name)).any(|rest| rest.starts_with(">::"));
    !(rest.starts_with("at ") || (path.ends_with("::") && (rest.starts_with(['[', '*']) || primitive())))
}

/// The refusal of a statement, or of the named function where the statement has no source location.
fn diagnostic_for_finding(found: &AuditFinding, name: &str, source: &PushedSource) -> Diagnostic {
    let AuditFinding { rule, what, from } = found;
    let mut parts = from.split(':');
    let place = parts.next().zip(parts.next()).zip(parts.next());
    let place = place.and_then(|((path, line), column)| {
        let file = source.files.iter().find(|file| file.path == path)?;
        let (line, column): (usize, usize) = (line.parse().ok()?, column.parse().ok()?);
        let start: usize = file.text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
        let text = file.text.get(start..)?.lines().next()?;
        let inside: usize = text.chars().take(column.checked_sub(1)?).map(char::len_utf8).sum();
        Some((file, start + inside..start + text.len().max(inside)))
    });
    match place {
        Some((file, span)) => {
            let name = last_name(name);
            let message = format!("{}: in `{name}` {what}", rule.reason);
            Diagnostic::refused(&file.path, &file.text, span, rule.id, &message)
        }
        None => diagnostic_for_function(rule, what, &format!("fn {name}"), source),
    }
}

/// The last name of a path: `read` of `module::<impl at src/lib.rs:1:2: 3:4>::read::{closure#0}`.
fn last_name(path: &str) -> &str {
    let is_name = |part: &&str| part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    path.rsplit("::").find(is_name).unwrap_or(path)
}

/// The refusal of the function whose body has this first line.
fn diagnostic_for_function(rule: &'static Rule, what: &str, head: &str, source: &PushedSource) -> Diagnostic {
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
