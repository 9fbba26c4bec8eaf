//! Keys, values and arguments on the command line, and the format of replies.
//!
//! An argument is plain text, or one of these forms; several arguments are concatenated.
//!
//! | form | bytes |
//! |---|---|
//! | `str:TEXT` | TEXT, whatever it looks like |
//! | `hex:DIGITS` | two digits a byte |
//! | `u8:N` `u16:N` `u32:N` `u64:N` `i64:N` | the number, little-endian |
//! | `len16:TEXT` `len32:TEXT` | its length (u16, u32), then TEXT |
//! | `table:NAME` | the table's id, u64 |
//! | `@FILE`, `-` | the file; standard input |

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::{Value, json};

use sandstorm_terminal::needs_escape;

use super::output::CliError;

/// The forms of arguments.
pub(super) const FORMS: &str = "Keys, values and arguments are text as it stands, or one of:\n  \
    str:TEXT  hex:DIGITS  u8:N u16:N u32:N u64:N i64:N (little-endian)  len16:TEXT len32:TEXT (length, then text)\n  \
    table:NAME (its id, u64)  @FILE  - (standard input)";

/// Most bytes that are read from a file or standard input: the limit of the protocol.
const MAX_INPUT: u64 = 8 << 20;

/// The concatenated bytes of arguments; `table` returns a table's id by its name.
pub(super) fn parse_all(
    arguments: &[OsString],
    table: &mut dyn FnMut(&str) -> Result<u64, CliError>,
) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    for argument in arguments {
        bytes.extend(parse(argument, table)?);
    }
    Ok(bytes)
}

/// The bytes of one argument.
pub(super) fn parse(
    argument: &OsStr,
    table: &mut dyn FnMut(&str) -> Result<u64, CliError>,
) -> Result<Vec<u8>, CliError> {
    let raw = argument.as_bytes();
    if raw == b"-" {
        return read("standard input", std::io::stdin().lock());
    }
    if let Some(path) = raw.strip_prefix(b"@") {
        let path = OsStr::from_bytes(path);
        let shown = path.to_string_lossy();
        let file = std::fs::File::open(path).map_err(|error| {
            CliError::new(format!("cannot read {shown}: {error}")).hint("`str:@…` is that text itself")
        })?;
        return read(&shown, file);
    }
    let Some(colon) = raw.iter().position(|byte| *byte == b':') else { return Ok(raw.to_vec()) };
    let (form, rest) = (&raw[..colon], &raw[colon + 1..]);
    let number = |width: u32| number(argument, rest, width);
    Ok(match form {
        b"str" => rest.to_vec(),
        b"hex" => {
            HEXLOWER_PERMISSIVE.decode(rest).map_err(|_| bad(argument, "an even number of hexadecimal digits"))?
        }
        b"u8" => number(8)?,
        b"u16" => number(16)?,
        b"u32" => number(32)?,
        b"u64" => number(64)?,
        b"i64" => {
            let value = std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok());
            value.ok_or_else(|| bad(argument, "a number of 64 bits with a sign"))?.to_le_bytes().to_vec()
        }
        b"len16" => {
            let len = u16::try_from(rest.len()).map_err(|_| bad(argument, "a text of at most 65535 bytes"))?;
            [&len.to_le_bytes()[..], rest].concat()
        }
        b"len32" => {
            let len = u32::try_from(rest.len()).map_err(|_| bad(argument, "a shorter text"))?;
            [&len.to_le_bytes()[..], rest].concat()
        }
        b"table" => {
            let name = std::str::from_utf8(rest).map_err(|_| bad(argument, "the name of a table"))?;
            table(name)?.to_le_bytes().to_vec()
        }
        _ => raw.to_vec(),
    })
}

fn number(argument: &OsStr, text: &[u8], bits: u32) -> Result<Vec<u8>, CliError> {
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    match value {
        Some(value) if bits == 64 || value >> bits == 0 => Ok(value.to_le_bytes()[..bits as usize / 8].to_vec()),
        _ => Err(bad(argument, &format!("a number of {bits} bits"))),
    }
}

fn bad(argument: &OsStr, wanted: &str) -> CliError {
    let shown = argument.to_string_lossy();
    CliError::new(format!("{shown:?}: what follows the colon must be {wanted}"))
        .hint(format!("write str:{shown} for the text as it stands"))
}

fn read(name: &str, source: impl Read) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let unreadable = |error: std::io::Error| CliError::new(format!("cannot read {name}: {error}"));
    source.take(MAX_INPUT + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(CliError::new(format!("{name} has more than {MAX_INPUT} bytes, the longest value there can be")));
    }
    Ok(bytes)
}

/// Returns the bytes as text, if a terminal shows that text unchanged; for a file or a pipe, if it has no control
/// characters.
pub(super) fn printable(bytes: &[u8], terminal: bool) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_fit = |c: char| match terminal {
        true => !needs_escape(c),
        false => !c.is_control() || matches!(c, '\n' | '\t'),
    };
    text.chars().all(is_fit).then_some(text)
}

/// A value for people: text if it is printable on standard output, else hexadecimal.
pub(super) fn for_people(bytes: &[u8]) -> String {
    let terminal = std::io::stdout().is_terminal();
    printable(bytes, terminal).map_or_else(|| format!("hex:{}", HEXLOWER.encode(bytes)), str::to_owned)
}

/// A value for programs: always in hexadecimal, and as text when it is text.
pub(super) fn for_programs(bytes: &[u8]) -> Value {
    json!({"text": std::str::from_utf8(bytes).ok(), "hex": HEXLOWER.encode(bytes)})
}

/// Splits a reply into fields, by a layout such as `u64,u32`; the rest is shown as a value.
pub(super) fn fields(bytes: &[u8], layout: &str) -> Result<Vec<(String, Value)>, CliError> {
    let mut rest = bytes;
    let mut found = Vec::new();
    for name in layout.split(',').map(str::trim) {
        let width = match name {
            "u8" => 1,
            "u16" => 2,
            "u32" => 4,
            "u64" | "i64" => 8,
            _ => {
                return Err(CliError::new(format!("--as: there is no field {name:?}"))
                    .hint("fields are u8, u16, u32, u64 and i64, separated by commas"));
            }
        };
        let Some((field, behind)) = rest.split_at_checked(width) else {
            return Err(CliError::new(format!("--as: the reply has {} bytes, too few for {layout}", bytes.len())));
        };
        let mut word = [0; 8];
        word[..width].copy_from_slice(field);
        let number = if name == "i64" { json!(i64::from_le_bytes(word)) } else { json!(u64::from_le_bytes(word)) };
        found.push((name.to_owned(), number));
        rest = behind;
    }
    if !rest.is_empty() {
        found.push(("rest".to_owned(), json!(for_people(rest))));
    }
    Ok(found)
}
