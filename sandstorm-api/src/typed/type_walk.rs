//! The walk over the types of a call that writes them down.

use alloc::format;
use alloc::string::String;

use super::type_text::TypeText;
use super::value::Typed;
use crate::Error;

/// The first line of the text of a call's types.
const HEAD: &str = "sandstorm call 1\n";

impl TypeText {
    /// The types of a call of the function of that name.
    ///
    /// # Errors
    /// `Invalid`: two types in them have one name, so a schema cannot have them both.
    pub fn of_call<A: Typed, R: Typed>(function: &str) -> Result<String, Error> {
        let mut to = TypeText { text: format!("{HEAD}{function}("), ..TypeText::default() };
        A::typed_name(&mut to);
        to.push(") ");
        R::typed_name(&mut to);
        to.push("\n");
        A::typed_describe(&mut to);
        R::typed_describe(&mut to);
        match to.twice {
            None => Ok(to.text),
            Some(name) => Err(Error::invalid(format!(
                "two types of the call have the name {name}: give each the name that it has in the other extension"
            ))),
        }
    }

    /// Writes a field of that name, or what is in its type.
    pub fn field<T: Typed>(&mut self, name: &str) -> T {
        if self.is_line {
            self.separate();
            self.push_name(name);
            self.push(": ");
            T::typed_name(self);
        } else {
            T::typed_describe(self);
        }
        T::typed_empty()
    }

    /// Writes a value of a variant, which has no name, or what is in its type.
    pub fn value<T: Typed>(&mut self, _name: &str) -> T {
        if self.is_line {
            self.separate();
            T::typed_name(self);
        } else {
            T::typed_describe(self);
        }
        T::typed_empty()
    }
}
