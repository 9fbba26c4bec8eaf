//! Regular expressions that take time in proportion to the text, whatever the expression: nothing is tried twice.
//!
//! ```
//! use sandstorm_api::prelude::*;
//! use sandstorm_api::regex::Regex;
//!
//! /// Takes a user's address apart.
//! async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
//!     let form = Regex::new(r"^([\w.+-]+)@((?:\w+\.)+\w{2,})$")?;
//!     let parts = form.captures(core::str::from_utf8(args)?).ok_or(Error::invalid("no address"))?;
//!     db.reply(format!("{} at {}", parts[1].unwrap_or(""), parts[2].unwrap_or("")).as_bytes())
//! }
//!
//! let mut store = sandstorm_api::testing::TestStore::new();
//! assert_eq!(store.invoke(run, b"ann.lee@mail.example.org").unwrap(), b"ann.lee at mail.example.org");
//! assert!(store.invoke(run, b"ann@localhost").is_err());
//! ```
//!
//! | write | for |
//! |---|---|
//! | `.` | any character but a line's end |
//! | `[a-z_]`, `[^,]` | one of these, none of these |
//! | `\d`, `\w`, `\s` | a digit, a letter or digit or `_`, a space of ASCII; `\D`, `\W`, `\S`: any other |
//! | `\n`, `\r`, `\t`, `\.` | a line's end, and so on; the sign itself |
//! | `ab`, `a\|b` | one after the other; either, the first one if both fit |
//! | `a*`, `a+`, `a?`, `a{2,5}` | any number, one or more, none or one, so many; with `?` behind as few as possible |
//! | `(a)`, `(?:a)` | a group, which [`Regex::captures`] tells; one that it does not |
//! | `^`, `$`, `\b`, `\B` | the text's beginning, its end, a word's edge, no edge |
//! | `(?i)` at the beginning | letters of ASCII count in either case |
//!
//! A search finds the leftmost match, and of those that begin there the one that a search with backtracking would.
//! There is no look-around and no reference back to a group.

mod matcher;
mod parser;
mod program;

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use program::Program;

/// Bytes of an expression, at most.
pub const REGEX_BYTES: usize = 4 << 10;
/// Groups inside of groups, at most.
pub const REGEX_DEPTH: usize = 32;
/// Steps that an expression may have, with its repetitions written out: a search takes time in proportion to the text's
/// length times these.
pub const REGEX_STEPS: usize = 2_048;

/// A regular expression, made ready. To use one for many texts make it once.
#[derive(Clone, Debug)]
pub struct Regex {
    program: Program,
}

impl Regex {
    /// Makes an expression ready.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    /// assert!(Regex::new(r"^\d{3}$").is_ok() && Regex::new("(").is_err());
    /// ```
    ///
    /// # Errors
    /// `Invalid`: it has a mistake, which the text names with its place, or more than the limits.
    pub fn new(expression: &str) -> Result<Regex, Error> {
        if expression.len() > REGEX_BYTES {
            return Err(Error::invalid("a regular expression has at most 4,096 bytes"));
        }
        let parsed = parser::parse(expression)?;
        Ok(Regex { program: program::compile(&parsed)? })
    }

    /// Returns whether there is a match anywhere in the text.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    /// assert!(Regex::new(r"\d+").unwrap().is_match("order 7"));
    /// ```
    pub fn is_match(&self, text: &str) -> bool {
        matcher::search(&self.program, text, 0, 0).is_some()
    }

    /// The bytes of the first match.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    ///
    /// let number = Regex::new(r"-?\d+").unwrap();
    /// assert_eq!(number.find("from -12 to 3"), Some(5..8));
    /// ```
    pub fn find(&self, text: &str) -> Option<Range<usize>> {
        self.find_from(text, 0)
    }

    /// The same from a byte on, which begins a character; what is before it still counts for `^` and `\b`.
    fn find_from(&self, text: &str, from: usize) -> Option<Range<usize>> {
        let found = matcher::search(&self.program, text, from, 2)?;
        Some(found[0]?..found[1]?)
    }

    /// The bytes of all matches, which do not overlap.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    ///
    /// let number = Regex::new(r"\d+").unwrap();
    /// let text = "from 12 to 3";
    /// let found: Vec<&str> = number.find_all(text).into_iter().map(|at| &text[at]).collect();
    /// assert_eq!(found, ["12", "3"]);
    /// ```
    pub fn find_all(&self, text: &str) -> Vec<Range<usize>> {
        let (mut found, mut from, mut last_end) = (vec![], 0, None);
        while let Some(at) = self.find_from(text, from) {
            let width = text[at.end..].chars().next().map(char::len_utf8);
            // One character further where nothing was matched: the same nothing would be found again.
            from = if at.is_empty() { at.end + width.unwrap_or(1) } else { at.end };
            // An empty match at the end of the one before is none.
            if !at.is_empty() || last_end != Some(at.end) {
                last_end = Some(at.end);
                found.push(at);
            }
            if from > text.len() {
                break;
            }
        }
        found
    }

    /// The texts of the groups of the first match: the whole match, then each group in the order of their opening
    /// brackets; `None` for a group that took no part.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    ///
    /// let pair = Regex::new(r"(\w+)=(\w+)?").unwrap();
    /// assert_eq!(pair.captures("a b= c").unwrap(), [Some("b="), Some("b"), None]);
    /// ```
    pub fn captures<'t>(&self, text: &'t str) -> Option<Vec<Option<&'t str>>> {
        let found = matcher::search(&self.program, text, 0, 2 * self.program.groups)?;
        Some(found.chunks_exact(2).map(|ends| Some(&text[ends[0]?..ends[1]?])).collect())
    }

    /// The text with each match replaced by what `with` makes of it.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    ///
    /// let digits = Regex::new(r"\d{4,}").unwrap();
    /// let hidden = digits.replace_all("card 12345678, room 12", |digits| "*".repeat(digits.len()));
    /// assert_eq!(hidden, "card ********, room 12");
    /// ```
    pub fn replace_all(&self, text: &str, mut with: impl FnMut(&str) -> String) -> String {
        let (mut replaced, mut from) = (String::with_capacity(text.len()), 0);
        for at in self.find_all(text) {
            replaced.push_str(&text[from..at.start]);
            replaced.push_str(&with(&text[at.clone()]));
            from = at.end;
        }
        replaced.push_str(&text[from..]);
        replaced
    }

    /// The parts of the text between matches.
    ///
    /// ```
    /// use sandstorm_api::regex::Regex;
    ///
    /// assert_eq!(Regex::new(r"\s*,\s*").unwrap().split("a , b,c"), ["a", "b", "c"]);
    /// ```
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let (mut parts, mut from) = (vec![], 0);
        for at in self.find_all(text) {
            parts.push(&text[from..at.start]);
            from = at.end;
        }
        parts.push(&text[from..]);
        parts
    }
}
