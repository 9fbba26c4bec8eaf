//! How code names what it calls, and what it is told if the call cannot be made: the same from the server and from the
//! test store.

use alloc::format;
use alloc::string::String;

/// Ends the name in what a typed call hands over; behind it are the caller's types.
const TYPES_BEHIND: char = '\0';

/// Characters of a type that a message shows.
const SHOWN: usize = 400;

/// What a call names: an extension, or a typed function of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalleeName<'a> {
    /// The extension.
    pub extension: &'a str,
    /// The typed function, if it names one.
    pub function: Option<&'a str>,
    /// The caller's types, as a fingerprint has them; of a typed call.
    pub types: Option<&'a str>,
}

impl<'a> CalleeName<'a> {
    /// Reads what a call hands over as the name.
    pub fn parse(text: &'a str) -> CalleeName<'a> {
        let (name, types) = match text.split_once(TYPES_BEHIND) {
            Some((name, types)) => (name, Some(types)),
            None => (text, None),
        };
        match name.split_once('.') {
            Some((extension, function)) => CalleeName { extension, function: Some(function), types },
            None => CalleeName { extension: name, function: None, types },
        }
    }

    /// What a typed call hands over as the name.
    pub fn with_types(name: &str, types: &str) -> String {
        format!("{name}{TYPES_BEHIND}{types}")
    }
}

/// A name without its function in a typed call.
pub fn no_function_named(name: &str) -> String {
    format!("{name:?} names no typed function: write the extension, a dot and the function, such as \"bank.transfer\"")
}

/// An extension whose function is called, and that has no typed ones.
pub fn not_typed(extension: &str) -> String {
    format!("it has no typed functions: call it as `db.call({extension:?}, bytes)`")
}

/// A function that the extension does not have.
pub fn no_function(function: &str, there: &[&str]) -> String {
    format!("it has no function {function:?}: there are {}", there.join(", "))
}

/// Bytes for an extension with typed functions, this one among them.
pub fn bytes_for_typed(extension: &str, function: &str) -> String {
    format!(
        "its functions are typed, and the bytes are not such a call: write \
         `db.call_typed(\"{extension}.{function}\", &argument)`"
    )
}

/// A call by other types than the function has.
pub fn other_types(extension: &str, theirs: &str, ours: &str) -> String {
    let line = |text: &str| -> String { text.chars().take(SHOWN).collect() };
    let different = theirs.lines().filter(|line| !ours.lines().any(|other| other == *line)).map(line).next();
    let own = ours.lines().filter(|line| !theirs.lines().any(|other| other == *line)).map(line).next();
    format!(
        "the caller has other types than the function: `{}` in the caller, `{}` there. Take its types over, as \
         `sandstorm ext show {extension}` prints them",
        own.unwrap_or_default(),
        different.unwrap_or_default()
    )
}
