//! What the operator denies to native code beyond the checker's rules: patterns that are looked for in a source. They
//! are for the time between a new soundness hole of the compiler and a rule against it, so they refuse too much rather
//! than too little.
//!
//! A pattern is the name of a shape of syntax ([`shapes`]), such as `match-guard`, or Rust tokens: an identifier, a
//! path, or a sequence in which `$_` stands for one token or group, `$*` for any number of them, and `'_` for any
//! lifetime. A path stands for its last name, wherever that is written: an import may have any form.
//!
//! Sources are searched after the checker has passed them: it bounds how deep they nest.

mod pattern;
pub(super) mod shapes;

use std::collections::HashSet;
use std::str::FromStr;

use proc_macro2::TokenStream;

use super::check::rules::RULES;
use super::check::with_a_deep_stack;
use super::diagnostic::Diagnostic;
use super::limits::{DENIED_BYTES, MAX_DIAGNOSTICS};
use super::{BuildError, PushedSource, SourceFile};
use pattern::{TokenPattern, read_nodes};
use shapes::{SHAPES, SyntaxShape};

/// Name of the rule in diagnostics.
const RULE: &str = "denied";

/// One pattern.
#[derive(Clone, Debug)]
pub struct DeniedPattern {
    text: String,
    kind: PatternKind,
}

#[derive(Clone, Debug)]
enum PatternKind {
    Shape(&'static SyntaxShape),
    Tokens(TokenPattern),
}

/// Whether the checker has a rule of that name.
pub fn is_checker_rule(name: &str) -> bool {
    RULES.iter().any(|rule| rule.id == name)
}

impl DeniedPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The reason that it is none, for people, in one line.
    pub fn parse(text: &str) -> Result<DeniedPattern, String> {
        let text = text.trim();
        if text.len() > DENIED_BYTES {
            return Err(format!("it is longer than {DENIED_BYTES} bytes"));
        }
        if let Some(shape) = SHAPES.iter().find(|shape| shape.name == text) {
            return Ok(DeniedPattern { text: text.to_owned(), kind: PatternKind::Shape(shape) });
        }
        if is_checker_rule(text) {
            return Err(format!("{text} is a rule of the checker, which refuses it already"));
        }
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        if text.contains('-') && text.bytes().all(is_name) {
            let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            return Err(format!("there is no shape of that name; there are: {}", names.join(", ")));
        }
        let tokens = TokenPattern::parse(text)?;
        Ok(DeniedPattern { text: text.to_owned(), kind: PatternKind::Tokens(tokens) })
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Reads several patterns.
///
/// # Errors
/// `Internal`, naming the first that is none: they were parsed before, when the operator denied them.
fn parse_all(texts: &[String]) -> Result<Vec<DeniedPattern>, BuildError> {
    // Two lists may have the same one.
    let mut seen = HashSet::new();
    let unseen = texts.iter().filter(|text| seen.insert(text.as_str()));
    let parse = |text: &String| {
        let unreadable = |why| BuildError::Internal(format!("the denied pattern {text:?} cannot be read: {why}"));
        DeniedPattern::parse(text).map_err(unreadable)
    };
    unseen.map(parse).collect()
}

/// Looks for denied patterns in a source that the checker has passed.
///
/// # Errors
/// `Refused` with a place for each pattern and file; `Internal` when the search cannot be made.
pub(super) fn check_denied(source: &PushedSource, texts: &[String]) -> Result<(), BuildError> {
    if texts.is_empty() {
        return Ok(());
    }
    let patterns = parse_all(texts)?;
    let search = || -> Vec<Diagnostic> { source.files.iter().flat_map(|file| search_file(file, &patterns)).collect() };
    let mut found = with_a_deep_stack(search)?;
    if found.is_empty() {
        return Ok(());
    }
    found.truncate(MAX_DIAGNOSTICS);
    Err(BuildError::Refused(found))
}

fn search_file(file: &SourceFile, patterns: &[DeniedPattern]) -> Vec<Diagnostic> {
    let refused =
        |span: std::ops::Range<usize>, message: &str| Diagnostic::refused(&file.path, &file.text, span, RULE, message);
    // What cannot be read cannot be searched. The checker reads it in the same way.
    let unreadable =
        |span: proc_macro2::Span| vec![refused(span.byte_range(), "this cannot be searched for what is denied")];
    let tokens = match TokenStream::from_str(&file.text) {
        Ok(tokens) => tokens,
        Err(error) => return unreadable(error.span()),
    };
    let parsed = match syn::parse2::<syn::File>(tokens.clone()) {
        Ok(parsed) => parsed,
        Err(error) => return unreadable(error.span()),
    };
    let nodes = read_nodes(tokens);
    let found = shapes::find(&parsed);
    let mut remarks = Vec::new();
    for pattern in patterns {
        let (place, about) = match &pattern.kind {
            PatternKind::Tokens(tokens) => (tokens.find(&nodes), ""),
            PatternKind::Shape(shape) => (found.place_of(shape), shape.about),
        };
        if let Some(place) = place {
            let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
            let message = format!("the operator denies `{}`{about} to native code", pattern.text);
            remarks.push(refused(place.byte_range(), &message));
        }
    }
    remarks
}

#[cfg(test)]
mod tests;
