//! JSON as text.

use core::fmt::{Display, Formatter, Result, Write};

use super::{Json, JsonNumber};

impl Display for Json {
    /// Writes it without spaces; with `{:#}` a line for each value.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let pretty = f.alternate();
        write_value(f, self, pretty.then_some(0))
    }
}

impl Display for JsonNumber {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            JsonNumber::Negative(number) => write!(f, "{number}"),
            JsonNumber::Positive(number) => write!(f, "{number}"),
            // With a point or an exponent, so that it is read back as what it is.
            JsonNumber::Float(number) if number.is_finite() => write!(f, "{number:?}"),
            JsonNumber::Float(_) => f.write_str("null"),
        }
    }
}

/// Writes a value. `indent`: a line for each value inside, so many steps from the left.
fn write_value(f: &mut Formatter<'_>, value: &Json, indent: Option<usize>) -> Result {
    match value {
        Json::Null => f.write_str("null"),
        Json::Bool(value) => write!(f, "{value}"),
        Json::Number(number) => write!(f, "{number}"),
        Json::Text(text) => write_text(f, text),
        Json::List(values) if values.is_empty() => f.write_str("[]"),
        Json::Object(fields) if fields.is_empty() => f.write_str("{}"),
        Json::List(values) => {
            f.write_char('[')?;
            for (at, value) in values.iter().enumerate() {
                begin_line(f, at > 0, indent.map(|indent| indent + 1))?;
                write_value(f, value, indent.map(|indent| indent + 1))?;
            }
            begin_line(f, false, indent)?;
            f.write_char(']')
        }
        Json::Object(fields) => {
            f.write_char('{')?;
            for (at, (name, value)) in fields.iter().enumerate() {
                begin_line(f, at > 0, indent.map(|indent| indent + 1))?;
                write_text(f, name)?;
                f.write_str(if indent.is_some() { ": " } else { ":" })?;
                write_value(f, value, indent.map(|indent| indent + 1))?;
            }
            begin_line(f, false, indent)?;
            f.write_char('}')
        }
    }
}

fn begin_line(f: &mut Formatter<'_>, comma: bool, indent: Option<usize>) -> Result {
    if comma {
        f.write_char(',')?;
    }
    if let Some(indent) = indent {
        f.write_char('\n')?;
        for _ in 0..indent {
            f.write_str("  ")?;
        }
    }
    Ok(())
}

fn write_text(f: &mut Formatter<'_>, text: &str) -> Result {
    f.write_char('"')?;
    let mut rest = text;
    // Pieces without anything to escape go as they are.
    while let Some(at) = rest.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        let (plain, from) = rest.split_at(at);
        f.write_str(plain)?;
        match from.as_bytes()[0] {
            b'"' => f.write_str("\\\"")?,
            b'\\' => f.write_str("\\\\")?,
            b'\n' => f.write_str("\\n")?,
            b'\r' => f.write_str("\\r")?,
            b'\t' => f.write_str("\\t")?,
            0x08 => f.write_str("\\b")?,
            0x0c => f.write_str("\\f")?,
            byte => write!(f, "\\u{byte:04x}")?,
        }
        rest = &from[1..];
    }
    f.write_str(rest)?;
    f.write_char('"')
}
