//! The types of a call as the caller has them, as a text: the one of which a schema's fingerprint is made.

use alloc::string::String;
use alloc::vec::Vec;

/// A struct or an enum: its name, and where it was made a `Typed` one, which tells it from another of that name.
pub(super) type DescribedType = (&'static str, &'static str);

/// A text of types that is being written: a line for the call, and one for each struct and enum in it.
#[derive(Debug, Default)]
pub struct TypeText {
    pub(super) text: String,
    /// The structs and enums that are written down.
    pub(super) described: Vec<DescribedType>,
    /// A name that two of them have.
    pub(super) twice: Option<&'static str>,
    /// Whether a line is being written; else types in those of the line are.
    pub(super) is_line: bool,
    /// Whether something stands before the next part of the line.
    pub(super) needs_comma: bool,
}

impl TypeText {
    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Writes a part of it.
    pub fn push(&mut self, part: &str) {
        self.text.push_str(part);
    }

    /// Writes a name, without the mark of a raw one.
    pub fn push_name(&mut self, name: &str) {
        self.push(name.strip_prefix("r#").unwrap_or(name));
    }

    pub(super) fn separate(&mut self) {
        if core::mem::replace(&mut self.needs_comma, true) {
            self.push(", ");
        }
    }

    /// Begins a variant, with this bracket or none.
    pub fn begin_variant(&mut self, name: &str, bracket: &str) {
        if self.is_line {
            self.separate();
            self.push_name(name);
            match bracket {
                "{" => self.push(" { "),
                bracket => self.push(bracket),
            }
            self.needs_comma = false;
        }
    }

    /// Ends a variant.
    pub fn end_variant(&mut self, bracket: &str) {
        if self.is_line {
            self.push(match bracket {
                "{" => " }",
                "(" => ")",
                _ => "",
            });
            self.needs_comma = true;
        }
    }
}

/// The two times that the parts of a struct or an enum are gone through: for its line, and for the types in it.
#[derive(Debug)]
pub struct TypePasses {
    kind: &'static str,
    name: &'static str,
    place: &'static str,
    done: u8,
}

impl TypePasses {
    /// Those of a `struct` or an `enum`, which was made a `Typed` one at that place.
    pub fn of(kind: &'static str, name: &'static str, place: &'static str) -> TypePasses {
        TypePasses { kind, name, place, done: 0 }
    }

    /// Begins the next one, if there is one.
    pub fn next(&mut self, to: &mut TypeText) -> bool {
        self.done += 1;
        match self.done {
            1 if to.described.contains(&(self.name, self.place)) => false,
            1 if to.described.iter().any(|(name, _)| *name == self.name) => {
                to.twice = Some(self.name);
                false
            }
            1 => {
                to.described.push((self.name, self.place));
                to.push(self.kind);
                to.push(" ");
                to.push_name(self.name);
                to.push(" { ");
                (to.is_line, to.needs_comma) = (true, false);
                true
            }
            2 => {
                to.push(" }\n");
                to.is_line = false;
                true
            }
            _ => false,
        }
    }
}
