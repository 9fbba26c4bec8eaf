//! How code names what it calls, and what it is told if the call cannot be made: the same from the server and from the
//! test store.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Ends the name in what a typed call hands over; behind it are the caller's types.
const TYPES_BEHIND: char = '\0';

/// Characters of a type that a message shows.
const SHOWN: usize = 400;

/// Characters of a function's name that a message shows: names of functions have no more.
const NAME_SHOWN: usize = 64;

/// Lines of types that are compared: a schema has 128 types and a head, and a caller may send as many as it likes.
const LINES: usize = 160;

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
    let shown: String = function.chars().take(NAME_SHOWN).collect();
    format!("it has no function {shown:?}: there are {}", there.join(", "))
}

/// Bytes for an extension with typed functions, this one among them.
pub fn bytes_for_typed(extension: &str, function: &str) -> String {
    format!(
        "its functions are typed, and the bytes are not such a call: write \
         `db.call_typed(\"{extension}.{function}\", &argument)`"
    )
}

/// A call by other types than the function has. `ours` is what the caller has sent, which is bounded here: servers make
/// this text while no other tenant runs.
pub fn other_types(extension: &str, theirs: &str, ours: &str) -> String {
    let [theirs, ours] = [theirs, ours].map(|text| text.lines().take(LINES).collect::<Vec<&str>>());
    let first_alone = |of: &[&str], others: &[&str]| -> Option<String> {
        let alone = of.iter().find(|line| !others.contains(line))?;
        Some(alone.chars().take(SHOWN).collect())
    };
    let (different, own) = (first_alone(&theirs, &ours), first_alone(&ours, &theirs));
    format!(
        "the caller has other types than the function: `{}` in the caller, `{}` there. Take its types over, as \
         `sandstorm ext show {extension}` prints them",
        own.unwrap_or_default(),
        different.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long it is what a caller sends: so much of it is compared, and shown.
    #[test]
    fn a_refusal_is_short_and_compares_few_lines() {
        let theirs = "sandstorm call 1\nf(A) ()\nstruct A { x: u8 }\n";
        let behind = |lines: usize| format!("{}struct A {{ x: u8 }}\nsandstorm call 1\nf(A) ()\n", "\n".repeat(lines));
        assert!(other_types("bank", theirs, &behind(LINES - 3)).contains("`` in the caller, `` there"));
        let text = other_types("bank", theirs, &behind(LINES));
        assert!(text.contains("`` in the caller, `sandstorm call 1` there"), "{text}");
        let text = other_types("bank", theirs, &"x".repeat(60_000));
        assert!(text.len() < SHOWN + 300 && text.contains("xxx` in the caller"), "{text}");
        let text = no_function(&"\u{202e}".repeat(20_000), &["pay"]);
        assert!(text.len() < 1_000 && text.ends_with("there are pay"), "{text}");
        assert_eq!(no_function("buy", &["pay", "total"]), "it has no function \"buy\": there are pay, total");
    }
}
