//! Writes clients of an extension in other languages: its types, and a class with its functions.

mod go;
#[cfg(test)]
mod hostile_names;
mod name_scope;
mod python;
mod rust;
mod typescript;

use std::str::FromStr;

use crate::{EnumType, ExtensionSchema, ValueType, VariantPayload};

/// A language that clients are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLanguage {
    /// Over the Rust client.
    Rust,
    /// Over the Python client, plain and for asyncio.
    Python,
    /// Over HTTP, by `fetch`, and over RESP, by node's sockets.
    TypeScript {
        /// Whether integers of 64 bits are of the type `bigint`, which is exact, instead of `number`.
        bigints: bool,
    },
    /// Over HTTP, by `net/http`, and over RESP, by `net`.
    Go,
}

impl ClientLanguage {
    /// All, with their names.
    pub const ALL: [(&'static str, ClientLanguage); 4] = [
        ("rust", ClientLanguage::Rust),
        ("python", ClientLanguage::Python),
        ("typescript", ClientLanguage::TypeScript { bigints: false }),
        ("go", ClientLanguage::Go),
    ];
}

impl FromStr for ClientLanguage {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientLanguage, String> {
        let found = ClientLanguage::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, language)| *language).ok_or_else(|| "write rust, python, typescript or go".to_owned())
    }
}

impl ExtensionSchema {
    /// The source of a client of the extension of that name.
    pub fn client_source(&self, extension: &str, language: ClientLanguage) -> String {
        match language {
            ClientLanguage::Rust => rust::write(self, extension),
            ClientLanguage::Python => python::write(self, extension),
            ClientLanguage::TypeScript { bigints } => typescript::write(self, extension, bigints),
            ClientLanguage::Go => go::write(self, extension),
        }
    }
}

/// The name of the class with the functions of an extension: `rate-limiter` has a `RateLimiterClient`, unless one of
/// its types has that name.
fn client_name(schema: &ExtensionSchema, extension: &str) -> String {
    let mut name = format!("{}Client", class_name(extension));
    while schema.types.iter().any(|one| one.name == name || capital_parts(&one.name) == name) {
        name.push('X');
    }
    name
}

/// An extension's name as one of a type: `rate-limiter` is `RateLimiter`.
fn class_name(extension: &str) -> String {
    let mut name: String = capital_parts(extension);
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        name.insert(0, 'X');
    }
    name
}

/// A name in parts with capitals: `next_value` is `NextValue`.
fn capital_parts(name: &str) -> String {
    let parts = name.split(['_', '-']).filter(|part| !part.is_empty());
    parts.map(|part| part[..1].to_ascii_uppercase() + &part[1..]).collect()
}

/// Whether no variant has anything in it.
fn is_plain(EnumType { variants }: &EnumType) -> bool {
    variants.iter().all(|variant| variant.payload == VariantPayload::Unit)
}

/// The named type in a type.
fn part_of(value: &ValueType) -> Option<&str> {
    match value {
        ValueType::Optional(inner) | ValueType::List(inner) => part_of(inner),
        ValueType::Named(name) => Some(name),
        _ => None,
    }
}

/// The names of types and functions that the part which all clients have declares: none of the extension's may be one.
fn declared_names<'s>(support: &[&'s str]) -> Vec<&'s str> {
    const WORDS: [&str; 7] = ["class ", "interface ", "type ", "func ", "function ", "async function ", "const "];
    support
        .iter()
        .flat_map(|file| file.lines())
        .filter_map(|line| {
            let line = line.strip_prefix("export ").unwrap_or(line);
            let rest = WORDS.iter().find_map(|word| line.strip_prefix(word))?;
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
        })
        .collect()
}

/// A description on a line of its own, after this.
fn comment(out: &mut String, indent: &str, mark: &str, description: &str) {
    let text = comment_text(description);
    if !text.is_empty() {
        out.push_str(&format!("{indent}{mark} {text}\n"));
    }
}

/// A description as it may stand in a comment of one line: what a tenant writes must not end it, nor hide what follows.
fn comment_text(description: &str) -> String {
    let in_line: String = description.chars().map(|letter| if ends_or_hides(letter) { ' ' } else { letter }).collect();
    in_line.split_whitespace().collect::<Vec<_>>().join(" ").replace("*/", "* /")
}

/// Whether a character ends a line somewhere, steers a terminal, or changes the direction or the order of a text.
fn ends_or_hides(letter: char) -> bool {
    let is_invisible = matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    letter.is_control() || is_invisible || matches!(letter, '\u{2028}'..='\u{202e}')
}

/// The first line of every client.
fn head(extension: &str) -> String {
    format!("Client of the extension {extension} of a Sandstorm server, made by `sandstorm ext generate`: do not edit.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NamedType, StructType, TypeBody};

    #[test]
    fn names_are_those_of_the_language() {
        assert_eq!(class_name("rate-limiter"), "RateLimiter");
        assert_eq!(class_name("2_of"), "X2Of");
        assert_eq!(capital_parts("next_value"), "NextValue");
        for (name, language) in ClientLanguage::ALL {
            assert_eq!(name.parse(), Ok(language));
        }
        assert!("cobol".parse::<ClientLanguage>().is_err());
    }

    /// A type of the extension's own may have any name, that of the class included.
    #[test]
    fn the_class_with_the_functions_is_no_type_of_the_extension() {
        let types = |name: &str| {
            let (name, description) = (name.to_owned(), String::new());
            let body = TypeBody::Struct(StructType { fields: Vec::new() });
            ExtensionSchema { types: vec![NamedType { name, body, description }], functions: Vec::new() }
        };
        assert_eq!(client_name(&types("Features"), "features"), "FeaturesClient");
        assert_eq!(client_name(&types("FeaturesClient"), "features"), "FeaturesClientX");
    }

    #[test]
    fn a_type_has_no_name_that_the_file_needs_for_itself() {
        let used = declared_names(&[
            "export class A {}\nasync function b<T>() {}\n",
            "type C[T any] struct{}\n  const d = 1;\n",
        ]);
        assert_eq!(used, ["A", "b", "C"]);
        let body = TypeBody::Struct(StructType {
            fields: vec![crate::StructField { name: "x".into(), value: ValueType::Bool, description: String::new() }],
        });
        let named = |name: &str| NamedType { name: name.into(), body: body.clone(), description: String::new() };
        let schema = ExtensionSchema { types: vec![named("Transport"), named("Order")], functions: Vec::new() };
        let typescript = schema.client_source("bank", ClientLanguage::TypeScript { bigints: false });
        let go = schema.client_source("bank", ClientLanguage::Go);
        for (text, part) in [
            (&typescript, "export interface Transport_ {"),
            (&typescript, "export interface Order {"),
            (&go, "type Transport_ struct {"),
            (&go, "type Order struct {"),
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn a_description_does_not_end_its_comment() {
        let mut out = String::new();
        comment(&mut out, "  ", "*", "a */ b");
        // However a line may end, the next one is no code.
        let hostile = "a\nimport os\r\nb\u{2028}c\u{85}d\u{202e}e\u{1b}[2J";
        let mut line = String::new();
        comment(&mut line, "", "#", hostile);
        assert_eq!(line, "# a import os b c d e [2J\n");
        assert_eq!(out, "  * a * / b\n");
    }
}
