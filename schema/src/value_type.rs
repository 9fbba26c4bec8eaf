//! A type of a value, written as in Rust.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The type of a value. Its text is Rust's, with `bytes` for `Vec<u8>`: `Vec<Option<Item>>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ValueType {
    /// Nothing.
    Unit,
    /// True or false.
    Bool,
    /// An integer without a sign, of 8, 16, 32 or 64 bits.
    Unsigned(u8),
    /// An integer with a sign, of 8, 16, 32 or 64 bits.
    Signed(u8),
    /// A number with a fraction, of 32 or 64 bits.
    Float(u8),
    /// UTF-8.
    Text,
    /// Any bytes.
    Bytes,
    /// A value, or none.
    Optional(Box<ValueType>),
    /// Any number of values.
    List(Box<ValueType>),
    /// A struct or an enum of the schema.
    Named(String),
}

impl ValueType {
    /// The plain type of that name, if there is one.
    pub fn plain(name: &str) -> Option<ValueType> {
        Some(match name {
            "()" => ValueType::Unit,
            "bool" => ValueType::Bool,
            "u8" => ValueType::Unsigned(8),
            "u16" => ValueType::Unsigned(16),
            "u32" => ValueType::Unsigned(32),
            "u64" => ValueType::Unsigned(64),
            "i8" => ValueType::Signed(8),
            "i16" => ValueType::Signed(16),
            "i32" => ValueType::Signed(32),
            "i64" => ValueType::Signed(64),
            "f32" => ValueType::Float(32),
            "f64" => ValueType::Float(64),
            "String" => ValueType::Text,
            "bytes" => ValueType::Bytes,
            _ => return None,
        })
    }

    /// Whether it is a name that a struct or an enum may have.
    pub fn is_name(text: &str) -> bool {
        let mut chars = text.chars();
        let starts = chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
        starts
            && text.len() <= crate::limits::NAME_BYTES
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
            && ValueType::plain(text).is_none()
            && !["Option", "Vec", "_"].contains(&text)
    }

    fn parse(text: &str, depth: usize) -> Option<ValueType> {
        if depth > crate::limits::NESTING {
            return None;
        }
        let inner = |name: &str| text.strip_prefix(name)?.strip_suffix('>');
        if let Some(plain) = ValueType::plain(text) {
            Some(plain)
        } else if let Some(text) = inner("Option<") {
            ValueType::parse(text, depth + 1).map(|value| ValueType::Optional(value.into()))
        } else if let Some(text) = inner("Vec<") {
            ValueType::parse(text, depth + 1).map(|value| ValueType::List(value.into()))
        } else {
            ValueType::is_name(text).then(|| ValueType::Named(text.to_owned()))
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Unit => f.write_str("()"),
            ValueType::Bool => f.write_str("bool"),
            ValueType::Unsigned(bits) => write!(f, "u{bits}"),
            ValueType::Signed(bits) => write!(f, "i{bits}"),
            ValueType::Float(bits) => write!(f, "f{bits}"),
            ValueType::Text => f.write_str("String"),
            ValueType::Bytes => f.write_str("bytes"),
            ValueType::Optional(value) => write!(f, "Option<{value}>"),
            ValueType::List(value) => write!(f, "Vec<{value}>"),
            ValueType::Named(name) => f.write_str(name),
        }
    }
}

impl FromStr for ValueType {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueType, String> {
        ValueType::parse(text, 0).ok_or_else(|| format!("{text:?} is no type of a value"))
    }
}

impl From<ValueType> for String {
    fn from(value: ValueType) -> String {
        value.to_string()
    }
}

impl TryFrom<String> for ValueType {
    type Error = String;

    fn try_from(text: String) -> Result<ValueType, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_back_from_its_text() {
        for text in
            ["()", "bool", "u8", "i64", "f32", "String", "bytes", "Vec<Option<Item>>", "Option<Vec<u16>>", "A_1"]
        {
            assert_eq!(text.parse::<ValueType>().map(|parsed| parsed.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "u128", "Vec", "Vec<>", "Vec<u8", "Option<u8>>", "1a", "a b", "Vec<u8>x", "<u8>"] {
            // A name that is no plain type is a named one, which a schema has or not.
            let is_named = ValueType::is_name(text);
            assert_eq!(text.parse::<ValueType>().is_ok(), is_named, "{text}");
        }
        let deep = format!("{}u8{}", "Vec<".repeat(40), ">".repeat(40));
        assert!(deep.parse::<ValueType>().is_err());
    }
}
